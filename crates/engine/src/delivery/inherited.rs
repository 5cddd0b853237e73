//! Deliveries that were in flight at another broker when the partition was handed over.
//!
//! They count as in flight in their lanes here. Until the lookups of all of them are answered,
//! calls and reports are held back. Each ends with a report that is passed on, or at its time.

use std::collections::{BTreeSet, HashMap};

use punctual_core::{AttemptNo, FireId, Outcome, Timestamp};
use rapidhash::fast::RandomState;

use crate::delivery::attempt::{Report, ReportRoute};
use crate::delivery::lane::LaneShare;
use crate::event::Event;
use crate::loaded::loaded_ref::LoadedRef;
use crate::ownership::in_flight::InFlight;

#[derive(Debug, Default)]
pub(crate) struct Inherited {
    fires: HashMap<FireId, InheritedFire, RandomState>,
    /// The same by the time at which each expires.
    ends: BTreeSet<(Timestamp, FireId)>,
    /// Lookups that are not answered.
    pending: usize,
    /// Events that arrived meanwhile.
    held_back: Vec<Event>,
}

#[derive(Debug, Clone, Copy)]
struct InheritedFire {
    attempt: AttemptNo,
    fired_at: Timestamp,
    until: Timestamp,
    route: ReportRoute,
}

impl Inherited {
    pub(crate) const fn expect(&mut self, count: usize) {
        self.pending += count;
    }

    pub(crate) const fn resolved(&mut self) {
        self.pending -= 1;
    }

    /// Whether lookups are pending.
    pub(crate) const fn is_resolving(&self) -> bool {
        self.pending > 0
    }

    pub(crate) fn hold_back(&mut self, event: Event) {
        self.held_back.push(event);
    }

    pub(crate) fn take_held_back(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.held_back)
    }

    pub(crate) fn insert(&mut self, delivery: &InFlight, share: LaneShare) {
        let InFlight { fire_id, task_id, attempt, fired_at, until, .. } = *delivery;
        let route = ReportRoute { share, task: LoadedRef::without_slot(task_id) };
        self.ends.insert((until, fire_id));
        self.fires.insert(fire_id, InheritedFire { attempt, fired_at, until, route });
    }

    /// Removes the delivery that a report is about and returns its lane and its task; `None` if
    /// there is none.
    pub(crate) fn remove(&mut self, report: &Report) -> Option<ReportRoute> {
        let fire = self.fires.get(&report.fire_id).copied();
        let fire = fire.filter(|fire| fire.attempt == report.attempt)?;
        self.fires.remove(&report.fire_id);
        self.ends.remove(&(fire.until, report.fire_id));
        Some(fire.route)
    }

    /// Returns when a delivery was sent and when it expires.
    pub(crate) fn times(&self, fire_id: FireId) -> Option<(Timestamp, Timestamp)> {
        self.fires.get(&fire_id).map(|fire| (fire.fired_at, fire.until))
    }

    /// Returns when the next delivery expires.
    pub(crate) fn next_end(&self) -> Option<Timestamp> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// Returns a report for each delivery whose time is over.
    pub(crate) fn expired(&self, now: Timestamp) -> Vec<Report> {
        let expired = self.ends.iter().take_while(|(until, _)| *until <= now);
        let reports = expired.filter_map(|(_, fire_id)| {
            let InheritedFire { attempt, fired_at, .. } = self.fires.get(fire_id)?;
            Some(Report::of(*fire_id, *attempt, *fired_at, Some(Outcome::Expired)))
        });
        reports.collect()
    }
}
