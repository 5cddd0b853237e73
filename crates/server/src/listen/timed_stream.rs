//! A connection with bounds on its caller: how long it may send or read nothing, and how much of a
//! stranger is read at a time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::trust::ConnectionTrust;

/// How long a client may send nothing: longer than any response takes. HTTP/2 clients are pinged in
/// between.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// How long a client may read nothing of what is sent to it.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Bytes that are read of a stranger before the requests in them are answered.
const STRANGER_BYTES_MAX: usize = 16 * 1024;

/// A connection that fails when the client neither sends nor reads for too long.
pub(super) struct TimedStream<S> {
    stream: S,
    silence: IdleTimeout,
    stall: IdleTimeout,
    trust: ConnectionTrust,
    /// Bytes of a stranger that were read since it last had to wait.
    read: usize,
}

impl<S> TimedStream<S> {
    pub(super) const fn new(stream: S, trust: ConnectionTrust) -> Self {
        let silence = IdleTimeout::new(SILENCE_MAX);
        let stall = IdleTimeout::new(STALL_MAX);
        Self { stream, silence, stall, trust, read: 0 }
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

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read >= STRANGER_BYTES_MAX && !this.trust.is_trusted() {
            // What was read is answered first: its memory is free again before there is more.
            this.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let poll = Pin::new(&mut this.stream).poll_read(cx, buffer);
        ready!(this.silence.bound(poll, cx))?;
        this.read += buffer.filled().len() - before;
        Poll::Ready(Ok(()))
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::trust::{Callers, Strangers};
    use super::*;

    async fn timed<S>(stream: S) -> TimedStream<S> {
        TimedStream::new(stream, Strangers::new(Callers::WithToken, 64).enter().await)
    }

    // With paused time, tokio advances to the next deadline when every task waits.

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_disconnected() {
        let (_client, server) = tokio::io::duplex(64);
        let mut byte = [0];
        let error = timed(server).await.read(&mut byte).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (_client, server) = tokio::io::duplex(64);
        let error = timed(server).await.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_that_keeps_sending_is_served() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = timed(server).await;
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

    /// Counts how often the reader lets others run while it reads what is there already.
    #[tokio::test]
    async fn a_stranger_is_read_in_pieces_and_a_trusted_caller_is_not() {
        let strangers = Strangers::new(Callers::WithToken, 64);
        for (is_trusted, want) in [(false, 3), (true, 0)] {
            let trust = strangers.enter().await;
            if is_trusted {
                trust.identified(&crate::auth::Identity::Admin).unwrap();
            }
            let (mut client, server) = tokio::io::duplex(4 * STRANGER_BYTES_MAX);
            client.write_all(&vec![1; 4 * STRANGER_BYTES_MAX]).await.unwrap();
            let mut server = TimedStream::new(server, trust);
            let mut waits = 0;
            let mut reading = std::pin::pin!(async {
                let mut piece = vec![0; STRANGER_BYTES_MAX / 4];
                for _ in 0..16 {
                    server.read_exact(&mut piece).await.unwrap();
                }
            });
            std::future::poll_fn(|cx| {
                let poll = reading.as_mut().poll(cx);
                waits += usize::from(poll.is_pending());
                poll
            })
            .await;
            assert_eq!(waits, want, "trusted: {is_trusted}");
        }
    }
}
