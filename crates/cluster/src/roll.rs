//! What is known of the others, from rolls.
//!
//! In: one roll after the other, as the store answers heartbeats. Out: who may hold partitions, who says that it
//! holds which, and who should. Invariant: a broker that said it is there stays for as long as its heartbeat lasts, also when
//! the store forgets it; only one that was leaving is gone at once.

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::{Assignment, BrokerId, PartitionId, Timestamp, Topology};
use punctual_store::Members;

use crate::assign::assign;
use crate::event::BrokerView;
use crate::terms::MemberConfig;

/// What is known of all brokers but this one, and what was proposed.
#[derive(Debug)]
pub(crate) struct Known {
    /// When the last roll was asked for; `None` before the first.
    pub(crate) asked_at: Option<Timestamp>,
    /// Who leads, if the last roll had anybody.
    pub(crate) leader: Option<BrokerId>,
    /// What the others say that they hold.
    pub(crate) claims: Topology,
    /// The others that are there, or should be: see [`Known::is_willing`].
    pub(crate) others: BTreeMap<BrokerId, BrokerView>,
    /// Those that the last roll had.
    listed: BTreeSet<BrokerId>,
    /// What was proposed last, as far as we know.
    assignment: Option<Assignment>,
    /// Whether the store still has it.
    stands: bool,
    /// A roll that was asked for before this says nothing new of the assignment.
    assigned_at: Timestamp,
}

impl Known {
    pub(crate) fn new(terms: &MemberConfig) -> Self {
        Self {
            asked_at: None,
            leader: None,
            claims: Topology::vacant(terms.partitions),
            others: BTreeMap::new(),
            listed: BTreeSet::new(),
            assignment: None,
            stands: false,
            assigned_at: Timestamp::EPOCH,
        }
    }

    pub(crate) fn take_in(&mut self, roll: Members, asked_at: Timestamp, terms: &MemberConfig) {
        self.asked_at = Some(asked_at);
        self.leader = roll.leader.filter(|_| roll.led).map(|lease| lease.broker);
        if asked_at >= self.assigned_at {
            self.stands = roll.assignment.is_some();
            // A store that has lost it does not take it back: what was proposed counts until something else is.
            self.assignment = roll.assignment.or_else(|| self.assignment.take());
        }
        self.listed = roll.present.iter().map(|each| each.presence.broker.clone()).collect();
        self.claims = Topology::vacant(terms.partitions);
        self.others.retain(|_, seen| !seen.leaving && asked_at.since(seen.heard_at) < terms.lease);
        for attendance in roll.present {
            let presence = attendance.presence;
            if presence.broker == terms.me {
                continue;
            }
            for (partition, epoch) in presence.holds {
                self.claims.note(partition, presence.broker.clone(), epoch);
            }
            let age = u64::try_from(attendance.age.as_millis()).unwrap_or(u64::MAX);
            let seen = BrokerView {
                broker: presence.broker.clone(),
                heard_at: asked_at.millis_before(age),
                leaving: presence.leaving,
                ahead_ms: presence.ahead_ms,
            };
            self.others.insert(presence.broker, seen);
        }
    }

    /// Our own proposal was taken.
    pub(crate) fn proposed(&mut self, assignment: Assignment, now: Timestamp) {
        (self.assignment, self.assigned_at, self.stands) = (Some(assignment), now, true);
    }

    /// Whether this is what was proposed, and the store has it.
    pub(crate) fn stands(&self, assignment: &Assignment) -> bool {
        self.stands && self.assignment.as_ref() == Some(assignment)
    }

    /// Who should hold a partition.
    pub(crate) fn assigned(&self, partition: PartitionId) -> Option<&BrokerId> {
        self.assignment.as_ref()?.owner(partition)
    }

    /// Whether another broker is there and wants partitions.
    ///
    /// One that is off the roll before its time, because the store forgot it, keeps what it was to have. It may also have left
    /// since the last roll; then the assignment no longer has it.
    pub(crate) fn is_willing(&self, broker: &BrokerId) -> bool {
        let Some(seen) = self.others.get(broker) else { return false };
        let planned = || {
            let owners = self.assignment.as_ref().map(|assignment| &assignment.owners);
            owners.is_none_or(|owners| owners.iter().flatten().any(|owner| owner == broker))
        };
        !seen.leaving && (self.listed.contains(broker) || planned())
    }

    /// Whether another broker is there for certain, and wants partitions: only such a one is handed anything.
    pub(crate) fn is_there(&self, broker: &BrokerId) -> bool {
        self.listed.contains(broker) && self.is_willing(broker)
    }

    /// Whether it has said so since then.
    pub(crate) fn is_there_since(&self, broker: &BrokerId, since: Timestamp) -> bool {
        let heard = self.others.get(broker).is_some_and(|seen| seen.heard_at >= since);
        heard && self.is_there(broker)
    }

