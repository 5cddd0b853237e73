//! The member: the part of a broker in the cluster, as a plain value.
//!
//! It receives [`MemberEvent`]s and the time, and returns [`MemberAction`]s. This file decides
//! which partitions the broker wants, from what it knows (`observed`, `skew`). `partition_lease`
//! and `leader_lease` drive single leases, and `heartbeat` decides when heartbeats are sent.
//!
//! A lease is requested only if the partition is assigned to this broker and no member claims it,
//! or if another broker has released it for this one. After `act(now)` nothing is left to do at
//! `now`.

use std::sync::Arc;

use punctual_core::{Assignment, BrokerId, Epoch, Heartbeat, PartitionId, Seat, Timestamp};
use punctual_store::{Members, StoreError};

use crate::config::MemberConfig;
use crate::event::{BrokerView, ClusterView, Directive, MemberAction, MemberEvent};
use crate::heartbeat::HeartbeatTimer;
use crate::leader_lease::LeaderLease;
use crate::observed::ObservedCluster;
use crate::partition_lease::{FailedHandOver, PartitionLease};
use crate::skew::{ClockSkew, ClockVote};

/// The part of one broker in the cluster.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    heartbeat: HeartbeatTimer,
    observed: ObservedCluster,
    /// The assignment that should be in force, as far as this broker knows.
    wanted: Assignment,
    /// No proposal is made before this instant, so that brokers that start or return at the same
    /// time can send their heartbeats first.
    settled_at: Option<Timestamp>,
    leader: LeaderLease,
    /// Indexed by partition.
    leases: Vec<PartitionLease>,
    skew: ClockSkew,
    /// Since when the clock is skewed.
    skewed_since: Option<Timestamp>,
    leaving: Option<LeaveProgress>,
    directives: Vec<Directive>,
    /// The view must be published.
    changed: bool,
    /// When `act` was last called. What was not done then waits for an event and not for the time.
    acted_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeavePhase {
    /// Hands partitions over.
    Partitions,
    /// Removes itself from the members, then releases the lease of the leader.
    Deregistering,
    /// Has left.
    Gone,
}

#[derive(Debug, Clone, Copy)]
struct LeaveProgress {
    since: Timestamp,
    phase: LeavePhase,
    deregistered: bool,
}

impl Member {
    /// Creates the member of a broker that has just started.
    #[must_use]
    pub fn new(config: MemberConfig, now: Timestamp) -> Self {
        Self {
            heartbeat: HeartbeatTimer::new(now),
            observed: ObservedCluster::new(&config),
            wanted: Assignment::default(),
            settled_at: None,
            leader: LeaderLease::default(),
            leases: config.partitions.iter().map(PartitionLease::new).collect(),
            skew: ClockSkew::new(config.skew_max),
            skewed_since: None,
            leaving: None,
            directives: Vec::new(),
            changed: false,
            acted_at: Timestamp::EPOCH,
            config,
        }
    }

