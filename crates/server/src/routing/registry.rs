//! The registry of owners.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use punctual_core::{
    BrokerId, Epoch, Namespace, PartitionId, Partitions, TaskKey, Topology, partition_of,
};
use punctual_engine::{EngineError, Gauges, OwnerHandle, Report};
use tokio::sync::watch;

use super::partition_handle::Door;
use crate::peer::Peers;
use crate::telemetry::Telemetry;

/// The owners of all partitions.
#[derive(Debug)]
pub(crate) struct Owners {
    partitions: Partitions,
    /// Those that are here.
    here: RwLock<Here>,
    /// Tasks without a name go round.
    next: AtomicUsize,
    /// The other brokers, if there can be some.
    pub(super) others: Option<Others>,
}

/// Owners of this broker, by partition and in a row.
#[derive(Debug, Default)]
struct Here {
    by_partition: Vec<Option<Local>>,
    row: Vec<PartitionId>,
}

#[derive(Debug, Clone)]
struct Local {
    epoch: Epoch,
    handle: OwnerHandle,
}

#[derive(Debug)]
pub(super) struct Others {
    me: BrokerId,
    pub(super) peers: Arc<Peers>,
    pub(super) telemetry: Telemetry,
    topology: Mutex<Topology>,
    /// Counts changes, so that whoever waits for one sees it.
    pub(super) changes: watch::Sender<u64>,
}

/// Where a partition is.
pub(super) enum Place {
    Here(OwnerHandle),
    There(BrokerId),
    /// Nobody has it, or nobody knows who.
    Nowhere,
}

impl Owners {
    /// All of them will be here.
    pub(crate) fn sole(partitions: Partitions) -> Self {
        let by_partition = vec![None; usize::from(partitions.count())];
        let here = RwLock::new(Here { by_partition, row: Vec::new() });
        Self { partitions, here, next: AtomicUsize::new(0), others: None }
    }

    /// Some of them will be here, the others with other brokers.
    pub(crate) fn shared(
        partitions: Partitions,
        me: BrokerId,
        peers: Arc<Peers>,
        telemetry: Telemetry,
    ) -> Self {
        let topology = Mutex::new(Topology::vacant(partitions));
        let others = Others { me, peers, telemetry, topology, changes: watch::Sender::new(0) };
        Self { others: Some(others), ..Self::sole(partitions) }
    }

    /// All partitions.
    pub(crate) const fn partitions(&self) -> Partitions {
        self.partitions
    }

