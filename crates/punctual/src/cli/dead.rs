//! `punctual dead`: lists, redrives and deletes dead letters.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::broker::{BrokerArgs, part, query};
use super::output;

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List dead letters, oldest first
    List(DeadListArgs),
    /// Schedule dead letters again
    Redrive(RedriveArgs),
    /// Delete a dead letter
    Delete(DeadDeleteArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual dead list shop --limit 20")]
pub(crate) struct DeadListArgs {
    /// The namespace
    namespace: String,
    /// How many dead letters to show at most
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Continue after an earlier list, which printed this cursor
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual dead redrive shop 0196f0a1b2c3d4e5f60718293a4b5c6d-0000000000000
  punctual dead redrive shop --all")]
pub(crate) struct RedriveArgs {
    /// The namespace
    namespace: String,
    /// The fire ids of the dead letters, as `punctual dead list` shows them
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// Redrive all dead letters of the namespace
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual dead delete shop 0196f0a1b2c3d4e5f60718293a4b5c6d-0000000000000")]
pub(crate) struct DeadDeleteArgs {
    /// The namespace
    namespace: String,
    /// The fire id of the dead letter, as `punctual dead list` shows it
    fire_id: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl DeadCommand {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::List(args) => args.run(),
            Self::Redrive(args) => args.run(),
            Self::Delete(args) => args.run(),
        }
    }
}

impl DeadListArgs {
    fn run(&self) -> anyhow::Result<()> {
        let limit = self.limit.map(|limit| limit.to_string());
        let query = query(&[("limit", limit.as_deref()), ("cursor", self.cursor.as_deref())]);
        let page = self.broker.get(&format!("/v1/{}/dead{query}", part(&self.namespace)))?;
        output::print(&self.broker, &page, |page| {
            let columns = ["died_at", "reason", "task.key", "task.attempt", "fire_id"];
            let table = output::rows(&page["dead"], &columns);
            match page["next"].as_str() {
                Some(next) => format!("{table}\nmore dead letters follow: --cursor {next}"),
                None => table,
            }
        })
    }
}

impl RedriveArgs {
    fn run(&self) -> anyhow::Result<()> {
        let body = if self.all { json!({ "all": true }) } else { json!({ "ids": self.ids }) };
        let path = format!("/v1/{}/dead/redrive", part(&self.namespace));
        let answer = self.broker.post(&path, &body)?;
        output::print(&self.broker, &answer, |answer| {
            let mut text = format!("redriven {}", answer["redriven"]);
            for problem in answer["problems"].as_array().into_iter().flatten() {
                let id = problem["id"].as_str().unwrap_or_default();
                let detail = problem["problem"]["detail"].as_str().unwrap_or_default();
                text.push_str(&format!("\n{id}: {detail}"));
            }
            if answer["more"] == true {
                text.push_str("\nmore dead letters are left: run the command again");
            }
            text
        })?;
        match answer["problems"].as_array().map_or(0, Vec::len) {
            0 => Ok(()),
            1 => bail!("one dead letter could not be redriven"),
            count => bail!("{count} dead letters could not be redriven"),
        }
    }
}

impl DeadDeleteArgs {
    fn run(&self) -> anyhow::Result<()> {
        let path = format!("/v1/{}/dead/{}", part(&self.namespace), part(&self.fire_id));
        let answer = self.broker.delete(&path)?;
        output::print(&self.broker, &answer, output::fields)
    }
}
