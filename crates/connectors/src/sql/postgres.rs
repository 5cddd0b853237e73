//! A session with a PostgreSQL server that runs batches of one statement.
//!
//! All statements of a batch are sent without waiting in between; `COMMIT` follows when all have
//! been answered, together with the check of `commit_guard`. Values are sent as text, and the
//! server reads them as the types that it has inferred, so a column can have any type that has a
//! text form.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::{join, join_all, join3};
use punctual_core::{Guarantee, StatementName};
use punctual_engine::Delivery;
use punctual_sql::postgres::{PostgresClient, connect, statement_error};
use punctual_sql::tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};
use punctual_sql::tokio_postgres::{
    Error as DriverError, SimpleQueryMessage, Statement as Prepared,
};
use punctual_sql::{SqlError, SqlKind};
use serde_json::Value;

use super::batch::{BatchError, CallDone, StatementCall, Transaction, run_all};
use super::commit_guard::{CommitGuard, CommitTime, IDLE_MAX, no_clock};
use super::params::SqlValue;
use super::{BatchPlan, SqlSink};
use crate::sink::{DynFuture, SendResult, SessionLost, SinkSession};

/// Errors after which a prepared statement is made anew: its plan or its types are out of date.
const STALE_PLANS: [&str; 2] = ["0A000", "26000"];
/// The error of every statement after the one that broke its transaction.
const IN_FAILED_TRANSACTION: &str = "25P02";
/// The clock of the server, in seconds.
const CLOCK: &str = "extract(epoch FROM clock_timestamp())";
/// What the error of a commit says that comes too late. No other error has this text.
const TOO_LATE: &str = "punctual: the lease ended before the commit";
/// How long the server may take to show that it is there.
const CHECK_MAX: Duration = Duration::from_secs(5);

pub(super) struct PostgresSession {
    connection: PostgresClient,
    sink: SqlSink,
    prepared: HashMap<StatementName, Prepared>,
}

impl PostgresSession {
    pub(super) async fn open(sink: &SqlSink) -> Result<Self, String> {
        let connection = connect(&sink.options).await.map_err(|error| error.to_string())?;
        Ok(Self { connection, sink: sink.clone(), prepared: HashMap::new() })
    }

    fn error(&self, error: &DriverError) -> SqlError {
        statement_error(self.connection.server(), error)
    }

    async fn prepare(&mut self, name: &StatementName, sql: &str) -> Result<Prepared, SqlError> {
        if let Some(prepared) = self.prepared.get(name) {
            return Ok(prepared.clone());
        }
        let prepared = self.connection.prepare(sql).await.map_err(|error| self.error(&error))?;
        self.prepared.insert(name.clone(), prepared.clone());
        Ok(prepared)
    }
}

impl SinkSession for PostgresSession {
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult> {
        Box::pin(async move {
            let BatchPlan { statement, calls, results } = self.sink.plan(batch);
            let (name, sql) = statement.unzip();
            let timeout = batch.first().map_or(CHECK_MAX, |first| first.definition.timeout);
            let answer_bytes = self.sink.answer_bytes;
            let guard = CommitGuard::new(batch, self.sink.clock.clone());
            let mut transaction = PostgresTransaction { session: self, name, sql, timeout, guard };
            run_all(&mut transaction, SqlKind::Postgres, calls, results, answer_bytes).await
        })
    }

    fn check(&mut self) -> DynFuture<'_, Result<(), SessionLost>> {
        Box::pin(async {
            match tokio::time::timeout(CHECK_MAX, self.connection.simple_query("")).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(SessionLost(self.error(&error).to_string())),
                Err(_) => Err(SessionLost(SqlError::Silent(CHECK_MAX).to_string())),
            }
        })
    }
}

/// A transaction that runs one statement for each call.
struct PostgresTransaction<'a> {
    session: &'a mut PostgresSession,
    name: Option<StatementName>,
    sql: Option<String>,
    timeout: Duration,
    guard: CommitGuard<'a>,
}

impl Transaction for PostgresTransaction<'_> {
    fn run<'a>(
        &'a mut self,
        calls: &'a [StatementCall],
    ) -> DynFuture<'a, Result<Vec<CallDone>, BatchError>> {
        Box::pin(async move {
            let result = self.attempt(calls).await;
            if let Err(BatchError::Call(_, error) | BatchError::Whole(error)) = &result {
                let stale = error.code().is_some_and(|code| STALE_PLANS.contains(&code));
                if let Some(name) = self.name.as_ref().filter(|_| stale) {
                    self.session.prepared.remove(name);
                }
            }
            if result.as_ref().is_err_and(BatchError::leaves_a_transaction) {
                self.roll_back().await?;
            }
            result
        })
    }
}

