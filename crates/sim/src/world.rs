//! The world: brokers, a store and callers, true time, and the mail between them.
//!
//! In: a seed. Out: whether a promise was broken, and the story. Everything happens in one thread and in the order of the mail; chance
//! is the seed's alone.
//! Next door: `shell` does what members and owners want done, `forward` carries calls between brokers, `faults` says what goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use punctual_cluster::{Member, MemberConfig, MemberEvent};
use punctual_core::{BrokerId, Epoch, Lease, PartitionId, Partitions, Seat, TaskState, Topology};
use punctual_engine::{Action as OwnerAction, Event as ToOwner, Lookup, LookupResult};
use punctual_store::{BatchNo, Filter, LeaseStore as _, Position, StoreError, TaskStore};

use crate::broker::{Broker, Standing};
use crate::callers::{self, Call};
use crate::clock::Clock;
use crate::dice::Dice;
use crate::faults::{Fault, Plan, Way};
use crate::mail::{Mail, What};
use crate::shell::STRAY_EVERY_MS;
use crate::store::{Answer, Question, Store, ready};
use crate::story::Story;
use crate::variant::Variant;
use crate::witness::{Broken, Witness};

/// The true time at which every life begins.
const BEGIN: u64 = 1_700_000_000_000;
/// Steps of one life, at most: several times what a long one takes.
const STEPS_MAX: u64 = 400_000;
/// How long after the last fault everything must have come to rest.
const REST_MAX_MS: u64 = 90_000;
/// How far clocks are off where nothing is wrong with them.
const CLOCK_ERROR_MS: u64 = 50;
/// How far a clock may be off without anybody noticing: what is allowed, from a median that is off itself.
const UNNOTICED_MS: i64 = 250 + 2 * CLOCK_ERROR_MS.cast_signed() + 20;
/// How far a clock may be off from the others', as the product has it.
const SKEW_MAX: Duration = Duration::from_millis(250);
/// How much too fast or slow clocks run, in millionths.
const FAST_BY_MAX: u64 = 500;
/// How long an owner's question to the store may take.
const OWNER_PATIENCE_MS: u64 = 1_000;

/// Tells the dice of late batches from those of everything else, so that a seed without them lives as it always did; this one
/// because no seed that was kept before has them.
const LATE: u64 = 0x01b8_0000_0000;
/// From how long before a failover until how long after it batches may be late.
const LATE_BEFORE_MS: u64 = 500;
const LATE_AFTER_MS: u64 = 3_000;

/// What happened in a life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Letters carried.
    pub steps: u64,
    /// Faults that came about.
    pub faults: u64,
    /// Tasks ordered.
    pub orders: u64,
    /// Calls made.
    pub calls: u64,
    /// Deliveries received.
    pub received: u64,
    /// Owners started.
    pub owners: u64,
    /// Partitions handed over in peace.
    pub hand_overs: u64,
    /// Deliveries that were known to be under way elsewhere.
    pub flights: u64,
    /// Batches that a failover has lost.
    pub lost_batches: u64,
    /// Batches that came to the store after their owner had given them up.
    pub late_batches: u64,
    /// True milliseconds.
    pub millis: u64,
    /// The latest first attempt, in milliseconds.
    pub lag_max_ms: u64,
}

impl Figures {
    /// Of both lives; the larger lag.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            faults: self.faults + other.faults,
            orders: self.orders + other.orders,
            calls: self.calls + other.calls,
            received: self.received + other.received,
            owners: self.owners + other.owners,
            hand_overs: self.hand_overs + other.hand_overs,
            flights: self.flights + other.flights,
            lost_batches: self.lost_batches + other.lost_batches,
            late_batches: self.late_batches + other.late_batches,
            millis: self.millis + other.millis,
            lag_max_ms: self.lag_max_ms.max(other.lag_max_ms),
        }
    }
}

