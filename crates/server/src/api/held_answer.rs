//! Answers that keep a permit until they were sent.
//!
//! A page of a list takes megabytes until its client has read it. The permit of the list lasts as
//! long, so that a namespace has few of them, whatever its clients read. A client that takes too
//! long loses the answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::shares::SharePermit;

/// How long a client may take to read an answer: 16 MiB at 300 kB/s.
const SENT_MAX: Duration = Duration::from_secs(60);
/// Bytes of an answer that are handed to the connection at a time. A shorter answer is handed over
/// at once and keeps no permit.
const CHUNK_BYTES: usize = 64 * 1024;

/// Returns a body of these bytes that keeps a permit until it was sent, if it is large.
pub(crate) fn body_of(bytes: Vec<u8>, permit: SharePermit) -> Body {
    match bytes.len() {
        ..=CHUNK_BYTES => bytes.into(),
        _ => hold(Body::new(Chunks(bytes.into())), permit),
    }
}

/// Returns a body that keeps a permit until it was sent.
pub(crate) fn hold(body: Body, permit: SharePermit) -> Body {
    let held = Arc::new(Mutex::new(Some((body, permit))));
    let expiring = Arc::clone(&held);
    let timer = tokio::spawn(async move {
        let _ = timeout(SENT_MAX, std::future::pending::<()>()).await;
        drop(lock(&expiring).take());
    });
    Body::new(HeldAnswer { held, timer: timer.abort_handle() })
}

/// A permit that a gRPC call leaves for its answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerPermit(Arc<Mutex<Option<SharePermit>>>);

impl AnswerPermit {
    pub(crate) fn put(&self, permit: SharePermit) {
        *lock(&self.0) = Some(permit);
    }

    pub(crate) fn take(&self) -> Option<SharePermit> {
        lock(&self.0).take()
    }
}

type HeldBody = Arc<Mutex<Option<(Body, SharePermit)>>>;

struct HeldAnswer {
    /// `None` when the time is over.
    held: HeldBody,
    timer: AbortHandle,
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        drop(lock(&self.held).take());
        self.timer.abort();
    }
}

impl http_body::Body for HeldAnswer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match lock(&self.held).as_mut() {
            Some((body, _)) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            None => Poll::Ready(Some(Err("the answer was not read in time".into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.held).as_ref().is_some_and(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.held).as_ref().map_or_else(SizeHint::default, |(body, _)| body.size_hint())
    }
}

/// Bytes in pieces, so that a connection takes no more than it can send.
struct Chunks(Bytes);

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let length = self.0.len().min(CHUNK_BYTES);
        let chunk = self.0.split_to(length);
        Poll::Ready((!chunk.is_empty()).then(|| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update is a single step, so the value is consistent even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt as _;
    use punctual_core::Namespace;

    use super::*;
    use crate::shares::{ShareKey, Shares};

    #[tokio::test(start_paused = true)]
    async fn a_large_answer_keeps_its_permit_until_it_was_read_or_its_time_is_over() {
        let shares = Shares::new(2);
        let key = ShareKey::of(Namespace::new("a").unwrap());
        let permit = || shares.try_acquire(&key);
        let small = body_of(vec![1; CHUNK_BYTES], permit().unwrap());
        assert!(permit().is_some(), "a small answer keeps none");
        assert_eq!(small.collect().await.unwrap().to_bytes().len(), CHUNK_BYTES);

        let bytes: Vec<u8> = (0..=255).cycle().take(3 * CHUNK_BYTES + 1).collect();
        let large = body_of(bytes.clone(), permit().unwrap());
        assert_eq!(large.size_hint().exact(), Some(bytes.len() as u64));
        assert!(permit().is_none());
        assert_eq!(large.collect().await.unwrap().to_bytes(), bytes);
        assert!(permit().is_some());

        let mut unread = body_of(bytes, permit().unwrap());
        unread.frame().await.unwrap().unwrap();
        assert!(permit().is_none());
        let freed = timeout(2 * SENT_MAX, shares.acquire(&key)).await;
        assert!(freed.is_ok(), "the permit is released");
        assert!(unread.frame().await.unwrap().is_err(), "and the answer is lost");
    }
}
