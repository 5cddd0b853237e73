//! The state of a client, which all its namespaces and workers share.
//!
//! The state lives as long as the last handle that shares it, so a worker may outlive its client.
//! `unary` calls brokers, `batch` sends tasks in batches, and `gather` sends calls about one task
//! each together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::batch::{self, ScheduleCall};
use crate::brokers::{BrokerConnections, ConnectOptions};
use crate::client::unary::UnaryCalls;
use crate::gather::{self, NamedCall};

/// The connections, the queue of calls and the timeout of a client.
#[derive(Debug)]
pub(crate) struct ClientState {
    unary: UnaryCalls,
    calls: mpsc::Sender<ScheduleCall>,
    named_calls: mpsc::Sender<NamedCall>,
    /// When it is dropped, the client stops to refresh the topology.
    _alive: oneshot::Sender<()>,
}

impl ClientState {
    /// Starts the tasks that send batches and gathered calls. Nothing is connected before the first
    /// call.
    pub(crate) fn new(
        addresses: Vec<String>,
        options: ConnectOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let (brokers, _alive) = BrokerConnections::new(addresses, options)?;
        let calls = batch::spawn(Arc::clone(&brokers), timeout / 2);
        let unary = UnaryCalls::new(brokers, timeout);
        let named_calls = gather::spawn(unary.clone());
        Ok(Self { unary, calls, named_calls, _alive })
    }

    pub(crate) fn calls(&self) -> &mpsc::Sender<ScheduleCall> {
        &self.calls
    }

    pub(crate) fn named_calls(&self) -> &mpsc::Sender<NamedCall> {
        &self.named_calls
    }

    pub(crate) fn unary(&self) -> &UnaryCalls {
        &self.unary
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.unary.timeout()
    }

    pub(crate) fn brokers(&self) -> &Arc<BrokerConnections> {
        self.unary.brokers()
    }
}
