//! Divides the concurrency of a worker between its sessions.
//!
//! Each session has a share of at least one. Brokers learn of new shares one after the other, so
//! for a moment more deliveries may arrive than there should be; permits ensure that never more
//! handlers run than the concurrency. A run of a broker has one session, the first one, because a
//! broker may have several addresses.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

/// The number of a session of a worker.
pub(super) type SessionNumber = u64;

#[derive(Debug)]
pub(super) struct ConcurrencyShares {
    concurrency: u32,
    handlers: Semaphore,
    /// Sessions with an open stream, and the run of the broker of each.
    runs: Mutex<BTreeMap<SessionNumber, String>>,
    changed: watch::Sender<()>,
}

impl ConcurrencyShares {
    pub(super) fn new(concurrency: u32) -> Self {
        let handlers = Semaphore::new(usize::try_from(concurrency).unwrap_or(usize::MAX >> 3));
        let (runs, changed) = (Mutex::default(), watch::Sender::new(()));
        Self { concurrency, handlers, runs, changed }
    }

    /// Records that a session is with a run of a broker. Returns false if another session is.
    pub(super) fn claim(&self, number: SessionNumber, run: &str) -> bool {
        {
            let mut runs = self.runs();
            // A broker that does not name its run counts as a separate one.
            let held = |(other, held): (&SessionNumber, &String)| *other != number && held == run;
            if !run.is_empty() && runs.iter().any(held) {
                return false;
            }
            runs.insert(number, run.to_owned());
        }
        self.changed.send_replace(());
        true
    }

    /// Records that the stream of a session has ended.
    pub(super) fn release(&self, number: SessionNumber) {
        if self.runs().remove(&number).is_some() {
            self.changed.send_replace(());
        }
    }

    /// Watches changes of the sessions.
    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Whether a session is with this run of a broker.
    pub(super) fn has(&self, run: &str) -> bool {
        self.runs().values().any(|held| held == run)
    }

    /// How many deliveries a session may have in flight, even before its stream is open. At least
    /// one.
    pub(super) fn share_of(&self, number: SessionNumber) -> u32 {
        let runs = self.runs();
        let others = runs.keys().filter(|other| **other != number).count();
        let before = runs.keys().filter(|other| **other < number).count();
        let [others, before] = [others, before].map(|count| u32::try_from(count).unwrap_or(0));
        let (share, rest) = (self.concurrency / (others + 1), self.concurrency % (others + 1));
        (share + u32::from(before < rest)).max(1)
    }

    /// Whether no other session has an open stream.
    pub(super) fn is_alone(&self, number: SessionNumber) -> bool {
        self.runs().keys().all(|other| *other == number)
    }

    /// Acquires permits for handlers, if there are enough for all. They must be given back.
    pub(super) fn try_take(&self, count: usize) -> bool {
        let acquired = u32::try_from(count).map(|count| self.handlers.try_acquire_many(count));
        match acquired {
            Ok(Ok(permits)) => {
                permits.forget();
                true
            }
            _ => false,
        }
    }

    /// Waits for permits for handlers, no more than the concurrency. They must be given back.
    pub(super) async fn take(&self, count: u32) {
        if let Ok(permits) = self.handlers.acquire_many(count).await {
            permits.forget();
        }
    }

    pub(super) fn give_back(&self, count: usize) {
        self.handlers.add_permits(count);
    }

    /// A panic of another thread leaves it consistent, so poisoning is ignored.
    fn runs(&self) -> MutexGuard<'_, BTreeMap<SessionNumber, String>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_concurrency_and_each_is_at_least_one() {
        for (concurrency, sessions, want) in [
            (64, 1, vec![64]),
            (64, 3, vec![22, 21, 21]),
            (2, 3, vec![1, 1, 1]),
            (5, 5, vec![1, 1, 1, 1, 1]),
        ] {
            let shares = ConcurrencyShares::new(concurrency);
            for number in 0..sessions {
                assert!(shares.claim(number, &format!("run-{number}")));
            }
            let got: Vec<u32> = (0..sessions).map(|number| shares.share_of(number)).collect();
            assert_eq!(got, want, "{concurrency} over {sessions}");
        }
        let shares = ConcurrencyShares::new(64);
        shares.claim(0, "a");
        assert_eq!(shares.share_of(1), 32, "a session without a stream counts itself");
        shares.release(0);
        assert_eq!(shares.share_of(1), 64);
    }

    #[test]
    fn a_run_of_a_broker_has_one_session() {
        let shares = ConcurrencyShares::new(1);
        assert!(shares.claim(1, "a") && shares.claim(1, "a"));
        assert!(!shares.claim(2, "a"));
        assert!(shares.claim(2, "") && shares.claim(3, ""), "these do not name their run");
        shares.release(1);
        assert!(!shares.has("a") && shares.claim(4, "a"));
    }

    #[test]
    fn no_more_permits_are_given_than_the_concurrency() {
        let shares = ConcurrencyShares::new(3);
        assert!(shares.try_take(2) && !shares.try_take(2));
        shares.give_back(2);
        assert!(shares.try_take(3));
    }
}
