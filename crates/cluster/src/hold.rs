//! Holding: the life of one partition's lease at this broker.
//!
//! In: answers of the store about this seat, and words of the broker about its owner. Out: questions and [`Directive`]s. Whether the
//! partition is wanted, and who is to have it, is decided next door (`member`).
//!
//! ```text
//!            acquire              hand over          quiet             released           handed over
//!  Vacant ───────────▶ Owned ───────────────▶ Ending ──────▶ Releasing ─────────▶ Telling ────────────▶ Vacant
//!     ▲                  │ lost, ended by itself │ lost, or over │   another successor ▲     │ not told      ▲
//!     └──────────────────┴───────────────────────┴───────────────┘                └─ Untold ────────────┘
//! ```
//!
//! Invariants: the lease is released after the owner is quiet and before the successor is told. One question at a time. A lease whose
//! renewal is not answered is kept: its owner stands still once it is over, and goes on if nobody took it.

use punctual_core::{BrokerId, Lease, PartitionId, Seat, Timestamp};
use punctual_store::StoreError;

use crate::event::{Directive, MemberAction};
use crate::terms::MemberConfig;

/// Doublings of the pause after an owner that ended by itself, at most.
const BREAKS_MAX: u32 = 5;

/// One partition, as far as this broker has to do with it.
#[derive(Debug)]
pub(crate) struct Holding {
    partition: PartitionId,
    state: State,
    /// Owners in a row that soon came to their end by themselves.
    breaks: u32,
}

#[derive(Debug)]
enum State {
    Vacant(Vacant),
    Held(Held),
}

/// Not ours.
#[derive(Debug, Default)]
struct Vacant {
    /// When an acquisition under way was asked for.
    asked_at: Option<Timestamp>,
    /// Not before.
    try_at: Option<Timestamp>,
    /// Another holds it, and did so since.
    refused_since: Option<Timestamp>,
    /// Another let go of it for us. Counts for half a lease.
    offered_at: Option<Timestamp>,
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    /// When it became ours, by our clock, after the answer.
    since: Timestamp,
    /// When the question was asked whose answer the lease stands on.
    asked_at: Timestamp,
    /// A renewal or a release under way.
    asking: Option<Timestamp>,
    /// When to ask next.
    ask_at: Timestamp,
    phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Owned,
    /// The owner is to become quiet.
    Ending(Option<BrokerId>),
    /// It is; the lease is being given back.
    Releasing(Option<BrokerId>),
    /// It is given back; the successor is being told until then.
    Telling(BrokerId, Timestamp),
    /// The successor could not be told.
    Untold(Untold),
    /// No owner was started: it came when we wanted none any more.
    Refusing,
}

/// A partition that is given back, and of which nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Untold {
    /// Who could not be told.
    pub(crate) successor: BrokerId,
    pub(crate) since: Timestamp,
    /// Then we are no longer listed as the holder.
    pub(crate) until: Timestamp,
}

