//! Measures how far this broker's clock differs from the other brokers'.
//!
//! Each heartbeat gives one measurement against the store's clock, and the other brokers publish
//! theirs. The clocks vote: the median of all, including the store's, counts as the correct time.
//! Two measurements in a row must agree before the clock counts as skewed. With fewer than three
//! votes no clock can be outvoted, so a broker that is alone with its store trusts its own clock. A
//! broker gives up its partitions only if another broker with a correct clock can take them: clocks
//! that all differ stop no broker.
//!
//! `server/clock.rs` handles jumps of the machine's own clock.

use std::time::Duration;

use punctual_core::Timestamp;

/// Measurements in a row beyond the limit before the clock counts as skewed.
const SKEWED_IN_A_ROW: u32 = 2;
/// The smallest number of votes with which a clock can be outvoted.
const VOTES_MIN: usize = 3;

/// The clock of another broker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockVote {
    /// How far it is ahead of the store's, in milliseconds.
    pub(crate) ahead_ms: i64,
    /// Whether the broker wants partitions.
    pub(crate) willing: bool,
}

/// What is known of this broker's clock.
#[derive(Debug)]
pub(crate) struct ClockSkew {
    max_ms: i64,
    ahead_ms: Option<i64>,
    /// Measurements in a row that were beyond the limit.
    skewed_in_a_row: u32,
    /// The difference when the clock was found to be skewed, until it is trusted again.
    skewed_ms: Option<i64>,
}

impl ClockSkew {
    pub(crate) fn new(max: Duration) -> Self {
        let max_ms = millis(max);
        Self { max_ms, ahead_ms: None, skewed_in_a_row: 0, skewed_ms: None }
    }

    /// Returns how far this broker's clock is ahead of the store's.
    pub(crate) fn ahead_ms(&self) -> Option<i64> {
        self.ahead_ms
    }

    /// Returns whether the clock is skewed.
    pub(crate) fn is_skewed(&self) -> bool {
        self.skewed_ms.is_some()
    }

    /// Returns whether the last measurement was within the limit.
    pub(crate) fn is_clear(&self) -> bool {
        self.skewed_ms.is_none() && self.skewed_in_a_row == 0
    }

    /// Takes one measurement: the store's clock read `at` at some moment between the two times.
    /// Returns the new verdict if it has changed.
    pub(crate) fn measure(
        &mut self,
        sent_at: Timestamp,
        answered_at: Timestamp,
        at: Timestamp,
        others: &[ClockVote],
    ) -> Option<Option<i64>> {
        let trip = millis(answered_at.since(sent_at));
        // The store may have read its clock at any moment of the round trip, so the error is up to
        // half of it.
        if trip > self.max_ms / 2 {
            return None;
        }
        let ahead = signed(sent_at) + trip / 2 - signed(at);
        self.ahead_ms = Some(ahead);
        let median = median(others.iter().map(|vote| vote.ahead_ms).chain([ahead, 0]).collect())?;
        let good = |vote: &ClockVote| vote.willing && median.abs_diff(vote.ahead_ms) <= self.max();
        let successors = others.iter().any(good);
        self.judge(ahead.saturating_sub(median), successors)
    }

    fn max(&self) -> u64 {
        self.max_ms.unsigned_abs()
    }

    fn judge(&mut self, difference: i64, successors: bool) -> Option<Option<i64>> {
        let distance = difference.saturating_abs();
        let doubt = distance > self.max_ms && successors;
        self.skewed_in_a_row = if doubt { self.skewed_in_a_row + 1 } else { 0 };
        match self.skewed_ms {
            None if self.skewed_in_a_row >= SKEWED_IN_A_ROW => {
                self.skewed_ms = Some(difference);
                Some(Some(difference))
            }
            // Half of the limit, so that a clock near the limit does not flap.
            Some(_) if distance <= self.max_ms / 2 => {
                self.skewed_ms = None;
                Some(None)
            }
            _ => None,
        }
    }
}

