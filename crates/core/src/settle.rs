//! Settling: what becomes of a fire once an attempt of it has an outcome.
//!
//! In: an [`Outcome`] from a courier. Out: one [`Verdict`], which the engine writes to the store.
//! Invariant: the same facts give the same verdict, on any broker, before and after a crash.
//! Not here: carrying the delivery (`engine/deliver`), writing the verdict (`engine/settle`).

use crate::dead::DeadReason;
use crate::fire::{AttemptNo, Outcome};
use crate::limits::BACKOFF_MAX;
use crate::{FireId, Guarantee, RetryPolicy, Timestamp};

/// What was agreed about a fire.
#[derive(Debug, Clone, Copy)]
pub struct SettleContext<'a> {
    /// Which; decides the jitter.
    pub fire_id: FireId,
    /// How often it may be tried.
    pub retry: &'a RetryPolicy,
    /// How often it may be received.
    pub guarantee: Guarantee,
    /// Until when it makes sense.
    pub expires_at: Option<Timestamp>,
}

/// What becomes of a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Done,
    /// It is tried again then.
    RetryAt(Timestamp),
    /// It becomes a dead letter.
    Dead(DeadReason),
}

/// Decides.
#[must_use]
pub fn settle(
    attempt: AttemptNo,
    outcome: &Outcome,
    terms: &SettleContext<'_>,
    now: Timestamp,
) -> Verdict {
    let retry_in = match (outcome, terms.guarantee) {
        (Outcome::Acked, _) => return Verdict::Done,
        (Outcome::Refused { .. }, _) => return Verdict::Dead(DeadReason::Refused),
        // It may have arrived, so a second attempt might be a second receipt.
        (Outcome::Expired, Guarantee::AtMostOnce) => return Verdict::Dead(DeadReason::Unknown),
        (Outcome::Failed { .. }, Guarantee::AtMostOnce) => {
            return Verdict::Dead(DeadReason::Exhausted);
        }
        (Outcome::Failed { retry_in, .. }, _) => *retry_in,
        (Outcome::Expired, _) => None,
    };
    if attempt.get() >= terms.retry.attempts_max {
        return Verdict::Dead(DeadReason::Exhausted);
    }
    // A receiver that says when knows better than the policy, within what a policy may say.
    let pause = retry_in
        .map(|pause| pause.min(BACKOFF_MAX))
        .unwrap_or_else(|| terms.retry.pause_after(attempt, terms.fire_id.entropy(attempt)));
    let retry_at = now.after(pause);
    if terms.expires_at.is_some_and(|expires_at| retry_at >= expires_at) {
        return Verdict::Dead(DeadReason::Expired);
    }
    Verdict::RetryAt(retry_at)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fire::Reason;
    use crate::{Backoff, Jitter, TaskId};

    const NOW: Timestamp = Timestamp::from_millis(100_000);

    fn failed(retry_in: Option<u64>) -> Outcome {
        Outcome::Failed { reason: Reason::new("no"), retry_in: retry_in.map(Duration::from_secs) }
    }

    fn retry_at(secs: u64) -> Verdict {
        Verdict::RetryAt(NOW.after(Duration::from_secs(secs)))
    }

    #[test]
    fn every_outcome_has_one_verdict() {
        use DeadReason::{Exhausted, Expired, Refused, Unknown};
        use Guarantee::{AtLeastOnce, AtMostOnce, ExactlyOnce};
        let refused = Outcome::Refused { reason: Reason::new("gone") };
        let retry = RetryPolicy {
            attempts_max: 3,
            backoff: Backoff::Fixed(Duration::from_secs(10)),
            jitter: Jitter::default(),
        };
        let fire_id = FireId { task: TaskId::floor(NOW), nominal_at: NOW };
        for (guarantee, attempt, outcome, expires_in, want) in [
            (AtLeastOnce, 1, Outcome::Acked, None, Verdict::Done),
            (AtLeastOnce, 3, Outcome::Acked, None, Verdict::Done),
            (AtLeastOnce, 1, failed(None), None, retry_at(10)),
            (AtLeastOnce, 2, failed(None), None, retry_at(10)),
            (AtLeastOnce, 3, failed(None), None, Verdict::Dead(Exhausted)),
            (AtLeastOnce, 1, Outcome::Expired, None, retry_at(10)),
            (AtLeastOnce, 3, Outcome::Expired, None, Verdict::Dead(Exhausted)),
            (AtLeastOnce, 1, refused.clone(), None, Verdict::Dead(Refused)),
            // The receiver's own word on when to come back counts, but not beyond the longest pause,
            (AtLeastOnce, 1, failed(Some(99)), None, retry_at(99)),
            (AtLeastOnce, 1, failed(Some(u64::MAX / 1000)), None, retry_at(30 * 86_400)),
            // and not beyond the last attempt.
            (AtLeastOnce, 3, failed(Some(99)), None, Verdict::Dead(Exhausted)),
            // A retry that would come too late is none.
            (AtLeastOnce, 1, failed(None), Some(11), retry_at(10)),
            (AtLeastOnce, 1, failed(None), Some(10), Verdict::Dead(Expired)),
            (AtLeastOnce, 1, Outcome::Acked, Some(0), Verdict::Done),
            (ExactlyOnce, 1, Outcome::Expired, None, retry_at(10)),
            // At most once is never tried again, whatever is left.
            (AtMostOnce, 1, Outcome::Acked, None, Verdict::Done),
            (AtMostOnce, 1, failed(Some(1)), None, Verdict::Dead(Exhausted)),
            (AtMostOnce, 1, refused, None, Verdict::Dead(Refused)),
            (AtMostOnce, 1, Outcome::Expired, None, Verdict::Dead(Unknown)),
        ] {
            let expires_at = expires_in.map(|secs| NOW.after(Duration::from_secs(secs)));
            let terms = SettleContext { fire_id, retry: &retry, guarantee, expires_at };
            let got = settle(AttemptNo::new(attempt), &outcome, &terms, NOW);
            assert_eq!(got, want, "{guarantee:?}, attempt {attempt}, {outcome:?}, {expires_in:?}");
        }
    }

    #[test]
    fn deciding_again_decides_alike() {
        let retry = RetryPolicy::default();
        let fire_id = FireId { task: TaskId::floor(NOW), nominal_at: NOW };
        let guarantee = Guarantee::AtLeastOnce;
        let terms = SettleContext { fire_id, retry: &retry, guarantee, expires_at: None };
        let decide = || settle(AttemptNo::FIRST, &failed(None), &terms, NOW);
        assert_eq!(decide(), decide());
    }
}
