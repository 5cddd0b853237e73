//! What this broker does for its peers: it answers for its own owners and for no others.
//!
//! A call is never passed on to a third broker. A peer that asks the wrong broker gets
//! [`PeerError::NotMine`] and asks another.

use std::sync::Arc;

use punctual_core::{Clock as _, Epoch, Namespace, PartitionId};
use punctual_engine::{Command, EngineError, Gauges, InFlight, Replies, Report};

use super::{LocalBroker, PeerError, Polled};
use crate::actions::ActionList;
use crate::broker::Broker;
use crate::courier::queue::{LeaseToken, PollOptions, SettleResult, SettleScope, Settlement};
use crate::measures::series::EndSeries;
use crate::measures::windows::{WindowSpec, WindowSum};
use crate::namespace_view::{NamespaceView, ViewQuery};
use crate::view_namespace::view_here;

impl LocalBroker for Broker {
    async fn call(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> Result<Replies, PeerError> {
        let handle = self.owners.handle(partition).ok_or(PeerError::NotMine)?;
        match handle.call(commands).await {
            Ok(replies) => Ok(replies),
            Err(EngineError::Stopped) => Err(PeerError::NotMine),
            Err(EngineError::Busy) => Err(PeerError::Busy),
            Err(error) => Err(PeerError::Lost(error.to_string())),
        }
    }

    async fn take(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        in_flight: Vec<InFlight>,
    ) -> Result<Epoch, PeerError> {
        let cluster = self.cluster.as_ref().filter(|_| !self.is_draining());
        let membership = Arc::clone(&cluster.ok_or(PeerError::NotMine)?.membership);
        membership.take(partition, epoch, in_flight).await
    }

    fn report(&self, partition: PartitionId, reports: Vec<Report>) -> Result<(), PeerError> {
        let handle = self.owners.handle(partition).ok_or(PeerError::NotMine)?;
        handle.report(reports);
        Ok(())
    }

    async fn gauges(&self, namespace: Option<Namespace>) -> Result<Gauges, PeerError> {
        let gauges = self.owners.gauges_here(namespace.as_ref()).await;
        gauges.map_err(|error| PeerError::Refused(error.to_string()))
    }

    async fn view(&self, query: ViewQuery) -> Result<NamespaceView, PeerError> {
        let view = view_here(self, &query).await;
        view.map_err(|_| PeerError::NotMine)
    }

    fn measure(&self, windows: &[WindowSpec]) -> Vec<WindowSum> {
        self.telemetry.windows().read(windows, self.clock.now())
    }

    fn series(&self, namespace: &Namespace) -> EndSeries {
        self.telemetry.series().read(namespace, self.clock.now())
    }

    fn actions(&self, namespace: &Namespace) -> ActionList {
        self.actions.list(namespace)
    }

    async fn poll(&self, options: PollOptions) -> Result<Vec<Polled>, PeerError> {
        let PollOptions { namespace, queue, max, wait, lease, label } = options;
        let leased = self.hub.poll((namespace, queue), max, wait, lease, &label).await;
        Ok(leased.iter().map(Polled::from).collect())
    }

    fn settle(
        &self,
        scope: SettleScope<'_>,
        settlements: Vec<(LeaseToken, Settlement)>,
    ) -> Result<Vec<SettleResult>, PeerError> {
        Ok(self.hub.settle(scope, settlements))
    }
}
