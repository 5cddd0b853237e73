//! Sessions: connections with their settings, which reconnect.
//!
//! A connection runs one statement at a time, so it is taken for a turn. A turn that ends in the
//! middle of a statement, because its caller gave up or the server did not answer, closes the
//! connection, and the server rolls its transaction back.

use std::sync::{Arc, Mutex, PoisonError};

use punctual_sql::mysql_async::prelude::Queryable as _;
use punctual_sql::mysql_async::{Conn, Row};
use punctual_sql::{Reconnecting, SqlError, SqlOptions, mysql};

use super::server::ServerFlavor;
use super::template::FilledStatement;

/// The server has become a replica, or is one.
const READ_ONLY: [&str; 3] = ["1290", "1792", "1836"];

/// How the sessions of a store connect.
#[derive(Debug)]
pub(super) struct MysqlConnectOptions {
    pub(super) sql: SqlOptions,
    pub(super) cluster: String,
    pub(super) flavor: ServerFlavor,
    /// The largest packet of a batch.
    pub(super) packet_max: usize,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionUse {
    Write,
    Read,
}

/// An open connection; `None` while a turn has it, and if a turn has lost it.
#[derive(Debug)]
struct KeptConnection(Mutex<Option<Conn>>);

impl KeptConnection {
    async fn open(
        options: Arc<MysqlConnectOptions>,
        used: ConnectionUse,
    ) -> Result<Self, SqlError> {
        let mut connection = mysql::connect(&options.sql).await?;
        for setting in settings(&options, used) {
            let set = connection.query_drop(setting);
            mysql::within(options.sql.statement_timeout, set).await?;
        }
        Ok(Self(Mutex::new(Some(connection))))
    }

    /// A panic cannot leave the connection half-moved.
    fn held(&self) -> std::sync::MutexGuard<'_, Option<Conn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The settings of a session. Under READ COMMITTED a statement locks the rows that it changes, and
/// no gaps between them.
fn settings(options: &MysqlConnectOptions, used: ConnectionUse) -> Vec<String> {
    let timeout = options.sql.statement_timeout;
    // Waits for locks are whole seconds, at least one.
    let seconds = timeout.as_secs().max(1);
    let mut all = vec![
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
        format!(
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, \
             time_zone = '+00:00', innodb_lock_wait_timeout = {seconds}, \
             lock_wait_timeout = {seconds}, sql_safe_updates = 0, sql_big_selects = 1"
        ),
    ];
    match (options.flavor, used) {
        (ServerFlavor::Mariadb, ConnectionUse::Read) => {
            let limit = timeout.as_secs_f64();
            all.push(format!(
                "SET SESSION max_statement_time = {limit}, in_predicate_conversion_threshold = 0"
            ));
        }
        // A timeout could end a commit that waits for a replica, which is made all the same.
        (ServerFlavor::Mariadb, ConnectionUse::Write) => all.push(format!(
            "SET SESSION max_statement_time = 0, idle_transaction_timeout = {seconds}, \
             in_predicate_conversion_threshold = 0"
        )),
        (ServerFlavor::Mysql, ConnectionUse::Read) => {
            all.push(format!("SET SESSION max_execution_time = {}", timeout.as_millis()));
        }
        (ServerFlavor::Mysql, ConnectionUse::Write) => {}
    }
    all
}

/// A connection that is opened when it is needed, and again after it broke. One turn at a time has
/// it.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    used: ConnectionUse,
    turn: tokio::sync::Mutex<()>,
    kept: Reconnecting<KeptConnection>,
}

impl ConnectionSlot {
    pub(super) fn new(used: ConnectionUse) -> Self {
        Self { used, turn: tokio::sync::Mutex::default(), kept: Reconnecting::default() }
    }

    /// Waits for the turn.
    pub(super) async fn take<'a>(
        &'a self,
        options: &'a Arc<MysqlConnectOptions>,
    ) -> Result<SqlTurn<'a>, SqlError> {
        let turn = self.turn.lock().await;
        self.begin(options, turn).await
    }

    async fn begin<'a>(
        &'a self,
        options: &'a Arc<MysqlConnectOptions>,
        turn: tokio::sync::MutexGuard<'a, ()>,
    ) -> Result<SqlTurn<'a>, SqlError> {
        let open = || KeptConnection::open(Arc::clone(options), self.used);
        let mut session = self.kept.get(open).await?;
        let mut connection = session.held().take();
        if connection.is_none() {
            self.kept.lost(&session);
            session = self.kept.get(open).await?;
            connection = session.held().take();
        }
        Ok(SqlTurn { options, session, connection, busy: false, _turn: turn })
    }
}