    /// Handles an event.
    pub fn on(&mut self, event: MemberEvent, now: Timestamp) {
        let willing = self.is_willing();
        let config = &self.config;
        let directive = match event {
            MemberEvent::HeartbeatAnswered(answer) => return self.on_members(answer, now),
            MemberEvent::Acquired(Seat::Leader, answer) => {
                self.leader.acquired(answer, config);
                self.changed = true;
                return;
            }
            MemberEvent::Renewed(Seat::Leader, answer) => {
                self.leader.renewed(answer, config, now);
                self.changed |= !self.leader.is_ours();
                return;
            }
            MemberEvent::Released(Seat::Leader, _) => return self.leader.released(),
            MemberEvent::Proposed(answer) => {
                if let Some(assignment) = self.leader.answered(answer) {
                    self.observed.proposed(assignment, now);
                }
                return;
            }
            MemberEvent::Deregistered(_) => {
                if let Some(leaving) = &mut self.leaving {
                    leaving.deregistered = true;
                }
                return;
            }
            MemberEvent::Leave => return self.leave(now),
            MemberEvent::Acquired(Seat::Partition(partition), answer) => {
                let Some(lease) = lease_of(&mut self.leases, partition) else { return };
                lease.acquired(answer, willing, config, now)
            }
            MemberEvent::Renewed(Seat::Partition(partition), answer) => {
                let Some(lease) = lease_of(&mut self.leases, partition) else { return };
                lease.renewed(answer, config, now)
            }
            MemberEvent::Released(Seat::Partition(partition), answer) => {
                let Some(lease) = lease_of(&mut self.leases, partition) else { return };
                lease.released(answer, config, now)
            }
            MemberEvent::Offered { partition } => {
                let Some(lease) = lease_of(&mut self.leases, partition) else { return };
                lease.offered(now);
                None
            }
            MemberEvent::Quiet { partition, epoch } => {
                let Some(lease) = lease_of_epoch(&mut self.leases, partition, epoch) else {
                    return;
                };
                lease.quiet(now);
                None
            }
            MemberEvent::HandedOver { partition, epoch } => {
                let Some(lease) = lease_of_epoch(&mut self.leases, partition, epoch) else {
                    return;
                };
                lease.handed_over(now);
                self.announce();
                None
            }
            MemberEvent::HandOverFailed { partition, epoch } => {
                let Some(lease) = lease_of_epoch(&mut self.leases, partition, epoch) else {
                    return;
                };
                lease.hand_over_failed(now);
                self.announce();
                None
            }
            MemberEvent::Ended { partition, epoch } => {
                let Some(lease) = lease_of_epoch(&mut self.leases, partition, epoch) else {
                    return;
                };
                lease.ended(config, now);
                self.announce();
                None
            }
        };
        if let Some(directive) = directive {
            self.push_directive(directive);
        }
    }

    /// Returns what is to be done. Every returned action counts as in flight from now on.
    pub fn act(&mut self, now: Timestamp) -> Vec<MemberAction> {
        let mut actions = Vec::new();
        self.acted_at = now;
        if self.leaving.is_some_and(|leaving| leaving.phase == LeavePhase::Gone) {
            return actions;
        }
        self.act_on_leader_lease(now, &mut actions);
        self.act_on_leases(now, &mut actions);
        self.act_on_leaving(now, &mut actions);
        if !self.is_deregistered() && self.heartbeat.due_at().is_some_and(|due_at| due_at <= now) {
            self.heartbeat.sent(now);
            actions.push(MemberAction::Heartbeat(self.heartbeat_now()));
        }
        if std::mem::take(&mut self.changed) {
            self.directives.push(Directive::Publish(Arc::new(self.view(now))));
        }
        actions.extend(self.directives.drain(..).map(MemberAction::Directive));
        if self.is_done(now) {
            if let Some(leaving) = &mut self.leaving {
                leaving.phase = LeavePhase::Gone;
            }
            actions.push(MemberAction::Directive(Directive::Left));
        }
        actions
    }

