//! The timer of a connection's request heads.
//!
//! hyper starts a timer for the head of every request and drops it when the head has arrived. Each
//! time that would enter a timer into the runtime's wheel and remove it, under a lock that all
//! connections share. Here one timer of the runtime serves all heads of a connection: it is set
//! again only when it fires before the deadline of the present head.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::time::sleep_until;

/// Makes the timers of one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadTimer(SharedSleep);

type SharedSleep = Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>;

/// Ends at its deadline.
struct HeadSleep {
    deadline: Instant,
    shared: SharedSleep,
}

impl Timer for HeadTimer {
    #[expect(clippy::disallowed_methods, reason = "this is a bound of waiting, not a wait")]
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeadSleep { deadline, shared: Arc::clone(&self.0) })
    }
}

impl Sleep for HeadSleep {}

impl HeadSleep {
    fn lock(&self) -> MutexGuard<'_, Option<Pin<Box<tokio::time::Sleep>>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for HeadSleep {
    type Output = ();

    #[expect(clippy::disallowed_methods, reason = "this is a bound of waiting, not a wait")]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = tokio::time::Instant::from_std(self.deadline);
        let mut shared = self.lock();
        let sleep = shared.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        // It was set for an earlier head, so it never fires too late.
        while sleep.as_mut().poll(cx).is_ready() {
            if tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the time of these tests is paused")]
mod tests {
    use tokio::time::{Instant as TokioInstant, timeout};

    use super::*;

    const HEAD: Duration = Duration::from_secs(75);

    #[tokio::test(start_paused = true)]
    async fn each_head_has_its_own_deadline_with_one_timer_for_all() {
        let timer = HeadTimer::default();
        let begun = TokioInstant::now();
        let next = |timer: &HeadTimer| timer.sleep_until((TokioInstant::now() + HEAD).into_std());
        for _ in 0..3 {
            let head = next(&timer);
            let arrived = timeout(Duration::from_secs(50), head).await;
            assert!(arrived.is_err(), "the head arrives in time");
        }
        next(&timer).await;
        let waited = begun.elapsed();
        assert!(waited >= 3 * Duration::from_secs(50) + HEAD, "{waited:?}");
        assert!(waited < 3 * Duration::from_secs(50) + HEAD + Duration::from_secs(1));
    }
}
