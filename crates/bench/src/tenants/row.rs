//! One row of the report: how much later the quiet namespace became, and whether that is within
//! the limits.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::loads::TenantLoad;
use super::quiet::QuietTally;
use crate::report::{LagHistogram, grouped};

/// A p99 up to this is within the limit, however little it was alone.
const LIMIT_MIN_MS: f64 = 20.0;
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

    /// Returns how many times the p99 alone the p99 beside the load is.
    fn ratio(&self) -> f64 {
        // Lags are recorded in microseconds, from one on.
        self.beside.lags.millis(0.99) / self.alone.lags.millis(0.99).max(0.001)
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
            notes.push(format!("batches over 512 KiB: {answered} of {sent} accepted, {answers}"));
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
            format!("{:.1}", self.ratio()),
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
