//! `punctual live`: what happens, one line a second.

use std::io::BufRead as _;

use anyhow::Context as _;
use serde_json::Value;

use super::broker::{BrokerArgs, part};
use super::output::{Style, clean, json_text, print_line};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual live shop
  punctual live --count 1 --json")]
pub(crate) struct LiveArgs {
    /// The namespace; all namespaces if absent, which needs an admin token
    namespace: Option<String>,
    /// Stop after this many seconds
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl LiveArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let namespace = self.namespace.as_deref().map(|name| format!("/{}", part(name)));
        let lines = self.broker.lines(&format!("/v1{}/live", namespace.unwrap_or_default()))?;
        let mut left = self.count.unwrap_or(u64::MAX);
        if !self.broker.json {
            print_line(&Style::Head.paint(&line(HEAD)))?;
        }
        for line in lines.lines() {
            let line = line.context("the stream of the broker broke off")?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let second: Value = serde_json::from_str(data).unwrap_or_default();
            print_line(&if self.broker.json { json_text(&second) } else { row(&second) })?;
            left -= 1;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

const HEAD: [&str; 9] = [
    "at",
    "scheduled",
    "firing",
    "waiting",
    "dead letters",
    "done/s",
    "failed/s",
    "dead/s",
    "lag p99 ms",
];

fn line([at, cells @ ..]: [&str; 9]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>12}")).collect();
    format!("{at:24} {}", cells.join(" "))
}

/// One second, below [`HEAD`].
fn row(second: &Value) -> String {
    let (counts, rates) = (&second["counts"], &second["rates"]);
    let rate = |name: &str| format!("{:.1}", rates[name].as_f64().unwrap_or_default());
    let lag = second["lag_ms"]["p99"].as_f64();
    line([
        &clean(second["at"].as_str().unwrap_or_default()),
        &counts["scheduled"].to_string(),
        &counts["firing"].to_string(),
        &second["waiting"].to_string(),
        &counts["dead_letters"].to_string(),
        &rate("done"),
        &rate("failed"),
        &rate("dead"),
        &lag.map_or_else(|| "-".to_owned(), |p99| p99.to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_columns_of_a_second_are_below_their_names() {
        let second = json!({"at": "2030-01-01T00:00:00.000Z", "waiting": 2,
            "counts": {"scheduled": 12, "firing": 1, "dead_letters": 3},
            "rates": {"done": 0.4, "failed": 2.0, "dead": 0.0}, "lag_ms": {"p99": 1.5}});
        let row = row(&second);
        assert_eq!(row.len(), line(HEAD).len());
        let values: Vec<&str> = row.split_whitespace().collect();
        let want = ["2030-01-01T00:00:00.000Z", "12", "1", "2", "3", "0.4", "2.0", "0.0", "1.5"];
        assert_eq!(values, want);
    }
}
