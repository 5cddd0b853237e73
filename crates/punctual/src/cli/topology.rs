//! `punctual topology`: the brokers of a cluster, the leader, and the partitions of each broker.
//!
//! One line per broker, with a bar of all partitions in which its own are filled. `--watch` draws
//! the table again every second. Members of the response that are missing or unknown are left out.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::time::Duration;

use punctual_core::Timestamp;
use serde_json::Value;

use super::broker::BrokerArgs;
use super::output::{self, Style, clean};
use super::time::{distance, now};
use crate::error;

/// Cells of a bar. With more partitions, a cell represents several.
const BAR_CELLS_MAX: usize = 32;
/// Ranges that are printed; further ones are counted.
const RANGES_MAX: usize = 6;
/// How often `--watch` asks.
const WATCH_EVERY: Duration = Duration::from_secs(1);
const HEADS: [&str; 5] = ["broker", "map", "partitions", "ranges", "heartbeat"];

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual topology
  punctual topology --watch --broker http://10.0.0.2:7400")]
pub(crate) struct TopologyArgs {
    /// Draw the table again every second, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

impl TopologyArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let shown = |topology: &Value| table(topology, now());
        if !self.watch {
            return output::print(&self.broker, &self.broker.get("/v1/topology")?, shown);
        }
        // A pipe gets one table after the other, without control sequences.
        let clear = std::io::stdout().is_terminal() && !self.broker.json;
        loop {
            // A broker that does not answer may be what the user wants to watch.
            let text = match self.broker.get("/v1/topology") {
                Ok(topology) if self.broker.json => topology.to_string(),
                Ok(topology) => shown(&topology),
                Err(error) if self.broker.json => {
                    error::print_json(&error);
                    pause();
                    continue;
                }
                Err(error) => format!("{error:#}"),
            };
            output::print_line(&format!("{}{text}", if clear { "\x1b[H\x1b[2J" } else { "" }))?;
            pause();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "no event tells when a topology changes")]
fn pause() {
    std::thread::sleep(WATCH_EVERY);
}

/// A summary, the column heads, one line per broker, and partitions without an owner.
fn table(topology: &Value, now: Timestamp) -> String {
    let brokers: &[Value] = topology["brokers"].as_array().map_or(&[], Vec::as_slice);
    let owned: Vec<Vec<u16>> = brokers.iter().map(partitions_of).collect();
    let highest = owned.iter().flatten().max().map_or(0, |last| usize::from(*last) + 1);
    let stated = topology["partitions"].as_u64().and_then(|count| usize::try_from(count).ok());
    let count = stated.unwrap_or(highest).max(highest);

    let mut lines = vec![summary(topology, brokers.len(), count)];
    let rows = brokers.iter().zip(&owned).map(|(broker, partitions)| {
        [
            text(&broker["address"]),
            bar(partitions, count),
            partitions.len().to_string(),
            ranges(partitions),
            heartbeat(broker, now),
        ]
    });
    let rows: Vec<[String; 5]> = rows.collect();
    let mut widths = HEADS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    if !rows.is_empty() {
        lines.push(Style::Head.paint(&line(' ', &HEADS.map(str::to_owned), widths)));
    }
    for (broker, row) in brokers.iter().zip(&rows) {
        let is_leader = broker["address"].is_string() && broker["address"] == topology["leader"];
        let mut line = line(if is_leader { '★' } else { ' ' }, row, widths);
        for state in ["leaving", "draining"] {
            if broker[state] == true {
                line.push_str(&format!("  {state}"));
            }
        }
        lines.push(line);
    }
    let owned: BTreeSet<u16> = owned.into_iter().flatten().collect();
    let all = u16::try_from(count).unwrap_or(u16::MAX);
    let free: Vec<u16> = (0..all).filter(|number| !owned.contains(number)).collect();
    if !free.is_empty() {
        lines.push(format!(
            "{} without an owner: {}",
            counted(free.len(), "partition"),
            ranges(&free)
        ));
    }
    lines.join("\n")
}

fn summary(topology: &Value, brokers: usize, partitions: usize) -> String {
    let mut parts = Vec::new();
    if topology["cluster"].is_string() {
        parts.push(format!("cluster {}", text(&topology["cluster"])));
    }
    parts.push(counted(brokers, "broker"));
    parts.push(counted(partitions, "partition"));
    parts.push(match &topology["leader"] {
        Value::String(_) => format!("leader {} (★)", text(&topology["leader"])),
        _ => "no leader".to_owned(),
    });
    parts.join(", ")
}

