//! `punctual schedule`: creates a task, or replaces the task with the same key; `many` schedules
//! those in the lines of a file.
//!
//! Every member of a task in the API has a flag. `body` turns the flags into the request, `target`
//! those of the targets; `payload` reads the payload, `retry` the retry policy. With `--dry-run`,
//! `dry_run` checks the task with the same rules as the broker and prints its next fires; nothing
//! is sent.

mod body;
mod dry_run;
mod many;
mod pairs;
mod payload;
mod retry;
mod target;

use clap::ArgGroup;
use serde_json::Value;

use super::broker::{BrokerArgs, part};
use super::input::{read_file, read_json};
use super::output;

use pairs::pair;
use payload::PayloadArgs;
use retry::RetryArgs;
use target::TargetArgs;

/// Exactly one of these must be given. A file has whole tasks.
const WHEN_FLAGS: [&str; 6] = ["in", "at", "cron", "every", "within", "file"];
const WHERE_FLAGS: [&str; 10] =
    ["to", "queue", "sql", "kafka", "amqp", "nats", "mqtt", "redis_stream", "grpc", "file"];
/// The flags, and groups of flags, that make up a task.
const TASK_FLAGS: [&str; 9] = [
    "SeriesArgs",
    "WatchArgs",
    "TargetArgs",
    "PayloadArgs",
    "RetryArgs",
    "guarantee",
    "timeout",
    "expires_after",
    "labels",
];

const EXAMPLES: &str = "Examples:
  punctual schedule shop order-42 --in 15m --to https://shop.example/cancel --payload '[42]'
  punctual schedule shop report --cron '0 9 * * MON-FRI' --timezone Europe/Berlin --queue reports
  punctual schedule fleet device-7 --within 10m --to https://fleet.example/silent
  punctual schedule shop sync --every 1h --queue work --backoff exponential:1s,2,5m
  punctual schedule shop standup --in 1h --to https://chat.example/robot --success-json /errcode=0
  punctual schedule shop order-42 --in 15m --grpc http://orders:50051 --method /shop.Orders/Cancel
  punctual schedule shop order-42 --in 15m --kafka events/orders.expired --payload '[42]'
  punctual schedule shop report --cron '0 9 * * *' --queue reports --dry-run
  punctual schedule shop order-42 --file task.json
  punctual schedule shop --file tasks.ndjson --idempotency-key import-7";

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("when").required(true).args(WHEN_FLAGS)))]
#[command(group(ArgGroup::new("where").required(true).args(WHERE_FLAGS)))]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScheduleArgs {
    /// The namespace
    namespace: String,
    /// Key of the task: your own name for it; without one, the task has only an id
    key: Option<String>,

    /// Fire once, this long from now: 15m, 1h30m, 30d
    #[arg(long = "in", id = "in", value_name = "DURATION", help_heading = "When")]
    r#in: Option<String>,
    /// Fire once, at this time: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", help_heading = "When")]
    at: Option<String>,
    /// Fire repeatedly, by a cron expression
    #[arg(long, value_name = "EXPRESSION", help_heading = "When")]
    cron: Option<String>,
    /// Fire repeatedly, at this interval
    #[arg(long, value_name = "DURATION", help_heading = "When")]
    every: Option<String>,
    /// Watch: fire if the task is not touched within this time
    #[arg(long, value_name = "DURATION", help_heading = "When")]
    within: Option<String>,

    #[command(flatten)]
    series: SeriesArgs,
    #[command(flatten)]
    watch: WatchArgs,

    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    payload: PayloadArgs,
    #[command(flatten)]
    retry: RetryArgs,

    /// Delivery guarantee; at_least_once if not given
    #[arg(long, value_parser = ["at_least_once", "at_most_once", "exactly_once"])]
    #[arg(help_heading = "Delivery")]
    guarantee: Option<String>,
    /// How long one attempt may take
    #[arg(long, value_name = "DURATION", help_heading = "Delivery")]
    timeout: Option<String>,
    /// Give a fire up this long after its due time
    #[arg(long, value_name = "DURATION", help_heading = "Delivery")]
    expires_after: Option<String>,

    /// File with tasks as JSON, one per line; - for standard input. With KEY, the file has one task
    #[arg(long, value_name = "FILE", conflicts_with_all = TASK_FLAGS)]
    #[arg(conflicts_with_all = ["paused", "dry_run"], help_heading = "Tasks from a file")]
    file: Option<String>,

    /// Label to find the task by; may be repeated
    #[arg(long = "label", value_name = "NAME:VALUE", value_parser = pair)]
    #[arg(help_heading = "Options")]
    labels: Vec<(String, String)>,
    /// Create the task paused; it does not fire until it is resumed
    #[arg(long, help_heading = "Options")]
    paused: bool,
    /// Create the task; fail if the key names a task already
    #[arg(long, alias = "if-absent", requires = "key", conflicts_with = "if_match")]
    #[arg(help_heading = "Options")]
    create_only: bool,
    /// Replace the task only if it has this version
    #[arg(long, alias = "if-version", requires = "key", value_name = "VERSION")]
    #[arg(help_heading = "Options")]
    if_match: Option<u64>,
    /// Make the request repeatable: the same key with the same task, or file, creates it once
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["create_only", "if_match"])]
    #[arg(help_heading = "Options")]
    idempotency_key: Option<String>,
    /// Check the task and show its next fires; nothing is scheduled and no broker is called
    #[arg(long, help_heading = "Options")]
    dry_run: bool,

    #[command(flatten)]
    broker: BrokerArgs,
}

