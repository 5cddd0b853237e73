//! Configuration: what a broker is told when it starts.
//!
//! In: values that the binary gathered from flags, the environment and a file. Out: a [`Config`] that makes sense as a
//! whole, or an error that says what to change. Invariant: a secret is in no error and in no debug output.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use punctual_core::{BrokerId, Namespace};
use punctual_store::Retention;
use rustix::process::{Resource, getrlimit};

use crate::auth::{Grant, Token};
use crate::courier::{Reach, SigningSecret, Signs};
use crate::listen::CONNECTIONS_MAX;
use crate::tls::{Authorities, Tls, TlsError};

/// Bytes of a file that holds a secret. A larger one is something else.
const SECRET_FILE_BYTES_MAX: u64 = 4096;

/// Connections to receivers at once, at least and at most: a lane has up to 256 deliveries under way and may use a half; each costs some tens
/// of kilobytes.
const WEBHOOK_CONNECTIONS: (usize, usize) = (512, 4096);
/// Files of the store.
const STORE_FILES: usize = 512;

/// What a broker is told when it starts.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Whether it may listen beyond loopback although nobody has to say who they are.
    pub insecure: bool,
    /// Who may call it. None at all: everybody.
    pub tokens: Vec<Token>,
    /// What its webhooks are signed with.
    pub signing_secrets: Vec<SigningSecret>,
    /// Whether webhooks may go to private networks and to this machine.
    pub allow_private_targets: bool,
    /// Whom it believes who receivers are, besides those that browsers believe.
    pub webhook_authorities: Authorities,
    /// Connections to receivers at once, to all of them together.
    pub webhook_connections_max: usize,
    /// Its certificate, if it speaks TLS.
    pub tls: Option<Tls>,
    /// How long history and dead letters are kept.
    pub retention: Retention,
    /// How long work under way may take to end when the broker stops.
    pub grace: Duration,
    /// How it shares its store with other brokers, if it does.
    pub sharing: Option<Sharing>,
}

/// What a broker is told that shares its store with others.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// Where the others reach it, `HOST:PORT`; where it listens unless given.
    pub advertise: Option<String>,
    /// How long a partition waits for a broker that has vanished.
    pub lease: Duration,
    /// Where the store is, `HOST:PORT` each: no webhook goes there.
    pub stores: Vec<String>,
    /// A private authority, as PEM, that has signed the certificates of the others.
    pub authority: Option<Vec<u8>>,
}

impl Sharing {
    /// By what address the others know a broker that listens here.
    pub(crate) fn broker(&self, listens: SocketAddr) -> Result<BrokerId, ConfigError> {
        match &self.advertise {
            Some(address) => {
                // Whoever is called by it must find host and port in it.
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
                    "must be given: {listens} says nothing about where other brokers reach this one"
                );
                Err(bad("advertise", problem))
            }
            None => Ok(BrokerId::new(&listens.to_string())),
        }
    }
}

/// The lease of a partition: shorter, a slow answer of the store would cost it; longer, a crash would be an outage.
const LEASE: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(60);

/// Why a configuration makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Open to the network without tokens.
    #[error(
        "--listen {0} is reachable from other machines and there are no tokens: anybody could \
         schedule calls from this machine. Give --token NAMESPACE=SECRET, listen on 127.0.0.1, or \
         say --insecure if you mean it"
    )]
    Open(SocketAddr),
    /// A value whose form is not right. What is wrong is said without the value, which may be secret.
    #[error("{key}: {problem}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A file with a secret that cannot be read.
    #[error("{key}: cannot read the secret in {}", path.display())]
    SecretFile {
        /// Which key.
        key: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// One of certificate and key is missing.
    #[error("tls_cert and tls_key go together: the certificate and its key")]
    HalfTls,
    /// The certificate or the key will not do.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Config {
    /// Checks what only shows when all values are known.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !self.listen.ip().is_loopback() && !self.insecure && self.tokens.is_empty() {
            return Err(ConfigError::Open(self.listen));
        }
        if self.webhook_connections_max == 0 {
            return Err(bad("webhook_connections", "must be at least 1".to_owned()));
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

    /// How far webhooks may reach. Whoever can call a broker that listens on loopback only is on this machine already.
    #[must_use]
    pub fn reach(&self) -> Reach {
        match self.allow_private_targets {
            true => Reach::Private,
            false if self.listen.ip().is_loopback() => Reach::Loopback,
            false => Reach::Public,
        }
    }
}

/// A token of a namespace, from `NAMESPACE=SECRET` or `NAMESPACE=@/path/to/file`.
pub fn token(text: &str) -> Result<Token, ConfigError> {
    const KEY: &str = "tokens";
    let (name, secret) = pair(KEY, text)?;
    let grant = Grant::Namespace(namespace(KEY, name)?);
    let secret = secret_of(KEY, secret)?;
    Token::new(grant, &secret).map_err(|error| bad(KEY, format!("the secret of {name} {error}")))
}

