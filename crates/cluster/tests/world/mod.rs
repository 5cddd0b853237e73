//! A small world: several members, one memory store, and time that is moved by hand.
//!
//! In: what happens to brokers and store. Out: who owns what. Questions take a millisecond to the store and one back; what the
//! broker has to do for an order takes some more. After every step the world checks that no partition has two owners that
//! may act, that epochs only grow, and that a member which has acted has nothing left to do at that moment.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use punctual_cluster::{ClusterView, Directive, Member, MemberAction, MemberConfig, MemberEvent};
use punctual_core::{BrokerId, Epoch, PartitionId, Partitions, Seat, Timestamp};
use punctual_store::{LeaseStore, MembershipStore, MemoryStore, StoreError};

/// How long leases last here.
pub(crate) const LEASE: Duration = Duration::from_millis(LEASE_MS);
const LEASE_MS: u64 = 5_000;
pub(crate) const PARTITIONS: u16 = 16;
/// How long an owner takes to become quiet.
const QUIET_MS: u64 = 30;
/// How long it takes to tell an successor: long enough for it to be tempted.
const TELL_MS: u64 = 25;

pub(crate) struct World {
    now: u64,
    store: Arc<MemoryStore>,
    store_answers: bool,
    brokers: BTreeMap<&'static str, Broker>,
    /// Brokers that cannot reach each other.
    cut: BTreeSet<(&'static str, &'static str)>,
    /// What happens at a time, to a life of a broker.
    later: Vec<(u64, &'static str, u32, Happening)>,
    lives: u32,
    epochs: BTreeMap<PartitionId, Epoch>,
    /// Partitions of which an successor is being told.
    telling: BTreeMap<PartitionId, u64>,
    /// Brokers that are off the roll by their own wish.
    struck: BTreeSet<&'static str>,
    /// When the roll was last not what it should be: the successor may then not see that it is to wait.
    disturbed_at: u64,
    /// Owners that were started, ever.
    pub(crate) starts: usize,
    pub(crate) questions: usize,
}

struct Broker {
    life: u32,
    member: Member,
    /// How far its clock is ahead.
    ahead: i64,
    sleeps: bool,
    leaves: bool,
    inbox: Vec<MemberEvent>,
    owners: BTreeMap<PartitionId, Owner>,
    view: Option<Arc<ClusterView>>,
    skew: Option<i64>,
}

struct Owner {
    epoch: Epoch,
    until: Timestamp,
}

enum Happening {
    Asked(MemberAction, Timestamp),
    Told(MemberEvent),
    Quiet(PartitionId, Epoch),
}

impl World {
    pub(crate) fn new() -> Self {
        let store = MemoryStore::new(Partitions::new(PARTITIONS).expect("a few"));
        Self {
            now: 1_700_000_000_000,
            store: Arc::new(store),
            store_answers: true,
            brokers: BTreeMap::new(),
            cut: BTreeSet::new(),
            later: Vec::new(),
            lives: 0,
            epochs: BTreeMap::new(),
            telling: BTreeMap::new(),
            struck: BTreeSet::new(),
            disturbed_at: 0,
            starts: 0,
            questions: 0,
        }
    }

