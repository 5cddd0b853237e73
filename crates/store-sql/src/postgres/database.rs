//! The database of a store in PostgreSQL.

use std::sync::Arc;

use punctual_sql::tokio_postgres::Row;
use punctual_sql::{SqlError, SqlKind, postgres};

use super::batch::{BatchArrays, Bound, FoldArrays};
use super::server::{self, ServerSettings};
use super::session::{Pending, SessionOptions, SessionRole, SessionSlot, WriteSlot, all_in_order};
use super::statements::{
    ACQUIRE, FENCE, FOLD_FENCE, HEARTBEAT, LEAVE, PROPOSE, PROPOSE_META, READS, RELEASE, RENEW,
    REPEAT, SWEEP_FIRES, SWEEP_LETTERS,
};
use super::values::uuid;
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
/// The code of the fence that moved no row.
const FENCE_REFUSED: &str = "22012";
/// Disk full.
const DISK_FULL: &str = "53100";
/// Codes after which the same call may succeed later: the class, or the whole code.
const TRANSIENT: [&str; 6] = ["40", "53", "55", "57", "58", "25006"];

/// Tables in a schema of a PostgreSQL database, and the connections of this process.
#[derive(Debug)]
pub struct PostgresDatabase {
    options: Arc<SessionOptions>,
    /// Batches of several partitions are committed together if they are on several connections.
    writes: Vec<WriteSlot>,
    seats: SessionSlot,
    lookups: SessionSlot,
    loads: SessionSlot,
    pages: SessionSlot,
    sweeps: SessionSlot,
}

/// The parameters that name the owner of a seat.
fn owner_params(writer: &Writer) -> [StatementParam<'_>; 3] {
    [
        StatementParam::Int(writer.seat.into()),
        StatementParam::Int(writer.epoch),
        StatementParam::Text(&writer.token),
    ]
}

impl PostgresDatabase {
    const fn slot(&self, role: SqlRole) -> &SessionSlot {
        match role {
            SqlRole::Seats => &self.seats,
            SqlRole::Lookups => &self.lookups,
            SqlRole::Loads => &self.loads,
            SqlRole::Pages => &self.pages,
            SqlRole::Sweeps => &self.sweeps,
        }
    }

