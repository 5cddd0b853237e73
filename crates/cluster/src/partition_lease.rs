//! The lease of one partition on this broker, from its acquisition to its release.
//!
//! It handles the answers of the store about this seat and what the broker reports of the owner,
//! and returns requests and [`Directive`]s. `member` decides whether the partition is wanted and
//! which broker is its successor.
//!
//! ```text
//!        acquire       hand over            quiet           released           handed over
//! Vacant ──────▶ Owned ────────▶ Quiescing ─────▶ Releasing ───────▶ Notifying ──────────▶ Vacant
//!   ▲              │ lost, ended     │ lost, over      │ over     failed ▼ ▲ next             ▲
//!   └──────────────┴─────────────────┴─────────────────┘            NotifyFailed ─────────────┘
//! ```
//!
//! The lease is released after the owner is quiet and before the successor is notified. At most one
//! request is in flight. A lease whose renewal is not answered is kept: its owner pauses when the
//! lease is over, and continues if no other broker has taken it.

use punctual_core::{BrokerId, Lease, PartitionId, Seat, Timestamp};
use punctual_store::StoreError;

use crate::config::MemberConfig;
use crate::event::{Directive, MemberAction};

/// The largest number of doublings of the pause after an owner has stopped on its own.
const FAILURES_MAX: u32 = 5;

/// The lease of one partition on this broker.
#[derive(Debug)]
pub(crate) struct PartitionLease {
    partition: PartitionId,
    state: LeaseState,
    /// Owners in a row that stopped on their own soon after they started.
    failures: u32,
}

#[derive(Debug)]
enum LeaseState {
    Vacant(VacantLease),
    Held(HeldLease),
}

/// This broker does not hold the lease.
#[derive(Debug, Default)]
struct VacantLease {
    /// When the acquisition in flight was requested.
    requested_at: Option<Timestamp>,
    /// The lease is not requested before this instant.
    try_at: Option<Timestamp>,
    /// Since when the store refuses the lease because another broker holds it.
    refused_since: Option<Timestamp>,
    /// When another broker released the partition for this one. Counts for half a lease.
    offered_at: Option<Timestamp>,
}

#[derive(Debug)]
struct HeldLease {
    lease: Lease,
    /// When the store's answer to the acquisition arrived, by this broker's clock.
    since: Timestamp,
    /// When the last successful request was sent: the lease is valid from then on.
    requested_at: Timestamp,
    /// When the renewal or release in flight was sent.
    pending_since: Option<Timestamp>,
    /// When the next request is due.
    next_at: Timestamp,
    phase: HeldPhase,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HeldPhase {
    Owned,
    /// The owner is to stop.
    Quiescing(Option<BrokerId>),
    /// The owner has stopped; the lease is being released.
    Releasing(Option<BrokerId>),
    /// The lease is released; the successor is being notified, until this instant.
    Notifying(BrokerId, Timestamp),
    /// The successor could not be notified.
    NotifyFailed(FailedHandOver),
    /// No owner was started: when the lease was acquired, the broker wanted no partitions any more.
    Unwanted,
}

/// A released partition whose successor could not be notified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedHandOver {
    /// The broker that could not be notified.
    pub(crate) successor: BrokerId,
    pub(crate) since: Timestamp,
    /// Until when this broker is still listed as the owner.
    pub(crate) until: Timestamp,
}

impl PartitionLease {
    pub(crate) fn new(partition: PartitionId) -> Self {
        Self { partition, state: LeaseState::Vacant(VacantLease::default()), failures: 0 }
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Returns the lease under which this broker is listed as the owner.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match &self.state {
            LeaseState::Held(held) if held.phase != HeldPhase::Unwanted => Some(&held.lease),
            _ => None,
        }
    }

    /// Returns since when this broker owns the partition, unless it is being handed over.
    pub(crate) fn owned_since(&self) -> Option<Timestamp> {
        match &self.state {
            LeaseState::Held(held) if held.phase == HeldPhase::Owned => Some(held.since),
            _ => None,
        }
    }

    /// Returns whether the lease is not held and not requested.
    pub(crate) fn is_vacant(&self) -> bool {
        matches!(&self.state, LeaseState::Vacant(vacant) if vacant.requested_at.is_none())
    }

