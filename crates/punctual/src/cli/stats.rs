//! `punctual stats`, `forecast`, `topology`: how much there is, when, and where.

use serde_json::{Value, json};

use super::broker::{Broker, part, query};
use super::show;

#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    namespace: String,
    #[command(flatten)]
    broker: Broker,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Forecast {
    namespace: String,
    /// How far ahead.
    #[arg(long = "for", value_name = "DURATION", default_value = "24h")]
    ahead: String,
    /// How long a step is.
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    step: String,
    #[command(flatten)]
    broker: Broker,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Topology {
    #[command(flatten)]
    broker: Broker,
}

impl Stats {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let stats = self.broker.get(&format!("/v1/{}/stats", part(&self.namespace)))?;
        show::answer(&self.broker, &stats, show::fields)
    }
}

impl Forecast {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let query = query(&[("for", Some(&self.ahead)), ("step", Some(&self.step))]);
        let path = format!("/v1/{}/forecast{query}", part(&self.namespace));
        let forecast = self.broker.get(&path)?;
        show::answer(&self.broker, &forecast, |forecast| {
            let table = show::rows(&forecast["steps"], &["from", "fires"]);
            match forecast["complete_until"].as_str() {
                Some(until) => format!("{table}\nnot all was looked at: complete until {until}"),
                None => table,
            }
        })
    }
}

impl Topology {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let topology = self.broker.get("/v1/topology")?;
        show::answer(&self.broker, &topology, |topology| {
            let brokers = topology["brokers"].as_array().into_iter().flatten();
            let rows: Vec<Value> = brokers
                .map(|broker| {
                    let partitions = broker["partitions"].as_array().map_or(0, Vec::len);
                    json!({
                        "address": broker["address"],
                        "role": if broker["address"] == topology["leader"] { "leader" } else { "follower" },
                        "partitions": partitions,
                        "last_heartbeat": broker["last_heartbeat"],
                    })
                })
                .collect();
            show::rows(&rows.into(), &["address", "role", "partitions", "last_heartbeat"])
        })
    }
}