    async fn changes(
        &self,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<Vec<Row>, SqlError> {
        self.seats.query(&self.options, text, params).await
    }

    /// Sends a transaction in one go. The first statement fences all others.
    async fn transact(&self, slot: usize, statements: &[Bound<'_>]) -> Result<BatchEnd, SqlError> {
        let WriteSlot { slot, turn: one_batch } = &self.writes[slot % self.writes.len()];
        let _turn = one_batch.lock().await;
        let session = slot.session(&self.options).await?;
        let sent = async {
            let mut prepared = Vec::with_capacity(statements.len());
            for (text, _) in statements {
                prepared.push(session.statement(text).await?);
            }
            let client = &session.connection;
            let simple = |text: &'static str| -> Pending<'_> {
                Box::pin(async move { client.batch_execute(text).await.map(|()| 0) })
            };
            let mut pending = vec![simple("BEGIN")];
            for (statement, (_, params)) in prepared.iter().zip(statements) {
                pending.push(Box::pin(client.execute(statement, params)));
            }
            pending.push(simple("COMMIT"));
            client.within(all_in_order(pending)).await
        };
        let guard = session.guard();
        let sent = sent.await;
        guard.ended();
        match sent {
            Ok(()) => Ok(BatchEnd::Made),
            Err(error) => {
                slot.failed(&session, &error);
                if error.code() == Some(FENCE_REFUSED) { Ok(BatchEnd::Refused) } else { Err(error) }
            }
        }
    }
}

impl SqlDatabase for PostgresDatabase {
    type Row = Row;

    const KIND: SqlKind = SqlKind::Postgres;
    const PRODUCT: &'static str = "PostgreSQL";
    const READS: ReadTexts = READS;
    const ITEMS_MAX: usize = 1000;
    const SWEPT_MAX: i64 = 5000;

    fn fault_of_name(cluster: &str) -> Option<&'static str> {
        server::fault_of_name(cluster)
    }

    fn classify(code: &str) -> ErrorClass {
        match code {
            DISK_FULL => ErrorClass::Full,
            _ if TRANSIENT.iter().any(|known| code.starts_with(known)) => ErrorClass::Transient,
            _ => ErrorClass::Final,
        }
    }

    async fn open(options: SqlStoreOptions) -> Result<(Self, Vec<String>), SqlOpenError> {
        let connection = postgres::connect(&options.opening()).await?;
        let settings = ServerSettings::read(&connection).await?;
        let warnings = settings.check(options.durability)?;
        server::create(&connection, &options.cluster).await?;
        drop(connection);
        let SqlStoreOptions { sql, cluster, partitions, durability } = options;
        let writes = WRITE_CONNECTIONS_MAX.min(usize::from(partitions.count()));
        let write = || WriteSlot {
            slot: SessionSlot::new(SessionRole::Write),
            turn: tokio::sync::Mutex::default(),
        };
        let database = Self {
            options: Arc::new(SessionOptions { sql, cluster, durability }),
            writes: std::iter::repeat_with(write).take(writes).collect(),
            seats: SessionSlot::new(SessionRole::Write),
            sweeps: SessionSlot::new(SessionRole::Write),
            lookups: SessionSlot::new(SessionRole::Read),
            loads: SessionSlot::new(SessionRole::Read),
            pages: SessionSlot::new(SessionRole::Read),
        };
        Ok((database, warnings))
    }

    async fn stored_partitions(options: &SqlStoreOptions) -> Result<Option<String>, SqlOpenError> {
        let connection = postgres::connect(&options.opening()).await?;
        Ok(server::stored_partitions(&connection, &options.cluster).await?)
    }

    fn table(&self, name: &str) -> String {
        format!("table {name}")
    }

    fn show_id(id: SqlId) -> String {
        format!("'{}'", uuid(id))
    }

    fn show_bytes(bytes: &[u8]) -> String {
        let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("'\\x{shown}'")
    }

    async fn query(
        &self,
        role: SqlRole,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<Vec<Row>, SqlError> {
        self.slot(role).read(&self.options, text, params).await
    }

    async fn propose_meta(&self, name: &str, value: &str) -> Result<(), SqlError> {
        let params = [StatementParam::Text(name), StatementParam::Text(value)];
        self.changes(PROPOSE_META, &params).await.map(drop)
    }

    async fn write(
        &self,
        slot: usize,
        p: i16,
        writer: &Writer,
        turn: BatchTurn,
        rows: BatchRows,
    ) -> Result<BatchEnd, SqlError> {
        let arrays = BatchArrays::of(&rows);
        drop(rows);
        let BatchTurn { number, repair } = turn;
        let mut statements: Vec<Bound<'_>> = vec![(
            FENCE,
            vec![
                &writer.seat as _,
                &writer.epoch as _,
                &writer.token as _,
                &number as _,
                &repair as _,
                &arrays.record_bytes as _,
            ],
        )];
        statements.extend(arrays.statements(&p));
        self.transact(slot, &statements).await
    }