    pub(crate) fn is_offered(&self, config: &MemberConfig, now: Timestamp) -> bool {
        let LeaseState::Vacant(vacant) = &self.state else { return false };
        vacant.offered_at.is_some_and(|at| now.since(at) < config.lease / 2)
    }

    /// Returns when the lease may be requested; `None` if it is held or requested already.
    pub(crate) fn try_at(&self) -> Option<Timestamp> {
        match &self.state {
            LeaseState::Vacant(vacant) if vacant.requested_at.is_none() => {
                Some(vacant.try_at.unwrap_or(Timestamp::EPOCH))
            }
            _ => None,
        }
    }

    pub(crate) fn acquire(&mut self, now: Timestamp) -> Option<MemberAction> {
        let LeaseState::Vacant(vacant) = &mut self.state else { return None };
        vacant.requested_at = Some(now);
        Some(MemberAction::Acquire(Seat::Partition(self.partition)))
    }

    pub(crate) fn offered(&mut self, now: Timestamp) {
        if let LeaseState::Vacant(vacant) = &mut self.state {
            vacant.offered_at = Some(now);
            vacant.try_at = None;
        }
    }

    /// Handles the answer to an acquisition. If the partition is no longer `wanted`, the lease is
    /// released without starting an owner.
    pub(crate) fn acquired(
        &mut self,
        answer: Result<Lease, StoreError>,
        wanted: bool,
        config: &MemberConfig,
        now: Timestamp,
    ) -> Option<Directive> {
        let LeaseState::Vacant(vacant) = &mut self.state else { return None };
        let requested_at = vacant.requested_at.take()?;
        match answer {
            Ok(lease) => {
                let (partition, epoch) = (self.partition, lease.epoch);
                let phase = if wanted { HeldPhase::Owned } else { HeldPhase::Unwanted };
                let next_at = if wanted { config.renew_at(requested_at) } else { now };
                let held = HeldLease {
                    lease,
                    since: now,
                    requested_at,
                    pending_since: None,
                    next_at,
                    phase,
                };
                self.state = LeaseState::Held(held);
                let until = config.trusted_until(requested_at);
                wanted.then_some(Directive::Start { partition, epoch, until })
            }
            // The partition was released while the request was in flight.
            Err(StoreError::Held { .. }) if vacant.offered_at > Some(requested_at) => None,
            Err(StoreError::Held { .. }) => {
                // Its owner is not a member, so the lease must end soon; the exact time is not
                // known.
                let since = *vacant.refused_since.get_or_insert(now);
                let soon = now.since(since) < config.lease * 2;
                let pause = if soon { config.pause() } else { config.heartbeat_every() };
                vacant.try_at = Some(now.after(pause));
                None
            }
            Err(error) => {
                // The store logs what is damaged, once.
                if !matches!(error, StoreError::Damaged(_)) {
                    tracing::warn!(partition = %self.partition, %error, "lease not acquired");
                }
                vacant.try_at = Some(now.after(config.heartbeat_every()));
                None
            }
        }
    }

    pub(crate) fn renewed(
        &mut self,
        answer: Result<Lease, StoreError>,
        config: &MemberConfig,
        now: Timestamp,
    ) -> Option<Directive> {
        let LeaseState::Held(held) = &mut self.state else { return None };
        let requested_at = held.pending_since.take()?;
        let (partition, epoch) = (self.partition, held.lease.epoch);
        match answer {
            Ok(_) => {
                held.requested_at = requested_at;
                let runs = matches!(held.phase, HeldPhase::Owned | HeldPhase::Quiescing(_));
                // An owner that has stopped in the meantime must be released without delay.
                if held.phase == HeldPhase::Owned {
                    held.next_at = config.renew_at(requested_at);
                }
                if now.since(held.since) > config.lease {
                    self.failures = 0;
                }
                let until = config.trusted_until(requested_at);
                runs.then_some(Directive::Extend { partition, epoch, until })
            }
            Err(StoreError::Held { .. }) => {
                self.become_vacant(now);
                Some(Directive::Drop { partition, epoch })
            }
            Err(error) => {
                tracing::warn!(%partition, %epoch, %error, "lease not renewed");
                if held.phase == HeldPhase::Owned {
                    held.next_at = now.after(config.pause());
                }
                None
            }
        }
    }

