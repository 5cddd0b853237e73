//! `punctual topology`: who is there, who leads, and who has which partitions, as a picture.
//!
//! In: what a broker says of its cluster. Out: a line a broker, with a bar of all partitions in which its own are filled; with `--watch` again and
//! again in the same place. Tells only what the broker says: an answer with more fields shows more, one with fewer still shows.

use std::io::IsTerminal as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual_core::{Timestamp, format_duration};
use serde_json::Value;

use super::broker::Broker;
use super::show;
use crate::failure;

/// Cells of a bar. Where there are more partitions, a cell stands for several.
const BAR_CELLS_MAX: usize = 32;
/// Ranges that are written out; of more, the rest is counted.
const RANGES_MAX: usize = 6;
/// How often `--watch` asks.
const WATCH_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub(crate) struct Topology {
    /// Ask again every second, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    broker: Broker,
}

impl Topology {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let shown = |topology: &Value| picture(topology, now());
        if !self.watch {
            return show::answer(&self.broker, &self.broker.get("/v1/topology")?, shown);
        }
        // A pipe gets one picture after the other, and no signs that only a terminal knows.
        let clear = std::io::stdout().is_terminal() && !self.broker.json;
        loop {
            // A broker that is away for a moment may be what is being watched.
            let said = match self.broker.get("/v1/topology") {
                Ok(topology) if self.broker.json => topology.to_string(),
                Ok(topology) => shown(&topology),
                Err(error) if self.broker.json => {
                    failure::print(&error);
                    pause();
                    continue;
                }
                Err(error) => format!("{error:#}"),
            };
            show::line(&format!("{}{said}", if clear { "\x1b[H\x1b[2J" } else { "" }))?;
            pause();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "an age is counted by the clock of whoever looks")]
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "nobody tells when a topology changes")]
fn pause() {
    std::thread::sleep(WATCH_EVERY);
}

/// The picture of a topology.
fn picture(topology: &Value, now: Timestamp) -> String {
    let brokers: &[Value] = topology["brokers"].as_array().map_or(&[], Vec::as_slice);
    let of = |broker: &Value| -> Vec<u16> {
        let numbers = broker["partitions"].as_array().into_iter().flatten();
        let mut numbers: Vec<u16> =
            numbers.filter_map(|number| u16::try_from(number.as_u64()?).ok()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    let held: Vec<Vec<u16>> = brokers.iter().map(of).collect();
    let known = held.iter().flatten().max().map_or(0, |last| usize::from(*last) + 1);
    let said = topology["partitions"].as_u64().and_then(|count| usize::try_from(count).ok());
    let count = said.unwrap_or(known).max(known);
    let text = |value: &Value| value.as_str().unwrap_or("-").replace(char::is_control, " ");
    let addresses: Vec<String> = brokers.iter().map(|broker| text(&broker["address"])).collect();
    let width = addresses.iter().map(|address| address.chars().count()).max().unwrap_or(0);

    let mut lines = Vec::new();
    let name = topology["cluster"].as_str().map_or_else(
        || "brokers".to_owned(),
        |_| format!("cluster {}", text(&topology["cluster"])),
    );
    let leader = match &topology["leader"] {
        Value::String(_) => format!("leader {}", text(&topology["leader"])),
        _ => "no leader".to_owned(),
    };
    lines.push(format!("{name} · {} of them · {count} partitions · {leader}", brokers.len()));
    for ((broker, address), partitions) in brokers.iter().zip(&addresses).zip(&held) {
        let mark = if broker["address"] == topology["leader"] { '★' } else { ' ' };
        let bar = bar(partitions, count);
        let mut line = format!(
            "{mark} {address:width$}  {bar}  {:>4}  {}",
            partitions.len(),
            ranges(partitions)
        );
        if let Some(age) = age(broker, now) {
            line.push_str(&format!("  {age}"));
        }
        for (field, word) in [("leaving", "leaving"), ("draining", "draining")] {
            if broker[field] == true {
                line.push_str(&format!("  {word}"));
            }
        }
        lines.push(line.trim_end().to_owned());
    }
    let owned: std::collections::BTreeSet<u16> = held.iter().flatten().copied().collect();
    let all = u16::try_from(count).unwrap_or(u16::MAX);
    let free: Vec<u16> = (0..all).filter(|number| !owned.contains(number)).collect();
    if !free.is_empty() {
        lines.push(format!("nobody has {} of them: {}", free.len(), ranges(&free)));
    }
    lines.join("\n")
}

/// All partitions as cells: filled, partly filled or empty.
fn bar(partitions: &[u16], count: usize) -> String {
    let cells = count.clamp(1, BAR_CELLS_MAX);
    let mut filled = vec![0_usize; cells];
    let mut room = vec![0_usize; cells];
    for number in 0..count {
        room[number * cells / count] += 1;
    }
    for number in partitions {
        filled[usize::from(*number) * cells / count.max(1)] += 1;
    }
    let cell = |(filled, room): (&usize, &usize)| match filled {
        0 => '·',
        all if all == room => '█',
        _ => '▒',
    };
    filled.iter().zip(&room).map(cell).collect()
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
    written.join(", ")
}

/// How long ago a broker was heard of, in whole seconds.
fn age(broker: &Value, now: Timestamp) -> Option<String> {
    let heard = Timestamp::parse_rfc3339(broker["last_heartbeat"].as_str()?).ok()?;
    let age = Duration::from_secs(now.since(heard).as_secs());
    Some(format!("{} ago", format_duration(age)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_picture_has_a_line_a_broker_with_the_leader_marked() {
        let heard = "2027-01-01T00:00:00.000Z";
        let topology = json!({
            "cluster": "shop",
            "leader": "b:7400",
            "brokers": [
                {"address": "a:7400", "partitions": [0, 1, 2, 5], "last_heartbeat": heard},
                {"address": "bb:7400", "partitions": [3, 7], "last_heartbeat": heard, "leaving": true},
                {"address": "b:7400", "partitions": [], "last_heartbeat": heard},
            ],
        });
        let now = Timestamp::parse_rfc3339("2027-01-01T00:00:02.900Z").unwrap();
        let lines = [
            "cluster shop · 3 of them · 8 partitions · leader b:7400",
            "  a:7400   ███··█··     4  0-2, 5  2s ago",
            "  bb:7400  ···█···█     2  3, 7  2s ago  leaving",
            "★ b:7400   ········     0    2s ago",
            "nobody has 2 of them: 4, 6",
        ];
        assert_eq!(picture(&topology, now), lines.join("\n"));
    }

    #[test]
    fn many_partitions_share_cells_and_an_empty_answer_is_still_a_picture() {
        let first_half: Vec<u16> = (0..100).collect();
        let shown = bar(&first_half, 200);
        assert_eq!(shown.chars().count(), BAR_CELLS_MAX);
        assert!(shown.starts_with("████████████████") && shown.ends_with("················"));
        assert!(bar(&[0], 200).starts_with("▒·"));
        assert_eq!(
            ranges(&(0..40).step_by(2).collect::<Vec<_>>()),
            "0, 2, 4, 6, 8, 10, and 14 more"
        );
        let shown = picture(&json!({}), Timestamp::EPOCH);
        assert_eq!(shown, "brokers · 0 of them · 0 partitions · no leader");
    }
}
