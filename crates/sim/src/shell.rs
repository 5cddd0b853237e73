//! The shell of a broker: does what its member and its owners want done.
//!
//! In: mail for a broker. Out: questions to the store, deliveries, words to other brokers. The counterpart of
//! `server/src/cluster.rs` and of the shells of `engine` and `cluster`.

use punctual_cluster::{Directive, MemberAction, MemberEvent};
use punctual_core::{BrokerId, Epoch, Outcome, PartitionId, Reason, Target, Timestamp};
use punctual_engine::{
    Action as OwnerAction, Budget, Delivery, EngineError, Event as ToOwner, InFlight, Owner,
    OwnerConfig, Ownership, Reply, Report,
};
use punctual_store::Retention;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::broker::{Held, Open, Parting, Standing, Taking};
use crate::mail::What;
use crate::store::{Answer as StoreAnswer, Question};
use crate::variant::Variant;
use crate::witness::{Seen, describe};
use crate::world::{Passage, World};

/// How long the successor of a partition may take to say that it has it.
const TAKE_MAX_MS: u64 = 1_000;
/// How long, and how often, what came of a delivery is told to the owner of then.
const STRAY_MAX_MS: u64 = 10_000;
pub(crate) const STRAY_EVERY_MS: u64 = 100;
/// Turns of a broker at one moment, at most.
const TURNS_MAX: u32 = 1_000;
/// How far ahead the clock of owners is that are early on purpose.
const EARLY_MS: u64 = 3_000;

impl World {
    /// Takes in what has come for a broker that runs.
    pub(crate) fn at_broker(&mut self, number: usize, what: What) {
        match what {
            What::Wake => {
                self.brokers[number].wakes_at = None;
                self.stir_due(number);
            }
            What::Answered(question, answer) => self.answered(number, question, Some(answer)),
            What::Unanswered(question) => self.answered(number, question, None),
            What::MemberActs(actions, then) => self.perform(number, actions, then),
            What::OwnerActs(partition, epoch, actions) => {
                self.perform_of_owner(number, partition, epoch, actions);
            }
            What::Back(partition, epoch, report) => {
                self.brokers[number].carried -= 1;
                self.report(number, partition, epoch, report);
            }
            What::Stray(partition, reports, until) => {
                self.brokers[number].carried -= 1;
                self.pass_on(number, partition, reports, until);
            }
            What::StrayHeard => self.brokers[number].carried -= 1,
            What::PassedOn { from, partition, reports, until } => {
                if self.brokers[number].decides(partition) {
                    self.tell_owner(number, partition, ToOwner::Ended(reports));
                    let at = self.now + self.travel();
                    self.mail.send(at, Some(from), What::StrayHeard);
                } else {
                    self.ask_who_owns(from.0, partition);
                    let at = self.now + STRAY_EVERY_MS;
                    self.mail.send(at, Some(from), What::Stray(partition, reports, until));
                }
            }
            What::Called(call) | What::AskAgain(call) => self.ask_once(number, call),
            What::Asked { from, call, partition, command } => {
                self.asked_by_peer(number, from, call, partition, *command);
            }
            What::Reply(call, answer) => self.told(number, call, *answer),
            What::Take { from, partition, before, flights } => {
                self.offered(number, from, partition, before, flights);
            }
            What::Taken { partition, before, by, epoch } => {
                self.handed_over(number, partition, before, by, epoch);
            }
            What::TakenLate { partition, before, by } => {
                self.handed_over(number, partition, before, by, None)
            }
            what => unreachable!("is not for a broker: {what:?}"),
        }
    }

    fn says(&self, number: usize) -> Timestamp {
        self.brokers[number].clock.at(self.now)
    }

    /// What owners take for the time.
    fn owners_say(&self, number: usize) -> Timestamp {
        let says = self.says(number);
        match self.variant {
            Variant::OwnersAreEarly => Timestamp::from_millis(says.as_millis() + EARLY_MS),
            _ => says,
        }
    }

