//! What a store needs of its database: the seam between the store, which decides, and the dialects
//! `postgres` and `mysql`, which have the tables, the statements and the connections.

use std::future::Future;

use punctual_sql::{SqlError, SqlKind};

use crate::batch::BatchRows;
use crate::error::{ErrorClass, SqlOpenError};
use crate::folded_rows::FoldedRows;
use crate::options::SqlStoreOptions;
use crate::values::{Columns, SqlId, StatementParam};

/// What a connection is for. A role has connections of its own, so that a long read does not delay
/// a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlRole {
    /// Leases and heartbeats, which must not wait behind batches.
    Seats,
    /// Lookups by key or id.
    Lookups,
    /// Tasks that become due.
    Loads,
    /// Pages that callers ask for.
    Pages,
    /// Deletions of what is past its retention.
    Sweeps,
}

/// Who writes: the values that the fence compares. An empty token is not compared.
#[derive(Debug, Clone)]
pub struct Writer {
    pub(crate) seat: i32,
    pub(crate) epoch: i64,
    pub(crate) token: String,
}

/// An acquisition of a seat.
#[derive(Debug)]
pub struct SeatClaim<'a> {
    pub(crate) seat: i32,
    /// The smallest epoch that is granted.
    pub(crate) next: i64,
    pub(crate) token: &'a str,
    pub(crate) broker: &'a str,
    pub(crate) until: i64,
    pub(crate) ttl: i64,
}

/// The number of a batch and of its repair.
#[derive(Debug, Clone, Copy)]
pub struct BatchTurn {
    pub(crate) number: i64,
    pub(crate) repair: i64,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchEnd {
    Made,
    /// The fence refused it; nothing was changed.
    Refused,
}

/// Which records a sweep deletes, oldest first.
#[derive(Debug, Clone, Copy)]
pub struct SweepBounds {
    /// Records that ended then or earlier are past their age.
    pub(crate) aged: i64,
    /// So many bytes are deleted whatever their age.
    pub(crate) excess: i64,
    /// The largest number of rows.
    pub(crate) rows_max: i64,
}

impl SweepBounds {
    /// The end of the latest record that may be deleted.
    pub(crate) const fn latest(self) -> i64 {
        if self.excess > 0 { i64::MAX } else { self.aged }
    }
}

/// What a sweep deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweptRows {
    pub(crate) rows: i64,
    pub(crate) bytes: i64,
}

/// The statements that read. `$1` is the first parameter; the columns of the results are the same
/// in every dialect, and named beside the statements of PostgreSQL.
#[derive(Debug)]
pub struct ReadTexts {
    pub(crate) load: &'static str,
    pub(crate) get: &'static str,
    pub(crate) find: &'static str,
    pub(crate) letters: &'static str,
    pub(crate) history: &'static str,
    pub(crate) last_fires: &'static str,
    pub(crate) counts: &'static str,
    pub(crate) list: &'static str,
    pub(crate) series: &'static str,
    pub(crate) prefix: &'static str,
    pub(crate) fires: &'static str,
    pub(crate) prefix_fires: &'static str,
    pub(crate) dead: &'static str,
    pub(crate) namespaces: &'static str,
    pub(crate) seat: &'static str,
    pub(crate) holder: &'static str,
    pub(crate) members: &'static str,
    pub(crate) leader: &'static str,
    pub(crate) assignment: &'static str,
    pub(crate) meta: &'static str,
    pub(crate) history_size: &'static str,
    pub(crate) count_rows: &'static str,
    pub(crate) totals: &'static str,
}

