//! A session with a MySQL or MariaDB server that runs batches of one statement.
//!
//! The protocol answers one statement at a time. `COMMIT` is sent together with the check of
//! `commit_guard`. Values are sent as numbers or as text, which the
//! server converts to the type of the column. Times are UTC.

use std::time::Duration;

use punctual_core::Guarantee;
use punctual_engine::Delivery;
use punctual_sql::mysql::{connect, statement_error};
use punctual_sql::mysql_async::prelude::Queryable;
use punctual_sql::mysql_async::{Conn, Error as DriverError, Params, Value as MysqlValue};
use punctual_sql::{SqlError, SqlKind};
use serde_json::Value;

use super::batch::{BatchError, CallDone, StatementCall, Transaction, run_all};
use super::commit_guard::{CommitGuard, CommitTime, IDLE_MAX, no_clock};
use super::params::SqlValue;
use super::{BatchPlan, SqlSink};
use crate::sink::{DynFuture, SendResult, SessionLost, SinkSession};

/// Without gap locks, batches of different fires do not wait for each other.
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
/// The clock of the server, in seconds.
const CLOCK: &str = "UNIX_TIMESTAMP(SYSDATE(6))";
/// The error of a commit that comes too late: the sum of the check is out of range.
const TOO_LATE: &str = "1690";
/// The error of a variable that MySQL does not have, only MariaDB.
const UNKNOWN_VARIABLE: &str = "1193";
/// The error of a fire id that another session has recorded in the meantime.
const DUPLICATE: &str = "1062";
/// How long the server may take to show that it is there.
const CHECK_MAX: Duration = Duration::from_secs(5);

pub(super) struct MysqlSession {
    connection: Conn,
    sink: SqlSink,
}

impl MysqlSession {
    pub(super) async fn open(sink: &SqlSink) -> Result<Self, String> {
        let mut connection = connect(&sink.options).await.map_err(|error| error.to_string())?;
        for setting in ["SET SESSION time_zone = '+00:00'", ISOLATION] {
            let set = connection.query_drop(setting).await;
            set.map_err(|error| statement_error(error).to_string())?;
        }
        let idle = format!("SET SESSION idle_transaction_timeout = {}", IDLE_MAX.as_secs());
        if let Err(error) = connection.query_drop(idle).await.map_err(statement_error)
            && error.code() != Some(UNKNOWN_VARIABLE)
        {
            return Err(error.to_string());
        }
        Ok(Self { connection, sink: sink.clone() })
    }
}

impl SinkSession for MysqlSession {
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult> {
        Box::pin(async move {
            let BatchPlan { statement, calls, results } = self.sink.plan(batch);
            let sql = statement.map_or_else(String::new, |(_, sql)| sql);
            let answer_bytes = self.sink.answer_bytes;
            let guard = CommitGuard::new(batch, self.sink.clock.clone());
            let mut transaction = MysqlTransaction { session: self, sql, guard };
            run_all(&mut transaction, SqlKind::Mysql, calls, results, answer_bytes).await
        })
    }

    fn check(&mut self) -> DynFuture<'_, Result<(), SessionLost>> {
        Box::pin(async {
            match tokio::time::timeout(CHECK_MAX, self.connection.ping()).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(SessionLost(statement_error(error).to_string())),
                Err(_) => Err(SessionLost(SqlError::Silent(CHECK_MAX).to_string())),
            }
        })
    }
}

/// A transaction that runs one statement for each call.
struct MysqlTransaction<'a> {
    session: &'a mut MysqlSession,
    sql: String,
    guard: CommitGuard<'a>,
}

impl Transaction for MysqlTransaction<'_> {
    fn run<'a>(
        &'a mut self,
        calls: &'a [StatementCall],
    ) -> DynFuture<'a, Result<Vec<CallDone>, BatchError>> {
        Box::pin(async move {
            let result = self.attempt(calls).await;
            if result.as_ref().is_err_and(BatchError::leaves_a_transaction) {
                let rolled_back = self.session.connection.query_drop("ROLLBACK").await;
                rolled_back.map_err(|error| BatchError::Lost(statement_error(error)))?;
            }
            result
        })
    }
}