    async fn fold(
        &self,
        slot: usize,
        p: i16,
        writer: &Writer,
        rows: FoldedRows,
    ) -> Result<BatchEnd, SqlError> {
        let folds = rows.folds;
        let arrays = FoldArrays::of(rows);
        let mut statements: Vec<Bound<'_>> = vec![(
            FOLD_FENCE,
            vec![&writer.seat as _, &writer.epoch as _, &writer.token as _, &folds as _],
        )];
        statements.extend(arrays.statements(&p));
        self.transact(slot, &statements).await
    }

    async fn repeat(
        &self,
        slot: usize,
        writer: &Writer,
        turn: BatchTurn,
    ) -> Result<bool, SqlError> {
        let WriteSlot { slot, turn: one_batch } = &self.writes[slot % self.writes.len()];
        let _turn = one_batch.lock().await;
        let [seat, epoch, token] = owner_params(writer);
        let params = [
            seat,
            epoch,
            token,
            StatementParam::Int(turn.number),
            StatementParam::Int(turn.repair),
        ];
        Ok(!slot.query(&self.options, REPEAT, &params).await?.is_empty())
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
        let rows = self.changes(ACQUIRE, &params).await?;
        Ok(rows.first().map(|row| row.int(0)))
    }

    async fn renew(&self, writer: &Writer, until: i64, ttl: i64) -> Result<bool, SqlError> {
        let [seat, epoch, token] = owner_params(writer);
        let params = [seat, epoch, token, StatementParam::Int(until), StatementParam::Int(ttl)];
        Ok(!self.changes(RENEW, &params).await?.is_empty())
    }

    async fn release(&self, writer: &Writer) -> Result<(), SqlError> {
        self.changes(RELEASE, &owner_params(writer)).await.map(drop)
    }

    async fn heartbeat(&self, broker: &str, ttl: i64, heartbeat: &[u8]) -> Result<(), SqlError> {
        let params = [
            StatementParam::Text(broker),
            StatementParam::Int(ttl),
            StatementParam::Bytes(heartbeat),
        ];
        self.changes(HEARTBEAT, &params).await.map(drop)
    }

    async fn leave(&self, broker: &str) -> Result<(), SqlError> {
        self.changes(LEAVE, &[StatementParam::Text(broker)]).await.map(drop)
    }

    async fn propose(&self, leader: &Writer, assignment: &[u8]) -> Result<bool, SqlError> {
        let [_, epoch, token] = owner_params(leader);
        let params = [epoch, token, StatementParam::Bytes(assignment)];
        Ok(!self.changes(PROPOSE, &params).await?.is_empty())
    }

    async fn sweep_fires(
        &self,
        writer: &Writer,
        p: i16,
        bounds: SweepBounds,
    ) -> Result<Option<SweptRows>, SqlError> {
        let [seat, epoch, token] = owner_params(writer);
        let params = [
            seat,
            epoch,
            token,
            StatementParam::Int(p.into()),
            StatementParam::Int(bounds.aged),
            StatementParam::Int(bounds.excess),
            StatementParam::Int(bounds.latest()),
            StatementParam::Int(bounds.rows_max),
        ];
        let rows = self.sweeps.query(&self.options, SWEEP_FIRES, &params).await?;
        let owned = rows.first().filter(|row| row.int(0) > 0);
        Ok(owned.map(|row| SweptRows { rows: row.int(1), bytes: row.int(2) }))
    }

    async fn sweep_letters(
        &self,
        writer: &Writer,
        p: i16,
        aged: i64,
    ) -> Result<Option<i64>, SqlError> {
        let [seat, epoch, token] = owner_params(writer);
        let params = [
            seat,
            epoch,
            token,
            StatementParam::Int(p.into()),
            StatementParam::Int(aged),
            StatementParam::Int(Self::SWEPT_MAX),
        ];
        let rows = self.sweeps.query(&self.options, SWEEP_LETTERS, &params).await?;
        Ok(rows.first().filter(|row| row.int(0) > 0).map(|row| row.int(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_pass_are_transient_and_others_are_final() {
        for (code, class) in [
            ("40P01", ErrorClass::Transient),
            ("53300", ErrorClass::Transient),
            ("55P03", ErrorClass::Transient),
            ("57014", ErrorClass::Transient),
            ("58030", ErrorClass::Transient),
            ("25006", ErrorClass::Transient),
            ("53100", ErrorClass::Full),
            ("25P02", ErrorClass::Final),
            ("42P01", ErrorClass::Final),
            ("22021", ErrorClass::Final),
        ] {
            assert_eq!(PostgresDatabase::classify(code), class, "{code}");
        }
    }
}
