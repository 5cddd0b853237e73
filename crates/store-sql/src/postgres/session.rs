//! Sessions: connections with their settings and prepared statements, which reconnect.
//!
//! A role has a connection of its own, so that a long read does not delay a lease. Statements that
//! are started together on one session are sent in one go, in their order.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use punctual_sql::postgres::PostgresClient;
use punctual_sql::tokio_postgres::types::ToSql;
use punctual_sql::tokio_postgres::{Error, Row, Statement};
use punctual_sql::{Reconnecting, SqlError, SqlOptions, postgres};

use crate::options::SqlDurability;
use crate::values::StatementParam;

/// The server has become a replica, or is one.
const READ_ONLY: &str = "25006";

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionRole {
    /// Commits batches and leases. No statement timeout: if it ends a commit that waits for a
    /// synchronous replica, PostgreSQL reports success. Waits for locks are bounded instead.
    Write,
    /// Reads.
    Read,
}

/// How the sessions of a store connect.
#[derive(Debug)]
pub(super) struct SessionOptions {
    pub(super) sql: SqlOptions,
    pub(super) cluster: String,
    pub(super) durability: SqlDurability,
}

/// An open connection whose search path is the schema of the cluster.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) connection: PostgresClient,
    /// By their text.
    statements: Mutex<HashMap<&'static str, Statement>>,
    /// Calls in a row whose caller gave up: its deadline may be shorter than the timeout.
    unanswered: AtomicU32,
}

/// After so many calls in a row without an answer the connection counts as broken. One alone may be
/// a caller that went away.
const UNANSWERED_MAX: u32 = 2;

/// Notes whether a call ended, or its caller gave up.
pub(super) struct CallGuard<'a> {
    session: &'a Session,
    ended: bool,
}

impl CallGuard<'_> {
    pub(super) fn ended(mut self) {
        self.ended = true;
        self.session.unanswered.store(0, Ordering::Relaxed);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.session.unanswered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Session {
    async fn open(options: Arc<SessionOptions>, role: SessionRole) -> Result<Self, SqlError> {
        let connection = postgres::connect(&options.sql).await?;
        let setup = setup(&options, role);
        connection.within(connection.batch_execute(&setup)).await?;
        let unanswered = AtomicU32::new(0);
        Ok(Self { connection, statements: Mutex::default(), unanswered })
    }

    /// Begins a call.
    pub(super) const fn guard(&self) -> CallGuard<'_> {
        CallGuard { session: self, ended: false }
    }

    fn is_broken(&self) -> bool {
        let unanswered = self.unanswered.load(Ordering::Relaxed);
        self.connection.is_closed() || unanswered >= UNANSWERED_MAX
    }

    /// Returns a prepared statement. It is prepared once per connection.
    pub(super) async fn statement(&self, text: &'static str) -> Result<Statement, SqlError> {
        let known = self.statements().get(text).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.connection.within(self.connection.prepare(text)).await?;
        self.statements().insert(text, statement.clone());
        Ok(statement)
    }

    /// A panic cannot leave the map half-written.
    fn statements(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, Statement>> {
        self.statements.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn query(
        &self,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<Vec<Row>, SqlError> {
        let statement = self.statement(text).await?;
        let params: Vec<&(dyn ToSql + Sync)> =
            params.iter().map(|param| param as &(dyn ToSql + Sync)).collect();
        self.connection.within(self.connection.query(&statement, &params)).await
    }
}

/// Every statement is planned once, for any parameters, and by index: on a table that was filled
/// since it was analysed, the planner would sort or scan it.
fn setup(options: &SessionOptions, role: SessionRole) -> String {
    let timeout = options.sql.statement_timeout.as_millis();
    let cluster = &options.cluster;
    let mut setup = format!(
        "SET search_path TO \"{cluster}\"; SET plan_cache_mode = force_generic_plan; \
         SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; \
         SET enable_mergejoin = off; SET enable_sort = off; SET jit = off; \
         SET client_min_messages = warning; SET tcp_keepalives_idle = 5; \
         SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
         SET idle_in_transaction_session_timeout = {timeout};"
    );
    if role == SessionRole::Write {
        setup.push_str(&format!("SET statement_timeout = 0; SET lock_timeout = {timeout};"));
        match options.durability {
            SqlDurability::Server => {}
            SqlDurability::Fsync | SqlDurability::Replica => {
                setup.push_str("SET synchronous_commit = on;");
            }
        }
    }
    setup
}

/// A session that is opened when it is needed, and again after it broke.
#[derive(Debug)]
pub(super) struct SessionSlot {
    role: SessionRole,
    kept: Reconnecting<Session>,
}

impl SessionSlot {
    pub(super) fn new(role: SessionRole) -> Self {
        Self { role, kept: Reconnecting::default() }
    }

    pub(super) async fn session(
        &self,
        options: &Arc<SessionOptions>,
    ) -> Result<Arc<Session>, SqlError> {
        let open = || Session::open(Arc::clone(options), self.role);
        let session = self.kept.get(open).await?;
        if !session.is_broken() {
            return Ok(session);
        }
        self.kept.lost(&session);
        self.kept.get(open).await
    }

    /// Forgets the session if the error shows that it is unusable.
    pub(super) fn failed(&self, session: &Arc<Session>, error: &SqlError) {
        let closed = session.connection.is_closed();
        if closed || error.breaks_connection() || error.code() == Some(READ_ONLY) {
            self.kept.lost(session);
        }
    }

    /// Runs one statement.
    pub(super) async fn query(
        &self,
        options: &Arc<SessionOptions>,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<Vec<Row>, SqlError> {
        let session = self.session(options).await?;
        self.query_on(&session, text, params).await
    }

    /// Runs a statement that reads. If the server has closed the connection since it was used last,
    /// for example by a restart, the statement is run on a new one.
    pub(super) async fn read(
        &self,
        options: &Arc<SessionOptions>,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<Vec<Row>, SqlError> {
        let session = self.session(options).await?;
        match self.query_on(&session, text, params).await {
            Err(SqlError::Unreachable { .. }) => self.query(options, text, params).await,
            result => result,
        }
    }

    async fn query_on(
        &self,
        session: &Arc<Session>,
        text: &'static str,
        params: &[StatementParam<'_>],
    ) -> Result<Vec<Row>, SqlError> {
        let guard = session.guard();
        let rows = session.query(text, params).await;
        guard.ended();
        if let Err(error) = &rows {
            self.failed(session, error);
        }
        rows
    }
}

/// A connection for batches, which one batch at a time uses: the statements of two must not mix.
#[derive(Debug)]
pub(super) struct WriteSlot {
    pub(super) slot: SessionSlot,
    pub(super) turn: tokio::sync::Mutex<()>,
}

/// A future that yields the result of one statement.
pub(super) type Pending<'a> = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send + 'a>>;

/// Sends statements in one go, in their order, and waits for all of them. The first error counts:
/// the others follow from it.
pub(super) async fn all_in_order(mut statements: Vec<Pending<'_>>) -> Result<(), Error> {
    let mut results: Vec<Option<Result<u64, Error>>> = statements.iter().map(|_| None).collect();
    poll_fn(|context| {
        // Each is sent when it is polled first.
        for (statement, result) in statements.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ready) = statement.as_mut().poll(context)
            {
                *result = Some(ready);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    for result in results.into_iter().flatten() {
        result?;
    }
    Ok(())
}
