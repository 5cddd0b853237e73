//! The owner of a partition, as the clauses use it.
//!
//! It sends batches under the right epoch and number, creates ids, and collects whole results from
//! pages. An unexpected error fails the test here.

use std::collections::BTreeSet;

use punctual_core::{
    DeadLetter, FireId, FireRecord, Lease, LetterGroup, Namespace, PartitionId, Seat, Task, TaskId,
    Timestamp,
};

use super::fixtures::{self, NOW, TTL, TaskBuilder, broker, shop};
use crate::change::{Batch, BatchNo, Change};
use crate::counts::{CountedNamespace, Counts};
use crate::due::{DueCounts, DueSteps};
use crate::error::StoreError;
use crate::lease_store::LeaseStore;
use crate::letter_groups::{CountedGroup, GroupLetters};
use crate::query::{Filter, FireFilter, FirePosition, Head, Position, Retention};
use crate::task_store::TaskStore;

/// The largest number of pages of one read: a cursor that does not move must not hang the tests.
const PAGES_MAX: usize = 100_000;

/// The owner of one partition of a store.
#[derive(Debug)]
pub struct TestOwner<'a, S> {
    store: &'a S,
    state: OwnerState,
}

/// What an owner knows apart from the store: enough to continue with a store that was opened again.
#[derive(Debug, Clone)]
pub struct OwnerState {
    /// The lease of the partition.
    pub lease: Lease,
    /// The partition that it owns.
    pub partition: PartitionId,
    /// The number of the next batch.
    pub number: BatchNo,
    /// The number of ids created so far.
    pub made: u64,
}

impl<'a, S: TaskStore + LeaseStore> TestOwner<'a, S> {
    /// Acquires a partition, each time as the same broker.
    pub async fn take(store: &'a S, partition: PartitionId) -> Self {
        let seat = Seat::Partition(partition);
        let lease = store.acquire(seat, &broker("owner:1"), TTL, NOW).await;
        let state = OwnerState {
            lease: lease.expect("the partition is free"),
            partition,
            number: BatchNo::FIRST,
            made: 0,
        };
        Self { store, state }
    }

    /// Acquires the first partition.
    pub async fn first(store: &'a S) -> Self {
        Self::take(store, PartitionId::FIRST).await
    }

    /// Continues from the state of an owner.
    pub const fn resume(store: &'a S, state: OwnerState) -> Self {
        Self { store, state }
    }

    /// Returns the state of the owner.
    pub fn state(&self) -> OwnerState {
        self.state.clone()
    }

    /// Starts a task with a new id.
    pub fn task(&mut self, due: Timestamp) -> TaskBuilder {
        fixtures::task(self.id(due))
    }

    /// Creates an id.
    pub fn id(&mut self, due: Timestamp) -> TaskId {
        self.state.made += 1;
        let state = &self.state;
        fixtures::id(due, state.partition, state.lease.epoch, state.made)
    }

    /// Stores new tasks.
    pub async fn put(&mut self, tasks: impl IntoIterator<Item = &Task>) {
        let changes = tasks.into_iter().cloned().map(Change::Put).collect();
        self.apply(changes).await;
    }

    /// Makes changes in one batch.
    pub async fn apply(&mut self, changes: Vec<Change>) {
        let answer = self.send(self.state.number, changes).await;
        answer.expect("the owner's next batch is made");
        self.state.number = self.state.number.next();
    }

    /// Sends a batch with the given number. The next number does not change.
    pub async fn send(&self, number: BatchNo, changes: Vec<Change>) -> Result<(), StoreError> {
        self.send_batch(Batch::new(number, changes)).await
    }

    /// Sends a batch. The next number does not change.
    pub async fn send_batch(&self, batch: Batch) -> Result<(), StoreError> {
        let OwnerState { partition, lease, .. } = &self.state;
        self.store.apply(*partition, lease.epoch, batch).await
    }

    /// Loads all scheduled tasks.
    pub async fn load(&self) -> Vec<Task> {
        self.load_between(Position::START, Timestamp::MAX, usize::MAX).await
    }

    /// Returns the ids of all scheduled tasks.
    pub async fn loaded_ids(&self) -> Vec<TaskId> {
        ids(&self.load().await)
    }

    /// Loads scheduled tasks between `after` and `until`.
    pub async fn load_between(&self, after: Position, until: Timestamp, limit: usize) -> Vec<Task> {
        let partition = self.state.partition;
        let tasks = self.store.load(partition, after, until, limit).await;
        tasks.expect("reads need no lease")
    }

