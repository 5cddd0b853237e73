//! Opens the connection to a webhook, with or without TLS.
//!
//! The [`Guard`] checks every address of a host name, and the connection is made to one of the
//! checked addresses: the name is not resolved a second time. Proxies of the environment are not
//! used. Each step has a timeout of its own, which applies even if the caller no longer waits. To
//! wait for the permit to look a name up is not a step: it takes as long as it takes.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use punctual_core::Namespace;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use super::guard::{Forbidden, Guard, host_and_port};
use crate::shares::{ShareKey, SharePermit, Shares};
use crate::tls::Authorities;

/// How long resolving a name may take.
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// Names that are resolved at once, of all namespaces together. Each takes a thread until the
/// system's resolver returns, and the store needs threads too.
const LOOKUPS_MAX: usize = 64;
/// Addresses of a name that are tried; they share the time to connect.
const ADDRESSES_MAX: usize = 8;
/// How long connecting may take, over all addresses.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long it may take until a connection can be used, including TLS.
const READY_MAX: Duration = Duration::from_secs(15);

pub(in crate::courier) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// A connection that was opened.
type Dialled = Result<MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;
type Dialling<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// HTTP/2 as servers name it in TLS.
const HTTP2: &[u8] = b"h2";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error("the URL has no host")]
    NoHost,
    #[error("the host name cannot be resolved: {0}")]
    Lookup(io::Error),
    #[error("the host name has no address")]
    NoAddress,
    #[error("resolving the host name took too long")]
    LookupSlow,
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("connecting took too long")]
    ConnectSlow,
    #[error("TLS took too long")]
    TlsSlow,
    #[error("the server does not offer HTTP/2 (ALPN h2)")]
    NoHttp2,
}

/// Opens connections, including TLS, within [`READY_MAX`].
#[derive(Debug, Clone)]
pub(crate) struct Dialler {
    guard: Guard,
    lookups: Shares,
    tls: Arc<ClientConfig>,
    /// Asks for HTTP/2.
    tls_of_calls: Arc<ClientConfig>,
}

/// The permit to look up the host of a URL; without one if the URL has an address.
#[derive(Debug)]
pub(in crate::courier) struct LookupPermit(
    #[expect(dead_code, reason = "held until it is dropped")] Option<SharePermit>,
);

impl Dialler {
    /// Trusts these certificate authorities and the public ones.
    pub(crate) fn new(guard: Guard, authorities: &Authorities) -> Self {
        let lookups = Shares::new(LOOKUPS_MAX);
        let tls = authorities.client();
        let mut tls_of_calls = tls.clone();
        tls_of_calls.alpn_protocols = vec![HTTP2.to_vec()];
        Self { guard, lookups, tls: Arc::new(tls), tls_of_calls: Arc::new(tls_of_calls) }
    }

    /// Waits until the host of a URL may be looked up.
    pub(in crate::courier) async fn lookup_permit(
        &self,
        namespace: &Namespace,
        uri: &Uri,
    ) -> LookupPermit {
        let name = host_and_port(uri).map(|(host, _)| host);
        match name.filter(|host| host.parse::<IpAddr>().is_err()) {
            Some(name) => {
                let key = ShareKey::part(namespace.clone(), name);
                LookupPermit(Some(self.lookups.acquire(&key).await))
            }
            None => LookupPermit(None),
        }
    }

    /// Opens a connection for HTTP/1.1.
    pub(super) async fn dial(&self, uri: &Uri, permit: LookupPermit) -> Dialled {
        self.dial_with(&self.tls, uri, permit).await
    }

    /// Opens a connection for HTTP/2. Without TLS, the server is taken to know it.
    pub(in crate::courier) async fn dial_for_calls(
        &self,
        uri: &Uri,
        permit: LookupPermit,
    ) -> Dialled {
        let stream = self.dial_with(&self.tls_of_calls, uri, permit).await?;
        if let MaybeHttpsStream::Https(tls) = &stream
            && tls.inner().get_ref().1.alpn_protocol() != Some(HTTP2)
        {
            return Err(DialError::NoHttp2.into());
        }
        Ok(stream)
    }

    async fn dial_with(&self, tls: &Arc<ClientConfig>, uri: &Uri, permit: LookupPermit) -> Dialled {
        let tcp = TcpDialler { guard: self.guard.clone(), permit: Some(permit) };
        let dialling = HttpsConnector::from((tcp, Arc::clone(tls))).call(uri.clone());
        timeout(READY_MAX, dialling).await.unwrap_or_else(|_| Err(DialError::TlsSlow.into()))
    }
}

/// Opens one TCP connection.
#[derive(Debug)]
pub(crate) struct TcpDialler {
    guard: Guard,
    /// Taken by the first call.
    permit: Option<LookupPermit>,
}

impl Service<Uri> for TcpDialler {
    type Response = TokioIo<TcpStream>;
    type Error = DialError;
    type Future = Dialling<Self::Response, DialError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (guard, permit) = (self.guard.clone(), self.permit.take());
        Box::pin(async move {
            let (host, port) = host_and_port(&uri).ok_or(DialError::NoHost)?;
            let addresses = match host.parse::<IpAddr>() {
                Ok(ip) => vec![SocketAddr::new(ip, port)],
                Err(_) => lookup(host.to_owned(), port, permit).await?,
            };
            // A name with both forbidden and allowed addresses is suspicious, so it is refused.
            for address in &addresses {
                guard.check(*address)?;
            }
            connect(&addresses).await.map(TokioIo::new)
        })
    }
}

