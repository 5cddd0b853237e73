//! Topology: who holds which partition at which epoch.
//!
//! In: what leases say. Out: the owner to ask about a partition. A value, replaced whole; never the truth
//! itself: a write goes by the epoch in the store, so an old topology costs a detour, not a task.
//! [`Heartbeat`] is what each broker says of itself, [`Assignment`] what the leader proposes.
//! Not here: computing a better one (`assign`, in `cluster`).

use crate::{BrokerId, Epoch, PartitionId, Partitions};

/// Who holds what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Who holds the leader seat, if anybody is known to.
    pub leader: Option<BrokerId>,
    /// One entry per partition.
    owners: Vec<Option<PartitionOwner>>,
}

/// The holder of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionOwner {
    /// Whom to ask.
    pub broker: BrokerId,
    /// Since which epoch.
    pub epoch: Epoch,
}

impl Topology {
    /// Nobody holds anything yet.
    #[must_use]
    pub fn vacant(partitions: Partitions) -> Self {
        Self { leader: None, owners: vec![None; usize::from(partitions.count())] }
    }

    /// Who holds a partition.
    #[must_use]
    pub fn owner(&self, partition: PartitionId) -> Option<&PartitionOwner> {
        self.owners.get(usize::from(partition.get()))?.as_ref()
    }

    /// All partitions that somebody holds.
    pub fn owners(&self) -> impl Iterator<Item = (PartitionId, &PartitionOwner)> {
        let numbered = self.owners.iter().zip(0u16..);
        numbered.filter_map(|(owner, number)| Some((PartitionId::new(number)?, owner.as_ref()?)))
    }

    /// How many nobody holds.
    #[must_use]
    pub fn vacant_count(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// Notes a holder. An older epoch than the one known changes nothing: news may overtake each other.
    pub fn note(&mut self, partition: PartitionId, broker: BrokerId, epoch: Epoch) {
        let Some(entry) = self.owners.get_mut(usize::from(partition.get())) else {
            return;
        };
        if entry.as_ref().is_none_or(|known| known.epoch <= epoch) {
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

/// What a broker says of itself with every heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who.
    pub broker: BrokerId,
    /// What it holds, and at which epochs.
    pub holds: Vec<(PartitionId, Epoch)>,
    /// Whether it wants none of the partitions: it drains, or does not trust its clock.
    pub leaving: bool,
    /// How far its clock is ahead of the store's, in milliseconds, as it saw it last; negative if behind.
    pub ahead_ms: Option<i64>,
}

/// Who should hold what, as the leader proposes it. A proposal: the lease of each partition disposes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// By partition; `None` where there is nobody to hold it.
    pub owners: Vec<Option<BrokerId>>,
}

impl Assignment {
    /// Who should hold a partition.
    #[must_use]
    pub fn owner(&self, partition: PartitionId) -> Option<&BrokerId> {
        self.owners.get(usize::from(partition.get()))?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_news_of_an_older_epoch_change_nothing() {
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
