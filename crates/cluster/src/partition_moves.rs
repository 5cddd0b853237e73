//! Partition moves: what a broker does with its owners when partitions come and go, as a plain
//! value.
//!
//! Its inputs are the [`Directive`]s of the member, what owners and other brokers answer, and the
//! time. Its outputs are [`MoveAction`]s: start, extend, stop and end owners, notify a successor,
//! answer an offer, report to the member. `server` carries them out with threads and connections,
//! `sim` with events; neither decides anything.
//!
//! At most one owner of a partition runs on this broker. The deliveries that it has in flight when
//! it stops belong to the next owner: the successor gets them with the offer. After a failed
//! hand-over they stay here, for an owner with the very next epoch; any other epoch means that
//! another broker has owned the partition since. An offer counts for [`TAKE_MAX`], because its list
//! is out of date afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::{BrokerId, Epoch, PartitionId, Timestamp};

use crate::event::{Directive, MemberEvent};

/// How long the successor of a partition may take to confirm a hand-over. The lease is free by
/// then, so the successor can take the partition even if its confirmation is late.
const TAKE_MAX: Duration = Duration::from_secs(1);

/// How long an orphan report is passed on: longer than a hand-over or a take-over with a usual
/// lease. Without the report, the present owner settles the delivery as expired.
pub const ORPHAN_FORWARD_MAX: Duration = Duration::from_secs(10);
/// How long after a failed try an orphan report is tried again, at the broker that then holds the
/// lease of its partition.
pub const ORPHAN_RETRY_EVERY: Duration = Duration::from_millis(100);

/// What moves of partitions depend on. `D` is a delivery in flight, and `R` is what the broker
/// needs to answer an offer; this crate only keeps them.
#[derive(Debug)]
pub enum MoveEvent<D, R> {
    /// A directive of the member. Those that are not about one partition change nothing here.
    Directive(Directive),
    /// The answer to [`MoveAction::Stop`].
    Stopped {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
        /// What it still has in flight.
        in_flight: Vec<D>,
    },
    /// An owner has stopped on its own, or could not be started.
    Ended {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
    },
    /// The answer to [`MoveAction::Notify`].
    Notified {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the previous owner, on this broker.
        epoch: Epoch,
        /// The broker that was notified.
        successor: BrokerId,
        /// The epoch of the new owner. `None` if the successor refused, could not be reached, or
        /// did not confirm in time.
        taken: Option<Epoch>,
    },
    /// Another broker has released a partition for this one.
    Offered {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the previous owner, on the other broker.
        before: Epoch,
        /// What it had in flight.
        in_flight: Vec<D>,
        /// Returned in [`MoveAction::Answer`], exactly once.
        reply: R,
    },
    /// This broker leaves the cluster: it takes no more partitions.
    Leave,
}

/// What the broker is to do, in this order.
#[derive(Debug)]
pub enum MoveAction<D, R> {
    /// Start an owner. Send [`MoveEvent::Ended`] if that fails, or when it stops on its own.
    Start {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
        /// The owner may act before this instant.
        until: Timestamp,
        /// Deliveries that it inherits, and must not send again.
        in_flight: Vec<D>,
    },
    /// The lease of an owner was renewed.
    Extend {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
        /// The owner may act before this instant.
        until: Timestamp,
    },
    /// Ask an owner to stop, and send [`MoveEvent::Stopped`] when none of its writes is in flight.
    /// An owner that has ended in the meantime has nothing in flight.
    Stop {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
    },
    /// End an owner at once, if it still runs, and remove it.
    End {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the owner.
        epoch: Epoch,
    },
    /// Offer a released partition to its successor, and send [`MoveEvent::Notified`] when it has
    /// answered, or when it has not.
    Notify {
        /// The partition.
        partition: PartitionId,
        /// The epoch of the previous owner, on this broker.
        epoch: Epoch,
        /// The broker to notify.
        successor: BrokerId,
        /// What the previous owner has in flight.
        in_flight: Vec<D>,
        /// How long the successor may take.
        within: Duration,
    },
    /// The successor has taken a partition: forward its calls and reports there.
    HandedOver {
        /// The partition.
        partition: PartitionId,
        /// The new owner.
        successor: BrokerId,
        /// The epoch of the new owner.
        epoch: Epoch,
        /// How long the partition had no owner that takes calls.
        took: Duration,
    },
    /// Answer the offer of another broker.
    Answer {
        /// From [`MoveEvent::Offered`].
        reply: R,
        /// The epoch of the owner that runs here; `None` if this broker does not take the
        /// partition.
        taken: Option<Epoch>,
    },
    /// Pass this to the member.
    Report(MemberEvent),
}

