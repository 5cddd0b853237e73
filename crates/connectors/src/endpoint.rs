//! Where a system that takes messages is, and how to reach it: read from a URL once.
//!
//! `SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/PATH]`. The scheme says whether TLS is
//! used. A password that begins with `@` names a file that holds it; the text of the URL itself may
//! be `@FILE` as well. The path is the virtual host of AMQP and the database of Redis.

use std::fmt;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use punctual_sql::SqlSecret;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::settings_error::read_secret;

/// Of how many hosts a URL can consist: each costs a connect timeout if it does not answer.
const HOSTS_MAX: usize = 16;

/// How the URLs of a kind of system look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UrlForm {
    /// The scheme without TLS.
    pub(crate) plain: &'static str,
    /// The scheme with TLS.
    pub(crate) tls: &'static str,
    /// The port without TLS, unless the URL has one.
    pub(crate) plain_port: u16,
    /// The port with TLS, unless the URL has one.
    pub(crate) tls_port: u16,
    /// What the path is; `None` if there is none.
    pub(crate) path: Option<&'static str>,
}

/// A server of a system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointHost {
    /// A name or an address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for EndpointHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Where a system is, and how to reach it.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// At least one, to try in this order.
    pub(crate) hosts: Vec<EndpointHost>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<SqlSecret>,
    /// The virtual host or the database, if the URL has one.
    pub(crate) path: Option<String>,
    /// `None` without TLS.
    pub(crate) tls: Option<EndpointTls>,
}

/// TLS of an endpoint. The server's certificate is always checked.
#[derive(Clone, Default)]
pub(crate) struct EndpointTls {
    /// Certificates of a private authority in PEM; without them the public ones are trusted.
    pub(crate) authority_pem: Option<Vec<u8>>,
    /// The certificate chain and the key of the client in PEM, if the server asks for them.
    pub(crate) client_pem: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for EndpointTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointTls")
            .field("authority", &self.authority_pem.is_some())
            .field("client", &self.client_pem.is_some())
            .finish()
    }
}

impl Endpoint {
    /// Reads a URL, or the file that holds it (`@FILE`). Files that it names are read now.
    pub(crate) fn from_url(url: &str, form: &UrlForm) -> Result<Self, String> {
        match url.strip_prefix('@') {
            Some(path) => parse(&read_secret(path)?, form),
            None => parse(url, form),
        }
    }

    /// Where it is, without secrets.
    pub(crate) fn shown(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(EndpointHost::to_string).collect();
        let hosts = hosts.join(",");
        match &self.path {
            Some(path) => format!("{hosts}/{path}"),
            None => hosts,
        }
    }
}

impl EndpointTls {
    /// The configuration of TLS: rustls with ring, as everywhere.
    pub(crate) fn client_config(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        match &self.authority_pem {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(pem) => {
                for certificate in certificates(pem)? {
                    roots.add(certificate).map_err(|error| error.to_string())?;
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let config = match &self.client_pem {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
                let config = config.with_client_auth_cert(certificates(chain)?, key);
                config.map_err(|error| error.to_string())?
            }
        };
        Ok(Arc::new(config))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates.map_err(|error| error.to_string())? {
        none if none.is_empty() => Err("the file has no certificate".to_owned()),
        some => Ok(some),
    }
}

fn parse(url: &str, form: &UrlForm) -> Result<Endpoint, String> {
    let UrlForm { plain, tls, .. } = form;
    let schemes = || format!("must begin with {plain}:// or {tls}://");
    let (scheme, rest) = url.split_once("://").ok_or_else(schemes)?;
    let is_tls = match scheme {
        scheme if scheme == *plain => false,
        scheme if scheme == *tls => true,
        _ => return Err(schemes()),
    };
    let (credentials, place) = match rest.rsplit_once('@') {
        Some((credentials, place)) => (Some(credentials), place),
        None => (None, rest),
    };
    let (user, password) = match credentials.map(|text| text.split_once(':').unwrap_or((text, "")))
    {
        Some((user, password)) => (Some(user), Some(password).filter(|text| !text.is_empty())),
        None => (None, None),
    };
    let user = user.map(|user| decode(user, "user")).transpose()?;
    let password = match password {
        None => None,
        Some(password) => Some(SqlSecret::new(match password.strip_prefix('@') {
            Some(path) => read_secret(path)?,
            None => decode(password, "password")?,
        })),
    };
    if place.contains('?') {
        return Err("must have no parameters".to_owned());
    }
    let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
    let path = match (decode(path, "path")?, form.path) {
        (path, _) if path.is_empty() => None,
        (path, Some(_)) => Some(path),
        (_, None) => return Err("must end with its host and port".to_owned()),
    };
    let port = if is_tls { form.tls_port } else { form.plain_port };
    let hosts = hosts.split(',').map(|host| parse_host(host, port));
    let hosts: Vec<EndpointHost> = hosts.collect::<Result<_, _>>()?;
    if hosts.len() > HOSTS_MAX {
        return Err(format!("must have at most {HOSTS_MAX} hosts, has {}", hosts.len()));
    }
    let tls = is_tls.then(EndpointTls::default);
    Ok(Endpoint { hosts, user, password, path, tls })
}

fn parse_host(text: &str, default: u16) -> Result<EndpointHost, String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, port)) => (address, Some(port.strip_prefix(':').unwrap_or(port))),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => default,
        Some(port) => port.parse().map_err(|_| format!("{port:?} is not a port"))?,
    };
    if host.is_empty() {
        return Err("must have a host".to_owned());
    }
    Ok(EndpointHost { host: host.to_owned(), port })
}

