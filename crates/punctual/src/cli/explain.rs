//! `punctual explain`: what a task waits for, in one sentence and some facts.

use serde_json::Value;

use super::broker::{BrokerArgs, part};
use super::{fires, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual explain shop order-42")]
pub(crate) struct ExplainArgs {
    /// The namespace
    namespace: String,
    /// Key or id of the task
    task: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl ExplainArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let (namespace, task) = (part(&self.namespace), part(&self.task));
        let answer = self.broker.get(&format!("/v1/{namespace}/tasks/{task}/explain"))?;
        output::print(&self.broker, &answer, text)
    }
}

/// The sentence, the facts, then tables of the next and the last fires.
fn text(answer: &Value) -> String {
    let sentence = |value: &Value| output::clean(value.as_str().unwrap_or_default());
    let mut lines = vec![sentence(&answer["summary"])];
    lines.extend(answer["details"].as_array().into_iter().flatten().map(sentence));
    lines.push(place(answer));
    if answer["touches"].is_number() {
        let touched = answer["touched_at"].as_str().unwrap_or("never");
        lines.push(format!("Touches: {}, the last one {touched}.", answer["touches"]));
    }
    let table = |name: &str, title: &str, table: &dyn Fn(&Value) -> String| {
        let any = answer[name].as_array().is_some_and(|list| !list.is_empty());
        any.then(|| format!("\n{title}\n{}", table(&answer[name])))
    };
    let next = |fires: &Value| output::rows(fires, &["fire_at", "local", "why"]);
    lines.extend(table("next", "Next fires", &next));
    lines.extend(table("fires", "Last fires", &fires::table));
    lines.join("\n")
}

fn place(answer: &Value) -> String {
    let partition = &answer["partition"];
    match answer["owner"].as_str() {
        Some(owner) => {
            let owner = output::clean(owner);
            format!("Partition {partition}, owned by {owner}, epoch {}.", answer["epoch"])
        }
        None => format!("Partition {partition}, without an owner."),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_sentence_comes_first_and_empty_tables_are_left_out() {
        let answer = json!({
            "summary": "Task \"a\" is paused.", "details": ["One fact.", "Another\u{1b}."],
            "partition": 3, "owner": "10.0.0.1:7400", "epoch": 7, "touches": 2,
            "touched_at": "2030-01-01T00:00:00Z", "next": [], "fires": [],
        });
        let want = "Task \"a\" is paused.\nOne fact.\nAnother .\n\
                    Partition 3, owned by 10.0.0.1:7400, epoch 7.\n\
                    Touches: 2, the last one 2030-01-01T00:00:00Z.";
        assert_eq!(text(&answer), want);
        let next = json!([{"fire_at": "2030-01-01T00:00:00Z", "local": "l", "why": "jitter"}]);
        let mut answer = json!({"summary": "s", "partition": 0, "next": next});
        answer["fires"] = json!([]);
        let text = text(&answer);
        assert!(text.starts_with("s\nPartition 0, without an owner.\n\nNext fires\n"), "{text}");
        assert!(!text.contains("Last fires"), "{text}");
    }
}
