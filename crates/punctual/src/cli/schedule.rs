//! `punctual schedule`: creates a task, or replaces the one that the key names.

use std::io::Read as _;

use anyhow::{Context as _, bail};
use clap::ArgGroup;
use serde_json::{Map, Value, json};

use super::broker::{Broker, part};
use super::show;

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("when").required(true).args(["in", "at", "cron", "every", "within"])))]
#[command(group(ArgGroup::new("where").required(true).args(["to", "queue"])))]
pub(crate) struct Schedule {
    namespace: String,
    /// The task's own name; without one it has only an id.
    key: Option<String>,

    /// So long from now: 15m, 1h30m, 30d.
    #[arg(long = "in", id = "in", value_name = "DURATION")]
    r#in: Option<String>,
    /// At this time: RFC 3339, or milliseconds since 1970.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Again and again, by a cron expression.
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Again and again, so far apart.
    #[arg(long, value_name = "DURATION")]
    every: Option<String>,
    /// Unless touched within this time.
    #[arg(long, value_name = "DURATION")]
    within: Option<String>,

    #[command(flatten)]
    series: Series,
    #[command(flatten)]
    watch: Watch,

    /// The webhook to call.
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// How to call it; POST unless given.
    #[arg(long, requires = "to")]
    method: Option<String>,
    /// A header to send, NAME:VALUE. May be given again.
    #[arg(long = "header", requires = "to", value_name = "NAME:VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// The queue whose workers get it.
    #[arg(long)]
    queue: Option<String>,

    /// JSON to send; @FILE reads it from a file, - from standard input.
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// at_least_once, at_most_once or exactly_once.
    #[arg(long)]
    guarantee: Option<String>,
    /// Attempts in all.
    #[arg(long, value_name = "COUNT")]
    attempts: Option<u16>,
    /// How long one attempt may take.
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// How long after its time it still makes sense.
    #[arg(long, value_name = "DURATION")]
    expires_after: Option<String>,
    /// A label to find it by, NAME:VALUE. May be given again.
    #[arg(long = "label", value_name = "NAME:VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Only if the key names no task yet.
    #[arg(long, requires = "key", conflicts_with = "if_version")]
    if_absent: bool,
    /// Only if the task has this version.
    #[arg(long, requires = "key", value_name = "VERSION")]
    if_version: Option<u64>,

    #[command(flatten)]
    broker: Broker,
}

/// What goes with `--cron` and `--every`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --cron and --every")]
struct Series {
    /// With --cron: the time zone of the expression, by its IANA name; UTC unless given.
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// With --cron, for a local time that the clocks leap over: after or skip.
    #[arg(long, value_name = "WHEN")]
    dst_gap: Option<String>,
    /// With --cron, for a local time that the clocks show twice: once or both.
    #[arg(long, value_name = "WHEN")]
    dst_overlap: Option<String>,
    /// No fire before.
    #[arg(long, value_name = "TIME")]
    starts_at: Option<String>,
    /// No fire after.
    #[arg(long, value_name = "TIME")]
    ends_at: Option<String>,
    /// So many fires.
    #[arg(long)]
    count: Option<u32>,
    /// What is done about missed fires: fire_once, fire_all or skip.
    #[arg(long, value_name = "WHAT")]
    misfire: Option<String>,
    /// What is done about a fire while the one before is not over: allow, skip or queue_one.
    #[arg(long, value_name = "WHAT")]
    overlap: Option<String>,
    /// Each fire is up to so much later, by chance.
    #[arg(long, value_name = "DURATION")]
    jitter: Option<String>,
}

/// What goes with `--within`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --within")]
struct Watch {
    /// How long touches can put off a fire, all together.
    #[arg(long, value_name = "DURATION")]
    postpone_max: Option<String>,
    /// Fire once more when a watch that has fired is touched.
    #[arg(long)]
    on_return: bool,
}

impl Schedule {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let body = self.body()?;
        let namespace = part(&self.namespace);
        let mut headers = Vec::new();
        if self.if_absent {
            headers.push(("if-none-match", "*".to_owned()));
        }
        if let Some(version) = self.if_version {
            headers.push(("if-match", format!("\"{version}\"")));
        }
        let tasks = format!("/v1/{namespace}/tasks");
        let task = match &self.key {
            Some(key) => {
                let path = format!("{tasks}/{}", part(key));
                self.broker.call("PUT", &path, &headers, Some(&body))?
            }
            None => self.broker.post(&tasks, &body)?,
        };
        show::answer(&self.broker, &task, show::task)
    }

    fn body(&self) -> anyhow::Result<Value> {
        let mut body = Map::new();
        let texts = [
            ("in", &self.r#in),
            ("cron", &self.cron),
            ("timezone", &self.series.timezone),
            ("misfire", &self.series.misfire),
            ("overlap", &self.series.overlap),
            ("jitter", &self.series.jitter),
            ("postpone_max", &self.watch.postpone_max),
            ("every", &self.every),
            ("within", &self.within),
            ("guarantee", &self.guarantee),
            ("timeout", &self.timeout),
            ("expires_after", &self.expires_after),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                body.insert(name.to_owned(), json!(value));
            }
        }
        let times = [
            ("at", &self.at),
            ("starts_at", &self.series.starts_at),
            ("ends_at", &self.series.ends_at),
        ];
        for (name, time) in times {
            if let Some(time) = time {
                body.insert(name.to_owned(), super::tasks::time(time));
            }
        }
        if let Some(count) = self.series.count {
            body.insert("count".to_owned(), json!(count));
        }
        if self.watch.on_return {
            body.insert("on_return".to_owned(), json!(true));
        }
        let dst = [("gap", &self.series.dst_gap), ("overlap", &self.series.dst_overlap)];
        let dst = dst.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let dst: Map<_, _> = dst.map(|(name, value)| (name.to_owned(), json!(value))).collect();
        if !dst.is_empty() {
            body.insert("dst".to_owned(), dst.into());
        }
        body.insert("target".to_owned(), self.target()?);
        if let Some(payload) = &self.payload {
            body.insert("payload".to_owned(), read_payload(payload)?);
        }
        if let Some(attempts) = self.attempts {
            body.insert("retry".to_owned(), json!({ "attempts_max": attempts }));
        }
        if !self.labels.is_empty() {
            body.insert("labels".to_owned(), object("--label", &self.labels)?);
        }
        Ok(body.into())
    }

    fn target(&self) -> anyhow::Result<Value> {
        let Some(url) = &self.to else {
            return Ok(json!({ "queue": self.queue }));
        };
        let mut http = Map::from_iter([("url".to_owned(), json!(url))]);
        if let Some(method) = &self.method {
            http.insert("method".to_owned(), json!(method));
        }
        if !self.headers.is_empty() {
            http.insert("headers".to_owned(), object("--header", &self.headers)?);
        }
        Ok(json!({ "http": http }))
    }
}

fn read_payload(given: &str) -> anyhow::Result<Value> {
    let text = match (given, given.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            text
        }
        (_, Some(file)) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?
        }
        (text, None) => text.to_owned(),
    };
    serde_json::from_str(&text).context("--payload must be JSON")
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("must be NAME:VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// An object of all pairs. A name that is given twice would lose a value before the broker could say so.
fn object(flag: &str, pairs: &[(String, String)]) -> anyhow::Result<Value> {
    let mut object = Map::new();
    for (name, value) in pairs {
        if object.insert(name.clone(), json!(value)).is_some() {
            bail!("{flag} {name} is given twice");
        }
    }
    Ok(object.into())
}
