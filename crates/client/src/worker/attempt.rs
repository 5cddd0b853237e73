//! Attempts: runs the handler, extends its lease meanwhile, and reports a settlement.
//!
//! Each delivery has one outcome, also if the handler panics. Reports go to the session through a
//! bounded channel, as [`AttemptDone`].

use std::any::TypeId;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use punctual_proto::v1;
use serde::Serialize;
use tokio::sync::mpsc;

use super::concurrency::ConcurrencyShares;
use crate::BoxFuture;
use crate::delivery::{Delivery, DeliveryToken};
use crate::failure::{Failure, FailureAction};
use crate::time::millis_up;

/// How much of a reason brokers keep. More is not sent.
const REASON_BYTES_MAX: usize = 512;

/// How much of a result brokers accept.
const RESULT_BYTES_MAX: usize = 16 * 1024;

/// The result of a fire as JSON, if it has one.
pub(super) type HandlerResult = Result<Option<Bytes>, Failure>;

/// Writes the value of a handler as JSON. `null` is no result.
pub(super) fn result_of<R: Serialize + 'static>(value: &R) -> HandlerResult {
    // Most handlers have none, and high rates should not pay for it.
    if TypeId::of::<R>() == TypeId::of::<()>() {
        return Ok(None);
    }
    let json = serde_json::to_vec(value)
        .map_err(|error| Failure::fail(format!("the result cannot be serialised: {error}")))?;
    if json.len() > RESULT_BYTES_MAX {
        let bytes = json.len();
        let reason = format!("the result must have at most {RESULT_BYTES_MAX} bytes, has {bytes}");
        return Err(Failure::fail(reason));
    }
    Ok((json != b"null").then(|| json.into()))
}

/// The handler of a worker.
#[derive(Clone)]
pub(super) enum WorkFunction {
    /// Called for each delivery.
    Each(Arc<dyn Fn(Delivery) -> BoxFuture<HandlerResult> + Send + Sync>),
    /// Called with all deliveries that arrive together.
    Batch(Arc<dyn Fn(Vec<Delivery>) -> BoxFuture<Vec<HandlerResult>> + Send + Sync>),
}

impl fmt::Debug for WorkFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Each(_) => "Each",
            Self::Batch(_) => "Batch",
        })
    }
}

/// The stream of a delivery, and the run of the broker that sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeliveryOrigin {
    pub(super) session: u64,
    pub(super) run: u64,
}

/// The settlement of one attempt or of a batch, or an extension of leases.
#[derive(Debug)]
pub(super) struct AttemptDone {
    pub(super) origin: DeliveryOrigin,
    /// Deliveries that have ended; 0 for an extension.
    pub(super) count: usize,
    pub(super) settle: v1::Settle,
}

/// Where attempts send their reports.
#[derive(Debug, Clone)]
pub(super) struct AttemptReport {
    pub(super) origin: DeliveryOrigin,
    pub(super) done: mpsc::Sender<AttemptDone>,
    pub(super) extend_for: Duration,
}

impl WorkFunction {
    /// Starts deliveries, for which the caller has acquired permits.
    pub(super) fn start(&self, deliveries: Vec<Delivery>, report: &AttemptReport) {
        match self {
            Self::Each(each) => {
                for delivery in deliveries {
                    let each = Arc::clone(each);
                    let (token, lease) = (delivery.token, delivery.lease);
                    let running = caught(move || each(delivery));
                    tokio::spawn(attempt(token, lease, running, report.clone()));
                }
            }
            Self::Batch(batch) => {
                let batch = Arc::clone(batch);
                let (tokens, lease) = tokens_and_lease(&deliveries);
                let running = caught(move || batch(deliveries));
                tokio::spawn(attempt_batch(tokens, lease, running, report.clone()));
            }
        }
    }

    /// Starts deliveries as soon as there are permits. Until then their leases are extended. A
    /// batch must not be larger than the concurrency.
    pub(super) fn start_when_free(
        &self,
        deliveries: Vec<Delivery>,
        report: &AttemptReport,
        shares: &Arc<ConcurrencyShares>,
    ) {
        match self {
            Self::Each(each) => {
                for delivery in deliveries {
                    let (each, shares) = (Arc::clone(each), Arc::clone(shares));
                    let (token, lease) = (delivery.token, delivery.lease);
                    let running = async move {
                        shares.take(1).await;
                        caught(move || each(delivery)).await
                    };
                    tokio::spawn(attempt(token, lease, running, report.clone()));
                }
            }
            Self::Batch(batch) => {
                let (batch, shares) = (Arc::clone(batch), Arc::clone(shares));
                let (tokens, lease) = tokens_and_lease(&deliveries);
                let count = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
                let running = async move {
                    shares.take(count).await;
                    caught(move || batch(deliveries)).await
                };
                tokio::spawn(attempt_batch(tokens, lease, running, report.clone()));
            }
        }
    }
}

