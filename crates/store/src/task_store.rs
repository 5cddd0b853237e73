//! The contract of a task store.
//!
//! The clauses of the conformance suite (`conformance/`) check each rule below.

use std::future::Future;
use std::time::Duration;

use punctual_core::{
    DeadLetter, Epoch, FireId, FireRecord, Namespace, PartitionId, Task, TaskId, TaskKey, Timestamp,
};

use crate::change::Batch;
use crate::counts::{CountedNamespace, Counts};
use crate::due::{DueCounts, DueSteps};
use crate::error::StoreError;
use crate::letter_groups::CountedGroup;
use crate::query::{Filter, FireFilter, FirePosition, Head, Page, Position, Retention, Swept};

/// Keeps tasks until their last fire is settled.
///
/// # Contract
///
/// **Ownership.** A partition has one owner at a time, identified by its epoch (see
/// [`LeaseStore`](crate::LeaseStore)). `apply` and `sweep` succeed only under the epoch that is
/// current in the store. Under any other epoch they return [`StoreError::Fenced`] and change
/// nothing. An owner has at most one `apply` per partition in flight. Reads need no epoch: any
/// broker may read any partition.
///
/// **Atomicity.** A store makes all changes of a batch, in their order, or none of them. No reader
/// and no crash exposes a part of a batch.
///
/// **Durability.** After `apply` returns `Ok`, the batch survives the end of the process, and a
/// crash of the machine as far as the documentation of the store promises. After any error except
/// [`StoreError::Unavailable`], the batch was not made.
///
/// **Repetition.** Batches of an epoch are numbered from 1. If the batch that was made last is sent
/// again under its number, `apply` returns `Ok` and changes nothing. The store compares numbers,
/// not contents. Any other number than the next one returns [`StoreError::Gap`] and changes
/// nothing.
///
/// **Repairs.** An owner whose store has lost batches begins a repair: it sends them again under
/// their numbers and a higher [`Batch::repair`]. Once a store has accepted a batch of a repair, new
/// or sent again, it returns [`StoreError::Fenced`] for every batch of an earlier repair of that
/// epoch, also if its number is the next. A refused batch begins no repair.
///
/// **Order.** Tasks are ordered by `fire_at`, then by id. `fire_at` is the time at which a task is
/// due now, after every postponement and retry.
///
/// **Visibility.** A read that starts after `apply` has returned sees the changes of that batch.
///
/// **Keys.** A key names at most one living task of its namespace. The key is free again when that
/// task ends.
///
/// **No validation.** A store makes the changes that it is given. A change of a task that the store
/// does not have (a postponement, a settlement) changes no task; a record or dead letter that comes
/// with the change is kept, and the counts move as [`count`](crate::count) and
/// [`due_move`](crate::due_move) compute. If an owner refiles a task, or settles it with a `next`,
/// without having put it, the result is unspecified; so are the groups of letters if it sends a
/// letter of a fire of which the store has one.
///
/// **One record per fire.** A later record of the same fire replaces the earlier one.
///
/// **Damage.** A store whose values can be changed by other programs affects as little as it can if
/// it cannot read one. `load`, `list`, `dead` and `namespaces` leave the value out and return all
/// others. Any other read that needs it returns [`StoreError::Damaged`], which names it; without it
/// the same read succeeds. The value stays as it is until a change replaces or removes it.
///
/// **Partitions.** A partition that the store does not have returns [`StoreError::Outside`].
pub trait TaskStore: Send + Sync + 'static {
    /// Makes the changes of a batch durable. Returns when they are.
    fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The same as [`apply`](Self::apply), for a caller whose thread may be blocked for about
    /// `spare` while it polls. A store that writes to a disk may do so on that thread, which is
    /// quicker than a change of thread.
    fn apply_here(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
        _spare: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.apply(partition, epoch, batch)
    }

    /// Returns the scheduled tasks after the position `after` that are due before `until`, in
    /// order, at most `limit`. Paused tasks are not included. Fewer than `limit` tasks means that
    /// there are no more. A task that is due at [`Timestamp::MAX`] is before no `until` and is
    /// never loaded.
    fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Task>, StoreError>> + Send;

    /// Returns the head of the task that each key names, or `None`, in the order of `keys`.
    fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> impl Future<Output = Result<Vec<Option<Head>>, StoreError>> + Send;

    /// Returns each living task, or `None`, in the order of `ids`.
    fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> impl Future<Output = Result<Vec<Option<Task>>, StoreError>> + Send;

    /// Returns the living tasks that match `filter`, in order, after the position `after`, which
    /// may be the position of a task of another partition. A page has at most `limit` tasks, and
    /// may have fewer than there are; see [`Page::next`]. If the filter selects series, the time
    /// that a page takes depends on what it shows and on the series that it leaves out, not on how
    /// many other tasks there are.
    fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> impl Future<Output = Result<Page<Task, Position>, StoreError>> + Send;

    /// Returns the dead letters of a namespace, ordered by fire id, after the fire `after`, which
    /// may be a fire of another partition. A page has at most `limit` letters; see [`Page::next`].
    fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> impl Future<Output = Result<Page<DeadLetter, FireId>, StoreError>> + Send;

    /// Returns the dead letter of each fire, or `None`, in the order of `fire_ids`.
    fn dead_letters(
        &self,
        partition: PartitionId,
        fire_ids: &[FireId],
    ) -> impl Future<Output = Result<Vec<Option<DeadLetter>>, StoreError>> + Send;

    /// Returns the records of the ended fires of a task, latest nominal time first, at most
    /// `limit`, and fewer if they take more than
    /// [`HISTORY_BYTES_MAX`](crate::HISTORY_BYTES_MAX) bytes: the newest of them, the first one in
    /// any case. The task itself may have ended, as long as its records are retained. A fire has
    /// one record: when it is redriven and ends again, the later record replaces the earlier one.
    fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<FireRecord>, StoreError>> + Send;

    /// Returns the ended fires that match `filter`, newest first, after the position `after`, which
    /// may be the position of a fire of another partition. A page has at most `limit` records, and
    /// may have fewer than there are; see [`Page::next`]. The time that a page takes depends on
    /// what it shows, not on how many fires are retained, unless the filter has a label.
    fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> impl Future<Output = Result<Page<FireRecord, FirePosition>, StoreError>> + Send;

    /// Returns, for each key, the record of the fire that ended last among all tasks that had the
    /// key, or `None`, in the order of `keys`. A task that the key names now may have fires that
    /// ended too; a caller asks [`find`](Self::find) first.
    fn last_fires(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> impl Future<Output = Result<Vec<Option<FireRecord>>, StoreError>> + Send;

    /// Returns the number of tasks of a namespace by state. Takes the same time however many tasks
    /// there are.
    fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> impl Future<Output = Result<Counts, StoreError>> + Send;

    /// Returns how many scheduled `once` tasks and watches of a namespace are due in each step, in
    /// the order of the steps; see [`due_move`](crate::due_move). Series are not counted. The time
    /// that it takes depends on the length of the steps together, not on how many tasks there are.
    /// Counts may be missing while a store of an earlier version is counted, see
    /// [`DueCounts::until`].
    fn due_counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> impl Future<Output = Result<DueCounts, StoreError>> + Send;

    /// Returns the groups of the dead letters of a namespace, in any order, at most
    /// [`LetterGroups::COUNT_MAX`](crate::LetterGroups::COUNT_MAX) and one for all others. Takes
    /// the same time however many letters there are. [`StoreError::Unavailable`] while a store of
    /// an earlier version is counted.
    fn letter_groups(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> impl Future<Output = Result<Vec<CountedGroup>, StoreError>> + Send;

    /// Returns the namespaces of which a count is not zero in a partition, each with its counts, in
    /// the order of their names, after the name `after`, which need not exist. A page has at most
    /// `limit` namespaces; see [`Page::next`].
    ///
    /// Counts of ended tasks are kept since the store was created, so a namespace stays in the list
    /// after its last task has ended. Internal namespaces, such as those of receipts, are included.
    /// The time that a page takes depends on what it shows, not on how many tasks there are.
    fn namespaces(
        &self,
        partition: PartitionId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> impl Future<Output = Result<Page<CountedNamespace, Namespace>, StoreError>> + Send;

    /// Deletes history records and dead letters that are past their retention. A store may delete
    /// them in several calls and may keep some longer, but not for ever. It never deletes one that
    /// is not past its retention.
    fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> impl Future<Output = Result<Swept, StoreError>> + Send;
}
