//! A session with a MySQL or MariaDB server that runs batches of one statement.
//!
//! The protocol answers one statement at a time. Values are sent as numbers or as text, which the
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
use super::params::SqlValue;
use super::{BatchPlan, SqlSink};
use crate::sink::{DynFuture, SendResult, SessionLost, SinkSession};

/// Without gap locks, batches of different fires do not wait for each other.
const ISOLATION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
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
        Ok(Self { connection, sink: sink.clone() })
    }
}

impl SinkSession for MysqlSession {
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult> {
        Box::pin(async move {
            let BatchPlan { statement, calls, results } = self.sink.plan(batch);
            let sql = statement.map_or_else(String::new, |(_, sql)| sql);
            let answer_bytes = self.sink.answer_bytes;
            let mut transaction = MysqlTransaction { session: self, sql };
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
}

impl Transaction for MysqlTransaction<'_> {
    fn run<'a>(
        &'a mut self,
        calls: &'a [StatementCall],
    ) -> DynFuture<'a, Result<Vec<CallDone>, BatchError>> {
        Box::pin(async move {
            let result = self.attempt(calls).await;
            if matches!(result, Err(BatchError::Call(..) | BatchError::Whole(_))) {
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
        match connection.query_drop("COMMIT").await {
            Ok(()) => Ok(done),
            Err(error) => Err(match statement_error(error) {
                error if error.code().is_some() => BatchError::Whole(error),
                error => BatchError::Unknown(error),
            }),
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
