//! Connections and sources of the configuration file.
//!
//! `[connections.NAME]` says where a system is and who may use it; `[[sources]]` what is read from
//! it. [`ConnectorConfig::read`] checks all of it; an error names the key. Tasks name a connection
//! and a place in it; [`Connections::check`] decides whether their namespace may, when a task is
//! created and again when it is delivered.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{
    ConnectionName, Invalid, Namespace, SinkAddress, SinkTarget, StatementName, parse_duration,
};
use punctual_sql::{SqlKind, SqlOptions, SqlSecret};
use serde::{Deserialize, Deserializer};

use crate::place::matches;
use crate::sql::SqlSink;
use crate::sql::schema::{FIRES_TABLE, OUTBOX_TABLE, REJECTED_SUFFIX, is_table_name};
use crate::sql::statement::Statement;

/// Connections of one broker. Each has its own sessions.
const CONNECTIONS_MAX: usize = 64;
/// Sources of one broker.
const SOURCES_MAX: usize = 64;
/// Statements of one connection. Each session prepares those that it runs.
const STATEMENTS_MAX: usize = 100;
/// Sessions of one connection by default: a slow statement holds up half of them at most.
const SESSIONS_DEFAULT: usize = 4;
/// The most sessions. Databases have a process for each.
const SESSIONS_MAX: usize = 32;
/// Bytes of a file with a password or certificates. A larger one is probably the wrong file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The largest connect timeout of a session.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an outbox is read by default, and the range of it.
const POLL_DEFAULT: Duration = Duration::from_millis(100);
const POLL_MIN: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_secs(60);
/// Rows that are taken at once by default: one commit of the store and of the database for all.
const BATCH_DEFAULT: usize = 1000;
/// The most rows at once. All are in memory and locked until they are tasks.
const BATCH_MAX: usize = 10_000;

/// `[connections.NAME]` as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionSettings {
    kind: ConnectionKind,
    url: HiddenText,
    password: Option<HiddenText>,
    tls_ca: Option<PathBuf>,
    #[serde(default)]
    namespaces: Vec<String>,
    allow: Option<Vec<String>>,
    sessions: Option<usize>,
    fires_table: Option<String>,
    #[serde(default)]
    statements: BTreeMap<String, StatementSettings>,
}

/// The system at the other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionKind {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    Mysql,
}

