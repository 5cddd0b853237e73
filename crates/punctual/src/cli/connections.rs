//! `punctual connections`: the connections and sources of a broker, and whether they work.

use serde_json::{Value, json};

use super::broker::BrokerArgs;
use super::output;

const COLUMNS: [&str; 9] =
    ["name", "kind", "address", "state", "since", "sessions", "waiting", "in_flight", "confirmed"];
const SOURCE_COLUMNS: [&str; 6] = ["name", "namespace", "read_at", "applied", "rejected", "lag_ms"];
const TEST_COLUMNS: [&str; 3] = ["name", "works", "problem"];

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual connections
  punctual connections --test")]
pub(crate) struct ConnectionsArgs {
    /// Open a session of each connection and report whether the other side answers
    #[arg(long)]
    test: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl ConnectionsArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let list = self.broker.get("/v1/connections")?;
        if self.test {
            let connections = list["connections"].as_array().map_or(&[][..], Vec::as_slice);
            let names = connections.iter().filter_map(|connection| connection["name"].as_str());
            let tests = names.map(|name| {
                self.broker.post(&format!("/v1/connections/{name}/test"), &Value::Null)
            });
            let tests = json!({ "tests": tests.collect::<anyhow::Result<Vec<_>>>()? });
            return output::print(&self.broker, &tests, |tests| {
                output::rows(&tests["tests"], &TEST_COLUMNS)
            });
        }
        output::print(&self.broker, &list, |list| {
            let connections = output::rows(&list["connections"], &COLUMNS);
            match list["sources"].as_array().is_some_and(|sources| !sources.is_empty()) {
                true => {
                    format!("{connections}\n{}", output::rows(&list["sources"], &SOURCE_COLUMNS))
                }
                false => connections,
            }
        })
    }
}