/// A question under way.
struct Pending {
    life: u32,
    /// The owner that asks, if it is one.
    owner: Option<(PartitionId, Epoch)>,
    /// The batch that it sends, if it does.
    batch: Option<BatchNo>,
    nothing: Nothing,
}

/// What an answer that does not come looks like.
enum Nothing {
    Heard,
    Acquired(Seat),
    Renewed(Seat),
    Released(Seat),
    Proposed,
    Deregistered,
    Applied,
    Loaded,
    LookupResult(Vec<Lookup>),
    Swept,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) dice: Dice,
    pub(crate) variant: Variant,
    pub(crate) now: u64,
    pub(crate) mail: Mail,
    pub(crate) store: Store,
    pub(crate) brokers: Vec<Broker>,
    pub(crate) partitions: Partitions,
    pub(crate) calls: BTreeMap<u64, Call>,
    pub(crate) call_number: u64,
    pending: BTreeMap<u64, Pending>,
    question_number: u64,
    pub(crate) witness: Witness,
    pub(crate) figures: Figures,
    pub(crate) story: Story,
    pub(crate) healed: Option<u64>,
    /// When something last was wrong.
    wrong_at: u64,
    /// When a broker was last told to leave.
    left_at: u64,
    store_away: bool,
    cut_store: BTreeMap<usize, Way>,
    cut_peers: BTreeSet<(usize, usize)>,
    loss: u64,
    slow_ms: u64,
    /// Around failovers, batches are on their way for longer than their owners wait.
    late: Option<Dice>,
    /// Questions that come to the store after their owner has given them up.
    given_up: BTreeSet<u64>,
    /// The last batch that each owner was answered.
    answered: BTreeMap<(PartitionId, Epoch), BatchNo>,
    /// The last wishes are said.
    dismissed: bool,
    rested: bool,
}

