//! TLS: the broker's own door, and whom it believes when it calls others.
//!
//! In: PEM files. Out: what accepts connections ([`Tls`]), and authorities ([`Authorities`]); or an error that names the file. HTTP/2 is
//! offered before HTTP/1.1.
//! Not here: connecting to webhooks (`courier/dial`), and to other brokers (`peer`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, ready to be used. Cheap to clone.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

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
        let no_cert = |reason: String| TlsError::Certificate { path: cert.to_owned(), reason };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect)
            .map_err(|error| no_cert(error.to_string()))?;
        if chain.is_empty() {
            return Err(no_cert("no CERTIFICATE section".to_owned()));
        }
        let secret = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| TlsError::Key { path: key.to_owned(), reason: error.to_string() })?;
        let pair = |source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(crate) const fn acceptor(&self) -> &TlsAcceptor {
        &self.0
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
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
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
