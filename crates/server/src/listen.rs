//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them, with TLS or without.
//!
//! Each connection is one tokio task. Everything that a client can be slow at has a deadline: the
//! TLS handshake, the head of a request, reading the response, and being silent (`timed_stream`);
//! bodies have theirs in `api/body.rs`. The number of connections is bounded, so that file
//! descriptors are left for the store and webhooks, and callers that have not shown a valid token
//! have fewer of everything (`trust`).

mod head_timer;
mod timed_stream;
mod trust;
mod wake_gate;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::Service as HttpCall;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::telemetry::Telemetry;
use crate::tls::Tls;
use head_timer::HeadTimer;
use timed_stream::TimedStream;
use trust::Strangers;
pub(crate) use trust::{Callers, ConnectionTrust};
use wake_gate::WakeGate;

/// Open connections at most, some tens of kilobytes each. Further ones wait to be accepted.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// Open connections at most if the limit of open files is very low.
const CONNECTIONS_MIN: usize = 64;
/// File descriptors that are kept for the store and for webhooks.
const FILES_RESERVED: u64 = 1024;
/// Timeout of the TLS handshake. Handshakes in progress are as many as there are strangers.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Timeout of the head of a request after the first one. It includes the wait for the request, so
/// it is also how long an idle connection of HTTP/1 stays open.
const HEAD_MAX: Duration = Duration::from_secs(75);
/// Requests in flight on one HTTP/2 connection. Peers use as many for polls.
const STREAMS_MAX: u32 = 256;
/// How often an HTTP/2 client is pinged, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_MAX: Duration = Duration::from_secs(20);
/// Bytes of the head of a request: the longest key, percent-encoded, a token and more.
const HEAD_BYTES_MAX: u32 = 16 * 1024;
/// Bytes in one read of an HTTP/1 connection; this also bounds the head of a request.
const READ_BYTES_MAX: usize = HEAD_BYTES_MAX as usize;
/// Bytes of an HTTP/2 frame: the smallest limit that the protocol allows.
const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Bytes that a client may send ahead of what is read, on one HTTP/2 stream: 5 MB/s at a round trip
/// of 50 ms.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same for all streams of a connection: four streams that are not read hold up the others.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes that are buffered to be sent on one HTTP/2 stream.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// The pause after a failed accept, for example when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Raises the limit of open files to the maximum of this process, and logs a warning if that is
/// low. Call it before files are opened.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "raising the limit of open files failed");
    }
    let connections = connections_max(getrlimit(Resource::Nofile).current);
    if connections < CONNECTIONS_MAX {
        tracing::warn!(
            connections_max = connections,
            "limit of open files is low; raise it with ulimit -n to allow more connections"
        );
    }
}

/// What is to become of all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionStage {
    Serve,
    /// Requests in flight are answered, then connections are closed.
    Finish,
    /// All are closed now.
    End,
}

/// Accepts connections until the future is dropped, and serves them as `stages` says. A connection
/// that is closed has dropped its receiver of `stages`.
pub(crate) async fn accept(
    listener: &TcpListener,
    tls: Option<&Tls>,
    routes: Routes,
    callers: Callers,
    stages: watch::Receiver<ConnectionStage>,
    telemetry: &Telemetry,
) {
    let connections_max = connections_max(getrlimit(Resource::Nofile).current);
    let permits = Arc::new(Semaphore::new(connections_max));
    let strangers = Strangers::new(callers, connections_max);
    let mut pause = tokio::time::interval(ACCEPT_PAUSE);
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, address)) => {
                let connected = telemetry.connection();
                let trust = strangers.enter().await;
                let caller = Caller { trust, address: CallerAddress(address) };
                let routes = Arc::clone(&routes);
                let serving = open(stream, tls.cloned(), routes, caller, stages.clone());
                let mut stages = stages.clone();
                tokio::spawn(async move {
                    let ended = async {
                        let _ = stages.wait_for(|stage| *stage == ConnectionStage::End).await;
                    };
                    tokio::select! {
                        biased;
                        () = WakeGate::new(ended) => {}
                        () = serving => {}
                    }
                    drop((permit, connected));
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                pause.reset();
                pause.tick().await;
            }
        }
    }
}

