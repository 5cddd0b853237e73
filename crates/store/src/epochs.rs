//! What this process knows of epochs, apart from a shared store: enough to notice that the store
//! lost writes.
//!
//! A server that replicates after it has replied can be replaced by a replica that is behind. Then
//! its epoch or its batch number is smaller than one that was acknowledged before. [`EpochTracker`]
//! remembers the largest epoch of each seat, the token of the epoch that this process acquired, and
//! the last acknowledged batch.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use punctual_core::{Epoch, PartitionId, Seat};

use crate::change::BatchNo;

/// A store lost writes that it had acknowledged.
///
/// `apply` returned `Fenced` with an epoch that is not above ours, or `Gap` with a number that was
/// acknowledged before. The batches after `last` are not in the store. An owner that still has them
/// can write them again under a new epoch, which is larger than every epoch that this process has
/// seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewound {
    /// The partition that lost batches.
    pub partition: PartitionId,
    /// The epoch of the write.
    pub ours: Epoch,
    /// The epoch in the store: smaller than ours if acquisitions were lost.
    pub current: Epoch,
    /// The last acknowledged batch of our epoch, if any.
    pub acknowledged: Option<BatchNo>,
    /// The last batch in the store, if the epoch is still ours.
    pub last: Option<BatchNo>,
}

/// The epochs that this process has seen and acquired.
#[derive(Debug, Default)]
pub struct EpochTracker {
    seats: Mutex<HashMap<Seat, TrackedSeat>>,
}

#[derive(Debug, Clone)]
struct TrackedSeat {
    /// The largest epoch ever seen.
    largest: Epoch,
    /// The epoch that this process acquired last, if any.
    acquired: Option<AcquiredEpoch>,
}

#[derive(Debug, Clone)]
struct AcquiredEpoch {
    epoch: Epoch,
    token: String,
    acknowledged: Option<BatchNo>,
}

impl EpochTracker {
    /// A panic cannot leave this state half-written.
    fn seats(&self) -> MutexGuard<'_, HashMap<Seat, TrackedSeat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the smallest epoch that the next acquisition may return.
    #[must_use]
    pub fn next_epoch(&self, seat: Seat) -> u32 {
        self.seats().get(&seat).map_or(0, |seen| seen.largest.get()) + 1
    }

    /// Remembers an epoch that the store or another broker showed.
    pub fn observe(&self, seat: Seat, epoch: Epoch) {
        let mut seats = self.seats();
        let seen = seats.entry(seat).or_insert(TrackedSeat { largest: epoch, acquired: None });
        seen.largest = seen.largest.max(epoch);
    }

    /// Remembers an epoch that this process acquired.
    pub fn acquire(&self, seat: Seat, epoch: Epoch, token: String) {
        self.observe(seat, epoch);
        if let Some(seen) = self.seats().get_mut(&seat) {
            seen.acquired = Some(AcquiredEpoch { epoch, token, acknowledged: None });
        }
    }

    /// Returns the token with which this process acquired an epoch. Empty if another process
    /// acquired it; then the store does not compare tokens.
    #[must_use]
    pub fn token(&self, seat: Seat, epoch: Epoch) -> String {
        let seats = self.seats();
        let acquired = seats.get(&seat).and_then(|seen| seen.acquired.as_ref());
        acquired
            .filter(|acquired| acquired.epoch == epoch)
            .map_or_else(String::new, |acquired| acquired.token.clone())
    }

    /// Remembers that the store acknowledged a batch.
    pub fn acknowledge(&self, partition: PartitionId, epoch: Epoch, number: BatchNo) {
        if let Some(acquired) = self.acquired(&mut self.seats(), partition, epoch) {
            acquired.acknowledged = acquired.acknowledged.max(Some(number));
        }
    }

    /// Returns whether a fenced write means that the store lost writes.
    #[must_use]
    pub fn fenced(&self, partition: PartitionId, ours: Epoch, current: Epoch) -> Option<Rewound> {
        let mut seats = self.seats();
        let acquired = self.acquired(&mut seats, partition, ours)?;
        let acknowledged = acquired.acknowledged;
        // The same epoch with another token was granted twice, so the first grant was lost.
        (current <= ours).then_some(Rewound { partition, ours, current, acknowledged, last: None })
    }

    /// Returns whether the last batch number in the store means that the store lost writes.
    #[must_use]
    pub fn gap(&self, partition: PartitionId, ours: Epoch, last: BatchNo) -> Option<Rewound> {
        let mut seats = self.seats();
        let acknowledged = self.acquired(&mut seats, partition, ours)?.acknowledged;
        (acknowledged > Some(last)).then_some(Rewound {
            partition,
            ours,
            current: ours,
            acknowledged,
            last: Some(last),
        })
    }

    #[expect(clippy::unused_self, reason = "reads as a method of the tracker")]
    fn acquired<'a>(
        &self,
        seats: &'a mut HashMap<Seat, TrackedSeat>,
        partition: PartitionId,
        epoch: Epoch,
    ) -> Option<&'a mut AcquiredEpoch> {
        let seen = seats.get_mut(&Seat::Partition(partition))?;
        seen.acquired.as_mut().filter(|acquired| acquired.epoch == epoch)
    }
}

/// Returns a random token: no other acquisition has the same.
#[must_use]
pub fn acquisition_token() -> String {
    let [one, two] = [(); 2].map(|()| RandomState::new().build_hasher().finish());
    format!("{one:016x}{two:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId::FIRST;

    fn epoch(number: u32) -> Epoch {
        Epoch::new(number).unwrap()
    }

    #[test]
    fn the_next_epoch_is_larger_than_all_seen_epochs() {
        let tracker = EpochTracker::default();
        assert_eq!(tracker.next_epoch(Seat::Leader), 1);
        tracker.observe(Seat::Leader, epoch(7));
        tracker.observe(Seat::Leader, epoch(5));
        assert_eq!(tracker.next_epoch(Seat::Leader), 8);
        assert_eq!(tracker.next_epoch(Seat::Partition(P)), 1);
    }

    #[test]
    fn a_token_belongs_to_one_epoch() {
        let tracker = EpochTracker::default();
        let seat = Seat::Partition(P);
        assert_eq!(tracker.token(seat, epoch(1)), "");
        tracker.acquire(seat, epoch(1), "a".to_owned());
        assert_eq!(tracker.token(seat, epoch(1)), "a");
        assert_eq!(tracker.token(seat, epoch(2)), "");
        assert_ne!(acquisition_token(), acquisition_token());
    }

    #[test]
    fn a_store_is_rewound_if_it_has_less_than_it_acknowledged() {
        let tracker = EpochTracker::default();
        tracker.acquire(Seat::Partition(P), epoch(3), "a".to_owned());
        assert_eq!(tracker.gap(P, epoch(3), BatchNo::new(0)), None, "nothing was acknowledged yet");
        tracker.acknowledge(P, epoch(3), BatchNo::new(5));
        for (last, rewound) in [(4, true), (5, false), (6, false)] {
            let found = tracker.gap(P, epoch(3), BatchNo::new(last));
            assert_eq!(found.is_some(), rewound, "last {last}");
        }
        for (current, rewound) in [(2, true), (3, true), (4, false)] {
            let found = tracker.fenced(P, epoch(3), epoch(current));
            assert_eq!(found.is_some(), rewound, "current {current}");
        }
        assert_eq!(tracker.fenced(P, epoch(9), epoch(2)), None, "an epoch that was never ours");
    }
}
