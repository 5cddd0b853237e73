//! The story of a life: its last steps, for whoever has to understand a seed that breaks a promise.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Steps that are kept: some seconds before the end.
const STEPS_MAX: usize = 400;

/// A story that is told, or that nobody listens to. Clones share it: it outlives a world that panics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace(Option<Arc<Mutex<TraceLines>>>);

#[derive(Debug, Default)]
struct TraceLines {
    /// What went wrong, all of it.
    faults: Vec<String>,
    /// The last steps.
    steps: VecDeque<String>,
}

impl Trace {
    pub(crate) fn recording() -> Self {
        Self(Some(Arc::default()))
    }

    /// Adds a step, made only if somebody listens.
    pub(crate) fn record(&self, now: u64, line: impl FnOnce() -> String) {
        let Some(lines) = &self.0 else { return };
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.steps.len() == STEPS_MAX {
            lines.steps.pop_front();
        }
        lines.steps.push_back(at(now, &line()));
    }

    /// Adds what is never left out.
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
        let rest = ["... and in the end".to_owned()];
        lines.faults.iter().chain(&rest).chain(&lines.steps).cloned().collect()
    }
}

/// A line with the seconds since the beginning, which is a round number.
fn at(now: u64, line: &str) -> String {
    let millis = now % 1_000_000_000;
    format!("{:>4}.{:03} {line}", millis / 1_000, millis % 1_000)
}