    fn answered(&mut self, number: usize, question: u64, answer: Option<StoreAnswer>) {
        match self.take_answer(question, answer) {
            Some(StoreAnswer::Member(event)) => self.tell_member(number, event),
            Some(StoreAnswer::Owner(partition, epoch, event))
                if self.brokers[number].epoch(partition) == Some(epoch) =>
            {
                self.tell_owner(number, partition, event);
            }
            _ => {}
        }
    }

    pub(crate) fn tell_member(&mut self, number: usize, event: MemberEvent) {
        let says = self.says(number);
        let broker = &mut self.brokers[number];
        if let Some(member) = &mut broker.member {
            self.story.tell(self.now, || format!("  b{number} hears {}", short(&event)));
            member.on(event, says);
            broker.member_stirred = true;
        }
    }

    pub(crate) fn tell_owner(&mut self, number: usize, partition: PartitionId, event: ToOwner) {
        let says = self.owners_say(number);
        let broker = &mut self.brokers[number];
        if let Some(held) = broker.owners.get_mut(&partition) {
            self.story.tell(self.now, || {
                format!("  b{number} {partition} {} hears {}", held.epoch, short(&event))
            });
            held.owner.on(event, says);
            broker.stirred.insert(partition);
        }
    }

    pub(crate) fn stir_all(&mut self, number: usize) {
        let broker = &mut self.brokers[number];
        broker.member_stirred = true;
        broker.stirred.extend(broker.owners.keys().copied());
    }

    fn stir_due(&mut self, number: usize) {
        let (says, owners_say) = (self.says(number), self.owners_say(number));
        let broker = &mut self.brokers[number];
        let due = |at: Option<Timestamp>, says| at.is_some_and(|at| at <= says);
        broker.member_stirred |=
            broker.member.as_ref().is_some_and(|member| due(member.wakes_at(), says));
        for (partition, held) in &broker.owners {
            if due(held.owner.wakes_at(), owners_say) {
                broker.stirred.insert(*partition);
            }
        }
    }

    /// Lets a broker decide and act until nothing is left to do at this moment.
    pub(crate) fn drive(&mut self, number: usize) {
        for turn in 0.. {
            if !matches!(self.brokers[number].standing, Standing::Runs | Standing::Left) {
                return;
            }
            // What was answered counts from before what is decided next.
            let heard = self.collect(number);
            let acted = self.act_member(number) | self.act_owners(number);
            if !acted && !heard {
                break;
            }
            if turn > TURNS_MAX {
                let seen = format!("b{number} has always something to do");
                return self.witness.break_promise("no busy loop", seen);
            }
        }
        self.reply_taken(number);
        if self.brokers[number].standing == Standing::Left && self.brokers[number].carried == 0 {
            return self.kill(number);
        }
        self.set_alarm(number);
    }

    fn set_alarm(&mut self, number: usize) {
        let now = self.now;
        let ahead = if self.variant == Variant::OwnersAreEarly { EARLY_MS } else { 0 };
        let broker = &mut self.brokers[number];
        let member = broker.member.as_ref().and_then(|member| member.wakes_at());
        let owners = broker.owners.values().filter_map(|held| held.owner.wakes_at());
        let owners = owners.map(|at| at.millis_before(ahead));
        let Some(at) = owners.chain(member).min() else { return };
        let at = broker.clock.when(at, now).max(now + 1);
        if broker.wakes_at.is_none_or(|known| at < known) {
            broker.wakes_at = Some(at);
            self.mail.send(at, Some((number, broker.life)), What::Wake);
        }
    }

    /// Whether it is paused between deciding and doing.
    fn freezes(&mut self, number: usize, what: impl FnOnce() -> What) -> Option<What> {
        let what = what();
        if self.brokers[number].standing != Standing::Runs {
            return Some(what);
        }
        let Some(millis) = self.brokers[number].freezes.take() else { return Some(what) };
        self.story
            .tell(self.now, || format!("b{number} is frozen before it does what it has decided"));
        let broker = &mut self.brokers[number];
        broker.standing = Standing::Paused;
        broker.inbox.push_front(what);
        let wake = What::Fault(crate::faults::Fault::Wake(number));
        self.mail.send(self.now + millis, None, wake);
        None
    }