    /// Returns when to call `act` again if no event arrives before.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Timestamp> {
        if self.leaving.is_some_and(|leaving| leaving.phase == LeavePhase::Gone) {
            return None;
        }
        let heartbeat = self.heartbeat.due_at().filter(|_| !self.is_deregistered());
        let leases = self.leases.iter().flat_map(|lease| {
            let tried = lease.try_at().filter(|at| *at > self.acted_at);
            let tried = tried.filter(|at| self.is_due(lease, *at));
            [lease.wakes_at(&self.config), tried]
        });
        let others = [
            heartbeat,
            self.leader.renew_at().filter(|_| !self.is_deregistered()),
            self.settled_at.filter(|at| self.proposes(*at)),
            self.wait_ends_at().filter(|_| self.holds_any()),
            self.leaving.map(|leaving| leaving.since.after(self.config.lease * 2)),
        ];
        leases.chain(others).flatten().min()
    }

    fn on_members(&mut self, answer: Result<Members, StoreError>, now: Timestamp) {
        let members = match answer {
            Ok(members) => members,
            Err(error) => {
                tracing::warn!(%error, "heartbeat failed");
                return self.heartbeat.failed(&self.config, now);
            }
        };
        let every = self.config.heartbeat_every();
        let Some(read_at) = self.heartbeat.answered() else { return };
        let gap = |last| read_at.since(last) > self.config.lease / 2;
        if self.observed.read_at.is_none_or(gap) {
            self.settled_at = Some(now.after(every));
        }
        let at = members.at;
        self.observed.update(members, read_at, &self.config);
        let vote = |seen: &BrokerView| {
            let ahead_ms = seen.ahead_ms?;
            Some(ClockVote { ahead_ms, willing: self.observed.is_willing(&seen.broker) })
        };
        let votes: Vec<_> = self.observed.others.values().filter_map(vote).collect();
        if let Some(verdict) = self.skew.measure(read_at, now, at, &votes) {
            self.skewed_since = verdict.map(|_| now);
            self.directives.push(Directive::Skew(verdict));
            self.announce();
        }
        self.update_wanted();
        self.changed = true;
        let pause = if self.is_moving() { self.config.pause() } else { every };
        let expiry = self.observed.next_expiry(&self.config, read_at).unwrap_or(Timestamp::MAX);
        self.heartbeat
            .next_at(read_at.after(pause).min(expiry).max(now.after(crate::config::NEWS_GAP)));
    }

    fn leave(&mut self, now: Timestamp) {
        if self.leaving.is_none() {
            self.leaving = Some(LeaveProgress {
                since: now,
                phase: LeavePhase::Partitions,
                deregistered: false,
            });
            self.leader.may_propose_again();
            self.update_wanted();
            self.announce();
        }
    }

    fn update_wanted(&mut self) {
        let ours = |partition: PartitionId| {
            let lease = self.leases.get(usize::from(partition.get()));
            lease.is_some_and(|lease| lease.lease().is_some())
        };
        self.wanted = self.observed.wanted(&self.config, ours, self.is_willing());
    }

    /// Returns whether this broker wants partitions.
    fn is_willing(&self) -> bool {
        self.leaving.is_none() && !self.skew.is_skewed()
    }

    /// Returns whether the assignment is about to change, or does not match the owners yet.
    fn is_moving(&self) -> bool {
        let held = |partition: PartitionId, broker: &BrokerId| match *broker == self.config.me {
            true => self.owned_since(partition).is_some(),
            false => {
                let owner = self.observed.claims.owner(partition);
                owner.is_some_and(|owner| owner.broker == *broker)
            }
        };
        let misplaced = |partition| {
            self.observed.assigned(partition).is_some_and(|broker| !held(partition, broker))
        };
        self.observed.leader.is_none()
            || !self.observed.is_stored(&self.wanted)
            || self.config.partitions.iter().any(misplaced)
    }

    /// Returns whether a proposal is due at an instant, based on the last answer.
    fn proposes(&self, at: Timestamp) -> bool {
        let Some(read_at) = self.observed.read_at else { return false };
        let settled = self.settled_at.is_some_and(|settled_at| settled_at <= at);
        (settled || self.leaving.is_some())
            && !self.is_deregistered()
            && !self.observed.is_stored(&self.wanted)
            && self.leader.may_propose(read_at)
    }

    fn act_on_leader_lease(&mut self, now: Timestamp, actions: &mut Vec<MemberAction>) {
        if self.is_deregistered() {
            return;
        }
        actions.extend(self.leader.renew(now));
        let Some(read_at) = self.observed.read_at else { return };
        if self.proposes(now) {
            actions.extend(self.leader.propose(read_at, self.wanted.clone()));
        }
        // If the store names this broker as leader, the lease is from before its restart, and it
        // may have it again at once.
        let free = self.observed.leader.as_ref().is_none_or(|leader| *leader == self.config.me);
        if free && self.leaving.is_none() {
            actions.extend(self.leader.acquire(read_at, now));
        }
    }

    fn act_on_leases(&mut self, now: Timestamp, actions: &mut Vec<MemberAction>) {
        for index in 0..self.leases.len() {
            self.act_on_failed_hand_over(index, now);
            let lease = &self.leases[index];
            if lease.try_at().is_some_and(|at| at <= now) && self.is_due(lease, now) {
                actions.extend(self.leases[index].acquire(now));
            } else if let Some(successor) = self.successor(index, now)
                && let Some(directive) = self.leases[index].hand_over(successor)
            {
                self.push_directive(directive);
            }
            let held = self.leases[index].lease().is_some();
            match self.leases[index].act(&self.config, now) {
                Some(MemberAction::Directive(directive)) => self.push_directive(directive),
                other => actions.extend(other),
            }
            if held != self.leases[index].lease().is_some() {
                self.announce();
            }
        }
    }

    /// Handles a partition whose successor could not be notified: notifies the broker that it is
    /// assigned to now, or takes it back. A successor that is alive and only unreachable for this
    /// broker takes the partition by itself.
    fn act_on_failed_hand_over(&mut self, index: usize, now: Timestamp) {
        let Some(FailedHandOver { successor, since, until }) =
            self.leases[index].failed_hand_over()
        else {
            return;
        };
        let fresh = self.observed.read_at.is_some_and(|read_at| read_at >= *since);
        let assigned = self.observed.assigned(self.leases[index].partition());
        let other = assigned
            .filter(|other| *other != successor && self.observed.is_present(other))
            .cloned();
        let present = self.observed.is_present_since(successor, *since);
        let gone = !self.observed.is_present(successor) && self.is_willing();
        match other {
            Some(other) if fresh => {
                let directive = self.leases[index].notify(other, &self.config, now);
                directive.into_iter().for_each(|directive| self.push_directive(directive));
                return;
            }
            _ if fresh && present => self.leases[index].give_up(now),
            _ if (fresh && gone) || *until <= now => self.leases[index].take_back(now),
            _ => return,
        }
        self.announce();
    }

    /// Returns whether the lease of a partition is to be requested.
    fn is_due(&self, lease: &PartitionLease, now: Timestamp) -> bool {
        if self.leaving.is_some() || !self.skew.is_clear() {
            return false;
        }
        let partition = lease.partition();
        // A broker that was suspended must first read what has changed.
        let fresh =
            self.observed.read_at.is_some_and(|read_at| now.since(read_at) < self.config.lease);
        let ours = self.observed.assigned(partition) == Some(&self.config.me);
        let free = self.observed.claims.owner(partition).is_none();
        lease.is_offered(&self.config, now) || (fresh && ours && free)
    }

    /// Returns the next owner of a partition that this broker owns, if it is to be handed over:
    /// `Some(None)` if this broker does not want it and no other is there to take it.
    fn successor(&self, index: usize, now: Timestamp) -> Option<Option<BrokerId>> {
        let lease = &self.leases[index];
        let since = lease.owned_since()?;
        let assigned = self.observed.assigned(lease.partition());
        // An answer that was requested before the partition became ours may have an older
        // assignment; and a successor that failed to take it must have sent a heartbeat since.
        if let Some(other) = assigned.filter(|other| **other != self.config.me)
            && self.observed.is_present_since(other, since)
        {
            return Some(Some(other.clone()));
        }
        if self.is_willing() {
            return None;
        }
        let waited = self.wait_ends_at().is_some_and(|at| at <= now);
        (waited || !self.observed.has_successors()).then_some(None)
    }

    /// Returns until when this broker waits for the leader to reassign the partitions that it does
    /// not want.
    fn wait_ends_at(&self) -> Option<Timestamp> {
        let leaving = self.leaving.map(|leaving| leaving.since);
        let since = leaving.into_iter().chain(self.skewed_since).min()?;
        Some(since.after(self.config.lease))
    }

    fn holds_any(&self) -> bool {
        self.leases.iter().any(|lease| lease.owned_since().is_some())
    }

    fn is_deregistered(&self) -> bool {
        self.leaving.is_some_and(|leaving| leaving.phase != LeavePhase::Partitions)
    }

    /// Leaves when all leases are released: deregisters first, and releases the lease of the leader
    /// afterwards, so that the next leader does not assign partitions to this broker.
    fn act_on_leaving(&mut self, now: Timestamp, actions: &mut Vec<MemberAction>) {
        let idle = !self.heartbeat.is_in_flight() && self.leader.is_idle();
        let empty = self.leases.iter().all(PartitionLease::is_vacant);
        let Some(leaving) = &mut self.leaving else { return };
        // A heartbeat in flight could add this broker to the members again.
        if leaving.phase == LeavePhase::Partitions && empty && idle {
            leaving.phase = LeavePhase::Deregistering;
            actions.push(MemberAction::Leave);
        }
        if leaving.phase == LeavePhase::Deregistering && leaving.deregistered {
            actions.extend(self.leader.release(now));
        }
    }

    fn is_done(&self, now: Timestamp) -> bool {
        self.leaving.is_some_and(|leaving| {
            let over = now >= leaving.since.after(self.config.lease * 2);
            let done = leaving.phase == LeavePhase::Deregistering
                && leaving.deregistered
                && self.leader.is_idle();
            leaving.phase != LeavePhase::Gone && (done || over)
        })
    }

    fn push_directive(&mut self, directive: Directive) {
        if !matches!(directive, Directive::Extend { .. }) {
            self.announce();
        }
        self.directives.push(directive);
    }

    /// Makes the next heartbeat and the next view announce a change.
    fn announce(&mut self) {
        self.heartbeat.announce();
        self.changed = true;
    }

    fn owned_since(&self, partition: PartitionId) -> Option<Timestamp> {
        self.leases.get(usize::from(partition.get()))?.owned_since()
    }

    fn heartbeat_now(&self) -> Heartbeat {
        let leases =
            self.leases.iter().filter_map(|lease| Some((lease.partition(), lease.lease()?.epoch)));
        Heartbeat {
            broker: self.config.me.clone(),
            holds: leases.collect(),
            leaving: !self.is_willing(),
            ahead_ms: self.skew.ahead_ms(),
        }
    }

    fn view(&self, now: Timestamp) -> ClusterView {
        let me = &self.config.me;
        let mut topology = self.observed.claims.clone();
        let leader = self.observed.leader.as_ref().filter(|leader| *leader != me);
        topology.leader = if self.leader.is_ours() { Some(me.clone()) } else { leader.cloned() };
        for of_partition in &self.leases {
            if let Some(lease) = of_partition.lease() {
                topology.note(of_partition.partition(), me.clone(), lease.epoch);
            }
        }
        let ours = BrokerView {
            broker: me.clone(),
            heard_at: self.observed.read_at.unwrap_or(now),
            leaving: !self.is_willing(),
            ahead_ms: self.skew.ahead_ms(),
        };
        let mut present: Vec<_> = self.observed.others.values().cloned().chain([ours]).collect();
        present.sort_by(|a, b| a.broker.cmp(&b.broker));
        ClusterView { topology, present }
    }
}

fn lease_of(leases: &mut [PartitionLease], partition: PartitionId) -> Option<&mut PartitionLease> {
    leases.get_mut(usize::from(partition.get()))
}

/// Returns a lease only if it has this epoch: events may arrive late.
fn lease_of_epoch(
    leases: &mut [PartitionLease],
    partition: PartitionId,
    epoch: Epoch,
) -> Option<&mut PartitionLease> {
    let lease = lease_of(leases, partition)?;
    let same = lease.lease().is_some_and(|lease| lease.epoch == epoch);
    same.then_some(lease)
}
