//! Calls with one request and one answer, which are repeated where that is safe.
//!
//! A call ends with an answer, a refusal, or the timeout of the client. The error of a call tells
//! whether a broker may have carried it out. `brokers` chooses the broker of each attempt.

use std::sync::Arc;
use std::time::Duration;

use punctual_proto::v1;
use tonic::{Response, Status};

use crate::answer::{CancelResult, Touched};
use crate::brokers::address_list::AfterFailure;
use crate::brokers::channel::{TasksStub, TrackedChannel};
use crate::brokers::send_state::SendState;
use crate::brokers::{ANSWER_BYTES_MAX, BrokerConnections};
use crate::clock::Backoff;
use crate::error::CallFailure;
use crate::{Error, wire};

/// The connections and the timeout of all calls of a client. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct UnaryCalls {
    brokers: Arc<BrokerConnections>,
    timeout: Duration,
}

impl UnaryCalls {
    pub(crate) fn new(brokers: Arc<BrokerConnections>, timeout: Duration) -> Self {
        Self { brokers, timeout }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn brokers(&self) -> &Arc<BrokerConnections> {
        &self.brokers
    }

    /// Cancels tasks. Returns one result for each, in order.
    pub(crate) async fn cancel(
        &self,
        request: v1::CancelRequest,
    ) -> Result<Vec<Result<CancelResult, Error>>, Error> {
        let call = |mut tasks: TasksStub| {
            let request = request.clone();
            async move { tasks.cancel(request).await }
        };
        let answer = self.call(RetryWhen::IfNotSeen, call).await?;
        if answer.results.len() != request.keys.len() + request.ids.len() {
            return Err(Error::Answer("cancel returned the wrong number of results"));
        }
        Ok(answer.results.into_iter().map(wire::cancel_result).collect())
    }

    /// Touches tasks.
    pub(crate) async fn touch(&self, request: v1::TouchRequest) -> Result<Touched, Error> {
        let call = |mut tasks: TasksStub| {
            let request = request.clone();
            async move { tasks.touch(request).await }
        };
        self.call(RetryWhen::Always, call).await.map(wire::touched)
    }

    /// Calls a method of the `Tasks` service. See [`UnaryCalls::call_channel`].
    pub(crate) async fn call<T, F>(
        &self,
        retry_when: RetryWhen,
        call: impl Fn(TasksStub) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let call =
            |channel| call(TasksStub::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX));
        self.call_channel(retry_when, call).await
    }

    /// Calls until a broker answers or refuses, the timeout is over, or it is not safe to repeat
    /// the call. If a broker is down, the next one is called at once.
    pub(crate) async fn call_channel<T, F>(
        &self,
        retry_when: RetryWhen,
        call: impl Fn(TrackedChannel) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        // For the timeout: how the last attempt failed, whether a broker may have carried out an
        // earlier one, and whether the current one was sent.
        let mut last = None;
        let mut maybe_done = false;
        let mut send_state = SendState::default();
        let answered = tokio::time::timeout(self.timeout, async {
            let mut backoff = Backoff::new();
            loop {
                send_state = SendState::default();
                let (address, channel) = self.brokers.tracked(&send_state);
                let status = match call(channel).await {
                    Ok(answer) => {
                        self.brokers.answered(&address);
                        return Ok(answer.into_inner());
                    }
                    Err(status) => status,
                };
                let next = self.brokers.failed(&address, &status);
                match (CallFailure::of(&status), retry_when) {
                    (CallFailure::Refused, _) | (CallFailure::Lost, RetryWhen::IfNotSeen) => {
                        return Err(wire::error_of_status(&status));
                    }
                    (CallFailure::Lost, RetryWhen::Always) => maybe_done = true,
                    // No broker has carried out this one.
                    (CallFailure::Unreachable | CallFailure::Busy, _) => {
                        send_state = SendState::default()
                    }
                }
                last = Some(wire::error_of_status(&status));
                if next == AfterFailure::AfterPause {
                    backoff.wait().await;
                }
            }
        });
        answered.await.unwrap_or_else(|_| {
            if maybe_done || !send_state.abort() {
                return Err(Error::TimedOut);
            }
            Err(last.unwrap_or_else(|| {
                Error::Unreachable("no connection within the timeout".to_owned())
            }))
        })
    }
}

/// When a call without an answer may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryWhen {
    /// Always: calling twice has the same effect as calling once.
    Always,
    /// Only if no broker has carried it out.
    IfNotSeen,
}