/// Several connections for the same purpose.
#[derive(Debug)]
pub(super) struct ConnectionSlots(Vec<ConnectionSlot>);

impl ConnectionSlots {
    pub(super) fn new(count: usize, used: ConnectionUse) -> Self {
        Self(std::iter::repeat_with(|| ConnectionSlot::new(used)).take(count).collect())
    }

    pub(super) const fn count(&self) -> usize {
        self.0.len()
    }

    /// Waits for the turn at one that is always the same for a number.
    pub(super) async fn take_numbered<'a>(
        &'a self,
        number: usize,
        options: &'a Arc<MysqlConnectOptions>,
    ) -> Result<SqlTurn<'a>, SqlError> {
        self.0[number % self.0.len()].take(options).await
    }

    /// Takes one that is free, or waits for the first.
    pub(super) async fn take<'a>(
        &'a self,
        options: &'a Arc<MysqlConnectOptions>,
    ) -> Result<SqlTurn<'a>, SqlError> {
        for slot in &self.0 {
            if let Ok(turn) = slot.turn.try_lock() {
                return slot.begin(options, turn).await;
            }
        }
        self.0[0].take(options).await
    }
}

/// A turn at a connection.
pub(super) struct SqlTurn<'a> {
    options: &'a MysqlConnectOptions,
    session: Arc<KeptConnection>,
    connection: Option<Conn>,
    /// A statement was sent whose answer has not been read.
    busy: bool,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for SqlTurn<'_> {
    fn drop(&mut self) {
        if !self.busy {
            *self.session.held() = self.connection.take();
        }
    }
}

impl SqlTurn<'_> {
    fn connection(&mut self) -> Result<&mut Conn, SqlError> {
        let lost = || SqlError::Unreachable {
            server: "the database".to_owned(),
            why: "the connection is lost".to_owned(),
        };
        self.busy = true;
        self.connection.as_mut().ok_or_else(lost)
    }

    fn ended<T>(&mut self, result: Result<T, SqlError>) -> Result<T, SqlError> {
        let unusable = result.as_ref().is_err_and(|error| match error {
            SqlError::Statement { code, .. } => READ_ONLY.contains(&code.as_str()),
            _ => true,
        });
        self.busy = unusable;
        result
    }

    /// Runs a statement that returns rows.
    pub(super) async fn rows(&mut self, filled: FilledStatement) -> Result<Vec<Row>, SqlError> {
        let limit = self.options.sql.statement_timeout;
        let FilledStatement { text, values } = filled;
        let rows = mysql::within(limit, self.connection()?.exec(text, values)).await;
        self.ended(rows)
    }

    /// Runs a statement. Returns how many rows it changed.
    pub(super) async fn change(&mut self, filled: FilledStatement) -> Result<u64, SqlError> {
        let limit = self.options.sql.statement_timeout;
        let FilledStatement { text, values } = filled;
        let changed = mysql::within(limit, self.connection()?.exec_drop(text, values)).await;
        self.ended(changed)?;
        Ok(self.connection.as_ref().map_or(0, Conn::affected_rows))
    }

    /// Runs a transaction, whose text begins and ends it. After an error it is rolled back, or
    /// whether it was committed is unknown.
    pub(super) async fn transact(&mut self, packets: Vec<String>) -> Result<(), SqlError> {
        let limit = self.options.sql.statement_timeout;
        // MariaDB has a setting for that, which every session has.
        let bounded = packets.len() > 1 && self.options.flavor == ServerFlavor::Mysql;
        if bounded {
            self.bound_idle_time().await?;
        }
        for packet in packets {
            let sent = mysql::within(limit, self.connection()?.query_drop(packet)).await;
            if let Err(error) = self.ended(sent) {
                if !self.busy {
                    self.roll_back().await;
                }
                return Err(error);
            }
        }
        // The bound is that of one transaction: the connection is closed.
        self.busy = bounded;
        Ok(())
    }

    /// Has the server end the session if the next packet of a transaction does not come: it would
    /// hold its locks.
    async fn bound_idle_time(&mut self) -> Result<(), SqlError> {
        let limit = self.options.sql.statement_timeout;
        let setting = format!("SET SESSION wait_timeout = {}", limit.as_secs().max(1));
        let set = mysql::within(limit, self.connection()?.query_drop(setting)).await;
        self.ended(set)
    }

    async fn roll_back(&mut self) {
        let limit = self.options.sql.statement_timeout;
        let Ok(connection) = self.connection() else { return };
        let ended = mysql::within(limit, connection.query_drop("ROLLBACK")).await;
        // A connection whose transaction may be open is closed.
        self.busy = ended.is_err();
    }
}