fn decode(text: &str, what: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| format!("its {what} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMQP: UrlForm = UrlForm {
        plain: "amqp",
        tls: "amqps",
        plain_port: 5672,
        tls_port: 5671,
        path: Some("virtual host"),
    };

    #[test]
    fn a_url_names_servers_and_who_connects() {
        for (url, shown, user, password, tls) in [
            ("amqp://mq", "mq:5672", None, None, false),
            ("amqp://mq/", "mq:5672", None, None, false),
            ("amqps://mq", "mq:5671", None, None, true),
            ("amqp://a@mq:1/shop", "mq:1/shop", Some("a"), None, false),
            ("amqp://a:b@mq,[::1]:7/%2f", "mq:5672,[::1]:7//", Some("a"), Some("b"), false),
            ("amqp://a%40b:%40c@mq", "mq:5672", Some("a@b"), Some("@c"), false),
        ] {
            let endpoint = Endpoint::from_url(url, &AMQP).unwrap();
            assert_eq!(endpoint.shown(), shown, "{url}");
            assert_eq!(endpoint.user.as_deref(), user);
            assert_eq!(endpoint.password.as_ref().map(SqlSecret::reveal), password);
            assert_eq!(endpoint.tls.is_some(), tls);
        }
    }

    #[test]
    fn an_invalid_url_is_refused_with_a_reason_that_shows_no_secret() {
        let many = format!("amqp://a:hush@h{}", ",h".repeat(16));
        let no_path = UrlForm { path: None, ..AMQP };
        for (url, form, part) in [
            ("redis://a:hush@mq", &AMQP, "amqp:// or amqps://"),
            ("a:hush@mq", &AMQP, "amqp:// or amqps://"),
            ("amqp://a:hush@", &AMQP, "a host"),
            ("amqp://a:hush@mq:x", &AMQP, "not a port"),
            ("amqp://a:hush@mq?x=y", &AMQP, "no parameters"),
            ("amqp://a:hush@mq/x", &no_path, "its host and port"),
            ("amqp://a:@/no/such/file@mq", &AMQP, "/no/such/file"),
            ("@/no/such/file", &AMQP, "/no/such/file"),
            (&many, &AMQP, "at most 16 hosts, has 17"),
        ] {
            let error = Endpoint::from_url(url, form).unwrap_err();
            assert!(error.contains(part) && !error.contains("hush"), "{url}: {error}");
        }
    }

    #[test]
    fn a_url_or_its_password_can_be_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        std::fs::write(&file, "hush %40\n").unwrap();
        let endpoint = Endpoint::from_url(&format!("amqp://a:@{path}@mq"), &AMQP).unwrap();
        assert_eq!(endpoint.password.as_ref().unwrap().reveal(), "hush %40");
        assert!(!format!("{endpoint:?}").contains("hush"));
        std::fs::write(&file, "amqp://a:hush@mq/v\n").unwrap();
        let endpoint = Endpoint::from_url(&format!("@{path}"), &AMQP).unwrap();
        assert_eq!(endpoint.shown(), "mq:5672/v");
    }
}