/// A token for everything, from `SECRET` or `@/path/to/file`.
pub fn admin_token(text: &str) -> Result<Token, ConfigError> {
    const KEY: &str = "admin_tokens";
    let secret = secret_of(KEY, text)?;
    Token::new(Grant::Admin, &secret).map_err(|error| bad(KEY, error.to_string()))
}

/// A secret to sign with, from `NAMESPACE=whsec_…` or `NAMESPACE=@/path/to/file`; `*` means every namespace.
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

/// The certificate, if there is one.
pub fn tls(cert: Option<&Path>, key: Option<&Path>) -> Result<Option<Tls>, ConfigError> {
    match (cert, key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(Tls::load(cert, key)?)),
        _ => Err(ConfigError::HalfTls),
    }
}

/// Authorities for receivers besides those that browsers believe, if there are some.
pub fn webhook_authorities(path: Option<&Path>) -> Result<Authorities, ConfigError> {
    match path {
        None => Ok(Authorities::default()),
        Some(path) => Authorities::load(path).map_err(|error| bad("webhook_ca", error.to_string())),
    }
}

/// Connections to receivers at once, unless somebody says: what is left of the files that this process may open when as many have come in as
/// may, and the store has its own. Never so few that one receiver could not be kept busy, if there are so many at all.
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

/// The name may be a secret at the wrong place, so it is not repeated.
fn namespace(key: &'static str, name: &str) -> Result<Namespace, ConfigError> {
    Namespace::new(name).map_err(|invalid| bad(key, invalid.to_string()))
}

fn secret_of(key: &'static str, text: &str) -> Result<String, ConfigError> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(text.to_owned());
    };
    let unreadable = |source| ConfigError::SecretFile { key, path: PathBuf::from(path), source };
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > SECRET_FILE_BYTES_MAX {
        return Err(bad(key, format!("{path} is too large for a secret")));
    }
    // Editors and `echo` end a file with a line break that nobody means.
    Ok(std::fs::read_to_string(path).map_err(unreadable)?.trim_end().to_owned())
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
            tls: None,
            retention: Retention::default(),
            grace: Duration::from_secs(1),
            sharing: None,
        }
    }

    #[test]
    fn beyond_loopback_nothing_runs_without_tokens_or_being_told_to() {
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
    fn webhooks_leave_files_for_the_rest() {
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
    }

    #[test]
    fn brokers_know_each_other_by_an_address_that_leads_somewhere() {
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
            let sharing = Sharing { advertise, lease, stores: vec![], authority: None };
            let broker = sharing.broker(listen.parse().unwrap()).ok();
            assert_eq!(broker.as_ref().map(BrokerId::as_str), want, "{listen}");
        }
        for (lease_ms, fine) in [(499, false), (500, true), (60_000, true), (60_001, false)] {
            let lease = Duration::from_millis(lease_ms);
            let sharing = Some(Sharing { advertise: None, lease, stores: vec![], authority: None });
            let config = Config { sharing, ..config("127.0.0.1:7400") };
            assert_eq!(config.check().is_ok(), fine, "{lease_ms}");
        }
    }

    #[test]
    fn webhooks_reach_no_further_than_they_must() {
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
    fn a_bad_secret_is_explained_without_being_repeated() {
        const BASE64: &str = "c2VjcmV0";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, format!("{BASE64} {BASE64}\n")).unwrap();
        let at = format!("shop=@{}", file.path().display());
        for (error, says) in [
            (token(BASE64).unwrap_err(), "NAMESPACE=SECRET"),
            (token(&format!("{BASE64} {BASE64}=x")).unwrap_err(), "must be 1 to 64 letters"),
            (token(&format!("shop={BASE64} {BASE64}")).unwrap_err(), "the secret of shop"),
            (token(&at).unwrap_err(), "the secret of shop"),
            (token("shop=@/no/such/file").unwrap_err(), "/no/such/file"),
            (admin_token(&format!("{BASE64},{BASE64}")).unwrap_err(), "admin_tokens"),
            (signing_secret(&format!("shop=whsec_{BASE64}")).unwrap_err(), "the secret of shop"),
            (signing_secret(&at).unwrap_err(), "whsec_"),
        ] {
            let said = error.to_string();
            assert!(said.contains(says) && !said.contains(BASE64), "{said}");
        }
    }

    #[test]
    fn a_secret_can_stand_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let path = file.path().display();
        assert!(signing_secret(&format!("*=@{path}")).is_ok());
        assert!(token(&format!("shop=@{path}")).is_ok());
        assert!(admin_token(&format!("@{path}")).is_ok());
        let config = Config { tokens: vec![token("shop=hush").unwrap()], ..config("[::1]:1") };
        assert!(!format!("{config:?}").contains("hush"));
    }
}
