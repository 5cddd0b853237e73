//! What this process knows of seats, apart from Redis: enough to notice that Redis has gone back.
//!
//! In: leases that were taken, batches that were answered. Out: the token that a write carries, the epoch that the next
//! acquisition proposes, and whether an answer says that Redis has lost what it had acknowledged.
//! Redis replicates after it has answered, so a replica that is promoted can be behind. Then its epoch or its
//! batch number is smaller than what was answered before: the store was rewound.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use punctual_core::{Epoch, PartitionId, Seat};
use punctual_store::BatchNo;

/// Redis has lost what it had acknowledged.
///
/// `apply` answers `Fenced` with an epoch below ours, or `Gap` with a number that was answered `Ok` before: no
/// number after the last of these is in the store, and whoever still knows what was in them can make it anew
/// under a new epoch, which is larger than every epoch that this process has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewound {
    /// Where.
    pub partition: PartitionId,
    /// The epoch of the write.
    pub ours: Epoch,
    /// The epoch in Redis: smaller if acquisitions were lost.
    pub current: Epoch,
    /// The batch of our epoch that was last answered `Ok`, if one was.
    pub answered: Option<BatchNo>,
    /// The batch that Redis has last, if the epoch is still ours.
    pub last: Option<BatchNo>,
}

#[derive(Debug, Default)]
pub(crate) struct EpochTracker {
    seats: Mutex<HashMap<Seat, TrackedSeat>>,
}

#[derive(Debug, Clone)]
struct TrackedSeat {
    /// The largest ever seen.
    largest: Epoch,
    /// The one that this process took last, if any.
    taken: Option<AcquiredEpoch>,
}

#[derive(Debug, Clone)]
struct AcquiredEpoch {
    epoch: Epoch,
    token: String,
    answered: Option<BatchNo>,
}

impl EpochTracker {
    /// Nothing is left half-way here by a panic.
    fn seats(&self) -> MutexGuard<'_, HashMap<Seat, TrackedSeat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The least epoch that an acquisition may give.
    pub(crate) fn proposal(&self, seat: Seat) -> u32 {
        self.seats().get(&seat).map_or(0, |seen| seen.largest.get()) + 1
    }

    pub(crate) fn see(&self, seat: Seat, epoch: Epoch) {
        let mut seats = self.seats();
        let seen = seats.entry(seat).or_insert(TrackedSeat { largest: epoch, taken: None });
        seen.largest = seen.largest.max(epoch);
    }

    pub(crate) fn take(&self, seat: Seat, epoch: Epoch, token: String) {
        self.see(seat, epoch);
        if let Some(seen) = self.seats().get_mut(&seat) {
            seen.taken = Some(AcquiredEpoch { epoch, token, answered: None });
        }
    }

    /// The token under which this process took an epoch; empty if it did not, and then Redis does not ask for it.
    pub(crate) fn token(&self, seat: Seat, epoch: Epoch) -> String {
        let seats = self.seats();
        let taken = seats.get(&seat).and_then(|seen| seen.taken.as_ref());
        taken
            .filter(|taken| taken.epoch == epoch)
            .map_or_else(String::new, |taken| taken.token.clone())
    }

    pub(crate) fn answered(&self, partition: PartitionId, epoch: Epoch, number: BatchNo) {
        if let Some(taken) = self.taken(&mut self.seats(), partition, epoch) {
            taken.answered = taken.answered.max(Some(number));
        }
    }

    /// Whether a refusal under a current epoch means that Redis has gone back.
    pub(crate) fn fenced(
        &self,
        partition: PartitionId,
        ours: Epoch,
        current: Epoch,
    ) -> Option<Rewound> {
        let mut seats = self.seats();
        let taken = self.taken(&mut seats, partition, ours)?;
        let answered = taken.answered;
        // The same epoch with another token: it was given twice, so the first time was lost.
        (current <= ours).then_some(Rewound { partition, ours, current, answered, last: None })
    }

    /// Whether a last number means that Redis has gone back.
    pub(crate) fn gap(
        &self,
        partition: PartitionId,
        ours: Epoch,
        last: BatchNo,
    ) -> Option<Rewound> {
        let mut seats = self.seats();
        let answered = self.taken(&mut seats, partition, ours)?.answered;
        (answered > Some(last)).then_some(Rewound {
            partition,
            ours,
            current: ours,
            answered,
            last: Some(last),
        })
    }

    #[expect(clippy::unused_self, reason = "reads as what it is: of what is known")]
    fn taken<'a>(
        &self,
        seats: &'a mut HashMap<Seat, TrackedSeat>,
        partition: PartitionId,
        epoch: Epoch,
    ) -> Option<&'a mut AcquiredEpoch> {
        let seen = seats.get_mut(&Seat::Partition(partition))?;
        seen.taken.as_mut().filter(|taken| taken.epoch == epoch)
    }
}

/// A word that no other acquisition carries: 64 bits that the system made for this process, and more each time.
pub(crate) fn token() -> String {
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
    fn the_next_epoch_is_above_all_that_were_seen() {
        let known = EpochTracker::default();
        assert_eq!(known.proposal(Seat::Leader), 1);
        known.see(Seat::Leader, epoch(7));
        known.see(Seat::Leader, epoch(5));
        assert_eq!(known.proposal(Seat::Leader), 8);
        assert_eq!(known.proposal(Seat::Partition(P)), 1);
    }

    #[test]
    fn a_token_belongs_to_one_epoch() {
        let known = EpochTracker::default();
        let seat = Seat::Partition(P);
        assert_eq!(known.token(seat, epoch(1)), "");
        known.take(seat, epoch(1), "a".to_owned());
        assert_eq!(known.token(seat, epoch(1)), "a");
        assert_eq!(known.token(seat, epoch(2)), "");
        assert_ne!(token(), token());
    }

    #[test]
    fn a_store_is_rewound_if_it_has_less_than_it_answered() {
        let known = EpochTracker::default();
        known.take(Seat::Partition(P), epoch(3), "a".to_owned());
        assert_eq!(known.gap(P, epoch(3), BatchNo::new(0)), None, "nothing was answered yet");
        known.answered(P, epoch(3), BatchNo::new(5));
        for (last, rewound) in [(4, true), (5, false), (6, false)] {
            let found = known.gap(P, epoch(3), BatchNo::new(last));
            assert_eq!(found.is_some(), rewound, "last {last}");
        }
        for (current, rewound) in [(2, true), (3, true), (4, false)] {
            let found = known.fenced(P, epoch(3), epoch(current));
            assert_eq!(found.is_some(), rewound, "current {current}");
        }
        assert_eq!(known.fenced(P, epoch(9), epoch(2)), None, "an epoch that was never ours");
    }
}
