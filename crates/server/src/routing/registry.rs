//! The registry: the owners that run on this broker, and the brokers that own the rest.
//!
//! `membership` inserts and removes local owners and publishes each new topology. Readers subscribe
//! to [`Owners::changes`] to learn that an owner has changed. `forward` sends commands to the owner
//! that the registry names.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use punctual_core::{
    BrokerId, Epoch, Namespace, PartitionId, PartitionOwner, Partitions, TaskKey, Topology,
    partition_of,
};
use punctual_engine::{EngineError, Gauges, OwnerHandle, Report};
use tokio::sync::watch;

use super::partition_handle::PartitionHandle;
use crate::peer::Peers;
use crate::telemetry::Telemetry;

/// The owners of all partitions, on this broker and on others.
#[derive(Debug)]
pub(crate) struct Owners {
    partitions: Partitions,
    local: RwLock<LocalOwners>,
    /// Distributes tasks without a key over partitions in turn.
    next: AtomicUsize,
    /// `None` if this broker shares its store with no other.
    pub(super) remote: Option<RemoteOwners>,
}

/// The owners that run on this broker.
#[derive(Debug, Default)]
struct LocalOwners {
    by_partition: Vec<Option<LocalOwner>>,
    /// The partitions that have an entry, in ascending order.
    partitions: Vec<PartitionId>,
}

#[derive(Debug, Clone)]
struct LocalOwner {
    epoch: Epoch,
    handle: OwnerHandle,
}

/// What this broker knows of the owners on other brokers.
#[derive(Debug)]
pub(super) struct RemoteOwners {
    me: BrokerId,
    pub(super) peers: Arc<Peers>,
    pub(super) telemetry: Telemetry,
    topology: Mutex<Topology>,
    /// Counts changes, so that a subscriber never misses one.
    pub(super) changes: watch::Sender<u64>,
}

/// Where the owner of a partition runs.
pub(super) enum Route {
    Local(OwnerHandle),
    Remote(BrokerId),
    /// The partition has no owner, or this broker does not know it yet.
    Unknown,
}

impl Owners {
    /// Creates a registry in which every owner is local.
    pub(crate) fn sole(partitions: Partitions) -> Self {
        let by_partition = vec![None; usize::from(partitions.count())];
        let local = RwLock::new(LocalOwners { by_partition, partitions: Vec::new() });
        Self { partitions, local, next: AtomicUsize::new(0), remote: None }
    }

    /// Creates a registry for a broker of a cluster.
    pub(crate) fn shared(
        partitions: Partitions,
        me: BrokerId,
        peers: Arc<Peers>,
        telemetry: Telemetry,
    ) -> Self {
        let topology = Mutex::new(Topology::vacant(partitions));
        let changes = watch::Sender::new(0);
        let remote = RemoteOwners { me, peers, telemetry, topology, changes };
        Self { remote: Some(remote), ..Self::sole(partitions) }
    }

    /// Returns the number of partitions of the store.
    pub(crate) const fn partitions(&self) -> Partitions {
        self.partitions
    }

