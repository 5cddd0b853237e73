//! Why an owner ended on its own: its store failed, or its code panicked.
//!
//! A panic ends one owner and nothing else. The broker counts it and acquires the partition again,
//! under a higher epoch.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use punctual_store::StoreError;

/// Why an owner ended on its own.
#[derive(Debug, thiserror::Error)]
pub enum OwnerFailure {
    /// The store does not let the owner continue.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The owner, its store or its courier panicked: a bug. The text is the message of the panic.
    #[error("panic: {0}")]
    Panicked(Box<str>),
}

impl OwnerFailure {
    fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self::Panicked(text.unwrap_or("no message").into())
    }
}

/// Calls a function and returns its panic as a failure. The caller must not use what the function
/// may have left half changed.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, OwnerFailure> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| OwnerFailure::of_panic(&*payload))
}

/// Awaits a future and returns its panic as a failure. The future is not polled again then.
pub(crate) async fn catch_panic_in<T>(work: impl Future<Output = T>) -> Result<T, OwnerFailure> {
    let mut work = pin!(work);
    let poll = std::future::poll_fn(|context| match catch_panic(|| work.as_mut().poll(context)) {
        Ok(poll) => poll.map(Ok),
        Err(failure) => Poll::Ready(Err(failure)),
    });
    poll.await
}
