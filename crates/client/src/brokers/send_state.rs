//! Tracks whether a request was sent, so that a call that timed out knows whether a broker may have
//! carried it out.
//!
//! Without a connection, a request waits in the queue of its channel. It counts as sent when the
//! transport takes the first bytes of its body; a broker does nothing for the head alone. After
//! [`SendState::abort`] has returned true, no byte of the body is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::codegen::{Service, http};
use tonic::{Status, body::Body};

const PENDING: u8 = 0;
const SENT: u8 = 1;
const ABORTED: u8 = 2;

/// Whether one request was sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendState(Arc<AtomicU8>);

impl SendState {
    /// Prevents that the request is sent. Returns false if it was sent already.
    pub(crate) fn abort(&self) -> bool {
        self.set_once(ABORTED)
    }

    /// Sets the state if it is pending. Returns whether the state is `state` now.
    fn set_once(&self, state: u8) -> bool {
        let before = self.0.compare_exchange(PENDING, state, Ordering::AcqRel, Ordering::Acquire);
        before.map_or_else(|before| before == state, |_| true)
    }
}

/// A channel that records when the request is sent.
#[derive(Debug, Clone)]
pub(crate) struct TrackSend<S> {
    pub(crate) channel: S,
    pub(crate) send_state: SendState,
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for TrackSend<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        let send_state = self.send_state.clone();
        self.channel.call(request.map(|body| Body::new(TrackedBody { body, send_state })))
    }
}

struct TrackedBody {
    body: Body,
    send_state: SendState,
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if !self.send_state.set_once(SENT) {
            return Poll::Ready(Some(Err(Status::cancelled("the call has timed out"))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_state_is_final() {
        let send_state = SendState::default();
        assert!(send_state.set_once(SENT) && send_state.set_once(SENT));
        assert!(!send_state.abort(), "it may have reached the broker");
        let send_state = SendState::default();
        assert!(send_state.abort() && send_state.abort());
        assert!(!send_state.set_once(SENT), "it must not be sent any more");
    }
}
