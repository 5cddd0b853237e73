//! Topology: which broker owns which partition, at which epoch.
//!
//! A [`Topology`] is a broker's view, which may be out of date. The store decides by epochs whether
//! a write is valid, so an old view costs a redirect and never a task. Brokers announce themselves
//! with a [`Heartbeat`]; the leader proposes an [`Assignment`], which `cluster` computes.

use crate::{BrokerId, Epoch, PartitionId, Partitions};

/// Which broker owns which partition, as far as one broker knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The broker that holds the lease of the leader; `None` if it is not known.
    pub leader: Option<BrokerId>,
    /// By partition.
    owners: Vec<Option<PartitionOwner>>,
}

/// The owner of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionOwner {
    /// The broker to forward commands to.
    pub broker: BrokerId,
    /// The epoch of its lease.
    pub epoch: Epoch,
}

impl Topology {
    /// A topology in which no partition has an owner.
    #[must_use]
    pub fn vacant(partitions: Partitions) -> Self {
        Self { leader: None, owners: vec![None; usize::from(partitions.count())] }
    }

    /// The owner of a partition.
    #[must_use]
    pub fn owner(&self, partition: PartitionId) -> Option<&PartitionOwner> {
        self.owners.get(usize::from(partition.get()))?.as_ref()
    }

    /// All partitions with an owner.
    pub fn owners(&self) -> impl Iterator<Item = (PartitionId, &PartitionOwner)> {
        let numbered = self.owners.iter().zip(0u16..);
        numbered.filter_map(|(owner, number)| Some((PartitionId::new(number)?, owner.as_ref()?)))
    }

    /// How many partitions have no owner.
    #[must_use]
    pub fn vacant_count(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// Records the owner of a partition. An older epoch than the recorded one is ignored, because
    /// messages may arrive out of order.
    pub fn note(&mut self, partition: PartitionId, broker: BrokerId, epoch: Epoch) {
        let Some(entry) = self.owners.get_mut(usize::from(partition.get())) else {
            return;
        };
        if entry.as_ref().is_none_or(|recorded| recorded.epoch <= epoch) {
            *entry = Some(PartitionOwner { broker, epoch });
        }
    }

    /// The partitions of one broker.
    pub fn partitions_of(&self, broker: &BrokerId) -> impl Iterator<Item = PartitionId> {
        self.owners.iter().zip(0u16..).filter_map(move |(owner, number)| {
            owner.as_ref().filter(|owner| owner.broker == *broker)?;
            PartitionId::new(number)
        })
    }
}

/// The sign of life that a broker writes to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The broker that writes it.
    pub broker: BrokerId,
    /// The partitions that it owns, with the epochs of their leases.
    pub holds: Vec<(PartitionId, Epoch)>,
    /// Whether it must not own partitions: it drains, or its clock is not reliable.
    pub leaving: bool,
    /// How far its clock was ahead of the store's at the last comparison, in milliseconds;
    /// negative if behind, `None` if not compared yet.
    pub ahead_ms: Option<i64>,
}

/// Which broker should own which partition, as the leader proposes it. A broker owns a partition
/// only when it holds its lease.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// By partition; `None` if no broker can own it.
    pub owners: Vec<Option<BrokerId>>,
}

impl Assignment {
    /// The broker that should own a partition.
    #[must_use]
    pub fn owner(&self, partition: PartitionId) -> Option<&BrokerId> {
        self.owners.get(usize::from(partition.get()))?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_of_an_older_epoch_is_ignored() {
        let mut topology = Topology::vacant(Partitions::new(2).unwrap());
        let (a, b) = (BrokerId::new("a:1"), BrokerId::new("b:1"));
        let epoch = |n| Epoch::new(n).unwrap();
        topology.note(PartitionId::FIRST, b.clone(), epoch(2));
        topology.note(PartitionId::FIRST, a.clone(), epoch(1));
        assert_eq!(topology.owner(PartitionId::FIRST).unwrap().broker, b);
        topology.note(PartitionId::FIRST, a.clone(), epoch(3));
        assert_eq!(topology.partitions_of(&a).collect::<Vec<_>>(), [PartitionId::FIRST]);
        assert_eq!(topology.partitions_of(&b).count(), 0);
        assert_eq!(topology.owner(PartitionId::new(1).unwrap()), None);
    }
}
