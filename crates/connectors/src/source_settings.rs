//! `[[sources]]` of the configuration file: what is read from a connection.
//!
//! The keys of all kinds are fields of [`SourceSettings`]. The kind of a source follows from its
//! connection: an outbox of a database, or the messages of another system. A key that the kind does
//! not have is an error that names it.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::{ConnectionName, MessageSystem, Namespace, parse_duration};
use punctual_sql::{SqlKind, SqlOptions};
use serde::{Deserialize, Deserializer};
use serde_json::value::to_raw_value;

use crate::connection::{Connection, Connections, KindFamily, MessageLink};
use crate::settings_error::SettingsError;
use crate::source::{KeyTemplate, PlacePattern, SourceMapping, Verb, WildcardStyle};
use crate::sql::schema::{OUTBOX_TABLE, REJECTED_SUFFIX, is_table_name};

/// How often an outbox is read by default, and the range of it.
const POLL_DEFAULT: Duration = Duration::from_millis(100);
const POLL_MIN: Duration = Duration::from_millis(5);
const POLL_MAX: Duration = Duration::from_secs(60);
/// Rows or messages that are taken at once by default: one commit of the store for all.
const SOURCE_BATCH_DEFAULT: usize = 1000;
/// The most rows or messages at once. All are in memory and locked until they are tasks.
const SOURCE_BATCH_MAX: usize = 10_000;

/// How long a message stays with a reader that does not confirm it by default, and the range of it.
const CLAIM_AFTER_DEFAULT: Duration = Duration::from_secs(30);
const CLAIM_AFTER_MIN: Duration = Duration::from_secs(1);
/// The shortest session that brokers of Kafka take by default (`group.min.session.timeout.ms`).
const KAFKA_SESSION_MIN: Duration = Duration::from_secs(6);
const CLAIM_AFTER_MAX: Duration = Duration::from_secs(3600);
/// What the readers of a source share, if nothing else is written.
const GROUP_DEFAULT: &str = "punctual";
/// Bytes of a name in another system: the shortest limit of all is that of AMQP.
const NAME_BYTES_MAX: usize = 255;

/// One of `[[sources]]` as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceSettings {
    kind: Option<SourceKind>,
    connection: String,
    namespace: String,
    target: Option<serde_json::Value>,
    batch: Option<usize>,
    // Of an outbox.
    table: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    poll: Option<Duration>,
    #[serde(default)]
    notify: bool,
    // Of messages.
    from: Option<String>,
    verb: Option<String>,
    r#match: Option<String>,
    key: Option<String>,
    task: Option<BTreeMap<String, serde_json::Value>>,
    create: Option<serde_json::Value>,
    rejected: Option<String>,
    group: Option<String>,
    reader: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    claim_after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SourceKind {
    Outbox,
}

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
    /// Whether the database reports new rows. The table is polled all the same.
    pub(crate) notify: bool,
}

/// A topic, queue, subject or stream whose messages are commands, checked.
#[derive(Debug, Clone)]
pub struct MessageSourceSettings {
    pub(crate) connection: ConnectionName,
    pub(crate) system: MessageSystem,
    pub(crate) link: MessageLink,
    /// The topic, queue, subject or stream.
    pub(crate) from: String,
    /// What its messages mean.
    pub(crate) mapping: SourceMapping,
    /// The target of messages that have none, in JSON as in the API.
    pub(crate) target: Option<serde_json::Value>,
    pub(crate) batch: usize,
    /// Where rejected messages go, if it is not the default of the system.
    pub(crate) rejected: Option<String>,
    /// What all readers of the source share.
    pub(crate) group: String,
    /// The name of this broker among the readers, if it is not made of host and port.
    pub(crate) reader: Option<String>,
    /// How long a message stays with a reader that does not confirm it. Of Redis, NATS and Kafka.
    pub(crate) claim_after: Duration,
}

/// A source of either family.
#[derive(Debug)]
pub(crate) enum CheckedSource {
    Outbox(OutboxSettings),
    Messages(MessageSourceSettings),
}

/// The settings of one source, and the name of their keys in errors.
struct SourceReader<'a> {
    key: &'a str,
    settings: &'a SourceSettings,
    connection: &'a Connection,
}

/// Checks a source.
pub(crate) fn source(
    key: &str,
    settings: &SourceSettings,
    connections: &Connections,
) -> Result<CheckedSource, SettingsError> {
    let at = |field: &str, problem: String| SettingsError::new(format!("{key}.{field}"), problem);
    let name = ConnectionName::new(&settings.connection)
        .map_err(|invalid| at("connection", invalid.problem))?;
    let Some(connection) = connections.get(&name) else {
        return Err(at("connection", format!("there is no connection {:?}", name.as_str())));
    };
    let reader = SourceReader { key, settings, connection };
    match connection.kind.family() {
        KindFamily::Sql(_) => reader.outbox().map(CheckedSource::Outbox),
        KindFamily::Message(system) => reader.messages(system).map(CheckedSource::Messages),
    }
}

