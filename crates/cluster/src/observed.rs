//! What a member knows of the other brokers, from the answers to its heartbeats.
//!
//! Tells which brokers may own partitions, which ones they claim, and which ones are assigned to
//! them. A broker stays alive until its heartbeat expires, even if the store loses the heartbeat;
//! only a broker that announced to leave is removed at once.

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::{Assignment, BrokerId, PartitionId, Timestamp, Topology};
use punctual_store::Members;

use crate::assign::assign;
use crate::config::MemberConfig;
use crate::event::BrokerView;

/// What is known of the other brokers, and the assignment.
#[derive(Debug)]
pub(crate) struct ObservedCluster {
    /// When the last answer was requested; `None` before the first answer.
    pub(crate) read_at: Option<Timestamp>,
    /// The leader, if the last answer names one.
    pub(crate) leader: Option<BrokerId>,
    /// The partitions that the other brokers claim in their heartbeats.
    pub(crate) claims: Topology,
    /// The other brokers whose heartbeat has not expired; see [`ObservedCluster::is_willing`].
    pub(crate) others: BTreeMap<BrokerId, BrokerView>,
    /// The brokers in the last answer.
    listed: BTreeSet<BrokerId>,
    /// The last assignment that was proposed, as far as this broker knows.
    assignment: Option<Assignment>,
    /// Whether the store still has the assignment.
    is_stored: bool,
    /// An answer that was requested before this says nothing new about the assignment.
    assigned_at: Timestamp,
}

impl ObservedCluster {
    pub(crate) fn new(config: &MemberConfig) -> Self {
        Self {
            read_at: None,
            leader: None,
            claims: Topology::vacant(config.partitions),
            others: BTreeMap::new(),
            listed: BTreeSet::new(),
            assignment: None,
            is_stored: false,
            assigned_at: Timestamp::EPOCH,
        }
    }

    pub(crate) fn update(&mut self, members: Members, read_at: Timestamp, config: &MemberConfig) {
        self.read_at = Some(read_at);
        self.leader = members.leader.filter(|_| members.led).map(|lease| lease.broker);
        if read_at >= self.assigned_at {
            self.is_stored = members.assignment.is_some();
            // If the store has lost the assignment, the known one stays valid until the next
            // proposal.
            self.assignment = members.assignment.or_else(|| self.assignment.take());
        }
        self.listed = members.present.iter().map(|each| each.heartbeat.broker.clone()).collect();
        self.claims = Topology::vacant(config.partitions);
        self.others.retain(|_, view| !view.leaving && read_at.since(view.heard_at) < config.lease);
        for info in members.present {
            let heartbeat = info.heartbeat;
            if heartbeat.broker == config.me {
                continue;
            }
            for (partition, epoch) in heartbeat.holds {
                self.claims.note(partition, heartbeat.broker.clone(), epoch);
            }
            let age = u64::try_from(info.age.as_millis()).unwrap_or(u64::MAX);
            let view = BrokerView {
                broker: heartbeat.broker.clone(),
                heard_at: read_at.millis_before(age),
                leaving: heartbeat.leaving,
                ahead_ms: heartbeat.ahead_ms,
            };
            self.others.insert(heartbeat.broker, view);
        }
    }

    /// Records that the store has accepted our proposal.
    pub(crate) fn proposed(&mut self, assignment: Assignment, now: Timestamp) {
        (self.assignment, self.assigned_at, self.is_stored) = (Some(assignment), now, true);
    }

    /// Returns whether this assignment was proposed and the store still has it.
    pub(crate) fn is_stored(&self, assignment: &Assignment) -> bool {
        self.is_stored && self.assignment.as_ref() == Some(assignment)
    }

    /// Returns the broker that a partition is assigned to.
    pub(crate) fn assigned(&self, partition: PartitionId) -> Option<&BrokerId> {
        self.assignment.as_ref()?.owner(partition)
    }

    /// Returns whether another broker is alive and wants partitions.
    ///
    /// A broker that is missing from the last answer before its heartbeat expires counts as alive
    /// if the assignment names it: the store may have lost its heartbeat. If it has left, the next
    /// assignment does not name it.
    pub(crate) fn is_willing(&self, broker: &BrokerId) -> bool {
        let Some(view) = self.others.get(broker) else { return false };
        let assigned_to = || {
            let owners = self.assignment.as_ref().map(|assignment| &assignment.owners);
            owners.is_none_or(|owners| owners.iter().flatten().any(|owner| owner == broker))
        };
        !view.leaving && (self.listed.contains(broker) || assigned_to())
    }

    /// Returns whether another broker is in the last answer and wants partitions: only such a
    /// broker is handed a partition.
    pub(crate) fn is_present(&self, broker: &BrokerId) -> bool {
        self.listed.contains(broker) && self.is_willing(broker)
    }

