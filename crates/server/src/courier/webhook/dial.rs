//! Dialling: from the URL of a webhook to a connection.
//!
//! In: a URI. Out: a connection, plain or TLS, to an address that the [`Guard`] has seen; or why there is none.
//! Invariant: every address that a name has is checked, and the connection goes to one of these very addresses: nothing
//! is looked up a second time. The environment's proxies are not asked.
//! Bound: each step has a deadline of its own, also when nobody waits for the connection any more.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower_service::Service;

use super::guard::{Forbidden, Guard, place};
use crate::tls::Authorities;

/// How long a name may take to be looked up.
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// Names looked up at once. Each holds a thread until the machine's resolver gives up, and the store needs threads too.
const LOOKUPS_MAX: usize = 64;
/// Addresses of a name that are tried, and that share the time to connect.
const ADDRESSES_MAX: usize = 8;
/// How long connecting may take, over all addresses.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long it may take until a connection can be used, TLS and all.
const READY_MAX: Duration = Duration::from_secs(15);

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Dialling<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error("the URL names no place to connect to")]
    Nowhere,
    #[error("the name cannot be looked up: {0}")]
    Lookup(io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("looking up the name took too long")]
    LookupSlow,
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("connecting took too long")]
    ConnectSlow,
    #[error("TLS took too long")]
    TlsSlow,
}

/// Makes connections, TLS and all, within [`READY_MAX`].
#[derive(Debug, Clone)]
pub(crate) struct Dialler(HttpsConnector<Dial>);

/// Makes plain connections.
#[derive(Debug, Clone)]
pub(crate) struct Dial {
    guard: Guard,
    lookups: Arc<Semaphore>,
}

impl Dialler {
    /// Believes these authorities, and those that browsers believe.
    pub(crate) fn new(guard: Guard, authorities: &Authorities) -> Self {
        let tls = HttpsConnectorBuilder::new().with_tls_config(authorities.client());
        let dial = Dial { guard, lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)) };
        Self(tls.https_or_http().enable_http1().wrap_connector(dial))
    }
}

impl Service<Uri> for Dialler {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Dialling<Self::Response, BoxError>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let dialling = self.0.call(uri);
        Box::pin(async move {
            timeout(READY_MAX, dialling).await.unwrap_or_else(|_| Err(DialError::TlsSlow.into()))
        })
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = DialError;
    type Future = Dialling<Self::Response, DialError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (guard, lookups) = (self.guard.clone(), Arc::clone(&self.lookups));
        Box::pin(async move {
            let (host, port) = place(&uri).ok_or(DialError::Nowhere)?;
            let addresses = match host.parse::<IpAddr>() {
                Ok(ip) => vec![SocketAddr::new(ip, port)],
                Err(_) => lookup(host.to_owned(), port, lookups).await?,
            };
            // One forbidden address among allowed ones is no accident: the name is not trusted with the others either.
            for address in &addresses {
                guard.check(*address)?;
            }
            connect(&addresses).await.map(TokioIo::new)
        })
    }
}

/// All addresses of a name, as far as they will be used.
async fn lookup(
    host: String,
    port: u16,
    lookups: Arc<Semaphore>,
) -> Result<Vec<SocketAddr>, DialError> {
    let looking = async move {
        let Ok(place) = lookups.acquire_owned().await else {
            return Err(DialError::LookupSlow);
        };
        let found = tokio::task::spawn_blocking(move || {
            // A place is free again when the thread is, which may be after the deadline.
            let _place = place;
            (host.as_str(), port).to_socket_addrs().map(|found| found.take(ADDRESSES_MAX).collect())
        });
        found.await.map_err(|_| DialError::LookupSlow)?.map_err(DialError::Lookup)
    };
    let addresses: Vec<SocketAddr> =
        timeout(LOOKUP_MAX, looking).await.unwrap_or(Err(DialError::LookupSlow))?;
    if addresses.is_empty() { Err(DialError::NoAddress) } else { Ok(addresses) }
}

/// The first address that answers.
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
    use http_body_util::Full;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::courier::Reach;

    fn dial(reach: Reach, own: SocketAddr) -> Dial {
        Dial { guard: Guard::new(reach, own), lookups: Arc::new(Semaphore::new(1)) }
    }

    #[tokio::test]
    async fn a_name_and_every_spelling_of_an_address_are_checked_after_they_were_looked_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let elsewhere = "192.0.2.1:1".parse().unwrap();
        for host in
            ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "[::ffff:127.0.0.1]"]
        {
            let uri: Uri = format!("http://{host}:{port}/").parse().unwrap();
            let refused = dial(Reach::Public, elsewhere).call(uri.clone()).await;
            assert!(matches!(refused, Err(DialError::Forbidden(_))), "{host}: {refused:?}");
            let own = dial(Reach::Private, listener.local_addr().unwrap()).call(uri.clone()).await;
            assert!(matches!(own, Err(DialError::Forbidden(Forbidden::Own(_)))), "{host}: {own:?}");
            let connected = dial(Reach::Loopback, elsewhere).call(uri).await;
            assert!(connected.is_ok(), "{host}: {connected:?}");
        }
    }

    #[tokio::test]
    async fn a_name_that_means_nothing_says_so() {
        let own = "127.0.0.1:1".parse().unwrap();
        let uri = "http://nobody.invalid/".parse().unwrap();
        let answer = dial(Reach::Private, own).call(uri).await;
        assert!(matches!(answer, Err(DialError::Lookup(_))), "{answer:?}");
    }

    /// A receiver that speaks TLS with a certificate of its own, for a name; the authority that vouches for it.
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
                    // A client that does not believe us breaks off.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(stream.read_u8().await.unwrap());
                    }
                    let answer = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";
                    stream.write_all(answer).await.unwrap();
                    // What is written may still be on its way.
                    stream.flush().await.unwrap();
                });
            }
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, made.cert.pem()).unwrap();
        (port, Authorities::load(file.path()).unwrap())
    }

    /// What a webhook to `https://localhost` comes to, if these authorities are believed, too.
    async fn call(port: u16, authorities: Authorities) -> Result<u16, String> {
        let guard = Guard::new(Reach::Loopback, "192.0.2.1:1".parse().unwrap());
        let dialler = Dialler::new(guard, &authorities);
        let client = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(dialler);
        let answer = client.get(format!("https://localhost:{port}/").parse().unwrap()).await;
        answer.map(|answer| answer.status().as_u16()).map_err(|error| {
            let mut cause: &dyn std::error::Error = &error;
            while let Some(source) = cause.source() {
                cause = source;
            }
            cause.to_string()
        })
    }

    #[tokio::test]
    async fn a_receiver_over_tls_is_called_if_it_can_show_who_it_is() {
        let (port, authority) = secure("localhost").await;
        assert_eq!(call(port, authority).await, Ok(202));
        let stranger = call(port, Authorities::default()).await.unwrap_err();
        assert!(stranger.contains("UnknownIssuer"), "{stranger}");
        let (port, authority) = secure("elsewhere.example").await;
        let misnamed = call(port, authority).await.unwrap_err();
        assert!(misnamed.contains("not valid for name"), "{misnamed}");
    }

    // With time stopped, tokio moves it to the next deadline as soon as nothing else can happen.
    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_never_agrees_on_tls_is_given_up() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let error = call(port, Authorities::default()).await.unwrap_err();
        assert_eq!(error, DialError::TlsSlow.to_string());
    }
}