impl MysqlTransaction<'_> {
    async fn attempt(&mut self, calls: &[StatementCall]) -> Result<Vec<CallDone>, BatchError> {
        let connection = &mut self.session.connection;
        let prepared = connection.prep(self.sql.as_str()).await.map_err(whole)?;
        connection.query_drop("START TRANSACTION").await.map_err(whole)?;
        let recorded = self.record(calls).await?;
        let connection = &mut self.session.connection;
        let mut done = Vec::with_capacity(calls.len());
        for (at, call) in calls.iter().enumerate() {
            if recorded.contains(&call.fire_id) {
                done.push(CallDone::Before);
                continue;
            }
            let values = call.values.iter().map(mysql_value).collect();
            let run = connection.exec_iter(&prepared, Params::Positional(values)).await;
            let ended = match run {
                Ok(result) => {
                    let rows = result.affected_rows();
                    result.drop_result().await.map(|()| rows)
                }
                Err(error) => Err(error),
            };
            match ended {
                Ok(rows) => done.push(CallDone::Rows(rows)),
                Err(error) => {
                    return Err(match statement_error(error) {
                        error if error.breaks_connection() => BatchError::Lost(error),
                        error => BatchError::Call(at, error),
                    });
                }
            }
        }
        let commit = self.commit().await?;
        match self.session.connection.query_drop(commit).await {
            Ok(()) => Ok(done),
            Err(error) => Err(match statement_error(error) {
                error if error.code() == Some(TOO_LATE) => BatchError::LeaseOver,
                error if error.code().is_some() => BatchError::Whole(error),
                error => BatchError::Unknown(error),
            }),
        }
    }

    /// Returns the text that commits, as long as the leases last.
    async fn commit(&mut self) -> Result<String, BatchError> {
        let clock: Option<String> = match self.guard.is_bounded() {
            true => {
                let query = format!("SELECT CAST({CLOCK} AS CHAR)");
                self.session.connection.query_first(query).await.map_err(whole)?
            }
            false => None,
        };
        match (self.guard.time(), clock) {
            (CommitTime::Unbounded, _) => Ok("COMMIT".to_owned()),
            (CommitTime::Left(left), Some(clock)) => Ok(commit_by(&clock, left)),
            (CommitTime::Over, _) => Err(BatchError::LeaseOver),
            (CommitTime::Left(_), None) => Err(BatchError::Whole(no_clock())),
        }
    }

    /// Records the fires of calls with `exactly_once`. Returns those that were recorded before.
    async fn record(&mut self, calls: &[StatementCall]) -> Result<Vec<String>, BatchError> {
        let exactly_once = calls.iter().filter(|call| call.guarantee == Guarantee::ExactlyOnce);
        let ids: Vec<&str> = exactly_once.map(|call| call.fire_id.as_str()).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let MysqlSession { connection, sink } = &mut *self.session;
        let table = &sink.fires_table;
        let marks = vec!["?"; ids.len()].join(", ");
        let select = format!("SELECT fire_id FROM {table} WHERE fire_id IN ({marks})");
        let values = |ids: &[&str]| Params::Positional(ids.iter().map(|id| (*id).into()).collect());
        let before: Vec<String> = connection.exec(select, values(&ids)).await.map_err(whole)?;
        let new: Vec<&str> =
            ids.into_iter().filter(|id| !before.iter().any(|known| known == id)).collect();
        if new.is_empty() {
            return Ok(before);
        }
        let rows = vec!["(?)"; new.len()].join(", ");
        let insert = format!("INSERT INTO {table} (fire_id) VALUES {rows}");
        match connection.exec_drop(insert, values(&new)).await {
            Ok(()) => Ok(before),
            Err(error) => Err(match statement_error(error) {
                error if error.code() == Some(DUPLICATE) => BatchError::Whole(
                    SqlError::Unexpected("another session records the same fire".to_owned()),
                ),
                error if error.breaks_connection() => BatchError::Lost(error),
                error => BatchError::Whole(error),
            }),
        }
    }
}

/// Commits if the server's clock shows no more than `left` after `clock`. Both statements are one
/// packet, and an error ends it.
fn commit_by(clock: &str, left: Duration) -> String {
    let left = left.as_secs_f64();
    format!("SELECT 9223372036854775807 + IF({CLOCK} < {clock} + {left}, 0, 1); COMMIT")
}

/// An error before any call was run.
fn whole(error: DriverError) -> BatchError {
    match statement_error(error) {
        error if error.breaks_connection() => BatchError::Lost(error),
        error => BatchError::Whole(error),
    }
}

fn mysql_value(value: &SqlValue) -> MysqlValue {
    match value {
        SqlValue::Json(Value::Null) => MysqlValue::NULL,
        SqlValue::Json(Value::Bool(yes)) => MysqlValue::Int(i64::from(*yes)),
        SqlValue::Json(Value::String(text)) => MysqlValue::Bytes(text.clone().into_bytes()),
        SqlValue::Json(Value::Number(number)) => {
            let whole = number.as_i64().map(MysqlValue::Int);
            let whole = whole.or_else(|| number.as_u64().map(MysqlValue::UInt));
            // As text, no digit is lost.
            whole.unwrap_or_else(|| MysqlValue::Bytes(number.to_string().into_bytes()))
        }
        SqlValue::Json(value) => MysqlValue::Bytes(value.to_string().into_bytes()),
        SqlValue::Bytes(bytes) => MysqlValue::Bytes(bytes.clone()),
        SqlValue::Time(time) => {
            // `2026-11-18 17:05:00.000`, without the letters of RFC 3339.
            let text = time.to_string().replace('T', " ").replace('Z', "");
            MysqlValue::Bytes(text.into_bytes())
        }
    }
}