impl Holding {
    pub(crate) fn new(partition: PartitionId) -> Self {
        Self { partition, state: State::Vacant(Vacant::default()), breaks: 0 }
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The lease under which we are listed as the holder.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Held(held) if held.phase != Phase::Refusing => Some(&held.lease),
            _ => None,
        }
    }

    /// Since when it is ours and stays so.
    pub(crate) fn owned_since(&self) -> Option<Timestamp> {
        match &self.state {
            State::Held(held) if held.phase == Phase::Owned => Some(held.since),
            _ => None,
        }
    }

    /// Whether nothing is held and nothing asked for.
    pub(crate) fn is_vacant(&self) -> bool {
        matches!(&self.state, State::Vacant(vacant) if vacant.asked_at.is_none())
    }

    pub(crate) fn is_offered(&self, terms: &MemberConfig, now: Timestamp) -> bool {
        let State::Vacant(vacant) = &self.state else { return false };
        vacant.offered_at.is_some_and(|at| now.since(at) < terms.lease / 2)
    }

    /// When it may be asked for, unless it is ours or asked for already.
    pub(crate) fn try_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Vacant(vacant) if vacant.asked_at.is_none() => {
                Some(vacant.try_at.unwrap_or(Timestamp::EPOCH))
            }
            _ => None,
        }
    }

    pub(crate) fn acquire(&mut self, now: Timestamp) -> Option<MemberAction> {
        let State::Vacant(vacant) = &mut self.state else { return None };
        vacant.asked_at = Some(now);
        Some(MemberAction::Acquire(Seat::Partition(self.partition)))
    }

    pub(crate) fn offered(&mut self, now: Timestamp) {
        if let State::Vacant(vacant) = &mut self.state {
            vacant.offered_at = Some(now);
            vacant.try_at = None;
        }
    }

    /// The answer to an acquisition. Taken but not `wanted` any more, it is given back without an owner.
    pub(crate) fn acquired(
        &mut self,
        answer: Result<Lease, StoreError>,
        wanted: bool,
        terms: &MemberConfig,
        now: Timestamp,
    ) -> Option<Directive> {
        let State::Vacant(vacant) = &mut self.state else { return None };
        let asked_at = vacant.asked_at.take()?;
        match answer {
            Ok(lease) => {
                let (partition, epoch) = (self.partition, lease.epoch);
                let phase = if wanted { Phase::Owned } else { Phase::Refusing };
                let ask_at = if wanted { terms.renew_at(asked_at) } else { now };
                let held = Held { lease, since: now, asked_at, asking: None, ask_at, phase };
                self.state = State::Held(held);
                let until = terms.trusted_until(asked_at);
                wanted.then_some(Directive::Start { partition, epoch, until })
            }
            // It was let go of while the question was on its way.
            Err(StoreError::Held { .. }) if vacant.offered_at > Some(asked_at) => None,
            Err(StoreError::Held { .. }) => {
                // Its holder is not on the roll, so the lease must end soon, and nobody knows better when.
                let since = *vacant.refused_since.get_or_insert(now);
                let soon = now.since(since) < terms.lease * 2;
                let pause = if soon { terms.pause() } else { terms.heartbeat_every() };
                vacant.try_at = Some(now.after(pause));
                None
            }
            Err(error) => {
                tracing::warn!(partition = %self.partition, %error, "not_acquired");
                vacant.try_at = Some(now.after(terms.heartbeat_every()));
                None
            }
        }
    }

    pub(crate) fn renewed(
        &mut self,
        answer: Result<Lease, StoreError>,
        terms: &MemberConfig,
        now: Timestamp,
    ) -> Option<Directive> {
        let State::Held(held) = &mut self.state else { return None };
        let asked_at = held.asking.take()?;
        let (partition, epoch) = (self.partition, held.lease.epoch);
        match answer {
            Ok(_) => {
                held.asked_at = asked_at;
                let runs = matches!(held.phase, Phase::Owned | Phase::Ending(_));
                // Of one that became quiet meanwhile, giving it back is not put off.
                if held.phase == Phase::Owned {
                    held.ask_at = terms.renew_at(asked_at);
                }
                if now.since(held.since) > terms.lease {
                    self.breaks = 0;
                }
                let until = terms.trusted_until(asked_at);
                runs.then_some(Directive::Extend { partition, epoch, until })
            }
            Err(StoreError::Held { .. }) => {
                self.become_vacant(now);
                Some(Directive::Drop { partition, epoch })
            }
            Err(error) => {
                tracing::warn!(%partition, %epoch, %error, "not_renewed");
                if held.phase == Phase::Owned {
                    held.ask_at = now.after(terms.pause());
                }
                None
            }
        }
    }

    /// Executor an owned partition over.
    pub(crate) fn hand_over(&mut self, successor: Option<BrokerId>) -> Option<Directive> {
        let State::Held(held) = &mut self.state else { return None };
        if held.phase != Phase::Owned {
            return None;
        }
        held.phase = Phase::Ending(successor.clone());
        Some(Directive::HandOver { partition: self.partition, epoch: held.lease.epoch, successor })
    }

    pub(crate) fn quiet(&mut self, now: Timestamp) {
        if let State::Held(held) = &mut self.state
            && let Phase::Ending(successor) = &held.phase
        {
            held.phase = Phase::Releasing(successor.clone());
            held.ask_at = now;
        }
    }

    /// The owner came to its end by itself. One that was to become quiet is quiet now.
    pub(crate) fn ended(&mut self, terms: &MemberConfig, now: Timestamp) {
        let State::Held(held) = &self.state else { return };
        match held.phase {
            Phase::Owned => {
                let pause = terms.pause() * (1 << self.breaks);
                self.breaks = (self.breaks + 1).min(BREAKS_MAX);
                self.become_vacant(now.after(pause));
            }
            _ => self.quiet(now),
        }
    }

    pub(crate) fn released(
        &mut self,
        answer: Result<(), StoreError>,
        terms: &MemberConfig,
        now: Timestamp,
    ) -> Option<Directive> {
        let State::Held(held) = &mut self.state else { return None };
        held.asking.take()?;
        match answer {
            Ok(()) => self.is_released(terms, now),
            Err(error) => {
                tracing::warn!(partition = %self.partition, %error, "not_released");
                held.ask_at = now.after(terms.pause());
                None
            }
        }
    }

    pub(crate) fn handed_over(&mut self, now: Timestamp) {
        if matches!(&self.state, State::Held(Held { phase: Phase::Telling(..), .. })) {
            self.become_vacant(now);
        }
    }

    pub(crate) fn not_told(&mut self, now: Timestamp) {
        if let State::Held(held) = &mut self.state
            && let Phase::Telling(successor, until) = &held.phase
        {
            let (successor, until) = (successor.clone(), *until);
            held.phase = Phase::Untold(Untold { successor, since: now, until });
        }
    }

    /// If it is given back and the successor could not be told.
    pub(crate) fn untold(&self) -> Option<&Untold> {
        match &self.state {
            State::Held(Held { phase: Phase::Untold(untold), .. }) => Some(untold),
            _ => None,
        }
    }

    /// One that could not be told to its successor goes to another.
    pub(crate) fn tell(
        &mut self,
        successor: BrokerId,
        terms: &MemberConfig,
        now: Timestamp,
    ) -> Option<Directive> {
        self.untold()?;
        let State::Held(held) = &mut self.state else { return None };
        held.phase = Phase::Telling(successor.clone(), now.after(terms.lease / 2));
        let (partition, epoch) = (self.partition, held.lease.epoch);
        Some(Directive::Released { partition, epoch, successor: Some(successor) })
    }

    /// One that could not be told to its successor is left to it all the same.
    pub(crate) fn let_go(&mut self, now: Timestamp) {
        self.become_vacant(now);
    }

    /// One that could not be told to its successor is asked for again.
    pub(crate) fn take_back(&mut self, now: Timestamp) {
        self.become_vacant(now);
        self.offered(now);
    }

    /// What its time has come for.
    pub(crate) fn act(&mut self, terms: &MemberConfig, now: Timestamp) -> Option<MemberAction> {
        if self.wakes_at(terms)? > now {
            return None;
        }
        let State::Held(held) = &mut self.state else { return None };
        let (partition, epoch) = (self.partition, held.lease.epoch);
        let over = now >= terms.over_at(held.asked_at);
        match held.phase {
            Phase::Owned => {
                held.asking = Some(now);
                Some(MemberAction::Renew(held.lease.clone()))
            }
            Phase::Ending(_) => {
                // Not quiet in all that time: it stood still when its lease was over, and now others may take it.
                self.become_vacant(now);
                Some(MemberAction::Directive(Directive::Drop { partition, epoch }))
            }
            Phase::Releasing(_) | Phase::Refusing if over => {
                self.is_released(terms, now).map(MemberAction::Directive)
            }
            Phase::Releasing(_) | Phase::Refusing => {
                held.asking = Some(now);
                Some(MemberAction::Release(held.lease.clone()))
            }
            Phase::Telling(..) | Phase::Untold(_) => {
                self.become_vacant(now);
                None
            }
        }
    }

    /// When it has something to do without being asked.
    pub(crate) fn wakes_at(&self, terms: &MemberConfig) -> Option<Timestamp> {
        let State::Held(held) = &self.state else { return None };
        match held.phase {
            _ if held.asking.is_some() => None,
            Phase::Owned | Phase::Releasing(_) | Phase::Refusing => Some(held.ask_at),
            Phase::Ending(_) => Some(terms.over_at(held.asked_at)),
            Phase::Telling(_, until) | Phase::Untold(Untold { until, .. }) => Some(until),
        }
    }

    /// The lease is given back, or over.
    fn is_released(&mut self, terms: &MemberConfig, now: Timestamp) -> Option<Directive> {
        let State::Held(held) = &mut self.state else { return None };
        let (partition, epoch) = (self.partition, held.lease.epoch);
        let successor = match &held.phase {
            Phase::Releasing(successor) => successor.clone(),
            _ => {
                self.become_vacant(now);
                return None;
            }
        };
        match successor {
            Some(ref successor) => {
                held.phase = Phase::Telling(successor.clone(), now.after(terms.lease / 2));
            }
            None => self.become_vacant(now),
        }
        Some(Directive::Released { partition, epoch, successor })
    }

    fn become_vacant(&mut self, try_at: Timestamp) {
        self.state = State::Vacant(Vacant { try_at: Some(try_at), ..Vacant::default() });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::{Epoch, Partitions};

    use super::*;

    const SEAT: Seat = Seat::Partition(PartitionId::FIRST);
    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn terms() -> MemberConfig {
        MemberConfig {
            me: BrokerId::new("a:1"),
            partitions: Partitions::ONE,
            lease: Duration::from_secs(10),
            skew_max: Duration::from_millis(250),
        }
    }

    fn at(millis: u64) -> Timestamp {
        NOW.after(Duration::from_millis(millis))
    }

    fn lease() -> Lease {
        let epoch = Epoch::new(3).unwrap();
        Lease { seat: SEAT, broker: BrokerId::new("a:1"), epoch, until: at(10_000) }
    }

    fn away() -> StoreError {
        StoreError::Unavailable("away".into())
    }

    /// Asked for at 0, answered at 100.
    fn owned(terms: &MemberConfig) -> Holding {
        let mut holding = Holding::new(PartitionId::FIRST);
        assert_eq!(holding.acquire(NOW), Some(MemberAction::Acquire(SEAT)));
        let order = holding.acquired(Ok(lease()), true, terms, at(100));
        let (partition, epoch) = (PartitionId::FIRST, lease().epoch);
        assert_eq!(order, Some(Directive::Start { partition, epoch, until: at(9_000) }));
        holding
    }

    #[test]
    fn a_lease_counts_from_before_the_question_and_is_kept_while_nobody_answers() {
        let terms = terms();
        let mut holding = owned(&terms);
        assert_eq!(holding.act(&terms, at(3_333)), None);
        for millis in [3_334, 50_000, 5_000_000] {
            assert_eq!(
                holding.act(&terms, at(millis)),
                Some(MemberAction::Renew(lease())),
                "{millis}"
            );
            assert_eq!(holding.act(&terms, at(millis)), None, "one at a time");
            assert_eq!(holding.renewed(Err(away()), &terms, at(millis)), None);
            assert_eq!(holding.act(&terms, at(millis + 399)), None, "a pause");
        }
        holding.act(&terms, at(6_000_000));
        let (partition, epoch) = (PartitionId::FIRST, lease().epoch);
        let until = at(6_009_000);
        let order = holding.renewed(Ok(lease()), &terms, at(6_002_000));
        assert_eq!(order, Some(Directive::Extend { partition, epoch, until }));
        holding.act(&terms, at(7_000_000));
        let order = holding.renewed(Err(StoreError::Held { seat: SEAT }), &terms, at(7_000_001));
        assert_eq!(order, Some(Directive::Drop { partition, epoch }));
        assert!(holding.is_vacant());
    }

    #[test]
    fn it_is_released_after_the_owner_is_quiet_and_before_the_heir_is_told() {
        let terms = terms();
        let mut holding = owned(&terms);
        let successor = Some(BrokerId::new("b:1"));
        assert!(matches!(holding.hand_over(successor.clone()), Some(Directive::HandOver { .. })));
        assert_eq!(holding.hand_over(None), None, "once");
        assert_eq!(holding.act(&terms, at(5_000)), None, "not before it is quiet, and no renewal");
        holding.quiet(at(5_001));
        assert_eq!(holding.act(&terms, at(5_001)), Some(MemberAction::Release(lease())));
        assert_eq!(holding.released(Err(away()), &terms, at(5_002)), None, "not told yet");
        assert_eq!(holding.act(&terms, at(5_402)), Some(MemberAction::Release(lease())));
        let (partition, epoch) = (PartitionId::FIRST, lease().epoch);
        let told = Some(Directive::Released { partition, epoch, successor });
        assert_eq!(holding.released(Ok(()), &terms, at(5_403)), told);
        assert!(holding.lease().is_some(), "still listed");
        holding.handed_over(at(5_500));
        assert!(holding.is_vacant());
    }

    #[test]
    fn a_lease_that_cannot_be_given_back_is_over_by_itself() {
        let terms = terms();
        let mut holding = owned(&terms);
        holding.hand_over(None);
        holding.quiet(at(200));
        holding.act(&terms, at(200));
        holding.released(Err(away()), &terms, at(10_900));
        let order = holding.act(&terms, at(11_300));
        assert!(
            matches!(order, Some(MemberAction::Directive(Directive::Released { .. }))),
            "{order:?}"
        );
        assert!(holding.is_vacant());
    }

    #[test]
    fn an_owner_that_never_gets_quiet_is_dropped_when_its_lease_is_over() {
        let terms = terms();
        let mut holding = owned(&terms);
        holding.hand_over(None);
        assert_eq!(holding.wakes_at(&terms), Some(at(11_000)));
        let order = holding.act(&terms, at(11_000));
        assert!(
            matches!(order, Some(MemberAction::Directive(Directive::Drop { .. }))),
            "{order:?}"
        );
    }

    #[test]
    fn a_renewal_under_way_does_not_put_off_the_release() {
        let terms = terms();
        let mut holding = owned(&terms);
        holding.act(&terms, at(3_334));
        holding.hand_over(None);
        holding.quiet(at(3_335));
        assert_eq!(holding.act(&terms, at(3_335)), None, "one question at a time");
        assert_eq!(holding.renewed(Ok(lease()), &terms, at(3_340)), None);
        assert_eq!(holding.act(&terms, at(3_340)), Some(MemberAction::Release(lease())));
    }

    #[test]
    fn an_offer_overtakes_a_refusal_that_was_on_its_way() {
        let terms = terms();
        let mut holding = Holding::new(PartitionId::FIRST);
        holding.acquire(NOW);
        holding.offered(at(1));
        holding.acquired(Err(StoreError::Held { seat: SEAT }), true, &terms, at(2));
        assert!(holding.try_at().is_some_and(|try_at| try_at <= at(2)), "at once");
        holding.acquire(at(2));
        holding.acquired(Err(StoreError::Held { seat: SEAT }), true, &terms, at(3));
        assert_eq!(holding.try_at(), Some(at(403)), "and then in peace");
        assert!(holding.is_offered(&terms, at(5_000)) && !holding.is_offered(&terms, at(5_001)));
    }

    #[test]
    fn owners_that_break_again_and_again_are_started_ever_more_slowly() {
        let terms = terms();
        let mut holding = Holding::new(PartitionId::FIRST);
        for pause in [400, 800, 1_600, 3_200, 6_400, 12_800, 12_800] {
            holding.acquire(NOW);
            holding.acquired(Ok(lease()), true, &terms, NOW);
            holding.ended(&terms, NOW);
            assert_eq!(holding.try_at(), Some(at(pause)));
        }
    }
}
