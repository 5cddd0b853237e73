//! The flags of `punctual alarms put`: one condition, one receiver, or a file with both.

use anyhow::Context as _;
use clap::ArgGroup;
use serde_json::{Value, json};

use crate::cli::input::{read_file, read_secret};

/// Exactly one of these must be given, or a file.
const WHEN_FLAGS: [&str; 7] = [
    "failures",
    "failure_share",
    "dead_letters_over",
    "lag_p99_over",
    "overdue",
    "no_workers",
    "file",
];
const TO_FLAGS: [&str; 7] = ["http", "slack", "dingtalk", "feishu", "wecom", "mail", "file"];

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("when").required(true).args(WHEN_FLAGS)))]
#[command(group(ArgGroup::new("to").required(true).args(TO_FLAGS)))]
pub(super) struct RuleArgs {
    /// Raised when this many attempts have failed within --window
    #[arg(long, value_name = "COUNT", requires = "window", help_heading = "When")]
    failures: Option<u64>,
    /// Raised when a larger share of the attempts within --window has failed: 0.1 is 10 %
    #[arg(long, value_name = "SHARE", help_heading = "When")]
    #[arg(requires = "window", requires = "min")]
    failure_share: Option<f64>,
    /// With --failure-share: not raised with fewer attempts within --window
    #[arg(long, value_name = "COUNT", requires = "failure_share", help_heading = "When")]
    min: Option<u64>,
    /// Raised when there are more dead letters
    #[arg(long, value_name = "COUNT", help_heading = "When")]
    dead_letters_over: Option<u64>,
    /// Raised when more than 1 % of the fires within --window were sent later than this
    #[arg(long, value_name = "DURATION", requires = "window", help_heading = "When")]
    lag_p99_over: Option<String>,
    /// Raised when a task is due for longer and was not sent
    #[arg(long, value_name = "DURATION", help_heading = "When")]
    overdue: Option<String>,
    /// Raised when this queue has had no worker as long as --for says
    #[arg(long, value_name = "QUEUE", requires = "for", help_heading = "When")]
    no_workers: Option<String>,
    /// With --no-workers: how long the queue may be without a worker
    #[arg(long = "for", id = "for", value_name = "DURATION", requires = "no_workers")]
    #[arg(help_heading = "When")]
    longest: Option<String>,
    /// The time that is looked back: from 1s to 1h
    #[arg(long, value_name = "DURATION", help_heading = "When")]
    #[arg(conflicts_with_all = ["dead_letters_over", "overdue", "no_workers"])]
    window: Option<String>,

    /// Webhook that gets the notices as JSON
    #[arg(long, value_name = "URL", help_heading = "To")]
    http: Option<String>,
    /// Webhook of a robot of Slack
    #[arg(long, value_name = "URL", help_heading = "To")]
    slack: Option<String>,
    /// Webhook of a robot of DingTalk
    #[arg(long, value_name = "URL", help_heading = "To")]
    dingtalk: Option<String>,
    /// Webhook of a robot of Feishu (Lark)
    #[arg(long, value_name = "URL", help_heading = "To")]
    feishu: Option<String>,
    /// Webhook of a robot of WeCom
    #[arg(long, value_name = "URL", help_heading = "To")]
    wecom: Option<String>,
    /// With --dingtalk and --feishu: the secret that signs notices, or @FILE to read it from a file
    #[arg(long, value_name = "SECRET", help_heading = "To")]
    #[arg(conflicts_with_all = ["http", "slack", "wecom", "mail", "file"])]
    secret: Option<String>,
    /// Mail address; may be repeated
    #[arg(long, value_name = "ADDRESS", help_heading = "To")]
    mail: Vec<String>,

    /// Report a raised alarm again after this time, at least 1m; never if not given
    #[arg(long, value_name = "DURATION", conflicts_with = "file")]
    repeat_after: Option<String>,
    /// Rule as JSON, as the API takes it, instead of flags; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["window"])]
    file: Option<String>,
}

impl RuleArgs {
    pub(super) fn read(&self) -> anyhow::Result<Value> {
        if let Some(file) = &self.file {
            let text = read_file(file)?;
            return serde_json::from_slice(&text).with_context(|| format!("{file} is not JSON"));
        }
        let mut rule = json!({ "when": self.when(), "to": self.to()? });
        if let Some(after) = &self.repeat_after {
            rule["repeat_after"] = json!(after);
        }
        Ok(rule)
    }

    fn when(&self) -> Value {
        let window = &self.window;
        if let Some(count) = self.failures {
            json!({ "failures": { "count": count, "window": window } })
        } else if let Some(over) = self.failure_share {
            json!({ "failure_share": { "over": over, "min": self.min, "window": window } })
        } else if let Some(over) = self.dead_letters_over {
            json!({ "dead_letters": { "over": over } })
        } else if let Some(over) = &self.lag_p99_over {
            json!({ "lag": { "p99_over": over, "window": window } })
        } else if let Some(over) = &self.overdue {
            json!({ "overdue": { "over": over } })
        } else {
            json!({ "no_workers": { "queue": self.no_workers, "for": self.longest } })
        }
    }