    fn act_member(&mut self, number: usize) -> bool {
        let says = self.says(number);
        let broker = &mut self.brokers[number];
        if !std::mem::take(&mut broker.member_stirred) {
            return false;
        }
        let Some(member) = &mut broker.member else { return false };
        let actions = member.act(says);
        if actions.is_empty() {
            return false;
        }
        if let Some(What::MemberActs(actions, then)) =
            self.freezes(number, || What::MemberActs(actions, says))
        {
            self.perform(number, actions, then);
        }
        true
    }

    fn perform(&mut self, number: usize, actions: Vec<MemberAction>, then: Timestamp) {
        for action in actions {
            match action {
                MemberAction::Directive(order) => self.obey(number, order),
                asked => self.ask(number, Question::Member(asked, then)),
            }
        }
    }

    fn act_owners(&mut self, number: usize) -> bool {
        let says = self.owners_say(number);
        let mut acted = false;
        while self.brokers[number].standing != Standing::Paused
            && let Some(partition) = self.brokers[number].stirred.pop_first()
        {
            let Some(held) = self.brokers[number].owners.get_mut(&partition) else { continue };
            let epoch = held.epoch;
            let actions = held.owner.act(says);
            if actions.is_empty() {
                continue;
            }
            acted = true;
            let what = self.freezes(number, || What::OwnerActs(partition, epoch, actions));
            if let Some(What::OwnerActs(partition, epoch, actions)) = what {
                self.perform_of_owner(number, partition, epoch, actions);
            }
        }
        acted
    }

    fn perform_of_owner(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        actions: Vec<OwnerAction>,
    ) {
        let ends = |action: &OwnerAction| matches!(action, OwnerAction::End | OwnerAction::Stop(_));
        if actions.iter().any(ends) {
            self.brokers[number].ended.insert((partition, epoch));
        }
        for action in actions {
            self.story.tell(self.now, || {
                format!("b{number} {partition} {epoch} wants {}", short(&action))
            });
            match action {
                OwnerAction::Deliver(deliveries) => {
                    for delivery in deliveries {
                        self.carry(number, partition, epoch, &delivery);
                    }
                }
                OwnerAction::OrphanReport(reports) => {
                    let until = self.now + STRAY_MAX_MS;
                    self.pass_on(number, partition, reports, until);
                }
                OwnerAction::Stop(_) => {
                    self.forget(number, partition, epoch);
                    self.tell_member(number, MemberEvent::Ended { partition, epoch });
                }
                // Whoever has ended it knows.
                OwnerAction::End => {}
                asked => self.ask(number, Question::Owner(partition, epoch, asked)),
            }
        }
    }

    // Orders of the member.

    fn obey(&mut self, number: usize, order: Directive) {
        if !matches!(order, Directive::Publish(_) | Directive::Extend { .. }) {
            self.story.tell(self.now, || format!("b{number} is to {order:?}"));
        }
        match order {
            Directive::Start { partition, epoch, until } => {
                self.start_owner(number, partition, epoch, until)
            }
            Directive::Extend { partition, epoch, until } => {
                if self.brokers[number].epoch(partition) == Some(epoch) {
                    if let Some(held) = self.brokers[number].owners.get_mut(&partition) {
                        held.until = held.until.max(until);
                    }
                    self.tell_owner(number, partition, ToOwner::Extend(until));
                }
            }
            Directive::HandOver { partition, epoch, .. } => {
                if self.brokers[number].epoch(partition) == Some(epoch) {
                    let (reply, flights) = oneshot::channel();
                    self.brokers[number].quieting.push((partition, epoch, flights));
                    self.tell_owner(number, partition, ToOwner::HandOver(reply));
                } else {
                    self.is_quiet(number, partition, epoch, Vec::new());
                }
            }
            Directive::Released { partition, epoch, successor } => {
                self.hand_over(number, partition, epoch, successor.as_ref())
            }
            Directive::Drop { partition, epoch } => {
                self.brokers[number].parting.remove(&partition);
                self.forget(number, partition, epoch);
            }
            Directive::Publish(view) => {
                for (partition, owner) in view.topology.owners() {
                    self.brokers[number].topology.note(
                        partition,
                        owner.broker.clone(),
                        owner.epoch,
                    );
                }
            }
            Directive::Skew(_) => {}
            Directive::Left => {
                self.brokers[number].standing = Standing::Left;
                self.brokers[number].member = None;
            }
        }
    }

