//! `punctual stats`, `punctual forecast` and `punctual series`: how many tasks there are, when they
//! fire, and what ended.

use punctual_core::Timestamp;
use serde_json::Value;

use super::broker::{BrokerArgs, part, query};
use super::output::{self, Style};
use super::time::{now, with_distance};

/// The length of the longest bar.
const BAR_CELLS: u64 = 40;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual stats shop")]
pub(crate) struct StatsArgs {
    /// The namespace
    namespace: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual forecast shop --for 7d --step 1d")]
pub(crate) struct ForecastArgs {
    /// The namespace
    namespace: String,
    /// How far to look ahead
    #[arg(long = "for", value_name = "DURATION", default_value = "24h")]
    ahead: String,
    /// Length of one step
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    step: String,
    /// When the first step begins, as 2030-01-01T09:00:00Z; default: now
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Also count the fires of each target: `target`
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  punctual series shop --for 24h --step 1h")]
pub(crate) struct EndSeriesArgs {
    /// The namespace
    namespace: String,
    /// How far to look back, up to 24h
    #[arg(long = "for", value_name = "DURATION", default_value = "1h")]
    back: String,
    /// Length of one step: 1m, 5m, 15m or 1h
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    step: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl EndSeriesArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let query = query(&[("for", Some(&self.back)), ("step", Some(&self.step))]);
        let series = self.broker.get(&format!("/v1/{}/series{query}", part(&self.namespace)))?;
        let columns = ["at", "done", "failed", "dead", "lag_ms.p50", "lag_ms.p99", "lag_ms.max"];
        output::print(&self.broker, &series, |series| output::rows(&series["points"], &columns))
    }
}

impl StatsArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let stats = self.broker.get(&format!("/v1/{}/stats", part(&self.namespace)))?;
        output::print(&self.broker, &stats, output::fields)
    }
}

impl ForecastArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let query = query(&[
            ("for", Some(&self.ahead)),
            ("step", Some(&self.step)),
            ("at", self.at.as_deref()),
            ("by", self.by.as_deref()),
        ]);
        let path = format!("/v1/{}/forecast{query}", part(&self.namespace));
        let forecast = self.broker.get(&path)?;
        output::print(&self.broker, &forecast, |forecast| chart(forecast, now()))
    }
}

/// One line per step: its start, its number of fires, and a bar.
fn chart(forecast: &Value, now: Timestamp) -> String {
    let steps = forecast["steps"].as_array().map_or(&[][..], Vec::as_slice);
    let fires = |step: &Value| step["fires"].as_u64().unwrap_or(0);
    let most = steps.iter().map(fires).max().unwrap_or(0);
    let start = |step: &Value| {
        let text = step["from"].as_str().unwrap_or("-");
        Timestamp::parse_rfc3339(text)
            .map_or_else(|_| output::clean(text), |at| with_distance(at, now))
    };
    let starts: Vec<String> = steps.iter().map(start).collect();
    let width = starts.iter().map(|start| start.chars().count()).max().unwrap_or(0).max(4);
    let digits = most.to_string().len().max("fires".len());
    let mut lines = vec![Style::Head.paint(&format!("{:width$}  {:>digits$}", "from", "fires"))];
    for (step, start) in steps.iter().zip(&starts) {
        let count = fires(step);
        let bar = Style::Bar.paint(&bar(count, most));
        lines.push(format!("{start:width$}  {count:>digits$}  {bar}").trim_end().to_owned());
    }
    let total: u64 = steps.iter().map(fires).sum();
    lines.push(format!("{:width$}  {total:>digits$}", "total"));
    for target in forecast["targets"].as_array().into_iter().flatten() {
        let fires = target["fires"].as_array().into_iter().flatten();
        let sum: u64 = fires.filter_map(Value::as_u64).sum();
        let name = output::clean(target["target"].as_str().unwrap_or_default());
        lines.push(format!("{name:width$}  {sum:>digits$}"));
    }
    if let Some(until) = forecast["complete_until"].as_str() {
        lines.push(format!("incomplete: fires after {} are not counted", output::clean(until)));
    }
    lines.join("\n")
}

/// A bar whose length is the share of `most`. Any count above zero has at least one cell.
fn bar(count: u64, most: u64) -> String {
    if most == 0 {
        return String::new();
    }
    let cells = (u128::from(count) * u128::from(BAR_CELLS)).div_ceil(u128::from(most));
    "█".repeat(usize::try_from(cells).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_forecast_is_a_bar_chart_with_a_total() {
        let now = Timestamp::parse_rfc3339("2030-01-01T00:00:00Z").unwrap();
        let steps = [("2030-01-01T00:00:00.000Z", 1), ("2030-01-01T01:00:00.000Z", 80)];
        let mut steps: Vec<Value> =
            steps.iter().map(|(from, fires)| json!({"from": from, "fires": fires})).collect();
        steps.push(json!({"from": "2030-01-01T02:00:00.000Z", "fires": 0}));
        let forecast = json!({ "steps": steps, "complete_until": "2030-01-01T02:30:00.000Z" });
        let targets = json!([{"target": "queue mail", "fires": [1, 70, 0]}]);
        let mut divided = forecast.clone();
        divided["targets"] = targets;
        let shown = chart(&divided, now);
        assert!(shown.contains("\nqueue mail                       71\n"), "{shown}");
        let full = "█".repeat(40);
        let lines = [
            "from                          fires".to_owned(),
            "2030-01-01T00:00:00Z (now)        1  █".to_owned(),
            format!("2030-01-01T01:00:00Z (in 1h)     80  {full}"),
            "2030-01-01T02:00:00Z (in 2h)      0".to_owned(),
            "total                            81".to_owned(),
            "incomplete: fires after 2030-01-01T02:30:00.000Z are not counted".to_owned(),
        ];
        assert_eq!(chart(&forecast, now), lines.join("\n"));
    }
}
