//! Skew: how far this broker's clock is off from the others'.
//!
//! In: what the store's clock said during a round trip, and how far ahead of it the others say they are. Out: whether this
//! broker may go by its clock. The clocks vote: what the median of all says is the time, and the store has a vote as well.
//! Invariant: one measurement decides nothing; two in a row that say the same do. Without a third vote nobody can be
//! wrong: a broker that is alone with its store goes by its own clock. And nobody gives up unless a broker with a good
//! clock is there to take over: clocks that all differ stop nobody.
//! Not here: jumps of the machine's own clock, which `server/clock.rs` does not follow.

use std::time::Duration;

use punctual_core::Timestamp;

/// Measurements in a row that say that the clock is off, before it is believed.
const OFF_IN_A_ROW: u32 = 2;
/// Votes without which nobody can be wrong.
const VOTES_MIN: usize = 3;

/// What another broker says of its clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vote {
    /// How far it is ahead of the store's.
    pub(crate) ahead_ms: i64,
    /// Whether it wants partitions.
    pub(crate) willing: bool,
}

/// What is known of our clock.
#[derive(Debug)]
pub(crate) struct Skew {
    max_ms: i64,
    ahead_ms: Option<i64>,
    /// Measurements in a row that said that it is off.
    off_in_a_row: u32,
    /// By how much it was off when it was last judged, if we do not go by it.
    off_ms: Option<i64>,
}

impl Skew {
    pub(crate) fn new(max: Duration) -> Self {
        let max_ms = millis(max);
        Self { max_ms, ahead_ms: None, off_in_a_row: 0, off_ms: None }
    }

    /// How far our clock is ahead of the store's.
    pub(crate) fn ahead_ms(&self) -> Option<i64> {
        self.ahead_ms
    }

    /// Whether we do not go by our clock.
    pub(crate) fn is_off(&self) -> bool {
        self.off_ms.is_some()
    }

    /// Whether the last measurement raised no doubt.
    pub(crate) fn is_clear(&self) -> bool {
        self.off_ms.is_none() && self.off_in_a_row == 0
    }

    /// Takes in one round trip: the store's clock said `at` somewhere between. Returns the new verdict if it is another.
    pub(crate) fn measure(
        &mut self,
        asked_at: Timestamp,
        answered_at: Timestamp,
        at: Timestamp,
        others: &[Vote],
    ) -> Option<Option<i64>> {
        let trip = millis(answered_at.since(asked_at));
        // The store may have looked at its clock at any moment of the trip: half of it is what we may be wrong by.
        if trip > self.max_ms / 2 {
            return None;
        }
        let ahead = signed(asked_at) + trip / 2 - signed(at);
        self.ahead_ms = Some(ahead);
        let median = median(others.iter().map(|vote| vote.ahead_ms).chain([ahead, 0]).collect())?;
        let good = |vote: &Vote| vote.willing && median.abs_diff(vote.ahead_ms) <= self.max();
        let successors = others.iter().any(good);
        self.judge(ahead.saturating_sub(median), successors)
    }

    fn max(&self) -> u64 {
        self.max_ms.unsigned_abs()
    }

    fn judge(&mut self, off: i64, successors: bool) -> Option<Option<i64>> {
        let distance = off.saturating_abs();
        let doubt = distance > self.max_ms && successors;
        self.off_in_a_row = if doubt { self.off_in_a_row + 1 } else { 0 };
        match self.off_ms {
            None if self.off_in_a_row >= OFF_IN_A_ROW => {
                self.off_ms = Some(off);
                Some(Some(off))
            }
            // Half of it: a clock at the very edge must not come and go.
            Some(_) if distance <= self.max_ms / 2 => {
                self.off_ms = None;
                Some(None)
            }
            _ => None,
        }
    }
}