/// The partitions that come to this broker, are here, or leave it.
#[derive(Debug)]
pub struct PartitionMoves<D, R> {
    local: BTreeMap<PartitionId, LocalPartition<D>>,
    /// At most one per partition: the one with the greatest epoch.
    offers: BTreeMap<PartitionId, PendingOffer<D, R>>,
    leaving: bool,
    actions: Vec<MoveAction<D, R>>,
}

/// A partition that this broker owns or hands over.
#[derive(Debug)]
struct LocalPartition<D> {
    epoch: Epoch,
    phase: LocalPhase<D>,
}

#[derive(Debug)]
enum LocalPhase<D> {
    Running,
    /// The owner is to stop, since this instant.
    Stopping(Timestamp),
    /// The owner has stopped. Kept until the successor has confirmed, or another owner starts.
    Stopped {
        since: Timestamp,
        in_flight: Vec<D>,
        /// The broker that is being notified.
        successor: Option<BrokerId>,
    },
}

/// A partition that another broker has released for this one.
#[derive(Debug)]
struct PendingOffer<D, R> {
    before: Epoch,
    in_flight: Vec<D>,
    reply: R,
    until: Timestamp,
}

impl<D> LocalPartition<D> {
    /// Returns the epoch of the owner if it has not stopped.
    fn running(&self) -> Option<Epoch> {
        let stopped = matches!(self.phase, LocalPhase::Stopped { .. });
        (!stopped).then_some(self.epoch)
    }
}

impl<D, R> Default for PartitionMoves<D, R> {
    fn default() -> Self {
        Self {
            local: BTreeMap::new(),
            offers: BTreeMap::new(),
            leaving: false,
            actions: Vec::new(),
        }
    }
}

impl<D: Clone, R> PartitionMoves<D, R> {
    /// Handles an event.
    pub fn on(&mut self, event: MoveEvent<D, R>, now: Timestamp) {
        self.expire_offers(now);
        match event {
            MoveEvent::Directive(directive) => self.on_directive(directive, now),
            MoveEvent::Stopped { partition, epoch, in_flight } => {
                self.on_stopped(partition, epoch, in_flight)
            }
            MoveEvent::Ended { partition, epoch } => self.on_ended(partition, epoch),
            MoveEvent::Notified { partition, epoch, successor, taken } => {
                self.on_notified(partition, epoch, successor, taken, now)
            }
            MoveEvent::Offered { partition, before, in_flight, reply } => {
                let offer = PendingOffer { before, in_flight, reply, until: now.after(TAKE_MAX) };
                self.on_offered(partition, offer)
            }
            MoveEvent::Leave => {
                self.leaving = true;
                self.report(MemberEvent::Leave);
            }
        }
    }

    /// Returns what is to be done.
    pub fn act(&mut self, now: Timestamp) -> Vec<MoveAction<D, R>> {
        self.expire_offers(now);
        std::mem::take(&mut self.actions)
    }

