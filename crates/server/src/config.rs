//! The configuration of a broker.
//!
//! The binary collects values from flags, the environment and a file. The functions here parse
//! those that need it, and [`Config::check`] checks them together. An error says what to change.
//! Secrets never appear in errors or in `Debug` output.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lettre::message::Mailbox;
use punctual_connectors::ConnectorConfig;
use punctual_core::{ANSWER_BYTES_MAX, BrokerId, Namespace};
use punctual_store::Retention;
use rustix::process::{Resource, getrlimit};

use crate::auth::{ApiToken, Grant, Rights};
use crate::courier::{MailServer, MailServerUrl, Reach, SigningSecret, Signs, SmtpCredentials};
use crate::listen::CONNECTIONS_MAX;
use crate::tls::{Authorities, Tls, TlsError};

/// Bytes of a file with a secret. A larger one is probably the wrong file.
const SECRET_FILE_BYTES_MAX: u64 = 4096;

/// The range of the default for webhook connections. A lane has up to 256 deliveries in flight and
/// may use half of the connections; each connection costs some tens of kilobytes.
const WEBHOOK_CONNECTIONS: (usize, usize) = (512, 4096);
/// File descriptors that the store needs.
const STORE_FILES: usize = 512;

/// The configuration of a broker.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Allow listening on non-loopback addresses without authentication.
    pub insecure: bool,
    /// The tokens of callers. Without any, no caller needs a token.
    pub tokens: Vec<ApiToken>,
    /// The secrets that webhooks are signed with.
    pub signing_secrets: Vec<SigningSecret>,
    /// Allow webhooks to private networks and to this machine.
    pub allow_private_targets: bool,
    /// Certificate authorities to trust for webhooks, in addition to the public ones.
    pub webhook_authorities: Authorities,
    /// Open connections to all webhook receivers together, at most.
    pub webhook_connections_max: usize,
    /// Bytes of each answer of a webhook that are kept, at most [`ANSWER_BYTES_MAX`].
    pub answer_bytes: usize,
    /// The mail server for the notices of alarms; `None` if there is none.
    pub mail_server: Option<MailServer>,
    /// Connections to other systems, and sources of tasks.
    pub connectors: ConnectorConfig,
    /// The certificate to serve TLS with; `None` serves plain HTTP.
    pub tls: Option<Tls>,
    /// How long history and dead letters are retained.
    pub retention: Retention,
    /// How long deliveries in flight may take when the broker stops.
    pub grace: Duration,
    /// How to share the store with other brokers; `None` for a single broker.
    pub sharing: Option<Sharing>,
}

/// The configuration of a broker that shares its store with others.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// The `HOST:PORT` at which other brokers reach this one. Default: the listen address.
    pub advertise: Option<String>,
    /// How long a partition stays with a broker that has stopped answering: 500ms to 1m.
    pub lease: Duration,
    /// The certificate authority of the other brokers, as PEM, if it is a private one.
    pub authority: Option<Vec<u8>>,
}

impl Sharing {
    /// The address by which other brokers know a broker that listens at `listens`.
    pub(crate) fn broker(&self, listens: SocketAddr) -> Result<BrokerId, ConfigError> {
        match &self.advertise {
            Some(address) => {
                let authority: Result<http::uri::Authority, _> = address.parse();
                let whole = |it: &http::uri::Authority| {
                    !it.host().is_empty() && it.port_u16().is_some() && !it.as_str().contains('@')
                };
                match authority {
                    Ok(authority) if whole(&authority) => Ok(BrokerId::new(authority.as_str())),
                    _ => Err(bad("advertise", "must be HOST:PORT".to_owned())),
                }
            }
            None if listens.ip().is_unspecified() => {
                let problem = format!(
                    "must be given: other brokers cannot connect to the listen address {listens}"
                );
                Err(bad("advertise", problem))
            }
            None => Ok(BrokerId::new(&listens.to_string())),
        }
    }
}

/// The settings of the mail server, as they were given.
#[derive(Debug, Clone, Copy, Default)]
pub struct MailSettings<'a> {
    /// `smtps://HOST:PORT` or `smtp://HOST:PORT?tls=required`; plain `smtp://` on loopback only.
    pub url: Option<&'a str>,
    /// The sender: an address, or a name and an address.
    pub from: Option<&'a str>,
    /// A file with `USER:PASSWORD`.
    pub credentials_file: Option<&'a Path>,
    /// A PEM file of authorities to trust, in addition to the public ones.
    pub ca: Option<&'a Path>,
}