impl World {
    pub(crate) fn new(seed: u64, variant: Variant, story: Story) -> Self {
        let mut dice = Dice::new(seed);
        let mut plan = Plan::new(&mut dice);
        let mut late = Dice::new(seed ^ LATE);
        let mut late = (late.roll(4) == 0 && !plan.peaceful).then_some(late);
        if let Some(late) = &mut late {
            plan.fail_over(late);
        }
        let partitions = Partitions::new(plan.partitions).expect("a few");
        let mut clock = || {
            let ahead = dice.around(CLOCK_ERROR_MS);
            Clock::new(BEGIN, ahead, dice.around(FAST_BY_MAX))
        };
        let store = Store::new(partitions, clock(), Duration::from_millis(plan.lease_ms), variant);
        let brokers = (0..plan.brokers).map(|number| {
            let id = BrokerId::new(&format!("b{number}:1"));
            Broker::new(id, clock(), Topology::vacant(partitions))
        });
        let brokers = brokers.collect();
        let witness = Witness::new(plan.peaceful);
        let mut world = Self {
            dice,
            variant,
            now: BEGIN,
            mail: Mail::default(),
            store,
            brokers,
            partitions,
            calls: BTreeMap::new(),
            call_number: 0,
            pending: BTreeMap::new(),
            question_number: 0,
            witness,
            figures: Figures::default(),
            story,
            healed: None,
            wrong_at: BEGIN,
            left_at: 0,
            store_away: false,
            cut_store: BTreeMap::new(),
            cut_peers: BTreeSet::new(),
            loss: 0,
            slow_ms: 0,
            late,
            given_up: BTreeSet::new(),
            answered: BTreeMap::new(),
            dismissed: false,
            rested: false,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let plan = self.plan.clone();
        let Plan { brokers, partitions, lease_ms, peaceful, .. } = plan;
        self.story.tell_fault(self.now, || {
            format!("{brokers} brokers, {partitions} partitions, leases of {lease_ms} ms, peaceful: {peaceful}")
        });
        for broker in 0..plan.first {
            let at = BEGIN + self.dice.roll(300);
            self.mail.send(at, None, What::Fault(Fault::Start(broker)));
        }
        for (at, fault) in plan.faults.iter().filter(|(at, _)| *at < plan.heals_ms) {
            self.mail.send(BEGIN + at, None, What::Fault(*fault));
        }
        self.mail.send(BEGIN + plan.heals_ms, None, What::Heal);
        for _ in 0..plan.calls {
            let at = BEGIN + self.dice.between(200, plan.calls_ms);
            self.mail.send(at, None, What::CallerActs);
        }
    }

    /// Lives until everything has come to rest, or a promise is broken.
    pub(crate) fn live(&mut self) -> Result<Figures, Broken> {
        while let Some((at, to, what)) = self.mail.next() {
            self.now = self.now.max(at);
            self.figures.steps += 1;
            self.deliver(to, what);
            if let Some((partition, newer, older)) = self.store.went_down {
                let seen = format!("{partition} took a write of {older} after one of {newer}");
                self.witness.break_promise("G11 epochs never go down", seen);
            }
            if let Some(broken) = self.witness.broken.take() {
                return Err(broken);
            }
            if self.rested {
                break;
            }
            if self.figures.steps > STEPS_MAX {
                return Err(Broken {
                    promise: "no busy loop",
                    seen: "far too many steps".to_owned(),
                });
            }
        }
        self.figures.received = self.witness.received_count() as u64;
        self.figures.orders = self.witness.orders.len() as u64;
        self.figures.millis = self.now - BEGIN;
        self.figures.lag_max_ms = self.witness.lag_max_ms;
        Ok(self.figures)
    }

    /// Whoever passes a report on notices that nobody took it, and tries again.
    fn undelivered(&mut self, what: What) {
        if let What::PassedOn { from, partition, reports, until } = what {
            let at = self.now + STRAY_EVERY_MS;
            self.mail.send(at, Some(from), What::Stray(partition, reports, until));
        }
    }

    /// Brings one letter to its addressee.
    fn deliver(&mut self, to: Option<(usize, u32)>, what: What) {
        let Some((broker, life)) = to else {
            return self.happen(what);
        };
        let addressee = &mut self.brokers[broker];
        if addressee.life != life || !addressee.is_alive() {
            return self.undelivered(what);
        }
        if addressee.standing == Standing::Paused {
            return addressee.inbox.push_back(what);
        }
        // An alarm that was set before an earlier one is none any more.
        if matches!(what, What::Wake) && addressee.wakes_at != Some(self.now) {
            return;
        }
        self.at_broker(broker, what);
        self.drive(broker);
    }

    fn happen(&mut self, what: What) {
        match what {
            What::AtStore(number, broker, question) => self.at_store(number, broker, question),
            What::CallerActs => self.caller_acts(),
            What::Heard(call, answer) => self.heard(call, *answer),
            What::CallAgain(call) => self.place_call(call),
            What::CallOver(call) => self.call_over(call),
            What::Fault(fault) => self.fault(fault),
            What::Heal => self.heal(),
            What::Look => self.look(),
            what => unreachable!("is for a broker: {what:?}"),
        }
    }

    fn caller_acts(&mut self) {
        let wish = callers::wish(
            &mut self.dice,
            &mut self.witness,
            self.variant,
            self.partitions,
            self.now,
        );
        if let Some(call) = wish {
            self.new_call(call);
        }
    }

    /// Who held a partition last, if the store says.
    pub(crate) fn holder(&self, partition: PartitionId) -> Option<Lease> {
        let asked = self.store.memory.holder(Seat::Partition(partition));
        if self.store_away { None } else { ready(asked).ok().flatten() }
    }

    // The way to the store.

    /// Asks the store. Exactly one answer comes, if the broker lives.
    pub(crate) fn ask(&mut self, broker: usize, question: Question) {
        let (nothing, owner, patience_ms) = match &question {
            Question::Member(asked, _) => {
                (nothing_of(asked), None, (self.plan.lease_ms / 3).max(50))
            }
            Question::Owner(partition, epoch, action) => {
                (nothing_of_owner(action), Some((*partition, *epoch)), OWNER_PATIENCE_MS)
            }
        };
        self.question_number += 1;
        let number = self.question_number;
        let life = self.brokers[broker].life;
        let batch = batch_of(&question).map(|(_, batch)| batch);
        self.pending.insert(number, Pending { life, owner, batch, nothing });
        let cut = self.cut_store.get(&broker).is_some_and(|way| *way != Way::Answers);
        let gone = self.store_away || cut || self.dice.thousandths(self.loss);
        if gone {
            // Either the connection breaks at once, or nothing is heard any more.
            let soon = self.dice.roll(2) == 0;
            let after = if soon { self.dice.between(1, 10) } else { patience_ms };
            let to = Some((broker, life));
            return self.mail.send(self.now + after, to, What::Unanswered(number));
        }
        if let Some((given_up, comes)) = self.late(&question) {
            self.figures.late_batches += 1;
            self.given_up.insert(number);
            self.story.tell(self.now, || format!("what b{broker} sends comes at {comes}"));
            self.mail.send(comes, None, What::AtStore(number, broker, question));
            return self.mail.send(given_up, Some((broker, life)), What::Unanswered(number));
        }
        let at = self.now + self.travel();
        self.mail.send(at, None, What::AtStore(number, broker, question));
        self.mail.send(self.now + patience_ms, Some((broker, life)), What::Unanswered(number));
    }

    /// When a batch is given up by its owner and when it comes to the store after that, if it is late: often just when the owner has sent
    /// again what a failover has lost.
    fn late(&mut self, question: &Question) -> Option<(u64, u64)> {
        let Question::Owner(_, _, OwnerAction::Apply(_)) = question else { return None };
        let since = self.now - BEGIN;
        let near = |(at, fault): &(u64, Fault)| {
            matches!(fault, Fault::FailOver(_))
                && (at.saturating_sub(LATE_BEFORE_MS)..at + LATE_AFTER_MS).contains(&since)
        };
        let late = self.late.as_mut()?;
        if !self.plan.faults.iter().any(near) || late.roll(2) == 0 {
            return None;
        }
        let given_up = self.now + late.between(1, 10);
        let after =
            if late.roll(2) == 0 { late.between(90, 250) } else { late.between(250, 4_000) };
        Some((given_up, self.now + after))
    }

    /// A question that is waited for no longer is made all the same.
    fn at_store(&mut self, number: u64, broker: usize, question: Question) {
        if self.store_away || self.is_answered(number, &question) {
            return;
        }
        let id = self.brokers[broker].id.clone();
        let answer = self.store.answer(&id, question, self.now);
        let cut = self.cut_store.get(&broker).is_some_and(|way| *way != Way::Questions);
        let Some(Pending { life, .. }) = self.pending.get(&number) else { return };
        let life = *life;
        if cut || self.dice.thousandths(self.loss) {
            return;
        }
        let at = self.now + self.travel();
        self.mail.send(at, Some((broker, life)), What::Answered(number, answer));
    }

    /// Whether a batch comes late that its owner was answered already, by another sending. It changes nothing, unless a failover has lost
    /// it: then it would bring back, unseen by its owner, what a look has missed meanwhile. That is not promised.
    fn is_answered(&self, number: u64, question: &Question) -> bool {
        let answered =
            |(owner, batch)| self.answered.get(&owner).is_some_and(|last| batch <= *last);
        self.given_up.contains(&number) && batch_of(question).is_some_and(answered)
    }

    /// The answer to a question, if it is still waited for; nothing comes as an answer as well.
    pub(crate) fn take_answer(&mut self, number: u64, answer: Option<Answer>) -> Option<Answer> {
        let Pending { owner, batch, nothing, .. } = self.pending.remove(&number)?;
        if let (Some(Answer::Owner(partition, epoch, ToOwner::Applied(Ok(())))), Some(batch)) =
            (&answer, batch)
        {
            self.answered.insert((*partition, *epoch), batch);
        }
        Some(answer.unwrap_or_else(|| match owner {
            Some((partition, epoch)) => Answer::Owner(partition, epoch, unanswered_owner(nothing)),
            None => Answer::Member(unanswered_member(nothing)),
        }))
    }

    /// How long a message takes.
    pub(crate) fn travel(&mut self) -> u64 {
        let most = if self.slow_ms > 0 { self.slow_ms } else { 3 };
        self.dice.roll(most + 1)
    }

    /// Whether a message from one broker to another is lost; it is known at once if there is no way at all.
    pub(crate) fn way_to(&mut self, from: usize, to: usize) -> Passage {
        if self.cut_peers.contains(&(from, to)) || !self.brokers[to].is_alive() {
            return Passage::None;
        }
        if self.dice.thousandths(self.loss) { Passage::Lost } else { Passage::Open }
    }

    // Faults.

    fn fault(&mut self, fault: Fault) {
        self.wrong_at = self.now;
        self.figures.faults += 1;
        self.story.tell_fault(self.now, || format!("{fault:?}"));
        match fault {
            Fault::Start(broker) => self.start(broker),
            Fault::Kill(broker) => self.kill(broker),
            Fault::Leave(broker) => self.leave(broker),
            Fault::Pause(broker) if self.brokers[broker].standing == Standing::Runs => {
                self.brokers[broker].standing = Standing::Paused;
            }
            Fault::Freeze(broker, millis) => self.brokers[broker].freezes = Some(millis),
            Fault::Wake(broker) => self.wake(broker),
            Fault::CutStore(broker, way) => _ = self.cut_store.insert(broker, way),
            Fault::MendStore(broker) => _ = self.cut_store.remove(&broker),
            Fault::CutPeers(a, b) => self.cut_peers.extend([(a, b), (b, a)]),
            Fault::MendPeers(a, b) => {
                self.cut_peers.remove(&(a, b));
                self.cut_peers.remove(&(b, a));
            }
            Fault::StoreAway => self.store_away = true,
            Fault::StoreBack => self.store_away = false,
            Fault::Loss(share) => self.loss = share,
            Fault::Slow(millis) => self.slow_ms = millis,
            Fault::FailOver(millis) => {
                let since = self.store.clock.at(self.now).millis_before(millis);
                let lost = self.store.fail_over(since);
                self.figures.lost_batches += lost as u64;
                self.story.tell_fault(self.now, || format!("{lost} batches are lost"));
            }
            Fault::SetOn(broker, millis) => {
                let now = self.now;
                let broker = &mut self.brokers[broker];
                broker.clock.set_on(now, millis);
                if broker.clock.ahead_ms(now) > UNNOTICED_MS {
                    broker.skewed_since.get_or_insert(now);
                }
            }
            Fault::Pause(_) => {}
        }
    }

    fn start(&mut self, number: usize) {
        let now = self.now;
        let lease = Duration::from_millis(self.plan.lease_ms);
        let partitions = self.partitions;
        let broker = &mut self.brokers[number];
        if broker.standing == Standing::Left {
            return self.mail.send(now + 500, None, What::Fault(Fault::Start(number)));
        }
        if broker.is_alive() {
            return;
        }
        let (id, life, clock) = (broker.id.clone(), broker.life + 1, broker.clock);
        let skewed = (clock.ahead_ms(now) > UNNOTICED_MS).then_some(now);
        *broker = Broker::new(id.clone(), clock, Topology::vacant(partitions));
        broker.life = life;
        broker.standing = Standing::Runs;
        broker.skewed_since = skewed;
        broker.started_at = now;
        let skew_max = if self.variant == Variant::SkewIsIgnored {
            Duration::from_secs(3_600)
        } else {
            SKEW_MAX
        };
        let terms = MemberConfig { me: id, partitions, lease, skew_max };
        broker.member = Some(Member::new(terms, clock.at(now)));
        broker.member_stirred = true;
        self.drive(number);
    }

    pub(crate) fn kill(&mut self, number: usize) {
        let broker = &mut self.brokers[number];
        broker.standing = Standing::Dead;
        broker.member = None;
        broker.owners.clear();
        broker.quieting.clear();
        let (inbox, open) = (std::mem::take(&mut broker.inbox), std::mem::take(&mut broker.open));
        inbox.into_iter().for_each(|what| self.undelivered(what));
        for open in open {
            let lost = Err(punctual_engine::EngineError::Lost);
            self.witness.answered(&open.command, open.epoch, &lost, &self.store.disturbed);
        }
    }

    /// Where all is to be peaceful, one leaves at a time, and only if another has run for a while: an successor that is not known yet, or
    /// leaves at the same moment, is not told what is under way.
    fn leave(&mut self, number: usize) {
        let known_since = self.now - 2 * self.plan.lease_ms;
        let mut others = self.brokers.iter().enumerate().filter(|(other, _)| *other != number);
        let known =
            |broker: &Broker| broker.standing != Standing::Runs || broker.started_at < known_since;
        let calm = self.brokers.iter().all(known) && self.left_at < known_since;
        let runs =
            others.any(|(_, broker)| broker.standing == Standing::Runs && !broker.is_leaving);
        if self.plan.peaceful && !(runs && calm) {
            return;
        }
        self.left_at = self.now;
        let now = self.now;
        let broker = &mut self.brokers[number];
        if let (Standing::Runs, Some(member)) = (broker.standing, &mut broker.member) {
            broker.is_leaving = true;
            member.on(MemberEvent::Leave, broker.clock.at(now));
            broker.member_stirred = true;
            self.drive(number);
        }
    }

    pub(crate) fn wake(&mut self, number: usize) {
        if self.brokers[number].standing != Standing::Paused {
            return;
        }
        self.brokers[number].standing = Standing::Runs;
        self.brokers[number].wakes_at = None;
        while let Some(what) = self.brokers[number].inbox.pop_front() {
            // It may be paused again on the way.
            if self.brokers[number].standing == Standing::Paused {
                self.brokers[number].inbox.push_front(what);
                return;
            }
            self.at_broker(number, what);
            // What has come meanwhile is taken in before anything is decided, or one after the other.
            if self.dice.roll(2) == 0 {
                self.drive(number);
            }
        }
        self.stir_all(number);
        self.drive(number);
    }

    fn heal(&mut self) {
        self.story.tell_fault(self.now, || "all is well from here on".to_owned());
        self.wrong_at = self.now;
        self.store_away = false;
        self.cut_store.clear();
        self.cut_peers.clear();
        (self.loss, self.slow_ms) = (0, 0);
        self.healed = Some(self.now);
        for number in 0..self.brokers.len() {
            self.brokers[number].freezes = None;
            self.wake(number);
            let ahead = self.brokers[number].clock.ahead_ms(self.now);
            if ahead.unsigned_abs() > 2 * CLOCK_ERROR_MS {
                // Its clock is set right while it is down: clocks of a running broker never go back.
                self.kill(number);
                let ahead = self.dice.around(CLOCK_ERROR_MS);
                self.brokers[number].clock = Clock::new(self.now, ahead, 0);
                self.brokers[number].skewed_since = None;
            }
            let runs = self
                .brokers
                .iter()
                .any(|broker| broker.standing == Standing::Runs && !broker.is_leaving);
            if !self.brokers[number].is_alive() && (!runs || self.dice.roll(2) == 0) {
                self.start(number);
            }
        }
        if !self
            .brokers
            .iter()
            .any(|broker| broker.standing == Standing::Runs && !broker.is_leaving)
        {
            self.mail.send(self.now + 30_000, None, What::Fault(Fault::Start(0)));
        }
        self.mail.send(self.now + 12_000, None, What::Look);
    }

    // The end.

    fn look(&mut self) {
        let healed = self.healed.unwrap_or(self.now);
        if self.calls.is_empty() && !self.dismissed {
            self.dismissed = true;
            for call in callers::last_wishes(self.partitions) {
                self.new_call(call);
            }
        }
        let quiet = self.dismissed && self.is_at_rest();
        if !quiet && self.now - healed < REST_MAX_MS {
            return self.mail.send(self.now + 1_000, None, What::Look);
        }
        if !quiet {
            let seen = self.unrest();
            return self.witness.break_promise("G3 nothing stays overdue", seen);
        }
        self.rested = true;
        self.check_owners();
        self.witness.rest(&self.store, &callers::shop(), self.partitions);
    }

    fn is_at_rest(&self) -> bool {
        let living = self.brokers.iter().filter(|broker| broker.is_alive());
        let mut owners = living.clone().flat_map(|broker| broker.owners.values());
        let busy = owners.any(|held| held.owner.loaded() > 0 || !held.owner.is_quiet());
        let moving =
            living.clone().any(|broker| broker.standing != Standing::Runs || broker.is_leaving);
        !busy && !moving && self.calls.is_empty() && self.scheduled() == 0
    }

    /// Tasks that still wait for their time.
    fn scheduled(&self) -> usize {
        let waiting = self.partitions.iter().map(|partition| {
            let filter =
                Filter { state: Some(TaskState::Scheduled), ..Filter::all(callers::shop()) };
            let page = ready(self.store.memory.list(partition, &filter, Position::START, 1_000));
            page.expect("is inside").items.len()
        });
        waiting.sum()
    }

    fn unrest(&self) -> String {
        let mut seen = format!("{} scheduled, {} calls", self.scheduled(), self.calls.len());
        for broker in &self.brokers {
            let loaded: usize = broker.owners.values().map(|held| held.owner.loaded()).sum();
            let owners: Vec<_> = broker.owners.keys().map(ToString::to_string).collect();
            seen += &format!(
                "; {} {:?} {owners:?} {loaded} loaded",
                broker.id.as_str(),
                broker.standing
            );
        }
        seen
    }

    /// Every partition has one owner, and nobody has many more than another.
    fn check_owners(&mut self) {
        let mut counts = BTreeMap::new();
        let mut vacant: BTreeSet<_> = self.partitions.iter().collect();
        for (number, broker) in self.brokers.iter().enumerate().filter(|(_, it)| it.is_alive()) {
            let says = broker.clock.at(self.now);
            let acting = broker.owners.iter().filter(|(_, held)| says < held.until);
            let acting: Vec<_> = acting.map(|(partition, _)| *partition).collect();
            counts.insert(number, acting.len());
            for partition in acting {
                if !vacant.remove(&partition) {
                    let seen = format!("{partition} has two");
                    self.witness.break_promise("every partition has one owner", seen);
                }
            }
        }
        if !vacant.is_empty() {
            let seen = format!("without one: {vacant:?}; {}", self.unrest());
            self.witness.break_promise("every partition has one owner", seen);
        }
        let (most, least) = (counts.values().max(), counts.values().min());
        if most.zip(least).is_some_and(|(most, least)| most - least > 1) {
            self.witness.break_promise("partitions are balanced", format!("{counts:?}"));
        }
    }

    /// By how much a delivery of a broker may be early: by whatever its clock is off, unless the others must have noticed.
    pub(crate) fn error_max(&self, number: usize) -> i64 {
        let since = match self.brokers[number].skewed_since {
            Some(since) => since,
            None if self.brokers[number].clock.ahead_ms(self.now) <= UNNOTICED_MS => {
                return UNNOTICED_MS;
            }
            // It has run past the edge by itself.
            None => return i64::MAX,
        };
        let others = self.brokers.iter().enumerate();
        let others =
            others.filter(|(other, it)| *other != number && it.standing == Standing::Runs).count();
        let calm_since = since.max(self.wrong_at);
        let noticed = others > 1
            && self.is_outvoted()
            && self.now - calm_since > 3 * self.plan.lease_ms + 1_000;
        let wrong =
            !self.cut_store.is_empty() || self.store_away || self.loss > 0 || self.slow_ms > 0;
        if noticed && !wrong { UNNOTICED_MS } else { i64::MAX }
    }

    /// Whether wrong clocks are not the most. Clocks that are wrong together are right, as far as anybody can know. The store has a vote,
    /// and it decides between two halves.
    fn is_outvoted(&self) -> bool {
        let running = self.brokers.iter().filter(|broker| broker.standing == Standing::Runs);
        let clocks = running.map(|broker| &broker.clock).chain([&self.store.clock]);
        let ahead: Vec<_> = clocks.map(|clock| clock.ahead_ms(self.now).unsigned_abs()).collect();
        let right = ahead.iter().filter(|ahead| **ahead <= 2 * CLOCK_ERROR_MS).count();
        2 * right >= ahead.len()
    }
}

/// What becomes of a message between brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    Open,
    /// Nobody knows.
    Lost,
    /// It was certainly not sent.
    None,
}