    /// The owner of a partition; `None` if there is no such partition.
    pub(crate) fn of(self: &Arc<Self>, partition: PartitionId) -> Option<Door<'_>> {
        (partition.get() < self.partitions.count()).then_some(Door { owners: self, partition })
    }

    /// The owner of a named task.
    pub(crate) fn of_key(self: &Arc<Self>, namespace: &Namespace, key: &TaskKey) -> Door<'_> {
        Door { owners: self, partition: partition_of(namespace, key, self.partitions) }
    }

    /// The owner of tasks without a name: any will do, and one that is here saves the way.
    pub(crate) fn any(self: &Arc<Self>) -> Door<'_> {
        Door { owners: self, partition: self.any_partition() }
    }

    /// A partition for tasks without a name. What comes together goes to one: its owner writes it together.
    pub(crate) fn any_partition(&self) -> PartitionId {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let here = self.here();
        if here.row.is_empty() {
            let number = u16::try_from(turn % usize::from(self.partitions.count())).ok();
            return number.and_then(PartitionId::new).unwrap_or(PartitionId::FIRST);
        }
        here.row[turn % here.row.len()]
    }

    /// Those that are here.
    pub(crate) fn handles(&self) -> Vec<(PartitionId, OwnerHandle)> {
        let here = self.here();
        let local = |partition: &PartitionId| {
            let local = here.by_partition[usize::from(partition.get())].as_ref()?;
            Some((*partition, local.handle.clone()))
        };
        here.row.iter().filter_map(local).collect()
    }

    /// The owner of a partition, if it is here.
    pub(crate) fn handle(&self, partition: PartitionId) -> Option<OwnerHandle> {
        let here = self.here();
        let local = here.by_partition.get(usize::from(partition.get()))?.as_ref()?;
        Some(local.handle.clone())
    }

    /// The epoch of the owner of a partition, if it is here.
    pub(crate) fn epoch(&self, partition: PartitionId) -> Option<Epoch> {
        let here = self.here();
        Some(here.by_partition.get(usize::from(partition.get()))?.as_ref()?.epoch)
    }

    /// An owner has started here.
    pub(crate) fn start(&self, partition: PartitionId, epoch: Epoch, handle: OwnerHandle) {
        self.put(partition, Some(Local { epoch, handle }));
        self.changed();
    }

    /// An owner has ended here, unless another of the same partition has begun since.
    pub(crate) fn end(&self, partition: PartitionId, epoch: Epoch) -> Option<OwnerHandle> {
        if self.epoch(partition) != Some(epoch) {
            return None;
        }
        let ended = self.put(partition, None);
        self.changed();
        ended.map(|local| local.handle)
    }

    fn put(&self, partition: PartitionId, local: Option<Local>) -> Option<Local> {
        let mut here = self.here.write().unwrap_or_else(PoisonError::into_inner);
        let place = here.by_partition.get_mut(usize::from(partition.get()))?;
        let before = std::mem::replace(place, local);
        let row =
            self.partitions.iter().filter(|at| here.by_partition[usize::from(at.get())].is_some());
        here.row = row.collect();
        before
    }

    /// Who holds what, as the roll says. It may be older than what was noted: what is not newer changes nothing.
    pub(crate) fn publish(&self, topology: &Topology) {
        if let Some(others) = &self.others {
            let mut known = others.topology();
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

    /// Wakes whenever an owner has come or gone, here or elsewhere; `None` if they all are here for ever.
    pub(crate) fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.others.as_ref().map(|others| others.changes.subscribe())
    }

    /// Tells the owner of a partition what came of deliveries. Out: whether somebody was there to hear it.
    pub(crate) async fn report(&self, partition: PartitionId, reports: &[Report]) -> bool {
        match (self.place(partition), &self.others) {
            (Place::Here(handle), _) => {
                handle.report(reports.to_vec());
                true
            }
            (Place::There(broker), Some(others)) => {
                others.peers.report(&broker, partition, reports).await.is_ok()
            }
            _ => false,
        }
    }

    /// Somebody else has taken a partition: news that comes before the topology does.
    pub(crate) fn note(&self, partition: PartitionId, broker: BrokerId, epoch: Epoch) {
        if let Some(others) = &self.others {
            let mut topology = others.topology();
            let before = topology.owner(partition).cloned();
            topology.note(partition, broker, epoch);
            let is_news = topology.owner(partition) != before.as_ref();
            drop(topology);
            // Whoever waits for news would otherwise be woken by what it has just said itself.
            if is_news {
                self.changed();
            }
        }
    }

    pub(super) fn place(&self, partition: PartitionId) -> Place {
        if let Some(handle) = self.handle(partition) {
            return Place::Here(handle);
        }
        let Some(others) = &self.others else { return Place::Nowhere };
        match others.topology().owner(partition) {
            // It was ours until a moment ago.
            Some(owner) if owner.broker == others.me => Place::Nowhere,
            Some(owner) => Place::There(owner.broker.clone()),
            None => Place::Nowhere,
        }
    }

    /// How much there is in all of them, everywhere, of one namespace or of all.
    pub(crate) async fn gauges(
        &self,
        namespace: Option<&Namespace>,
    ) -> Result<Gauges, EngineError> {
        let mut gauges = self.gauges_here(namespace).await?;
        if let Some(others) = &self.others {
            let brokers = others.brokers();
            for broker in brokers {
                let told = others.peers.gauges(&broker, namespace).await;
                gauges = gauges.and(told.map_err(|_| EngineError::Stopped)?);
            }
        }
        Ok(gauges)
    }

    /// How much there is in those that are here.
    pub(crate) async fn gauges_here(
        &self,
        namespace: Option<&Namespace>,
    ) -> Result<Gauges, EngineError> {
        let mut gauges = Gauges::default();
        for (_, handle) in self.handles() {
            match handle.gauges(namespace.cloned()).await {
                Ok(told) => gauges = gauges.and(told),
                // One that has just gone elsewhere is counted there.
                Err(_) if self.others.is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gauges)
    }

    fn here(&self) -> std::sync::RwLockReadGuard<'_, Here> {
        self.here.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        if let Some(others) = &self.others {
            others.changes.send_modify(|count| *count += 1);
        }
    }
}

impl Others {
    fn topology(&self) -> MutexGuard<'_, Topology> {
        self.topology.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All others that hold something.
    fn brokers(&self) -> Vec<BrokerId> {
        let topology = self.topology();
        let owners = topology.owners().map(|(_, owner)| owner.broker.clone());
        let mut brokers: Vec<_> = owners.filter(|broker| *broker != self.me).collect();
        brokers.sort_unstable();
        brokers.dedup();
        brokers
    }
}