    /// Returns when to call `act` again if no event arrives before.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Timestamp> {
        self.offers.values().map(|offer| offer.until).min()
    }

    fn on_directive(&mut self, directive: Directive, now: Timestamp) {
        match directive {
            Directive::Start { partition, epoch, until } => self.start(partition, epoch, until),
            Directive::Extend { partition, epoch, until } => {
                if self.is_running(partition, epoch) {
                    self.actions.push(MoveAction::Extend { partition, epoch, until });
                }
            }
            Directive::HandOver { partition, epoch, .. } => {
                let phase = LocalPhase::Stopping(now);
                let before = self.local.insert(partition, LocalPartition { epoch, phase });
                if before.is_some_and(|before| before.running() == Some(epoch)) {
                    self.actions.push(MoveAction::Stop { partition, epoch });
                } else {
                    self.on_stopped(partition, epoch, Vec::new());
                }
            }
            Directive::Released { partition, epoch, successor } => {
                self.notify(partition, epoch, successor)
            }
            Directive::Drop { partition, epoch } => {
                if self.local.get(&partition).is_some_and(|local| local.epoch == epoch) {
                    self.local.remove(&partition);
                    self.actions.push(MoveAction::End { partition, epoch });
                }
            }
            Directive::Publish(_) | Directive::Skew(_) | Directive::Left => {}
        }
    }

    /// Starts an owner, which inherits what was offered with the partition, or what was kept when
    /// it was last handed over.
    fn start(&mut self, partition: PartitionId, epoch: Epoch, until: Timestamp) {
        let started = LocalPartition { epoch, phase: LocalPhase::Running };
        let kept = match self.local.insert(partition, started) {
            Some(LocalPartition {
                epoch: stopped,
                phase: LocalPhase::Stopped { in_flight, .. },
            }) if stopped.next() == Some(epoch) => in_flight,
            _ => Vec::new(),
        };
        let offered = self.offers.get(&partition).is_some_and(|offer| offer.before < epoch);
        let offer = if offered { self.offers.remove(&partition) } else { None };
        let (in_flight, reply) = match offer {
            Some(offer) => (offer.in_flight, Some(offer.reply)),
            None => (kept, None),
        };
        self.actions.push(MoveAction::Start { partition, epoch, until, in_flight });
        let answer = reply.map(|reply| MoveAction::Answer { reply, taken: Some(epoch) });
        self.actions.extend(answer);
    }

    fn on_stopped(&mut self, partition: PartitionId, epoch: Epoch, in_flight: Vec<D>) {
        if self.stop(partition, epoch, in_flight) {
            self.report(MemberEvent::Quiet { partition, epoch });
        }
    }

    /// Handles an owner that stopped on its own. If it was to stop anyway, it is quiet now and has
    /// nothing to pass on.
    fn on_ended(&mut self, partition: PartitionId, epoch: Epoch) {
        if !self.is_running(partition, epoch) {
            return;
        }
        if !self.stop(partition, epoch, Vec::new()) {
            self.local.remove(&partition);
            self.actions.push(MoveAction::End { partition, epoch });
        }
        self.report(MemberEvent::Ended { partition, epoch });
    }

    /// Ends an owner that was to stop, and keeps its deliveries in flight. Returns whether there
    /// is such an owner.
    fn stop(&mut self, partition: PartitionId, epoch: Epoch, in_flight: Vec<D>) -> bool {
        let Some(local) = self.local.get_mut(&partition).filter(|local| local.epoch == epoch)
        else {
            return false;
        };
        let LocalPhase::Stopping(since) = local.phase else { return false };
        local.phase = LocalPhase::Stopped { since, in_flight, successor: None };
        self.actions.push(MoveAction::End { partition, epoch });
        true
    }

    fn notify(&mut self, partition: PartitionId, epoch: Epoch, to: Option<BrokerId>) {
        let local = self.local.get_mut(&partition).filter(|local| local.epoch == epoch);
        if let Some(to) = to
            && let Some(LocalPhase::Stopped { in_flight, successor, .. }) =
                local.map(|local| &mut local.phase)
        {
            *successor = Some(to.clone());
            let (in_flight, within) = (in_flight.clone(), TAKE_MAX);
            let notify = MoveAction::Notify { partition, epoch, successor: to, in_flight, within };
            return self.actions.push(notify);
        }
        self.report(MemberEvent::HandedOver { partition, epoch });
    }

    /// Handles the answer of a successor. One that is not waited for any more changes nothing.
    fn on_notified(
        &mut self,
        partition: PartitionId,
        epoch: Epoch,
        by: BrokerId,
        taken: Option<Epoch>,
        now: Timestamp,
    ) {
        let local = self.local.get_mut(&partition).filter(|local| local.epoch == epoch);
        let Some(LocalPhase::Stopped { since, successor, .. }) = local.map(|it| &mut it.phase)
        else {
            return;
        };
        if successor.take_if(|successor| *successor == by).is_none() {
            return;
        }
        let Some(taken) = taken else {
            return self.report(MemberEvent::HandOverFailed { partition, epoch });
        };
        let took = now.since(*since);
        self.local.remove(&partition);
        let handed = MoveAction::HandedOver { partition, successor: by, epoch: taken, took };
        self.actions.push(handed);
        self.report(MemberEvent::HandedOver { partition, epoch });
    }

    fn on_offered(&mut self, partition: PartitionId, offer: PendingOffer<D, R>) {
        if self.leaving {
            return self.actions.push(offer.refuse());
        }
        let newer = self.local.get(&partition).filter(|local| local.epoch > offer.before);
        if let Some(taken) = newer.map(LocalPartition::running) {
            return self.actions.push(MoveAction::Answer { reply: offer.reply, taken });
        }
        // An offer that was delayed does not replace a newer one.
        let newer = self.offers.get(&partition).is_some_and(|other| other.before > offer.before);
        let refused = if newer { Some(offer) } else { self.offers.insert(partition, offer) };
        self.actions.extend(refused.map(PendingOffer::refuse));
        self.report(MemberEvent::Offered { partition });
    }

    fn expire_offers(&mut self, now: Timestamp) {
        let expired = self.offers.extract_if(.., |_, offer| offer.until <= now);
        self.actions.extend(expired.map(|(_, offer)| offer.refuse()));
    }

    /// Returns whether an owner of this epoch runs, or is about to stop.
    fn is_running(&self, partition: PartitionId, epoch: Epoch) -> bool {
        self.local.get(&partition).and_then(LocalPartition::running) == Some(epoch)
    }

    fn report(&mut self, event: MemberEvent) {
        self.actions.push(MoveAction::Report(event));
    }
}

