//! `[connections.NAME]` of the configuration file: where a system is and who may use it.
//!
//! The keys of all kinds are fields of [`ConnectionSettings`]; a key that the kind of a connection
//! does not have is an error that names it. Files with secrets and certificates are read once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{ConnectionName, MessageSystem, StatementName};
use punctual_sql::{SqlKind, SqlOptions};
use serde::Deserialize;

use crate::connection::{
    Connection, ConnectionKind, KindFamily, MessageFormat, MessageLink, MqttSubscribers,
    SaslMechanism, SqlSystem, System, url_form,
};
use crate::endpoint::Endpoint;
use crate::settings_error::{HiddenText, SettingsError, read_file};
use crate::sql::schema::{FIRES_TABLE, is_table_name};
use crate::sql::statement::Statement;

/// Statements of one connection. Each session prepares those that it runs.
const STATEMENTS_MAX: usize = 100;
/// Sessions of one connection by default: a namespace alone uses four, and a statement two, so that
/// a slow one leaves sessions for the others.
const SESSIONS_DEFAULT: usize = 8;
/// The most sessions. Databases have a process for each.
const SESSIONS_MAX: usize = 32;
/// The largest connect timeout of a session.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    // Of databases.
    fires_table: Option<String>,
    statements: Option<BTreeMap<String, StatementSettings>>,
    // Of systems that take messages.
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    format: Option<MessageFormat>,
    // Of Kafka.
    sasl: Option<SaslMechanism>,
    // Of MQTT.
    subscribers: Option<MqttSubscribers>,
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

/// The settings of one connection, and the name of their keys in errors.
struct ConnectionReader<'a> {
    key: &'a str,
    settings: &'a ConnectionSettings,
}

/// Checks a connection.
pub(crate) fn connection(
    name: &str,
    key: &str,
    settings: &ConnectionSettings,
) -> Result<Connection, SettingsError> {
    let reader = ConnectionReader { key, settings };
    let name =
        ConnectionName::new(name).map_err(|invalid| SettingsError::new(key, invalid.problem))?;
    let kind = settings.kind;
    if let Some(feature) = kind.missing_feature() {
        let problem = format!("this broker was built without the feature {feature:?}");
        return Err(reader.error("kind", problem));
    }
    reader.check_keys()?;
    if settings.namespaces.iter().any(String::is_empty) {
        return Err(reader.error("namespaces", "must not have an empty name"));
    }
    let sessions = settings.sessions.unwrap_or(SESSIONS_DEFAULT);
    if !(1..=SESSIONS_MAX).contains(&sessions) {
        let problem = format!("must be 1 to {SESSIONS_MAX}, is {sessions}");
        return Err(reader.error("sessions", problem));
    }
    let system = match kind.family() {
        KindFamily::Sql(kind) => System::Sql(reader.sql(&name, kind)?),
        KindFamily::Message(system) => {
            let link = reader.link(system)?;
            match system {
                MessageSystem::Kafka => System::Kafka(link),
                MessageSystem::Amqp => System::Amqp(link),
                MessageSystem::Nats => System::Nats(link),
                MessageSystem::Mqtt => System::Mqtt(link),
                MessageSystem::RedisStream => System::Redis(link),
            }
        }
    };
    let namespaces = settings.namespaces.clone();
    let allow = settings.allow.clone().unwrap_or_else(|| vec!["*".to_owned()]);
    Ok(Connection { name, kind, namespaces, allow, sessions, system })
}

