//! The gate in front of the first byte of a gRPC call.
//!
//! On a connection of HTTP/2 not every byte belongs to a call: the client also sends its settings,
//! and answers those and the pings of the server. A call begins with the head of a HEADERS frame,
//! so [`CallStream`] follows the frames that are written and asks the [`SendGate`] in front of each
//! such head.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::gate::SendGate;

/// What a client sends before its first frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The bytes in front of the payload of a frame: its length (3), type, flags, and stream (4).
const HEAD_BYTES: usize = 9;
const TYPE_AT: usize = 3;
/// The type of the frame with which a call begins.
const HEADERS: u8 = 1;

/// A connection of HTTP/2 whose calls pass a [`SendGate`].
#[derive(Debug)]
pub(super) struct CallStream<S> {
    stream: S,
    gate: SendGate,
    frames: FrameTracker,
}

impl<S> CallStream<S> {
    pub(super) const fn new(stream: S, gate: SendGate) -> Self {
        Self { stream, gate, frames: FrameTracker::new() }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CallStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, gate, frames } = &mut *self;
        let part = frames.next_part(bytes);
        if part.begins_call {
            gate.check()?;
        }
        let written = ready!(Pin::new(stream).poll_write(cx, &bytes[..part.bytes]))?;
        frames.advance(&bytes[..written]);
        if part.begins_call && written > 0 {
            gate.open();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CallStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, bytes)
    }
}

/// Where in the frames the next byte is.
#[derive(Debug)]
struct FrameTracker {
    /// Bytes that are left of the preface, or of the payload of a frame.
    left: usize,
    /// The bytes of the head of a frame that were written so far.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
}

/// What may be written at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WritePart {
    bytes: usize,
    /// Its first byte is the first one of a call.
    begins_call: bool,
}

impl FrameTracker {
    const fn new() -> Self {
        Self { left: PREFACE.len(), head: [0; HEAD_BYTES], head_bytes: 0 }
    }

    /// The next bytes to write: up to the beginning of the next call.
    fn next_part(&self, bytes: &[u8]) -> WritePart {
        let part = |bytes, begins_call| WritePart { bytes, begins_call };
        if self.head_bytes > 0 {
            return part(bytes.len().min(HEAD_BYTES - self.head_bytes), false);
        }
        let mut at = self.left;
        while at < bytes.len() {
            let rest = &bytes[at..];
            // The head of a frame that is cut off before its type may be that of a call.
            if rest.get(TYPE_AT).is_none_or(|kind| *kind == HEADERS) {
                return part(if at == 0 { bytes.len() } else { at }, at == 0);
            }
            at += HEAD_BYTES + payload_bytes(rest);
        }
        part(bytes.len(), false)
    }

    /// Notes that bytes were written.
    fn advance(&mut self, mut written: &[u8]) {
        while !written.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(written.len());
                self.left -= skipped;
                written = &written[skipped..];
                continue;
            }
            let taken = written.len().min(HEAD_BYTES - self.head_bytes);
            let (head, rest) = written.split_at(taken);
            self.head[self.head_bytes..self.head_bytes + taken].copy_from_slice(head);
            self.head_bytes += taken;
            written = rest;
            if self.head_bytes == HEAD_BYTES {
                self.left = payload_bytes(&self.head);
                self.head_bytes = 0;
            }
        }
    }
}

/// The length of the payload of a frame. The head has at least its length.
fn payload_bytes(head: &[u8]) -> usize {
    head[..TYPE_AT].iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::Request;
    use punctual_core::{Clock as _, Timestamp};
    use punctual_engine::{LeaseEnd, SendPermit};
    use tokio::io::AsyncReadExt;
    use tokio::time::timeout;

    use super::*;
    use crate::clock::SystemClock;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], payload].concat()
    }

    /// Writes bytes in pieces of at most `piece` bytes, as the tracker wants them. Returns where
    /// calls begin.
    fn calls(bytes: &[u8], piece: usize) -> Vec<usize> {
        let (mut tracker, mut at, mut calls) = (FrameTracker::new(), 0, Vec::new());
        while at < bytes.len() {
            let part = tracker.next_part(&bytes[at..bytes.len().min(at + piece)]);
            assert!(part.bytes > 0, "a write of nothing would wait forever");
            if part.begins_call {
                calls.push(at);
            }
            tracker.advance(&bytes[at..at + part.bytes]);
            at += part.bytes;
        }
        calls
    }

    #[test]
    fn a_call_begins_with_the_head_of_its_frame_however_the_bytes_are_cut() {
        const SETTINGS: u8 = 4;
        const DATA: u8 = 0;
        let settings = frame(SETTINGS, &[1, 1, 1, 1, 1, 1]);
        let call = [frame(HEADERS, &[1; 40]), frame(DATA, b"0123456789")].concat();
        let first = PREFACE.len() + settings.len();
        let bytes =
            [PREFACE, &settings, &call, &frame(SETTINGS, &[]), &call, &frame(6, &[1; 8])].concat();
        let second = first + call.len() + HEAD_BYTES;
        for piece in TYPE_AT + 1..=bytes.len() {
            let begins = calls(&bytes, piece);
            let of_calls: Vec<_> =
                begins.iter().copied().filter(|at| [first, second].contains(at)).collect();
            assert_eq!(of_calls, [first, second], "pieces of {piece} bytes");
            // Only a head that is cut off may be taken for that of a call.
            assert!(piece < bytes.len() || begins == of_calls, "{begins:?}");
        }
        assert_eq!(calls(&bytes, usize::MAX - bytes.len()), [first, second]);
    }

    /// Sends a call whose lease ends `millis` from now. Returns whether the server received its
    /// beginning, and whether it was refused here.
    async fn called_within(millis: i64) -> (bool, bool) {
        let clock = Arc::new(SystemClock::start());
        let end = clock.now().as_millis().checked_add_signed(millis).unwrap();
        let gate = SendGate::new(clock);
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let stream = CallStream::new(ours, gate.clone());
        let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
        gate.close(SendPermit::until(LeaseEnd::new(Timestamp::from_millis(end))));
        let request = Request::post("http://a/b.C/D").body(()).unwrap();
        let (answer, _) = requests.send_request(request, true).unwrap();
        let (connection, answer) = (tokio::spawn(connection), tokio::spawn(answer));
        let mut got = Vec::new();
        // The settings come first; a call that is not refused follows.
        while timeout(Duration::from_secs(1), theirs.read_buf(&mut got)).await.is_ok_and(|read| {
            read.is_ok_and(|bytes| bytes > 0) && calls(&got, got.len()).is_empty()
        }) {}
        drop(theirs);
        assert!(answer.await.unwrap().is_err(), "nothing was answered");
        let _ = connection.await;
        (!calls(&got, got.len()).is_empty(), gate.refused().is_some())
    }

    #[tokio::test]
    async fn a_call_is_written_only_before_the_end_of_its_lease() {
        assert_eq!(called_within(60_000).await, (true, false));
        assert_eq!(called_within(0).await, (false, true));
    }
}
