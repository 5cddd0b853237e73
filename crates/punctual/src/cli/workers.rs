//! `punctual queues` and `punctual workers`: what waits in queues, and who takes it.

use serde_json::{Value, json};

use super::broker::{BrokerArgs, part};
use super::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual queues shop")]
pub(crate) struct QueuesArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual workers shop")]
pub(crate) struct WorkersArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl QueuesArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let answer = self.broker.get(&format!("/v1/{}/queues", part(&self.namespace)))?;
        output::print(&self.broker, &answer, |answer| {
            let mut queues = answer["queues"].clone();
            for queue in queues.as_array_mut().into_iter().flatten() {
                queue["waiting"] = waiting(queue);
            }
            let columns = ["name", "waiting", "in_flight", "workers", "oldest_overdue_ms"];
            output::rows(&queues, &columns)
        })
    }
}

/// A number, with a sign that there are more.
fn waiting(queue: &Value) -> Value {
    let sign = if queue["more"] == true { "+" } else { "" };
    json!(format!("{}{sign}", queue["waiting"]))
}

impl WorkersArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let answer = self.broker.get(&format!("/v1/{}/workers", part(&self.namespace)))?;
        output::print(&self.broker, &answer, |answer| {
            let mut workers = answer["workers"].clone();
            for worker in workers.as_array_mut().into_iter().flatten() {
                worker["queues"] = names(&worker["queues"]);
                worker["since_at"] = worker["since"].take();
            }
            let columns =
                ["name", "address", "broker", "queues", "in_flight", "credit", "since_at"];
            output::rows(&workers, &columns)
        })
    }
}

fn names(list: &Value) -> Value {
    let names: Vec<&str> =
        list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    json!(names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_complete_has_a_sign() {
        assert_eq!(waiting(&json!({"waiting": 7, "more": false})), json!("7"));
        assert_eq!(waiting(&json!({"waiting": 7, "more": true})), json!("7+"));
        assert_eq!(names(&json!(["a", "b"])), json!("a, b"));
    }
}
