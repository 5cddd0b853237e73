//! The contract of a task store.

use std::future::Future;

use punctual_core::{
    DeadLetter, Epoch, FireId, FireRecord, Namespace, PartitionId, Task, TaskId, TaskKey, Timestamp,
};

use crate::change::Batch;
use crate::counts::Counts;
use crate::error::StoreError;
use crate::query::{Filter, Head, Page, Position, Retention, Swept};

/// Keeps tasks until they are settled.
///
/// # Contract
///
/// **Ownership.** Each partition has one owner, told apart by its epoch (see
/// [`LeaseStore`](crate::LeaseStore)). `apply` and `sweep` write only under the epoch that is current in the store, and
/// refuse any other as [`StoreError::Fenced`], changing nothing. The owner has at most one `apply` per
/// partition under way. Anybody may read.
///
/// **Atomicity.** All changes of a batch are made, in their order, or none is; no reader and no crash sees
/// a part of one.
///
/// **Durability.** When `apply` has answered `Ok`, the batch outlives the process, and the machine too as far
/// as the store's documentation promises. When it has answered an error other than `Unavailable`, the
/// batch was not made.
///
/// **Repetition.** Batches of an epoch are numbered from 1. The number that was last made, sent again, answers `Ok`
/// and changes nothing. Any other number than the next is refused as [`StoreError::Gap`].
///
/// **Order.** Tasks have one order: by `fire_at`, then by id. `fire_at` is the time at which a task is due now,
/// after every postponement and retry.
///
/// **Reads see writes.** A read that starts after an `apply` has answered sees its changes.
///
/// **Names.** A key names at most one living task of its namespace. It is free when that task ends.
///
/// **No thinking.** A store makes the changes that it is given. A change about a task that it does not have (a
/// postponement, a settlement) changes no task; a record or letter that comes with it is kept, and the counts move
/// as [`count`](crate::count) says. What becomes of a task that an owner refiles, or says how it goes
/// on, without having put it is not promised.
///
/// **One record per fire.** A later record of a fire takes the place of an earlier one.
pub trait TaskStore: Send + Sync + 'static {
    /// Makes the changes of a batch, durably.
    fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Scheduled tasks after a position and due before `until`, in order, at most `limit`. Paused tasks are not
    /// among them. Fewer than `limit` means that there are no more. What is due at the last instant of all time
    /// is before no `until`, and so never loaded.
    fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Task>, StoreError>> + Send;

    /// What keys lead to, in the order of the keys.
    fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> impl Future<Output = Result<Vec<Option<Head>>, StoreError>> + Send;

    /// Living tasks by id, in the order of the ids.
    fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> impl Future<Output = Result<Vec<Option<Task>>, StoreError>> + Send;

    /// Returns the living tasks that pass a filter, in order, beginning after a position, which may be that of a task
    /// of another partition.
    fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> impl Future<Output = Result<Page<Task, Position>, StoreError>> + Send;

    /// Returns the dead letters of a namespace in the order of their fire ids, beginning after `after`, which may be a
    /// fire of another partition.
    fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> impl Future<Output = Result<Page<DeadLetter, FireId>, StoreError>> + Send;

    /// One dead letter.
    fn dead_letter(
        &self,
        partition: PartitionId,
        fire_id: FireId,
    ) -> impl Future<Output = Result<Option<DeadLetter>, StoreError>> + Send;

    /// The fires of a task that have ended, newest (by nominal time) first, at most `limit`. Also of a task that
    /// has ended itself, as long as its records are kept. A fire has one record: when it is redriven and ends again,
    /// the later one takes the place of the earlier.
    fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<FireRecord>, StoreError>> + Send;

    /// How many tasks of a namespace are in which state. Takes the same time however many there are.
    fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> impl Future<Output = Result<Counts, StoreError>> + Send;

    /// Deletes history and dead letters that are past their retention. May keep some for longer, though not for ever,
    /// and never deletes one that is not.
    fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> impl Future<Output = Result<Swept, StoreError>> + Send;
}
