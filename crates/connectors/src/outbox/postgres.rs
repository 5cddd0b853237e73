//! An outbox in PostgreSQL. The lock of a round is an advisory lock of its transaction.

use punctual_sql::postgres::{PostgresClient, connect};
use punctual_sql::tokio_postgres::Statement;
use punctual_sql::{SqlError, SqlOptions};

use super::{OutboxRow, OutboxSession, ROUND_MAX, RoundEnd};
use crate::sink::DynFuture;
use crate::sql::schema::{OUTBOX_CHANNEL, REJECTED_SUFFIX};

pub(super) struct PostgresOutbox {
    connection: PostgresClient,
    lock: Statement,
    select: Statement,
    delete: Statement,
    reject: Statement,
    table: String,
}

impl PostgresOutbox {
    pub(super) async fn open(
        options: &SqlOptions,
        table: String,
        notify: bool,
    ) -> Result<Self, SqlError> {
        let connection = connect(options).await?;
        // The server ends the session of a broker that hangs within a round.
        let bound = format!(
            "SET idle_in_transaction_session_timeout = {}; SET enable_seqscan = off; \
             SET enable_sort = off",
            ROUND_MAX.as_millis()
        );
        connection.within(connection.batch_execute(&bound)).await?;
        if notify {
            let listen = format!("LISTEN {OUTBOX_CHANNEL}");
            connection.within(connection.batch_execute(&listen)).await?;
        }
        let prepare = async |sql: String| connection.within(connection.prepare(&sql)).await;
        let lock = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))";
        let lock = prepare(lock.to_owned()).await?;
        let select = prepare(format!(
            "SELECT id, verb, key, task::text, \
             (extract(epoch from created_at) * 1000000)::bigint, \
             (extract(epoch from clock_timestamp() - created_at) * 1000)::bigint \
             FROM {table} ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
        ))
        .await?;
        let delete = prepare(format!("DELETE FROM {table} WHERE id = ANY($1)")).await?;
        let reject = prepare(format!(
            "INSERT INTO {table}{REJECTED_SUFFIX} (id, verb, key, task, created_at, problem) \
             SELECT o.id, o.verb, o.key, o.task, o.created_at, r.problem FROM {table} o \
             JOIN unnest($1::bigint[], $2::text[]) AS r (id, problem) ON r.id = o.id"
        ))
        .await?;
        Ok(Self { connection, lock, select, delete, reject, table })
    }

    async fn lock_rows(&mut self, max: usize) -> Result<Option<Vec<OutboxRow>>, SqlError> {
        let connection = &self.connection;
        connection.within(connection.batch_execute("BEGIN")).await?;
        let name = format!("punctual outbox {}", self.table);
        let row = connection.within(connection.query_one(&self.lock, &[&name])).await?;
        if !row.try_get::<_, bool>(0).map_err(unexpected)? {
            connection.within(connection.batch_execute("COMMIT")).await?;
            return Ok(None);
        }
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let rows = connection.within(connection.query(&self.select, &[&max])).await?;
        let rows = rows.iter().map(|row| {
            Ok(OutboxRow {
                id: row.try_get(0).map_err(unexpected)?,
                verb: row.try_get(1).map_err(unexpected)?,
                key: row.try_get(2).map_err(unexpected)?,
                task: row.try_get(3).map_err(unexpected)?,
                created_at: row.try_get(4).map_err(unexpected)?,
                age_ms: row.try_get(5).map_err(unexpected)?,
            })
        });
        rows.collect::<Result<_, SqlError>>().map(Some)
    }
}

fn unexpected(error: punctual_sql::tokio_postgres::Error) -> SqlError {
    SqlError::Unexpected(error.to_string())
}

impl OutboxSession for PostgresOutbox {
    fn notified(&mut self) -> DynFuture<'_, ()> {
        Box::pin(self.connection.notified())
    }

    fn begin(&mut self, max: usize) -> DynFuture<'_, Result<Option<Vec<OutboxRow>>, SqlError>> {
        Box::pin(self.lock_rows(max))
    }

    fn end<'a>(&'a mut self, end: &'a RoundEnd) -> DynFuture<'a, Result<(), SqlError>> {
        Box::pin(async move {
            let connection = &self.connection;
            if !end.rejected.is_empty() {
                let (ids, problems): (Vec<i64>, Vec<&str>) =
                    end.rejected.iter().map(|(id, problem)| (*id, problem.as_str())).unzip();
                connection.within(connection.execute(&self.reject, &[&ids, &problems])).await?;
            }
            let rejected = end.rejected.iter().map(|(id, _)| *id);
            let ids: Vec<i64> = end.done.iter().copied().chain(rejected).collect();
            if !ids.is_empty() {
                connection.within(connection.execute(&self.delete, &[&ids])).await?;
            }
            connection.within(connection.batch_execute("COMMIT")).await
        })
    }
}
