//! The settings of `punctual serve`, and where they come from.
//!
//! Flags take precedence over environment variables (`PUNCTUAL_` and the name of the key), and
//! those over the file of `--config`; a setting without a value has a default. A list is taken as a
//! whole from the first source that has it. The keys of the file are the fields of [`Settings`],
//! and any other key is an error that names it. Secrets are shown neither in debug output nor by
//! `--help`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use punctual_connectors::{ConnectionSettings, SourceSettings};
use punctual_core::parse_duration;
use punctual_server::LogFormat;
use serde::{Deserialize, Deserializer};

/// All settings. Each is a flag, an environment variable and a key of the file.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// Address to listen on, for HTTP/1.1, HTTP/2 and gRPC [default: 127.0.0.1:7400]
    #[arg(long, env = "PUNCTUAL_LISTEN", value_name = "HOST:PORT")]
    pub(crate) listen: Option<SocketAddr>,

    /// Allow listening on non-loopback addresses without authentication
    #[arg(long, env = "PUNCTUAL_INSECURE", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) insecure: Option<bool>,

    /// Directory of the embedded store; it is created if it does not exist [default:
    /// ./punctual-data]
    #[arg(long, env = "PUNCTUAL_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Redis to share with other brokers, instead of the embedded store: `redis://HOST:PORT` or
    /// `redis://USER:PASSWORD@HOST:PORT`, `rediss://` for TLS. Repeat it for further servers of a
    /// Redis Cluster, or for replicas
    #[arg(long, env = "PUNCTUAL_REDIS", value_name = "URL", value_delimiter = ',')]
    #[arg(hide_env_values = true)]
    #[serde(deserialize_with = "hidden")]
    pub(crate) redis: Option<Vec<SecretText>>,

    /// PEM file of the certificate authority to trust for rediss://
    #[arg(long, env = "PUNCTUAL_REDIS_CA", value_name = "FILE")]
    pub(crate) redis_ca: Option<PathBuf>,

    /// PostgreSQL to share with other brokers, instead of the embedded store:
    /// `postgres://USER[:PASSWORD|:@FILE]@HOST[:PORT]/DATABASE[?sslmode=verify-full]`, or `@FILE`
    /// that holds the URL. Several hosts are separated by commas; the one that accepts writes is
    /// used
    #[arg(long, env = "PUNCTUAL_POSTGRES", value_name = "URL", hide_env_values = true)]
    #[serde(deserialize_with = "hidden_one")]
    pub(crate) postgres: Option<SecretText>,

    /// PEM file of the certificate authority to trust for PostgreSQL; TLS is required with it
    #[arg(long, env = "PUNCTUAL_POSTGRES_CA", value_name = "FILE")]
    pub(crate) postgres_ca: Option<PathBuf>,

    /// MySQL or MariaDB to share with other brokers, instead of the embedded store:
    /// `mysql://USER[:PASSWORD|:@FILE]@HOST[:PORT]/DATABASE[?sslmode=verify-full]`, or `@FILE` that
    /// holds the URL. Several hosts are separated by commas; the one that accepts writes is used
    #[arg(long, env = "PUNCTUAL_MYSQL", value_name = "URL", hide_env_values = true)]
    #[serde(deserialize_with = "hidden_one")]
    pub(crate) mysql: Option<SecretText>,

    /// PEM file of the certificate authority to trust for MySQL; TLS is required with it
    #[arg(long, env = "PUNCTUAL_MYSQL_CA", value_name = "FILE")]
    pub(crate) mysql_ca: Option<PathBuf>,

    /// Name of the cluster in Redis, of its schema in PostgreSQL, or of the beginning of its tables
    /// in MySQL; brokers with the same name share it [default: punctual]
    #[arg(long, env = "PUNCTUAL_CLUSTER", value_name = "NAME")]
    pub(crate) cluster: Option<String>,

    /// What must have stored a task in a shared store before it is acknowledged [default: the
    /// first of these; in a database as its server is configured]
    #[arg(long, env = "PUNCTUAL_DURABILITY")]
    pub(crate) durability: Option<DurabilityArg>,

    /// How long a partition waits for a broker that does not answer, 500ms to 1m [default: 5s]
    #[arg(long, env = "PUNCTUAL_LEASE", value_parser = parse_duration, value_name = "DURATION")]
    #[serde(deserialize_with = "duration")]
    pub(crate) lease: Option<Duration>,

    /// Address under which other brokers, clients and workers reach this one [default: the address
    /// of --listen]
    #[arg(long, env = "PUNCTUAL_ADVERTISE", value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,

    /// PEM file of the certificate authority to trust when calling other brokers over TLS
    #[arg(long, env = "PUNCTUAL_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Number of partitions; fixed when the store is created [default: 1, in a shared store 16]
    #[arg(long, env = "PUNCTUAL_PARTITIONS", value_name = "COUNT")]
    pub(crate) partitions: Option<u16>,

    /// How long to keep history [default: 7d]
    #[arg(long, env = "PUNCTUAL_HISTORY_AGE", value_parser = parse_duration)]
    #[arg(value_name = "DURATION")]
    #[serde(deserialize_with = "duration")]
    pub(crate) history_age: Option<Duration>,

    /// How many bytes of history to keep; above that, the oldest is deleted [default: 1 GiB]
    #[arg(long, env = "PUNCTUAL_HISTORY_BYTES", value_name = "BYTES")]
    pub(crate) history_bytes: Option<u64>,

    /// How long to keep dead letters [default: 30d]
    #[arg(long, env = "PUNCTUAL_DEAD_AGE", value_parser = parse_duration)]
    #[arg(value_name = "DURATION")]
    #[serde(deserialize_with = "duration")]
    pub(crate) dead_age: Option<Duration>,

    /// How long deliveries in flight may take to end when the broker stops [default: 10s]
    #[arg(long, env = "PUNCTUAL_GRACE", value_parser = parse_duration, value_name = "DURATION")]
    #[serde(deserialize_with = "duration")]
    pub(crate) grace: Option<Duration>,

    /// Format of log lines [default: pretty]
    #[arg(long, env = "PUNCTUAL_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormatArg>,

    /// Token of one namespace: with all rights, or with some of read, produce, consume and operate
    /// (`shop:read+operate=SECRET`); repeat it, or separate several by commas. A secret in a file
    /// (`@FILE`) is read again when the file changes
    #[arg(long = "token", value_name = "NAMESPACE[:RIGHTS]=SECRET|@FILE", value_delimiter = ',')]
    #[arg(env = "PUNCTUAL_TOKENS", hide_env_values = true)]
    #[serde(deserialize_with = "hidden")]
    pub(crate) tokens: Option<Vec<SecretText>>,

    /// Token that may do everything; repeat it, or separate several by commas
    #[arg(long = "admin-token", value_name = "SECRET|@FILE", value_delimiter = ',')]
    #[arg(env = "PUNCTUAL_ADMIN_TOKENS", hide_env_values = true)]
    #[serde(deserialize_with = "hidden")]
    pub(crate) admin_tokens: Option<Vec<SecretText>>,

    /// Secret to sign webhooks of a namespace with, or of all (`*`); with two secrets of one
    /// namespace, webhooks have two signatures
    #[arg(long = "signing-secret", value_name = "NAMESPACE=whsec_…|NAMESPACE=@FILE")]
    #[arg(env = "PUNCTUAL_SIGNING_SECRETS", hide_env_values = true, value_delimiter = ',')]
    #[serde(deserialize_with = "hidden")]
    pub(crate) signing_secrets: Option<Vec<SecretText>>,

    /// Allow webhooks to private networks and to this machine
    #[arg(long, env = "PUNCTUAL_ALLOW_PRIVATE_TARGETS", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) allow_private_targets: Option<bool>,

    /// PEM file of a certificate authority to trust for https:// webhooks, in addition to those
    /// that browsers trust
    #[arg(long, env = "PUNCTUAL_WEBHOOK_CA", value_name = "FILE")]
    pub(crate) webhook_ca: Option<PathBuf>,

    /// Maximum number of open connections to webhooks in total [default: 512 to 4096, depending on
    /// the limit of open files]
    #[arg(long, env = "PUNCTUAL_WEBHOOK_CONNECTIONS", value_name = "COUNT")]
    pub(crate) webhook_connections: Option<usize>,

    /// How many bytes of each answer of a webhook to keep in the history, 0 to 16384; status and
    /// content type are always kept [default: 1024]
    #[arg(long, env = "PUNCTUAL_ANSWER_BYTES", value_name = "BYTES")]
    pub(crate) answer_bytes: Option<usize>,

    /// Mail server for the notices of alarms: `smtps://HOST:PORT`, or
    /// `smtp://HOST:PORT?tls=required` for STARTTLS; without TLS (`smtp://HOST:PORT`) on loopback
    /// only. Needs --smtp-from
    #[arg(long, env = "PUNCTUAL_SMTP_URL", value_name = "URL")]
    pub(crate) smtp_url: Option<String>,

    /// Sender of mails: an address, or `NAME <ADDRESS>`
    #[arg(long, env = "PUNCTUAL_SMTP_FROM", value_name = "ADDRESS")]
    pub(crate) smtp_from: Option<String>,

    /// File with `USER:PASSWORD` for the mail server
    #[arg(long, env = "PUNCTUAL_SMTP_CREDENTIALS_FILE", value_name = "FILE")]
    pub(crate) smtp_credentials_file: Option<PathBuf>,

    /// PEM file of a certificate authority to trust for the mail server, in addition to those that
    /// browsers trust
    #[arg(long, env = "PUNCTUAL_SMTP_CA", value_name = "FILE")]
    pub(crate) smtp_ca: Option<PathBuf>,

    /// PEM file of the certificate chain, to serve TLS; needs --tls-key
    #[arg(long, env = "PUNCTUAL_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// PEM file of the private key, to serve TLS; needs --tls-cert
    #[arg(long, env = "PUNCTUAL_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Connections to other systems; only in the file
    #[arg(skip)]
    pub(crate) connections: BTreeMap<String, ConnectionSettings>,

    /// Sources of tasks; only in the file
    #[arg(skip)]
    pub(crate) sources: Vec<SourceSettings>,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormatArg {
    Pretty,
    Json,
}