/// The range of the lease. With a shorter one a slow store would cost partitions, with a longer one
/// a crash would be an outage.
const LEASE: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(60);

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The broker would listen on the network without tokens.
    #[error(
        "--listen {0} is reachable from other machines and no tokens are configured: every \
         program on the network could schedule webhooks. Add --token NAMESPACE=SECRET, listen on \
         127.0.0.1, or allow it with --insecure"
    )]
    Open(SocketAddr),
    /// A value is invalid. The message does not contain the value, which may be a secret.
    #[error("{key}: {problem}")]
    Value {
        /// The key of the setting.
        key: &'static str,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// A file with a secret cannot be read.
    #[error("{key}: cannot read the secret in {}", path.display())]
    SecretFile {
        /// The key of the setting.
        key: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the read.
        #[source]
        source: std::io::Error,
    },
    /// The certificate or its key is missing.
    #[error("tls_cert and tls_key must be given together")]
    IncompleteTls,
    /// The certificate or the key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Config {
    /// Checks the values together.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !self.listen.ip().is_loopback() && !self.insecure && self.tokens.is_empty() {
            return Err(ConfigError::Open(self.listen));
        }
        if self.webhook_connections_max == 0 {
            return Err(bad("webhook_connections", "must be at least 1".to_owned()));
        }
        if self.answer_bytes > ANSWER_BYTES_MAX {
            return Err(bad("answer_bytes", format!("must be from 0 to {ANSWER_BYTES_MAX}")));
        }
        if let Some(sharing) = &self.sharing {
            if !LEASE.contains(&sharing.lease) {
                return Err(bad("lease", "must be from 500ms to 1m".to_owned()));
            }
            sharing.broker(self.listen)?;
        }
        SigningSecret::check_all(&self.signing_secrets)
            .map_err(|error| bad("signing_secrets", error.to_string()))
    }

    /// The networks that webhooks may reach. A broker that listens on loopback may call loopback
    /// addresses: its callers are on the same machine.
    #[must_use]
    pub fn reach(&self) -> Reach {
        match self.allow_private_targets {
            true => Reach::Private,
            false if self.listen.ip().is_loopback() => Reach::Loopback,
            false => Reach::Public,
        }
    }
}

/// Parses a token of a namespace: `NAMESPACE=SECRET` grants all rights,
/// `NAMESPACE:RIGHT+RIGHT=SECRET` some of them. The secret may be `@/path/to/file`.
pub fn token(text: &str) -> Result<ApiToken, ConfigError> {
    const KEY: &str = "tokens";
    let (granted, secret) = pair(KEY, text)?;
    let (name, rights) = match granted.split_once(':') {
        None => (granted, Rights::ALL),
        Some((name, rights)) => {
            let rights = Rights::parse(rights);
            (name, rights.map_err(|problem| bad(KEY, format!("token of {name}: {problem}")))?)
        }
    };
    let grant = Grant::Namespace(namespace(KEY, name)?, rights);
    api_token(KEY, grant, secret)
}

/// Parses an admin token: `SECRET` or `@/path/to/file`.
pub fn admin_token(text: &str) -> Result<ApiToken, ConfigError> {
    api_token("admin_tokens", Grant::Admin, text)
}

fn api_token(key: &'static str, grant: Grant, text: &str) -> Result<ApiToken, ConfigError> {
    let secret = secret_of(key, text)?;
    let named = grant.to_string();
    let token = ApiToken::new(grant, &secret)
        .map_err(|error| bad(key, format!("the secret of {named} {error}")))?;
    Ok(match text.strip_prefix('@') {
        Some(path) => token.of_file(PathBuf::from(path)),
        None => token,
    })
}

/// Parses a signing secret: `NAMESPACE=whsec_…` or `NAMESPACE=@/path/to/file`. The namespace `*`
/// means every namespace.
pub fn signing_secret(text: &str) -> Result<SigningSecret, ConfigError> {
    const KEY: &str = "signing_secrets";
    let (name, secret) = pair(KEY, text)?;
    let signs = match name {
        "*" => Signs::All,
        name => Signs::Namespace(namespace(KEY, name)?),
    };
    let secret = secret_of(KEY, secret)?;
    SigningSecret::new(signs, &secret)
        .map_err(|error| bad(KEY, format!("the secret of {name} {error}")))
}