impl<D, R> PendingOffer<D, R> {
    fn refuse(self) -> MoveAction<D, R> {
        MoveAction::Answer { reply: self.reply, taken: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId::FIRST;
    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    /// Moves of one partition, with names for deliveries and offers.
    #[derive(Default)]
    struct Moves {
        value: PartitionMoves<&'static str, &'static str>,
        millis: u64,
    }

    impl Moves {
        /// Returns the actions after an event, as text.
        fn on(&mut self, event: MoveEvent<&'static str, &'static str>) -> Vec<String> {
            self.value.on(event, self.now());
            self.act()
        }

        fn act(&mut self) -> Vec<String> {
            self.value.act(self.now()).iter().map(text).collect()
        }

        fn pass(&mut self, millis: u64) {
            self.millis += millis;
        }

        fn now(&self) -> Timestamp {
            NOW.after(Duration::from_millis(self.millis))
        }

        fn start(&mut self, number: u32) -> Vec<String> {
            self.on(directive(Directive::Start { partition: P, epoch: epoch(number), until: NOW }))
        }

        fn hand_over(&mut self, number: u32) -> Vec<String> {
            let (partition, epoch, successor) = (P, epoch(number), None);
            self.on(directive(Directive::HandOver { partition, epoch, successor }))
        }

        fn stopped(&mut self, number: u32, in_flight: &[&'static str]) -> Vec<String> {
            let in_flight = in_flight.to_vec();
            self.on(MoveEvent::Stopped { partition: P, epoch: epoch(number), in_flight })
        }

        fn released(&mut self, number: u32, successor: Option<&str>) -> Vec<String> {
            let (partition, epoch, successor) = (P, epoch(number), successor.map(BrokerId::new));
            self.on(directive(Directive::Released { partition, epoch, successor }))
        }

        fn notified(&mut self, number: u32, by: &str, taken: Option<u32>) -> Vec<String> {
            let (successor, taken) = (BrokerId::new(by), taken.map(epoch));
            let epoch = epoch(number);
            self.on(MoveEvent::Notified { partition: P, epoch, successor, taken })
        }

        fn offered(
            &mut self,
            before: u32,
            in_flight: &[&'static str],
            reply: &'static str,
        ) -> Vec<String> {
            let (before, in_flight) = (epoch(before), in_flight.to_vec());
            self.on(MoveEvent::Offered { partition: P, before, in_flight, reply })
        }

        fn ended(&mut self, number: u32) -> Vec<String> {
            self.on(MoveEvent::Ended { partition: P, epoch: epoch(number) })
        }

        fn dropped(&mut self, number: u32) -> Vec<String> {
            self.on(directive(Directive::Drop { partition: P, epoch: epoch(number) }))
        }

        fn extended(&mut self, number: u32) -> Vec<String> {
            self.on(directive(Directive::Extend { partition: P, epoch: epoch(number), until: NOW }))
        }
    }

    /// Returns moves whose owner with epoch 3 has stopped with two deliveries in flight.
    fn stopped() -> Moves {
        let mut moves = Moves::default();
        moves.start(3);
        moves.hand_over(3);
        moves.stopped(3, &["x", "y"]);
        moves
    }

    fn directive(directive: Directive) -> MoveEvent<&'static str, &'static str> {
        MoveEvent::Directive(directive)
    }

    fn epoch(number: u32) -> Epoch {
        Epoch::new(number).unwrap()
    }

    fn text(action: &MoveAction<&'static str, &'static str>) -> String {
        match action {
            MoveAction::Start { epoch, in_flight, .. } => {
                format!("start {} with {in_flight:?}", epoch.get())
            }
            MoveAction::Extend { epoch, .. } => format!("extend {}", epoch.get()),
            MoveAction::Stop { epoch, .. } => format!("stop {}", epoch.get()),
            MoveAction::End { epoch, .. } => format!("end {}", epoch.get()),
            MoveAction::Notify { epoch, successor, in_flight, within, .. } => {
                format!("notify {successor} of {} with {in_flight:?} in {within:?}", epoch.get())
            }
            MoveAction::HandedOver { successor, epoch, took, .. } => {
                format!("{successor} has it as {} after {took:?}", epoch.get())
            }
            MoveAction::Answer { reply, taken: Some(epoch) } => {
                format!("confirm {reply} as {}", epoch.get())
            }
            MoveAction::Answer { reply, taken: None } => format!("refuse {reply}"),
            MoveAction::Report(event) => match event {
                MemberEvent::Quiet { epoch, .. } => format!("report quiet {}", epoch.get()),
                MemberEvent::HandedOver { epoch, .. } => {
                    format!("report handed over {}", epoch.get())
                }
                MemberEvent::HandOverFailed { epoch, .. } => {
                    format!("report failed {}", epoch.get())
                }
                MemberEvent::Ended { epoch, .. } => format!("report ended {}", epoch.get()),
                MemberEvent::Offered { .. } => "report offered".to_owned(),
                event => format!("report {event:?}"),
            },
        }
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn a_partition_is_handed_over_with_its_deliveries_in_flight() {
        let mut moves = Moves::default();
        assert_eq!(moves.start(3), ["start 3 with []"]);
        assert_eq!(moves.extended(3), ["extend 3"]);
        assert_eq!(moves.hand_over(3), ["stop 3"]);
        moves.pass(40);
        assert_eq!(moves.extended(3), ["extend 3"], "it still writes");
        assert_eq!(moves.stopped(3, &["x", "y"]), ["end 3", "report quiet 3"]);
        assert_eq!(moves.extended(3), NOTHING);
        let notified = ["notify b:1 of 3 with [\"x\", \"y\"] in 1s"];
        assert_eq!(moves.released(3, Some("b:1")), notified);
        moves.pass(30);
        let done = ["b:1 has it as 4 after 70ms", "report handed over 3"];
        assert_eq!(moves.notified(3, "b:1", Some(4)), done);
        assert_eq!(moves.released(3, Some("c:1")), ["report handed over 3"], "nothing is kept");
    }

    #[test]
    fn the_successor_starts_with_what_was_offered_and_confirms() {
        let mut moves = Moves::default();
        assert_eq!(moves.offered(3, &["x", "y"], "a"), ["report offered"]);
        assert_eq!(moves.start(4), ["start 4 with [\"x\", \"y\"]", "confirm a as 4"]);
        assert_eq!(moves.value.wakes_at(), None);
    }

    #[test]
    fn an_owner_inherits_only_what_no_other_owner_can_have_sent_again() {
        // After a failed hand-over of epoch 3: the next epoch, and what its owner inherits.
        for (next, inherited) in [(4, "[\"x\", \"y\"]"), (5, "[]"), (9, "[]")] {
            let mut moves = stopped();
            moves.released(3, Some("b:1"));
            assert_eq!(moves.notified(3, "b:1", None), ["report failed 3"]);
            assert_eq!(moves.start(next), [format!("start {next} with {inherited}")]);
            moves.ended(next);
            assert_eq!(moves.start(next + 1), [format!("start {} with []", next + 1)], "once");
        }
    }

    #[test]
    fn what_is_offered_replaces_what_was_kept() {
        let mut moves = stopped();
        assert_eq!(moves.offered(4, &["z"], "c"), ["report offered"]);
        assert_eq!(moves.start(5), ["start 5 with [\"z\"]", "confirm c as 5"]);
    }

    #[test]
    fn another_successor_is_notified_after_one_that_failed() {
        let mut moves = stopped();
        moves.released(3, Some("b:1"));
        assert_eq!(moves.notified(3, "b:1", None), ["report failed 3"]);
        assert_eq!(moves.notified(3, "b:1", None), NOTHING, "reported once");
        let notified = ["notify c:1 of 3 with [\"x\", \"y\"] in 1s"];
        assert_eq!(moves.released(3, Some("c:1")), notified);
        assert_eq!(moves.notified(3, "b:1", Some(4)), NOTHING, "not waited for any more");
        let done = ["c:1 has it as 5 after 0ns", "report handed over 3"];
        assert_eq!(moves.notified(3, "c:1", Some(5)), done);
        assert_eq!(moves.start(6), ["start 6 with []"]);
    }

    #[test]
    fn without_a_successor_the_hand_over_is_done_and_the_deliveries_are_kept() {
        let mut moves = stopped();
        assert_eq!(moves.released(3, None), ["report handed over 3"]);
        assert_eq!(moves.start(4), ["start 4 with [\"x\", \"y\"]"]);
    }

    #[test]
    fn a_confirmation_after_the_next_start_changes_nothing() {
        let mut moves = stopped();
        moves.released(3, Some("b:1"));
        moves.start(4);
        assert_eq!(moves.notified(3, "b:1", Some(5)), NOTHING);
        assert_eq!(moves.extended(4), ["extend 4"]);
    }

    #[test]
    fn an_offer_that_is_not_taken_in_time_is_refused_and_not_inherited() {
        let mut moves = Moves::default();
        moves.offered(3, &["x"], "a");
        assert_eq!(moves.value.wakes_at(), Some(NOW.after(TAKE_MAX)));
        moves.pass(999);
        assert_eq!(moves.act(), NOTHING);
        moves.pass(1);
        assert_eq!(moves.act(), ["refuse a"]);
        assert_eq!(moves.start(4), ["start 4 with []"]);
        // The same if the broker was suspended meanwhile and starts the owner first.
        let mut moves = Moves::default();
        moves.offered(3, &["x"], "a");
        moves.pass(30_000);
        assert_eq!(moves.start(4), ["refuse a", "start 4 with []"]);
    }

    #[test]
    fn an_offer_is_answered_at_once_if_an_owner_with_a_later_epoch_is_here() {
        let mut moves = Moves::default();
        moves.start(4);
        assert_eq!(moves.offered(3, &["x"], "a"), ["confirm a as 4"]);
        moves.hand_over(4);
        assert_eq!(moves.offered(3, &["x"], "b"), ["confirm b as 4"]);
        moves.stopped(4, &["y"]);
        assert_eq!(moves.offered(3, &["x"], "c"), ["refuse c"], "it is out of date");
        assert_eq!(moves.start(5), ["start 5 with [\"y\"]"]);
    }

    #[test]
    fn of_two_offers_the_one_with_the_later_epoch_counts() {
        for late in [false, true] {
            let mut moves = Moves::default();
            let offers = [(3, "x", "a"), (5, "z", "c")];
            let (first, second) = if late { (1, 0) } else { (0, 1) };
            let (before, delivery, reply) = offers[first];
            moves.offered(before, &[delivery], reply);
            let (before, delivery, reply) = offers[second];
            assert_eq!(moves.offered(before, &[delivery], reply), ["refuse a", "report offered"]);
            assert_eq!(moves.start(6), ["start 6 with [\"z\"]", "confirm c as 6"]);
        }
    }

    #[test]
    fn an_offer_waits_for_an_owner_with_a_later_epoch() {
        let mut moves = Moves::default();
        moves.offered(5, &["x"], "a");
        assert_eq!(moves.start(5), ["start 5 with []"], "the lease is another broker's by now");
        moves.dropped(5);
        assert_eq!(moves.start(6), ["start 6 with [\"x\"]", "confirm a as 6"]);
    }

    #[test]
    fn a_broker_that_leaves_refuses_offers() {
        let mut moves = Moves::default();
        moves.start(4);
        assert_eq!(moves.on(MoveEvent::Leave), ["report Leave"]);
        assert_eq!(moves.offered(3, &["x"], "a"), ["refuse a"]);
        assert_eq!(moves.offered(5, &["x"], "b"), ["refuse b"]);
        assert_eq!(moves.value.wakes_at(), None);
    }

    #[test]
    fn an_owner_whose_lease_is_lost_ends_and_nothing_of_it_is_inherited() {
        let mut running = Moves::default();
        running.start(3);
        let mut stopping = Moves::default();
        stopping.start(3);
        stopping.hand_over(3);
        for mut moves in [running, stopping, stopped()] {
            assert_eq!(moves.dropped(2), NOTHING, "an earlier epoch");
            assert_eq!(moves.dropped(3), ["end 3"]);
            assert_eq!(moves.stopped(3, &["x"]), NOTHING);
            assert_eq!(moves.ended(3), NOTHING);
            assert_eq!(moves.start(4), ["start 4 with []"]);
        }
    }

    #[test]
    fn an_owner_that_stops_on_its_own_is_reported_once() {
        let mut moves = Moves::default();
        moves.start(3);
        assert_eq!(moves.ended(2), NOTHING, "an earlier epoch");
        assert_eq!(moves.ended(3), ["end 3", "report ended 3"]);
        assert_eq!(moves.ended(3), NOTHING);
        assert_eq!(moves.start(4), ["start 4 with []"]);
    }

    #[test]
    fn the_successor_is_notified_even_if_the_owner_stops_on_its_own() {
        let notified = ["notify b:1 of 3 with [] in 1s"];
        // Before it was to stop.
        let mut moves = Moves::default();
        moves.start(3);
        moves.ended(3);
        assert_eq!(moves.hand_over(3), ["end 3", "report quiet 3"]);
        assert_eq!(moves.released(3, Some("b:1")), notified);
        // While it was to stop.
        let mut moves = Moves::default();
        moves.start(3);
        moves.hand_over(3);
        assert_eq!(moves.ended(3), ["end 3", "report ended 3"]);
        assert_eq!(moves.stopped(3, &[]), NOTHING, "it is quiet already");
        assert_eq!(moves.released(3, Some("b:1")), notified);
    }

    #[test]
    fn a_release_of_an_owner_that_was_never_here_is_done_at_once() {
        let mut moves = Moves::default();
        assert_eq!(moves.released(3, Some("b:1")), ["report handed over 3"]);
        moves.start(4);
        assert_eq!(moves.released(3, Some("b:1")), ["report handed over 3"]);
        assert_eq!(moves.notified(3, "b:1", Some(5)), NOTHING);
    }
}