/// What must have stored a task in Redis before it is acknowledged.
#[derive(Debug, Clone, Copy, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityArg {
    /// The primary server; a task may be lost if that server fails over or crashes right after
    Master, // words: allow
    /// A replica too
    Replica,
    /// The disk of the primary server (Redis 7.2, or `appendfsync always`)
    Fsync,
}

/// Text that may hold a secret.
#[derive(Clone)]
pub(crate) struct SecretText(String);

impl Settings {
    /// Takes settings that were not given from a file.
    pub(crate) fn or_file(self, path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration in {shown}"))?;
        let file: Self = toml::from_str(&text).map_err(|error| {
            // The text of the error repeats the line, which may contain a secret.
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            anyhow!("{shown}, line {line}: {}", error.message())
        })?;
        Ok(self.or(file))
    }

    fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            insecure: self.insecure.or(other.insecure),
            data_dir: self.data_dir.or(other.data_dir),
            redis: self.redis.or(other.redis),
            redis_ca: self.redis_ca.or(other.redis_ca),
            postgres: self.postgres.or(other.postgres),
            postgres_ca: self.postgres_ca.or(other.postgres_ca),
            mysql: self.mysql.or(other.mysql),
            mysql_ca: self.mysql_ca.or(other.mysql_ca),
            cluster: self.cluster.or(other.cluster),
            durability: self.durability.or(other.durability),
            lease: self.lease.or(other.lease),
            advertise: self.advertise.or(other.advertise),
            tls_ca: self.tls_ca.or(other.tls_ca),
            partitions: self.partitions.or(other.partitions),
            history_age: self.history_age.or(other.history_age),
            history_bytes: self.history_bytes.or(other.history_bytes),
            dead_age: self.dead_age.or(other.dead_age),
            grace: self.grace.or(other.grace),
            log_format: self.log_format.or(other.log_format),
            tokens: self.tokens.or(other.tokens),
            admin_tokens: self.admin_tokens.or(other.admin_tokens),
            signing_secrets: self.signing_secrets.or(other.signing_secrets),
            allow_private_targets: self.allow_private_targets.or(other.allow_private_targets),
            webhook_ca: self.webhook_ca.or(other.webhook_ca),
            webhook_connections: self.webhook_connections.or(other.webhook_connections),
            answer_bytes: self.answer_bytes.or(other.answer_bytes),
            smtp_url: self.smtp_url.or(other.smtp_url),
            smtp_from: self.smtp_from.or(other.smtp_from),
            smtp_credentials_file: self.smtp_credentials_file.or(other.smtp_credentials_file),
            smtp_ca: self.smtp_ca.or(other.smtp_ca),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            connections: other.connections,
            sources: other.sources,
        }
    }
}