/// How many connections leave enough of so many files. `None` is no limit.
fn connections_max(files: Option<u64>) -> usize {
    let left = files.map_or(u64::MAX, |files| files.saturating_sub(FILES_RESERVED));
    usize::try_from(left).unwrap_or(usize::MAX).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

async fn open(
    stream: TcpStream,
    tls: Option<Tls>,
    routes: Routes,
    caller: Caller,
    stages: watch::Receiver<ConnectionStage>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    let Some(tls) = tls else {
        return serve(stream, routes, caller, stages).await;
    };
    match timeout(HANDSHAKE_MAX, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, routes, caller, stages).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn serve<S>(
    stream: S,
    routes: Routes,
    caller: Caller,
    mut stages: watch::Receiver<ConnectionStage>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let trust = caller.trust.clone();
    let mut server = auto::Builder::new(StreamExecutor(trust.clone()));
    server
        .http1()
        .timer(HeadTimer::default())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(READ_BYTES_MAX);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(Some(PING_EVERY))
        .keep_alive_timeout(PING_MAX);
    let io = TokioIo::new(TimedStream::new(stream, trust.clone()));
    let mut connection = pin!(server.serve_connection(io, ConnectionRoutes { routes, caller }));
    let mut to_finish = WakeGate::new(async {
        tokio::select! {
            _ = stages.wait_for(|stage| *stage != ConnectionStage::Serve) => {}
            () = trust.to_finish() => {}
        }
    });
    let mut is_finishing = false;
    let served = async {
        loop {
            tokio::select! {
                biased;
                () = &mut to_finish, if !is_finishing => {
                    is_finishing = true;
                    connection.as_mut().graceful_shutdown();
                }
                ended = connection.as_mut() => return ended,
            }
        }
    };
    tokio::select! {
        // First, so that a stranger is closed before more is read.
        biased;
        () = WakeGate::new(trust.to_close()) => {}
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(error, "connection failed");
            }
        }
    }
}

/// The other end of a connection. Every request has it in its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallerAddress(pub(crate) SocketAddr);

/// What is known of the client of a connection.
struct Caller {
    trust: ConnectionTrust,
    address: CallerAddress,
}

/// Answers the requests of all connections.
pub(crate) type Routes =
    Arc<dyn Fn(Request<Incoming>, ConnectionTrust, CallerAddress) -> ResponseFuture + Send + Sync>;

/// Yields the response to a request.
pub(crate) type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// Calls a router. The request has its caller in its extensions.
pub(crate) fn call_router(
    router: &Router,
    mut request: Request<Body>,
    trust: ConnectionTrust,
    address: CallerAddress,
) -> ResponseFuture {
    request.extensions_mut().insert(trust);
    request.extensions_mut().insert(address);
    Box::pin(TowerToHyperService::new(router.clone()).call(request))
}

/// The routes as one connection calls them.
struct ConnectionRoutes {
    routes: Routes,
    caller: Caller,
}

impl HttpCall<Request<Incoming>> for ConnectionRoutes {
    type Response = Response;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let Caller { trust, address } = &self.caller;
        trust.head_arrived();
        (self.routes)(request, trust.clone(), *address)
    }
}

/// Runs the requests of an HTTP/2 connection. Those of a stranger are begun before the next is
/// read: most are refused then, so that their heads do not pile up.
#[derive(Clone)]
struct StreamExecutor(ConnectionTrust);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        if self.0.is_trusted() {
            tokio::spawn(stream);
            return;
        }
        let mut stream = Box::pin(stream);
        // The spawned task polls again, with a waker of its own.
        let begun = stream.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if begun.is_pending() {
            tokio::spawn(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_file_descriptors_for_store_and_webhooks() {
        for (files, want) in [
            (None, CONNECTIONS_MAX),
            (Some(1_000_000), CONNECTIONS_MAX),
            (Some(12_000), 12_000 - 1024),
            (Some(1024), CONNECTIONS_MIN),
            (Some(256), CONNECTIONS_MIN),
        ] {
            assert_eq!(connections_max(files), want, "{files:?}");
        }
    }
}
