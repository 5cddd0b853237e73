//! TLS of PostgreSQL connections: rustls with ring, which always checks the server's certificate.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::error::SqlError;
use crate::options::SqlOptions;

/// Makes the TLS configuration of a connection.
pub(crate) fn client_config(options: &SqlOptions) -> Result<Arc<ClientConfig>, SqlError> {
    let mut roots = RootCertStore::empty();
    match &options.authority_pem {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let added = certificate
                    .map_err(|error| error.to_string())
                    .and_then(|one| roots.add(one).map_err(|error| error.to_string()));
                added.map_err(|why| {
                    SqlError::Options(format!("the database's authority is invalid: {why}"))
                })?;
            }
            if roots.is_empty() {
                let why = "the file of the database's authority has no certificate";
                return Err(SqlError::Options(why.to_owned()));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SqlError::Options(format!("TLS is not available: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Starts TLS on a connection to a PostgreSQL server.
pub(crate) struct PostgresTls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl PostgresTls {
    pub(crate) fn new(config: Arc<ClientConfig>, host: &str) -> Result<Self, SqlError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| SqlError::Options(format!("{host:?} is not a host name")))?;
        Ok(Self { connector: TlsConnector::from(config), name })
    }
}

impl TlsConnect<TcpStream> for PostgresTls {
    type Stream = PostgresStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PostgresStream>> + Send>>;

    fn connect(self, stream: TcpStream) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(self.name, stream).await?;
            Ok(PostgresStream(Box::new(stream)))
        })
    }
}

/// A connection with TLS.
pub(crate) struct PostgresStream(Box<tokio_rustls::client::TlsStream<TcpStream>>);

impl TlsStream for PostgresStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PostgresStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PostgresStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