    /// Returns whether it has also sent a heartbeat since an instant.
    pub(crate) fn is_present_since(&self, broker: &BrokerId, since: Timestamp) -> bool {
        let recent = self.others.get(broker).is_some_and(|view| view.heard_at >= since);
        recent && self.is_present(broker)
    }

    /// Returns whether any other broker could take a partition.
    pub(crate) fn has_successors(&self) -> bool {
        self.others.keys().any(|broker| self.is_willing(broker))
    }

    /// Computes the assignment that should be in force, with as few changes as possible.
    pub(crate) fn wanted(
        &self,
        config: &MemberConfig,
        ours: impl Fn(PartitionId) -> bool,
        willing: bool,
    ) -> Assignment {
        let brokers = self.others.keys().filter(|broker| self.is_willing(broker));
        let brokers: BTreeSet<_> = brokers.chain(willing.then_some(&config.me)).collect();
        let can = |broker: &BrokerId| brokers.contains(broker);
        let holder = |partition| match ours(partition) {
            true => Some(&config.me),
            false => self.claims.owner(partition).map(|owner| &owner.broker),
        };
        let before: Vec<_> = config
            .partitions
            .iter()
            .map(|partition| {
                let assigned_to = self.assigned(partition).filter(|broker| can(broker));
                assigned_to.or_else(|| holder(partition).filter(|broker| can(broker))).cloned()
            })
            .collect();
        assign(&before, brokers.into_iter().cloned())
    }

    /// Returns when the first broker that has been silent for long expires.
    pub(crate) fn next_expiry(
        &self,
        config: &MemberConfig,
        read_at: Timestamp,
    ) -> Option<Timestamp> {
        let silent = config.heartbeat_every() * 2;
        let silent = |view: &&BrokerView| read_at.since(view.heard_at) > silent;
        let expiry =
            |view: &BrokerView| view.heard_at.after(config.lease).after(crate::config::NEWS_GAP);
        self.others.values().filter(silent).map(expiry).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::{Heartbeat, Partitions};
    use punctual_store::MemberInfo;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn config() -> MemberConfig {
        MemberConfig {
            me: BrokerId::new("a:1"),
            partitions: Partitions::new(4).unwrap(),
            lease: Duration::from_secs(5),
            skew_max: Duration::from_millis(250),
        }
    }

    fn members(names: &[&str], assignment: Option<Assignment>) -> Members {
        let info = |name: &&str| MemberInfo {
            heartbeat: Heartbeat {
                broker: BrokerId::new(name),
                holds: Vec::new(),
                leaving: false,
                ahead_ms: None,
            },
            age: Duration::from_secs(1),
        };
        let present = names.iter().map(info).collect();
        Members { at: NOW, present, leader: None, led: false, assignment }
    }

    fn assigned_to(names: [&str; 4]) -> Assignment {
        Assignment { owners: names.map(|name| Some(BrokerId::new(name))).to_vec() }
    }

    #[test]
    fn a_heartbeat_that_the_store_loses_counts_until_it_expires() {
        let (config, plan) = (config(), assigned_to(["a:1", "b:1", "a:1", "b:1"]));
        let mut observed = ObservedCluster::new(&config);
        observed.update(members(&["a:1", "b:1"], Some(plan.clone())), NOW, &config);
        assert!(observed.is_stored(&plan));
        let later = |millis| NOW.after(Duration::from_millis(millis));
        observed.update(members(&["a:1"], None), later(3_999), &config);
        assert_eq!(observed.wanted(&config, |_| false, true), plan);
        assert!(!observed.is_stored(&plan), "the assignment is to be proposed again");
        observed.update(members(&["a:1"], None), later(4_000), &config);
        assert_eq!(observed.wanted(&config, |_| false, true), assigned_to(["a:1"; 4]));
    }

    #[test]
    fn a_broker_that_is_gone_and_has_no_assignment_gets_none() {
        let (config, plan) = (config(), assigned_to(["a:1"; 4]));
        let mut observed = ObservedCluster::new(&config);
        observed.update(members(&["a:1", "b:1"], Some(plan.clone())), NOW, &config);
        let both = observed.wanted(&config, |_| false, true);
        assert_ne!(both, plan, "the broker is alive and gets its share");
        observed.update(members(&["a:1"], Some(plan.clone())), NOW, &config);
        assert_eq!(observed.wanted(&config, |_| false, true), plan);
        assert!(!observed.has_successors());
    }

    #[test]
    fn an_answer_that_was_requested_before_our_proposal_does_not_replace_it() {
        let (config, plan) = (config(), assigned_to(["a:1"; 4]));
        let mut observed = ObservedCluster::new(&config);
        observed.proposed(plan.clone(), NOW);
        observed.update(members(&["a:1"], None), NOW.millis_before(1), &config);
        assert!(observed.is_stored(&plan));
        observed.update(members(&["a:1"], Some(assigned_to(["b:1"; 4]))), NOW, &config);
        assert!(!observed.is_stored(&plan), "a later answer does");
    }
}
