//! What happens now, one message a second; and what operators did.

use std::sync::Arc;

use punctual_proto::v1;
use punctual_proto::v1::measures_client::MeasuresClient;
use punctual_proto::v1::operations_client::OperationsClient;
use tonic::Streaming;

use super::Namespace;
use super::operations::call;
use crate::brokers::channel::TrackedChannel;
use crate::client::Client;
use crate::client::state::ClientState;
use crate::client::unary::RetryWhen;
use crate::record::Stats;
use crate::wire::{error_of_status, non_empty, record};
use crate::{Error, Timestamp};

/// A stream of what happens, one message a second.
#[derive(Debug)]
pub struct Live {
    messages: Streaming<v1::LiveSecond>,
}

/// What happened up to a second.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LiveSecond {
    /// When it was measured.
    pub at: Timestamp,
    /// Tasks by state. With very many partitions or namespaces they are some seconds old.
    pub counts: Stats,
    /// Deliveries in flight.
    pub in_flight: u64,
    /// Fires that succeeded, per second.
    pub done_per_second: f64,
    /// Attempts that failed, per second.
    pub failed_per_second: f64,
    /// Fires that became dead letters, per second.
    pub dead_per_second: f64,
    /// Lags of the fires of the last minute; `None` if there were none.
    pub lag_ms: Option<Lags>,
    /// Attempts that ended in the last minute.
    pub attempts: u64,
}

/// Percentiles of lags, in milliseconds. Each but the maximum may be somewhat too large.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Lags {
    /// Half of the fires have at most this lag.
    pub p50: f64,
    /// 99 of 100 fires have at most this lag.
    pub p99: f64,
    /// 999 of 1,000 fires have at most this lag.
    pub p999: f64,
    /// The largest lag.
    pub max: f64,
}

/// What operators did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActionPage {
    /// Newest first.
    pub actions: Vec<ActionInfo>,
    /// Since when no action is missing, except those over the limit. Brokers keep them in memory.
    pub since: Timestamp,
    /// Whether all brokers have answered.
    pub complete: bool,
}

/// A call of an operator that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActionInfo {
    /// When it was made.
    pub at: Timestamp,
    /// The call, as the OpenAPI document names it: `pause_task`.
    pub call: String,
    /// What the token of the caller grants: `admin`, or a namespace with rights.
    pub by: String,
    /// The key or id of the task, the id of the fire or of the operation, or the name of the alarm
    /// or rule that the call names.
    pub name: Option<String>,
    /// What the call asked for, as text: the verb and the filter.
    pub detail: Option<String>,
    /// How many tasks or dead letters were changed, of a call about many.
    pub changed: Option<u64>,
}

impl Live {
    /// Waits for the next message. `None` when the broker stops; listen again, at another one.
    ///
    /// # Errors
    /// Any [`Error`]: the stream has broken off.
    pub async fn next(&mut self) -> Result<Option<LiveSecond>, Error> {
        let message = self.messages.message().await;
        Ok(message.map_err(|status| error_of_status(&status))?.map(second))
    }
}

impl Namespace {
    /// Listens to what happens in the namespace, over all brokers.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn live(&self) -> Result<Live, Error> {
        live(&self.client, self.name.to_string()).await
    }

    /// Lists what operators did, newest first: at most `limit` actions, up to 1,000.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn actions(&self, limit: u32) -> Result<ActionPage, Error> {
        let request = v1::ActionsRequest { namespace: self.name.to_string(), limit };
        let answer = call!(self, OperationsClient, RetryWhen::Always, actions, request)?;
        Ok(ActionPage {
            actions: answer.actions.into_iter().map(action).collect(),
            since: Timestamp::from_millis(answer.since_ms),
            complete: answer.complete,
        })
    }
}

impl Client {
    /// Listens to what happens in all namespaces, over all brokers. Requires an admin token.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn live(&self) -> Result<Live, Error> {
        live(&self.state, String::new()).await
    }
}

async fn live(client: &Arc<ClientState>, namespace: String) -> Result<Live, Error> {
    let call = |channel: TrackedChannel| {
        let request = v1::LiveRequest { namespace: namespace.clone() };
        async move { MeasuresClient::new(channel).live(request).await }
    };
    let messages = client.unary().call_channel(RetryWhen::Always, call).await?;
    Ok(Live { messages })
}

fn second(message: v1::LiveSecond) -> LiveSecond {
    let rates = message.rates.unwrap_or_default();
    LiveSecond {
        at: Timestamp::from_millis(message.at_ms),
        counts: record::stats(&message.counts.unwrap_or_default()),
        in_flight: message.in_flight,
        done_per_second: rates.done,
        failed_per_second: rates.failed,
        dead_per_second: rates.dead,
        lag_ms: message.lag_ms.map(lags),
        attempts: message.attempts,
    }
}

fn lags(lag: v1::MeasuredLag) -> Lags {
    let v1::MeasuredLag { p50, p99, p999, max } = lag;
    Lags { p50, p99, p999, max }
}

fn action(action: v1::Action) -> ActionInfo {
    let v1::Action { at_ms, call, by, name, detail, changed } = action;
    ActionInfo {
        at: Timestamp::from_millis(at_ms),
        call,
        by,
        name: non_empty(name),
        detail: non_empty(detail),
        changed,
    }
}