    /// A world in which these have started together and come to rest.
    pub(crate) fn of(names: &[&'static str]) -> Self {
        let mut world = Self::new();
        for name in names {
            world.start(name);
        }
        world.run(LEASE * 2);
        world.assert_settled();
        world
    }

    pub(crate) fn start(&mut self, name: &'static str) {
        self.start_ahead(name, 0);
    }

    pub(crate) fn start_ahead(&mut self, name: &'static str, ahead: i64) {
        let terms = MemberConfig {
            me: BrokerId::new(name),
            partitions: Partitions::new(PARTITIONS).expect("a few"),
            lease: LEASE,
            skew_max: Duration::from_millis(250),
        };
        self.lives += 1;
        self.struck.remove(name);
        let broker = Broker {
            life: self.lives,
            member: Member::new(terms, clock(self.now, ahead)),
            ahead,
            sleeps: false,
            leaves: false,
            inbox: Vec::new(),
            owners: BTreeMap::new(),
            view: None,
            skew: None,
        };
        self.brokers.insert(name, broker);
    }

    pub(crate) fn kill(&mut self, name: &str) {
        self.brokers.remove(name);
    }

    pub(crate) fn sleep(&mut self, name: &str) {
        self.broker(name).sleeps = true;
    }

    pub(crate) fn wake(&mut self, name: &str) {
        if std::mem::take(&mut self.broker(name).sleeps) {
            self.disturbed_at = self.now;
        }
    }

    pub(crate) fn leave(&mut self, name: &str) {
        let broker = self.broker(name);
        broker.leaves = true;
        broker.inbox.push(MemberEvent::Leave);
    }

    /// An owner of this broker comes to its end by itself.
    pub(crate) fn break_one(&mut self, name: &str) -> PartitionId {
        let broker = self.broker(name);
        let (partition, owner) = broker.owners.pop_first().expect("owns something");
        broker.inbox.push(MemberEvent::Ended { partition, epoch: owner.epoch });
        partition
    }

    /// Sets a clock on by so much. Only on: a broker's clock never goes back.
    pub(crate) fn set_clock_on(&mut self, name: &str, millis: i64) {
        self.broker(name).ahead += millis;
    }

    pub(crate) fn store_answers(&mut self, answers: bool) {
        self.store_answers = answers;
        self.disturbed_at = self.now;
    }

    pub(crate) fn has_store(&self) -> bool {
        self.store_answers
    }

    /// The store loses who is there.
    pub(crate) fn store_forgets_the_roster(&mut self) {
        self.disturbed_at = self.now;
        let names: Vec<_> = self.brokers.keys().copied().collect();
        for name in names {
            now_or_never(self.store.leave(&BrokerId::new(name))).expect("the store is there");
        }
    }

    pub(crate) fn cut(&mut self, a: &'static str, b: &'static str) {
        self.cut.extend([(a, b), (b, a)]);
    }

    pub(crate) fn mend(&mut self) {
        self.cut.clear();
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.brokers.keys().copied().collect()
    }

    pub(crate) fn is_there(&self, name: &str) -> bool {
        self.brokers.contains_key(name)
    }

    pub(crate) fn skew(&self, name: &str) -> Option<i64> {
        self.brokers[name].skew
    }

    pub(crate) fn view(&self, name: &str) -> &ClusterView {
        self.brokers[name].view.as_ref().expect("has heard something")
    }

    pub(crate) fn leader(&self) -> &'static str {
        let names: Vec<_> = self.brokers.keys().copied().collect();
        let leads = |name: &&str| {
            let leader = &self.view(name).topology.leader;
            leader.as_ref().is_some_and(|leader| leader.as_str() == *name)
        };
        names.into_iter().find(leads).expect("somebody leads")
    }

    /// How many partitions a broker has that it may act for.
    pub(crate) fn count(&self, name: &str) -> usize {
        let broker = &self.brokers[name];
        let now = clock(self.now, broker.ahead);
        broker.owners.values().filter(|owner| now < owner.until).count()
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + u64::try_from(time.as_millis()).expect("short");
        while self.now < end {
            // Between two moments at which something is due, nothing happens.
            self.now = self.next().clamp(self.now + 1, end);
            self.step();
        }
    }

    fn next(&self) -> u64 {
        let later = self.later.iter().map(|(at, ..)| *at);
        let awake = self.brokers.values().filter(|broker| !broker.sleeps);
        let wakes = awake.map(|broker| {
            let said = if broker.inbox.is_empty() { u64::MAX } else { 0 };
            let wakes_at = broker.member.wakes_at().map_or(u64::MAX, Timestamp::as_millis);
            said.min(wakes_at.saturating_add_signed(-broker.ahead))
        });
        later.chain(wakes).min().unwrap_or(u64::MAX)
    }

    /// Runs until it is so; panics if that does not come about.
    pub(crate) fn run_until(
        &mut self,
        within: Duration,
        is_so: impl Fn(&Self) -> bool,
    ) -> Duration {
        let began = self.now;
        while !is_so(self) {
            assert!(
                self.now < began + u64::try_from(within.as_millis()).expect("short"),
                "not in time"
            );
            self.run(Duration::from_millis(1));
        }
        Duration::from_millis(self.now - began)
    }

    pub(crate) fn vacant(&self) -> usize {
        let all = self.brokers.keys().map(|name| self.count(name)).sum::<usize>();
        usize::from(PARTITIONS) - all
    }

