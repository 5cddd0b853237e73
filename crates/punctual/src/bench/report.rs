//! Rows: what was reached, beside what is wanted.

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::machine::{Machine, Reading};

/// One thing that was measured.
#[derive(Debug)]
struct Row {
    what: String,
    reached: String,
    wanted: &'static str,
    figures: Value,
    machine: Reading,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Report {
    rows: Vec<Row>,
    json: bool,
    machine: Machine,
}

impl Report {
    pub(super) fn new(json: bool) -> Self {
        Self { rows: Vec::new(), json, machine: Machine::watch() }
    }

    /// What is measured from here on begins here: preparing it does not count for the machine.
    pub(super) fn begin(&mut self) {
        self.machine.read();
    }

    /// Adds a row; figures are for machines.
    pub(super) fn row(
        &mut self,
        what: impl Into<String>,
        reached: impl Into<String>,
        wanted: &'static str,
        figures: Value,
    ) {
        let (what, reached) = (what.into(), reached.into());
        let machine = self.machine.read();
        self.rows.push(Row { what, reached, wanted, figures, machine });
    }

    /// The whole of it, for people or for machines.
    pub(super) fn finish(self) -> String {
        if self.json {
            let rows: Vec<_> = self
                .rows
                .into_iter()
                .map(|row| {
                    let (what, reached, wanted) = (row.what, row.reached, row.wanted);
                    json!({"what": what, "reached": reached, "wanted": wanted, "figures": row.figures,
                        "machine": row.machine.figures()})
                })
                .collect();
            return json!({ "rows": rows }).to_string();
        }
        let mut table = String::from(
            "| what | reached | wanted | the machine meanwhile |\n|---|---|---|---|\n",
        );
        for Row { what, reached, wanted, machine, .. } in self.rows {
            let machine = machine.words();
            table.push_str(&format!("| {what} | {reached} | {wanted} | {machine} |\n"));
        }
        table
    }

    /// A bar that shows how far something is; hidden where nobody looks.
    pub(super) fn bar(&self, what: &str, total: u64) -> ProgressBar {
        let style =
            ProgressStyle::with_template("{msg:28} {wide_bar} {human_pos}/{human_len} {per_sec}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(total).with_style(style).with_message(what.to_owned())
    }
}

/// Whole thousands apart: 1,234,567.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// So many in so long, as a rate.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate"
)]
pub(super) fn rate(count: u64, took: std::time::Duration) -> u64 {
    (count as f64 / took.as_secs_f64().max(1e-9)) as u64
}

/// Lags in microseconds.
#[derive(Debug)]
pub(super) struct Lags {
    histogram: Histogram<u64>,
    pub(super) early: u64,
}

impl Lags {
    pub(super) fn new() -> Self {
        // From a microsecond to an hour, three digits.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000, 3);
        Self { histogram: histogram.expect("valid bounds"), early: 0 }
    }

    /// One delivery that was due and received then, in microseconds.
    pub(super) fn note(&mut self, due: u64, received: u64) {
        self.early += u64::from(received < due);
        self.histogram.saturating_record(received.saturating_sub(due).max(1));
    }

    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// "p50 0.4 ms, p99 1.2 ms …"
    pub(super) fn words(&self) -> String {
        let at = |quantile| self.millis(quantile);
        format!(
            "p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms",
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        )
    }

    pub(super) fn figures(&self) -> Value {
        let at = |quantile| self.millis(quantile);
        json!({"p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999), "max_ms": at(1.0),
            "count": self.count(), "early": self.early})
    }

    #[expect(clippy::cast_precision_loss, reason = "microseconds of at most an hour")]
    pub(super) fn millis(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1000.0
    }
}
