//! Starts owners on this broker, and removes them: the thread, routing, the hub and metrics.
//!
//! `sole` runs all owners of a broker that shares its store with no other, `membership` those of
//! the partitions that a cluster assigns to this broker. An owner that ends on its own is logged
//! and counted here; what follows is decided there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use punctual_core::{Epoch, PartitionId};
use punctual_engine::{InFlight, OrphanReports, OwnerConfig, OwnerFailure, Ownership, spawn};
use punctual_store::StoreError;

use crate::clock::SystemClock;
use crate::courier::{Couriers, Hub};
use crate::routing::Owners;
use crate::store::Store;
use crate::telemetry::Telemetry;

/// Starts owners, with what they need to run.
#[derive(Debug)]
pub(crate) struct OwnerRunner {
    pub(crate) owners: Arc<Owners>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) store: Arc<Store>,
    pub(crate) couriers: Arc<Couriers>,
    pub(crate) clock: Arc<SystemClock>,
    pub(crate) telemetry: Telemetry,
    pub(crate) config: OwnerConfig,
    /// [`OrphanReports::none`] once the broker has left, when no more owners start.
    pub(crate) orphans: Mutex<OrphanReports>,
}

impl OwnerRunner {
    /// Starts an owner. The future completes when the owner has ended: with `None` if the broker
    /// ended it.
    pub(crate) fn start(
        &self,
        ownership: Ownership,
        inherited: Vec<InFlight>,
    ) -> std::io::Result<impl Future<Output = Option<OwnerFailure>> + Send + use<>> {
        let Ownership { partition, epoch, .. } = ownership;
        let in_flight = inherited.len();
        let (store, couriers) = (Arc::clone(&self.store), Arc::clone(&self.couriers));
        let (clock, orphans) = (Arc::clone(&self.clock), self.orphans().clone());
        let spawned = spawn(ownership, inherited, store, couriers, clock, self.config, orphans);
        let (handle, end) = spawned.inspect_err(|error| {
            tracing::error!(%partition, %epoch, %error, "owner not started");
        })?;
        tracing::info!(%partition, %epoch, in_flight, "owner started");
        self.owners.insert(partition, epoch, handle.clone());
        self.couriers.sinks.serve(partition, handle.clone());
        self.hub.serve(partition, handle);
        self.telemetry.holds(partition, Some(epoch));
        let telemetry = self.telemetry.clone();
        Ok(async move {
            let failure = end.await.ok()?;
            record(&telemetry, partition, epoch, &failure);
            Some(failure)
        })
    }

    /// Removes the owner of a partition, unless an owner of another epoch has replaced it, and
    /// ends it if it still runs.
    pub(crate) fn remove(&self, partition: PartitionId, epoch: Epoch) {
        if let Some(handle) = self.owners.remove(partition, epoch) {
            self.hub.forget(partition);
            self.couriers.sinks.forget(partition);
            self.telemetry.holds(partition, None);
            handle.end();
        }
    }

    /// Starts no more owners that pass reports on to others.
    pub(crate) fn drop_orphans(&self) {
        *self.orphans() = OrphanReports::none();
    }

    fn orphans(&self) -> MutexGuard<'_, OrphanReports> {
        // Every update is a single step, so the value is consistent even after a panic.
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs and counts an owner that ended on its own.
fn record(telemetry: &Telemetry, partition: PartitionId, epoch: Epoch, failure: &OwnerFailure) {
    match failure {
        OwnerFailure::Panicked(panic) => {
            tracing::error!(%partition, %epoch, %panic, "owner panicked");
            telemetry.owner_panicked();
        }
        OwnerFailure::Store(error) => {
            tracing::warn!(%partition, %epoch, %error, "owner ended");
            if matches!(error, StoreError::Fenced { .. }) {
                telemetry.stale_write();
            }
        }
    }
}
