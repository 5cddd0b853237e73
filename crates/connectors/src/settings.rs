//! Connections and sources of the configuration file.
//!
//! `[connections.NAME]` says where a system is and who may use it (`connection_settings`);
//! `[[sources]]` what is read from it (`source_settings`). [`ConnectorConfig::read`] checks all of
//! it; an error names the key.

use std::collections::BTreeMap;

use crate::connection::Connections;
use crate::connection_settings::{ConnectionSettings, connection};
use crate::settings_error::SettingsError;
use crate::source_settings::{
    CheckedSource, MessageSourceSettings, OutboxSettings, SourceSettings, source,
};

/// Connections of one broker. Each has its own sessions.
const CONNECTIONS_MAX: usize = 64;
/// Sources of one broker.
const SOURCES_MAX: usize = 64;

/// Connections and sources, checked.
#[derive(Debug, Clone, Default)]
pub struct ConnectorConfig {
    /// The connections.
    pub connections: Connections,
    /// The outboxes.
    pub sources: Vec<OutboxSettings>,
    /// The topics, queues, subjects and streams.
    pub message_sources: Vec<MessageSourceSettings>,
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
            let connection = connection(name, &format!("connections.{name}"), settings)?;
            Ok((connection.name.clone(), connection))
        });
        let checked = Connections::new(checked.collect::<Result<_, SettingsError>>()?);
        let (mut outboxes, mut messages) = (Vec::new(), Vec::new());
        for (at, settings) in sources.iter().enumerate() {
            match source(&format!("sources[{at}]"), settings, &checked)? {
                CheckedSource::Outbox(outbox) => outboxes.push(outbox),
                CheckedSource::Messages(source) => messages.push(source),
            }
        }
        Ok(Self { connections: checked, sources: outboxes, message_sources: messages })
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{
        ConnectionName, MessageAddress, MessageOptions, MessageSystem, Namespace, SinkAddress,
        SinkTarget,
    };
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct ConfigFile {
        connections: BTreeMap<String, ConnectionSettings>,
        #[serde(default)]
        sources: Vec<SourceSettings>,
    }

    fn read(text: &str) -> Result<ConnectorConfig, String> {
        let file: ConfigFile = toml::from_str(text).map_err(|error| error.to_string())?;
        let config = ConnectorConfig::read(&file.connections, &file.sources);
        config.map_err(|error| error.to_string())
    }

    fn connection(kind: &str, url: &str, more: &str) -> Result<ConnectorConfig, String> {
        read(&format!("[connections.c]\nkind = \"{kind}\"\nurl = \"{url}\"\n{more}"))
    }

    #[test]
    fn each_kind_has_its_own_urls_and_keys() {
        let kinds = [
            ("postgres", "postgres://a@h/d"),
            ("mysql", "mysql://a@h/d"),
            ("kafka", "kafka://a:b@h,i"),
            ("amqp", "amqp://h/v"),
            ("nats", "nats://h"),
            ("mqtt", "mqtt://h"),
            ("redis", "redis://h/1"),
        ];
        for (at, (kind, url)) in kinds.into_iter().enumerate() {
            connection(kind, url, "").unwrap();
            let other = kinds[(at + 1) % kinds.len()].1;
            let error = connection(kind, other, "").unwrap_err();
            assert!(error.starts_with("connections.c.url: "), "{kind}: {error}");
            let of_sql = matches!(kind, "postgres" | "mysql");
            for (key, value, fits) in [
                ("statements", "{ a = \"select 1\" }", of_sql),
                ("fires_table", "\"t\"", of_sql),
                ("format", "\"cloudevents\"", !of_sql),
                ("format", "\"plain\"", !of_sql),
                ("sasl", "\"plain\"", kind == "kafka"),
                ("subscribers", "\"required\"", kind == "mqtt"),
                ("subscribers", "\"optional\"", kind == "mqtt"),
                ("sasl", "\"scram-sha-256\"", kind == "kafka"),
            ] {
                let read = connection(kind, url, &format!("{key} = {value}"));
                let expected =
                    format!("connections.c.{key}: a connection of kind {kind:?} has no such key");
                assert_eq!(read.err(), (!fits).then_some(expected), "{kind} {key}");
            }
            let error = connection(kind, url, "nothing = 1").unwrap_err();
            assert!(error.contains("unknown field `nothing`"), "{error}");
        }
    }

    #[test]
    fn a_user_of_kafka_has_a_password() {
        for (url, more, problem) in [
            ("kafka://a@h", "", "password: a user and a password need each other"),
            ("kafka://h", "sasl = \"plain\"", "sasl: needs a user in the URL"),
            ("kafka://a:b@h", "sasl = \"gssapi\"", "unknown variant `gssapi`"),
        ] {
            let error = connection("kafka", url, more).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn secrets_and_certificates_are_files_that_are_read_at_once() {
        for (more, problem) in [
            ("password = \"hush\"", "password: must be @"),
            ("password = \"@/no/such\"", "password: cannot read /no/such"),
            ("tls_ca = \"/no/such\"", "tls_ca: cannot read /no/such"),
            ("tls_cert = \"/dev/null\"", "tls_cert: needs tls_key"),
            ("tls_key = \"/dev/null\"", "tls_key: needs tls_cert"),
            ("tls_ca = \"/dev/null\"", "tls_ca: the file has no certificate"),
        ] {
            let error = connection("mqtt", "mqtts://h", more).unwrap_err();
            assert!(error.starts_with(&format!("connections.c.{problem}")), "{error}");
            assert!(!error.contains("hush"), "{error}");
        }
        let error = connection("mqtt", "mqtt://h", "tls_ca = \"/dev/null\"").unwrap_err();
        assert_eq!(error, "connections.c.tls_ca: needs a URL with mqtts://");
    }

    #[test]
    fn a_source_has_the_keys_of_its_connection() {
        let source = |kind: &str, url: &str, keys: &str| {
            let source = format!("[[sources]]\nconnection = \"c\"\nnamespace = \"shop\"\n{keys}");
            connection(kind, url, &source)
        };
        let (sql, mq) = (("postgres", "postgres://a@h/d"), ("amqp", "amqp://h"));
        let (log, devices) = (("kafka", "kafka://h"), ("mqtt", "mqtt://h"));
        for ((kind, url), keys, problem) in [
            (sql, "", None),
            (sql, "kind = \"outbox\"\ntable = \"t\"\npoll = \"1s\"\nbatch = 7", None),
            (sql, "from = \"q\"", Some("from: a source with a connection of kind \"postgres\"")),
            (sql, "poll = \"1ms\"", Some("poll: must be 5ms to 1m")),
            (sql, "table = \"a b\"", Some("table: must be the name of a table")),
            (mq, "from = \"q\"\nverb = \"touch\"\ntarget = { queue = \"x\" }", None),
            (mq, "", Some("from: is missing")),
            (mq, "from = \"q\"\ntable = \"t\"", Some("table: a source with a connection")),
            (mq, "from = \"q\"\nverb = \"run\"", Some("verb: must be one of schedule")),
            (mq, "from = \"q\"\nbatch = 0", Some("batch: must be 1 to 10000, is 0")),
            (log, "from = \"t\"\nclaim_after = \"6s\"", None),
            (log, "from = \"t\"\nclaim_after = \"5s\"", Some("claim_after: must be 6s to 1h")),
            (log, "from = \"t\"\nmatch = \"a\"", Some("match: needs a system whose messages")),
            (devices, "from = \"a/+\"\nverb = \"touch\"\nkey = \"{1}\"", None),
            (
                devices,
                "from = \"a\"\nclaim_after = \"9s\"",
                Some("claim_after: needs a connection"),
            ),
        ] {
            let error = source(kind, url, keys).err();
            let problem = problem.map(|problem| format!("sources[0].{problem}"));
            match (&error, &problem) {
                (None, None) => {}
                (Some(error), Some(problem)) if error.starts_with(problem) => {}
                _ => panic!("{kind} {keys}: {error:?}, not {problem:?}"),
            }
        }
        let config = source(mq.0, mq.1, "from = \"q\"").unwrap();
        assert_eq!((config.sources.len(), config.message_sources.len()), (0, 1));
    }

    #[test]
    fn a_task_can_only_name_places_that_the_configuration_opens_to_its_namespace() {
        let config = connection(
            "amqp",
            "amqp://h",
            "namespaces = [\"shop\"]\nallow = [\"orders.*\", \"/mail\"]",
        );
        let connections = config.unwrap().connections;
        let check = |namespace: &str, connection: &str, system, place: &str, key: &str| {
            let key = (system == MessageSystem::Amqp).then(|| key.to_owned());
            let options = MessageOptions { key, ..MessageOptions::default() };
            let address = MessageAddress::new(system, place, options).unwrap();
            let connection = ConnectionName::new(connection).unwrap();
            let target = SinkTarget { connection, address: SinkAddress::Message(address) };
            let checked = connections.check(&Namespace::new(namespace).unwrap(), &target);
            checked.err().map(|invalid| invalid.to_string()).unwrap_or_default()
        };
        use MessageSystem::{Amqp, Kafka};
        for (namespace, connection, system, place, key, problem) in [
            ("shop", "c", Amqp, "orders.paid", "x", ""),
            ("shop", "c", Amqp, "", "mail", ""),
            ("shop", "c", Amqp, "", "other", "amqp.exchange: connection \"c\" does not allow"),
            ("shop", "c", Amqp, "bills", "mail", "amqp.exchange: connection \"c\" does not allow"),
            (
                "bank",
                "c",
                Amqp,
                "orders.paid",
                "x",
                "amqp.connection: connection \"c\" is not open",
            ),
            ("shop", "d", Amqp, "orders.paid", "x", "amqp.connection: the broker's configuration"),
            (
                "shop",
                "c",
                Kafka,
                "orders.paid",
                "",
                "kafka.connection: connection \"c\" is of kind",
            ),
        ] {
            let found = check(namespace, connection, system, place, key);
            assert_eq!(found.is_empty(), problem.is_empty(), "{place}: {found}");
            assert!(found.starts_with(problem), "{found}");
        }
    }
}