impl ConnectionKind {
    /// The kind as the configuration writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
        }
    }

    const fn sql(self) -> SqlKind {
        match self {
            Self::Postgres => SqlKind::Postgres,
            Self::Mysql => SqlKind::Mysql,
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a statement, or a table with `sql` and `params`")]
enum StatementSettings {
    Text(String),
    Table(StatementTable),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatementTable {
    sql: String,
    /// JSON pointers into the payload, by parameter.
    #[serde(default)]
    params: BTreeMap<String, String>,
}

/// One of `[[sources]]` as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSettings {
    kind: SourceKind,
    connection: String,
    table: Option<String>,
    namespace: String,
    target: Option<serde_json::Value>,
    #[serde(default, deserialize_with = "duration")]
    poll: Option<Duration>,
    batch: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SourceKind {
    Outbox,
}

/// A text that may hold a secret.
#[derive(Clone, Deserialize)]
struct HiddenText(String);

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What is wrong with the configuration of a connection or a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct SettingsError {
    /// The key, like `connections.shop.url`.
    pub key: String,
    /// What is wrong and what is allowed, without any secret.
    pub problem: String,
}

impl SettingsError {
    fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

/// A connection, checked.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(crate) name: ConnectionName,
    pub(crate) kind: ConnectionKind,
    pub(crate) options: SqlOptions,
    pub(crate) namespaces: Vec<String>,
    pub(crate) allow: Vec<String>,
    pub(crate) sessions: usize,
    fires_table: String,
    statements: Arc<BTreeMap<StatementName, Statement>>,
}

impl Connection {
    pub(crate) fn sql_sink(&self, answer_bytes: usize) -> SqlSink {
        SqlSink {
            options: self.options.clone(),
            statements: Arc::clone(&self.statements),
            fires_table: self.fires_table.clone(),
            answer_bytes,
        }
    }

    /// Where the other side is, without secrets.
    pub(crate) fn address(&self) -> String {
        self.options.shown()
    }

    /// The places that tasks may name, if they are allowed to.
    pub(crate) fn places(&self) -> Vec<String> {
        self.statements.keys().map(|name| name.as_str().to_owned()).collect()
    }
}

/// All connections, and who may use them. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<BTreeMap<ConnectionName, Connection>>);

/// An outbox, checked.
#[derive(Debug, Clone)]
pub struct OutboxSettings {
    pub(crate) connection: ConnectionName,
    pub(crate) options: SqlOptions,
    pub(crate) table: String,
    pub(crate) namespace: Namespace,
    /// The target of rows that have none, in JSON as in the API.
    pub(crate) target: Option<serde_json::Value>,
    pub(crate) poll: Duration,
    pub(crate) batch: usize,
}

/// Connections and sources, checked.
#[derive(Debug, Clone, Default)]
pub struct ConnectorConfig {
    /// The connections.
    pub connections: Connections,
    /// The sources.
    pub sources: Vec<OutboxSettings>,
}

impl Connections {
    /// The connections, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.0.values()
    }

    /// Whether a namespace may use a target. The field of an error is relative to the target, like
    /// `sql.statement`.
    pub fn check(&self, namespace: &Namespace, sink: &SinkTarget) -> Result<(), Invalid> {
        let (kind, name) = (sink.field(), sink.connection.as_str());
        let invalid =
            |field: &str, problem: String| Invalid::new(format!("{kind}.{field}"), problem);
        let Some(connection) = self.0.get(&sink.connection) else {
            let problem = format!("the broker's configuration has no connection {name:?}");
            return Err(invalid("connection", problem));
        };
        let open = connection.namespaces.iter().any(|open| matches(open, namespace.as_str()));
        if !open {
            let problem = format!(
                "connection {name:?} is not open to namespace {:?}; see \
                 connections.{name}.namespaces",
                namespace.as_str()
            );
            return Err(invalid("connection", problem));
        }
        let SinkAddress::Sql(call) = &sink.address else {
            let own = connection.kind.as_str();
            let problem = format!("connection {name:?} is of kind {own}, which takes no {kind}");
            return Err(invalid("connection", problem));
        };
        let permission = sink.permission();
        if !connection.allow.iter().any(|pattern| matches(pattern, &permission)) {
            let problem = format!(
                "connection {name:?} does not allow {permission:?}; see connections.{name}.allow"
            );
            return Err(invalid(sink.place_field(), problem));
        }
        if !connection.statements.contains_key(call.statement()) {
            let statement = call.statement().as_str();
            let problem = format!("connection {name:?} has no statement {statement:?}");
            return Err(invalid("statement", problem));
        }
        Ok(())
    }
}

impl ConnectorConfig {
    /// Checks connections and sources as they are written. Files of secrets are read.
    pub fn read(
        connections: &BTreeMap<String, ConnectionSettings>,
        sources: &[SourceSettings],
    ) -> Result<Self, SettingsError> {
        let many = |key: &str, max: usize, count: usize| {
            let problem = format!("must be at most {max}, are {count}");
            (count > max).then(|| SettingsError::new(key, problem)).map_or(Ok(()), Err)
        };
        many("connections", CONNECTIONS_MAX, connections.len())?;
        many("sources", SOURCES_MAX, sources.len())?;
        let checked = connections.iter().map(|(name, settings)| {
            let key = format!("connections.{name}");
            let connection = connection(name, &key, settings)?;
            Ok((connection.name.clone(), connection))
        });
        let checked = checked.collect::<Result<BTreeMap<_, _>, SettingsError>>()?;
        let sources = sources.iter().enumerate();
        let sources =
            sources.map(|(at, source)| outbox(&format!("sources[{at}]"), source, &checked));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { connections: Connections(Arc::new(checked)), sources })
    }
}

fn connection(
    name: &str,
    key: &str,
    settings: &ConnectionSettings,
) -> Result<Connection, SettingsError> {
    let at = |field: &str, problem: String| SettingsError::new(format!("{key}.{field}"), problem);
    let name =
        ConnectionName::new(name).map_err(|invalid| SettingsError::new(key, invalid.problem))?;
    let mut options =
        SqlOptions::from_url(&settings.url.0).map_err(|error| at("url", error.to_string()))?;
    if options.kind != settings.kind.sql() {
        let problem = format!("must begin with {}://, like its kind", settings.kind.as_str());
        return Err(at("url", problem));
    }
    if let Some(password) = &settings.password {
        let Some(path) = password.0.strip_prefix('@') else {
            return Err(at("password", "must be @ and the path of a file".to_owned()));
        };
        let text = read_file(Path::new(path)).map_err(|problem| at("password", problem))?;
        let text = String::from_utf8(text)
            .map_err(|_| at("password", format!("{path} is not UTF-8 text")))?;
        options.password = Some(SqlSecret::new(text.trim_end_matches(['\r', '\n']).to_owned()));
    }
    if let Some(path) = &settings.tls_ca {
        let pem = read_file(path).map_err(|problem| at("tls_ca", problem))?;
        options = options.with_authority(pem);
    }
    options.connect_timeout = CONNECT_TIMEOUT;
    options.application = format!("punctual {name}");
    for namespace in &settings.namespaces {
        if namespace.is_empty() {
            return Err(at("namespaces", "must not have an empty name".to_owned()));
        }
    }
    let sessions = settings.sessions.unwrap_or(SESSIONS_DEFAULT);
    if !(1..=SESSIONS_MAX).contains(&sessions) {
        return Err(at("sessions", format!("must be 1 to {SESSIONS_MAX}, is {sessions}")));
    }
    let fires_table = settings.fires_table.clone().unwrap_or_else(|| FIRES_TABLE.to_owned());
    if !is_table_name(&fires_table) {
        return Err(at("fires_table", "must be the name of a table".to_owned()));
    }
    let count = settings.statements.len();
    if count > STATEMENTS_MAX {
        let problem = format!("must be at most {STATEMENTS_MAX}, are {count}");
        return Err(at("statements", problem));
    }
    let statements = settings.statements.iter().map(|(name, statement)| {
        let field = format!("statements.{name}");
        let checked = StatementName::new(name).map_err(|invalid| at(&field, invalid.problem))?;
        let none = BTreeMap::new();
        let (sql, params) = match statement {
            StatementSettings::Text(sql) => (sql, &none),
            StatementSettings::Table(table) => (&table.sql, &table.params),
        };
        let statement = Statement::parse(sql, params, settings.kind.sql());
        Ok((checked, statement.map_err(|problem| at(&field, problem))?))
    });
    Ok(Connection {
        name,
        kind: settings.kind,
        options,
        namespaces: settings.namespaces.clone(),
        allow: settings.allow.clone().unwrap_or_else(|| vec!["*".to_owned()]),
        sessions,
        fires_table,
        statements: Arc::new(statements.collect::<Result<_, SettingsError>>()?),
    })
}

fn outbox(
    key: &str,
    settings: &SourceSettings,
    connections: &BTreeMap<ConnectionName, Connection>,
) -> Result<OutboxSettings, SettingsError> {
    let at = |field: &str, problem: String| SettingsError::new(format!("{key}.{field}"), problem);
    let SourceKind::Outbox = settings.kind;
    let name = ConnectionName::new(&settings.connection)
        .map_err(|invalid| at("connection", invalid.problem))?;
    let Some(connection) = connections.get(&name) else {
        return Err(at("connection", format!("there is no connection {:?}", name.as_str())));
    };
    let table = settings.table.clone().unwrap_or_else(|| OUTBOX_TABLE.to_owned());
    if !is_table_name(&table) || !is_table_name(&format!("{table}{REJECTED_SUFFIX}")) {
        return Err(at("table", "must be the name of a table".to_owned()));
    }
    let poll = settings.poll.unwrap_or(POLL_DEFAULT);
    if !(POLL_MIN..=POLL_MAX).contains(&poll) {
        return Err(at("poll", "must be 5ms to 1m".to_owned()));
    }
    let batch = settings.batch.unwrap_or(BATCH_DEFAULT);
    if !(1..=BATCH_MAX).contains(&batch) {
        return Err(at("batch", format!("must be 1 to {BATCH_MAX}, is {batch}")));
    }
    let namespace =
        Namespace::new(&settings.namespace).map_err(|invalid| at("namespace", invalid.problem))?;
    let (options, target) = (connection.options.clone(), settings.target.clone());
    Ok(OutboxSettings { connection: name, options, table, namespace, target, poll, batch })
}

impl OutboxSettings {
    /// The target of rows that have none, in JSON as in the API.
    #[must_use]
    pub const fn target(&self) -> Option<&serde_json::Value> {
        self.target.as_ref()
    }

    /// The namespace of its tasks.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let size = std::fs::metadata(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    if size.len() > FILE_BYTES_MAX {
        return Err(format!("{shown} has more than {FILE_BYTES_MAX} bytes"));
    }
    std::fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}
