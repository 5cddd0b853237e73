//! `punctual stats`, `forecast`: how much there is, and when.

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