    fn start_owner(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        until: Timestamp,
    ) {
        if self.variant == Variant::OwnersDoNotStart
            && partition.get() == 0
            && epoch.get().is_multiple_of(2)
        {
            return;
        }
        let until =
            if self.variant == Variant::OwnersIgnoreTheirLease { Timestamp::MAX } else { until };
        let says = self.owners_say(number);
        let budget = Budget { tasks: 1_000_000, payload_bytes: 1 << 30 };
        let terms = OwnerConfig { retention: Retention::default(), budget, keeps_batches: true };
        let mut owner = Owner::new(Ownership { partition, epoch, until }, terms, says);
        let broker = &mut self.brokers[number];
        let parting = broker.parting.remove(&partition);
        // What could not be told to an successor is still ours, if nobody had the partition in between.
        let kept = parting.filter(|parting| parting.epoch.next() == Some(epoch));
        let kept = kept.map(|parting| parting.flights);
        let flights = broker.offered.remove(&partition).or(kept).unwrap_or_default();
        self.figures.flights += flights.len() as u64;
        self.figures.owners += 1;
        owner.adopt(flights);
        broker.owners.insert(partition, Held { epoch, owner, until });
        broker.stirred.insert(partition);
    }

    fn forget(&mut self, number: usize, partition: PartitionId, epoch: Epoch) {
        if self.brokers[number].epoch(partition) != Some(epoch) {
            return;
        }
        // It ends, answers whom it can, and passes on what it has.
        self.tell_owner(number, partition, ToOwner::End);
        let says = self.owners_say(number);
        let Some(mut held) = self.brokers[number].owners.remove(&partition) else { return };
        for action in held.owner.act(says) {
            if let OwnerAction::OrphanReport(reports) = action {
                self.pass_on(number, partition, reports, self.now + STRAY_MAX_MS);
            }
        }
    }

    fn is_quiet(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        flights: Vec<InFlight>,
    ) {
        self.forget(number, partition, epoch);
        self.brokers[number].parting.insert(partition, Parting { epoch, flights, successor: None });
        self.tell_member(number, MemberEvent::Quiet { partition, epoch });
    }

    fn hand_over(
        &mut self,
        number: usize,
        partition: PartitionId,
        epoch: Epoch,
        successor: Option<&BrokerId>,
    ) {
        let successor = successor
            .and_then(|successor| self.brokers.iter().position(|broker| broker.id == *successor));
        let parting = self.brokers[number].parting.get_mut(&partition);
        let (Some(successor), Some(parting)) = (successor, parting.filter(|it| it.epoch == epoch))
        else {
            return self.tell_member(number, MemberEvent::HandedOver { partition, epoch });
        };
        parting.successor = Some(successor);
        let forgets = self.variant == Variant::HandOverForgetsFlights;
        let flights = if forgets { Vec::new() } else { parting.flights.clone() };
        let from = (number, self.brokers[number].life);
        let after = match self.way_to(number, successor) {
            Passage::Open => {
                let at = self.now + self.travel();
                let to = Some((successor, self.brokers[successor].life));
                self.mail.send(at, to, What::Take { from, partition, before: epoch, flights });
                TAKE_MAX_MS
            }
            Passage::Lost => TAKE_MAX_MS,
            Passage::None => 1,
        };
        let late = What::TakenLate { partition, before: epoch, by: successor };
        self.mail.send(self.now + after, Some(from), late);
    }

