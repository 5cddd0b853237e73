//! The store: the contract of tasks, passed on to the modules that do the work.

use std::sync::atomic::{AtomicU64, Ordering};

use punctual_core::{
    DeadLetter, Epoch, FireId, FireRecord, Namespace, PartitionId, Partitions, Seat, Task, TaskId,
    TaskKey, Timestamp,
};
use punctual_store::codec::Interner;
use punctual_store::{
    Batch, CountedGroup, CountedNamespace, Counts, DueCounts, DueSteps, EpochTracker, Filter,
    FireFilter, FirePosition, Head, Page, Position, Retention, Rewound, StoreError, Swept,
    TaskStore,
};

use punctual_sql::SqlHost;

use crate::damage::DamagedRows;
use crate::database::{SqlDatabase, SqlRole};
use crate::difference_weights::DifferenceWeights;
use crate::error::store_error;
use crate::mysql::MysqlDatabase;
use crate::postgres::PostgresDatabase;
use crate::values::StatementParam;

/// Tasks, leases and members in a PostgreSQL database that several brokers share.
pub type PostgresStore = SqlStore<PostgresDatabase>;
/// Tasks, leases and members in a MySQL or MariaDB database that several brokers share.
pub type MysqlStore = SqlStore<MysqlDatabase>;

/// Tasks, leases and members in a database that several brokers share.
pub struct SqlStore<D: SqlDatabase> {
    pub(crate) partitions: Partitions,
    pub(crate) cluster: String,
    pub(crate) hosts: Vec<SqlHost>,
    pub(crate) database: D,
    pub(crate) epochs: EpochTracker,
    pub(crate) interner: Interner,
    pub(crate) rewinds: AtomicU64,
    pub(crate) damage: DamagedRows,
    /// Serializes sweeps of this process: each deletes many rows.
    pub(crate) sweeping: tokio::sync::Mutex<()>,
    pub(crate) weights: DifferenceWeights,
}

impl<D: SqlDatabase> std::fmt::Debug for SqlStore<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlStore")
            .field("product", &D::PRODUCT)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl<D: SqlDatabase> SqlStore<D> {
    /// The name of the cluster of brokers that share it.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Runs a statement that reads.
    pub(crate) async fn read(
        &self,
        role: SqlRole,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<Vec<D::Row>, StoreError> {
        self.database.query(role, text, params).await.map_err(store_error::<D>)
    }

    /// Returns the number of partitions.
    #[must_use]
    pub const fn partitions(&self) -> Partitions {
        self.partitions
    }

    /// Returns how often the database lost writes that it had acknowledged. See [`Rewound`].
    #[must_use]
    pub fn rewinds(&self) -> u64 {
        self.rewinds.load(Ordering::Relaxed)
    }

    /// Passes on an epoch that another broker saw, so that the next one is larger even if the
    /// database has lost it.
    pub fn remember_epoch(&self, seat: Seat, epoch: Epoch) {
        self.epochs.observe(seat, epoch);
    }

    /// Returns how many damaged values were found since the store was opened.
    #[must_use]
    pub fn damaged_values(&self) -> u64 {
        self.damage.count() as u64
    }

    /// Returns where one of the damaged values is, if there are any.
    #[must_use]
    pub fn damaged_place(&self) -> Option<String> {
        self.damage.first()
    }

    /// Returns the column `p` of a partition.
    pub(crate) fn column(&self, partition: PartitionId) -> Result<i16, StoreError> {
        let inside = partition.get() < self.partitions.count();
        let column = i16::try_from(partition.get()).ok().filter(|_| inside);
        column.ok_or(StoreError::Outside { partition })
    }

    /// Returns the row of a seat: the leader is row −1.
    pub(crate) fn seat_row(&self, seat: Seat) -> Result<i32, StoreError> {
        match seat {
            Seat::Leader => Ok(-1),
            Seat::Partition(partition) => self.column(partition).map(i32::from),
        }
    }

    pub(crate) fn rewound(&self, rewound: Option<Rewound>) {
        if let Some(rewound) = rewound {
            self.rewinds.fetch_add(1, Ordering::Relaxed);
            let Rewound { partition, ours, current, acknowledged, last } = rewound;
            tracing::error!(
                %partition, %ours, %current, ?acknowledged, ?last,
                "store lost acknowledged batches"
            );
        }
    }
}

impl<D: SqlDatabase> TaskStore for SqlStore<D> {
    async fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        self.write_batch(partition, epoch, batch).await
    }

    async fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        self.read_due(self.column(partition)?, after, until, limit).await
    }

    async fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        self.read_heads(self.column(partition)?, namespace, keys).await
    }

    async fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        self.read_tasks(self.column(partition)?, ids).await
    }

    async fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        self.read_list(self.column(partition)?, filter, after, limit).await
    }

    async fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        self.read_dead(self.column(partition)?, namespace, after, limit).await
    }

    async fn dead_letters(
        &self,
        partition: PartitionId,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        self.read_letters(self.column(partition)?, fire_ids).await
    }

    async fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        self.read_history(self.column(partition)?, id, limit).await
    }

    async fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        self.read_fires(self.column(partition)?, filter, after, limit).await
    }

    async fn last_fires(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        self.read_last_fires(self.column(partition)?, namespace, keys).await
    }

    async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        self.read_counts(self.column(partition)?, namespace).await
    }

    async fn due_counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<DueCounts, StoreError> {
        self.read_due_counts(self.column(partition)?, namespace, steps).await
    }

    async fn letter_groups(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Vec<CountedGroup>, StoreError> {
        self.read_letter_groups(self.column(partition)?, namespace).await
    }

    async fn namespaces(
        &self,
        partition: PartitionId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Page<CountedNamespace, Namespace>, StoreError> {
        self.read_namespaces(self.column(partition)?, after, limit).await
    }

    async fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        self.delete_past(partition, epoch, retention, now).await
    }
}
