//! Acknowledged batches that are retained for a while.
//!
//! A store that fails over may have lost the last batches it acknowledged
//! (`docs/adr/0009-redis-store.md`); `failover` sends them again from here. The latest batches are
//! retained, without gaps, within limits on their number, size and age.

use std::collections::VecDeque;
use std::time::Duration;

use punctual_core::Timestamp;
use punctual_store::{Batch, BatchNo};

/// As many as an owner writes in some seconds.
const BATCHES_MAX: usize = 256;
/// Two of the largest, and many times the usual size.
const WEIGHT_MAX: usize = 2 * Batch::WEIGHT_MAX;
/// Much longer than a replica may lag.
const AGE_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct RetainedBatches {
    batches: VecDeque<RetainedBatch>,
    weight: usize,
}

#[derive(Debug)]
struct RetainedBatch {
    batch: Batch,
    weight: usize,
    /// When the store acknowledged it.
    at: Timestamp,
}

impl RetainedBatches {
    /// Retains the batch that the store has just acknowledged.
    pub(crate) fn add(&mut self, batch: Batch, now: Timestamp) {
        let weight = batch.changes.iter().map(|change| change.weight()).sum();
        self.weight += weight;
        self.batches.push_back(RetainedBatch { batch, weight, at: now });
        self.forget(now);
    }

    /// Drops the oldest batches until the limits hold.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        while let Some(oldest) = self.batches.front()
            && (self.batches.len() > BATCHES_MAX
                || self.weight > WEIGHT_MAX
                || oldest.at.after(AGE_MAX) < now)
        {
            self.weight -= oldest.weight;
            self.batches.pop_front();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(crate) fn get(&self, number: BatchNo) -> Option<&Batch> {
        let first = self.batches.front()?.batch.number.get();
        let index = usize::try_from(number.get().checked_sub(first)?).ok()?;
        self.batches.get(index).map(|retained| &retained.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn batch(number: u64) -> Batch {
        Batch::new(BatchNo::new(number), Vec::new())
    }

    #[test]
    fn the_latest_batches_are_retained_up_to_a_number_and_an_age() {
        let mut retained = RetainedBatches::default();
        for number in 1..=300 {
            retained.add(batch(number), NOW);
        }
        assert_eq!(retained.get(BatchNo::new(44)), None);
        assert_eq!(retained.get(BatchNo::new(45)), Some(&batch(45)));
        assert_eq!(retained.get(BatchNo::new(300)), Some(&batch(300)));
        assert_eq!(retained.get(BatchNo::new(301)), None);
        retained.forget(NOW.after(AGE_MAX));
        assert!(retained.get(BatchNo::new(300)).is_some());
        retained.forget(NOW.after(AGE_MAX + Duration::from_millis(1)));
        assert!(retained.get(BatchNo::new(300)).is_none());
    }
}