    /// Another broker has let go of a partition for this one.
    fn offered(
        &mut self,
        number: usize,
        from: (usize, u32),
        partition: PartitionId,
        before: Epoch,
        flights: Vec<InFlight>,
    ) {
        if self.brokers[number].is_leaving {
            return self.send_taken(number, from, partition, before, None);
        }
        self.brokers[number].offered.insert(partition, flights);
        self.brokers[number].taking.push(Taking { partition, before, from });
        self.tell_member(number, MemberEvent::Offered { partition });
    }

    fn reply_taken(&mut self, number: usize) {
        let taking = std::mem::take(&mut self.brokers[number].taking);
        for one in taking {
            let Taking { partition, before, from } = one;
            match self.brokers[number].epoch(partition).filter(|epoch| *epoch > before) {
                Some(epoch) => self.send_taken(number, from, partition, before, Some(epoch)),
                None => self.brokers[number].taking.push(one),
            }
        }
    }

    fn send_taken(
        &mut self,
        number: usize,
        to: (usize, u32),
        partition: PartitionId,
        before: Epoch,
        epoch: Option<Epoch>,
    ) {
        if self.way_to(number, to.0) == Passage::Open {
            let at = self.now + self.travel();
            self.mail.send(at, Some(to), What::Taken { partition, before, by: number, epoch });
        }
    }

    fn handed_over(
        &mut self,
        number: usize,
        partition: PartitionId,
        before: Epoch,
        by: usize,
        taken: Option<Epoch>,
    ) {
        let broker = &mut self.brokers[number];
        // One that was asked before another says nothing any more.
        let asked = broker.parting.get(&partition);
        if asked.is_none_or(|parting| (parting.epoch, parting.successor) != (before, Some(by))) {
            return;
        }
        let Some(epoch) = taken else {
            return self
                .tell_member(number, MemberEvent::HandOverFailed { partition, epoch: before });
        };
        broker.parting.remove(&partition);
        self.figures.hand_overs += 1;
        let successor = self.brokers[by].id.clone();
        self.brokers[number].topology.note(partition, successor, epoch);
        self.tell_member(number, MemberEvent::HandedOver { partition, epoch: before });
    }

    // What owners have said.