impl PostgresTransaction<'_> {
    async fn attempt(&mut self, calls: &[StatementCall]) -> Result<Vec<CallDone>, BatchError> {
        let (Some(name), Some(sql)) = (&self.name, &self.sql) else {
            return Ok(Vec::new());
        };
        let prepared = self.session.prepare(name, sql).await.map_err(whole)?;
        let session = &*self.session;
        let client = &*session.connection;
        let begin = format!(
            "BEGIN; SET LOCAL statement_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}",
            self.timeout.as_millis(),
            IDLE_MAX.as_millis()
        );
        let begin = client.batch_execute(&begin);
        let recorded: Vec<&str> = calls
            .iter()
            .filter(|call| call.guarantee == Guarantee::ExactlyOnce)
            .map(|call| call.fire_id.as_str())
            .collect();
        let record = format!(
            "INSERT INTO {} (fire_id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING \
             RETURNING fire_id",
            session.sink.fires_table
        );
        let params: Vec<Vec<PostgresParam<'_>>> =
            calls.iter().map(|call| call.values.iter().map(PostgresParam).collect()).collect();
        let execute = |at: usize| {
            let params = params[at].iter().map(|param| param as &(dyn ToSql + Sync));
            let params: Vec<_> = params.collect();
            let prepared = &prepared;
            async move { client.execute(prepared, &params).await }
        };
        let read_clock = format!("SELECT {CLOCK}");
        // After the last statement, so that the time that it takes is no part of the lease.
        let clock = async {
            match self.guard.is_bounded() {
                true => client.simple_query(&read_clock).await.map(|rows| first_text(&rows)),
                false => Ok(None),
            }
        };
        let (skipped, run, clock): (Vec<bool>, Vec<_>, _) = if recorded.is_empty() {
            let all = join_all((0..calls.len()).map(execute));
            let (begun, results, clock) = join3(begin, all, clock).await;
            begun.map_err(|error| BatchError::Lost(session.error(&error)))?;
            (vec![false; calls.len()], results, clock)
        } else {
            begin.await.map_err(|error| BatchError::Lost(session.error(&error)))?;
            let rows = client.query(&record, &[&recorded]).await;
            let rows = rows.map_err(|error| whole(session.error(&error)))?;
            let new: Vec<String> = rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
            let is_new = |call: &StatementCall| {
                call.guarantee != Guarantee::ExactlyOnce || new.contains(&call.fire_id)
            };
            let skipped: Vec<bool> = calls.iter().map(|call| !is_new(call)).collect();
            let run = (0..calls.len()).filter(|at| !skipped[*at]).map(execute);
            let (results, clock) = join(join_all(run), clock).await;
            (skipped, results, clock)
        };
        let positions = (0..calls.len()).filter(|at| !skipped[*at]);
        let mut done = vec![CallDone::Before; calls.len()];
        let mut first = None;
        for (at, result) in positions.zip(run) {
            match result {
                Ok(rows) => done[at] = CallDone::Rows(rows),
                Err(error) => {
                    let error = session.error(&error);
                    if error.breaks_connection() {
                        return Err(BatchError::Lost(error));
                    }
                    if error.code() != Some(IN_FAILED_TRANSACTION) {
                        first.get_or_insert((at, error));
                    }
                }
            }
        }
        if let Some((at, error)) = first {
            return Err(BatchError::Call(at, error));
        }
        let clock = clock.map_err(|error| whole(session.error(&error)))?;
        let commit = match (self.guard.time(), clock) {
            (CommitTime::Unbounded, _) => "COMMIT".to_owned(),
            (CommitTime::Left(left), Some(clock)) => commit_by(&clock, left),
            (CommitTime::Over, _) => return Err(BatchError::LeaseOver),
            (CommitTime::Left(_), None) => return Err(BatchError::Whole(no_clock())),
        };
        match client.batch_execute(&commit).await {
            Ok(()) => Ok(done),
            Err(error) => Err(match session.error(&error) {
                error if error.is_of(TOO_LATE) => BatchError::LeaseOver,
                error if error.code().is_some() => BatchError::Whole(error),
                error => BatchError::Unknown(error),
            }),
        }
    }

    async fn roll_back(&mut self) -> Result<(), BatchError> {
        let rolled_back = self.session.connection.batch_execute("ROLLBACK").await;
        rolled_back.map_err(|error| BatchError::Lost(self.session.error(&error)))
    }
}

/// Commits if the server's clock shows no more than `left` after `clock`. Both statements are one
/// message, and an error ends it.
fn commit_by(clock: &str, left: Duration) -> String {
    // The function keeps the planner from evaluating the text in advance.
    format!(
        "SELECT CASE WHEN {CLOCK} < {clock} + {} THEN 0 ELSE concat('{TOO_LATE}')::int END; COMMIT",
        left.as_secs_f64()
    )
}

/// Returns the first column of the first row.
fn first_text(rows: &[SimpleQueryMessage]) -> Option<String> {
    rows.iter().find_map(|row| match row {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// An error before any call was run.
fn whole(error: SqlError) -> BatchError {
    match error.breaks_connection() {
        true => BatchError::Lost(error),
        false => BatchError::Whole(error),
    }
}

/// A value in text form.
#[derive(Debug)]
struct PostgresParam<'a>(&'a SqlValue);

impl ToSql for PostgresParam<'_> {
    fn to_sql(
        &self,
        of: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self.0 {
            SqlValue::Json(Value::Null) => return Ok(IsNull::Yes),
            SqlValue::Json(Value::String(text)) if !matches!(*of, Type::JSON | Type::JSONB) => {
                out.extend_from_slice(text.as_bytes());
            }
            SqlValue::Json(value) => write!(out, "{value}")?,
            SqlValue::Time(time) => write!(out, "{time}")?,
            SqlValue::Bytes(bytes) if *of == Type::BYTEA => {
                out.extend_from_slice(b"\\x");
                bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))?;
            }
            SqlValue::Bytes(bytes) => out.extend_from_slice(bytes),
        }
        Ok(IsNull::No)
    }

    /// The server reads the text, and refuses what does not fit.
    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}