impl SecretText {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SecretText {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl From<LogFormatArg> for LogFormat {
    fn from(format: LogFormatArg) -> Self {
        match format {
            LogFormatArg::Pretty => Self::Pretty,
            LogFormatArg::Json => Self::Json,
        }
    }
}

/// Durations are written as in the API.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

/// A list of secrets. An error does not repeat the value, as it would without this function.
fn hidden<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<SecretText>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be a list of texts")]
    enum TextList {
        Texts(Vec<String>),
    }
    let TextList::Texts(texts) = TextList::deserialize(deserializer)?;
    Ok(Some(texts.into_iter().map(SecretText).collect()))
}

/// Reads one text that may hold a secret. The error does not repeat it.
fn hidden_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretText>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be a text")]
    enum OneText {
        Text(String),
    }
    let OneText::Text(text) = OneText::deserialize(deserializer)?;
    Ok(Some(SecretText(text)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct SettingsArgs {
        #[command(flatten)]
        settings: Settings,
    }

    fn read(flags: &[&str], file: &str) -> anyhow::Result<Settings> {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&path, file).unwrap();
        let flags = [&["punctual"], flags].concat();
        SettingsArgs::try_parse_from(flags).unwrap().settings.or_file(path.path())
    }

    #[test]
    fn a_flag_takes_precedence_over_the_file_key_by_key() {
        let file = r#"
            listen = "127.0.0.1:1"
            data_dir = "/from/file"
            insecure = true
            grace = "1m30s"
            log_format = "json"
            tokens = ["shop=a", "bank=b"]
            partitions = 4
        "#;
        let flags = ["--listen", "127.0.0.1:2", "--insecure=false", "--token", "x=y"];
        let settings = read(&flags, file).unwrap();
        assert_eq!(settings.listen.unwrap().port(), 2);
        assert_eq!(settings.insecure, Some(false));
        assert_eq!(settings.data_dir.as_deref(), Some(Path::new("/from/file")));
        assert_eq!(settings.grace, Some(Duration::from_secs(90)));
        assert_eq!(settings.partitions, Some(4));
        assert_eq!(settings.dead_age, None);
        let tokens: Vec<&str> =
            settings.tokens.as_ref().unwrap().iter().map(SecretText::reveal).collect();
        assert_eq!(tokens, ["x=y"], "a list is taken whole");
        assert_eq!(format!("{:?}", settings.tokens), "Some([…])");
    }

    #[test]
    fn an_error_in_the_file_names_the_line_and_shows_no_secret() {
        for (file, problem) in [
            ("listen = \"127.0.0.1:1\"\nlistn = 1", "line 2: unknown field `listn`"),
            ("redis = \"redis://:hush@a\"", "must be a list of texts"),
            ("raft = \"a\"", "unknown field `raft`"),
            ("durability = \"none\"", "unknown variant `none`"),
            ("lease = \"soon\"", "must be a duration like"),
            ("grace = \"soon\"", "must be a duration like"),
            ("grace = 5", "line 1"),
            ("tokens = [\"shop=hush\"", "line 1"),
            ("tokens = \"shop=hush\"", "must be a list of texts"),
            ("tokens = [\"shop=hush\", 5]", "must be a list of texts"),
            ("admin_tokens = [hush]", "line 1"),
            ("log_format = \"loud\"", "unknown variant `loud`"),
            ("partitions = -1", "line 1"),
        ] {
            let error = read(&[], file).unwrap_err().to_string();
            assert!(error.contains(problem), "{file}: {error}");
            assert!(!error.contains("hush"), "{file}: {error}");
        }
        let missing = Settings::default().or_file(Path::new("/no/such/punctual.toml"));
        assert!(missing.unwrap_err().to_string().contains("/no/such/punctual.toml"));
    }
}
