//! `punctual namespaces`: all namespaces of a store, with the number of their tasks by state.

use anyhow::bail;
use serde_json::{Value, json};

use super::broker::{BrokerArgs, query};
use super::output;

/// Namespaces of one page.
const PAGE: &str = "1000";
/// The largest number of pages: more namespaces than a terminal shows, and an end if a cursor does
/// not move.
const PAGES_MAX: usize = 10_000;
const COLUMNS: [&str; 8] =
    ["name", "accepted", "scheduled", "paused", "done", "dead", "cancelled", "dead_letters"];

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual namespaces
  punctual namespaces --json

Tasks with an attempt in flight count as scheduled; `punctual stats NAMESPACE` tells them apart.")]
pub(crate) struct NamespacesArgs {
    #[command(flatten)]
    broker: BrokerArgs,
}

impl NamespacesArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let namespaces = json!({ "namespaces": self.read_all()?, "next": null });
        output::print(&self.broker, &namespaces, |list| output::rows(&list["namespaces"], &COLUMNS))
    }

    fn read_all(&self) -> anyhow::Result<Vec<Value>> {
        let (mut namespaces, mut cursor) = (Vec::new(), None::<String>);
        for _ in 0..PAGES_MAX {
            let query = query(&[("limit", Some(PAGE)), ("cursor", cursor.as_deref())]);
            let page = self.broker.get(&format!("/v1/namespaces{query}"))?;
            namespaces.extend(page["namespaces"].as_array().cloned().unwrap_or_default());
            cursor = page["next"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return Ok(namespaces);
            }
        }
        bail!("the list of namespaces has more than {PAGES_MAX} pages; read it over the API")
    }
}
