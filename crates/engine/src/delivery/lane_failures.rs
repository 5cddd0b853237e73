//! Failed attempts of lanes: how many there were in the last [`FAILURES_KEPT`], and what the last
//! one said.
//!
//! Only a failed attempt writes here; others cost nothing. A lane has its own failures, and leaves
//! them to [`ClosedLanes`] when it is closed, so that a receiver whose tasks all wait for a retry
//! is still known. All of it is in memory, and lost with the owner.

use std::collections::HashMap;
use std::time::Duration;

use punctual_core::{Namespace, Outcome, Reason, Timestamp};
use rapidhash::fast::RandomState;

use crate::delivery::lane::{LaneId, LaneTarget};

/// How long failed attempts of a lane are counted.
pub const FAILURES_KEPT: Duration = Duration::from_secs(MINUTES as u64 * 60);
const MINUTES: usize = 15;
const MINUTE_MS: u64 = 60_000;
/// Closed lanes of one namespace whose failures are kept: more receivers than a page shows.
const CLOSED_OF_NAMESPACE_MAX: usize = 128;
/// The same of all namespaces of an owner: about 2 MB with the longest reasons.
const CLOSED_MAX: usize = 2_048;

/// The last failed attempt of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastFailure {
    /// When it ended.
    pub at: Timestamp,
    /// The error, or what the receiver answered.
    pub reason: Reason,
    /// The earliest time of the next attempt, if the receiver asked for a pause.
    pub retry_at: Option<Timestamp>,
}

/// The failed attempts of one lane.
#[derive(Debug, Clone)]
pub(crate) struct LaneFailures {
    /// Failures of each minute, at the number of the minute modulo [`MINUTES`].
    counts: [u32; MINUTES],
    /// The last minute that has a count.
    newest: u64,
    last: LastFailure,
}

impl LastFailure {
    /// What a failed attempt says; `None` if it has not failed.
    pub(crate) fn of(outcome: &Outcome, now: Timestamp) -> Option<Self> {
        let (reason, retry_in) = match outcome {
            Outcome::Acked => return None,
            Outcome::Failed { reason, retry_in } => (reason.clone(), *retry_in),
            Outcome::Refused { reason } => (reason.clone(), None),
            Outcome::Expired => (Reason::new("timeout"), None),
        };
        Some(Self { at: now, reason, retry_at: retry_in.map(|pause| now.after(pause)) })
    }
}

impl LaneFailures {
    pub(crate) fn first(failure: LastFailure) -> Self {
        let newest = minute(failure.at);
        let mut failures = Self { counts: [0; MINUTES], newest, last: failure };
        failures.counts[slot(newest)] = 1;
        failures
    }

    pub(crate) fn add(&mut self, failure: LastFailure) {
        let now = minute(failure.at);
        // Minutes since the last failure have none.
        for skipped in (self.newest + 1..=now).take(MINUTES) {
            self.counts[slot(skipped)] = 0;
        }
        // A clock that was set back counts in the newest minute.
        self.newest = self.newest.max(now);
        let count = &mut self.counts[slot(self.newest)];
        *count = count.saturating_add(1);
        self.last = failure;
    }

    /// Counts the failures that are kept at a time.
    pub(crate) fn count(&self, now: Timestamp) -> u64 {
        let now = minute(now).max(self.newest);
        let first = (now + 1).saturating_sub(MINUTES as u64);
        (first..=self.newest).map(|minute| u64::from(self.counts[slot(minute)])).sum()
    }

    pub(crate) const fn last(&self) -> &LastFailure {
        &self.last
    }
}

fn minute(at: Timestamp) -> u64 {
    at.as_millis() / MINUTE_MS
}

fn slot(minute: u64) -> usize {
    usize::try_from(minute % MINUTES as u64).expect("a remainder of a small number")
}

/// The failures of lanes that were closed: that have nothing waiting and nothing in flight.
#[derive(Debug, Default)]
pub(crate) struct ClosedLanes {
    of_namespace: HashMap<Namespace, HashMap<LaneTarget, LaneFailures, RandomState>, RandomState>,
    count: usize,
    /// When lanes without recent failures were last removed.
    pruned_at: Option<Timestamp>,
}

impl ClosedLanes {
    /// Keeps the failures of a lane that is closed, if there are not too many.
    pub(crate) fn keep(&mut self, id: &LaneId, failures: LaneFailures, now: Timestamp) {
        let is_full = |kept: &Self| {
            let of_namespace = kept.of_namespace.get(id.namespace());
            kept.count >= CLOSED_MAX
                || of_namespace.is_some_and(|lanes| lanes.len() >= CLOSED_OF_NAMESPACE_MAX)
        };
        if is_full(self) {
            self.prune(now);
        }
        if failures.count(now) == 0 || is_full(self) {
            return;
        }
        let of_namespace = self.of_namespace.entry(id.namespace().clone()).or_default();
        if of_namespace.insert(id.target().clone(), failures).is_none() {
            self.count += 1;
        }
    }

