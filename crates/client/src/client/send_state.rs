//! Whether a request has left, so that a call which ran out of time can say if the broker may have done it.
//!
//! In: a connection that may not stand yet. Out: the same, which notes the first bytes of a request's body that are taken to be sent. A request
//! waits in its connection's line for as long as there is no connection; its head alone asks nothing of a broker.
//! Invariant: after [`SendState::abort`] has said yes, nothing of the request leaves.

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

/// Of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendState(Arc<AtomicU8>);

impl SendState {
    /// Keeps the request from leaving; false if it has left.
    pub(crate) fn abort(&self) -> bool {
        self.set_once(ABORTED)
    }

    /// Whether this is where it is now; the first to ask decides.
    fn set_once(&self, state: u8) -> bool {
        let before = self.0.compare_exchange(PENDING, state, Ordering::AcqRel, Ordering::Acquire);
        before.map_or_else(|before| before == state, |_| true)
    }
}

/// A connection whose requests note when they leave.
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
            return Poll::Ready(Some(Err(Status::cancelled("the caller waits no longer"))));
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
    fn the_first_to_ask_decides_and_it_stays_so() {
        let send_state = SendState::default();
        assert!(send_state.set_once(SENT) && send_state.set_once(SENT));
        assert!(!send_state.abort(), "it may be with the broker");
        let send_state = SendState::default();
        assert!(send_state.abort() && send_state.abort());
        assert!(!send_state.set_once(SENT), "nothing leaves any more");
    }
}