/// Flags that apply to `--cron` and `--every`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --cron and --every")]
struct SeriesArgs {
    /// With --cron: IANA name of the time zone of the expression; UTC if not given
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// With --cron: what to do about a local time that does not exist when clocks go forward
    #[arg(long, value_parser = ["after", "skip"])]
    dst_gap: Option<String>,
    /// With --cron: what to do about a local time that exists twice when clocks go back
    #[arg(long, value_parser = ["once", "both"])]
    dst_overlap: Option<String>,
    /// No fire before this time
    #[arg(long, value_name = "TIME")]
    starts_at: Option<String>,
    /// No fire after this time
    #[arg(long, value_name = "TIME")]
    ends_at: Option<String>,
    /// End after this many fires
    #[arg(long)]
    count: Option<u32>,
    /// What to do about fires that were missed; fire_once if not given
    #[arg(long, value_parser = ["fire_once", "fire_all", "skip"])]
    misfire: Option<String>,
    /// What to do about a fire while the previous one is in flight; allow if not given
    #[arg(long, value_parser = ["allow", "skip", "queue_one"])]
    overlap: Option<String>,
    /// Delay each fire by a random time up to this
    #[arg(long, value_name = "DURATION")]
    jitter: Option<String>,
}

/// Flags that apply to `--within`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --within")]
struct WatchArgs {
    /// How long touches can postpone a fire in total
    #[arg(long, value_name = "DURATION")]
    postpone_max: Option<String>,
    /// Fire again when a watch that has fired is touched
    #[arg(long)]
    on_return: bool,
}

impl ScheduleArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut body = match (&self.file, &self.key) {
            (Some(file), None) => return self.run_many(file),
            (Some(file), Some(_)) => read_json("--file", &read_file(file)?)?,
            (None, _) => {
                let payload = self.payload.read()?;
                if self.dry_run {
                    return self.run_dry(payload);
                }
                self.body(&payload)?
            }
        };
        let tasks = format!("/v1/{}/tasks", part(&self.namespace));
        let task: Value = match (&self.key, &self.idempotency_key) {
            (key, Some(idempotency)) => {
                if let Some(key) = key {
                    body.set("key", key)?;
                }
                let headers = [("idempotency-key", idempotency.clone())];
                self.broker.call("POST", &tasks, &headers, Some(&body))?
            }
            (Some(key), None) => {
                let path = format!("{tasks}/{}", part(key));
                self.broker.call("PUT", &path, &self.conditions(), Some(&body))?
            }
            (None, None) => self.broker.post(&tasks, &body)?,
        };
        output::print(&self.broker, &task, output::task)
    }

    fn conditions(&self) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if self.create_only {
            headers.push(("if-none-match", "*".to_owned()));
        }
        if let Some(version) = self.if_match {
            headers.push(("if-match", format!("\"{version}\"")));
        }
        headers
    }
}