fn batch_of(question: &Question) -> Option<((PartitionId, Epoch), BatchNo)> {
    match question {
        Question::Owner(partition, epoch, OwnerAction::Apply(batch)) => {
            Some(((*partition, *epoch), batch.number))
        }
        _ => None,
    }
}

fn nothing_of(asked: &punctual_cluster::MemberAction) -> Nothing {
    use punctual_cluster::MemberAction;
    match asked {
        MemberAction::Heartbeat(_) => Nothing::Heard,
        MemberAction::Acquire(seat) => Nothing::Acquired(*seat),
        MemberAction::Renew(lease) => Nothing::Renewed(lease.seat),
        MemberAction::Release(lease) => Nothing::Released(lease.seat),
        MemberAction::Propose(..) => Nothing::Proposed,
        MemberAction::Leave | MemberAction::Directive(_) => Nothing::Deregistered,
    }
}

fn nothing_of_owner(action: &punctual_engine::Action) -> Nothing {
    use punctual_engine::Action;
    match action {
        Action::Load { .. } => Nothing::Loaded,
        Action::Lookup(looks) => Nothing::LookupResult(looks.clone()),
        Action::Sweep(_) => Nothing::Swept,
        _ => Nothing::Applied,
    }
}

fn away() -> StoreError {
    StoreError::Unavailable("no answer in time".into())
}

fn unanswered_member(nothing: Nothing) -> MemberEvent {
    match nothing {
        Nothing::Heard => MemberEvent::HeartbeatAnswered(Err(away())),
        Nothing::Acquired(seat) => MemberEvent::Acquired(seat, Err(away())),
        Nothing::Renewed(seat) => MemberEvent::Renewed(seat, Err(away())),
        Nothing::Released(seat) => MemberEvent::Released(seat, Err(away())),
        Nothing::Proposed => MemberEvent::Proposed(Err(away())),
        _ => MemberEvent::Deregistered(Err(away())),
    }
}

fn unanswered_owner(nothing: Nothing) -> ToOwner {
    match nothing {
        Nothing::Loaded => ToOwner::Loaded(Err(away())),
        Nothing::LookupResult(looks) => {
            let looked = looks.into_iter().map(|look| LookupResult { look, result: Err(away()) });
            ToOwner::LookupResult(looked.collect())
        }
        Nothing::Swept => ToOwner::Swept(Err(away())),
        _ => ToOwner::Applied(Err(away())),
    }
}
