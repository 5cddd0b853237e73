//! Completion: the store learns what became of its entries, in order, on one of two threads.
//!
//! The `writer` passes groups of finished entries; each entry leads to one call of `on_durable`. A
//! thread of its own makes these calls, so that the writer can write the next group meanwhile. If
//! no entry waits to be written and no group waits here, the writer makes the calls for a small
//! group itself: waking the other thread takes longer than the calls do.
//! A group is completed only after all groups before it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::commit::CommitNo;
use super::error::JournalError;

/// Groups that may wait while another is completed: more would only hide a slow store.
const GROUPS_WAITING_MAX: usize = 1;

/// What became of one accepted entry, and its item.
pub(super) type Completion<T> = (Result<CommitNo, JournalError>, T);

/// What the store does with a completion.
type OnDurable<T> = dyn FnMut(Result<CommitNo, &JournalError>, T) + Send;

/// The writer's end.
pub(super) struct CompletionSender<T> {
    sink: Arc<CompletionSink<T>>,
    groups: SyncSender<Vec<Completion<T>>>,
}

/// The thread's end.
pub(super) struct CompletionReceiver<T> {
    sink: Arc<CompletionSink<T>>,
    groups: Receiver<Vec<Completion<T>>>,
}

/// The completing thread has panicked, which has broken the journal.
#[derive(Debug)]
pub(super) struct ReceiverGone;

/// The callback of the store, used by both ends.
struct CompletionSink<T> {
    on_durable: Mutex<Box<OnDurable<T>>>,
    /// Groups that the thread has not completed yet.
    groups_waiting: AtomicUsize,
}

/// Both ends.
pub(super) fn completion_channel<T>(
    on_durable: impl FnMut(Result<CommitNo, &JournalError>, T) + Send + 'static,
) -> (CompletionSender<T>, CompletionReceiver<T>) {
    let (sender, receiver) = sync_channel(GROUPS_WAITING_MAX);
    let on_durable = Mutex::new(Box::new(on_durable) as Box<OnDurable<T>>);
    let sink = Arc::new(CompletionSink { on_durable, groups_waiting: AtomicUsize::new(0) });
    (
        CompletionSender { sink: Arc::clone(&sink), groups: sender },
        CompletionReceiver { sink, groups: receiver },
    )
}

impl<T> CompletionSender<T> {
    /// Completes a group on this thread if no earlier group waits, otherwise sends it.
    pub(super) fn complete_now(&self, group: Vec<Completion<T>>) -> Result<(), ReceiverGone> {
        if self.sink.groups_waiting.load(Ordering::Acquire) > 0 {
            return self.send(group);
        }
        self.sink.complete(group);
        Ok(())
    }

    /// Leaves a group to the thread. Waits while the thread is behind.
    pub(super) fn send(&self, group: Vec<Completion<T>>) -> Result<(), ReceiverGone> {
        self.sink.groups_waiting.fetch_add(1, Ordering::AcqRel);
        self.groups.send(group).map_err(|_| ReceiverGone)
    }
}

impl<T> CompletionReceiver<T> {
    /// The thread: runs until the sender is dropped.
    pub(super) fn run(self) {
        for group in self.groups {
            self.sink.complete(group);
            self.sink.groups_waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl<T> CompletionSink<T> {
    fn complete(&self, group: Vec<Completion<T>>) {
        // A panic in the callback has broken the journal; later entries are refused for that.
        let mut on_durable = self.on_durable.lock().unwrap_or_else(PoisonError::into_inner);
        for (outcome, item) in group {
            on_durable(outcome.as_ref().copied(), item);
        }
    }
}

impl<T> fmt::Debug for CompletionSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionSender").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    fn group(commits: std::ops::Range<u64>) -> Vec<Completion<u64>> {
        commits.map(|commit| (Ok(CommitNo(commit)), commit)).collect()
    }

    #[test]
    fn a_group_is_completed_at_once_if_no_group_waits() {
        let (items, completed) = channel();
        let (sender, _receiver) = completion_channel(move |_, item: u64| items.send(item).unwrap());
        sender.complete_now(group(1..4)).unwrap();
        assert_eq!(completed.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn no_group_overtakes_one_that_was_sent_to_the_thread() {
        let (items, completed) = channel();
        let (sender, receiver) = completion_channel(move |_, item: u64| items.send(item).unwrap());
        sender.send(group(1..4)).unwrap();
        let writer = thread::spawn(move || sender.complete_now(group(4..6)));
        // The thread has not started, so the writer must not have completed its group.
        assert!(completed.try_recv().is_err());
        receiver.run();
        writer.join().unwrap().unwrap();
        assert_eq!(completed.try_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }
}
