//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them, with TLS or without.
//!
//! Each connection is one tokio task. Everything that a client can be slow at has a deadline: the
//! TLS handshake, the head and the body of a request, reading the response, and being silent. The
//! number of connections is bounded, so that file descriptors are left for the store and webhooks.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use http::Version;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::telemetry::Telemetry;
use crate::tls::Tls;

/// Open connections at most, some tens of kilobytes each. Further ones wait to be accepted.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// Open connections at most if the limit of open files is very low.
const CONNECTIONS_MIN: usize = 64;
/// File descriptors that are kept for the store and for webhooks.
const FILES_RESERVED: u64 = 1024;
/// Timeout of the TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Timeout of the head of a request. It includes the wait for the next request, so it is also how
/// long an idle connection stays open.
const HEAD_MAX: Duration = Duration::from_secs(75);
/// Timeout of a body, from the first wait for it.
const BODY_MAX: Duration = Duration::from_secs(30);
/// How much of the body of a refused request is read and discarded, and for how long.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;
const DISCARD_MAX: Duration = Duration::from_secs(1);
/// How long a client may send nothing: longer than any response takes. HTTP/2 clients are pinged in
/// between.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// How long a client may read nothing of what is sent to it.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Requests in flight on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// How often an HTTP/2 client is pinged, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_MAX: Duration = Duration::from_secs(20);
/// Bytes of the head of an HTTP/2 request: the longest key, percent-encoded, a token and more.
const HEAD_BYTES_MAX: u32 = 16 * 1024;
/// Bytes in one read of an HTTP/1 connection; this also bounds the head of a request.
const READ_BYTES_MAX: usize = 64 * 1024;
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

/// Accepts connections until the future is dropped, and serves them until `ended` becomes true.
pub(crate) async fn accept(
    listener: &TcpListener,
    tls: Option<&Tls>,
    router: Router,
    connections: &GracefulShutdown,
    ended: watch::Receiver<bool>,
    telemetry: &Telemetry,
) {
    let permits = connections_max(getrlimit(Resource::Nofile).current);
    let permits = Arc::new(Semaphore::new(permits));
    let mut pause = tokio::time::interval(ACCEPT_PAUSE);
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let connected = telemetry.connection();
                let serving = open(stream, tls.cloned(), router.clone(), connections.watcher());
                let mut ended = ended.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = serving => {}
                        _ = ended.wait_for(|ended| *ended) => {}
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

async fn open(stream: TcpStream, tls: Option<Tls>, router: Router, watcher: Watcher) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "setting TCP_NODELAY failed");
    }
    let Some(tls) = tls else {
        return serve(stream, router, watcher).await;
    };
    match timeout(HANDSHAKE_MAX, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, router, watcher).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

async fn serve<S>(stream: S, router: Router, watcher: Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(READ_BYTES_MAX);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(Some(PING_EVERY))
        .keep_alive_timeout(PING_MAX);
    let io = TokioIo::new(TimedStream::new(stream));
    let connection = server.serve_connection(io, TowerToHyperService::new(router)).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(error, "connection failed");
    }
}

/// Reads and discards a short body that no route has read. HTTP/1 has to close a connection with
/// unread data, and the next request on it would get no response.
pub(crate) async fn discard_body(version: Version, body: Body) {
    if version < Version::HTTP_2 {
        let body = Limited::new(body, DISCARDED_BYTES_MAX);
        let _ = timeout(DISCARD_MAX, body.collect()).await;
    }
}

/// Gives a body a deadline, after which it fails. The body is left in [`UnreadBody`] if the route
/// drops it before it is complete. An empty body is returned as it is.
pub(crate) fn with_deadline(body: Body) -> (Body, Option<UnreadBody>) {
    if http_body::Body::is_end_stream(&body) {
        return (body, None);
    }
    let unread = UnreadBody::default();
    let body = DeadlineBody { body, deadline: None, ended: false, unread: unread.clone() };
    (Body::new(body), Some(unread))
}

