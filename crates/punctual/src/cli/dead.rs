//! `punctual dead`: lists, counts, redrives and deletes dead letters.

use anyhow::bail;
use clap::Subcommand;
use serde_json::{Value, json};

use super::broker::{BrokerArgs, part, query};
use super::output;

#[derive(Debug, Subcommand)]
pub(crate) enum DeadCommand {
    /// List dead letters, oldest first
    List(DeadListArgs),
    /// Count dead letters by reason and target, the largest groups first
    Groups(DeadGroupsArgs),
    /// Schedule dead letters again
    Redrive(LettersArgs),
    /// Delete dead letters for good
    Delete(LettersArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual dead list shop --limit 20")]
pub(crate) struct DeadListArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    group: GroupArgs,
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
#[command(after_help = "Example:
  punctual dead groups shop")]
pub(crate) struct DeadGroupsArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// A group of dead letters.
#[derive(Debug, clap::Args)]
pub(crate) struct GroupArgs {
    /// Only dead letters with this reason, as `punctual dead groups` shows it
    #[arg(long)]
    reason: Option<String>,
    /// Only dead letters with this target, as `punctual dead groups` shows it
    #[arg(long)]
    target: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual dead redrive shop 0196f0a1b2c3d4e5f60718293a4b5c6d-0000000000000
  punctual dead redrive shop --reason 'status 503' --target https://api.example
  punctual dead delete shop --all")]
pub(crate) struct LettersArgs {
    /// The namespace
    namespace: String,
    /// The fire ids of the dead letters, as `punctual dead list` shows them
    #[arg(required_unless_present_any = ["all", "reason", "target"])]
    #[arg(conflicts_with_all = ["all", "reason", "target"])]
    ids: Vec<String>,
    /// All dead letters of the namespace
    #[arg(long, conflicts_with_all = ["reason", "target"])]
    all: bool,
    #[command(flatten)]
    group: GroupArgs,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl DeadCommand {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::List(args) => args.run(),
            Self::Groups(args) => args.run(),
            Self::Redrive(args) => args.run("redrive", "redriven"),
            Self::Delete(args) => match args.ids.as_slice() {
                [id] => args.delete_one(id),
                _ => args.run("delete", "deleted"),
            },
        }
    }
}

impl DeadListArgs {
    fn run(&self) -> anyhow::Result<()> {
        let limit = self.limit.map(|limit| limit.to_string());
        let query = query(&[
            ("reason", self.group.reason.as_deref()),
            ("target", self.group.target.as_deref()),
            ("limit", limit.as_deref()),
            ("cursor", self.cursor.as_deref()),
        ]);
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

impl DeadGroupsArgs {
    fn run(&self) -> anyhow::Result<()> {
        let groups = self.broker.get(&format!("/v1/{}/dead/groups", part(&self.namespace)))?;
        output::print(&self.broker, &groups, |groups| {
            let columns = ["count", "reason", "target", "first_at", "last_at", "example"];
            let table = output::rows(&groups["groups"], &columns);
            match groups["more"].as_u64() {
                None | Some(0) => table,
                Some(more) => format!("{table}\n{more} more in other groups"),
            }
        })
    }
}

impl LettersArgs {
    fn delete_one(&self, fire_id: &str) -> anyhow::Result<()> {
        let path = format!("/v1/{}/dead/{}", part(&self.namespace), part(fire_id));
        let answer = self.broker.delete(&path)?;
        output::print(&self.broker, &answer, output::fields)
    }

    /// Calls a verb; `done` is the field of the answer that counts.
    fn run(&self, verb: &str, done: &str) -> anyhow::Result<()> {
        let group = [("reason", &self.group.reason), ("target", &self.group.target)];
        let group: serde_json::Map<String, Value> = group
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?.into())))
            .collect();
        let body = match (self.all, group.is_empty()) {
            (true, _) => json!({ "all": true }),
            (false, false) => json!({ "where": group }),
            (false, true) => json!({ "ids": self.ids }),
        };
        let path = format!("/v1/{}/dead/{verb}", part(&self.namespace));
        let answer = self.broker.post(&path, &body)?;
        output::print(&self.broker, &answer, |answer| {
            let mut text = format!("{done} {}", answer[done]);
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
            1 => bail!("one dead letter could not be {done}"),
            count => bail!("{count} dead letters could not be {done}"),
        }
    }
}
