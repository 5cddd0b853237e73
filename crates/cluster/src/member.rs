//! The member: a broker's part in the cluster, as a value.
//!
//! In: [`MemberEvent`]s and the time. Out: [`MemberAction`]s. It decides what is wanted, with what it knows (`roll`, `skew`); how a
//! single lease lives is next door (`hold`, `lead`), when to say that we are there too (`heart`).
//!
//! Invariants: a partition is asked for only if it is assigned to us and nobody on the roll says that it has it, or if another
//! broker let go of it for us. After `act(now)` nothing is left to do at `now`.

use std::sync::Arc;

use punctual_core::{Assignment, BrokerId, Epoch, Heartbeat, PartitionId, Seat, Timestamp};
use punctual_store::{Members, StoreError};

use crate::event::{BrokerView, ClusterView, Directive, MemberAction, MemberEvent};
use crate::heart::Heart;
use crate::hold::{Holding, Untold};
use crate::lead::Lead;
use crate::roll::Known;
use crate::skew::{Skew, Vote};
use crate::terms::MemberConfig;

/// A broker's part in the cluster.
#[derive(Debug)]
pub struct Member {
    terms: MemberConfig,
    heart: Heart,
    known: Known,
    /// What the assignment should be, by what is known.
    wanted: Assignment,
    /// Before this we do not propose: others that start, or come back, with us are given time to say that they are there.
    settled_at: Option<Timestamp>,
    lead: Lead,
    /// By partition.
    holdings: Vec<Holding>,
    skew: Skew,
    /// Since when we do not go by our clock.
    off_since: Option<Timestamp>,
    leaving: Option<Leaving>,
    orders: Vec<Directive>,
    /// The view has changed.
    changed: bool,
    /// What was not done then waits for an event, not for the time.
    acted_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Giving partitions back.
    Partitions,
    /// Off the roll, and then the seat given back.
    Members,
    /// All is said.
    Gone,
}

#[derive(Debug, Clone, Copy)]
struct Leaving {
    since: Timestamp,
    stage: Stage,
    struck: bool,
}

impl Member {
    /// A broker that has just started.
    #[must_use]
    pub fn new(terms: MemberConfig, now: Timestamp) -> Self {
        Self {
            heart: Heart::new(now),
            known: Known::new(&terms),
            wanted: Assignment::default(),
            settled_at: None,
            lead: Lead::default(),
            holdings: terms.partitions.iter().map(Holding::new).collect(),
            skew: Skew::new(terms.skew_max),
            off_since: None,
            leaving: None,
            orders: Vec::new(),
            changed: false,
            acted_at: Timestamp::EPOCH,
            terms,
        }
    }

    /// Takes in what has happened.
    pub fn on(&mut self, event: MemberEvent, now: Timestamp) {
        let willing = self.is_willing();
        let terms = &self.terms;
        let order = match event {
            MemberEvent::Heard(answer) => return self.heard(answer, now),
            MemberEvent::Acquired(Seat::Leader, answer) => {
                self.lead.acquired(answer, terms);
                self.changed = true;
                return;
            }
            MemberEvent::Renewed(Seat::Leader, answer) => {
                self.lead.renewed(answer, terms, now);
                self.changed |= !self.lead.is_ours();
                return;
            }
            MemberEvent::Released(Seat::Leader, _) => return self.lead.released(),
            MemberEvent::Proposed(answer) => {
                if let Some(assignment) = self.lead.answered(answer) {
                    self.known.proposed(assignment, now);
                }
                return;
            }
            MemberEvent::Deregistered(_) => {
                if let Some(leaving) = &mut self.leaving {
                    leaving.struck = true;
                }
                return;
            }
            MemberEvent::Leave => return self.leave(now),
            MemberEvent::Acquired(Seat::Partition(partition), answer) => {
                let Some(holding) = holding(&mut self.holdings, partition) else { return };
                holding.acquired(answer, willing, terms, now)
            }
            MemberEvent::Renewed(Seat::Partition(partition), answer) => {
                let Some(holding) = holding(&mut self.holdings, partition) else { return };
                holding.renewed(answer, terms, now)
            }
            MemberEvent::Released(Seat::Partition(partition), answer) => {
                let Some(holding) = holding(&mut self.holdings, partition) else { return };
                holding.released(answer, terms, now)
            }
            MemberEvent::Offered { partition } => {
                let Some(holding) = holding(&mut self.holdings, partition) else { return };
                holding.offered(now);
                None
            }
            MemberEvent::Quiet { partition, epoch } => {
                let Some(holding) = of_epoch(&mut self.holdings, partition, epoch) else { return };
                holding.quiet(now);
                None
            }
            MemberEvent::HandedOver { partition, epoch } => {
                let Some(holding) = of_epoch(&mut self.holdings, partition, epoch) else { return };
                holding.handed_over(now);
                self.tell();
                None
            }
            MemberEvent::HandOverFailed { partition, epoch } => {
                let Some(holding) = of_epoch(&mut self.holdings, partition, epoch) else { return };
                holding.not_told(now);
                self.tell();
                None
            }
            MemberEvent::Ended { partition, epoch } => {
                let Some(holding) = of_epoch(&mut self.holdings, partition, epoch) else { return };
                holding.ended(terms, now);
                self.tell();
                None
            }
        };
        if let Some(order) = order {
            self.order(order);
        }
    }