fn line(mark: char, cells: &[String; 5], widths: [usize; 5]) -> String {
    let mut line = mark.to_string();
    for (cell, width) in cells.iter().zip(widths) {
        line.push_str(&format!(" {cell:width$} "));
    }
    line.trim_end().to_owned()
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn text(value: &Value) -> String {
    clean(value.as_str().unwrap_or("-"))
}

fn partitions_of(broker: &Value) -> Vec<u16> {
    let numbers = broker["partitions"].as_array().into_iter().flatten();
    let numbers: BTreeSet<u16> =
        numbers.filter_map(|number| u16::try_from(number.as_u64()?).ok()).collect();
    numbers.into_iter().collect()
}

/// All partitions as cells: filled, partly filled or empty.
fn bar(partitions: &[u16], count: usize) -> String {
    let cells = count.clamp(1, BAR_CELLS_MAX);
    let mut filled = vec![0_usize; cells];
    let mut capacity = vec![0_usize; cells];
    for number in 0..count {
        capacity[number * cells / count] += 1;
    }
    for number in partitions {
        filled[usize::from(*number) * cells / count.max(1)] += 1;
    }
    let cell = |(filled, capacity): (&usize, &usize)| match filled {
        0 => '·',
        all if all == capacity => '█',
        _ => '▒',
    };
    filled.iter().zip(&capacity).map(cell).collect()
}

/// `0-3, 7, 9-12`.
fn ranges(partitions: &[u16]) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for number in partitions {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let more = ranges.len().saturating_sub(RANGES_MAX);
    let mut written: Vec<String> = ranges
        .iter()
        .take(RANGES_MAX)
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    if more > 0 {
        written.push(format!("and {more} more"));
    }
    if written.is_empty() { "-".to_owned() } else { written.join(", ") }
}

/// How long ago the last heartbeat of a broker was.
fn heartbeat(broker: &Value, now: Timestamp) -> String {
    let last = broker["last_heartbeat"].as_str().map(Timestamp::parse_rfc3339);
    match last {
        Some(Ok(last)) => distance(last.min(now), now),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_has_column_heads_and_a_line_per_broker_with_the_leader_marked() {
        let heartbeat = "2027-01-01T00:00:00.000Z";
        let topology = json!({
            "cluster": "shop",
            "leader": "b:7400",
            "brokers": [
                {"address": "a:7400", "partitions": [0, 1, 2, 5], "last_heartbeat": heartbeat},
                {"address": "bb:7400", "partitions": [3, 7], "last_heartbeat": heartbeat,
                    "leaving": true},
                {"address": "b:7400", "partitions": [], "last_heartbeat": heartbeat},
            ],
        });
        let now = Timestamp::parse_rfc3339("2027-01-01T00:00:02.900Z").unwrap();
        let lines = [
            "cluster shop, 3 brokers, 8 partitions, leader b:7400 (★)",
            "  broker   map       partitions  ranges  heartbeat",
            "  a:7400   ███··█··  4           0-2, 5  2s ago",
            "  bb:7400  ···█···█  2           3, 7    2s ago  leaving",
            "★ b:7400   ········  0           -       2s ago",
            "2 partitions without an owner: 4, 6",
        ];
        assert_eq!(table(&topology, now), lines.join("\n"));
    }

    #[test]
    fn many_partitions_share_cells_and_an_empty_response_is_still_a_summary() {
        let first_half: Vec<u16> = (0..100).collect();
        let shown = bar(&first_half, 200);
        assert_eq!(shown.chars().count(), BAR_CELLS_MAX);
        assert!(shown.starts_with("████████████████") && shown.ends_with("················"));
        assert!(bar(&[0], 200).starts_with("▒·"));
        assert_eq!(
            ranges(&(0..40).step_by(2).collect::<Vec<_>>()),
            "0, 2, 4, 6, 8, 10, and 14 more"
        );
        let shown = table(&json!({}), Timestamp::EPOCH);
        assert_eq!(shown, "0 brokers, 0 partitions, no leader");
    }
}
