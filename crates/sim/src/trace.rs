//! The trace of a run: its faults and its last steps, to explain a seed that breaks a promise.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Steps that are kept: some seconds before the end.
const STEPS_MAX: usize = 400;

/// A trace that is recorded, or that drops everything. Clones share it, so that it outlives a run
/// that panics.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunTrace(Option<Arc<Mutex<TraceLines>>>);

#[derive(Debug, Default)]
struct TraceLines {
    /// All faults.
    faults: Vec<String>,
    /// The last steps.
    steps: VecDeque<String>,
}

impl RunTrace {
    pub(crate) fn recording() -> Self {
        Self(Some(Arc::default()))
    }

    /// Adds a step. The line is built only if the trace is recorded.
    pub(crate) fn record(&self, now: u64, line: impl FnOnce() -> String) {
        let Some(lines) = &self.0 else { return };
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.steps.len() == STEPS_MAX {
            lines.steps.pop_front();
        }
        lines.steps.push_back(at(now, &line()));
    }

    /// Adds a line that is always kept.
    pub(crate) fn record_fault(&self, now: u64, line: impl FnOnce() -> String) {
        let Some(lines) = &self.0 else { return };
        let line = at(now, &line());
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.faults.push(line.clone());
        lines.steps.push_back(line);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let Some(lines) = &self.0 else { return Vec::new() };
        let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = ["... the last steps:".to_owned()];
        lines.faults.iter().chain(&rest).chain(&lines.steps).cloned().collect()
    }
}

/// Formats a line with the seconds since the start of the run, which is a round number.
fn at(now: u64, line: &str) -> String {
    let millis = now % 1_000_000_000;
    format!("{:>4}.{:03} {line}", millis / 1_000, millis % 1_000)
}
