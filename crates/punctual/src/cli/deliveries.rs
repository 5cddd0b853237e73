//! `punctual lease`, `ack`, `fail`, `refuse` and `extend`: a worker in single steps, for scripts.
//!
//! `lease` takes deliveries and prints their tokens; the others settle or extend them by token. A
//! token whose attempt is over answers `stale`: nothing is changed, and the command fails.

use anyhow::bail;
use serde_json::{Value, json};

use super::broker::{BrokerArgs, part};
use super::input::read_json_text;
use super::output;

/// A queue of a namespace.
#[derive(Debug, clap::Args)]
pub(crate) struct QueueArgs {
    /// The namespace
    namespace: String,
    /// The queue
    queue: String,
}

impl QueueArgs {
    fn path(&self, verb: &str) -> String {
        format!("/v1/{}/queues/{}/{verb}", part(&self.namespace), part(&self.queue))
    }
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Settle what was taken with ack, fail or refuse before its lease ends; else \
it is delivered again.

Examples:
  punctual lease shop unpaid
  punctual lease shop unpaid --max 10 --wait 20s --lease 1m --json"
)]
pub(crate) struct LeaseArgs {
    #[command(flatten)]
    queue: QueueArgs,
    /// How many deliveries to take at most, 1 to 1000
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    max: u64,
    /// How long to wait for the first delivery, up to 60s
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    wait: String,
    /// How long the deliveries may take; the timeout of each task if not given
    #[arg(long, value_name = "DURATION")]
    lease: Option<String>,
    /// Name in the list of workers
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl LeaseArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut body = json!({ "max": self.max, "wait": self.wait });
        for (name, value) in [("lease", &self.lease), ("worker", &self.worker)] {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        let answer = self.broker.post(&self.queue.path("lease"), &body)?;
        output::print(&self.broker, &answer, |answer| {
            let columns = ["token", "key", "task", "attempt", "fire_at", "lease", "content"];
            let mut rows = answer["deliveries"].clone();
            for row in rows.as_array_mut().into_iter().flatten() {
                row["content"] = json!(payload_text(row));
            }
            output::rows(&rows, &columns)
        })
    }
}

/// The payload of a delivery: JSON, or the content type and base64.
pub(super) fn payload_text(delivery: &Value) -> String {
    match (delivery["payload_base64"].as_str(), delivery["content_type"].as_str()) {
        (Some(base64), content_type) => format!("{} {base64}", content_type.unwrap_or("-")),
        (None, _) => delivery["payload"].to_string(),
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual ack shop unpaid e439097c40000000
  punctual ack shop unpaid e439097c40000000 --result '{\"refund\": 9.5}'
  punctual ack shop unpaid e439097c40000000 e439097c40000001")]
pub(crate) struct AckArgs {
    #[command(flatten)]
    queue: QueueArgs,
    /// The tokens of the deliveries, as `punctual lease` shows them
    #[arg(required = true, value_name = "TOKEN")]
    tokens: Vec<String>,
    /// Result as JSON, at most 16 KiB, which the history of each task keeps; @FILE reads it from a
    /// file, - from standard input
    #[arg(long, value_name = "JSON")]
    result: Option<String>,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl AckArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let body = match &self.result {
            None => json!({ "tokens": self.tokens }),
            Some(text) => {
                let result: Value = read_json_text("--result", text)?;
                let ack = |token| json!({ "token": token, "result": result });
                json!({ "acks": self.tokens.iter().map(ack).collect::<Vec<_>>() })
            }
        };
        let answer = self.broker.post(&self.queue.path("ack"), &body)?;
        output::print(&self.broker, &answer, |answer| {
            output::rows(&answer["results"], &["token", "result", "problem.detail"])
        })?;
        let results = answer["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        let not_acked = results.iter().filter(|it| it["result"] != "acked").count();
        match (not_acked, self.tokens.len()) {
            (0, _) => Ok(()),
            (_, 1) => bail!("the delivery was not acked"),
            (count, all) => bail!("{count} of {all} deliveries were not acked"),
        }
    }
}

/// One delivery.
#[derive(Debug, clap::Args)]
pub(crate) struct DeliveryArgs {
    #[command(flatten)]
    queue: QueueArgs,
    /// The token of the delivery, as `punctual lease` shows it
    #[arg(id = "delivery_token", value_name = "TOKEN")]
    token: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl DeliveryArgs {
    /// Sends the token with more members.
    fn settle(&self, verb: &str, members: &[(&str, Option<&String>)]) -> anyhow::Result<()> {
        let mut body = json!({ "token": self.token });
        for (name, value) in members {
            if let Some(value) = value {
                body[*name] = json!(value);
            }
        }
        let answer = self.broker.post(&self.queue.path(verb), &body)?;
        output::print(&self.broker, &answer, output::fields)?;
        match answer["result"].as_str() {
            Some("stale") => bail!(
                "the token is stale: the delivery was settled, its lease has ended, or it is of \
                 another queue"
            ),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual fail shop unpaid e439097c40000000 'database away'
  punctual fail shop unpaid e439097c40000000 'not ready' --retry-in 30s")]
pub(crate) struct FailArgs {
    #[command(flatten)]
    delivery: DeliveryArgs,
    /// Why the attempt has failed, which the history keeps
    reason: String,
    /// Pause before the next attempt, instead of the backoff of the task
    #[arg(long, value_name = "DURATION")]
    retry_in: Option<String>,
}

impl FailArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let members = [("reason", Some(&self.reason)), ("retry_in", self.retry_in.as_ref())];
        self.delivery.settle("fail", &members)
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual refuse shop unpaid e439097c40000000 'no such order'")]
pub(crate) struct RefuseArgs {
    #[command(flatten)]
    delivery: DeliveryArgs,
    /// Why no further attempt makes sense, which the dead letter keeps
    reason: String,
}

impl RefuseArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.delivery.settle("refuse", &[("reason", Some(&self.reason))])
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual extend shop unpaid e439097c40000000 5m")]
pub(crate) struct ExtendArgs {
    #[command(flatten)]
    delivery: DeliveryArgs,
    /// When the lease ends, from now
    #[arg(value_name = "DURATION")]
    lease: String,
}

impl ExtendArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.delivery.settle("extend", &[("lease", Some(&self.lease))])
    }
}
