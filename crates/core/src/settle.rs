//! Settling: decides what becomes of a fire when an attempt has an outcome.
//!
//! A courier reports an [`Outcome`]; [`settle`] turns it into a [`Verdict`], which the engine
//! writes to the store. The same arguments give the same verdict on every broker, before and after
//! a crash.

use crate::attempt::{AttemptNo, Outcome};
use crate::dead::DeadReason;
use crate::limits::BACKOFF_MAX;
use crate::{FireId, Guarantee, RetryPolicy, Timestamp};

/// What [`settle`] needs to know about a fire.
#[derive(Debug, Clone, Copy)]
pub struct SettleContext<'a> {
    /// Determines the jitter of the backoff.
    pub fire_id: FireId,
    /// How often it may be attempted, and when.
    pub retry: &'a RetryPolicy,
    /// How often it may be received.
    pub guarantee: Guarantee,
    /// No attempt starts at or after this time.
    pub expires_at: Option<Timestamp>,
}

/// What becomes of a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The fire succeeded.
    Done,
    /// The next attempt is due at this time.
    RetryAt(Timestamp),
    /// The fire becomes a dead letter.
    Dead(DeadReason),
}

/// Decides what becomes of a fire after `attempt` has ended with `outcome`. Attempts are counted
/// from the last redrive.
#[must_use]
pub fn settle(
    attempt: AttemptNo,
    outcome: &Outcome,
    context: &SettleContext<'_>,
    now: Timestamp,
) -> Verdict {
    let retry_in = match (outcome, context.guarantee) {
        (Outcome::Acked, _) => return Verdict::Done,
        (Outcome::Refused { .. }, _) => return Verdict::Dead(DeadReason::Refused),
        // The delivery may have arrived, so it must not be sent again.
        (Outcome::Expired, Guarantee::AtMostOnce) => return Verdict::Dead(DeadReason::Unknown),
        (Outcome::Failed { .. }, Guarantee::AtMostOnce) => {
            return Verdict::Dead(DeadReason::Exhausted);
        }
        (Outcome::Failed { retry_in, .. }, _) => *retry_in,
        (Outcome::Expired, _) => None,
    };
    if attempt.get() >= u32::from(context.retry.attempts_max) {
        return Verdict::Dead(DeadReason::Exhausted);
    }
    // A pause that the receiver asks for replaces the backoff, up to the longest backoff.
    let pause = retry_in
        .map(|pause| pause.min(BACKOFF_MAX))
        .unwrap_or_else(|| context.retry.pause_after(attempt, context.fire_id.entropy(attempt)));
    let retry_at = now.after(pause);
    if context.expires_at.is_some_and(|expires_at| retry_at >= expires_at) {
        return Verdict::Dead(DeadReason::Expired);
    }
    Verdict::RetryAt(retry_at)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::attempt::Reason;
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
            // The receiver may choose the pause, but not beyond the longest one,
            (AtLeastOnce, 1, failed(Some(99)), None, retry_at(99)),
            (AtLeastOnce, 1, failed(Some(u64::MAX / 1000)), None, retry_at(30 * 86_400)),
            // and not beyond the last attempt.
            (AtLeastOnce, 3, failed(Some(99)), None, Verdict::Dead(Exhausted)),
            // No retry is made after the fire has expired.
            (AtLeastOnce, 1, failed(None), Some(11), retry_at(10)),
            (AtLeastOnce, 1, failed(None), Some(10), Verdict::Dead(Expired)),
            (AtLeastOnce, 1, Outcome::Acked, Some(0), Verdict::Done),
            (ExactlyOnce, 1, Outcome::Expired, None, retry_at(10)),
            // At most once: never retried.
            (AtMostOnce, 1, Outcome::Acked, None, Verdict::Done),
            (AtMostOnce, 1, failed(Some(1)), None, Verdict::Dead(Exhausted)),
            (AtMostOnce, 1, refused, None, Verdict::Dead(Refused)),
            (AtMostOnce, 1, Outcome::Expired, None, Verdict::Dead(Unknown)),
        ] {
            let expires_at = expires_in.map(|secs| NOW.after(Duration::from_secs(secs)));
            let context = SettleContext { fire_id, retry: &retry, guarantee, expires_at };
            let got = settle(AttemptNo::new(attempt), &outcome, &context, NOW);
            assert_eq!(got, want, "{guarantee:?}, attempt {attempt}, {outcome:?}, {expires_in:?}");
        }
    }

    #[test]
    fn the_same_facts_give_the_same_verdict() {
        let retry = RetryPolicy::default();
        let fire_id = FireId { task: TaskId::floor(NOW), nominal_at: NOW };
        let guarantee = Guarantee::AtLeastOnce;
        let context = SettleContext { fire_id, retry: &retry, guarantee, expires_at: None };
        let decide = || settle(AttemptNo::FIRST, &failed(None), &context, NOW);
        assert_eq!(decide(), decide());
    }
}