/// A database in which a store keeps its tables.
///
/// Every change is atomic and durable when its future returns `Ok`, as far as the options ask for.
/// After [`SqlError::Unreachable`] and [`SqlError::Silent`] it is unknown whether it was made;
/// after any other error it was not.
pub trait SqlDatabase: Sized + Send + Sync + 'static {
    /// A row of a result.
    type Row: Columns + Send + Sync;

    /// The protocol of the database.
    const KIND: SqlKind;
    /// The name of the product in messages.
    const PRODUCT: &'static str;
    /// The statements that read.
    const READS: ReadTexts;
    /// How many items one lookup takes at most.
    const ITEMS_MAX: usize;
    /// How many rows one statement of a sweep deletes at most: some ten milliseconds.
    const SWEPT_MAX: i64;

    /// Returns why a cluster cannot have this name, if it cannot.
    fn fault_of_name(cluster: &str) -> Option<&'static str>;

    /// Returns what the code of a refused statement means.
    fn classify(code: &str) -> ErrorClass;

    /// Connects, checks the server, and creates the tables if there are none. Returns warnings for
    /// the operator.
    fn open(
        options: SqlStoreOptions,
    ) -> impl Future<Output = Result<(Self, Vec<String>), SqlOpenError>> + Send;

    /// Returns the number of partitions of an existing store as it is stored, or `None`.
    fn stored_partitions(
        options: &SqlStoreOptions,
    ) -> impl Future<Output = Result<Option<String>, SqlOpenError>> + Send;

    /// Returns how an operator finds a table.
    fn table(&self, name: &str) -> String;
    /// Returns how an operator writes an id.
    fn show_id(id: SqlId) -> String;
    /// Returns how an operator writes bytes.
    fn show_bytes(bytes: &[u8]) -> String;

    /// Runs a statement that reads, again if the server has closed the connection since it was used
    /// last.
    fn query(
        &self,
        role: SqlRole,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> impl Future<Output = Result<Vec<Self::Row>, SqlError>> + Send;

    /// Stores a value of the table `meta`, unless it has one.
    fn propose_meta(
        &self,
        name: &str,
        value: &str,
    ) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Makes the changes of a batch in one transaction that begins with the fence. Batches of the
    /// same `slot` are made one after the other.
    fn write(
        &self,
        slot: usize,
        p: i16,
        writer: &Writer,
        turn: BatchTurn,
        rows: BatchRows,
    ) -> impl Future<Output = Result<BatchEnd, SqlError>> + Send;

    /// Replaces totals and deletes differences in one transaction, if the seat has the epoch of the
    /// writer and its differences were not folded since they were read. Waits for its turn among
    /// the batches of the same `slot`.
    fn fold(
        &self,
        slot: usize,
        p: i16,
        writer: &Writer,
        rows: FoldedRows,
    ) -> impl Future<Output = Result<BatchEnd, SqlError>> + Send;

    /// Commits once more under the number of the last batch, so that the answer waits for replicas
    /// if batches do. Returns whether the seat was as expected.
    fn repeat(
        &self,
        slot: usize,
        writer: &Writer,
        turn: BatchTurn,
    ) -> impl Future<Output = Result<bool, SqlError>> + Send;

    /// Acquires a seat that is free, or that the broker holds itself. Returns its epoch.
    fn acquire(
        &self,
        claim: &SeatClaim<'_>,
    ) -> impl Future<Output = Result<Option<i64>, SqlError>> + Send;

    /// Extends a lease. Returns whether the seat has that epoch.
    fn renew(
        &self,
        writer: &Writer,
        until: i64,
        ttl: i64,
    ) -> impl Future<Output = Result<bool, SqlError>> + Send;

    /// Ends a lease, if the seat has that epoch.
    fn release(&self, writer: &Writer) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Records a heartbeat, and deletes the others that have expired.
    fn heartbeat(
        &self,
        broker: &str,
        ttl: i64,
        heartbeat: &[u8],
    ) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Deletes a heartbeat.
    fn leave(&self, broker: &str) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Stores the assignment, if the leader's seat has that epoch. Returns whether it has.
    fn propose(
        &self,
        leader: &Writer,
        assignment: &[u8],
    ) -> impl Future<Output = Result<bool, SqlError>> + Send;

    /// Deletes the oldest records within bounds; `None` if the writer does not own the seat.
    fn sweep_fires(
        &self,
        writer: &Writer,
        p: i16,
        bounds: SweepBounds,
    ) -> impl Future<Output = Result<Option<SweptRows>, SqlError>> + Send;

    /// Deletes the oldest letters that died at `aged` or earlier, and counts them, with a row of
    /// differences for each; `None` if the writer does not own the seat.
    fn sweep_letters(
        &self,
        writer: &Writer,
        p: i16,
        aged: i64,
    ) -> impl Future<Output = Result<Option<i64>, SqlError>> + Send;
}