/// The one in the middle; of two in the middle the one nearer to the store's clock, because it must be somebody's.
fn median(mut votes: Vec<i64>) -> Option<i64> {
    if votes.len() < VOTES_MIN {
        return None;
    }
    votes.sort_unstable();
    let middle = votes.len() / 2;
    let before = if votes.len().is_multiple_of(2) { middle - 1 } else { middle };
    [votes[before], votes[middle]].into_iter().min_by_key(|vote| vote.unsigned_abs())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn signed(at: Timestamp) -> i64 {
    i64::try_from(at.as_millis()).expect("MAX fits an i64")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: u64 = 1_000_000;

    /// One heartbeat with a trip of `trip` ms, by a clock that is `ahead`.
    fn beat(skew: &mut Skew, ahead: i64, trip: u64, others: &[i64]) -> Option<Option<i64>> {
        let asked = STORE.checked_add_signed(ahead).unwrap() - trip / 2;
        let (asked, answered) =
            (Timestamp::from_millis(asked), Timestamp::from_millis(asked + trip));
        let vote = |ahead_ms: &i64| Vote { ahead_ms: *ahead_ms, willing: true };
        let others: Vec<_> = others.iter().map(vote).collect();
        skew.measure(asked, answered, Timestamp::from_millis(STORE), &others)
    }

    fn skew() -> Skew {
        Skew::new(Duration::from_millis(250))
    }

    #[test]
    fn a_clock_is_off_when_two_heartbeats_in_a_row_say_so() {
        let mut skew = skew();
        assert_eq!(beat(&mut skew, 251, 2, &[0]), None);
        assert!(!skew.is_off() && !skew.is_clear());
        assert_eq!(beat(&mut skew, 250, 2, &[0]), None, "the edge is within");
        assert!(skew.is_clear());
        assert_eq!(beat(&mut skew, -400, 2, &[0]), None);
        assert_eq!(beat(&mut skew, -400, 2, &[0]), Some(Some(-400)));
        assert!(skew.is_off());
    }

    #[test]
    fn it_is_trusted_again_within_half_of_what_is_allowed() {
        let mut skew = skew();
        beat(&mut skew, 900, 0, &[0, 1]);
        assert_eq!(beat(&mut skew, 900, 0, &[0, 1]), Some(Some(900)), "by how much");
        assert_eq!(beat(&mut skew, 200, 0, &[0, 1]), None, "not yet");
        assert!(skew.is_off());
        assert_eq!(beat(&mut skew, 125, 0, &[0, 1]), Some(None));
        assert!(skew.is_clear());
    }

    #[test]
    fn a_long_trip_measures_nothing() {
        let mut skew = skew();
        for _ in 0..5 {
            assert_eq!(beat(&mut skew, 5_000, 126, &[0]), None);
        }
        assert_eq!(skew.ahead_ms(), None);
        beat(&mut skew, 5_000, 124, &[0]);
        assert_eq!(skew.ahead_ms(), Some(5_000));
    }

    #[test]
    fn the_store_can_be_the_one_that_is_wrong() {
        let mut skew = skew();
        for _ in 0..3 {
            assert_eq!(beat(&mut skew, 60_000, 0, &[60_010]), None, "two of three agree");
        }
        assert!(skew.is_clear());
    }

    #[test]
    fn two_against_two_goes_by_the_store() {
        let mut skew = skew();
        for want in [None, Some(Some(600))] {
            assert_eq!(beat(&mut skew, 600, 0, &[0, 600]), want);
        }
        for _ in 0..3 {
            assert_eq!(beat(&mut self::skew(), 0, 0, &[600, 600]), None);
        }
    }

    #[test]
    fn clocks_that_all_differ_stop_nobody() {
        let mut skew = skew();
        for _ in 0..3 {
            assert_eq!(beat(&mut skew, 600, 0, &[-600]), None, "the store is in the middle");
        }
        assert!(skew.is_clear());
        let good = Vote { ahead_ms: 0, willing: false };
        let at = Timestamp::from_millis(STORE + 600);
        for _ in 0..3 {
            let judged = skew.measure(at, at, Timestamp::from_millis(STORE), &[good]);
            assert_eq!(judged, None, "who is right is leaving");
        }
    }

    #[test]
    fn alone_with_its_store_a_broker_goes_by_its_own_clock() {
        let mut skew = skew();
        for _ in 0..3 {
            assert_eq!(beat(&mut skew, 60_000, 0, &[]), None);
        }
        assert!(skew.is_clear());
        assert_eq!(skew.ahead_ms(), Some(60_000), "and still says how far it is ahead");
    }
}
