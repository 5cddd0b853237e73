//! Records what the workers of a cluster receive: which tasks, how late and how often.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::clock::pause;
use crate::report::LagHistogram;

/// What all workers have received, shared by them.
#[derive(Clone)]
pub(super) struct DeliveryLog {
    entries: Arc<Mutex<Vec<DeliveryEntry>>>,
    received: Arc<AtomicU64>,
    count: u64,
}

/// The deliveries of one task. Times are in microseconds.
#[derive(Debug, Clone, Copy, Default)]
struct DeliveryEntry {
    due: u64,
    first: u64,
    times: u64,
}

impl DeliveryLog {
    pub(super) fn new(count: u64) -> Self {
        let entries = vec![DeliveryEntry::default(); usize::try_from(count).unwrap_or(0)];
        Self { entries: Arc::new(Mutex::new(entries)), received: Arc::default(), count }
    }

    pub(super) fn note(&self, number: u64, due: u64, now: u64) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = usize::try_from(number).ok().and_then(|at| entries.get_mut(at)) else {
            return;
        };
        if entry.times == 0 {
            (entry.due, entry.first) = (due, now);
            self.received.fetch_add(1, Ordering::Relaxed);
        }
        entry.times += 1;
    }

    pub(super) fn is_complete(&self) -> bool {
        self.received.load(Ordering::Relaxed) >= self.count
    }

    /// Returns when a task was first received, in microseconds.
    pub(super) fn received(&self, number: u64) -> Option<u64> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(usize::try_from(number).ok()?)?;
        (entry.times > 0).then_some(entry.first)
    }

    pub(super) async fn wait_for_all(
        &self,
        bar: &indicatif::ProgressBar,
        workers: Vec<JoinHandle<()>>,
    ) -> anyhow::Result<()> {
        while !self.is_complete() {
            bar.set_position(self.received.load(Ordering::Relaxed));
            pause(20).await;
        }
        // A second delivery arrives soon after the first.
        pause(300).await;
        for worker in workers {
            worker.await.context("a worker panicked")?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    pub(super) fn summarize(&self, numbers: std::ops::Range<u64>) -> DeliverySummary {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut summary = DeliverySummary { lags: LagHistogram::new(), lost: 0, doubled: 0 };
        for number in numbers {
            let entry = usize::try_from(number).ok().and_then(|at| entries.get(at));
            match entry.filter(|entry| entry.times > 0) {
                Some(entry) => {
                    summary.lags.note(entry.due, entry.first);
                    summary.doubled += entry.times - 1;
                }
                None => summary.lost += 1,
            }
        }
        summary
    }
}

/// The lags and the faults of a range of tasks.
pub(super) struct DeliverySummary {
    pub(super) lags: LagHistogram,
    pub(super) lost: u64,
    pub(super) doubled: u64,
}

impl DeliverySummary {
    pub(super) fn words(&self) -> String {
        let Self { lags, lost, doubled } = self;
        format!("{}; lost {lost}, doubled {doubled}, early {}", lags.words(), lags.early)
    }

    pub(super) fn figures(&self) -> Value {
        let mut figures = self.lags.figures();
        figures["lost"] = self.lost.into();
        figures["doubled"] = self.doubled.into();
        figures
    }
}
