//! TLS of the broker's own door.
//!
//! In: two PEM files. Out: what accepts connections, or an error that names the file. HTTP/2 is offered before HTTP/1.1.
//! Not here: TLS towards webhooks (`courier/dial`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, ready to be used. Cheap to clone.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

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

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
