//! The database of a store in MySQL or MariaDB.

use std::sync::Arc;

use punctual_sql::mysql_async::Row;
use punctual_sql::{SqlError, SqlKind, mysql};

use super::batch::{BatchText, FoldText};
use super::server::{self, ServerVariables};
use super::session::{ConnectionSlots, ConnectionUse, MysqlConnectOptions};
use super::statements::{
    BEGIN_SWEEP, COUNT_LETTERS, DIFFER_LETTERS, FENCE, FOLD_FENCE, FORGET_MEMBERS, GUARD,
    GUARD_REFUSED, HEARTBEAT, LEAVE, NEW_SEAT, OLDEST_FIRES, OLDEST_LETTERS, OWNS, PROPOSE,
    PROPOSE_META, READS, RELEASE, RENEW, REPEAT, SWEEP_FIRES, SWEEP_LETTERS, TAKE_SEAT, TAKEN_SEAT,
};
use super::template::{FilledStatement, ValueStyle, fill, table};
use crate::batch::BatchRows;
use crate::database::{
    BatchEnd, BatchTurn, ReadTexts, SeatClaim, SqlDatabase, SqlRole, SweepBounds, SweptRows, Writer,
};
use crate::error::{ErrorClass, SqlOpenError};
use crate::folded_rows::FoldedRows;
use crate::options::SqlStoreOptions;
use crate::values::{Columns as _, SqlId, StatementParam};

/// Connections for batches: as many are committed at once by one flush of the server.
const WRITE_CONNECTIONS_MAX: usize = 4;
/// Connections for leases and heartbeats, and for lookups: each statement waits for its answer.
const SHARED_CONNECTIONS: usize = 2;
/// A row with that key exists.
const DUPLICATE: &str = "1062";
/// No space: disk full, table full.
const FULL: [&str; 2] = ["1021", "1114"];
/// Codes after which the same call may succeed later: deadlock and lock timeout; read-only; out of
/// memory, of connections or of time; interrupted; errors of the disk, of a commit, of replication.
const TRANSIENT: [&str; 22] = [
    "1213", "1205", "1290", "1792", "1836", "1037", "1041", "1040", "1203", "1226", "1317", "1969",
    "3024", "1030", "1180", "1047", "3100", "3101", "1158", "1159", "1160", "1161",
];

/// Tables of a cluster in a MySQL or MariaDB database, and the connections of this process.
#[derive(Debug)]
pub struct MysqlDatabase {
    options: Arc<MysqlConnectOptions>,
    /// Batches of several partitions are committed together if they are on several connections.
    writes: ConnectionSlots,
    seats: ConnectionSlots,
    lookups: ConnectionSlots,
    loads: ConnectionSlots,
    pages: ConnectionSlots,
    sweeps: ConnectionSlots,
}

/// The parameters that name the owner of a seat.
fn owner_params(writer: &Writer) -> [StatementParam<'_>; 3] {
    [
        StatementParam::Int(writer.seat.into()),
        StatementParam::Int(writer.epoch),
        StatementParam::Text(&writer.token),
    ]
}

/// Rows that a sweep deletes.
#[derive(Debug, Default, PartialEq)]
struct PastRows {
    tasks: Vec<SqlId>,
    nominal: Vec<i64>,
    /// The latest end.
    latest: i64,
    bytes: i64,
}

impl PastRows {
    /// Takes the records that are past their age, and the oldest others up to the excess, from
    /// rows that are ordered by age: task, nominal, end, bytes.
    fn of(rows: impl Iterator<Item = (SqlId, i64, i64, i64)>, bounds: SweepBounds) -> Self {
        let mut past = Self::default();
        for (task, nominal, ended_at, bytes) in rows {
            if ended_at > bounds.aged && past.bytes >= bounds.excess {
                break;
            }
            past.tasks.push(task);
            past.nominal.push(nominal);
            past.latest = ended_at;
            past.bytes += bytes;
        }
        past
    }
}

impl MysqlDatabase {
    const fn slots(&self, role: SqlRole) -> &ConnectionSlots {
        match role {
            SqlRole::Seats => &self.seats,
            SqlRole::Lookups => &self.lookups,
            SqlRole::Loads => &self.loads,
            SqlRole::Pages => &self.pages,
            SqlRole::Sweeps => &self.sweeps,
        }
    }

