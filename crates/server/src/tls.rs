//! TLS: the broker's own door, and whom it believes when it calls others.
//!
//! In: PEM files; those of the door are read again when they change. Out: what accepts connections ([`Tls`]), and authorities ([`Authorities`]); or an error that names the file. HTTP/2 is
//! offered before HTTP/1.1.
//! Not here: connecting to webhooks (`courier/dial`), and to other brokers (`peer`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::task::spawn_blocking;
use tokio::time::interval;
use tokio_rustls::TlsAcceptor;

use crate::telemetry::Telemetry;

/// How often it is looked whether the certificate or its key has changed. Both are used when they are the same at two looks: one is
/// written after the other.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A certificate with its key, ready to be used. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    shown: Arc<Shown>,
}

/// What connections that begin are shown.
struct Shown {
    cert: PathBuf,
    key: PathBuf,
    certified: RwLock<Arc<CertifiedKey>>,
    /// By what texts it was made.
    print: Print,
    /// Why what is in the files now is not shown.
    problem: Mutex<Option<String>>,
}

/// What stands in the two files, or why that is not known.
struct Texts {
    cert: Result<Vec<u8>, String>,
    key: Result<Vec<u8>, String>,
}

/// Tells texts apart, without keeping a secret.
type Print = [blake3::Hash; 2];

/// Authorities that are believed besides those that browsers believe.
#[derive(Debug, Clone, Default)]
pub struct Authorities(Vec<CertificateDer<'static>>);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or is something else.
    #[error("{} has no certificate in PEM form: {reason}", path.display())]
    Certificate {
        /// Which file.
        path: PathBuf,
        /// What the reader says.
        reason: String,
    },
    /// The file cannot be read, or is something else.
    #[error("{} has no private key in PEM form: {reason}", path.display())]
    Key {
        /// Which file.
        path: PathBuf,
        /// What the reader says; never a part of the key.
        reason: String,
    },
    /// The file cannot be read, or is something else.
    #[error("{} has no certificate of an authority in PEM form: {reason}", path.display())]
    Authority {
        /// Which file.
        path: PathBuf,
        /// What the reader says.
        reason: String,
    },
    /// They do not belong together, or are of a kind that is not supported.
    #[error("the certificate in {} and the key in {} cannot be used", cert.display(), key.display())]
    Pair {
        /// The file with the certificate.
        cert: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
}

impl Tls {
    /// Reads both files.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let texts = Texts::read(cert, key);
        let certified = texts.certified(cert, key)?;
        let shown = Arc::new(Shown {
            cert: cert.to_owned(),
            key: key.to_owned(),
            certified: RwLock::new(Arc::new(certified)),
            print: texts.print(),
            problem: Mutex::default(),
        });
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&shown) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), shown })
    }

    /// Reads the files again when they change. Connections that begin then see what is new; what will not do is reported once, and what was
    /// there before is shown on.
    pub(crate) async fn watch(&self, telemetry: &Telemetry) {
        let mut looks = interval(LOOK_EVERY);
        let (mut tried, mut seen) = (self.shown.print, self.shown.print);
        loop {
            looks.tick().await;
            let (cert, key) = (self.shown.cert.clone(), self.shown.key.clone());
            let Ok(texts) = spawn_blocking(move || Texts::read(&cert, &key)).await else {
                continue;
            };
            let print = texts.print();
            let settled = print == seen;
            seen = print;
            if settled && print != tried {
                tried = print;
                self.shown.show(&texts, telemetry);
            }
        }
    }

    /// Why the files as they are now are not used, if they are not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.shown.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) const fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

impl Shown {
    fn show(&self, texts: &Texts, telemetry: &Telemetry) {
        let problem = match texts.certified(&self.cert, &self.key) {
            Ok(certified) => {
                let mut shown = self.certified.write().unwrap_or_else(PoisonError::into_inner);
                *shown = Arc::new(certified);
                tracing::info!(cert = %self.cert.display(), "a new certificate is in use");
                None
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                let why = source.map_or_else(|| error.to_string(), |why| format!("{error}: {why}"));
                tracing::error!("{why}; the certificate of before stays in use");
                Some(why)
            }
        };
        telemetry.certificate(problem.is_none());
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certified = self.certified.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&certified))
    }
}