    /// Returns a handle to a partition; `None` if the store has no such partition.
    pub(crate) fn of(self: &Arc<Self>, partition: PartitionId) -> Option<PartitionHandle<'_>> {
        let exists = partition.get() < self.partitions.count();
        exists.then_some(PartitionHandle { owners: self, partition })
    }

    /// Returns a handle to the partition of a task with a key.
    pub(crate) fn of_key(
        self: &Arc<Self>,
        namespace: &Namespace,
        key: &TaskKey,
    ) -> PartitionHandle<'_> {
        let partition = partition_of(namespace, key, self.partitions);
        PartitionHandle { owners: self, partition }
    }

    /// Returns a handle to a partition for a task without a key.
    pub(crate) fn any(self: &Arc<Self>) -> PartitionHandle<'_> {
        PartitionHandle { owners: self, partition: self.any_partition() }
    }

    /// Picks a partition for tasks without a key, a local one if there is any: that saves a hop.
    ///
    /// The tasks of one request use one partition, so that its owner writes them in one batch.
    pub(crate) fn any_partition(&self) -> PartitionId {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let local = self.local();
        if local.partitions.is_empty() {
            let number = u16::try_from(turn % usize::from(self.partitions.count())).ok();
            return number.and_then(PartitionId::new).unwrap_or(PartitionId::FIRST);
        }
        local.partitions[turn % local.partitions.len()]
    }

    /// Returns the local owners.
    pub(crate) fn handles(&self) -> Vec<(PartitionId, OwnerHandle)> {
        let local = self.local();
        let handle = |partition: &PartitionId| {
            let owner = local.by_partition[usize::from(partition.get())].as_ref()?;
            Some((*partition, owner.handle.clone()))
        };
        local.partitions.iter().filter_map(handle).collect()
    }

    /// Returns the owner of a partition if it is local.
    pub(crate) fn handle(&self, partition: PartitionId) -> Option<OwnerHandle> {
        let local = self.local();
        let owner = local.by_partition.get(usize::from(partition.get()))?.as_ref()?;
        Some(owner.handle.clone())
    }

    /// Returns the epoch of the owner of a partition if it is local.
    pub(crate) fn epoch(&self, partition: PartitionId) -> Option<Epoch> {
        let local = self.local();
        Some(local.by_partition.get(usize::from(partition.get()))?.as_ref()?.epoch)
    }

    /// Adds an owner that has started on this broker.
    pub(crate) fn insert(&self, partition: PartitionId, epoch: Epoch, handle: OwnerHandle) {
        self.replace(partition, Some(LocalOwner { epoch, handle }));
        self.changed();
    }

    /// Removes a local owner, unless an owner of another epoch has replaced it.
    pub(crate) fn remove(&self, partition: PartitionId, epoch: Epoch) -> Option<OwnerHandle> {
        if self.epoch(partition) != Some(epoch) {
            return None;
        }
        let removed = self.replace(partition, None);
        self.changed();
        removed.map(|owner| owner.handle)
    }

    fn replace(&self, partition: PartitionId, owner: Option<LocalOwner>) -> Option<LocalOwner> {
        let mut local = self.local.write().unwrap_or_else(PoisonError::into_inner);
        let entry = local.by_partition.get_mut(usize::from(partition.get()))?;
        let before = std::mem::replace(entry, owner);
        let is_local = |at: &PartitionId| local.by_partition[usize::from(at.get())].is_some();
        let partitions = self.partitions.iter().filter(is_local).collect();
        local.partitions = partitions;
        before
    }

    /// Merges a topology that was read from the store. It may be older than what this broker
    /// already knows; entries with an older epoch change nothing.
    pub(crate) fn update_topology(&self, topology: &Topology) {
        if let Some(remote) = &self.remote {
            let mut known = remote.topology();
            let before = known.clone();
            for (partition, owner) in topology.owners() {
                known.note(partition, owner.broker.clone(), owner.epoch);
            }
            if *known != before {
                drop(known);
                self.changed();
            }
        }
    }

    /// Records that another broker has taken a partition, before the next topology says so.
    pub(crate) fn learn_owner(&self, partition: PartitionId, broker: BrokerId, epoch: Epoch) {
        if let Some(remote) = &self.remote {
            let mut topology = remote.topology();
            let before = topology.owner(partition).cloned();
            topology.note(partition, broker, epoch);
            let is_new = topology.owner(partition) != before.as_ref();
            drop(topology);
            // A caller that waits for a change must not be woken by what it recorded itself.
            if is_new {
                self.changed();
            }
        }
    }

    /// Subscribes to changes of owners, local and remote; `None` if all owners are always local.
    pub(crate) fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.remote.as_ref().map(|remote| remote.changes.subscribe())
    }

    /// Passes reports of deliveries to the owner of a partition. Returns whether an owner got them.
    pub(crate) async fn report(&self, partition: PartitionId, reports: &[Report]) -> bool {
        match (self.route(partition), &self.remote) {
            (Route::Local(handle), _) => {
                handle.report(reports.to_vec());
                true
            }
            (Route::Remote(broker), Some(remote)) => {
                remote.peers.report(&broker, partition, reports).await.is_ok()
            }
            _ => false,
        }
    }

    /// Returns the owner of a partition, as far as this broker knows; `None` if there is none, or
    /// if this broker shares its store with no other.
    pub(crate) fn owner_of(&self, partition: PartitionId) -> Option<PartitionOwner> {
        let remote = self.remote.as_ref()?;
        match self.epoch(partition) {
            Some(epoch) => Some(PartitionOwner { broker: remote.me.clone(), epoch }),
            None => {
                let topology = remote.topology();
                topology.owner(partition).filter(|owner| owner.broker != remote.me).cloned()
            }
        }
    }

    pub(super) fn route(&self, partition: PartitionId) -> Route {
        if let Some(handle) = self.handle(partition) {
            return Route::Local(handle);
        }
        let Some(remote) = &self.remote else { return Route::Unknown };
        match remote.topology().owner(partition) {
            // The local owner has just ended and the topology still names this broker.
            Some(owner) if owner.broker == remote.me => Route::Unknown,
            Some(owner) => Route::Remote(owner.broker.clone()),
            None => Route::Unknown,
        }
    }

    /// Sums the gauges of all owners, of one namespace or of all.
    pub(crate) async fn gauges(
        &self,
        namespace: Option<&Namespace>,
    ) -> Result<Gauges, EngineError> {
        let mut gauges = self.gauges_here(namespace).await?;
        if let Some(remote) = &self.remote {
            let brokers = remote.brokers();
            for broker in brokers {
                let theirs = remote.peers.gauges(&broker, namespace).await;
                gauges = gauges.and(theirs.map_err(|_| EngineError::Stopped)?);
            }
        }
        Ok(gauges)
    }

    /// Sums the gauges of the local owners.
    pub(crate) async fn gauges_here(
        &self,
        namespace: Option<&Namespace>,
    ) -> Result<Gauges, EngineError> {
        let mut gauges = Gauges::default();
        let handles = self.handles();
        // Of the partitions of a sole broker, one has no owner right now.
        if self.remote.is_none() && handles.len() < usize::from(self.partitions.count()) {
            return Err(EngineError::Stopped);
        }
        for (_, handle) in handles {
            match handle.gauges(namespace.cloned()).await {
                Ok(of_owner) => gauges = gauges.and(of_owner),
                // The partition has just moved, and the next owner counts it.
                Err(_) if self.remote.is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gauges)
    }

    fn local(&self) -> RwLockReadGuard<'_, LocalOwners> {
        self.local.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        if let Some(remote) = &self.remote {
            remote.changes.send_modify(|count| *count += 1);
        }
    }
}

impl RemoteOwners {
    fn topology(&self) -> MutexGuard<'_, Topology> {
        self.topology.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the other brokers that own at least one partition.
    fn brokers(&self) -> Vec<BrokerId> {
        let topology = self.topology();
        let owners = topology.owners().map(|(_, owner)| owner.broker.clone());
        let mut brokers: Vec<_> = owners.filter(|broker| *broker != self.me).collect();
        brokers.sort_unstable();
        brokers.dedup();
        brokers
    }
}
