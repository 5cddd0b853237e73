//! `punctual listen`: a worker on the terminal. It prints deliveries and acks them, or fails them to see what happens then.

use serde_json::{Value, json};

use super::broker::{Broker, part};
use super::show;

#[derive(Debug, clap::Args)]
pub(crate) struct Listen {
    namespace: String,
    queue: String,
    /// Fail deliveries for this reason instead of acking them.
    #[arg(long, value_name = "REASON")]
    fail: Option<String>,
    /// Stop after so many deliveries.
    #[arg(long)]
    count: Option<u64>,
    /// So many at once.
    #[arg(long, default_value_t = 10)]
    max: u64,
    /// How long one call waits.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    wait: String,
    #[command(flatten)]
    broker: Broker,
}

impl Listen {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let queue = format!("/v1/{}/queues/{}", part(&self.namespace), part(&self.queue));
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            // No more than will be settled: the others are for other workers.
            let wanted = json!({ "max": self.max.min(left), "wait": self.wait });
            let answer = self.broker.post(&format!("{queue}/lease"), &wanted)?;
            let deliveries = answer["deliveries"].as_array().cloned().unwrap_or_default();
            for delivery in &deliveries {
                self.print(delivery)?;
            }
            left = left.saturating_sub(deliveries.len() as u64);
            self.settle(&queue, &deliveries)?;
        }
        Ok(())
    }

    fn print(&self, delivery: &Value) -> anyhow::Result<()> {
        if self.broker.json {
            return show::line(&delivery.to_string());
        }
        let text = |name: &str| match &delivery[name] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let payload = match &delivery["payload_base64"] {
            Value::String(base64) => format!("{} {base64}", text("content_type")),
            _ => delivery["payload"].to_string(),
        };
        let (fired_at, key, task) = (text("fired_at"), text("key"), text("task"));
        let (attempt, lag) = (text("attempt"), text("lag_ms"));
        show::line(&format!("{fired_at}  {key}  {task}  attempt {attempt}  lag {lag}ms  {payload}"))
    }

    fn settle(&self, queue: &str, deliveries: &[Value]) -> anyhow::Result<()> {
        let Some(reason) = &self.fail else {
            let tokens: Vec<&Value> =
                deliveries.iter().map(|delivery| &delivery["token"]).collect();
            if !tokens.is_empty() {
                self.broker.post(&format!("{queue}/ack"), &json!({ "tokens": tokens }))?;
            }
            return Ok(());
        };
        for delivery in deliveries {
            let body = json!({ "token": delivery["token"], "reason": reason });
            self.broker.post(&format!("{queue}/fail"), &body)?;
        }
        Ok(())
    }
}
