//! Connections, checked: where a system is, and which namespace may use which places of it.
//!
//! Tasks name a connection and a place in it; [`Connections::check`] decides whether their
//! namespace may, when a task is created and again when it is delivered.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual_core::{
    Clock, ConnectionName, Invalid, MessageSystem, Namespace, SinkAddress, SinkTarget,
    StatementName,
};
use punctual_sql::{SqlKind, SqlOptions};
use serde::Deserialize;

use crate::endpoint::{Endpoint, UrlForm};
use crate::place::matches;
use crate::sql::SqlSink;
use crate::sql::statement::Statement;

/// The system at the other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionKind {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    Mysql,
    /// Kafka.
    Kafka,
    /// AMQP 0.9.1, like RabbitMQ.
    Amqp,
    /// NATS with `JetStream`.
    Nats,
    /// MQTT 5.
    Mqtt,
    /// Redis: streams.
    Redis,
}

/// Which protocol a kind speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KindFamily {
    Sql(SqlKind),
    Message(MessageSystem),
}

impl ConnectionKind {
    /// The kind as the configuration writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Kafka => "kafka",
            Self::Amqp => "amqp",
            Self::Nats => "nats",
            Self::Mqtt => "mqtt",
            Self::Redis => "redis",
        }
    }

    pub(crate) const fn family(self) -> KindFamily {
        match self {
            Self::Postgres => KindFamily::Sql(SqlKind::Postgres),
            Self::Mysql => KindFamily::Sql(SqlKind::Mysql),
            Self::Kafka => KindFamily::Message(MessageSystem::Kafka),
            Self::Amqp => KindFamily::Message(MessageSystem::Amqp),
            Self::Nats => KindFamily::Message(MessageSystem::Nats),
            Self::Mqtt => KindFamily::Message(MessageSystem::Mqtt),
            Self::Redis => KindFamily::Message(MessageSystem::RedisStream),
        }
    }

    /// The feature of the build that a kind needs; `None` if every build has it.
    pub(crate) const fn missing_feature(self) -> Option<&'static str> {
        match self {
            Self::Kafka if !cfg!(feature = "kafka") => Some("kafka"),
            Self::Amqp if !cfg!(feature = "amqp") => Some("amqp"),
            Self::Nats if !cfg!(feature = "nats") => Some("nats"),
            Self::Mqtt if !cfg!(feature = "mqtt") => Some("mqtt"),
            Self::Redis if !cfg!(feature = "redis-stream") => Some("redis-stream"),
            _ => None,
        }
    }
}

/// How the URLs of a system look.
pub(crate) const fn url_form(system: MessageSystem) -> UrlForm {
    let (plain, tls, plain_port, tls_port, path) = match system {
        MessageSystem::Kafka => ("kafka", "kafkas", 9092, 9093, None),
        MessageSystem::Amqp => ("amqp", "amqps", 5672, 5671, Some("virtual host")),
        MessageSystem::Nats => ("nats", "tls", 4222, 4222, None),
        MessageSystem::Mqtt => ("mqtt", "mqtts", 1883, 8883, None),
        MessageSystem::RedisStream => ("redis", "rediss", 6379, 6379, Some("database")),
    };
    UrlForm { plain, tls, plain_port, tls_port, path }
}

/// A connection, checked: what all kinds have in common.
#[derive(Debug, Clone)]
pub struct Connection {
    pub(crate) name: ConnectionName,
    pub(crate) kind: ConnectionKind,
    pub(crate) namespaces: Vec<String>,
    pub(crate) allow: Vec<String>,
    pub(crate) sessions: usize,
    pub(crate) system: System,
}

/// What a kind of system has of its own.
#[derive(Debug, Clone)]
pub(crate) enum System {
    Sql(SqlSystem),
    Kafka(MessageLink),
    Amqp(MessageLink),
    Nats(MessageLink),
    Mqtt(MessageLink),
    Redis(MessageLink),
}

/// A database, and the statements that tasks may run.
#[derive(Debug, Clone)]
pub(crate) struct SqlSystem {
    pub(crate) options: SqlOptions,
    /// The table that records fire ids for `exactly_once`.
    pub(crate) fires_table: String,
    pub(crate) statements: Arc<BTreeMap<StatementName, Statement>>,
}

