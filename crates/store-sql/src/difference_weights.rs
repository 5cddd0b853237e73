//! How much there is to fold: the differences that batches have made since they were folded last.
//!
//! This is in the memory of the process. `fold` asks it behind each batch.

use std::sync::atomic::{AtomicU64, Ordering};

use punctual_core::{PartitionId, Partitions};

/// What a row of differences weighs in addition to its bytes.
pub(crate) const DIFFERENCE_WEIGHT: u64 = 512;
/// The weight at which differences are folded: 256 KiB, which is that of 512 small rows. It bounds
/// what a reader of the counts adds up.
pub(crate) const FOLDED_WEIGHT: u64 = 256 << 10;

/// How much the differences of each partition weigh: those of batches since they were folded last
/// by this process. At first, and after an acquisition, it is unknown how many another process has
/// left; then they are folded behind the first batch.
#[derive(Debug)]
pub(crate) struct DifferenceWeights(Box<[AtomicU64]>);

impl DifferenceWeights {
    pub(crate) fn new(partitions: Partitions) -> Self {
        Self((0..partitions.count()).map(|_| AtomicU64::new(FOLDED_WEIGHT)).collect())
    }

    pub(crate) fn add(&self, partition: PartitionId, weight: u64) {
        if let Some(sum) = self.0.get(usize::from(partition.get())) {
            // Sums of weights of batches do not reach 2^64.
            sum.fetch_add(weight, Ordering::Relaxed);
        }
    }

    /// Notes that it is unknown how many differences there are.
    pub(crate) fn forget(&self, partition: PartitionId) {
        self.add(partition, FOLDED_WEIGHT);
    }

    /// Returns whether the differences have to be folded, and counts from zero if so.
    pub(crate) fn take(&self, partition: PartitionId) -> bool {
        let sum = self.0.get(usize::from(partition.get()));
        sum.is_some_and(|sum| {
            sum.load(Ordering::Relaxed) >= FOLDED_WEIGHT
                && sum.swap(0, Ordering::Relaxed) >= FOLDED_WEIGHT
        })
    }
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::partition;

    use super::*;

    #[test]
    fn differences_are_folded_at_first_and_then_when_they_are_many() {
        let weights = DifferenceWeights::new(Partitions::new(2).expect("a few"));
        let p = partition(1);
        assert!(weights.take(p), "it is unknown how many there are");
        assert!(!weights.take(p));
        weights.add(p, FOLDED_WEIGHT - 1);
        assert!(!weights.take(p));
        weights.add(p, 1);
        assert!(weights.take(p));
        weights.forget(p);
        assert!(weights.take(p) && !weights.take(p));
        assert!(weights.take(partition(0)));
    }
}
