//! SQL databases: statements of the configuration as sinks.
//!
//! `statement` reads the text of a statement and its named parameters, `params` binds them to
//! values of a delivery, `postgres` and `mysql` run batches in one transaction, `commit_guard`
//! keeps them from being committed after the lease, `verdict` decides what an error means for a
//! delivery. `schema` has the tables that Punctual uses.

mod batch;
mod commit_guard;
mod mysql;
mod params;
mod postgres;
pub mod schema;
pub(crate) mod statement;
mod verdict;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use punctual_core::{AttemptResult, Clock, SinkAddress, StatementName, Target};
use punctual_engine::Delivery;
use punctual_sql::{SqlKind, SqlOptions};

use crate::sink::{DynFuture, Sink, SinkSession, failed, refused};
use batch::StatementCall;
use statement::Statement;

/// A database whose statements tasks may run.
#[derive(Clone)]
pub(crate) struct SqlSink {
    pub(crate) options: SqlOptions,
    pub(crate) statements: Arc<BTreeMap<StatementName, Statement>>,
    /// The table that records fire ids for `exactly_once`.
    pub(crate) fires_table: String,
    /// Bytes of each answer that are kept.
    pub(crate) answer_bytes: usize,
    /// The clock of leases.
    pub(crate) clock: Arc<dyn Clock>,
}

impl fmt::Debug for SqlSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SqlSink").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Sink for SqlSink {
    fn connect(&self) -> DynFuture<'_, Result<Box<dyn SinkSession>, String>> {
        Box::pin(async {
            let session: Box<dyn SinkSession> = match self.options.kind {
                SqlKind::Postgres => Box::new(postgres::PostgresSession::open(self).await?),
                SqlKind::Mysql => Box::new(mysql::MysqlSession::open(self).await?),
            };
            Ok(session)
        })
    }
}

/// A batch of deliveries with bound values, ready to run.
#[derive(Debug)]
struct BatchPlan {
    /// `None` if the configuration has the statement no longer; then all have a result.
    statement: Option<(StatementName, String)>,
    calls: Vec<StatementCall>,
    /// The results of deliveries that need not be run.
    results: Vec<Option<AttemptResult>>,
}

impl SqlSink {
    /// Binds the values of deliveries, all to the same statement.
    fn plan(&self, batch: &[Delivery]) -> BatchPlan {
        let name = batch.first().and_then(|first| match &first.definition.target {
            Target::Sink(sink) => match &sink.address {
                SinkAddress::Sql(call) => Some(call.statement()),
                SinkAddress::Message(_) => None,
            },
            Target::Http(_) | Target::Queue(_) | Target::Mail(_) | Target::Grpc(_) => None,
        });
        let statement = name.and_then(|name| self.statements.get(name));
        let (Some(name), Some(statement)) = (name, statement) else {
            let gone = || failed("the configuration of the connection has no such statement");
            let results = batch.iter().map(|_| Some(gone())).collect();
            return BatchPlan { statement: None, calls: Vec::new(), results };
        };
        let (mut calls, mut results) = (Vec::new(), Vec::new());
        for (at, delivery) in batch.iter().enumerate() {
            results.push(match params::bind(statement, delivery) {
                Ok(values) => {
                    let guarantee = delivery.definition.guarantee;
                    let fire_id = delivery.fire_id.to_string();
                    calls.push(StatementCall { at, values, fire_id, guarantee });
                    None
                }
                Err(problem) => Some(refused(&problem)),
            });
        }
        BatchPlan { statement: Some((name.clone(), statement.sql.clone())), calls, results }
    }
}