    fn bound(&self, template: &str, params: &[StatementParam<'_>]) -> FilledStatement {
        fill(template, &self.options.cluster, params, ValueStyle::Bound)
    }

    fn inline(&self, template: &str, params: &[StatementParam<'_>]) -> String {
        fill(template, &self.options.cluster, params, ValueStyle::Inline).text
    }

    /// Makes a change about a seat or member. Returns how many rows it changed.
    async fn change(
        &self,
        template: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<u64, SqlError> {
        let mut turn = self.seats.take(&self.options).await?;
        turn.change(self.bound(template, params)).await
    }

    /// Sends a transaction whose first statement fences all others.
    async fn transact(&self, slot: usize, packets: Vec<String>) -> Result<BatchEnd, SqlError> {
        let mut turn = self.writes.take_numbered(slot, &self.options).await?;
        let made = refused_is_false(turn.transact(packets).await)?;
        Ok(if made { BatchEnd::Made } else { BatchEnd::Refused })
    }

    async fn owns(&self, writer: &Writer) -> Result<bool, SqlError> {
        let rows = self.query(SqlRole::Sweeps, OWNS, &owner_params(writer)).await?;
        Ok(!rows.is_empty())
    }

    /// Deletes rows in one transaction, which begins with the seat. Returns whether the writer owns
    /// it.
    async fn sweep(
        &self,
        writer: &Writer,
        p: i16,
        past: &PastRows,
        statements: &[&'static str],
    ) -> Result<bool, SqlError> {
        let [seat, epoch, token] = owner_params(writer);
        let params = [
            seat,
            epoch,
            token,
            StatementParam::Int(p.into()),
            StatementParam::Int(past.bytes),
            StatementParam::Ids(&past.tasks),
            StatementParam::Ints(&past.nominal),
            StatementParam::Int(past.latest),
        ];
        let mut text = "START TRANSACTION;".to_owned();
        for template in [BEGIN_SWEEP, GUARD].iter().chain(statements) {
            text.push_str(&self.inline(template, &params));
            text.push(';');
        }
        text.push_str("COMMIT");
        let mut turn = self.sweeps.take(&self.options).await?;
        refused_is_false(turn.transact(vec![text]).await)
    }
}

/// Whether a transaction was made; an error of its guard says that it was not.
fn refused_is_false(made: Result<(), SqlError>) -> Result<bool, SqlError> {
    match made {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(GUARD_REFUSED) => Ok(false),
        Err(error) => Err(error),
    }
}

impl SqlDatabase for MysqlDatabase {
    type Row = Row;

    const KIND: SqlKind = SqlKind::Mysql;
    const PRODUCT: &'static str = "MySQL";
    const READS: ReadTexts = READS;
    const ITEMS_MAX: usize = 512;
    const SWEPT_MAX: i64 = 1000;

    fn fault_of_name(cluster: &str) -> Option<&'static str> {
        server::fault_of_name(cluster)
    }

    fn classify(code: &str) -> ErrorClass {
        match code {
            _ if FULL.contains(&code) => ErrorClass::Full,
            _ if TRANSIENT.contains(&code) => ErrorClass::Transient,
            _ => ErrorClass::Final,
        }
    }

    async fn open(options: SqlStoreOptions) -> Result<(Self, Vec<String>), SqlOpenError> {
        let opening = options.opening();
        let SqlStoreOptions { sql, cluster, partitions, durability } = options;
        let mut connection = mysql::connect(&opening).await?;
        let server = ServerVariables::read(&mut connection, &opening).await?;
        let warnings = server.check(&cluster, durability)?;
        server::create(&mut connection, &opening, &cluster).await?;
        drop(connection);
        let (flavor, packet_max) = (server.flavor(), server.packet_max());
        let writes = WRITE_CONNECTIONS_MAX.min(usize::from(partitions.count()));
        let database = Self {
            options: Arc::new(MysqlConnectOptions { sql, cluster, flavor, packet_max }),
            writes: ConnectionSlots::new(writes, ConnectionUse::Write),
            seats: ConnectionSlots::new(SHARED_CONNECTIONS, ConnectionUse::Write),
            lookups: ConnectionSlots::new(SHARED_CONNECTIONS, ConnectionUse::Read),
            loads: ConnectionSlots::new(1, ConnectionUse::Read),
            pages: ConnectionSlots::new(1, ConnectionUse::Read),
            sweeps: ConnectionSlots::new(1, ConnectionUse::Write),
        };
        Ok((database, warnings))
    }

    async fn stored_partitions(options: &SqlStoreOptions) -> Result<Option<String>, SqlOpenError> {
        let opening = options.opening();
        let mut connection = mysql::connect(&opening).await?;
        let stored = server::stored_partitions(&mut connection, &opening, &options.cluster);
        Ok(stored.await?)
    }

    fn table(&self, name: &str) -> String {
        format!("table {}", table(&self.options.cluster, name))
    }

    fn show_id(id: SqlId) -> String {
        format!("x'{id:x}'")
    }

    fn show_bytes(bytes: &[u8]) -> String {
        let mut text = String::new();
        super::template::put_bytes(&mut text, bytes);
        text
    }

    async fn query(
        &self,
        role: SqlRole,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<Vec<Row>, SqlError> {
        let slots = self.slots(role);
        for _ in 0..slots.count() {
            let mut turn = slots.take(&self.options).await?;
            match turn.rows(self.bound(text, params)).await {
                // The server may have closed it since its last turn, for example by a restart. The
                // next turn has another connection or opens one.
                Err(SqlError::Unreachable { .. }) => {}
                result => return result,
            }
        }
        let mut turn = slots.take(&self.options).await?;
        turn.rows(self.bound(text, params)).await
    }

    async fn propose_meta(&self, name: &str, value: &str) -> Result<(), SqlError> {
        let params = [StatementParam::Text(name), StatementParam::Text(value)];
        self.change(PROPOSE_META, &params).await.map(drop)
    }

    async fn write(
        &self,
        slot: usize,
        p: i16,
        writer: &Writer,
        turn: BatchTurn,
        rows: BatchRows,
    ) -> Result<BatchEnd, SqlError> {
        let text = BatchText::of(p, &rows);
        drop(rows);
        let [seat, epoch, token] = owner_params(writer);
        let params = [
            seat,
            epoch,
            token,
            StatementParam::Int(turn.number),
            StatementParam::Int(turn.repair),
            StatementParam::Int(text.record_bytes),
        ];
        let fence = format!("{};{GUARD}", self.inline(FENCE, &params));
        let MysqlConnectOptions { cluster, packet_max, .. } = &*self.options;
        let packets = text.packets(cluster, &fence, *packet_max);
        drop(text);
        self.transact(slot, packets).await
    }

    async fn fold(
        &self,
        slot: usize,
        p: i16,
        writer: &Writer,
        rows: FoldedRows,
    ) -> Result<BatchEnd, SqlError> {
        let [seat, epoch, token] = owner_params(writer);
        let params = [seat, epoch, token, StatementParam::Int(rows.folds)];
        let fence = format!("{};{GUARD}", self.inline(FOLD_FENCE, &params));
        let MysqlConnectOptions { cluster, packet_max, .. } = &*self.options;
        let packets = FoldText::of(p, &rows).packets(cluster, &fence, *packet_max);
        drop(rows);
        self.transact(slot, packets).await
    }

    async fn repeat(
        &self,
        slot: usize,
        writer: &Writer,
        turn: BatchTurn,
    ) -> Result<bool, SqlError> {
        let [seat, epoch, token] = owner_params(writer);
        let params = [
            seat,
            epoch,
            token,
            StatementParam::Int(turn.number),
            StatementParam::Int(turn.repair),
        ];
        let mut turn = self.writes.take_numbered(slot, &self.options).await?;
        Ok(turn.change(self.bound(REPEAT, &params)).await? > 0)
    }

    async fn acquire(&self, claim: &SeatClaim<'_>) -> Result<Option<i64>, SqlError> {
        let params = [
            StatementParam::Int(claim.seat.into()),
            StatementParam::Int(claim.next),
            StatementParam::Text(claim.token),
            StatementParam::Text(claim.broker),
            StatementParam::Int(claim.until),
            StatementParam::Int(claim.ttl),
        ];
        let mut turn = self.seats.take(&self.options).await?;
        if turn.change(self.bound(TAKE_SEAT, &params)).await? > 0 {
            let taken = self.bound(TAKEN_SEAT, &[params[0], params[2]]);
            // Without a row another broker has acquired it since.
            let rows = turn.rows(taken).await?;
            return Ok(rows.first().map(|row| row.int(0)));
        }
        match turn.change(self.bound(NEW_SEAT, &params)).await {
            Ok(_) => Ok(Some(claim.next)),
            // Another broker holds it, or has just acquired it first.
            Err(error) if error.code() == Some(DUPLICATE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn renew(&self, writer: &Writer, until: i64, ttl: i64) -> Result<bool, SqlError> {
        let [seat, epoch, token] = owner_params(writer);
        let params = [seat, epoch, token, StatementParam::Int(until), StatementParam::Int(ttl)];
        Ok(self.change(RENEW, &params).await? > 0)
    }

    async fn release(&self, writer: &Writer) -> Result<(), SqlError> {
        self.change(RELEASE, &owner_params(writer)).await.map(drop)
    }

    async fn heartbeat(&self, broker: &str, ttl: i64, heartbeat: &[u8]) -> Result<(), SqlError> {
        self.change(FORGET_MEMBERS, &[StatementParam::Text(broker)]).await?;
        let params = [
            StatementParam::Text(broker),
            StatementParam::Int(ttl),
            StatementParam::Bytes(heartbeat),
        ];
        self.change(HEARTBEAT, &params).await.map(drop)
    }

    async fn leave(&self, broker: &str) -> Result<(), SqlError> {
        self.change(LEAVE, &[StatementParam::Text(broker)]).await.map(drop)
    }

    async fn propose(&self, leader: &Writer, assignment: &[u8]) -> Result<bool, SqlError> {
        let [_, epoch, token] = owner_params(leader);
        let params = [epoch, token, StatementParam::Bytes(assignment)];
        Ok(self.change(PROPOSE, &params).await? > 0)
    }

    async fn sweep_fires(
        &self,
        writer: &Writer,
        p: i16,
        bounds: SweepBounds,
    ) -> Result<Option<SweptRows>, SqlError> {
        let params = [
            StatementParam::Int(p.into()),
            StatementParam::Int(bounds.latest()),
            StatementParam::Int(bounds.rows_max),
        ];
        let rows = self.query(SqlRole::Sweeps, OLDEST_FIRES, &params).await?;
        let columns = rows.iter().map(|row| (row.id(0), row.int(1), row.int(2), row.int(3)));
        let past = PastRows::of(columns, bounds);
        let swept = SweptRows { rows: crate::values::bigint(past.tasks.len()), bytes: past.bytes };
        let owned = match past.tasks.is_empty() {
            true => self.owns(writer).await?,
            false => self.sweep(writer, p, &past, &[SWEEP_FIRES]).await?,
        };
        Ok(owned.then_some(swept))
    }

    async fn sweep_letters(
        &self,
        writer: &Writer,
        p: i16,
        aged: i64,
    ) -> Result<Option<i64>, SqlError> {
        let params = [
            StatementParam::Int(p.into()),
            StatementParam::Int(aged),
            StatementParam::Int(Self::SWEPT_MAX),
        ];
        let rows = self.query(SqlRole::Sweeps, OLDEST_LETTERS, &params).await?;
        let (tasks, nominal) = rows.iter().map(|row| (row.id(0), row.int(1))).unzip();
        let past = PastRows { tasks, nominal, latest: aged, bytes: 0 };
        let owned = match past.tasks.is_empty() {
            true => self.owns(writer).await?,
            false => {
                let statements = [COUNT_LETTERS, DIFFER_LETTERS, SWEEP_LETTERS];
                self.sweep(writer, p, &past, &statements).await?
            }
        };
        Ok(owned.then_some(crate::values::bigint(rows.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_pass_are_transient_and_others_are_final() {
        for (code, class) in [
            ("1213", ErrorClass::Transient),
            ("1205", ErrorClass::Transient),
            ("1290", ErrorClass::Transient),
            ("1114", ErrorClass::Full),
            ("1146", ErrorClass::Final),
            ("1062", ErrorClass::Final),
            ("1406", ErrorClass::Final),
        ] {
            assert_eq!(MysqlDatabase::classify(code), class, "{code}");
        }
    }

    #[test]
    fn a_sweep_takes_what_is_past_its_age_and_the_oldest_up_to_the_excess() {
        let rows = [(1, 10, 100), (2, 20, 100), (3, 30, 100), (4, 40, 100)];
        for (aged, excess, taken, bytes) in [
            (-1, 0, 0, 0),
            (20, 0, 2, 200),
            (-1, 1, 1, 100),
            (-1, 101, 2, 200),
            (10, 250, 3, 300),
            (50, 0, 4, 400),
        ] {
            let bounds = SweepBounds { aged, excess, rows_max: 10 };
            let rows = rows.into_iter().map(|(id, end, bytes)| (SqlId(id), 0, end, bytes));
            let past = PastRows::of(rows, bounds);
            assert_eq!((past.tasks.len(), past.bytes), (taken, bytes), "{aged} {excess}");
        }
    }
}
