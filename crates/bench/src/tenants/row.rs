//! One row of the report: how much later the quiet namespace became, and whether that is within
//! the limits.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::loads::TenantLoad;
use super::quiet::QuietTally;
use crate::report::{LagHistogram, grouped};

/// A p99 up to this is within the limit, however little it was alone.
const LIMIT_MIN_MS: f64 = 20.0;
/// The same for the answers to batches over 512 KiB, which take longer to send and to read.
const LARGE_LIMIT_MIN_MS: f64 = 200.0;
const MIB: u64 = 1 << 20;

/// What was measured beside one load.
#[derive(Debug)]
pub(crate) struct TenantRow {
    pub(crate) load: TenantLoad,
    pub(crate) alone: QuietTally,
    /// Beside the load, with what came after it had ended.
    pub(crate) beside: QuietTally,
    /// Beside the load, until it ended.
    pub(crate) at_end: QuietTally,
    /// Dead letters of the quiet namespace.
    pub(crate) dead: u64,
    /// How much more memory the broker had during the load than before it, in bytes.
    pub(crate) memory_above: u64,
    /// What the load did: how many of what.
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl TenantRow {
    /// Returns the limit of the p99 of the lag, in milliseconds.
    fn limit_ms(&self) -> f64 {
        (2.0 * self.alone.lags.millis(0.99)).max(LIMIT_MIN_MS)
    }

    /// Returns the limit of the p99 of answers to large batches, in milliseconds.
    fn large_limit_ms(&self) -> f64 {
        (2.0 * self.alone.large_calls.millis(0.99)).max(LARGE_LIMIT_MIN_MS)
    }

    /// Returns how many times the p99 alone the p99 beside the load is, if anything was received.
    fn ratio(&self) -> Option<f64> {
        let (alone, beside) = (&self.alone.lags, &self.beside.lags);
        (beside.count() > 0).then(|| beside.millis(0.99) / alone.millis(0.99))
    }

    /// Counts webhooks that were received only when the load had ended.
    const fn after_load(&self) -> u64 {
        self.beside.received - self.at_end.received
    }

    const fn missing(&self) -> u64 {
        self.beside.planned - self.beside.received
    }

    /// Counts large batches that were not accepted while the load lasted.
    fn large_unanswered(&self) -> u64 {
        self.at_end.large_sent - self.at_end.large_calls.count()
    }

    /// Returns which limits were not kept.
    fn misses(&self) -> Vec<String> {
        let mut misses = Vec::new();
        let mut miss = |count: u64, what: &str| {
            if count > 0 {
                misses.push(format!("{} {what}", grouped(count)));
            }
        };
        miss(self.missing(), "not received");
        miss(self.after_load(), "received only after the load had ended");
        miss(self.dead, "dead letters");
        miss(self.beside.lags.early, "early");
        miss(self.large_unanswered(), "large batches not answered during the load");
        if self.beside.lags.millis(0.99) > self.limit_ms() {
            misses.push("p99 over the limit".to_owned());
        }
        if self.beside.large_calls.millis(0.99) > self.large_limit_ms() {
            misses.push("p99 of large batches over the limit".to_owned());
        }
        if let Some(limit) = self.load.memory_above_max().filter(|max| self.memory_above > *max) {
            misses.push(format!("more than {} MiB above idle", limit / MIB));
        }
        misses
    }

    fn notes(&self) -> String {
        let counts = self.counts.iter().map(|(what, count)| format!("{} {what}", grouped(*count)));
        let mut notes = vec![
            format!("load: {}", counts.collect::<Vec<_>>().join(", ")),
            format!("lag by headers {}", three(&self.beside.shown)),
            format!(
                "calls alone {}, beside {}",
                three(&self.alone.calls),
                three(&self.beside.calls)
            ),
        ];
        if self.beside.large_sent > 0 {
            let (alone, beside) = (&self.alone.large_calls, &self.beside.large_calls);
            let (answered, sent) = (self.at_end.large_calls.count(), self.at_end.large_sent);
            let answers = format!("alone {}, beside {}", three(alone), three(beside));
            let limit = format!("limit {:.0} ms", self.large_limit_ms());
            notes.push(format!(
                "batches over 512 KiB: {answered} of {sent} accepted, {answers} ({limit})"
            ));
        }
        if self.beside.doubled > 0 {
            notes.push(format!("{} doubled", grouped(self.beside.doubled)));
        }
        let memory = self.memory_above / MIB;
        notes.push(match self.load.memory_above_max() {
            Some(limit) => format!("memory +{memory} MiB (limit {} MiB)", limit / MIB),
            None => format!("memory +{memory} MiB"),
        });
        notes.join("; ")
    }

    /// Returns the texts of the columns.
    pub(crate) fn cells(&self) -> Vec<String> {
        let misses = self.misses();
        vec![
            self.load.name(),
            format!("{} of {}", grouped(self.beside.received), grouped(self.beside.planned)),
            grouped(self.dead),
            three(&self.alone.lags),
            three(&self.beside.lags),
            self.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.1}")),
            format!("{:.0} ms", self.limit_ms()),
            if misses.is_empty() { "kept".to_owned() } else { misses.join(", ") },
            self.notes(),
        ]
    }