/// Loads the certificate and its key; `None` if neither is given.
pub fn tls(cert: Option<&Path>, key: Option<&Path>) -> Result<Option<Tls>, ConfigError> {
    match (cert, key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(Tls::load(cert, key)?)),
        _ => Err(ConfigError::IncompleteTls),
    }
}

/// Loads certificate authorities for webhooks; none if no file is given.
pub fn webhook_authorities(path: Option<&Path>) -> Result<Authorities, ConfigError> {
    match path {
        None => Ok(Authorities::default()),
        Some(path) => Authorities::load(path).map_err(|error| bad("webhook_ca", error.to_string())),
    }
}

/// Reads the settings of the mail server; `None` if none are given.
pub fn mail_server(settings: MailSettings<'_>) -> Result<Option<MailServer>, ConfigError> {
    let MailSettings { url, from, credentials_file, ca } = settings;
    let Some(url) = url else {
        let given = [
            ("smtp_from", from.is_some()),
            ("smtp_credentials_file", credentials_file.is_some()),
            ("smtp_ca", ca.is_some()),
        ];
        return match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((key, _)) => Err(bad(key, "needs a mail server: give --smtp-url too".to_owned())),
            None => Ok(None),
        };
    };
    let url = MailServerUrl::parse(url).map_err(|problem| bad("smtp_url", problem))?;
    let from = sender(from)?;
    let credentials = credentials_file.map(smtp_credentials).transpose()?;
    let authorities = match ca {
        None => Authorities::default(),
        Some(_) if !url.is_encrypted() => {
            let problem = "has no effect: the connection of smtp_url is not encrypted";
            return Err(bad("smtp_ca", problem.to_owned()));
        }
        Some(path) => Authorities::load(path).map_err(|error| bad("smtp_ca", error.to_string()))?,
    };
    let server = MailServer::new(url, from, credentials, &authorities);
    server.map(Some).map_err(|problem| bad("smtp_url", problem))
}

fn sender(from: Option<&str>) -> Result<Mailbox, ConfigError> {
    const KEY: &str = "smtp_from";
    const FORM: &str = "like alarms@example.org or Punctual <alarms@example.org>";
    let from = from.ok_or_else(|| bad(KEY, format!("must be given with smtp_url, {FORM}")))?;
    let mailbox = from.parse().ok().filter(|it: &Mailbox| it.email.to_string().is_ascii());
    mailbox.ok_or_else(|| bad(KEY, format!("must be a mail address {FORM}")))
}

fn smtp_credentials(path: &Path) -> Result<SmtpCredentials, ConfigError> {
    const KEY: &str = "smtp_credentials_file";
    let text = secret_in(KEY, path)?;
    SmtpCredentials::parse(&text).map_err(|problem| bad(KEY, problem))
}

/// The default for webhook connections: the file descriptors that are left after the connections of
/// callers and the store, between 512 and 4096, and at most a quarter of all.
#[must_use]
pub fn webhook_connections_max() -> usize {
    webhook_connections_of(getrlimit(Resource::Nofile).current)
}

fn webhook_connections_of(files: Option<u64>) -> usize {
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let left = files.saturating_sub(CONNECTIONS_MAX + STORE_FILES);
    left.clamp(WEBHOOK_CONNECTIONS.0, WEBHOOK_CONNECTIONS.1).min((files / 4).max(1))
}

fn pair<'a>(key: &'static str, text: &'a str) -> Result<(&'a str, &'a str), ConfigError> {
    text.split_once('=').ok_or_else(|| bad(key, "must be NAMESPACE=SECRET".to_owned()))
}

/// The error does not repeat the name, which may be a secret that was put in the wrong order.
fn namespace(key: &'static str, name: &str) -> Result<Namespace, ConfigError> {
    Namespace::new(name).map_err(|invalid| bad(key, invalid.to_string()))
}

fn secret_of(key: &'static str, text: &str) -> Result<String, ConfigError> {
    match text.strip_prefix('@') {
        Some(path) => secret_in(key, Path::new(path)),
        None => Ok(text.to_owned()),
    }
}