/// A system that takes messages.
#[derive(Debug, Clone)]
pub(crate) struct MessageLink {
    pub(crate) endpoint: Endpoint,
    pub(crate) format: MessageFormat,
    /// Of Kafka, if there is a user.
    pub(crate) sasl: SaslMechanism,
    /// Of MQTT.
    pub(crate) subscribers: MqttSubscribers,
}

/// What becomes of a message to a topic that has no subscribers, if the server says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MqttSubscribers {
    /// It is confirmed.
    #[default]
    Optional,
    /// Its attempt has failed.
    Required,
}

/// How a client shows Kafka that it knows its password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SaslMechanism {
    /// The password itself.
    Plain,
    /// A proof of the password, with SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// A proof of the password, with SHA-512.
    #[default]
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

/// Which headers a message has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageFormat {
    /// Those of Punctual.
    #[default]
    Plain,
    /// Also the attributes of CloudEvents, in binary mode.
    CloudEvents,
}

impl SqlSystem {
    pub(crate) fn sink(&self, answer_bytes: usize, clock: Arc<dyn Clock>) -> SqlSink {
        SqlSink {
            options: self.options.clone(),
            statements: Arc::clone(&self.statements),
            fires_table: self.fires_table.clone(),
            answer_bytes,
            clock,
        }
    }
}

impl System {
    /// The database, if it is one.
    pub(crate) const fn sql(&self) -> Option<&SqlSystem> {
        match self {
            Self::Sql(sql) => Some(sql),
            Self::Kafka(_) | Self::Amqp(_) | Self::Nats(_) | Self::Mqtt(_) | Self::Redis(_) => None,
        }
    }

    /// The system that takes messages, if it is one.
    pub(crate) const fn link(&self) -> Option<&MessageLink> {
        match self {
            Self::Sql(_) => None,
            Self::Kafka(link)
            | Self::Amqp(link)
            | Self::Nats(link)
            | Self::Mqtt(link)
            | Self::Redis(link) => Some(link),
        }
    }
}

impl Connection {
    /// Where the other side is, without secrets.
    pub(crate) fn address(&self) -> String {
        match &self.system {
            System::Sql(sql) => sql.options.shown(),
            message => message.link().map(|link| link.endpoint.shown()).unwrap_or_default(),
        }
    }

    /// The places that the configuration has: statements.
    pub(crate) fn places(&self) -> Vec<String> {
        let statements = self.system.sql().map(|sql| sql.statements.keys());
        statements.into_iter().flatten().map(|name| name.as_str().to_owned()).collect()
    }

    /// Whether targets of a kind fit.
    fn takes(&self, address: &SinkAddress) -> bool {
        match (self.kind.family(), address) {
            (KindFamily::Sql(_), SinkAddress::Sql(_)) => true,
            (KindFamily::Message(system), SinkAddress::Message(to)) => system == to.system(),
            _ => false,
        }
    }
}

/// All connections, and who may use them. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<BTreeMap<ConnectionName, Connection>>);

impl Connections {
    pub(crate) fn new(connections: BTreeMap<ConnectionName, Connection>) -> Self {
        Self(Arc::new(connections))
    }

    /// The connections, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.0.values()
    }

    pub(crate) fn get(&self, name: &ConnectionName) -> Option<&Connection> {
        self.0.get(name)
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
        // Notices go out under the namespace of their caller.
        let namespace = namespace.of_caller();
        let open = connection.namespaces.iter().any(|open| matches(open, namespace.as_str()));
        if !open {
            let problem = format!(
                "connection {name:?} is not open to namespace {:?}; see \
                 connections.{name}.namespaces",
                namespace.as_str()
            );
            return Err(invalid("connection", problem));
        }
        if !connection.takes(&sink.address) {
            let own = connection.kind.as_str();
            let problem = format!("connection {name:?} is of kind {own:?}, which takes no {kind}");
            return Err(invalid("connection", problem));
        }
        let place = sink.permission();
        if !connection.allow.iter().any(|pattern| matches(pattern, &place)) {
            let problem = format!(
                "connection {name:?} does not allow {place:?}; see connections.{name}.allow"
            );
            return Err(invalid(sink.place_field(), problem));
        }
        if let (System::Sql(sql), SinkAddress::Sql(call)) = (&connection.system, &sink.address)
            && !sql.statements.contains_key(call.statement())
        {
            let statement = call.statement().as_str();
            let problem = format!("connection {name:?} has no statement {statement:?}");
            return Err(invalid(sink.place_field(), problem));
        }
        Ok(())
    }
}