    /// Returns the numbers for `--json`.
    pub(crate) fn figures(&self) -> Value {
        json!({
            "planned": self.beside.planned,
            "received": self.beside.received,
            "after_load": self.after_load(),
            "missing": self.missing(),
            "doubled": self.beside.doubled,
            "dead": self.dead,
            "alone": self.alone.figures(),
            "beside": self.beside.figures(),
            "ratio": self.ratio(),
            "limit_ms": self.limit_ms(),
            "large_unanswered": self.large_unanswered(),
            "memory_above_bytes": self.memory_above,
            "memory_above_bytes_max": self.load.memory_above_max(),
            "misses": self.misses(),
            "load": self.counts,
        })
    }
}

impl QuietTally {
    fn figures(&self) -> Value {
        json!({
            "lag": self.lags.figures(),
            "lag_by_headers": self.shown.figures(),
            "calls": self.calls.figures(),
            "large_sent": self.large_sent,
            "large_calls": self.large_calls.figures(),
        })
    }
}

/// "0.4 / 1.2 / 3.0 ms": p50, p99 and the maximum.
fn three(lags: &LagHistogram) -> String {
    if lags.count() == 0 {
        return "–".to_owned();
    }
    let at = |quantile| lags.millis(quantile);
    format!("{:.1} / {:.1} / {:.1} ms", at(0.5), at(0.99), at(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of 100 webhooks of which so many were received, each so late.
    fn tally(received: u64, lag_ms: u64) -> QuietTally {
        let mut lags = LagHistogram::new();
        (0..received).for_each(|_| lags.note(0, lag_ms * 1000));
        QuietTally {
            planned: 100,
            received,
            doubled: 0,
            shown: LagHistogram::new(),
            calls: LagHistogram::new(),
            large_sent: 0,
            large_calls: LagHistogram::new(),
            lags,
        }
    }

    fn row(load: TenantLoad, alone: u64, beside: QuietTally) -> TenantRow {
        let (alone, at_end, counts) = (tally(100, alone), tally(100, 1), BTreeMap::new());
        TenantRow { load, alone, beside, at_end, dead: 0, memory_above: 0, counts }
    }

    #[test]
    fn a_p99_is_over_the_limit_if_it_is_over_20_ms_and_twice_that_alone() {
        let load = TenantLoad::SlowNames;
        for (alone, beside, kept) in
            [(1, 19, true), (1, 22, false), (30, 59, true), (30, 62, false)]
        {
            let row = row(load, alone, tally(100, beside));
            assert_eq!(row.misses().is_empty(), kept, "{alone} {beside}: {:?}", row.misses());
        }
    }

    #[test]
    fn what_is_missing_late_dead_or_unanswered_and_memory_of_strangers_are_misses() {
        let all = || tally(100, 1);
        let load = TenantLoad::Strangers;
        let lost = TenantRow { at_end: tally(90, 1), ..row(load, 1, tally(90, 1)) };
        let late = TenantRow { at_end: tally(60, 1), ..row(load, 1, all()) };
        let dead = TenantRow { dead: 2, ..row(load, 1, all()) };
        let unanswered =
            TenantRow { at_end: QuietTally { large_sent: 3, ..all() }, ..row(load, 1, all()) };
        let mut answers = LagHistogram::new();
        answers.note(0, 201_000);
        let slow = QuietTally { large_calls: answers, ..all() };
        let slow = row(load, 1, slow);
        let large = TenantRow { memory_above: 65 << 20, ..row(load, 1, all()) };
        for (row, miss) in [
            (lost, "10 not received"),
            (late, "40 received only after the load had ended"),
            (dead, "2 dead letters"),
            (unanswered, "3 large batches not answered during the load"),
            (slow, "p99 of large batches over the limit"),
            (large, "more than 64 MiB above idle"),
        ] {
            assert_eq!(row.misses(), [miss]);
        }
        let anyone = TenantRow { memory_above: 65 << 20, ..row(TenantLoad::SlowNames, 1, all()) };
        assert!(anyone.misses().is_empty());
    }
}