    /// Hands an owned partition over.
    pub(crate) fn hand_over(&mut self, successor: Option<BrokerId>) -> Option<Directive> {
        let LeaseState::Held(held) = &mut self.state else { return None };
        if held.phase != HeldPhase::Owned {
            return None;
        }
        held.phase = HeldPhase::Quiescing(successor.clone());
        Some(Directive::HandOver { partition: self.partition, epoch: held.lease.epoch, successor })
    }

    pub(crate) fn quiet(&mut self, now: Timestamp) {
        if let LeaseState::Held(held) = &mut self.state
            && let HeldPhase::Quiescing(successor) = &held.phase
        {
            held.phase = HeldPhase::Releasing(successor.clone());
            held.next_at = now;
        }
    }

    /// Handles an owner that stopped on its own. If it was to stop anyway, it is quiet now.
    pub(crate) fn ended(&mut self, config: &MemberConfig, now: Timestamp) {
        let LeaseState::Held(held) = &self.state else { return };
        match held.phase {
            HeldPhase::Owned => {
                let pause = config.pause() * (1 << self.failures);
                self.failures = (self.failures + 1).min(FAILURES_MAX);
                self.become_vacant(now.after(pause));
            }
            _ => self.quiet(now),
        }
    }

    pub(crate) fn released(
        &mut self,
        answer: Result<(), StoreError>,
        config: &MemberConfig,
        now: Timestamp,
    ) -> Option<Directive> {
        let LeaseState::Held(held) = &mut self.state else { return None };
        held.pending_since.take()?;
        match answer {
            Ok(()) => self.on_released(config, now),
            Err(error) => {
                tracing::warn!(partition = %self.partition, %error, "lease not released");
                held.next_at = now.after(config.pause());
                None
            }
        }
    }

    pub(crate) fn handed_over(&mut self, now: Timestamp) {
        if matches!(
            &self.state,
            LeaseState::Held(HeldLease { phase: HeldPhase::Notifying(..), .. })
        ) {
            self.become_vacant(now);
        }
    }

    pub(crate) fn hand_over_failed(&mut self, now: Timestamp) {
        if let LeaseState::Held(held) = &mut self.state
            && let HeldPhase::Notifying(successor, until) = &held.phase
        {
            let (successor, until) = (successor.clone(), *until);
            held.phase = HeldPhase::NotifyFailed(FailedHandOver { successor, since: now, until });
        }
    }

    /// Returns the failed hand-over, if the partition is released and its successor could not be
    /// notified.
    pub(crate) fn failed_hand_over(&self) -> Option<&FailedHandOver> {
        match &self.state {
            LeaseState::Held(HeldLease {
                phase: HeldPhase::NotifyFailed(failed_hand_over),
                ..
            }) => Some(failed_hand_over),
            _ => None,
        }
    }

    /// Hands a partition over to another successor after a failed hand-over.
    pub(crate) fn notify(
        &mut self,
        successor: BrokerId,
        config: &MemberConfig,
        now: Timestamp,
    ) -> Option<Directive> {
        self.failed_hand_over()?;
        let LeaseState::Held(held) = &mut self.state else { return None };
        held.phase = HeldPhase::Notifying(successor.clone(), now.after(config.lease / 2));
        let (partition, epoch) = (self.partition, held.lease.epoch);
        Some(Directive::Released { partition, epoch, successor: Some(successor) })
    }

    /// Leaves a partition to its successor after a failed hand-over.
    pub(crate) fn give_up(&mut self, now: Timestamp) {
        self.become_vacant(now);
    }

    /// Requests the lease again after a failed hand-over.
    pub(crate) fn take_back(&mut self, now: Timestamp) {
        self.become_vacant(now);
        self.offered(now);
    }

