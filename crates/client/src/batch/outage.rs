//! Decides what follows when a stream of batches has ended: the next stream at once, after a pause,
//! or no longer than until the waiting calls are given up.
//!
//! Calls are given up when no broker could be reached for some time. A broker that is reached ends
//! an outage, so that the next one is counted from its own beginning. So does a long time without
//! calls, in which no broker was tried.

use std::time::Duration;

use tokio::time::Instant;

use crate::brokers::address_list::AfterFailure;
use crate::clock::PAUSE_MIN;
use crate::error::CallFailure;

/// How a stream of batches ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamEnd {
    pub(crate) failure: CallFailure,
    /// Batches that were answered before.
    pub(crate) answers: u64,
    /// Whether another broker can be called now.
    pub(crate) next: AfterFailure,
}

/// When the next stream is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStream {
    AtOnce,
    AfterPause,
    /// After a pause. If this duration ends first, the waiting calls are given up.
    AfterPauseWithin(Duration),
}

/// How long no broker could be reached.
#[derive(Debug)]
pub(crate) struct Outage {
    give_up_after: Duration,
    /// `None` if the last broker that was called could be reached.
    since: Option<Instant>,
}

impl Outage {
    pub(crate) fn new(give_up_after: Duration) -> Self {
        Self { give_up_after, since: None }
    }

    /// Records that there was no call for this long.
    pub(crate) fn after_idle(&mut self, idle: Duration) {
        if idle >= self.give_up_after {
            self.since = None;
        }
    }

    /// Decides when the next stream is opened.
    pub(crate) fn next_stream(&mut self, end: StreamEnd, now: Instant) -> NextStream {
        if end.answers > 0 || end.failure != CallFailure::Unreachable {
            self.since = None;
        }
        match end.failure {
            // The callers of these batches have their answer; the next ones may be accepted.
            CallFailure::Refused => NextStream::AtOnce,
            _ if end.next == AfterFailure::AtOnce => NextStream::AtOnce,
            CallFailure::Lost | CallFailure::Busy => NextStream::AfterPause,
            CallFailure::Unreachable => {
                let since = *self.since.get_or_insert(now);
                let left = self.give_up_after.saturating_sub(now - since).max(PAUSE_MIN);
                NextStream::AfterPauseWithin(left)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
    const SECOND: Duration = Duration::from_secs(1);

    fn unreachable() -> StreamEnd {
        StreamEnd { failure: CallFailure::Unreachable, answers: 0, next: AfterFailure::AfterPause }
    }

    #[test]
    fn calls_are_given_up_when_no_broker_could_be_reached_for_that_long() {
        let (mut outage, start) = (Outage::new(GIVE_UP_AFTER), clock::now());
        for (after, left) in [(0, 5 * SECOND), (3, 2 * SECOND), (5, PAUSE_MIN), (9, PAUSE_MIN)] {
            let next = outage.next_stream(unreachable(), start + after * SECOND);
            assert_eq!(next, NextStream::AfterPauseWithin(left), "after {after} s");
        }
    }

    /// A stream that breaks may be followed at once by one to a broker that cannot be reached.
    #[test]
    fn a_second_outage_is_counted_from_its_own_beginning() {
        let start = clock::now();
        for (failure, answers) in [
            (CallFailure::Lost, 1),
            (CallFailure::Busy, 1),
            (CallFailure::Refused, 1),
            (CallFailure::Unreachable, 1),
            // The broker was reached, and the stream broke before its first answer.
            (CallFailure::Lost, 0),
            (CallFailure::Busy, 0),
            (CallFailure::Refused, 0),
        ] {
            let mut outage = Outage::new(GIVE_UP_AFTER);
            outage.next_stream(unreachable(), start);
            let reached = StreamEnd { failure, answers, next: AfterFailure::AtOnce };
            let next = outage.next_stream(reached, start + 60 * SECOND);
            assert_eq!(next, NextStream::AtOnce);
            let next = outage.next_stream(unreachable(), start + 61 * SECOND);
            let expected = NextStream::AfterPauseWithin(GIVE_UP_AFTER);
            assert_eq!(next, expected, "{failure:?} after {answers} answers");
        }
    }

    #[test]
    fn a_call_after_a_long_idle_time_does_not_pay_for_an_earlier_outage() {
        let start = clock::now();
        for (idle, left) in [(GIVE_UP_AFTER, GIVE_UP_AFTER), (SECOND, PAUSE_MIN)] {
            let mut outage = Outage::new(GIVE_UP_AFTER);
            outage.next_stream(unreachable(), start);
            let given_up = outage.next_stream(unreachable(), start + 5 * SECOND);
            assert_eq!(given_up, NextStream::AfterPauseWithin(PAUSE_MIN));
            outage.after_idle(idle);
            let next = outage.next_stream(unreachable(), start + 5 * SECOND + idle);
            assert_eq!(next, NextStream::AfterPauseWithin(left), "after {idle:?}");
        }
    }
}