    /// What is to be done. Everything that it gives out is taken to be under way from here on.
    pub fn act(&mut self, now: Timestamp) -> Vec<MemberAction> {
        let mut actions = Vec::new();
        self.acted_at = now;
        if self.leaving.is_some_and(|leaving| leaving.stage == Stage::Gone) {
            return actions;
        }
        self.act_on_lead(now, &mut actions);
        self.act_on_holdings(now, &mut actions);
        self.act_on_leaving(now, &mut actions);
        if !self.is_off_the_roll() && self.heart.due_at().is_some_and(|due_at| due_at <= now) {
            self.heart.asked(now);
            actions.push(MemberAction::Heartbeat(self.presence()));
        }
        if std::mem::take(&mut self.changed) {
            self.orders.push(Directive::Publish(Arc::new(self.view(now))));
        }
        actions.extend(self.orders.drain(..).map(MemberAction::Directive));
        if self.is_done(now) {
            if let Some(leaving) = &mut self.leaving {
                leaving.stage = Stage::Gone;
            }
            actions.push(MemberAction::Directive(Directive::Left));
        }
        actions
    }

    /// When to act again, if nothing happens before.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Timestamp> {
        if self.leaving.is_some_and(|leaving| leaving.stage == Stage::Gone) {
            return None;
        }
        let heart = self.heart.due_at().filter(|_| !self.is_off_the_roll());
        let holdings = self.holdings.iter().flat_map(|holding| {
            let tried = holding.try_at().filter(|at| *at > self.acted_at);
            let tried = tried.filter(|at| self.is_due(holding, *at));
            [holding.wakes_at(&self.terms), tried]
        });
        let others = [
            heart,
            self.lead.renew_at().filter(|_| !self.is_off_the_roll()),
            self.settled_at.filter(|at| self.proposes(*at)),
            self.patience_ends_at().filter(|_| self.holds_any()),
            self.leaving.map(|leaving| leaving.since.after(self.terms.lease * 2)),
        ];
        holdings.chain(others).flatten().min()
    }

    fn heard(&mut self, answer: Result<Members, StoreError>, now: Timestamp) {
        let roll = match answer {
            Ok(roll) => roll,
            Err(error) => {
                tracing::warn!(%error, "heartbeat_failed");
                return self.heart.failed(&self.terms, now);
            }
        };
        let every = self.terms.heartbeat_every();
        let Some(asked_at) = self.heart.answered() else { return };
        let gap = |last| asked_at.since(last) > self.terms.lease / 2;
        if self.known.asked_at.is_none_or(gap) {
            self.settled_at = Some(now.after(every));
        }
        let at = roll.at;
        self.known.take_in(roll, asked_at, &self.terms);
        let vote = |seen: &BrokerView| {
            let ahead_ms = seen.ahead_ms?;
            Some(Vote { ahead_ms, willing: self.known.is_willing(&seen.broker) })
        };
        let votes: Vec<_> = self.known.others.values().filter_map(vote).collect();
        if let Some(verdict) = self.skew.measure(asked_at, now, at, &votes) {
            self.off_since = verdict.map(|_| now);
            self.orders.push(Directive::Skew(verdict));
            self.tell();
        }
        self.reconsider();
        self.changed = true;
        let pause = if self.is_moving() { self.terms.pause() } else { every };
        let off = self.known.next_off(&self.terms, asked_at).unwrap_or(Timestamp::MAX);
        self.heart.next_at(asked_at.after(pause).min(off).max(now.after(crate::terms::NEWS_GAP)));
    }

    fn leave(&mut self, now: Timestamp) {
        if self.leaving.is_none() {
            self.leaving = Some(Leaving { since: now, stage: Stage::Partitions, struck: false });
            self.lead.may_propose_again();
            self.reconsider();
            self.tell();
        }
    }

    fn reconsider(&mut self) {
        let ours = |partition: PartitionId| {
            let holding = self.holdings.get(usize::from(partition.get()));
            holding.is_some_and(|holding| holding.lease().is_some())
        };
        self.wanted = self.known.wanted(&self.terms, ours, self.is_willing());
    }

    /// Whether we want partitions.
    fn is_willing(&self) -> bool {
        self.leaving.is_none() && !self.skew.is_off()
    }

    /// Whether what stands is not what should be, or not what is.
    fn is_moving(&self) -> bool {
        let held = |partition: PartitionId, broker: &BrokerId| match *broker == self.terms.me {
            true => self.owned_since(partition).is_some(),
            false => {
                let owner = self.known.claims.owner(partition);
                owner.is_some_and(|owner| owner.broker == *broker)
            }
        };
        let astray = |partition| {
            self.known.assigned(partition).is_some_and(|broker| !held(partition, broker))
        };
        self.known.leader.is_none()
            || !self.known.stands(&self.wanted)
            || self.terms.partitions.iter().any(astray)
    }

    /// Whether there is something to propose at a time, on the ground of the last roll.
    fn proposes(&self, at: Timestamp) -> bool {
        let Some(roll) = self.known.asked_at else { return false };
        let settled = self.settled_at.is_some_and(|settled_at| settled_at <= at);
        (settled || self.leaving.is_some())
            && !self.is_off_the_roll()
            && !self.known.stands(&self.wanted)
            && self.lead.may_propose(roll)
    }

    fn act_on_lead(&mut self, now: Timestamp, actions: &mut Vec<MemberAction>) {
        if self.is_off_the_roll() {
            return;
        }
        actions.extend(self.lead.renew(now));
        let Some(roll) = self.known.asked_at else { return };
        if self.proposes(now) {
            actions.extend(self.lead.propose(roll, self.wanted.clone()));
        }
        // A seat that the store takes for ours is one of our life before: we may have it again at once.
        let free = self.known.leader.as_ref().is_none_or(|leader| *leader == self.terms.me);
        if free && self.leaving.is_none() {
            actions.extend(self.lead.acquire(roll, now));
        }
    }

    fn act_on_holdings(&mut self, now: Timestamp, actions: &mut Vec<MemberAction>) {
        for place in 0..self.holdings.len() {
            self.act_on_untold(place, now);
            let holding = &self.holdings[place];
            if holding.try_at().is_some_and(|at| at <= now) && self.is_due(holding, now) {
                actions.extend(self.holdings[place].acquire(now));
            } else if let Some(successor) = self.successor(place, now)
                && let Some(order) = self.holdings[place].hand_over(successor)
            {
                self.order(order);
            }
            let held = self.holdings[place].lease().is_some();
            match self.holdings[place].act(&self.terms, now) {
                Some(MemberAction::Directive(order)) => self.order(order),
                other => actions.extend(other),
            }
            if held != self.holdings[place].lease().is_some() {
                self.tell();
            }
        }
    }

    /// A partition whose successor could not be told goes to the one who is to have it instead, or stays ours. An successor that is there
    /// all the same, and only not for us, finds out by itself.
    fn act_on_untold(&mut self, place: usize, now: Timestamp) {
        let Some(Untold { successor, since, until }) = self.holdings[place].untold() else {
            return;
        };
        let fresh = self.known.asked_at.is_some_and(|asked_at| asked_at >= *since);
        let assigned = self.known.assigned(self.holdings[place].partition());
        let other =
            assigned.filter(|other| *other != successor && self.known.is_there(other)).cloned();
        let there = self.known.is_there_since(successor, *since);
        let gone = !self.known.is_there(successor) && self.is_willing();
        match other {
            Some(other) if fresh => {
                let order = self.holdings[place].tell(other, &self.terms, now);
                order.into_iter().for_each(|order| self.order(order));
                return;
            }
            _ if fresh && there => self.holdings[place].let_go(now),
            _ if (fresh && gone) || *until <= now => self.holdings[place].take_back(now),
            _ => return,
        }
        self.tell();
    }

    /// Whether a partition that is not ours is to be asked for.
    fn is_due(&self, holding: &Holding, now: Timestamp) -> bool {
        if self.leaving.is_some() || !self.skew.is_clear() {
            return false;
        }
        let partition = holding.partition();
        // Old news are for nobody's good: a broker that slept hears first what has become of the others.
        let fresh =
            self.known.asked_at.is_some_and(|asked_at| now.since(asked_at) < self.terms.lease);
        let ours = self.known.assigned(partition) == Some(&self.terms.me);
        let free = self.known.claims.owner(partition).is_none();
        holding.is_offered(&self.terms, now) || (fresh && ours && free)
    }

    /// Who is to have a partition that is ours, if anybody else is: `Some(None)` if nobody is there to have it, and we do not
    /// want it.
    fn successor(&self, place: usize, now: Timestamp) -> Option<Option<BrokerId>> {
        let holding = &self.holdings[place];
        let since = holding.owned_since()?;
        let assigned = self.known.assigned(holding.partition());
        // A roll that was asked for before it became ours may have the assignment before the one by which it did; and an successor from
        // which we took it back must have said since then that it is there.
        if let Some(other) = assigned.filter(|other| **other != self.terms.me)
            && self.known.is_there_since(other, since)
        {
            return Some(Some(other.clone()));
        }
        if self.is_willing() {
            return None;
        }
        let waited = self.patience_ends_at().is_some_and(|at| at <= now);
        (waited || !self.known.has_heirs()).then_some(None)
    }

    /// When we no longer wait for the leader to say who is to have what we do not want.
    fn patience_ends_at(&self) -> Option<Timestamp> {
        let leaving = self.leaving.map(|leaving| leaving.since);
        let since = leaving.into_iter().chain(self.off_since).min()?;
        Some(since.after(self.terms.lease))
    }

    fn holds_any(&self) -> bool {
        self.holdings.iter().any(|holding| holding.owned_since().is_some())
    }

    fn is_off_the_roll(&self) -> bool {
        self.leaving.is_some_and(|leaving| leaving.stage != Stage::Partitions)
    }

    /// When everything is given back, the roll and then the seat are: whoever leads next must not find us on the roll, or it
    /// plans with us.
    fn act_on_leaving(&mut self, now: Timestamp, actions: &mut Vec<MemberAction>) {
        let idle = !self.heart.is_under_way() && self.lead.is_idle();
        let empty = self.holdings.iter().all(Holding::is_vacant);
        let Some(leaving) = &mut self.leaving else { return };
        // A heartbeat under way could put us back on the roll.
        if leaving.stage == Stage::Partitions && empty && idle {
            leaving.stage = Stage::Members;
            actions.push(MemberAction::Leave);
        }
        if leaving.stage == Stage::Members && leaving.struck {
            actions.extend(self.lead.release(now));
        }
    }

    fn is_done(&self, now: Timestamp) -> bool {
        self.leaving.is_some_and(|leaving| {
            let over = now >= leaving.since.after(self.terms.lease * 2);
            let said = leaving.stage == Stage::Members && leaving.struck && self.lead.is_idle();
            leaving.stage != Stage::Gone && (said || over)
        })
    }

    fn order(&mut self, order: Directive) {
        if !matches!(order, Directive::Extend { .. }) {
            self.tell();
        }
        self.orders.push(order);
    }

    /// The others, and whoever asks us, should know.
    fn tell(&mut self) {
        self.heart.tell();
        self.changed = true;
    }

    fn owned_since(&self, partition: PartitionId) -> Option<Timestamp> {
        self.holdings.get(usize::from(partition.get()))?.owned_since()
    }

    fn presence(&self) -> Heartbeat {
        let leases = self
            .holdings
            .iter()
            .filter_map(|holding| Some((holding.partition(), holding.lease()?.epoch)));
        Heartbeat {
            broker: self.terms.me.clone(),
            holds: leases.collect(),
            leaving: !self.is_willing(),
            ahead_ms: self.skew.ahead_ms(),
        }
    }

    fn view(&self, now: Timestamp) -> ClusterView {
        let me = &self.terms.me;
        let mut topology = self.known.claims.clone();
        let leader = self.known.leader.as_ref().filter(|leader| *leader != me);
        topology.leader = if self.lead.is_ours() { Some(me.clone()) } else { leader.cloned() };
        for holding in &self.holdings {
            if let Some(lease) = holding.lease() {
                topology.note(holding.partition(), me.clone(), lease.epoch);
            }
        }
        let ours = BrokerView {
            broker: me.clone(),
            heard_at: self.known.asked_at.unwrap_or(now),
            leaving: !self.is_willing(),
            ahead_ms: self.skew.ahead_ms(),
        };
        let mut present: Vec<_> = self.known.others.values().cloned().chain([ours]).collect();
        present.sort_by(|a, b| a.broker.cmp(&b.broker));
        ClusterView { topology, present }
    }
}

fn holding(holdings: &mut [Holding], partition: PartitionId) -> Option<&mut Holding> {
    holdings.get_mut(usize::from(partition.get()))
}

/// Only if it is the same that is spoken of: words may come late.
fn of_epoch(
    holdings: &mut [Holding],
    partition: PartitionId,
    epoch: Epoch,
) -> Option<&mut Holding> {
    let holding = holding(holdings, partition)?;
    let same = holding.lease().is_some_and(|lease| lease.epoch == epoch);
    same.then_some(holding)
}
