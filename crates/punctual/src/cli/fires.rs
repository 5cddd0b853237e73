//! `punctual fires`: the fires of all tasks that have ended, newest first.

use serde_json::{Value, json};

use super::broker::{BrokerArgs, part};
use super::output;
use super::pages::{PageArgs, with_cursor};
use super::tasks::answered;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual fires shop
  punctual fires shop --end dead --from 2030-01-01T00:00:00Z
  punctual fires shop --key-prefix order- --label zone:eu --json")]
pub(crate) struct FiresArgs {
    /// The namespace
    namespace: String,
    /// Only fires that ended in this way: done, dead, cancelled, replaced or skipped
    #[arg(long)]
    end: Option<String>,
    /// Only fires of tasks whose key starts with this text
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only fires of tasks with this label
    #[arg(long, value_name = "NAME:VALUE")]
    label: Option<String>,
    /// Only fires that ended at this time or later
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only fires that ended before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    #[command(flatten)]
    pages: PageArgs,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl FiresArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let path = format!("/v1/{}/fires", part(&self.namespace));
        let fires = self.pages.read(
            &self.broker,
            &path,
            "fires",
            &[
                ("end", self.end.as_deref()),
                ("key_prefix", self.key_prefix.as_deref()),
                ("label", self.label.as_deref()),
                ("from", self.from.as_deref()),
                ("to", self.to.as_deref()),
            ],
        )?;
        output::print(&self.broker, &fires, |list| {
            with_cursor(table(&list["fires"]), "fires", list)
        })
    }
}

/// One line per fire, with its last attempt.
pub(super) fn table(fires: &Value) -> String {
    let columns = ["ended_at", "end", "key", "fire_at", "lag_ms", "attempts", "last", "fire_id"];
    let mut rows = fires.clone();
    for fire in rows.as_array_mut().into_iter().flatten() {
        let attempts = fire["attempts"].as_array().map_or(0, Vec::len);
        fire["last"] = last_attempt(fire);
        fire["attempts"] = json!(attempts);
    }
    output::rows(&rows, &columns)
}

/// What came of the last attempt, in a few words.
fn last_attempt(fire: &Value) -> Value {
    let Some(last) = fire["attempts"].as_array().and_then(|attempts| attempts.last()) else {
        return Value::Null;
    };
    let outcome = last["outcome"].as_str().unwrap_or_default();
    let Some(reason) = last["reason"].as_str() else { return json!(outcome) };
    match answered(last, &Value::Null).as_str() {
        Some(message) if !message.is_empty() => json!(format!("{outcome}: {reason}: {message}")),
        _ => json!(format!("{outcome}: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fire_is_a_line_with_its_last_attempt() {
        let attempts = json!([
            {"outcome": "failed", "reason": "HTTP 500"},
            {"outcome": "refused", "reason": "HTTP 410", "answer": {"text": "gone"}},
        ]);
        let fires = json!([
            {"end": "dead", "key": "order-1", "lag_ms": 3, "attempts": attempts, "fire_id": "a-1"},
            {"end": "cancelled", "attempts": [], "fire_id": "b-1"},
        ]);
        let table = table(&fires);
        let lines: Vec<Vec<&str>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        let head = ["ended_at", "end", "key", "fire_at", "lag_ms", "attempts", "last", "fire_id"];
        assert_eq!(lines[0], head);
        assert_eq!(
            lines[1],
            ["-", "dead", "order-1", "-", "3", "2", "refused:", "HTTP", "410:", "gone", "a-1"]
        );
        assert_eq!(lines[2], ["-", "cancelled", "-", "-", "-", "0", "-", "b-1"]);
    }
}
