//! `punctual actions`: what operators did.

use serde_json::Value;

use super::broker::{BrokerArgs, part};
use super::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  punctual actions shop --limit 20")]
pub(crate) struct ActionsArgs {
    /// The namespace
    namespace: String,
    /// How many at most, up to 1000
    #[arg(long, default_value_t = 100)]
    limit: u16,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl ActionsArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let path = format!("/v1/{}/actions?limit={}", part(&self.namespace), self.limit);
        let list = self.broker.get(&path)?;
        output::print(&self.broker, &list, |list| {
            let columns = ["at", "call", "name", "detail", "changed", "by"];
            let rows = output::rows(&list["actions"], &columns);
            format!("{rows}\n{}", since(list))
        })
    }
}

fn since(list: &Value) -> String {
    let since = list["since"].as_str().unwrap_or_default();
    let missing = if list["complete"] == true { "" } else { "; some brokers did not answer" };
    format!("all since {since}{missing}")
}