    /// Every partition has one owner, nobody has more than one more than another, and all know.
    pub(crate) fn assert_settled(&self) {
        assert_eq!(self.vacant(), 0, "every partition has an owner");
        let willing =
            self.brokers.iter().filter(|(_, broker)| broker.skew.is_none() && !broker.sleeps);
        let counts: BTreeMap<_, _> = willing.map(|(name, _)| (*name, self.count(name))).collect();
        let (most, least) = (counts.values().max(), counts.values().min());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{counts:?}");
        for (name, broker) in self.brokers.iter().filter(|(_, broker)| !broker.sleeps) {
            let view = broker.view.as_ref().expect("has heard something");
            assert!(view.topology.leader.is_some(), "{name} knows who leads");
            assert_eq!(view.present.len(), self.brokers.len(), "{name} knows who is there");
            for (owner, other) in &self.brokers {
                for (partition, held) in &other.owners {
                    let known = view.topology.owner(*partition);
                    let right = known.is_some_and(|known| {
                        known.broker.as_str() == *owner && known.epoch == held.epoch
                    });
                    assert!(right, "{name} thinks that {known:?} has {partition}, {owner} has it");
                }
            }
        }
    }

    fn broker(&mut self, name: &str) -> &mut Broker {
        self.brokers.get_mut(name).expect("is there")
    }

    fn step(&mut self) {
        self.store.set_time(Timestamp::from_millis(self.now)).expect("the store is there");
        let now = self.now;
        let (due, later) =
            std::mem::take(&mut self.later).into_iter().partition(|(at, ..)| *at <= now);
        self.later = later;
        for (_, name, life, happening) in due {
            self.happen(name, life, happening);
        }
        let names: Vec<_> = self.brokers.keys().copied().collect();
        for name in names {
            self.drive(name);
        }
        self.check();
    }

    fn happen(&mut self, name: &'static str, life: u32, happening: Happening) {
        let alive =
            |world: &Self| world.brokers.get(name).is_some_and(|broker| broker.life == life);
        match happening {
            // What was sent before a broker died is still made.
            Happening::Asked(action, at) => {
                let event = self.ask(name, action, at);
                self.later.push((self.now + 1, name, life, Happening::Told(event)));
            }
            Happening::Told(event) if alive(self) => self.broker(name).inbox.push(event),
            Happening::Quiet(partition, epoch) if alive(self) => {
                let broker = self.broker(name);
                if broker.sleeps {
                    // It goes on where it stood when it wakes.
                    self.later.push((
                        self.now + 10,
                        name,
                        life,
                        Happening::Quiet(partition, epoch),
                    ));
                    return;
                }
                if broker.owners.get(&partition).is_some_and(|owner| owner.epoch == epoch) {
                    broker.owners.remove(&partition);
                }
                broker.inbox.push(MemberEvent::Quiet { partition, epoch });
            }
            _ => {}
        }
    }

    fn ask(&mut self, name: &'static str, action: MemberAction, at: Timestamp) -> MemberEvent {
        self.questions += 1;
        let me = BrokerId::new(name);
        let store = Arc::clone(&self.store);
        let up = self.store_answers;
        match action {
            MemberAction::Heartbeat(presence) => {
                MemberEvent::Heard(answer(up, store.heartbeat(&presence, LEASE)))
            }
            MemberAction::Acquire(seat) => {
                MemberEvent::Acquired(seat, answer(up, store.acquire(seat, &me, LEASE, at)))
            }
            MemberAction::Renew(lease) => {
                MemberEvent::Renewed(lease.seat, answer(up, store.renew(&lease, LEASE, at)))
            }
            MemberAction::Release(lease) => {
                let stays = !self.struck.contains(name);
                assert!(
                    lease.seat != Seat::Leader || !stays,
                    "{name} would be planned with by whoever leads next"
                );
                MemberEvent::Released(lease.seat, answer(up, store.release(&lease)))
            }
            MemberAction::Propose(lease, assignment) => {
                MemberEvent::Proposed(answer(up, store.propose(&lease, &assignment)))
            }
            MemberAction::Leave => {
                self.struck.insert(name);
                MemberEvent::Deregistered(answer(up, store.leave(&me)))
            }
            MemberAction::Directive(_) => unreachable!("is not for the store"),
        }
    }

