//! Shares: permits for a limited resource that all namespaces use.
//!
//! A namespace that uses up its share waits, and the others still find permits: `fair_queue` has
//! the rule. [`Shares`] is for resources that are only counted, such as lookups of host names and
//! large request bodies; the pool of connections (`courier/webhook/connections.rs`) uses the queue
//! itself. A [`ShareLimit`] also refuses: it bounds how many wait and for how long, and the answer
//! names the limit.

mod fair_queue;
mod limit;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

pub(crate) use fair_queue::{FairQueue, ShareKey};
pub(crate) use limit::{ShareLimit, WaitBound};

/// Permits that namespaces take in turns. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Shares(Arc<Mutex<FairQueue<SharePermit>>>);

/// One permit, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct SharePermit {
    shares: Shares,
    key: ShareKey,
}

impl Shares {
    pub(crate) fn new(total: usize) -> Self {
        Self(Arc::new(Mutex::new(FairQueue::new(total))))
    }

    /// Waits for a permit. Nothing is lost if the future is dropped.
    pub(crate) async fn acquire(&self, key: &ShareKey) -> SharePermit {
        loop {
            let (sender, receiver) = oneshot::channel();
            self.lock().enqueue(key, sender);
            self.serve_waiting();
            if let Ok(permit) = receiver.await {
                return permit;
            }
        }
    }

    /// Returns a permit if there is one for this key now.
    pub(crate) fn try_acquire(&self, key: &ShareKey) -> Option<SharePermit> {
        let (sender, mut receiver) = oneshot::channel();
        self.lock().enqueue(key, sender);
        self.serve_waiting();
        receiver.try_recv().ok()
    }

    /// Returns how many wait under a key.
    pub(crate) fn count_waiting(&self, key: &ShareKey) -> usize {
        self.lock().count_waiting(key)
    }

    /// Gives permits to those that wait, as far as there are any.
    fn serve_waiting(&self) {
        loop {
            let next = {
                let mut queue = self.lock();
                queue.next().map(|key| (queue.take(&key), key))
            };
            // Sent without the lock: if the receiver is gone, dropping the permit takes the lock.
            match next {
                Some((Some(waiter), key)) => {
                    drop(waiter.send(SharePermit { shares: self.clone(), key }));
                }
                _ => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, FairQueue<SharePermit>> {
        // Every update is a single step, so the value is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharePermit {
    fn drop(&mut self) {
        self.shares.lock().release(&self.key);
        self.shares.serve_waiting();
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Namespace;

    use super::*;

    fn key(namespace: &str) -> ShareKey {
        ShareKey::of(Namespace::new(namespace).unwrap())
    }

    #[tokio::test]
    async fn a_permit_that_is_dropped_serves_the_next_that_waits() {
        let shares = Shares::new(2);
        let first = shares.acquire(&key("a")).await;
        let waiting = tokio::spawn({
            let shares = shares.clone();
            async move { drop(shares.acquire(&key("a")).await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "a has half of two");
        drop(shares.acquire(&key("b")).await);
        drop(first);
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn a_permit_is_had_at_once_or_not_at_all() {
        let shares = Shares::new(2);
        let first = shares.try_acquire(&key("a")).unwrap();
        assert!(shares.try_acquire(&key("a")).is_none(), "a has half of two");
        assert!(shares.try_acquire(&key("b")).is_some());
        assert_eq!(shares.count_waiting(&key("a")), 0, "one that was refused does not wait");
        drop(first);
        assert!(shares.try_acquire(&key("a")).is_some());
    }

    #[tokio::test]
    async fn a_caller_that_no_longer_waits_takes_no_permit() {
        let shares = Shares::new(2);
        let first = shares.acquire(&key("a")).await;
        let waiting = tokio::spawn({
            let shares = shares.clone();
            async move { drop(shares.acquire(&key("a")).await) }
        });
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.is_err());
        drop(first);
        drop(shares.acquire(&key("a")).await);
    }
}
