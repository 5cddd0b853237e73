//! A limit that all namespaces share, and the problem of a caller that finds its share used up.
//!
//! A caller of a namespace that has used up its share waits, if the limit allows that, and is
//! refused with 429 when too many of its namespace wait or when it has waited too long. The other
//! namespaces still find permits.

use std::time::Duration;

use punctual_core::Namespace;
use tokio::time::timeout;

use super::{ShareKey, SharePermit, Shares};
use crate::problem::Problem;

/// How callers may wait for a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitBound {
    /// How many of one namespace may wait.
    pub(crate) callers_max: usize,
    /// How long each of them may wait.
    pub(crate) time_max: Duration,
}

/// A number of permits for all namespaces together.
#[derive(Debug)]
pub(crate) struct ShareLimit {
    shares: Shares,
    total: usize,
    /// What the permits are for, in the plural: `the 8 … of this broker`.
    what: &'static str,
    wait: WaitBound,
}

impl ShareLimit {
    pub(crate) fn new(total: usize, what: &'static str, wait: WaitBound) -> Self {
        Self { shares: Shares::new(total), total, what, wait }
    }

    /// Waits for a permit within the bounds of the limit.
    pub(crate) async fn acquire(&self, namespace: &Namespace) -> Result<SharePermit, Problem> {
        let key = ShareKey::of(namespace.clone());
        if let Some(permit) = self.shares.try_acquire(&key) {
            return Ok(permit);
        }
        if self.shares.count_waiting(&key) >= self.wait.callers_max {
            return Err(self.used_up(namespace));
        }
        let permit = timeout(self.wait.time_max, self.shares.acquire(&key)).await;
        permit.map_err(|_| self.used_up(namespace))
    }

    /// Returns a permit if there is one now.
    pub(crate) fn try_acquire(&self, namespace: &Namespace) -> Result<SharePermit, Problem> {
        let key = ShareKey::of(namespace.clone());
        self.shares.try_acquire(&key).ok_or_else(|| self.used_up(namespace))
    }

    fn used_up(&self, namespace: &Namespace) -> Problem {
        Problem::share_used_up(namespace, self.total, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Namespace {
        Namespace::new(text).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_waits_within_bounds_and_the_refusal_names_the_limit() {
        let wait = WaitBound { callers_max: 1, time_max: Duration::from_secs(10) };
        let limit = ShareLimit::new(4, "lists", wait);
        let used: Vec<_> = std::iter::from_fn(|| limit.try_acquire(&name("hog")).ok()).collect();
        assert_eq!(used.len(), 2, "half of them");
        let hog = name("hog");
        let (first, second) = tokio::join!(limit.acquire(&hog), limit.acquire(&hog));
        for problem in [first.unwrap_err(), second.unwrap_err()] {
            assert_eq!(problem.parts().1.as_u16(), 429);
            assert!(problem.detail().contains("\"hog\""), "{}", problem.detail());
            assert!(problem.detail().contains("the 4 lists"), "{}", problem.detail());
        }
        assert!(limit.acquire(&name("shop")).await.is_ok());
        let (waited, ()) = tokio::join!(limit.acquire(&hog), async { drop(used) });
        assert!(waited.is_ok());
    }
}
