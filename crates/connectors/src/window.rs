//! The deliveries of one batch that are sent without waiting for each other, and what is known of
//! each.

use std::future::Future;
use std::time::Duration;

use punctual_core::AttemptResult;
use punctual_engine::Delivery;
use tokio::time::timeout;

use crate::sink::{SendResult, SessionLost, unknown};

/// The courier gives a batch up when its time has passed, and then nothing is known of all of it. A
/// window ends this much earlier, so that what was confirmed stays confirmed.
const MARGIN_MAX: Duration = Duration::from_millis(100);

/// A batch, and the results that are known so far.
pub(crate) struct BatchWindow<'a> {
    batch: &'a [Delivery],
    results: Vec<Option<AttemptResult>>,
}

impl<'a> BatchWindow<'a> {
    pub(crate) fn new(batch: &'a [Delivery]) -> Self {
        Self { batch, results: vec![None; batch.len()] }
    }

    pub(crate) fn set(&mut self, at: usize, result: AttemptResult) {
        if let Some(known) = self.results.get_mut(at) {
            *known = Some(result);
        }
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.results.get(at).is_some_and(Option::is_some)
    }

    /// The result of a delivery that may have had its effect.
    pub(crate) fn unknown(&self, at: usize, reason: &str) -> AttemptResult {
        let guarantee = self.batch.get(at).map(|delivery| delivery.definition.guarantee);
        unknown(guarantee.unwrap_or_default(), reason)
    }

    /// Runs what sends and waits, for as long as a delivery may take. Returns `None` after that.
    pub(crate) async fn within<T>(batch: &[Delivery], work: impl Future<Output = T>) -> Option<T> {
        let limit = batch.first().map_or(Duration::ZERO, |first| first.definition.timeout);
        timeout(limit - MARGIN_MAX.min(limit / 20), work).await.ok()
    }

    /// The results: it is not known what became of deliveries that have none.
    pub(crate) fn end(self, lost: Option<SessionLost>) -> SendResult {
        let reason = lost.as_ref().map_or("no confirmation in time", |lost| lost.0.as_str());
        let missing = |at| self.unknown(at, reason);
        let results = self.results.iter().enumerate();
        let results = results.map(|(at, known)| known.clone().or_else(|| Some(missing(at))));
        SendResult { results: results.collect(), lost }
    }
}
