//! `punctual dead`: dead letters are listed, sent back to be fired, deleted.

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

use super::broker::{Broker, part, query};
use super::show;

#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// Lists dead letters.
    List(List),
    /// Sends dead letters back to be fired.
    Redrive(Redrive),
    /// Deletes a dead letter.
    Delete(Delete),
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    namespace: String,
    /// So many at most.
    #[arg(long)]
    limit: Option<usize>,
    /// Go on where an earlier list ended.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    broker: Broker,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Redrive {
    namespace: String,
    /// Their fire ids.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// All there are.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    broker: Broker,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    namespace: String,
    /// The fire id of the letter.
    fire_id: String,
    #[command(flatten)]
    broker: Broker,
}

impl Dead {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::List(verb) => verb.run(),
            Self::Redrive(verb) => verb.run(),
            Self::Delete(verb) => verb.run(),
        }
    }
}

impl List {
    fn run(&self) -> anyhow::Result<()> {
        let limit = self.limit.map(|limit| limit.to_string());
        let query = query(&[("limit", limit.as_deref()), ("cursor", self.cursor.as_deref())]);
        let page = self.broker.get(&format!("/v1/{}/dead{query}", part(&self.namespace)))?;
        show::answer(&self.broker, &page, |page| {
            let columns = ["died_at", "reason", "task.key", "task.attempt", "fire_id"];
            let table = show::rows(&page["dead"], &columns);
            match page["next"].as_str() {
                Some(next) => format!("{table}\nthere are more: --cursor {next}"),
                None => table,
            }
        })
    }
}

impl Redrive {
    fn run(&self) -> anyhow::Result<()> {
        let body = if self.all { json!({ "all": true }) } else { json!({ "ids": self.ids }) };
        let path = format!("/v1/{}/dead/redrive", part(&self.namespace));
        let answer = self.broker.post(&path, &body)?;
        show::answer(&self.broker, &answer, |answer| {
            let mut text = format!("redriven {}", answer["redriven"]);
            for problem in answer["problems"].as_array().into_iter().flatten() {
                let id = problem["id"].as_str().unwrap_or_default();
                let detail = problem["problem"]["detail"].as_str().unwrap_or_default();
                text.push_str(&format!("\n{id}: {detail}"));
            }
            if answer["more"] == true {
                text.push_str("\nthere are more: say it again");
            }
            text
        })?;
        match answer["problems"].as_array().map_or(0, Vec::len) {
            0 => Ok(()),
            1 => bail!("one letter could not go back"),
            count => bail!("{count} letters could not go back"),
        }
    }
}

impl Delete {
    fn run(&self) -> anyhow::Result<()> {
        let path = format!("/v1/{}/dead/{}", part(&self.namespace), part(&self.fire_id));
        let answer = self.broker.delete(&path)?;
        show::answer(&self.broker, &answer, show::fields)
    }
}