    fn drive(&mut self, name: &'static str) {
        let world_now = self.now;
        let broker = self.broker(name);
        if broker.sleeps {
            return;
        }
        let now = clock(world_now, broker.ahead);
        let events = std::mem::take(&mut broker.inbox);
        if events.is_empty() && broker.member.wakes_at().is_some_and(|at| now < at) {
            return;
        }
        for event in events {
            broker.member.on(event, now);
        }
        let actions = broker.member.act(now);
        let wakes_at = broker.member.wakes_at();
        assert!(
            wakes_at.is_none_or(|at| at > now),
            "{name} has acted and has still something to do"
        );
        let life = broker.life;
        for action in actions {
            match action {
                MemberAction::Directive(order) => self.obey(name, order),
                action => {
                    self.later.push((world_now + 1, name, life, Happening::Asked(action, now)))
                }
            }
        }
    }

    fn obey(&mut self, name: &'static str, order: Directive) {
        let now = self.now;
        let broker = self.brokers.get_mut(name).expect("is there");
        let life = broker.life;
        let mut later =
            |after, name, life, happening| self.later.push((now + after, name, life, happening));
        match order {
            Directive::Start { partition, epoch, until } => {
                self.starts += 1;
                let last = self.epochs.insert(partition, epoch);
                assert!(
                    last.is_none_or(|last| last < epoch),
                    "{partition}: {epoch} after {last:?}"
                );
                let before = broker.owners.insert(partition, Owner { epoch, until });
                assert!(before.is_none(), "{name} has an owner of {partition}");
                let told = self.telling.get(&partition).is_none_or(|told_at| *told_at <= now);
                let disturbed = now < self.disturbed_at + LEASE_MS;
                assert!(told || disturbed, "{name} took {partition} before its successor was told");
            }
            Directive::Extend { partition, epoch, until } => {
                if let Some(owner) = broker.owners.get_mut(&partition) {
                    assert_eq!(owner.epoch, epoch);
                    assert!(owner.until <= until, "a lease never gets shorter");
                    owner.until = until;
                }
            }
            Directive::HandOver { partition, epoch, .. } => {
                later(QUIET_MS, name, life, Happening::Quiet(partition, epoch));
            }
            Directive::Released { partition, epoch, successor } => {
                assert!(!broker.owners.contains_key(&partition), "was quiet");
                let Some(successor) = successor else { return };
                let found = self.brokers.iter().find(|(other, _)| **other == successor.as_str());
                let mut told = MemberEvent::HandOverFailed { partition, epoch };
                if let Some((successor, broker)) = found
                    && !self.cut.contains(&(name, successor))
                    && !broker.leaves
                {
                    let offered = Happening::Told(MemberEvent::Offered { partition });
                    self.later.push((now + TELL_MS, successor, broker.life, offered));
                    self.telling.insert(partition, now + TELL_MS);
                    told = MemberEvent::HandedOver { partition, epoch };
                }
                self.later.push((now + TELL_MS + 1, name, life, Happening::Told(told)));
            }
            Directive::Drop { partition, epoch } => {
                let owner = broker.owners.remove(&partition);
                assert!(owner.is_none_or(|owner| owner.epoch == epoch));
            }
            Directive::Publish(view) => broker.view = Some(view),
            Directive::Skew(skew) => broker.skew = skew,
            Directive::Left => {
                assert!(broker.owners.is_empty(), "{name} has given all back");
                self.brokers.remove(name);
            }
        }
    }

    fn check(&self) {
        let mut acting = BTreeMap::new();
        for (name, broker) in &self.brokers {
            let now = clock(self.now, broker.ahead);
            for (partition, owner) in &broker.owners {
                if now < owner.until
                    && let Some(other) = acting.insert(*partition, *name)
                {
                    unreachable!("{partition} has two owners that may act: {other} and {name}");
                }
            }
        }
    }
}

fn clock(now: u64, ahead: i64) -> Timestamp {
    Timestamp::from_millis(now.checked_add_signed(ahead).expect("after 1970"))
}

fn answer<T>(
    up: bool,
    question: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    if up { now_or_never(question) } else { Err(StoreError::Unavailable("away".into())) }
}

/// The memory store never waits.
fn now_or_never<T>(question: impl Future<Output = T>) -> T {
    match pin!(question).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the memory store never waits"),
    }
}
