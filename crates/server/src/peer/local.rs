//! What this broker does for its peers: it answers for the owners that are here, and for no others.
//!
//! In: calls of peers. Out: answers of owners, of the hub, of the membership. Nothing is passed on to a third broker: whoever asks the wrong one
//! is told so, and asks another.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Epoch, Namespace, PartitionId, Queue};
use punctual_engine::{Command, EngineError, Gauges, InFlight, Replies, Report};

use super::{Home, PeerError, Polled};
use crate::broker::Broker;
use crate::courier::queue::{Heard, Place, Token, Word};

impl Home for Broker {
    async fn ask(
        &self,
        partition: PartitionId,
        commands: Vec<Command>,
    ) -> Result<Replies, PeerError> {
        let handle = self.owners.handle(partition).ok_or(PeerError::NotMine)?;
        match handle.call(commands).await {
            Ok(answers) => Ok(answers),
            Err(EngineError::Stopped) => Err(PeerError::NotMine),
            Err(EngineError::Busy) => Err(PeerError::Busy),
            Err(error) => Err(PeerError::Lost(error.to_string())),
        }
    }

    async fn take(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        flights: Vec<InFlight>,
    ) -> Result<Epoch, PeerError> {
        let shared = self.shared.as_ref().filter(|_| !self.is_draining());
        let membership = Arc::clone(&shared.ok_or(PeerError::NotMine)?.membership);
        membership.take(partition, epoch, flights).await
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

    async fn poll(
        &self,
        namespace: Namespace,
        queue: Queue,
        max: usize,
        wait: Duration,
        lease: Option<Duration>,
    ) -> Result<Vec<Polled>, PeerError> {
        let leased = self.hub.poll((namespace, queue), max, wait, lease).await;
        Ok(leased.iter().map(Polled::from).collect())
    }

    fn settle(&self, place: Place<'_>, words: Vec<(Token, Word)>) -> Result<Vec<Heard>, PeerError> {
        Ok(self.hub.settle(place, words))
    }
}
