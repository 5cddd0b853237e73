//! Listening: connections come in, requests go to the router.
//!
//! In: a listener. Out: one task per connection, until the listener is dropped. HTTP/1.1 and HTTP/2, with TLS or without.
//! Bound: everything that a client can be slow at has a deadline (TLS, the head, the body, taking its answer, saying
//! anything at all), and the number of connections leaves file descriptors for the store and for webhooks.

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

/// Connections at once. Each costs some tens of kilobytes; beyond this they wait to be accepted.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// Connections at once when there are hardly any file descriptors.
const CONNECTIONS_MIN: usize = 64;
/// File descriptors that connections leave to the store and to webhooks.
const FILES_RESERVED: u64 = 1024;
/// How long TLS may take to be agreed on.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// How long a client may take to send the head of a request. Waiting for the next one on an open connection counts as
/// well, so this is also how long an idle connection is kept.
const HEAD_MAX: Duration = Duration::from_secs(75);
/// How long a client may take to send a body. The largest fits in a second over a slow line.
const BODY_MAX: Duration = Duration::from_secs(30);
/// What is read of a request that is refused whatever it says, and for how long.
const REFUSED_BYTES_MAX: usize = 64 * 1024;
const REFUSED_MAX: Duration = Duration::from_secs(1);
/// How long a client may say nothing. Longer than any answer takes; HTTP/2 is asked for a sign of life in between.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// How long a client may take nothing of what is sent to it.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Requests under way on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// How often a client of HTTP/2 is asked for a sign of life, and how long it may take.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_MAX: Duration = Duration::from_secs(20);
/// Bytes of the head of a request: the largest key, in percent encoding, with room for a token and much else.
const HEAD_BYTES_MAX: u32 = 16 * 1024;
/// Bytes read at once on an HTTP/1 connection, which bounds the head there: larger bodies take more reads.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Bytes that wait to be sent on one HTTP/2 stream.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// How long a listener that cannot accept (no file descriptors left) is left alone.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Allows this process as many files as it may have, and says so if that is few. Call it before files are opened.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let connections = connections_max(getrlimit(Resource::Nofile).current);
    if connections < CONNECTIONS_MAX {
        tracing::warn!(
            connections,
            "few open files are allowed (ulimit -n): so many connections at once"
        );
    }
}

/// Accepts connections until it is dropped, and serves them until `ended` becomes true.
pub(crate) async fn accept(
    listener: &TcpListener,
    tls: Option<&Tls>,
    router: Router,
    connections: &GracefulShutdown,
    ended: watch::Receiver<bool>,
    telemetry: &Telemetry,
) {
    let places = connections_max(getrlimit(Resource::Nofile).current);
    let places = Arc::new(Semaphore::new(places));
    let mut pause = tokio::time::interval(ACCEPT_PAUSE);
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
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
                    drop((place, connected));
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                pause.reset();
                pause.tick().await;
            }
        }
    }
}

/// So many connections leave enough files to the rest. No limit is as good as a high one.
fn connections_max(files: Option<u64>) -> usize {
    let left = files.map_or(u64::MAX, |files| files.saturating_sub(FILES_RESERVED));
    usize::try_from(left).unwrap_or(usize::MAX).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

async fn open(stream: TcpStream, tls: Option<Tls>, router: Router, watcher: Watcher) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let Some(tls) = tls else {
        return serve(stream, router, watcher).await;
    };
    match timeout(HANDSHAKE_MAX, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, router, watcher).await,
        Ok(Err(error)) => tracing::debug!(%error, "a client could not agree on TLS"),
        Err(_) => tracing::debug!("a client took too long to agree on TLS"),
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
    let io = TokioIo::new(Paced::new(stream));
    let connection = server.serve_connection(io, TowerToHyperService::new(router)).into_owned();
    // A client that breaks off is its own business.
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(error, "a connection broke");
    }
}

/// Reads a request that is refused unread, if it is short, so that its connection can be used for the next one: HTTP/1 has to give
/// up a connection on which something unread is left, and whoever sends the next request on it would get no answer.
pub(crate) async fn read_off(version: Version, body: Body) {
    if version < Version::HTTP_2 {
        let body = Limited::new(body, REFUSED_BYTES_MAX);
        let _ = timeout(REFUSED_MAX, body.collect()).await;
    }
}

/// A body that arrives in time, or ends with an error; and where it is left by a route that does not read it. Many requests
/// have none, which needs neither.
pub(crate) fn timely(body: Body) -> (Body, Option<Unread>) {
    if http_body::Body::is_end_stream(&body) {
        return (body, None);
    }
    let unread = Unread::default();
    let timely = Timely { body, late: None, ended: false, unread: unread.clone() };
    (Body::new(timely), Some(unread))
}

/// What nobody has read of a body: to be read off, or its connection is lost.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread(Arc<Mutex<Option<Body>>>);

impl Unread {
    pub(crate) fn take(&self) -> Option<Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

struct Timely {
    body: Body,
    /// From when it was first waited for.
    late: Option<Pin<Box<Sleep>>>,
    /// Whether all of it was read, or it is given up.
    ended: bool,
    unread: Unread,
}

impl Drop for Timely {
    fn drop(&mut self) {
        if !self.ended && !http_body::Body::is_end_stream(&self.body) {
            let body = std::mem::take(&mut self.body);
            *self.unread.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl http_body::Body for Timely {
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
        ready!(self.late.get_or_insert_with(|| deadline(BODY_MAX)).as_mut().poll(cx));
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

/// A connection that breaks when its other side stands still for too long.
struct Paced<S> {
    stream: S,
    silence: Patience,
    stall: Patience,
}

impl<S> Paced<S> {
    const fn new(stream: S) -> Self {
        Self { stream, silence: Patience::new(SILENCE_MAX), stall: Patience::new(STALL_MAX) }
    }
}

/// How long something may stand still. Its timer is set once and put off when it rings too soon: a connection that moves thousands of
/// times a second sets no thousands of timers.
struct Patience {
    max: Duration,
    /// Since when it has stood still.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    const fn new(max: Duration) -> Self {
        Self { max, since: None, timer: None }
    }

    /// Passes on what is ready; what is not may stay so only for `max`.
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
fn deadline(after: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(after))
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
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
    fn connections_leave_files_for_the_rest() {
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

    // With time stopped, tokio moves it to the next deadline as soon as nothing else can happen.

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_given_up() {
        let (_client, server) = tokio::io::duplex(64);
        let mut byte = [0];
        let error = Paced::new(server).read(&mut byte).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (_client, server) = tokio::io::duplex(64);
        let error = Paced::new(server).write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_slow_but_goes_on_is_served() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = Paced::new(server);
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
    async fn a_body_that_does_not_come_to_an_end_is_an_error() {
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
        assert!(timely(Body::new(Endless)).0.collect().await.is_err());
        let (body, unread) = timely(Body::from("whole"));
        let whole = body.collect().await.unwrap();
        assert_eq!(whole.to_bytes(), "whole");
        assert!(unread.unwrap().take().is_none());
    }

    #[tokio::test]
    async fn a_body_that_a_route_does_not_read_is_left_to_be_read_off() {
        let (body, unread) = timely(Body::from("whole"));
        drop(body);
        let left = unread.unwrap().take().unwrap().collect().await.unwrap();
        assert_eq!(left.to_bytes(), "whole");
        assert!(timely(Body::empty()).1.is_none());
    }
}
