//! The gate in front of the first byte of a delivery.
//!
//! [`GatedStream`] wraps the connection to a receiver. Before the first byte of each delivery is
//! written, it asks the delivery's [`SendPermit`]: if the lease of the owner is over, or the owner
//! has recalled the delivery, it refuses to write and the delivery counts as not sent. The check is
//! part of the write because everything before it can take time: a lookup, connecting, TLS, a queue
//! between two tasks, or a process that is stopped and continued. The clock counts the time in
//! which the process was stopped.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use punctual_core::Clock as _;
use punctual_engine::{NotSendable, SendPermit};

use crate::clock::SystemClock;

/// Decides whether the delivery on a connection may still be sent. Clones share one state.
#[derive(Debug, Clone)]
pub(in crate::courier) struct SendGate {
    state: Arc<Mutex<GateState>>,
    clock: Arc<SystemClock>,
}

#[derive(Debug)]
enum GateState {
    /// The first byte of the delivery has left, or there is no delivery.
    Open,
    /// The next byte is the first of a delivery with this permit.
    Closed(SendPermit),
    /// The delivery was refused; the connection can no longer be used.
    Refused(NotSendable),
}

impl SendGate {
    pub(in crate::courier) fn new(clock: Arc<SystemClock>) -> Self {
        Self { state: Arc::new(Mutex::new(GateState::Open)), clock }
    }

    /// Lets the next byte pass only if the permit of its delivery allows it.
    pub(super) fn close(&self, permit: SendPermit) {
        *self.state() = GateState::Closed(permit);
    }

    /// Returns why the last delivery was refused, so that nothing of it has left.
    pub(super) fn refused(&self) -> Option<NotSendable> {
        match *self.state() {
            GateState::Refused(why) => Some(why),
            GateState::Open | GateState::Closed(_) => None,
        }
    }

    /// Returns whether nothing of the last delivery has left.
    pub(super) fn is_closed(&self) -> bool {
        !matches!(*self.state(), GateState::Open)
    }

    /// Asks whether the next byte may be written.
    pub(super) fn check(&self) -> io::Result<()> {
        let mut state = self.state();
        if let GateState::Closed(permit) = &*state
            && let Err(why) = permit.send(self.clock.now())
        {
            *state = GateState::Refused(why);
        }
        match *state {
            GateState::Refused(why) => Err(io::Error::other(why)),
            GateState::Open | GateState::Closed(_) => Ok(()),
        }
    }

    /// Notes that the first byte of a delivery has left.
    pub(super) fn open(&self) {
        *self.state() = GateState::Open;
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose writes pass a [`SendGate`].
#[derive(Debug)]
pub(super) struct GatedStream<S> {
    stream: S,
    gate: SendGate,
}

impl<S> GatedStream<S> {
    pub(super) const fn new(stream: S, gate: SendGate) -> Self {
        Self { stream, gate }
    }
}

impl<S: Write + Unpin> GatedStream<S> {
    fn write_with(
        &mut self,
        write: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        self.gate.check()?;
        let written = ready!(write(Pin::new(&mut self.stream)))?;
        if written > 0 {
            self.gate.open();
        }
        Poll::Ready(Ok(written))
    }
}

impl<S: Read + Unpin> Read for GatedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: Write + Unpin> Write for GatedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write_with(|stream| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_with(|stream| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::Request;
    use http_body_util::Full;
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use punctual_engine::LeaseEnd;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn request() -> Request<Full<Bytes>> {
        Request::post("/").header("host", "a").body(Full::new(Bytes::from("body"))).unwrap()
    }

    /// Sends a delivery whose lease ends `millis` from now. Returns what the receiver gets, and
    /// whether the delivery was refused.
    async fn sent_within(millis: i64) -> (Vec<u8>, bool) {
        let clock = Arc::new(SystemClock::start());
        let now = clock.now().as_millis();
        let end = now.checked_add_signed(millis).unwrap();
        let gate = SendGate::new(clock);
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let stream = GatedStream::new(TokioIo::new(ours), gate.clone());
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let end = LeaseEnd::new(punctual_core::Timestamp::from_millis(end));
        gate.close(SendPermit::until(end));
        let answer = tokio::spawn(async move { sender.try_send_request(request()).await.is_ok() });
        let mut got = Vec::new();
        let reading = theirs.read_buf(&mut got);
        let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
        drop(theirs);
        assert!(!answer.await.unwrap(), "nothing was answered");
        let _ = connection.await;
        (got, gate.refused().is_some())
    }

    #[tokio::test]
    async fn a_delivery_is_written_only_before_the_end_of_its_lease() {
        let (got, refused) = sent_within(60_000).await;
        assert!(got.starts_with(b"POST / HTTP/1.1\r\n"), "{got:?}");
        assert!(!refused);
        let (got, refused) = sent_within(0).await;
        assert_eq!((got.as_slice(), refused), (&b""[..], true));
    }

    #[test]
    fn a_delivery_is_written_if_its_lease_is_extended_while_it_waits() {
        let clock = Arc::new(SystemClock::start());
        let gate = SendGate::new(Arc::clone(&clock));
        let end = LeaseEnd::new(clock.now());
        gate.close(SendPermit::until(end.clone()));
        end.extend(clock.now().after(Duration::from_secs(60)));
        assert!(gate.check().is_ok());
        gate.open();
        assert!(gate.check().is_ok(), "the rest of a delivery that has begun is not held back");
    }
}