/// Resolves a name. Returns at most [`ADDRESSES_MAX`] addresses.
async fn lookup(
    host: String,
    port: u16,
    permit: Option<LookupPermit>,
) -> Result<Vec<SocketAddr>, DialError> {
    let resolving = tokio::task::spawn_blocking(move || {
        // Released when the thread is free again, which may be after the timeout.
        let _permit = permit;
        (host.as_str(), port).to_socket_addrs().map(|found| found.take(ADDRESSES_MAX).collect())
    });
    let Ok(Ok(found)) = timeout(LOOKUP_MAX, resolving).await else {
        return Err(DialError::LookupSlow);
    };
    let addresses: Vec<SocketAddr> = found.map_err(DialError::Lookup)?;
    if addresses.is_empty() { Err(DialError::NoAddress) } else { Ok(addresses) }
}

/// Connects to the first address that accepts.
async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, DialError> {
    let share = CONNECT_MAX / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    let mut failed = DialError::NoAddress;
    for address in addresses {
        match timeout(share, TcpStream::connect(*address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true).map_err(DialError::Connect)?;
                return Ok(stream);
            }
            Ok(Err(error)) => failed = DialError::Connect(error),
            Err(_) => failed = DialError::ConnectSlow,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::Full;
    use hyper::client::conn::http1;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::courier::Reach;
    use crate::courier::inner_error;

    fn dial(reach: Reach, own: SocketAddr) -> TcpDialler {
        TcpDialler { guard: Guard::new(reach, own), permit: None }
    }

    #[tokio::test]
    async fn names_and_all_spellings_of_an_address_are_checked_after_they_are_resolved() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let other = "192.0.2.1:1".parse().unwrap();
        for host in
            ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "[::ffff:127.0.0.1]"]
        {
            let uri: Uri = format!("http://{host}:{port}/").parse().unwrap();
            let refused = dial(Reach::Public, other).call(uri.clone()).await;
            assert!(matches!(refused, Err(DialError::Forbidden(_))), "{host}: {refused:?}");
            let own = dial(Reach::Private, listener.local_addr().unwrap()).call(uri.clone()).await;
            assert!(matches!(own, Err(DialError::Forbidden(Forbidden::Own(_)))), "{host}: {own:?}");
            let connected = dial(Reach::Loopback, other).call(uri).await;
            assert!(connected.is_ok(), "{host}: {connected:?}");
        }
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_resolved_is_an_error() {
        let own = "127.0.0.1:1".parse().unwrap();
        let uri = "http://unknown.invalid/".parse().unwrap();
        let answer = dial(Reach::Private, own).call(uri).await;
        assert!(matches!(answer, Err(DialError::Lookup(_))), "{answer:?}");
    }

    /// Starts a receiver with a self-signed certificate for a name. Returns its port and the
    /// authority that trusts it.
    async fn secure(name: &str) -> (u16, Authorities) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust the certificate closes the connection.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.unwrap());
                    }
                    let answer = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(answer).await.unwrap();
                    stream.flush().await.unwrap();
                });
            }
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, made.cert.pem()).unwrap();
        (port, Authorities::load(file.path()).unwrap())
    }

    /// Calls `https://localhost` with these authorities. Returns the status or the innermost error.
    async fn call(port: u16, authorities: Authorities) -> Result<u16, String> {
        let guard = Guard::new(Reach::Loopback, "192.0.2.1:1".parse().unwrap());
        let dialler = Dialler::new(guard, &authorities);
        let uri: Uri = format!("https://localhost:{port}/").parse().unwrap();
        let permit = dialler.lookup_permit(&Namespace::new("a").unwrap(), &uri).await;
        let innermost = |error: BoxError| {
            let mut cause: &dyn std::error::Error = error.as_ref();
            while let Some(source) = inner_error(cause) {
                cause = source;
            }
            cause.to_string()
        };
        let stream = dialler.dial(&uri, permit).await.map_err(innermost)?;
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("/").header("host", "localhost").body(Full::<Bytes>::default());
        let answer = sender.send_request(request.unwrap()).await.unwrap();
        Ok(answer.status().as_u16())
    }

    #[tokio::test]
    async fn a_receiver_over_tls_is_called_if_its_certificate_is_trusted_and_has_its_name() {
        let (port, authority) = secure("localhost").await;
        assert_eq!(call(port, authority).await, Ok(202));
        let stranger = call(port, Authorities::default()).await.unwrap_err();
        assert!(stranger.contains("UnknownIssuer"), "{stranger}");
        let (port, authority) = secure("elsewhere.example").await;
        let misnamed = call(port, authority).await.unwrap_err();
        assert!(misnamed.contains("not valid for name"), "{misnamed}");
    }

    // With paused time, tokio advances to the next timeout as soon as nothing else can run.
    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_never_completes_tls_times_out() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let error = call(port, Authorities::default()).await.unwrap_err();
        assert_eq!(error, DialError::TlsSlow.to_string());
    }
}