/// The rest of a body that its route did not read. It must be discarded, or the connection is lost.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadBody(Arc<Mutex<Option<Body>>>);

impl UnreadBody {
    pub(crate) fn take(&self) -> Option<Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct DeadlineBody {
    body: Body,
    /// Set by the first wait.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Whether the body was read completely, or has failed.
    ended: bool,
    unread: UnreadBody,
}

impl Drop for DeadlineBody {
    fn drop(&mut self) {
        if !self.ended && !http_body::Body::is_end_stream(&self.body) {
            let body = std::mem::take(&mut self.body);
            *self.unread.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl http_body::Body for DeadlineBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.ended = !matches!(frame, Some(Ok(_)));
            return Poll::Ready(frame);
        }
        ready!(self.deadline.get_or_insert_with(|| sleep_for(BODY_MAX)).as_mut().poll(cx));
        self.ended = true;
        Poll::Ready(Some(Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that fails when the client neither sends nor reads for too long.
struct TimedStream<S> {
    stream: S,
    silence: IdleTimeout,
    stall: IdleTimeout,
}

impl<S> TimedStream<S> {
    const fn new(stream: S) -> Self {
        let silence = IdleTimeout::new(SILENCE_MAX);
        let stall = IdleTimeout::new(STALL_MAX);
        Self { stream, silence, stall }
    }
}

/// Limits how long an operation may stay pending. The timer is not reset by every operation but
/// only when it fires too early, so a busy connection sets few timers.
struct IdleTimeout {
    max: Duration,
    /// Since when the operation has been pending.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimeout {
    const fn new(max: Duration) -> Self {
        Self { max, since: None, timer: None }
    }

    /// Returns what is ready, and fails what has been pending for `max`.
    #[expect(clippy::disallowed_methods, reason = "this is a bound of waiting, not a wait")]
    fn bound<T>(&mut self, poll: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.since = None;
            return poll;
        }
        let over = *self.since.get_or_insert_with(Instant::now) + self.max;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(over)));
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= over {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(over);
        }
        Poll::Pending
    }
}

#[expect(clippy::disallowed_methods, reason = "this is a bound of waiting, not a wait")]
fn sleep_for(after: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(after))
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_read(cx, buffer);
        this.silence.bound(poll, cx)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.stall.bound(poll, cx)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_flush(cx);
        this.stall.bound(poll, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.stall.bound(poll, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.stall.bound(poll, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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

    // With paused time, tokio advances to the next deadline when every task waits.

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_disconnected() {
        let (_client, server) = tokio::io::duplex(64);
        let mut byte = [0];
        let error = TimedStream::new(server).read(&mut byte).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (_client, server) = tokio::io::duplex(64);
        let error = TimedStream::new(server).write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_that_keeps_sending_is_served() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = TimedStream::new(server);
        let mut every = tokio::time::interval(STALL_MAX - Duration::from_secs(1));
        let talk = async {
            for _ in 0..20 {
                every.tick().await;
                client.write_all(&[1]).await.unwrap();
            }
        };
        let mut bytes = [0; 20];
        let (read, ()) = tokio::join!(server.read_exact(&mut bytes), talk);
        assert!(read.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_fails() {
        struct Endless;
        impl http_body::Body for Endless {
            type Data = Bytes;
            type Error = axum::Error;
            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
                Poll::Pending
            }
        }
        assert!(with_deadline(Body::new(Endless)).0.collect().await.is_err());
        let (body, unread) = with_deadline(Body::from("whole"));
        let whole = body.collect().await.unwrap();
        assert_eq!(whole.to_bytes(), "whole");
        assert!(unread.unwrap().take().is_none());
    }

    #[tokio::test]
    async fn a_body_that_its_route_does_not_read_is_left_to_be_discarded() {
        let (body, unread) = with_deadline(Body::from("whole"));
        drop(body);
        let left = unread.unwrap().take().unwrap().collect().await.unwrap();
        assert_eq!(left.to_bytes(), "whole");
        assert!(with_deadline(Body::empty()).1.is_none());
    }
}
