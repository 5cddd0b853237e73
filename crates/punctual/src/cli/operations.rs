//! `punctual operations`: changes all tasks that match a filter, and shows or stops that.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::broker::{BrokerArgs, part};
use super::output;

#[derive(Debug, Subcommand)]
pub(crate) enum OperationsCommand {
    /// Cancel, pause, resume, fire or move all tasks that match
    Start(StartArgs),
    /// List the operations that the broker has taken, newest first
    #[command(after_help = "Example:\n  punctual operations list shop")]
    List(OperationListArgs),
    /// Show how far an operation is
    #[command(after_help = "Example:\n  punctual operations show shop 7")]
    Show(OperationArgs),
    /// Stop an operation; what it has changed stays changed
    #[command(after_help = "Example:\n  punctual operations stop shop 7")]
    Stop(OperationArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual operations start shop cancel --label campaign=7 --dry-run
  punctual operations start shop pause --kind recurring
  punctual operations start shop resume --all
  punctual operations start shop spread --later 10m --key-prefix mail-")]
pub(crate) struct StartArgs {
    /// The namespace
    namespace: String,
    /// What to do with each task: cancel, pause, resume, fire, shift or spread
    verb: String,
    /// How much later tasks are due: `shift` moves all by this, `spread` each by another part of it
    #[arg(long, value_name = "DURATION")]
    later: Option<String>,
    /// Every task of the namespace
    #[arg(long)]
    #[arg(conflicts_with_all = ["state", "kind", "key_prefix", "label", "from", "to"])]
    #[arg(required_unless_present_any = ["state", "kind", "key_prefix", "label", "from", "to"])]
    all: bool,
    /// Only tasks in this state
    #[arg(long)]
    state: Option<String>,
    /// Only tasks with this kind of schedule: once, cron, every, watch, or recurring
    #[arg(long)]
    kind: Option<String>,
    /// Only tasks whose key begins with this text
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only tasks with this label
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// Only tasks due at this time or later
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only tasks due before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Only count the tasks that match, and show some of them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OperationListArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct OperationArgs {
    /// The namespace
    namespace: String,
    /// The id of the operation
    id: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl OperationsCommand {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Start(args) => args.run(),
            Self::List(args) => args.run(),
            Self::Show(args) => args.print(&args.broker.get(&args.path())?),
            Self::Stop(args) => args.print(&args.broker.delete(&args.path())?),
        }
    }
}

impl StartArgs {
    fn run(&self) -> anyhow::Result<()> {
        let conditions = [
            ("state", &self.state),
            ("kind", &self.kind),
            ("key_prefix", &self.key_prefix),
            ("label", &self.label),
            ("from", &self.from),
            ("to", &self.to),
        ];
        let conditions = conditions.into_iter();
        let filter: Map<String, Value> = conditions
            .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?.into())))
            .collect();
        let mut body = json!({ "do": self.verb, "where": filter, "dry_run": self.dry_run });
        if let Some(later) = &self.later {
            body["later"] = json!(later);
        }
        let answer = self.broker.post(&operations(&self.namespace), &body)?;
        output::print(&self.broker, &answer, |answer| match self.dry_run {
            true => {
                let columns = ["fire_at", "state", "key", "id"];
                let at_least = if answer["exact"] == true { "" } else { "at least " };
                let sample = output::rows(&answer["sample"], &columns);
                format!("{sample}\n{at_least}{} tasks match", answer["matched"])
            }
            false => output::fields(&answer["operation"]),
        })
    }
}

impl OperationListArgs {
    fn run(&self) -> anyhow::Result<()> {
        let list = self.broker.get(&operations(&self.namespace))?;
        let columns = ["id", "do", "state", "matched", "changed", "failed", "started_at", "by"];
        output::print(&self.broker, &list, |list| output::rows(&list["operations"], &columns))
    }
}

impl OperationArgs {
    fn path(&self) -> String {
        format!("{}/{}", operations(&self.namespace), part(&self.id))
    }

    fn print(&self, answer: &Value) -> anyhow::Result<()> {
        output::print(&self.broker, answer, |answer| output::fields(&answer["operation"]))
    }
}

fn operations(namespace: &str) -> String {
    format!("/v1/{}/operations", part(namespace))
}