impl ConnectionReader<'_> {
    fn error(&self, field: &str, problem: impl Into<String>) -> SettingsError {
        SettingsError::new(format!("{}.{field}", self.key), problem)
    }

    /// Refuses keys that the kind does not have.
    fn check_keys(&self) -> Result<(), SettingsError> {
        let ConnectionSettings { fires_table, statements, tls_cert, tls_key, format, .. } =
            self.settings;
        let of_sql = [("fires_table", fires_table.is_some()), ("statements", statements.is_some())];
        let of_messages = [
            ("tls_cert", tls_cert.is_some()),
            ("tls_key", tls_key.is_some()),
            ("format", format.is_some()),
        ];
        let of_kafka = ("sasl", self.settings.sasl.is_some());
        let of_mqtt = ("subscribers", self.settings.subscribers.is_some());
        let family = self.settings.kind.family();
        let mut others = match family {
            KindFamily::Sql(_) => of_messages.to_vec(),
            KindFamily::Message(_) => of_sql.to_vec(),
        };
        for (system, key) in [(MessageSystem::Kafka, of_kafka), (MessageSystem::Mqtt, of_mqtt)] {
            if family != KindFamily::Message(system) {
                others.push(key);
            }
        }
        match others.iter().find(|(_, is_written)| *is_written) {
            Some((field, _)) => {
                let kind = self.settings.kind.as_str();
                let problem = format!("a connection of kind {kind:?} has no such key");
                Err(self.error(field, problem))
            }
            None => Ok(()),
        }
    }

    fn sql(&self, name: &ConnectionName, kind: SqlKind) -> Result<SqlSystem, SettingsError> {
        let settings = self.settings;
        let mut options = SqlOptions::from_url(&settings.url.0)
            .map_err(|error| self.error("url", error.to_string()))?;
        if options.kind != kind {
            let problem = format!("must begin with {}://, like its kind", settings.kind.as_str());
            return Err(self.error("url", problem));
        }
        if let Some(password) = &settings.password {
            let secret = password.read_named_file();
            options.password = Some(secret.map_err(|problem| self.error("password", problem))?);
        }
        if let Some(path) = &settings.tls_ca {
            let pem = read_file(path).map_err(|problem| self.error("tls_ca", problem))?;
            options = options.with_authority(pem);
        }
        options.connect_timeout = CONNECT_TIMEOUT;
        options.application = format!("punctual {name}");
        let fires_table = settings.fires_table.clone().unwrap_or_else(|| FIRES_TABLE.to_owned());
        if !is_table_name(&fires_table) {
            return Err(self.error("fires_table", "must be the name of a table"));
        }
        Ok(SqlSystem { options, fires_table, statements: Arc::new(self.statements(kind)?) })
    }

    fn statements(
        &self,
        kind: SqlKind,
    ) -> Result<BTreeMap<StatementName, Statement>, SettingsError> {
        let statements = self.settings.statements.iter().flatten();
        let count = self.settings.statements.as_ref().map_or(0, BTreeMap::len);
        if count > STATEMENTS_MAX {
            let problem = format!("must be at most {STATEMENTS_MAX}, are {count}");
            return Err(self.error("statements", problem));
        }
        let read = statements.map(|(name, statement)| {
            let field = format!("statements.{name}");
            let checked =
                StatementName::new(name).map_err(|invalid| self.error(&field, invalid.problem))?;
            let none = BTreeMap::new();
            let (sql, params) = match statement {
                StatementSettings::Text(sql) => (sql, &none),
                StatementSettings::Table(table) => (&table.sql, &table.params),
            };
            let statement = Statement::parse(sql, params, kind);
            Ok((checked, statement.map_err(|problem| self.error(&field, problem))?))
        });
        read.collect()
    }

    fn link(&self, system: MessageSystem) -> Result<MessageLink, SettingsError> {
        let settings = self.settings;
        let mut endpoint = Endpoint::from_url(&settings.url.0, &url_form(system))
            .map_err(|problem| self.error("url", problem))?;
        if let Some(password) = &settings.password {
            let secret = password.read_named_file();
            endpoint.password = Some(secret.map_err(|problem| self.error("password", problem))?);
        }
        let read = |field: &str, path: &Option<PathBuf>| {
            let pem = path.as_deref().map(read_file).transpose();
            pem.map_err(|problem| self.error(field, problem))
        };
        let authority_pem = read("tls_ca", &settings.tls_ca)?;
        let certificate = read("tls_cert", &settings.tls_cert)?;
        let key = read("tls_key", &settings.tls_key)?;
        let written = [("tls_ca", &authority_pem), ("tls_cert", &certificate), ("tls_key", &key)];
        let written = written.iter().find(|(_, pem)| pem.is_some()).map(|(field, _)| *field);
        match (&mut endpoint.tls, written) {
            (None, Some(field)) => {
                let problem = format!("needs a URL with {}://", url_form(system).tls);
                return Err(self.error(field, problem));
            }
            (None, None) => {}
            (Some(tls), written) => {
                tls.authority_pem = authority_pem;
                tls.client_pem = match (certificate, key) {
                    (Some(certificate), Some(key)) => Some((certificate, key)),
                    (None, None) => None,
                    (Some(_), None) => return Err(self.error("tls_cert", "needs tls_key")),
                    (None, Some(_)) => return Err(self.error("tls_key", "needs tls_cert")),
                };
                // Files that cannot be used are found now and not when a session is opened.
                let config = tls.client_config();
                config.map_err(|problem| self.error(written.unwrap_or("url"), problem))?;
            }
        }
        let (format, sasl) = (settings.format, settings.sasl);
        if sasl.is_some() && endpoint.user.is_none() {
            return Err(self.error("sasl", "needs a user in the URL"));
        }
        if system == MessageSystem::Kafka && endpoint.user.is_some() != endpoint.password.is_some()
        {
            return Err(self.error("password", "a user and a password need each other"));
        }
        let (format, sasl) = (format.unwrap_or_default(), sasl.unwrap_or_default());
        let subscribers = settings.subscribers.unwrap_or_default();
        Ok(MessageLink { endpoint, format, sasl, subscribers })
    }
}