    /// Returns the action that is due.
    pub(crate) fn act(&mut self, config: &MemberConfig, now: Timestamp) -> Option<MemberAction> {
        if self.wakes_at(config)? > now {
            return None;
        }
        let LeaseState::Held(held) = &mut self.state else { return None };
        let (partition, epoch) = (self.partition, held.lease.epoch);
        let over = now >= config.over_at(held.requested_at);
        match held.phase {
            HeldPhase::Owned => {
                held.pending_since = Some(now);
                Some(MemberAction::Renew(held.lease.clone()))
            }
            HeldPhase::Quiescing(_) => {
                // The owner did not stop in time. It paused when its lease was over, and other
                // brokers may take the partition now.
                self.become_vacant(now);
                Some(MemberAction::Directive(Directive::Drop { partition, epoch }))
            }
            HeldPhase::Releasing(_) | HeldPhase::Unwanted if over => {
                self.on_released(config, now).map(MemberAction::Directive)
            }
            HeldPhase::Releasing(_) | HeldPhase::Unwanted => {
                held.pending_since = Some(now);
                Some(MemberAction::Release(held.lease.clone()))
            }
            HeldPhase::Notifying(..) | HeldPhase::NotifyFailed(_) => {
                self.become_vacant(now);
                None
            }
        }
    }

    /// Returns when an action is due without an event.
    pub(crate) fn wakes_at(&self, config: &MemberConfig) -> Option<Timestamp> {
        let LeaseState::Held(held) = &self.state else { return None };
        match held.phase {
            _ if held.pending_since.is_some() => None,
            HeldPhase::Owned | HeldPhase::Releasing(_) | HeldPhase::Unwanted => Some(held.next_at),
            HeldPhase::Quiescing(_) => Some(config.over_at(held.requested_at)),
            HeldPhase::Notifying(_, until)
            | HeldPhase::NotifyFailed(FailedHandOver { until, .. }) => Some(until),
        }
    }

    /// Handles the release, or the end, of the lease.
    fn on_released(&mut self, config: &MemberConfig, now: Timestamp) -> Option<Directive> {
        let LeaseState::Held(held) = &mut self.state else { return None };
        let (partition, epoch) = (self.partition, held.lease.epoch);
        let successor = match &held.phase {
            HeldPhase::Releasing(successor) => successor.clone(),
            _ => {
                self.become_vacant(now);
                return None;
            }
        };
        match successor {
            Some(ref successor) => {
                held.phase = HeldPhase::Notifying(successor.clone(), now.after(config.lease / 2));
            }
            None => self.become_vacant(now),
        }
        Some(Directive::Released { partition, epoch, successor })
    }