impl Texts {
    fn read(cert: &Path, key: &Path) -> Self {
        let read = |path| std::fs::read(path).map_err(|error| error.to_string());
        Self { cert: read(cert), key: read(key) }
    }

    fn print(&self) -> Print {
        [&self.cert, &self.key].map(|text| match text {
            Ok(text) => blake3::hash(text),
            Err(error) => blake3::hash(error.as_bytes()),
        })
    }

    fn certified(&self, cert: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
        let no_cert = |reason: String| TlsError::Certificate { path: cert.to_owned(), reason };
        let no_key = |reason: String| TlsError::Key { path: key.to_owned(), reason };
        let text = self.cert.as_ref().map_err(|error| no_cert(error.clone()))?;
        let chain = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| no_cert(error.to_string()))?;
        if chain.is_empty() {
            return Err(no_cert("no CERTIFICATE section".to_owned()));
        }
        let text = self.key.as_ref().map_err(|error| no_key(error.clone()))?;
        let secret =
            PrivateKeyDer::from_pem_slice(text).map_err(|error| no_key(error.to_string()))?;
        CertifiedKey::from_der(chain, secret, &default_provider())
            .map_err(|source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source })
    }
}

impl Authorities {
    /// Reads a file of one or more certificates, each of which could have signed others.
    pub fn load(path: &Path) -> Result<Self, TlsError> {
        let none = |reason: String| TlsError::Authority { path: path.to_owned(), reason };
        let found: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|error| none(error.to_string()))?;
        if found.is_empty() {
            return Err(none("no CERTIFICATE section".to_owned()));
        }
        let mut roots = RootCertStore::empty();
        for certificate in &found {
            roots.add(certificate.clone()).map_err(|error| none(error.to_string()))?;
        }
        Ok(Self(found))
    }

    /// How to call those who can show a certificate that leads to one of these, or to one that browsers believe.
    pub(crate) fn client(&self) -> ClientConfig {
        let mut roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        for certificate in &self.0 {
            roots.add(certificate.clone()).expect("it was taken when it was loaded");
        }
        ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shown").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_that_will_not_do_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let broken = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        for (name, text, fine) in [
            ("one.pem", made.cert.pem(), true),
            ("two.pem", made.cert.pem() + &made.cert.pem(), true),
            ("empty.pem", String::new(), false),
            ("key.pem", made.signing_key.serialize_pem(), false),
            ("broken.pem", broken.to_owned(), false),
            ("half.pem", made.cert.pem() + broken, false),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            match Authorities::load(&path) {
                Ok(_) => assert!(fine, "{name}"),
                Err(error) => assert!(!fine && error.to_string().contains(name), "{error}"),
            }
        }
        assert!(Authorities::load(&dir.path().join("missing.pem")).is_err());
    }

    #[test]
    fn files_that_will_not_do_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let ours = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let cert = write("cert.pem", &ours.cert.pem());
        let key = write("key.pem", &ours.signing_key.serialize_pem());
        let other_key = write("other.pem", &other.signing_key.serialize_pem());
        let empty = write("empty.pem", "");
        let broken = write("broken.pem", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n");
        let missing = dir.path().join("missing.pem");
        assert!(Tls::load(&cert, &key).is_ok());
        for (cert, key, named) in [
            (&missing, &key, "missing.pem"),
            (&empty, &key, "empty.pem"),
            (&key, &key, "key.pem"),
            (&cert, &missing, "missing.pem"),
            (&cert, &cert, "cert.pem"),
            (&cert, &broken, "broken.pem"),
            (&cert, &other_key, "other.pem"),
        ] {
            let error = Tls::load(cert, key).unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("c2VjcmV0"), "{error}");
        }
    }
}