    /// Takes what has been answered since the last look. Out: whether anything was.
    fn collect(&mut self, number: usize) -> bool {
        let mut heard = false;
        for (partition, epoch, mut flights) in std::mem::take(&mut self.brokers[number].quieting) {
            match flights.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.brokers[number].quieting.push((partition, epoch, flights));
                    continue;
                }
                told => {
                    heard = true;
                    let told = told.unwrap_or(Err(EngineError::Stopped)).unwrap_or_default();
                    self.is_quiet(number, partition, epoch, told);
                }
            }
        }
        for mut open in std::mem::take(&mut self.brokers[number].open) {
            let answer = match open.answers.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.brokers[number].open.push(open);
                    continue;
                }
                Ok(answers) => answers.into_iter().next().unwrap_or(Err(EngineError::Lost)),
                Err(TryRecvError::Closed) => Err(EngineError::Lost),
            };
            heard = true;
            self.answer(number, open, answer);
        }
        heard
    }

    fn answer(&mut self, number: usize, open: Open, answer: Result<Reply, EngineError>) {
        let Open { call, from, command, epoch, .. } = open;
        self.story.tell(self.now, || format!("b{number} answers call {call}: {}", short(&answer)));
        self.witness.answered(&command, epoch, &answer, &self.store.disturbed);
        if from == (number, self.brokers[number].life) {
            return self.told(number, call, answer);
        }
        if self.way_to(number, from.0) == Passage::Open {
            let at = self.now + self.travel();
            self.mail.send(at, Some(from), What::Reply(call, Box::new(answer)));
        }
    }

    // Couriers.

    fn carry(&mut self, number: usize, partition: PartitionId, epoch: Epoch, delivery: &Delivery) {
        let says = self.says(number);
        let to = Some((number, self.brokers[number].life));
        self.brokers[number].carried += 1;
        if delivery.lease_end.is_over(says) {
            let back = What::Back(partition, epoch, delivery.report(None));
            return self.mail.send(self.now + 1, to, back);
        }
        let error_max = self.error_max(number);
        let seen = Seen { delivery, partition, epoch, now: self.now, says, error_max };
        self.witness.receive(&seen, &self.store.disturbed);
        let timeout = u64::try_from(delivery.definition.timeout.as_millis()).unwrap_or(u64::MAX);
        let (after, outcome) = self.receiver(delivery, timeout);
        self.story.tell(self.now, || {
            format!("b{number} sends {}: {} in {after} ms", describe(delivery), short(&outcome))
        });
        self.witness.says(delivery.fire_id, &outcome, after <= timeout);
        let outcome = match outcome {
            Outcome::Failed { .. } if self.variant == Variant::CouriersLie => Outcome::Acked,
            // The answer comes too late for the courier, though not for the receiver.
            _ if after > timeout => Outcome::Expired,
            outcome => outcome,
        };
        let back = What::Back(partition, epoch, delivery.report(Some(outcome)));
        self.mail.send(self.now + after.min(timeout), to, back);
    }

    /// What a receiver says, and after how long.
    fn receiver(&mut self, delivery: &Delivery, timeout: u64) -> (u64, Outcome) {
        let quick = self.dice.between(1, 40);
        let failed = Outcome::Failed { reason: Reason::new("HTTP 500"), retry_in: None };
        let Target::Http(http) = &delivery.definition.target else {
            return (quick, Outcome::Acked);
        };
        match http.url() {
            url if url.contains("flaky") => match self.dice.roll(6) {
                0 => (quick, Outcome::Acked),
                1 => (quick, Outcome::Refused { reason: Reason::new("HTTP 410") }),
                _ => (quick, failed),
            },
            url if url.contains("slow") => (self.dice.between(50, 3_500), Outcome::Acked),
            url if url.contains("never") => (timeout, Outcome::Expired),
            _ => (quick, Outcome::Acked),
        }
    }

    fn report(&mut self, number: usize, partition: PartitionId, epoch: Epoch, report: Report) {
        if self.brokers[number].epoch(partition) == Some(epoch) {
            return self.tell_owner(number, partition, ToOwner::Ended(vec![report]));
        }
        self.pass_on(number, partition, vec![report], self.now + STRAY_MAX_MS);
    }

    /// Tells whoever owns a partition now what came of deliveries, or tries again a little later.
    fn pass_on(&mut self, number: usize, partition: PartitionId, reports: Vec<Report>, until: u64) {
        let passed_on = |it: Report| Report::of(it.fire_id, it.attempt, it.fired_at, it.outcome);
        let reports: Vec<_> = reports.into_iter().map(passed_on).collect();
        if self.brokers[number].decides(partition) {
            return self.tell_owner(number, partition, ToOwner::Ended(reports));
        }
        if self.now >= until {
            return;
        }
        let from = (number, self.brokers[number].life);
        if let Some(peer) = self.elsewhere(number, partition)
            && self.way_to(number, peer) == Passage::Open
        {
            let at = self.now + self.travel();
            let to = Some((peer, self.brokers[peer].life));
            self.brokers[number].carried += 1;
            return self.mail.send(at, to, What::PassedOn { from, partition, reports, until });
        }
        self.brokers[number].carried += 1;
        let at = self.now + STRAY_EVERY_MS;
        self.mail.send(at, Some(from), What::Stray(partition, reports, until));
    }

    /// A broker that has left is told no more who owns what: it asks the store.
    fn ask_who_owns(&mut self, number: usize, partition: PartitionId) {
        if let Some(lease) = self.holder(partition) {
            self.brokers[number].topology.note(partition, lease.broker, lease.epoch);
        }
    }

    /// The other broker that has a partition, as far as this one knows.
    pub(crate) fn elsewhere(&self, number: usize, partition: PartitionId) -> Option<usize> {
        let owner = self.brokers[number].topology.owner(partition)?;
        let other = self.brokers.iter().position(|broker| broker.id == owner.broker)?;
        (other != number).then_some(other)
    }
}

/// The beginning of what something looks like.
fn short(what: &impl std::fmt::Debug) -> String {
    let text = format!("{what:?}");
    text.chars().take(220).collect()
}