fn secret_in(key: &'static str, path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source| ConfigError::SecretFile { key, path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > SECRET_FILE_BYTES_MAX {
        return Err(bad(key, format!("{} is too large for a secret", path.display())));
    }
    // Editors and `echo` end a file with a line break.
    Ok(std::fs::read_to_string(path).map_err(unreadable)?.trim_end().to_owned())
}

/// Reads a secret again. The error does not repeat the contents of the file.
pub(crate) fn read_secret(path: &Path) -> Result<String, String> {
    secret_in("tokens", path).map_err(|error| match std::error::Error::source(&error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    })
}

fn bad(key: &'static str, problem: String) -> ConfigError {
    ConfigError::Value { key, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str) -> Config {
        Config {
            listen: listen.parse().unwrap(),
            insecure: false,
            tokens: vec![],
            signing_secrets: vec![],
            allow_private_targets: false,
            webhook_authorities: Authorities::default(),
            webhook_connections_max: 8,
            answer_bytes: 1024,
            mail_server: None,
            connectors: ConnectorConfig::default(),
            tls: None,
            retention: Retention::default(),
            grace: Duration::from_secs(1),
            sharing: None,
        }
    }

    #[test]
    fn other_addresses_than_loopback_need_tokens_or_insecure() {
        for (listen, insecure, tokens, fine) in [
            ("127.0.0.1:7400", false, 0, true),
            ("127.0.0.2:0", false, 0, true),
            ("[::1]:7400", false, 0, true),
            ("0.0.0.0:7400", false, 0, false),
            ("[::]:7400", false, 0, false),
            ("192.0.2.1:7400", false, 0, false),
            ("0.0.0.0:7400", true, 0, true),
            ("0.0.0.0:7400", false, 1, true),
        ] {
            let tokens = vec![token("shop=secret").unwrap(); tokens];
            let config = Config { insecure, tokens, ..config(listen) };
            assert_eq!(config.check().is_ok(), fine, "{listen}");
        }
    }

    #[test]
    fn webhooks_leave_file_descriptors_for_callers_and_store() {
        for (files, want) in [
            (None, 4096),
            (Some(1_000_000), 4096),
            (Some(18_000), 1104),
            (Some(16_384), 512),
            (Some(2048), 512),
            (Some(1024), 256),
            (Some(256), 64),
            (Some(0), 1),
        ] {
            assert_eq!(webhook_connections_of(files), want, "{files:?}");
        }
        let none = Config { webhook_connections_max: 0, ..config("127.0.0.1:0") };
        assert!(none.check().unwrap_err().to_string().contains("webhook_connections"));
        for (answer_bytes, fine) in [(0, true), (16_384, true), (16_385, false)] {
            let config = Config { answer_bytes, ..config("127.0.0.1:0") };
            assert_eq!(config.check().is_ok(), fine, "{answer_bytes}");
        }
    }

    #[test]
    fn the_advertised_address_must_have_a_host_and_a_port() {
        for (listen, advertise, want) in [
            ("127.0.0.1:7400", None, Some("127.0.0.1:7400")),
            ("[::1]:7400", None, Some("[::1]:7400")),
            ("127.0.0.1:7400", Some("broker-1.example:80"), Some("broker-1.example:80")),
            ("0.0.0.0:7400", Some("10.0.0.1:7400"), Some("10.0.0.1:7400")),
            ("0.0.0.0:7400", None, None),
            ("127.0.0.1:7400", Some("broker-1"), None),
            ("127.0.0.1:7400", Some(":7400"), None),
            ("127.0.0.1:7400", Some("http://a:7400"), None),
            ("127.0.0.1:7400", Some("me@a:7400"), None),
            ("127.0.0.1:7400", Some("a:99999"), None),
        ] {
            let lease = Duration::from_secs(5);
            let advertise = advertise.map(str::to_owned);
            let sharing = Sharing { advertise, lease, authority: None };
            let broker = sharing.broker(listen.parse().unwrap()).ok();
            assert_eq!(broker.as_ref().map(BrokerId::as_str), want, "{listen}");
        }
        for (lease_ms, fine) in [(499, false), (500, true), (60_000, true), (60_001, false)] {
            let lease = Duration::from_millis(lease_ms);
            let sharing = Some(Sharing { advertise: None, lease, authority: None });
            let config = Config { sharing, ..config("127.0.0.1:7400") };
            assert_eq!(config.check().is_ok(), fine, "{lease_ms}");
        }
    }

    #[test]
    fn webhooks_reach_only_the_networks_that_are_allowed() {
        for (listen, allow_private_targets, want) in [
            ("127.0.0.1:7400", false, Reach::Loopback),
            ("127.0.0.1:7400", true, Reach::Private),
            ("0.0.0.0:7400", false, Reach::Public),
            ("192.168.0.7:7400", false, Reach::Public),
            ("0.0.0.0:7400", true, Reach::Private),
        ] {
            let config = Config { allow_private_targets, ..config(listen) };
            assert_eq!(config.reach(), want, "{listen}, {allow_private_targets}");
        }
    }

    #[test]
    fn the_error_of_a_bad_secret_does_not_repeat_it() {
        const BASE64: &str = "c2VjcmV0";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, format!("{BASE64} {BASE64}\n")).unwrap();
        let at = format!("shop=@{}", file.path().display());
        for (error, part) in [
            (token(BASE64).unwrap_err(), "NAMESPACE=SECRET"),
            (token(&format!("{BASE64} {BASE64}=x")).unwrap_err(), "must be 1 to 64 letters"),
            (token(&format!("shop={BASE64} {BASE64}")).unwrap_err(), "the secret of shop"),
            (token(&at).unwrap_err(), "the secret of shop"),
            (token("shop=@/no/such/file").unwrap_err(), "/no/such/file"),
            (admin_token(&format!("{BASE64},{BASE64}")).unwrap_err(), "admin_tokens"),
            (signing_secret(&format!("shop=whsec_{BASE64}")).unwrap_err(), "the secret of shop"),
            (signing_secret(&at).unwrap_err(), "whsec_"),
        ] {
            let message = error.to_string();
            assert!(message.contains(part) && !message.contains(BASE64), "{message}");
        }
    }

    #[test]
    fn a_secret_can_be_read_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let path = file.path().display();
        assert!(signing_secret(&format!("*=@{path}")).is_ok());
        assert!(token(&format!("shop=@{path}")).is_ok());
        assert!(admin_token(&format!("@{path}")).is_ok());
        let config = Config { tokens: vec![token("shop=hush").unwrap()], ..config("[::1]:1") };
        assert!(!format!("{config:?}").contains("hush"));
    }

    #[test]
    fn a_mail_server_needs_a_url_and_a_sender() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "ops:hush\n").unwrap();
        let wrong = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&wrong, "hush\n").unwrap();
        let (plain, tls) = ("smtp://127.0.0.1:25", "smtps://mail.example.org");
        let (ops, nowhere) = ("Ops <ops@example.org>", Path::new("/no/such/file"));
        for (url, from, credentials_file, ca, want) in [
            (None, None, None, None, Ok(false)),
            (Some(plain), Some(ops), None, None, Ok(true)),
            (Some(tls), Some("ops@example.org"), Some(file.path()), None, Ok(true)),
            (None, Some(ops), None, None, Err("smtp_from: needs a mail server")),
            (None, None, Some(nowhere), None, Err("smtp_credentials_file: needs a mail")),
            (None, None, None, Some(nowhere), Err("smtp_ca: needs a mail server")),
            (Some(tls), None, None, None, Err("smtp_from: must be given with smtp_url")),
            (Some(tls), Some("ops"), None, None, Err("smtp_from: must be a mail address")),
            (Some(tls), Some("öps@example.org"), None, None, Err("smtp_from: must be a mail")),
            (Some("smtp://a.example"), Some(ops), None, None, Err("smtp_url: the connection")),
            (Some(tls), Some(ops), Some(nowhere), None, Err("smtp_credentials_file: cannot")),
            (Some(tls), Some(ops), Some(wrong.path()), None, Err("smtp_credentials_file: the")),
            (Some(tls), Some(ops), None, Some(nowhere), Err("smtp_ca: /no/such/file has no")),
            (Some(plain), Some(ops), None, Some(nowhere), Err("smtp_ca: has no effect")),
        ] {
            let settings = MailSettings { url, from, credentials_file, ca };
            match (mail_server(settings), want) {
                (Ok(server), Ok(want)) => assert_eq!(server.is_some(), want, "{settings:?}"),
                (Err(error), Err(want)) => {
                    let error = error.to_string();
                    assert!(error.starts_with(want) && !error.contains("hush"), "{error}");
                }
                (got, want) => panic!("{settings:?}: {got:?}, not {want:?}"),
            }
        }
    }
}