    fn become_vacant(&mut self, try_at: Timestamp) {
        self.state =
            LeaseState::Vacant(VacantLease { try_at: Some(try_at), ..VacantLease::default() });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::{Epoch, Partitions};

    use super::*;

    const SEAT: Seat = Seat::Partition(PartitionId::FIRST);
    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn config() -> MemberConfig {
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

    fn granted() -> Lease {
        let epoch = Epoch::new(3).unwrap();
        Lease { seat: SEAT, broker: BrokerId::new("a:1"), epoch, until: at(10_000) }
    }

    fn unavailable() -> StoreError {
        StoreError::Unavailable("away".into())
    }

    /// Returns a lease that was requested at 0 and granted at 100.
    fn owned(config: &MemberConfig) -> PartitionLease {
        let mut lease = PartitionLease::new(PartitionId::FIRST);
        assert_eq!(lease.acquire(NOW), Some(MemberAction::Acquire(SEAT)));
        let directive = lease.acquired(Ok(granted()), true, config, at(100));
        let (partition, epoch) = (PartitionId::FIRST, granted().epoch);
        assert_eq!(directive, Some(Directive::Start { partition, epoch, until: at(9_000) }));
        lease
    }

    #[test]
    fn a_lease_is_valid_from_its_request_on_and_kept_while_the_store_does_not_answer() {
        let config = config();
        let mut lease = owned(&config);
        assert_eq!(lease.act(&config, at(3_333)), None);
        for millis in [3_334, 50_000, 5_000_000] {
            assert_eq!(
                lease.act(&config, at(millis)),
                Some(MemberAction::Renew(granted())),
                "{millis}"
            );
            assert_eq!(lease.act(&config, at(millis)), None, "one request at a time");
            assert_eq!(lease.renewed(Err(unavailable()), &config, at(millis)), None);
            assert_eq!(lease.act(&config, at(millis + 399)), None, "a pause");
        }
        lease.act(&config, at(6_000_000));
        let (partition, epoch) = (PartitionId::FIRST, granted().epoch);
        let until = at(6_009_000);
        let directive = lease.renewed(Ok(granted()), &config, at(6_002_000));
        assert_eq!(directive, Some(Directive::Extend { partition, epoch, until }));
        lease.act(&config, at(7_000_000));
        let directive = lease.renewed(Err(StoreError::Held { seat: SEAT }), &config, at(7_000_001));
        assert_eq!(directive, Some(Directive::Drop { partition, epoch }));
        assert!(lease.is_vacant());
    }

    #[test]
    fn the_lease_is_released_after_the_owner_is_quiet_and_before_the_successor_is_notified() {
        let config = config();
        let mut lease = owned(&config);
        let successor = Some(BrokerId::new("b:1"));
        assert!(matches!(lease.hand_over(successor.clone()), Some(Directive::HandOver { .. })));
        assert_eq!(lease.hand_over(None), None, "only once");
        assert_eq!(
            lease.act(&config, at(5_000)),
            None,
            "no release before it is quiet, and no renewal"
        );
        lease.quiet(at(5_001));
        assert_eq!(lease.act(&config, at(5_001)), Some(MemberAction::Release(granted())));
        assert_eq!(
            lease.released(Err(unavailable()), &config, at(5_002)),
            None,
            "the successor is not notified yet"
        );
        assert_eq!(lease.act(&config, at(5_402)), Some(MemberAction::Release(granted())));
        let (partition, epoch) = (PartitionId::FIRST, granted().epoch);
        let notified = Some(Directive::Released { partition, epoch, successor });
        assert_eq!(lease.released(Ok(()), &config, at(5_403)), notified);
        assert!(lease.lease().is_some(), "still listed as the owner");
        lease.handed_over(at(5_500));
        assert!(lease.is_vacant());
    }

    #[test]
    fn a_lease_that_cannot_be_released_ends_on_its_own() {
        let config = config();
        let mut lease = owned(&config);
        lease.hand_over(None);
        lease.quiet(at(200));
        lease.act(&config, at(200));
        lease.released(Err(unavailable()), &config, at(10_900));
        let directive = lease.act(&config, at(11_300));
        assert!(
            matches!(directive, Some(MemberAction::Directive(Directive::Released { .. }))),
            "{directive:?}"
        );
        assert!(lease.is_vacant());
    }

    #[test]
    fn an_owner_that_does_not_become_quiet_is_dropped_when_its_lease_is_over() {
        let config = config();
        let mut lease = owned(&config);
        lease.hand_over(None);
        assert_eq!(lease.wakes_at(&config), Some(at(11_000)));
        let directive = lease.act(&config, at(11_000));
        assert!(
            matches!(directive, Some(MemberAction::Directive(Directive::Drop { .. }))),
            "{directive:?}"
        );
    }

    #[test]
    fn a_renewal_in_flight_does_not_delay_the_release() {
        let config = config();
        let mut lease = owned(&config);
        lease.act(&config, at(3_334));
        lease.hand_over(None);
        lease.quiet(at(3_335));
        assert_eq!(lease.act(&config, at(3_335)), None, "one request at a time");
        assert_eq!(lease.renewed(Ok(granted()), &config, at(3_340)), None);
        assert_eq!(lease.act(&config, at(3_340)), Some(MemberAction::Release(granted())));
    }

    #[test]
    fn an_offer_counts_even_if_a_refusal_was_in_flight() {
        let config = config();
        let mut lease = PartitionLease::new(PartitionId::FIRST);
        lease.acquire(NOW);
        lease.offered(at(1));
        lease.acquired(Err(StoreError::Held { seat: SEAT }), true, &config, at(2));
        assert!(lease.try_at().is_some_and(|try_at| try_at <= at(2)), "at once");
        lease.acquire(at(2));
        lease.acquired(Err(StoreError::Held { seat: SEAT }), true, &config, at(3));
        assert_eq!(lease.try_at(), Some(at(403)), "then after the usual pause");
        assert!(lease.is_offered(&config, at(5_000)) && !lease.is_offered(&config, at(5_001)));
    }

    #[test]
    fn the_pause_before_a_start_doubles_with_every_owner_that_fails() {
        let config = config();
        let mut lease = PartitionLease::new(PartitionId::FIRST);
        for pause in [400, 800, 1_600, 3_200, 6_400, 12_800, 12_800] {
            lease.acquire(NOW);
            lease.acquired(Ok(granted()), true, &config, NOW);
            lease.ended(&config, NOW);
            assert_eq!(lease.try_at(), Some(at(pause)));
        }
    }
}
