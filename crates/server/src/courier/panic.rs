//! Panics of a delivery: a bug of the courier, which its owner learns as the end of the attempt.
//!
//! Without a report the delivery would be in flight until the broker is restarted. It counts as a
//! failed attempt, so that a panic that repeats makes a dead letter and not an endless loop.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use punctual_core::{Guarantee, Outcome, Reason};
use punctual_engine::SendPermit;

/// The future has panicked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Panicked;

/// Runs a future to its end or its panic. The panic hook has logged the message.
pub(super) async fn catch_panic<T>(future: impl Future<Output = T>) -> Result<T, Panicked> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}

/// Returns the outcome of a delivery that has panicked; `None` if the owner has recalled it.
///
/// If an at-most-once delivery may have been received, its outcome is not known.
pub(super) fn outcome_of_panic(permit: &SendPermit, guarantee: Guarantee) -> Option<Outcome> {
    let unsent = permit.give_up();
    if permit.is_recalled() {
        return None;
    }
    Some(match guarantee {
        Guarantee::AtMostOnce if !unsent => Outcome::Expired,
        _ => {
            let reason = Reason::new("internal error of the broker; its log has the cause");
            Outcome::Failed { reason, retry_in: None }
        }
    })
}

#[cfg(test)]
mod tests {
    use punctual_core::Timestamp;
    use punctual_engine::LeaseEnd;

    use super::*;

    #[tokio::test]
    async fn a_panic_at_any_poll_is_caught_and_a_value_returned() {
        assert_eq!(catch_panic(async { 7 }).await, Ok(7));
        for polls in 0..3 {
            let panics = async {
                for _ in 0..polls {
                    tokio::task::yield_now().await;
                }
                panic!("poll {polls}");
            };
            assert_eq!(catch_panic::<()>(panics).await, Err(Panicked), "poll {polls}");
        }
    }

    #[test]
    fn a_panic_fails_the_attempt_unless_at_most_once_may_have_been_received() {
        use Guarantee::{AtLeastOnce, AtMostOnce, ExactlyOnce};
        for (guarantee, sent, fails) in [
            (AtLeastOnce, false, true),
            (AtLeastOnce, true, true),
            (ExactlyOnce, true, true),
            (AtMostOnce, false, true),
            (AtMostOnce, true, false),
        ] {
            let permit = SendPermit::until(LeaseEnd::new(Timestamp::MAX));
            if sent {
                permit.send(Timestamp::from_millis(1)).unwrap();
            }
            let outcome = outcome_of_panic(&permit, guarantee).unwrap();
            let failed = matches!(outcome, Outcome::Failed { .. });
            assert_eq!(failed, fails, "{guarantee:?}, sent: {sent}, {outcome:?}");
            assert!(failed || outcome == Outcome::Expired, "{outcome:?}");
            assert_eq!(permit.send(Timestamp::from_millis(2)).is_ok(), sent, "never sent later");
        }
    }
}
