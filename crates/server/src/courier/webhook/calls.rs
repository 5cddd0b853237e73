//! Connections of HTTP/2 to gRPC servers. A connection makes one call at a time, so that a delivery
//! has its connection to itself, as a webhook has.
//!
//! Like those of webhooks, a connection has no task of its own: the delivery that uses it reads and
//! writes.

use std::future::poll_fn;
use std::task::{Context, Waker};

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{Reason as ResetReason, RecvStream};
use http::{Request, Response};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use punctual_engine::{NotSendable, SendPermit};
use tokio::net::TcpStream;

use super::call_gate::CallStream;
use super::connections::{drive, poll_connection};
use super::gate::SendGate;

/// What a server may send of one answer before some of it was read.
const WINDOW_BYTES: u32 = 64 * 1024;
/// Bytes of the headers or trailers of an answer, as HTTP/2 counts them.
const HEADERS_BYTES_MAX: u32 = 64 * 1024;

type CallConnection = Connection<CallStream<TokioIo<MaybeHttpsStream<TokioIo<TcpStream>>>>, Bytes>;

/// Makes calls on one connection, each through its gate.
#[derive(Debug)]
pub(in crate::courier) struct CallSender {
    requests: SendRequest<Bytes>,
    /// `None` after it has ended. Boxed, because senders are moved with every delivery.
    connection: Option<Box<CallConnection>>,
    gate: SendGate,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(in crate::courier) enum CallError {
    /// Nothing was sent: the owner does not allow it any more.
    NotSendable(NotSendable),
    /// Nothing was sent: the connection had been closed.
    Closed(h2::Error),
    /// The server says that it has not begun the call, and never will.
    NotBegun(h2::Error),
    /// The server may have received the call.
    Broken(h2::Error),
}

impl CallSender {
    /// Begins the conversation on a new connection.
    pub(in crate::courier) async fn open(
        stream: MaybeHttpsStream<TokioIo<TcpStream>>,
        gate: SendGate,
    ) -> Result<Self, h2::Error> {
        let stream = CallStream::new(TokioIo::new(stream), gate.clone());
        let (requests, connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .handshake(stream)
            .await?;
        Ok(Self { requests, connection: Some(Box::new(connection)), gate })
    }

    /// Sends a call, unless its permit forbids it when the first byte is to be written. Returns the
    /// head of its answer.
    pub(in crate::courier) async fn call(
        &mut self,
        request: Request<()>,
        message: [Bytes; 2],
        permit: &SendPermit,
    ) -> Result<Response<RecvStream>, CallError> {
        self.gate.close(permit.clone());
        // The server may have closed it while it was idle.
        self.check_open();
        let Self { requests, connection, gate } = self;
        let answer = async {
            poll_fn(|context| requests.poll_ready(context)).await?;
            let (answer, mut body) = requests.send_request(request, false)?;
            let [prefix, payload] = message;
            body.send_data(prefix, payload.is_empty())?;
            if !payload.is_empty() {
                body.send_data(payload, true)?;
            }
            answer.await
        };
        let error = match drive(connection, answer).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        if let Some(why) = gate.refused() {
            return Err(CallError::NotSendable(why));
        }
        if gate.is_closed() {
            return Err(CallError::Closed(error));
        }
        // A stream that is beyond the last one of a GOAWAY, or that is refused, was not begun
        // (RFC 9113, 8.7).
        let refused = error.is_reset() && error.reason() == Some(ResetReason::REFUSED_STREAM);
        if error.is_remote() && (error.is_go_away() || refused) {
            return Err(CallError::NotBegun(error));
        }
        Err(CallError::Broken(error))
    }

    /// Waits for `work`, which waits for this connection.
    pub(in crate::courier) async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        drive(&mut self.connection, work).await
    }

    /// Returns whether the connection has not ended. Notices it if the server has closed it.
    pub(super) fn check_open(&mut self) -> bool {
        poll_connection(&mut self.connection, &mut Context::from_waker(Waker::noop()));
        self.connection.is_some()
    }

    /// Waits until another call can be made. Returns whether one can.
    pub(super) async fn ready(&mut self) -> bool {
        let requests = &mut self.requests;
        let ready = poll_fn(|context| requests.poll_ready(context));
        drive(&mut self.connection, ready).await.is_ok()
    }
}