    /// Whether any other broker could take what we hold.
    pub(crate) fn has_heirs(&self) -> bool {
        self.others.keys().any(|broker| self.is_willing(broker))
    }

    /// What the assignment should be: as it is, as far as it can be.
    pub(crate) fn wanted(
        &self,
        terms: &MemberConfig,
        ours: impl Fn(PartitionId) -> bool,
        willing: bool,
    ) -> Assignment {
        let brokers = self.others.keys().filter(|broker| self.is_willing(broker));
        let brokers: BTreeSet<_> = brokers.chain(willing.then_some(&terms.me)).collect();
        let can = |broker: &BrokerId| brokers.contains(broker);
        let holder = |partition| match ours(partition) {
            true => Some(&terms.me),
            false => self.claims.owner(partition).map(|owner| &owner.broker),
        };
        let before: Vec<_> = terms
            .partitions
            .iter()
            .map(|partition| {
                let planned = self.assigned(partition).filter(|broker| can(broker));
                planned.or_else(|| holder(partition).filter(|broker| can(broker))).cloned()
            })
            .collect();
        assign(&before, brokers.into_iter().cloned())
    }

    /// The first moment at which a broker that was silent for long is off the roll.
    pub(crate) fn next_off(&self, terms: &MemberConfig, asked_at: Timestamp) -> Option<Timestamp> {
        let silent = terms.heartbeat_every() * 2;
        let silent = |seen: &&BrokerView| asked_at.since(seen.heard_at) > silent;
        let off =
            |seen: &BrokerView| seen.heard_at.after(terms.lease).after(crate::terms::NEWS_GAP);
        self.others.values().filter(silent).map(off).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::{Heartbeat, Partitions};
    use punctual_store::MemberInfo;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn terms() -> MemberConfig {
        MemberConfig {
            me: BrokerId::new("a:1"),
            partitions: Partitions::new(4).unwrap(),
            lease: Duration::from_secs(5),
            skew_max: Duration::from_millis(250),
        }
    }

    fn roll(names: &[&str], assignment: Option<Assignment>) -> Members {
        let attendance = |name: &&str| MemberInfo {
            presence: Heartbeat {
                broker: BrokerId::new(name),
                holds: Vec::new(),
                leaving: false,
                ahead_ms: None,
            },
            age: Duration::from_secs(1),
        };
        let present = names.iter().map(attendance).collect();
        Members { at: NOW, present, leader: None, led: false, assignment }
    }

    fn planned(names: [&str; 4]) -> Assignment {
        Assignment { owners: names.map(|name| Some(BrokerId::new(name))).to_vec() }
    }

    #[test]
    fn what_a_store_forgets_is_kept_for_as_long_as_it_was_said_for() {
        let (terms, plan) = (terms(), planned(["a:1", "b:1", "a:1", "b:1"]));
        let mut known = Known::new(&terms);
        known.take_in(roll(&["a:1", "b:1"], Some(plan.clone())), NOW, &terms);
        assert!(known.stands(&plan));
        let later = |millis| NOW.after(Duration::from_millis(millis));
        known.take_in(roll(&["a:1"], None), later(3_999), &terms);
        assert_eq!(known.wanted(&terms, |_| false, true), plan);
        assert!(!known.stands(&plan), "so it is proposed again");
        known.take_in(roll(&["a:1"], None), later(4_000), &terms);
        assert_eq!(known.wanted(&terms, |_| false, true), planned(["a:1"; 4]));
    }

    #[test]
    fn one_that_is_gone_and_was_to_have_nothing_gets_nothing() {
        let (terms, plan) = (terms(), planned(["a:1"; 4]));
        let mut known = Known::new(&terms);
        known.take_in(roll(&["a:1", "b:1"], Some(plan.clone())), NOW, &terms);
        let both = known.wanted(&terms, |_| false, true);
        assert_ne!(both, plan, "it is there and gets its share");
        known.take_in(roll(&["a:1"], Some(plan.clone())), NOW, &terms);
        assert_eq!(known.wanted(&terms, |_| false, true), plan);
        assert!(!known.has_heirs());
    }

    #[test]
    fn a_roll_that_was_asked_for_before_our_proposal_does_not_undo_it() {
        let (terms, plan) = (terms(), planned(["a:1"; 4]));
        let mut known = Known::new(&terms);
        known.proposed(plan.clone(), NOW);
        known.take_in(roll(&["a:1"], None), NOW.millis_before(1), &terms);
        assert!(known.stands(&plan));
        known.take_in(roll(&["a:1"], Some(planned(["b:1"; 4]))), NOW, &terms);
        assert!(!known.stands(&plan), "a later one does");
    }
}