/// Returns the median; with an even count, the one of the two middle votes that is nearer to the
/// store's clock, because it must be the reading of a real clock.
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

    /// Simulates one heartbeat with a round trip of `trip` ms, by a clock that is `ahead`.
    fn beat(skew: &mut ClockSkew, ahead: i64, trip: u64, others: &[i64]) -> Option<Option<i64>> {
        let sent = STORE.checked_add_signed(ahead).unwrap() - trip / 2;
        let (sent, answered) = (Timestamp::from_millis(sent), Timestamp::from_millis(sent + trip));
        let vote = |ahead_ms: &i64| ClockVote { ahead_ms: *ahead_ms, willing: true };
        let others: Vec<_> = others.iter().map(vote).collect();
        skew.measure(sent, answered, Timestamp::from_millis(STORE), &others)
    }

    fn skew() -> ClockSkew {
        ClockSkew::new(Duration::from_millis(250))
    }

    #[test]
    fn a_clock_is_skewed_after_two_measurements_in_a_row() {
        let mut skew = skew();
        assert_eq!(beat(&mut skew, 251, 2, &[0]), None);
        assert!(!skew.is_skewed() && !skew.is_clear());
        assert_eq!(beat(&mut skew, 250, 2, &[0]), None, "the limit itself is allowed");
        assert!(skew.is_clear());
        assert_eq!(beat(&mut skew, -400, 2, &[0]), None);
        assert_eq!(beat(&mut skew, -400, 2, &[0]), Some(Some(-400)));
        assert!(skew.is_skewed());
    }

    #[test]
    fn a_skewed_clock_is_trusted_again_within_half_of_the_limit() {
        let mut skew = skew();
        beat(&mut skew, 900, 0, &[0, 1]);
        assert_eq!(beat(&mut skew, 900, 0, &[0, 1]), Some(Some(900)), "by how much");
        assert_eq!(beat(&mut skew, 200, 0, &[0, 1]), None, "not yet");
        assert!(skew.is_skewed());
        assert_eq!(beat(&mut skew, 125, 0, &[0, 1]), Some(None));
        assert!(skew.is_clear());
    }

    #[test]
    fn a_long_round_trip_gives_no_measurement() {
        let mut skew = skew();
        for _ in 0..5 {
            assert_eq!(beat(&mut skew, 5_000, 126, &[0]), None);
        }
        assert_eq!(skew.ahead_ms(), None);
        beat(&mut skew, 5_000, 124, &[0]);
        assert_eq!(skew.ahead_ms(), Some(5_000));
    }

    #[test]
    fn the_clock_of_the_store_can_be_outvoted() {
        let mut skew = skew();
        for _ in 0..3 {
            assert_eq!(beat(&mut skew, 60_000, 0, &[60_010]), None, "two of three agree");
        }
        assert!(skew.is_clear());
    }

    #[test]
    fn with_two_against_two_the_store_decides() {
        let mut skew = skew();
        for want in [None, Some(Some(600))] {
            assert_eq!(beat(&mut skew, 600, 0, &[0, 600]), want);
        }
        for _ in 0..3 {
            assert_eq!(beat(&mut self::skew(), 0, 0, &[600, 600]), None);
        }
    }

    #[test]
    fn no_broker_stops_if_all_clocks_differ() {
        let mut skew = skew();
        for _ in 0..3 {
            assert_eq!(beat(&mut skew, 600, 0, &[-600]), None, "the store is in the middle");
        }
        assert!(skew.is_clear());
        let good = ClockVote { ahead_ms: 0, willing: false };
        let at = Timestamp::from_millis(STORE + 600);
        for _ in 0..3 {
            let judged = skew.measure(at, at, Timestamp::from_millis(STORE), &[good]);
            assert_eq!(judged, None, "the broker with the correct clock is leaving");
        }
    }

    #[test]
    fn a_broker_alone_with_its_store_trusts_its_own_clock() {
        let mut skew = skew();
        for _ in 0..3 {
            assert_eq!(beat(&mut skew, 60_000, 0, &[]), None);
        }
        assert!(skew.is_clear());
        assert_eq!(skew.ahead_ms(), Some(60_000), "the difference is still published");
    }
}