    fn to(&self) -> anyhow::Result<Value> {
        if let Some(url) = &self.http {
            return Ok(json!({ "http": { "url": url } }));
        }
        let robots = [
            ("slack", &self.slack),
            ("dingtalk", &self.dingtalk),
            ("feishu", &self.feishu),
            ("wecom", &self.wecom),
        ];
        let robot = robots.into_iter().find_map(|(kind, url)| Some((kind, url.as_ref()?)));
        let Some((kind, url)) = robot else {
            return Ok(json!({ "mail": { "to": self.mail } }));
        };
        let mut chat = json!({ "kind": kind, "url": url });
        if let Some(secret) = &self.secret {
            chat["secret"] = json!(read_secret(secret)?);
        }
        Ok(json!({ "chat": chat }))
    }
}

/// A condition in a few words.
pub(super) fn condition_text(when: &Value) -> String {
    let Some((name, fields)) = when.as_object().and_then(|when| when.iter().next()) else {
        return String::new();
    };
    let text = |field: &str| match &fields[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match name.as_str() {
        "failures" => format!("failures >= {} in {}", text("count"), text("window")),
        "failure_share" => {
            format!("failed > {} of at least {} in {}", text("over"), text("min"), text("window"))
        }
        "dead_letters" => format!("dead letters > {}", text("over")),
        "lag" => format!("lag p99 > {} in {}", text("p99_over"), text("window")),
        "overdue" => format!("overdue > {}", text("over")),
        "no_workers" => format!("no worker of {} for {}", text("queue"), text("for")),
        _ => when.to_string(),
    }
}

/// A receiver in a few words. The URL of a chat is left out, because it is a secret by itself.
pub(super) fn receiver_text(to: &Value) -> String {
    if let Some(url) = to["http"]["url"].as_str() {
        return url.to_owned();
    }
    if let Some(kind) = to["chat"]["kind"].as_str() {
        return kind.to_owned();
    }
    let addresses = to["mail"]["to"].as_array().into_iter().flatten().filter_map(Value::as_str);
    format!("mail {}", addresses.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct RuleLine {
        #[command(flatten)]
        rule: RuleArgs,
    }

    fn read(line: &str) -> Option<Value> {
        let words = ["put"].into_iter().chain(line.split_whitespace());
        RuleLine::try_parse_from(words).ok().map(|line| line.rule.read().unwrap())
    }

    #[test]
    fn each_condition_and_each_receiver_has_flags() {
        let url = json!({"http": {"url": "http://h"}});
        let chat = |kind: &str| json!({"chat": {"kind": kind, "url": "http://h"}});
        let mut signed = chat("feishu");
        signed["chat"]["secret"] = json!("s");
        for (line, when, to) in [
            (
                "--failures 100 --window 1m --http http://h",
                json!({"failures": {"count": 100, "window": "1m"}}),
                url.clone(),
            ),
            (
                "--failure-share 0.1 --min 50 --window 5m --slack http://h",
                json!({"failure_share": {"over": 0.1, "min": 50, "window": "5m"}}),
                chat("slack"),
            ),
            (
                "--dead-letters-over 0 --dingtalk http://h",
                json!({"dead_letters": {"over": 0}}),
                chat("dingtalk"),
            ),
            (
                "--lag-p99-over 1s --window 1m --feishu http://h --secret s",
                json!({"lag": {"p99_over": "1s", "window": "1m"}}),
                signed,
            ),
            ("--overdue 30s --wecom http://h", json!({"overdue": {"over": "30s"}}), chat("wecom")),
            (
                "--no-workers q --for 1m --mail a@b --mail c@d",
                json!({"no_workers": {"queue": "q", "for": "1m"}}),
                json!({"mail": {"to": ["a@b", "c@d"]}}),
            ),
        ] {
            assert_eq!(read(line).unwrap(), json!({"when": when, "to": to}), "{line}");
        }
        let repeated = read("--overdue 1s --http http://h --repeat-after 1h").unwrap();
        assert_eq!(repeated["repeat_after"], "1h");
    }

    #[test]
    fn flags_that_do_not_go_together_are_refused() {
        for line in [
            "",
            "--http http://h",
            "--overdue 1s",
            "--overdue 1s --dead-letters-over 0 --http http://h",
            "--overdue 1s --http http://h --slack http://h",
            "--failures 1 --http http://h",
            "--failure-share 0.1 --window 1m --http http://h",
            "--no-workers q --http http://h",
            "--overdue 1s --window 1m --http http://h",
            "--overdue 1s --http http://h --secret s",
            "--file rule.json --http http://h",
            "--file rule.json --repeat-after 1h",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
