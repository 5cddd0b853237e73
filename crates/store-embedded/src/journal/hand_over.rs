//! Handing over: outcomes go to the store, in order, on one of two threads.
//!
//! In: groups of outcomes from the `writer`. Out: one call of `on_durable` for each. A group is handed over on a thread of its own, so
//! that the next one can be written meanwhile. If nothing waits to be written, and nothing to be handed over, a small group is handed over by
//! the writer itself: waking another thread takes longer than the group does, and whoever waits for it would wait for that too.
//! Invariant: a group is handed over when all before it are.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::{CommitNo, JournalError};

/// Groups that may wait to be handed over while one is: more would only hide a slow store.
const GROUPS_WAITING_MAX: usize = 1;

/// One accepted entry and what became of it.
pub(super) type Outcome<T> = (Result<CommitNo, JournalError>, T);

/// What the store does with an outcome.
type OnDurable<T> = dyn FnMut(Result<CommitNo, &JournalError>, T) + Send;

/// The writer's way to the store.
pub(super) struct HandOver<T> {
    store: Arc<Store<T>>,
    groups: SyncSender<Vec<Outcome<T>>>,
}

/// The thread's part.
pub(super) struct Groups<T> {
    store: Arc<Store<T>>,
    groups: Receiver<Vec<Outcome<T>>>,
}

/// The thread that hands over has panicked, and has broken the journal.
#[derive(Debug)]
pub(super) struct Gone;

struct Store<T> {
    on_durable: Mutex<Box<OnDurable<T>>>,
    /// Groups that the thread has not done yet.
    groups_waiting: AtomicUsize,
}

/// Both ends.
pub(super) fn hand_over<T>(
    on_durable: impl FnMut(Result<CommitNo, &JournalError>, T) + Send + 'static,
) -> (HandOver<T>, Groups<T>) {
    let (sender, receiver) = sync_channel(GROUPS_WAITING_MAX);
    let on_durable = Mutex::new(Box::new(on_durable) as Box<OnDurable<T>>);
    let store = Arc::new(Store { on_durable, groups_waiting: AtomicUsize::new(0) });
    (HandOver { store: Arc::clone(&store), groups: sender }, Groups { store, groups: receiver })
}

impl<T> HandOver<T> {
    /// Hands a group over here if nothing before it waits, and returns when that is done.
    pub(super) fn here(&self, group: Vec<Outcome<T>>) -> Result<(), Gone> {
        if self.store.groups_waiting.load(Ordering::Acquire) > 0 {
            return self.there(group);
        }
        self.store.take(group);
        Ok(())
    }

    /// Leaves a group to the thread. Waits while that is behind.
    pub(super) fn there(&self, group: Vec<Outcome<T>>) -> Result<(), Gone> {
        self.store.groups_waiting.fetch_add(1, Ordering::AcqRel);
        self.groups.send(group).map_err(|_| Gone)
    }
}

impl<T> Groups<T> {
    /// The thread: until the writer is gone.
    pub(super) fn run(self) {
        for group in self.groups {
            self.store.take(group);
            self.store.groups_waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl<T> Store<T> {
    fn take(&self, group: Vec<Outcome<T>>) {
        // A panic in it has broken the journal; who comes later is refused by what it left.
        let mut on_durable = self.on_durable.lock().unwrap_or_else(PoisonError::into_inner);
        for (outcome, item) in group {
            on_durable(outcome.as_ref().copied(), item);
        }
    }
}

impl<T> fmt::Debug for HandOver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    fn group(commits: std::ops::Range<u64>) -> Vec<Outcome<u64>> {
        commits.map(|commit| (Ok(CommitNo(commit)), commit)).collect()
    }

    #[test]
    fn a_group_that_nothing_waits_before_is_handed_over_at_once() {
        let (sender, handed) = channel();
        let (hand_over, _groups) = hand_over(move |_, item: u64| sender.send(item).unwrap());
        hand_over.here(group(1..4)).unwrap();
        assert_eq!(handed.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn no_group_overtakes_one_that_is_left_to_the_thread() {
        let (sender, handed) = channel();
        let (hand_over, groups) = hand_over(move |_, item: u64| sender.send(item).unwrap());
        hand_over.there(group(1..4)).unwrap();
        let writer = thread::spawn(move || hand_over.here(group(4..6)));
        // Whatever the writer does meanwhile, the thread has not begun.
        assert!(handed.try_recv().is_err());
        groups.run();
        writer.join().unwrap().unwrap();
        assert_eq!(handed.try_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }
}
