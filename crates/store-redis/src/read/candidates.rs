//! Candidates: the fires that a page may show, collected from several ranges of groups.
//!
//! Each range is read newest first, but fires of different groups overlap in time. A candidate is
//! ready when no unread group can have a newer fire. Memory is bounded: of too many candidates the
//! newest are kept, and the page ends with the last of them.

use punctual_core::Timestamp;
use punctual_store::FirePosition;

/// The largest number of candidates: some megabytes. Only fires that end at the same time in very
/// many batches reach it.
const CANDIDATES_MAX: usize = 65_536;

/// Fires that a page may show, newest first.
#[derive(Debug, Default)]
pub(super) struct FireCandidates {
    positions: Vec<FirePosition>,
    /// The oldest candidate that was kept, if older ones were dropped.
    floor: Option<FirePosition>,
}

impl FireCandidates {
    pub(super) fn add(&mut self, more: impl Iterator<Item = FirePosition>) {
        let floor = self.floor;
        self.positions.extend(more.filter(|it| floor.is_none_or(|floor| *it >= floor)));
        self.positions.sort_unstable_by(|a, b| b.cmp(a));
        // Two epochs may have listed the same end of a fire.
        self.positions.dedup();
        if self.positions.len() > CANDIDATES_MAX {
            self.positions.truncate(CANDIDATES_MAX);
            self.floor = self.positions.last().copied();
        }
    }

    /// Removes and returns the candidates that ended after `unread`, the latest time that an unread
    /// group can have; all of them if every group was read.
    pub(super) fn take_ready(&mut self, unread: Option<Timestamp>) -> Vec<FirePosition> {
        let is_ready = |it: &FirePosition| unread.is_none_or(|unread| it.ended_at > unread);
        let ready = self.positions.partition_point(is_ready);
        self.positions.drain(..ready).collect()
    }

    /// Returns the last candidate, if older ones were dropped and all that were kept were taken.
    pub(super) fn cut_at(&self) -> Option<FirePosition> {
        self.floor.filter(|_| self.positions.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::FireId;
    use punctual_store::conformance::fixtures::{at, epoch, id, partition};

    use super::*;

    fn position(second: u64, number: u64) -> FirePosition {
        let task = id(at(1), partition(0), epoch(1), number);
        FirePosition { ended_at: at(second), fire_id: FireId { task, nominal_at: at(1) } }
    }

    #[test]
    fn a_candidate_is_ready_when_no_unread_group_can_have_a_newer_fire() {
        let mut candidates = FireCandidates::default();
        candidates.add([position(5, 1), position(7, 2), position(7, 2)].into_iter());
        candidates.add([position(6, 9), position(5, 3)].into_iter());
        assert_eq!(candidates.take_ready(Some(at(7))), [], "others may end at the same time");
        assert_eq!(candidates.take_ready(Some(at(5))), [position(7, 2), position(6, 9)]);
        assert_eq!(candidates.take_ready(None), [position(5, 3), position(5, 1)]);
        assert_eq!(candidates.cut_at(), None);
    }

    #[test]
    fn of_too_many_candidates_the_newest_are_kept_and_end_the_page() {
        let count = CANDIDATES_MAX as u64;
        let mut candidates = FireCandidates::default();
        candidates.add((0..count).map(|number| position(5, number)));
        candidates.add([position(6, 1)].into_iter());
        let last = position(5, 1);
        assert_eq!(candidates.cut_at(), None, "they were not taken yet");
        candidates.add([position(4, 1), position(5, 0)].into_iter());
        let taken = candidates.take_ready(None);
        assert_eq!((taken.len(), taken.last()), (CANDIDATES_MAX, Some(&last)));
        candidates.add([position(4, 1)].into_iter());
        assert_eq!(candidates.cut_at(), Some(last));
    }
}