    /// Takes the failures of a lane that is opened again.
    pub(crate) fn take(&mut self, id: &LaneId) -> Option<LaneFailures> {
        if self.count == 0 {
            return None;
        }
        let of_namespace = self.of_namespace.get_mut(id.namespace())?;
        let failures = of_namespace.remove(id.target())?;
        if of_namespace.is_empty() {
            self.of_namespace.remove(id.namespace());
        }
        self.count -= 1;
        Some(failures)
    }

    /// Returns the closed lanes of a namespace that have failed lately.
    pub(crate) fn of_namespace(
        &self,
        namespace: &Namespace,
        now: Timestamp,
    ) -> impl Iterator<Item = (&LaneTarget, &LaneFailures)> {
        let lanes = self.of_namespace.get(namespace).into_iter().flatten();
        lanes.filter(move |(_, failures)| failures.count(now) > 0)
    }

    /// Removes lanes without recent failures, at most once a minute.
    fn prune(&mut self, now: Timestamp) {
        let minute = Duration::from_millis(MINUTE_MS);
        if self.pruned_at.is_some_and(|pruned_at| now.since(pruned_at) < minute) {
            return;
        }
        self.pruned_at = Some(now);
        self.of_namespace.retain(|_, lanes| {
            lanes.retain(|_, failures| failures.count(now) > 0);
            !lanes.is_empty()
        });
        self.count = self.of_namespace.values().map(HashMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Queue;

    use super::*;

    fn minutes(count: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 * MINUTE_MS + count * MINUTE_MS)
    }

    fn failure(at: Timestamp) -> LastFailure {
        LastFailure { at, reason: Reason::new("status 503"), retry_at: None }
    }

    fn lane(namespace: &str, queue: usize) -> LaneId {
        let queue = Queue::new(&format!("q{queue}")).unwrap();
        LaneId::of_queue(Namespace::new(namespace).unwrap(), queue)
    }

    #[test]
    fn failures_are_counted_for_fifteen_minutes() {
        let mut failures = LaneFailures::first(failure(minutes(0)));
        for at in [0, 1, 14] {
            failures.add(failure(minutes(at)));
        }
        for (at, want) in [(0, 4), (14, 4), (15, 2), (16, 1), (28, 1), (29, 0), (1000, 0)] {
            assert_eq!(failures.count(minutes(at)), want, "after {at} minutes");
        }
        failures.add(failure(minutes(1000)));
        assert_eq!(failures.count(minutes(1000)), 1, "earlier minutes are cleared");
        failures.add(failure(minutes(990)));
        assert_eq!(failures.count(minutes(1000)), 2, "a clock that was set back");
    }

    #[test]
    fn an_outcome_is_a_failure_unless_it_is_an_ack() {
        let now = minutes(0);
        let pause = Duration::from_secs(7);
        let reason = Reason::new("status 503");
        let failed = Outcome::Failed { reason: reason.clone(), retry_in: Some(pause) };
        let last = LastFailure::of(&failed, now).unwrap();
        assert_eq!((last.at, last.retry_at), (now, Some(now.after(pause))));
        let refused = LastFailure::of(&Outcome::Refused { reason }, now).unwrap();
        assert_eq!((refused.reason.as_str(), refused.retry_at), ("status 503", None));
        let expired = LastFailure::of(&Outcome::Expired, now).unwrap();
        assert_eq!(expired.reason.as_str(), "timeout");
        assert_eq!(LastFailure::of(&Outcome::Acked, now), None);
    }

    #[test]
    fn a_closed_lane_keeps_its_failures_until_it_is_opened_again() {
        let mut closed = ClosedLanes::default();
        let shop = Namespace::new("shop").unwrap();
        closed.keep(&lane("shop", 1), LaneFailures::first(failure(minutes(0))), minutes(1));
        assert_eq!(closed.of_namespace(&shop, minutes(1)).count(), 1);
        assert_eq!(closed.of_namespace(&shop, minutes(15)).count(), 0, "they are too old");
        assert_eq!(closed.of_namespace(&Namespace::new("x").unwrap(), minutes(1)).count(), 0);
        assert!(closed.take(&lane("shop", 2)).is_none());
        assert!(closed.take(&lane("shop", 1)).is_some());
        assert!(closed.take(&lane("shop", 1)).is_none());
        assert_eq!(closed.count, 0);
    }

    #[test]
    fn closed_lanes_are_bounded_for_each_namespace_and_in_all() {
        let mut closed = ClosedLanes::default();
        let failed = |at| LaneFailures::first(failure(minutes(at)));
        for queue in 0..CLOSED_OF_NAMESPACE_MAX + 5 {
            closed.keep(&lane("hog", queue), failed(0), minutes(0));
        }
        assert_eq!(closed.count, CLOSED_OF_NAMESPACE_MAX);
        closed.keep(&lane("shop", 0), failed(1), minutes(1));
        assert_eq!(closed.count, CLOSED_OF_NAMESPACE_MAX + 1, "another namespace has its own");
        closed.keep(&lane("hog", 999), failed(20), minutes(20));
        assert_eq!(closed.count, 1, "old ones make place");
        for namespace in 0..CLOSED_MAX + 5 {
            closed.keep(&lane(&format!("n{namespace}"), 0), failed(20), minutes(20));
        }
        assert_eq!(closed.count, CLOSED_MAX);
    }
}
