//! The report: one row per measurement, with the target and the state of the machine.

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::machine::{MachineMonitor, MachineSample};

/// The columns of a report: their names in JSON and their titles in the table.
pub(crate) type ReportColumns = &'static [(&'static str, &'static str)];

/// The columns of most reports.
pub(crate) const MEASUREMENTS: ReportColumns =
    &[("what", "measurement"), ("reached", "result"), ("wanted", "target")];

/// The columns of a report with `--beside redis`. Rows with one side leave out the last two.
pub(crate) const BESIDE_REDIS: ReportColumns = &[
    ("what", "measurement"),
    ("reached", "result"),
    ("wanted", "target"),
    ("redis", "Redis, `appendfsync always`"),
    ("ratio", "ratio"),
];

/// The columns of a report with `--beside postgres`.
pub(crate) const BESIDE_POSTGRES: ReportColumns = &[
    ("what", "measurement"),
    ("reached", "result"),
    ("wanted", "target"),
    ("postgres", "PostgreSQL, `synchronous_commit = on`"),
    ("ratio", "ratio"),
];

/// One measurement.
#[derive(Debug)]
struct BenchRow {
    cells: Vec<String>,
    figures: Value,
    machine: MachineSample,
}

/// All measurements.
#[derive(Debug)]
pub(crate) struct BenchReport {
    columns: ReportColumns,
    rows: Vec<BenchRow>,
    json: bool,
    machine: MachineMonitor,
}

impl BenchReport {
    pub(crate) fn new(columns: ReportColumns, json: bool) -> Self {
        Self { columns, rows: Vec::new(), json, machine: MachineMonitor::start() }
    }

    /// Starts a measurement: what the machine did before is not part of it.
    pub(crate) fn begin(&mut self) {
        self.machine.sample();
    }

    /// Adds a row with the columns of [`MEASUREMENTS`]. `figures` are the numbers for `--json`.
    pub(crate) fn row(
        &mut self,
        what: impl Into<String>,
        reached: impl Into<String>,
        wanted: &'static str,
        figures: Value,
    ) {
        self.cells(vec![what.into(), reached.into(), wanted.to_owned()], figures);
    }

    /// Adds a row with one text for each column. Texts may be left out at the end.
    pub(crate) fn cells(&mut self, mut cells: Vec<String>, figures: Value) {
        cells.resize(self.columns.len(), "–".to_owned());
        let machine = self.machine.sample();
        self.rows.push(BenchRow { cells, figures, machine });
    }

    /// Returns the report as a table, or as JSON.
    pub(crate) fn finish(self) -> String {
        if self.json {
            let rows: Vec<_> = self
                .rows
                .into_iter()
                .map(|BenchRow { cells, figures, machine }| {
                    let mut row = json!({"figures": figures, "machine": machine.figures()});
                    for ((name, _), cell) in self.columns.iter().zip(cells) {
                        row[*name] = cell.into();
                    }
                    row
                })
                .collect();
            return json!({ "rows": rows }).to_string();
        }
        let titles = self.columns.iter().map(|(_, title)| format!(" {title} |"));
        let mut table = format!("|{} machine |\n", titles.collect::<String>());
        table.push_str(&format!("|{}---|\n", "---|".repeat(self.columns.len())));
        for BenchRow { cells, machine, .. } in self.rows {
            table.push_str(&format!("| {} | {} |\n", cells.join(" | "), machine.words()));
        }
        table
    }

    /// A progress bar; hidden if standard error is not a terminal.
    pub(crate) fn bar(&self, what: &str, total: u64) -> ProgressBar {
        let style =
            ProgressStyle::with_template("{msg:28} {wide_bar} {human_pos}/{human_len} {per_sec}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(total).with_style(style).with_message(what.to_owned())
    }
}

/// Formats a number with thousands separators: 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
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

/// Returns `count` per second.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate"
)]
pub(crate) fn rate(count: u64, took: std::time::Duration) -> u64 {
    (count as f64 / took.as_secs_f64().max(1e-9)) as u64
}

/// A histogram of lags, in microseconds.
#[derive(Debug, Clone)]
pub(crate) struct LagHistogram {
    histogram: Histogram<u64>,
    pub(crate) early: u64,
}

impl LagHistogram {
    pub(crate) fn new() -> Self {
        // From a microsecond to an hour, with three significant digits.
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000, 3);
        Self { histogram: histogram.expect("valid bounds"), early: 0 }
    }

    /// Records one delivery. Both times are in microseconds.
    pub(crate) fn note(&mut self, due: u64, received: u64) {
        self.early += u64::from(received < due);
        self.histogram.saturating_record(received.saturating_sub(due).max(1));
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// "p50 0.4 ms, p99 1.2 ms …"
    pub(crate) fn words(&self) -> String {
        let at = |quantile| self.millis(quantile);
        format!(
            "p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms",
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        )
    }

    pub(crate) fn figures(&self) -> Value {
        let at = |quantile| self.millis(quantile);
        json!({"p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999), "max_ms": at(1.0),
            "count": self.count(), "early": self.early})
    }

    #[expect(clippy::cast_precision_loss, reason = "microseconds of at most an hour")]
    pub(crate) fn millis(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1000.0
    }
}