    /// Returns a task by id.
    pub async fn get(&self, id: TaskId) -> Option<Task> {
        let tasks = self.store.get(self.state.partition, &[id]).await;
        let tasks = tasks.expect("reads need no lease");
        assert_eq!(tasks.len(), 1, "one answer for one id");
        tasks.into_iter().next().flatten()
    }

    /// Returns the head of the task that a key of [`shop`] names.
    pub async fn find(&self, key: &str) -> Option<Head> {
        self.find_in(&shop(), key).await
    }

    /// Returns the head of the task that a key names.
    pub async fn find_in(&self, namespace: &Namespace, key: &str) -> Option<Head> {
        let keys = [fixtures::key(key)];
        let found = self.store.find(self.state.partition, namespace, &keys);
        let heads = found.await.expect("reads need no lease");
        assert_eq!(heads.len(), 1, "one answer for one key");
        heads.into_iter().next().flatten()
    }

    /// Lists all living tasks of [`shop`].
    pub async fn list(&self) -> Vec<Task> {
        self.list_by(&Filter::all(shop()), 100).await
    }

    /// Lists all tasks that match, with pages of `limit`.
    pub async fn list_by(&self, filter: &Filter, limit: usize) -> Vec<Task> {
        self.list_after(filter, Position::START, limit).await
    }

