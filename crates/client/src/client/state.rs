//! The state of a client, which all its namespaces and workers share, and calls that are repeated
//! where that is safe.
//!
//! The state lives as long as the last handle that shares it, so a worker may outlive its client.
//! `brokers` chooses the broker of a call, and `batch` sends tasks in batches.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tonic::{Response, Status};

use crate::batch::{self, ScheduleCall};
use crate::brokers::address_list::AfterFailure;
use crate::brokers::channel::{TasksStub, TrackedChannel};
use crate::brokers::send_state::SendState;
use crate::brokers::{ANSWER_BYTES_MAX, BrokerConnections, ConnectOptions};
use crate::clock::Backoff;
use crate::error::CallFailure;
use crate::{Error, wire};

/// The connections, the queue of calls and the timeout of a client.
#[derive(Debug)]
pub(crate) struct ClientState {
    brokers: Arc<BrokerConnections>,
    calls: mpsc::Sender<ScheduleCall>,
    timeout: Duration,
    /// When it is dropped, the client stops to refresh the topology.
    _alive: oneshot::Sender<()>,
}

impl ClientState {
    /// Starts the task that sends batches. Nothing is connected before the first call.
    pub(crate) fn new(
        addresses: Vec<String>,
        options: ConnectOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let (brokers, _alive) = BrokerConnections::new(addresses, options)?;
        let calls = batch::spawn(Arc::clone(&brokers), timeout / 2);
        Ok(Self { brokers, calls, timeout, _alive })
    }

    pub(crate) fn calls(&self) -> &mpsc::Sender<ScheduleCall> {
        &self.calls
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn brokers(&self) -> &Arc<BrokerConnections> {
        &self.brokers
    }

    /// Calls a method of the `Tasks` service. See [`ClientState::call_channel`].
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
