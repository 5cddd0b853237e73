//! TLS: the certificate that the broker serves, and the authorities that it trusts.
//!
//! [`Tls`] reads a certificate and its key from PEM files, again whenever they change, and accepts
//! connections with them; HTTP/2 is preferred to HTTP/1.1. [`Authorities`] are certificate
//! authorities for outgoing connections. Errors name the file. `courier/dial` connects to webhooks,
//! `peer` to other brokers.

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

/// How often the files are checked for changes. New contents are used when two checks in a row find
/// the same, because the two files are not written at the same moment.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// A certificate with its key, for accepting connections. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    served: Arc<ServedCertificate>,
}

/// The certificate that new connections get.
struct ServedCertificate {
    cert: PathBuf,
    key: PathBuf,
    certified: RwLock<Arc<CertifiedKey>>,
    /// The files that it was loaded from at the start.
    fingerprint: Fingerprint,
    /// Why the present contents of the files are not used.
    problem: Mutex<Option<String>>,
}

/// The contents of the two files, or why they cannot be read.
struct PemFiles {
    cert: Result<Vec<u8>, String>,
    key: Result<Vec<u8>, String>,
}

/// Identifies the contents of the two files without keeping the key.
type Fingerprint = [blake3::Hash; 2];

/// Certificate authorities to trust in addition to the public ones.
#[derive(Debug, Clone, Default)]
pub struct Authorities(Vec<CertificateDer<'static>>);

/// Why a certificate, key or authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or has no certificate.
    #[error("{} has no certificate in PEM form: {reason}", path.display())]
    Certificate {
        /// The path of the file.
        path: PathBuf,
        /// The error of the reader.
        reason: String,
    },
    /// The file cannot be read, or has no private key.
    #[error("{} has no private key in PEM form: {reason}", path.display())]
    Key {
        /// The path of the file.
        path: PathBuf,
        /// The error of the reader; never a part of the key.
        reason: String,
    },
    /// The file cannot be read, or has no certificate of an authority.
    #[error("{} has no certificate of an authority in PEM form: {reason}", path.display())]
    Authority {
        /// The path of the file.
        path: PathBuf,
        /// The error of the reader.
        reason: String,
    },
    /// The key does not belong to the certificate, or its algorithm is not supported.
    #[error(
        "the certificate in {} and the key in {} cannot be used together",
        cert.display(), key.display()
    )]
    Pair {
        /// The file with the certificate.
        cert: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// The error of rustls.
        #[source]
        source: rustls::Error,
    },
}

impl Tls {
    /// Reads the certificate and its key.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let files = PemFiles::read(cert, key);
        let certified = files.certified(cert, key)?;
        let served = Arc::new(ServedCertificate {
            cert: cert.to_owned(),
            key: key.to_owned(),
            certified: RwLock::new(Arc::new(certified)),
            fingerprint: files.fingerprint(),
            problem: Mutex::default(),
        });
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports the default protocol versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&served) as _);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), served })
    }

    /// Reads the files again when they change. New connections get the new certificate. Contents
    /// that cannot be used are reported once, and the previous certificate stays in use.
    pub(crate) async fn watch(&self, telemetry: &Telemetry) {
        let mut checks = interval(CHECK_EVERY);
        let (mut tried, mut previous) = (self.served.fingerprint, self.served.fingerprint);
        loop {
            checks.tick().await;
            let (cert, key) = (self.served.cert.clone(), self.served.key.clone());
            let Ok(files) = spawn_blocking(move || PemFiles::read(&cert, &key)).await else {
                continue;
            };
            let fingerprint = files.fingerprint();
            let is_stable = fingerprint == previous;
            previous = fingerprint;
            if is_stable && fingerprint != tried {
                tried = fingerprint;
                self.served.replace(&files, telemetry);
            }
        }
    }

    /// Why the present contents of the files are not used; `None` if they are.
    pub(crate) fn problem(&self) -> Option<String> {
        self.served.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) const fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

impl ServedCertificate {
    fn replace(&self, files: &PemFiles, telemetry: &Telemetry) {
        let problem = match files.certified(&self.cert, &self.key) {
            Ok(certified) => {
                let mut served = self.certified.write().unwrap_or_else(PoisonError::into_inner);
                *served = Arc::new(certified);
                tracing::info!(cert = %self.cert.display(), "new certificate in use");
                None
            }
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                let error = match source {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                };
                tracing::error!(error, "new certificate not usable; the previous one stays in use");
                Some(error)
            }
        };
        telemetry.certificate(problem.is_none());
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certified = self.certified.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&certified))
    }
}

impl PemFiles {
    fn read(cert: &Path, key: &Path) -> Self {
        let read = |path| std::fs::read(path).map_err(|error| error.to_string());
        Self { cert: read(cert), key: read(key) }
    }

    fn fingerprint(&self) -> Fingerprint {
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
    /// Reads a file of one or more certificates; each must be usable as an authority.
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

    pub(crate) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.0
    }

    /// A client configuration that trusts these authorities and the public ones.
    pub(crate) fn client(&self) -> ClientConfig {
        let mut roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
        for certificate in &self.0 {
            roots.add(certificate.clone()).expect("load has checked it");
        }
        ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports the default protocol versions")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl fmt::Debug for ServedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedCertificate").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_file_of_an_unusable_authority() {
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
    fn the_error_names_the_file_that_cannot_be_used() {
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