fn tokens_and_lease(deliveries: &[Delivery]) -> (Vec<DeliveryToken>, Duration) {
    let tokens = deliveries.iter().map(|delivery| delivery.token).collect();
    let lease = deliveries.iter().map(|delivery| delivery.lease).min().unwrap_or_default();
    (tokens, lease)
}

async fn attempt(
    token: DeliveryToken,
    lease: Duration,
    running: impl Future<Output = Result<HandlerResult, Failure>>,
    report: AttemptReport,
) {
    let outcome = report.extending(&[token], lease, running).await;
    let mut settle = v1::Settle::default();
    add(&mut settle, token, outcome.unwrap_or_else(Err));
    report.send(1, settle).await;
}

async fn attempt_batch(
    tokens: Vec<DeliveryToken>,
    lease: Duration,
    running: impl Future<Output = Result<Vec<HandlerResult>, Failure>>,
    report: AttemptReport,
) {
    let outcomes = report.extending(&tokens, lease, running).await;
    let (outcomes, missing) = match outcomes {
        Ok(outcomes) => (outcomes, Failure::fail("the handler returned no result")),
        Err(panic) => (Vec::new(), panic),
    };
    let mut settle = v1::Settle { ack: Vec::with_capacity(tokens.len()), ..v1::Settle::default() };
    let mut outcomes = outcomes.into_iter();
    for token in &tokens {
        add(&mut settle, *token, outcomes.next().unwrap_or_else(|| Err(missing.clone())));
    }
    report.send(tokens.len(), settle).await;
}

impl AttemptReport {
    /// Runs the handler, and extends the leases whenever two thirds of them are over.
    async fn extending<T>(
        &self,
        tokens: &[DeliveryToken],
        lease: Duration,
        running: impl Future<Output = T>,
    ) -> T {
        let mut running = pin!(running);
        let pause = lease * 2 / 3;
        let mut extended = Duration::ZERO;
        while !pause.is_zero() && extended < self.extend_for {
            if let Ok(outcome) = tokio::time::timeout(pause, running.as_mut()).await {
                return outcome;
            }
            extended += pause;
            let lease_ms = millis_up(lease);
            let extend = tokens.iter().map(|token| v1::Extend { token: token.0, lease_ms });
            self.send(0, v1::Settle { extend: extend.collect(), ..v1::Settle::default() }).await;
        }
        running.await
    }

    /// Sends a report. It fails only if the session has ended, which needs no report then.
    async fn send(&self, count: usize, settle: v1::Settle) {
        _ = self.done.send(AttemptDone { origin: self.origin, count, settle }).await;
    }
}

fn add(settle: &mut v1::Settle, token: DeliveryToken, outcome: HandlerResult) {
    let Failure { mut reason, then } = match outcome {
        Ok(None) => return settle.ack.push(token.0),
        Ok(Some(result)) => {
            return settle.ack_with_result.push(v1::AckWithResult { token: token.0, result });
        }
        Err(failure) => failure,
    };
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    let token = token.0;
    match then {
        FailureAction::Refuse => settle.refuse.push(v1::Refuse { token, reason }),
        FailureAction::Retry => settle.fail.push(v1::Fail { token, reason, retry_in_ms: None }),
        FailureAction::RetryIn(pause) => {
            settle.fail.push(v1::Fail { token, reason, retry_in_ms: Some(millis_up(pause)) });
        }
    }
}

/// Turns a panic of the handler into a failed attempt.
async fn caught<T>(start: impl FnOnce() -> BoxFuture<T>) -> Result<T, Failure> {
    let panicked = |_| Failure::fail("the handler panicked");
    let mut running = catch_unwind(AssertUnwindSafe(start)).map_err(panicked)?;
    std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(outcome)) => Poll::Ready(Ok(outcome)),
            Err(panic) => Poll::Ready(Err(panicked(panic))),
        }
    })
    .await
}