impl SourceReader<'_> {
    fn error(&self, field: &str, problem: impl Into<String>) -> SettingsError {
        SettingsError::new(format!("{}.{field}", self.key), problem)
    }

    fn refuse_keys(&self, keys: &[(&str, bool)]) -> Result<(), SettingsError> {
        match keys.iter().find(|(_, is_written)| *is_written) {
            Some((field, _)) => {
                let kind = self.connection.kind.as_str();
                let problem =
                    format!("a source with a connection of kind {kind:?} has no such key");
                Err(self.error(field, problem))
            }
            None => Ok(()),
        }
    }

    fn namespace(&self) -> Result<Namespace, SettingsError> {
        let namespace = Namespace::new(&self.settings.namespace);
        namespace.map_err(|invalid| self.error("namespace", invalid.problem))
    }

    fn batch(&self) -> Result<usize, SettingsError> {
        let batch = self.settings.batch.unwrap_or(SOURCE_BATCH_DEFAULT);
        match (1..=SOURCE_BATCH_MAX).contains(&batch) {
            true => Ok(batch),
            false => {
                let problem = format!("must be 1 to {SOURCE_BATCH_MAX}, is {batch}");
                Err(self.error("batch", problem))
            }
        }
    }

    fn outbox(&self) -> Result<OutboxSettings, SettingsError> {
        let SourceSettings { from, verb, table, poll, target, r#match, key, .. } = self.settings;
        let SourceSettings { task, create, rejected, group, reader, claim_after, .. } =
            self.settings;
        self.refuse_keys(&[
            ("from", from.is_some()),
            ("verb", verb.is_some()),
            ("match", r#match.is_some()),
            ("key", key.is_some()),
            ("task", task.is_some()),
            ("create", create.is_some()),
            ("rejected", rejected.is_some()),
            ("group", group.is_some()),
            ("reader", reader.is_some()),
            ("claim_after", claim_after.is_some()),
        ])?;
        let table = table.clone().unwrap_or_else(|| OUTBOX_TABLE.to_owned());
        if !is_table_name(&table) || !is_table_name(&format!("{table}{REJECTED_SUFFIX}")) {
            return Err(self.error("table", "must be the name of a table"));
        }
        let poll = poll.unwrap_or(POLL_DEFAULT);
        if !(POLL_MIN..=POLL_MAX).contains(&poll) {
            return Err(self.error("poll", "must be 5ms to 1m"));
        }
        let Some(sql) = self.connection.system.sql() else {
            return Err(self.error("connection", "must be one of a database"));
        };
        let notify = self.settings.notify;
        if notify && sql.options.kind != SqlKind::Postgres {
            return Err(self.error("notify", "needs a PostgreSQL database"));
        }
        Ok(OutboxSettings {
            notify,
            connection: self.connection.name.clone(),
            options: sql.options.clone(),
            table,
            namespace: self.namespace()?,
            target: target.clone(),
            poll,
            batch: self.batch()?,
        })
    }

    fn messages(&self, system: MessageSystem) -> Result<MessageSourceSettings, SettingsError> {
        let SourceSettings { kind, from, verb, table, poll, target, .. } = self.settings;
        self.refuse_keys(&[
            ("kind", kind.is_some()),
            ("table", table.is_some()),
            ("poll", poll.is_some()),
            ("notify", self.settings.notify),
        ])?;
        let Some(from) = from.clone().filter(|from| !from.is_empty()) else {
            return Err(self.error("from", "is missing: what is read from the connection"));
        };
        let verb = verb.as_deref().map_or(Some(Verb::Schedule), Verb::parse);
        let Some(verb) = verb else {
            let verbs = Verb::ALL.map(Verb::as_str).join(", ");
            return Err(self.error("verb", format!("must be one of {verbs}")));
        };
        let Some(link) = self.connection.system.link() else {
            return Err(self.error("connection", "must be one of a system that has messages"));
        };
        let batch = self.batch()?;
        if system == MessageSystem::Mqtt && batch > usize::from(u16::MAX) / 2 {
            return Err(self.error("batch", "must be at most 32767 with MQTT"));
        }
        Ok(MessageSourceSettings {
            connection: self.connection.name.clone(),
            system,
            link: link.clone(),
            mapping: self.mapping(system, &from, verb)?,
            target: target.clone(),
            batch,
            rejected: self.name("rejected", self.settings.rejected.as_deref())?,
            group: self
                .name("group", self.settings.group.as_deref())?
                .unwrap_or_else(|| default_group(system, &from)),
            from,
            reader: self.name("reader", self.settings.reader.as_deref())?,
            claim_after: self.claim_after(system)?,
        })
    }

    fn mapping(
        &self,
        system: MessageSystem,
        from: &str,
        verb: Verb,
    ) -> Result<SourceMapping, SettingsError> {
        let SourceSettings { r#match, key, task, create, .. } = self.settings;
        let (style, own) = match system {
            MessageSystem::Mqtt => (Some(WildcardStyle::Mqtt), Some(from)),
            MessageSystem::Nats => (Some(WildcardStyle::Nats), Some(from)),
            MessageSystem::Amqp => (Some(WildcardStyle::Amqp), None),
            MessageSystem::RedisStream | MessageSystem::Kafka => (None, None),
        };
        let pattern = match (style, r#match.as_deref().or(own)) {
            (None, Some(_)) => {
                return Err(self.error("match", "needs a system whose messages have places"));
            }
            (Some(style), Some(text)) => {
                let field = if r#match.is_some() { "match" } else { "from" };
                let pattern = PlacePattern::parse(style, text);
                Some(pattern.map_err(|problem| self.error(field, problem))?)
            }
            (_, None) => None,
        };
        let key = key.as_deref().map(|text| KeyTemplate::parse(text, pattern.as_ref()));
        let key = key.transpose().map_err(|problem| self.error("key", problem))?;
        if create.is_some() && verb != Verb::Touch {
            return Err(self.error("create", "needs `verb = \"touch\"`"));
        }
        if create.as_ref().is_some_and(|create| !create.is_object()) {
            return Err(self.error("create", "must be a table: a task as in the API"));
        }
        let members = task.iter().flatten().map(|(name, value)| {
            let value = to_raw_value(value);
            Ok((name.clone(), value.map_err(|error| self.error("task", error.to_string()))?))
        });
        Ok(SourceMapping {
            source: format!("{}/{from}", self.connection.name.as_str()),
            namespace: self.namespace()?,
            verb,
            pattern,
            key,
            task: members.collect::<Result<_, SettingsError>>()?,
            create: create.as_ref().map(ToString::to_string),
        })
    }

    fn claim_after(&self, system: MessageSystem) -> Result<Duration, SettingsError> {
        let min = match system {
            MessageSystem::RedisStream | MessageSystem::Nats => CLAIM_AFTER_MIN,
            MessageSystem::Kafka => KAFKA_SESSION_MIN,
            MessageSystem::Amqp | MessageSystem::Mqtt if self.settings.claim_after.is_some() => {
                let problem = "needs a connection of kind \"redis\", \"nats\" or \"kafka\"";
                return Err(self.error("claim_after", problem));
            }
            MessageSystem::Amqp | MessageSystem::Mqtt => return Ok(CLAIM_AFTER_DEFAULT),
        };
        match self.settings.claim_after.unwrap_or(CLAIM_AFTER_DEFAULT) {
            after if (min..=CLAIM_AFTER_MAX).contains(&after) => Ok(after),
            _ => {
                let problem = format!("must be {}s to 1h", min.as_secs());
                Err(self.error("claim_after", problem))
            }
        }
    }

    /// A name in another system.
    fn name(&self, field: &str, name: Option<&str>) -> Result<Option<String>, SettingsError> {
        match name {
            None => Ok(None),
            Some(name) if name.is_empty() || name.len() > NAME_BYTES_MAX => {
                Err(self.error(field, format!("must have 1 to {NAME_BYTES_MAX} bytes")))
            }
            Some(name) => Ok(Some(name.to_owned())),
        }
    }
}

/// What the readers of a source share, if nothing else is written. Kafka has one group for all
/// topics of its members.
fn default_group(system: MessageSystem, from: &str) -> String {
    match system {
        MessageSystem::Kafka => format!("{GROUP_DEFAULT}-{from}"),
        _ => GROUP_DEFAULT.to_owned(),
    }
}

impl MessageSourceSettings {
    /// The name of the source.
    #[must_use]
    pub fn name(&self) -> String {
        self.mapping.source.clone()
    }

    /// The target of tasks that have none, in JSON as in the API.
    #[must_use]
    pub const fn target(&self) -> Option<&serde_json::Value> {
        self.target.as_ref()
    }

    /// The namespace of its tasks.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        &self.mapping.namespace
    }

    /// The task that a touch of a key without one creates, in JSON.
    #[must_use]
    pub fn create(&self) -> Option<&str> {
        self.mapping.create.as_deref()
    }
}

impl OutboxSettings {
    /// The name of the source.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.connection.as_str(), self.table)
    }

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

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}
