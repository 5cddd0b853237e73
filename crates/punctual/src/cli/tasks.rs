//! The commands for existing tasks: `show`, `list`, `pause`, `resume`, `fire` and `history`.
//! `named` has those that take many tasks.

use serde_json::{Value, json};

use super::broker::{BrokerArgs, part};
use super::output;
use super::pages::{PageArgs, with_cursor};

/// Characters of an answer in a table; `--json` has all that is kept.
const ANSWER_CHARS_MAX: usize = 120;

/// One task.
#[derive(Debug, clap::Args)]
pub(crate) struct TaskArgs {
    /// The namespace
    namespace: String,
    /// Key or id of the task
    task: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl TaskArgs {
    pub(super) fn show(&self) -> anyhow::Result<()> {
        let task = self.broker.get(&self.path(""))?;
        output::print(&self.broker, &task, output::task)
    }

    pub(super) fn change(&self, verb: &str) -> anyhow::Result<()> {
        let task = self.broker.post(&self.path(&format!("/{verb}")), &json!({}))?;
        output::print(&self.broker, &task, output::task)
    }

    pub(super) fn history(&self) -> anyhow::Result<()> {
        let fires = self.broker.get(&self.path("/fires"))?;
        output::print(&self.broker, &fires, |answer| {
            let mut rows = Vec::new();
            for fire in answer["fires"].as_array().into_iter().flatten() {
                let attempts = fire["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
                let (end, lag) = (&fire["end"], &fire["lag_ms"]);
                let whole = json!({"fire_at": fire["fire_at"], "end": end, "lag_ms": lag});
                if attempts.is_empty() {
                    let mut row = whole.clone();
                    row["reason"] = skipped(&fire["skipped"]);
                    rows.push(row);
                }
                for attempt in attempts {
                    let mut row = whole.clone();
                    for name in ["attempt", "at", "outcome", "reason"] {
                        row[name] = attempt[name].clone();
                    }
                    row["answer"] = answered(attempt, &fire["result"]);
                    rows.push(row);
                }
            }
            let columns =
                ["fire_at", "end", "lag_ms", "attempt", "at", "outcome", "reason", "answer"];
            output::rows(&rows.into(), &columns)
        })
    }

    fn path(&self, verb: &str) -> String {
        format!("/v1/{}/tasks/{}{verb}", part(&self.namespace), part(&self.task))
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual list shop
  punctual list shop --state paused --key-prefix order-
  punctual list shop --label zone:eu --from 2030-01-01T00:00:00Z --json")]
pub(crate) struct ListArgs {
    /// The namespace
    namespace: String,
    /// Only tasks with this kind of schedule: once, cron, every, watch, or recurring (cron or
    /// every)
    #[arg(long)]
    kind: Option<String>,
    /// Only tasks in this state: scheduled, firing, paused, done or dead
    #[arg(long)]
    state: Option<String>,
    /// Only tasks whose key starts with this text
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only tasks with this label
    #[arg(long, value_name = "NAME:VALUE")]
    label: Option<String>,
    /// Only tasks that are due at this time or later
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only tasks that are due before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    #[command(flatten)]
    pages: PageArgs,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl ListArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let path = format!("/v1/{}/tasks", part(&self.namespace));
        let answer = self.pages.read(
            &self.broker,
            &path,
            "tasks",
            &[
                ("kind", self.kind.as_deref()),
                ("state", self.state.as_deref()),
                ("key_prefix", self.key_prefix.as_deref()),
                ("label", self.label.as_deref()),
                ("from", self.from.as_deref()),
                ("to", self.to.as_deref()),
            ],
        )?;
        output::print(&self.broker, &answer, |answer| {
            let columns =
                ["fire_at", "state", "key", "schedule", "id", "version", "attempt", "target"];
            let mut tasks = answer["tasks"].clone();
            for task in tasks.as_array_mut().into_iter().flatten() {
                task["schedule"] = json!(output::schedule(task));
            }
            with_cursor(output::rows(&tasks, &columns), "tasks", answer)
        })
    }
}

/// The beginning of what an attempt was answered: the response of a webhook, or the result that a
/// worker sent with its ack.
pub(super) fn answered(attempt: &Value, result: &Value) -> Value {
    let answer = &attempt["answer"];
    let text = match (answer["text"].as_str(), answer["base64"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(base64)) => format!("base64 {base64}"),
        (None, None) if attempt["outcome"] == "acked" && !result.is_null() => result.to_string(),
        (None, None) => return Value::Null,
    };
    let mut shown: String = text.chars().take(ANSWER_CHARS_MAX).collect();
    if shown.len() < text.len() || answer["truncated"] == true {
        shown.push('…');
    }
    json!(shown)
}

/// Describes fires that a misfire or overlap policy skipped.
fn skipped(skipped: &Value) -> Value {
    let (Some(fires), Some(until)) = (skipped["fires"].as_u64(), skipped["until"].as_str()) else {
        return Value::Null;
    };
    let reason = skipped["reason"].as_str().unwrap_or_default();
    match fires {
        1 => json!(format!("1 fire, {reason}")),
        _ => json!(format!("{fires} fires until {until}, {reason}")),
    }
}

/// A time as the API takes it: a number of milliseconds, or text.
pub(super) fn time(text: &str) -> Value {
    text.parse::<i64>().map_or_else(|_| json!(text), |millis| json!(millis))
}