    /// Lists all tasks that match after a position, with pages of `limit`.
    pub async fn list_after(
        &self,
        filter: &Filter,
        mut after: Position,
        limit: usize,
    ) -> Vec<Task> {
        let partition = self.state.partition;
        let mut tasks = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = self.store.list(partition, filter, after, limit).await;
            let page = page.expect("reads need no lease");
            assert!(page.items.len() <= limit, "a page has at most its limit");
            tasks.extend(page.items);
            let Some(next) = page.next else {
                assert_once(tasks.iter().map(|task| task.id));
                return tasks;
            };
            assert!(next > after, "a page ends after it begins");
            after = next;
        }
        unreachable!("the pages have an end")
    }

    /// Lists all dead letters of [`shop`].
    pub async fn dead(&self) -> Vec<DeadLetter> {
        self.dead_of(&shop(), 100).await
    }

    /// Lists all dead letters of a namespace, with pages of `limit`.
    pub async fn dead_of(&self, namespace: &Namespace, limit: usize) -> Vec<DeadLetter> {
        self.dead_after(namespace, None, limit).await
    }

    /// Lists all dead letters after a fire, with pages of `limit`.
    pub async fn dead_after(
        &self,
        namespace: &Namespace,
        mut after: Option<FireId>,
        limit: usize,
    ) -> Vec<DeadLetter> {
        let partition = self.state.partition;
        let mut letters = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = self.store.dead(partition, namespace, after, limit).await;
            let page = page.expect("reads need no lease");
            assert!(page.items.len() <= limit, "a page has at most its limit");
            letters.extend(page.items);
            let Some(next) = page.next else {
                assert_once(letters.iter().map(DeadLetter::fire_id));
                return letters;
            };
            assert!(Some(next) > after, "a page ends after it begins");
            after = Some(next);
        }
        unreachable!("the pages have an end")
    }

    /// Returns a dead letter.
    pub async fn dead_letter(&self, fire_id: FireId) -> Option<DeadLetter> {
        let letters = self.dead_letters(&[fire_id]).await;
        letters.into_iter().next().expect("an answer for each fire")
    }

    /// Returns dead letters, in the order of the fires.
    pub async fn dead_letters(&self, fire_ids: &[FireId]) -> Vec<Option<DeadLetter>> {
        let letters = self.store.dead_letters(self.state.partition, fire_ids);
        letters.await.expect("reads need no lease")
    }

    /// Returns all records of a task.
    pub async fn history(&self, id: TaskId) -> Vec<FireRecord> {
        self.history_of(id, usize::MAX).await
    }

    /// Returns the newest records of a task.
    pub async fn history_of(&self, id: TaskId, limit: usize) -> Vec<FireRecord> {
        let records = self.store.history(self.state.partition, id, limit);
        records.await.expect("reads need no lease")
    }

    /// Lists all ended fires that match, with pages of `limit`.
    pub async fn fires(&self, filter: &FireFilter, limit: usize) -> Vec<FireRecord> {
        self.fires_after(filter, None, limit).await
    }

    /// Lists all ended fires that match after a position, with pages of `limit`.
    pub async fn fires_after(
        &self,
        filter: &FireFilter,
        mut after: Option<FirePosition>,
        limit: usize,
    ) -> Vec<FireRecord> {
        let mut records = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = self.store.fires(self.state.partition, filter, after, limit).await;
            let page = page.expect("reads need no lease");
            assert!(page.items.len() <= limit, "a page has at most its limit");
            records.extend(page.items);
            let Some(next) = page.next else {
                assert_once(records.iter().map(|record| record.fire_id));
                return records;
            };
            assert!(after.is_none_or(|after| next < after), "a page ends after it begins");
            after = Some(next);
        }
        unreachable!("the pages have an end")
    }

    /// Returns the record of the fire of a key of [`shop`] that ended last.
    pub async fn last_fire(&self, key: &str) -> Option<FireRecord> {
        let (namespace, keys) = (shop(), [fixtures::key(key)]);
        let found = self.store.last_fires(self.state.partition, &namespace, &keys);
        let records = found.await.expect("reads need no lease");
        assert_eq!(records.len(), 1, "one answer for one key");
        records.into_iter().next().flatten()
    }

    /// Returns the counts of [`shop`].
    pub async fn counts(&self) -> Counts {
        self.counts_of(&shop()).await
    }

    /// Returns the counts of a namespace.
    pub async fn counts_of(&self, namespace: &Namespace) -> Counts {
        let counts = self.store.counts(self.state.partition, namespace);
        counts.await.expect("reads need no lease")
    }

    /// Returns the due counts of [`shop`].
    pub async fn due_counts(&self, steps: &DueSteps) -> Vec<i64> {
        self.due_counts_of(&shop(), steps).await
    }

    /// Returns the due counts of a namespace.
    pub async fn due_counts_of(&self, namespace: &Namespace, steps: &DueSteps) -> Vec<i64> {
        let counts = self.store.due_counts(self.state.partition, namespace, steps).await;
        let DueCounts { tasks, until } = counts.expect("reads need no lease");
        assert_eq!(until, None, "all of so few tasks are counted");
        tasks
    }

    /// Returns the groups of the dead letters of a namespace.
    pub async fn letter_groups_of(&self, namespace: &Namespace) -> Vec<CountedGroup> {
        let groups = self.store.letter_groups(self.state.partition, namespace).await;
        groups.expect("reads need no lease")
    }

    /// Returns the letters of one group.
    pub async fn letter_group(&self, group: &LetterGroup) -> Option<GroupLetters> {
        let groups = self.letter_groups_of(&shop()).await;
        groups.into_iter().find(|counted| counted.group == *group).map(|counted| counted.letters)
    }

    /// Returns the numbers of letters of all groups, smallest first.
    pub async fn letter_group_counts(&self) -> Vec<u64> {
        let groups = self.letter_groups_of(&shop()).await;
        let mut counts: Vec<u64> = groups.iter().map(|counted| counted.letters.count).collect();
        counts.sort_unstable();
        counts
    }

    /// Sweeps, and returns how many dead letters were deleted.
    pub async fn sweep(&self, retention: Retention, now: Timestamp) -> u64 {
        let epoch = self.state().lease.epoch;
        let swept = self.store.sweep(self.state.partition, epoch, retention, now).await;
        swept.expect("the owner may sweep").dead
    }

    /// Lists all namespaces after a name, with pages of `limit`.
    pub async fn namespaces_after(
        &self,
        mut after: Option<Namespace>,
        limit: usize,
    ) -> Vec<CountedNamespace> {
        let mut namespaces = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = self.store.namespaces(self.state.partition, after.as_ref(), limit).await;
            let page = page.expect("reads need no lease");
            assert!(page.items.len() <= limit, "a page has at most its limit");
            namespaces.extend(page.items);
            let Some(next) = page.next else {
                assert_once(namespaces.iter().map(|counted| &counted.name));
                return namespaces;
            };
            assert!(Some(&next) > after.as_ref(), "a page ends after it begins");
            after = Some(next);
        }
        unreachable!("the pages have an end")
    }
}

/// Returns the ids of tasks, in their order.
#[must_use]
pub fn ids(tasks: &[Task]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id).collect()
}

fn assert_once<T: Ord + Copy>(items: impl Iterator<Item = T> + Clone) {
    let different: BTreeSet<T> = items.clone().collect();
    assert_eq!(different.len(), items.count(), "pages visit everything exactly once");
}
