//! `punctual alarms`: lists, shows, creates, deletes and tests the alarms of a namespace.
//!
//! `rule` turns the flags of `put` into the rule.

mod rule;

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Value, json};

use super::broker::{BrokerArgs, part};
use super::output;
use rule::{RuleArgs, condition_text, receiver_text};

#[derive(Debug, Subcommand)]
pub(crate) enum AlarmsCommand {
    /// List alarms by name, with their states and present values
    List(AlarmListArgs),
    /// Show an alarm
    #[command(after_help = "Example:\n  punctual alarms show shop errors")]
    Show(AlarmArgs),
    /// Create an alarm, or replace the rule of the one with the same name
    Put(Box<AlarmPutArgs>),
    /// Delete an alarm
    #[command(after_help = "Example:\n  punctual alarms delete shop errors")]
    Delete(AlarmArgs),
    /// Send a notice that says that it is a test, and show what became of it
    #[command(after_help = "Example:\n  punctual alarms test shop errors")]
    Test(AlarmArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual alarms list shop")]
pub(crate) struct AlarmListArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AlarmArgs {
    /// The namespace
    namespace: String,
    /// The name of the alarm
    name: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual alarms put shop errors --failures 100 --window 1m --slack https://hooks.example/T0/B0
  punctual alarms put shop share --failure-share 0.1 --min 50 --window 5m --mail ops@example.org
  punctual alarms put shop dead --dead-letters-over 0 --http https://shop.example/alarm
  punctual alarms put shop late --lag-p99-over 1s --window 1m --dingtalk URL --secret @robot.key
  punctual alarms put shop stuck --overdue 30s --mail ops@example.org --repeat-after 1h
  punctual alarms put shop idle --no-workers emails --for 1m --http https://shop.example/alarm
  punctual alarms put shop errors --file rule.json")]
pub(crate) struct AlarmPutArgs {
    /// The namespace
    namespace: String,
    /// The name of the alarm
    name: String,
    #[command(flatten)]
    rule: RuleArgs,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl AlarmsCommand {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::List(args) => args.run(),
            Self::Show(args) => args.show(),
            Self::Put(args) => args.run(),
            Self::Delete(args) => args.delete(),
            Self::Test(args) => args.test(),
        }
    }
}

impl AlarmListArgs {
    fn run(&self) -> anyhow::Result<()> {
        let answer = self.broker.get(&format!("/v1/{}/alarms", part(&self.namespace)))?;
        output::print(&self.broker, &answer, |answer| table(&answer["alarms"]))
    }
}

impl AlarmArgs {
    fn show(&self) -> anyhow::Result<()> {
        let alarm = self.broker.get(&self.path())?;
        output::print(&self.broker, &alarm, shown)
    }

    fn delete(&self) -> anyhow::Result<()> {
        let answer = self.broker.delete(&self.path())?;
        output::print(&self.broker, &answer, output::fields)
    }

    fn test(&self) -> anyhow::Result<()> {
        let path = format!("{}/test", self.path());
        let answer = self.broker.call("POST", &path, &[], None::<&Value>)?;
        output::print(&self.broker, &answer, output::fields)?;
        match answer["state"].as_str() {
            Some("failed") => bail!("the receiver did not take the notice"),
            _ => Ok(()),
        }
    }

    fn path(&self) -> String {
        format!("/v1/{}/alarms/{}", part(&self.namespace), part(&self.name))
    }
}

impl AlarmPutArgs {
    fn run(&self) -> anyhow::Result<()> {
        let rule = self.rule.read()?;
        let path = format!("/v1/{}/alarms/{}", part(&self.namespace), part(&self.name));
        let alarm = self.broker.call("PUT", &path, &[], Some(&rule))?;
        output::print(&self.broker, &alarm, shown)
    }
}

/// One line per alarm.
fn table(alarms: &Value) -> String {
    let columns = ["name", "state", "since_at", "value", "when", "to", "last_notice", "notice_at"];
    let mut rows = alarms.clone();
    for alarm in rows.as_array_mut().into_iter().flatten() {
        let notice = alarm["last_notice"].take();
        alarm["notice_at"] = notice["at"].clone();
        alarm["last_notice"] = notice_text(&notice);
        alarm["since_at"] = alarm["since"].take();
        alarm["when"] = condition_text(&alarm["when"]).into();
        alarm["to"] = receiver_text(&alarm["to"]).into();
    }
    output::rows(&rows, &columns)
}

/// One line per member, with the last notice in several.
fn shown(alarm: &Value) -> String {
    let mut shown = json!({
        "name": alarm["name"],
        "state": alarm["state"],
        "since_at": alarm["since"],
        "value": alarm["value"],
        "when": condition_text(&alarm["when"]),
        "to": receiver_text(&alarm["to"]),
        "repeat_after": alarm["repeat_after"],
        "notices": alarm["notices"],
    });
    let notice = &alarm["last_notice"];
    if notice.is_object() {
        shown["last_notice"] = notice_text(notice);
        shown["last_notice_at"] = notice["at"].clone();
    }
    if let Some(answer) = notice["answer"]["text"].as_str() {
        shown["last_notice_answer"] = json!(answer);
    }
    output::fields(&shown)
}

/// `over: done`, `raised: failed (HTTP 500)`.
fn notice_text(notice: &Value) -> Value {
    let Some(state) = notice["state"].as_str() else { return Value::Null };
    let kind = notice["kind"].as_str().unwrap_or("notice");
    match notice["reason"].as_str() {
        Some(reason) => json!(format!("{kind}: {state} ({reason})")),
        None => json!(format!("{kind}: {state}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_is_a_line_with_its_rule_and_its_last_notice() {
        let alarms = json!([
            {
                "name": "errors", "state": "raised", "since": "soon", "value": 120,
                "when": {"failures": {"count": 100, "window": "1m"}},
                "to": {"chat": {"kind": "slack", "url": "https://hooks.example/a"}},
                "notices": 3,
                "last_notice": {"kind": "raised", "state": "failed", "reason": "HTTP_500"},
            },
            {
                "name": "idle", "state": "ok", "since": "then", "value": null,
                "when": {"no_workers": {"queue": "q", "for": "1m"}},
                "to": {"mail": {"to": ["a@b", "c@d"]}},
                "notices": 0, "last_notice": null,
            },
        ]);
        let table = table(&alarms);
        let lines: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        let head = ["name", "state", "since_at", "value", "when", "to", "last_notice", "notice_at"];
        assert_eq!(lines[0], head);
        let errors =
            "errors raised soon 120 failures >= 100 in 1m slack raised: failed (HTTP_500) -";
        assert_eq!(lines[1].join(" "), errors);
        let idle = "idle ok then - no worker of q for 1m mail a@b, c@d - -";
        assert_eq!(lines[2].join(" "), idle);
        assert!(shown(&alarms[0]).contains("raised: failed (HTTP_500)"));
    }
}
