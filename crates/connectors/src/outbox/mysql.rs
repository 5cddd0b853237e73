//! An outbox in MySQL or MariaDB. The lock of a round is a named lock of its session.

use punctual_sql::mysql::{connect, statement_error};
use punctual_sql::mysql_async::prelude::Queryable;
use punctual_sql::mysql_async::{Conn, Params};
use punctual_sql::{SqlError, SqlOptions};

use super::{OutboxRow, OutboxSession, ROUND_MAX, RoundEnd};
use crate::sink::DynFuture;
use crate::sql::schema::REJECTED_SUFFIX;

/// The columns of a row as the query returns them.
type RowColumns = (i64, String, Option<String>, Option<String>, i64, i64);

pub(super) struct MysqlOutbox {
    connection: Conn,
    table: String,
    /// The name of the lock; locks of one server are shared by all its databases.
    lock: String,
}

impl MysqlOutbox {
    pub(super) async fn open(options: &SqlOptions, table: String) -> Result<Self, SqlError> {
        let mut connection = connect(options).await?;
        // The server ends the session of a broker that hangs within a round.
        let bound = format!("SET SESSION wait_timeout = {}", ROUND_MAX.as_secs());
        let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned();
        for setting in [bound, isolation] {
            connection.query_drop(setting).await.map_err(statement_error)?;
        }
        let digest = format!("{}.{table}", options.database);
        // Names of locks have at most 64 characters.
        let lock = format!("punctual {}", &digest[digest.len().saturating_sub(55)..]);
        Ok(Self { connection, table, lock })
    }

    async fn lock_rows(&mut self, max: usize) -> Result<Option<Vec<OutboxRow>>, SqlError> {
        let Self { connection, table, lock } = self;
        let locked = connection.exec_first("SELECT GET_LOCK(?, 0)", (lock.as_str(),)).await;
        let locked: Option<Option<i64>> = locked.map_err(statement_error)?;
        if locked.flatten() != Some(1) {
            return Ok(None);
        }
        connection.query_drop("START TRANSACTION").await.map_err(statement_error)?;
        let select = format!(
            "SELECT id, verb, `key`, task, \
             CAST(UNIX_TIMESTAMP(created_at) * 1000000 AS SIGNED), \
             CAST(TIMESTAMPDIFF(MICROSECOND, created_at, CURRENT_TIMESTAMP(6)) / 1000 AS SIGNED) \
             FROM {table} ORDER BY id LIMIT {max} FOR UPDATE SKIP LOCKED"
        );
        let rows: Vec<RowColumns> = connection.exec(select, ()).await.map_err(statement_error)?;
        let rows = rows.into_iter().map(|(id, verb, key, task, created_at, age_ms)| OutboxRow {
            id,
            verb,
            key,
            task,
            created_at,
            age_ms,
        });
        Ok(Some(rows.collect()))
    }

    async fn end_round(&mut self, end: &RoundEnd) -> Result<(), SqlError> {
        let Self { connection, table, lock } = self;
        for (id, problem) in &end.rejected {
            let reject = format!(
                "INSERT INTO {table}{REJECTED_SUFFIX} (id, verb, `key`, task, created_at, problem) \
                 SELECT id, verb, `key`, task, created_at, ? FROM {table} WHERE id = ?"
            );
            let values = Params::Positional(vec![problem.as_str().into(), (*id).into()]);
            connection.exec_drop(reject, values).await.map_err(statement_error)?;
        }
        let rejected = end.rejected.iter().map(|(id, _)| *id);
        let ids: Vec<String> =
            end.done.iter().copied().chain(rejected).map(|id| id.to_string()).collect();
        if !ids.is_empty() {
            // Numbers that were read from the table itself.
            let delete = format!("DELETE FROM {table} WHERE id IN ({})", ids.join(","));
            connection.query_drop(delete).await.map_err(statement_error)?;
        }
        connection.query_drop("COMMIT").await.map_err(statement_error)?;
        let unlocked = connection.exec_drop("SELECT RELEASE_LOCK(?)", (lock.as_str(),)).await;
        unlocked.map_err(statement_error)
    }
}

impl OutboxSession for MysqlOutbox {
    fn begin(&mut self, max: usize) -> DynFuture<'_, Result<Option<Vec<OutboxRow>>, SqlError>> {
        Box::pin(self.lock_rows(max))
    }

    fn end<'a>(&'a mut self, end: &'a RoundEnd) -> DynFuture<'a, Result<(), SqlError>> {
        Box::pin(self.end_round(end))
    }
}
