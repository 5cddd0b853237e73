//! Leases: which worker has which delivery, and until when.
//!
//! A lease starts when a delivery is handed to a worker, and ends when the worker settles it with
//! its token or its time is over. A token is valid once. It cannot be guessed: thirty-six of its
//! bits are a keyed hash of a counter.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use punctual_core::Timestamp;
use punctual_engine::{Delivery, Reports};
use punctual_wheel::{TimerId, Wheel};
use slab::Slab;

use super::ids::{LineId, WorkerNo, line_of};
use super::queued_delivery::QueuedDelivery;
use super::settlement::{Leased, SettleResult, SettleScope};
use super::token::LeaseToken;
use super::worker_label::PolledLease;

/// Twenty-eight bits of a token are the slot of the lease; the others are the secret.
const SLOT_BITS: u32 = 28;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// Which worker has a leased delivery.
#[derive(Debug)]
pub(super) enum LeasedBy {
    /// A worker on a stream.
    Worker(WorkerNo),
    /// A worker that polled for it.
    Poll { _counted: PolledLease },
}

/// A lease that has not ended.
#[derive(Debug)]
pub(super) struct OpenLease {
    pub(super) delivery: Delivery,
    pub(super) reports: Arc<Reports>,
    holder: LeasedBy,
    token: LeaseToken,
    timer: Option<TimerId>,
}

impl OpenLease {
    /// Returns the worker on a stream; `None` if the delivery was polled.
    pub(super) const fn worker(&self) -> Option<WorkerNo> {
        match self.holder {
            LeasedBy::Worker(number) => Some(number),
            LeasedBy::Poll { .. } => None,
        }
    }

    /// Returns the line that the delivery was taken from.
    pub(super) fn line(&self) -> LineId {
        line_of(&self.delivery).expect("only deliveries to queues are leased")
    }

    /// Turns the delivery back into one that waits for a worker.
    pub(super) fn into_queued(self) -> QueuedDelivery {
        let Self { delivery, reports, .. } = self;
        let since = delivery.fired_at;
        QueuedDelivery { delivery, reports, since }
    }
}

/// All leases of a hub.
#[derive(Debug)]
pub(super) struct Leases {
    open: Slab<OpenLease>,
    wheel: Wheel<u32>,
    /// The key of the secret part of tokens; new at every start.
    secret: RandomState,
    count: u64,
}

impl Default for Leases {
    fn default() -> Self {
        Self { open: Slab::new(), wheel: Wheel::new(0), secret: RandomState::new(), count: 0 }
    }
}

impl Leases {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the tokens of all leases.
    pub(super) fn tokens(&self) -> Vec<LeaseToken> {
        self.open.iter().map(|(_, lease)| lease.token).collect()
    }

    /// Returns when the next lease ends, or an earlier instant at which none ends.
    pub(super) fn next_end(&self) -> Option<Timestamp> {
        self.wheel.next_due().map(Timestamp::from_millis)
    }

    /// Leases a delivery to a worker.
    pub(super) fn begin(
        &mut self,
        queued: QueuedDelivery,
        holder: LeasedBy,
        lease: Duration,
        now: Timestamp,
    ) -> Leased {
        let QueuedDelivery { mut delivery, reports, .. } = queued;
        delivery.fired_at = now;
        self.count += 1;
        let entry = self.open.vacant_entry();
        let slot = u32::try_from(entry.key()).expect("credit is bounded far below");
        let secret = self.secret.hash_one(self.count) << SLOT_BITS;
        let token = LeaseToken(secret | u64::from(slot) & SLOT_MASK);
        let timer = self.wheel.insert(now.after(lease).as_millis(), slot).ok();
        entry.insert(OpenLease { delivery: delivery.clone(), reports, holder, token, timer });
        Leased { token, delivery, lease }
    }

    /// Notes that a leased delivery was sent to its worker.
    pub(super) fn sent(&mut self, token: LeaseToken, now: Timestamp) {
        let slot = usize::try_from(token.0 & SLOT_MASK).ok();
        let lease = slot.and_then(|slot| self.open.get_mut(slot));
        if let Some(lease) = lease.filter(|lease| lease.token == token) {
            lease.delivery.fired_at = now;
        }
    }

    /// Ends a lease by its token.
    pub(super) fn end(&mut self, token: LeaseToken, scope: SettleScope<'_>) -> Option<OpenLease> {
        let slot = self.find(token, scope)?;
        let lease = self.open.remove(slot);
        if let Some(timer) = lease.timer {
            self.wheel.cancel(timer);
        }
        Some(lease)
    }

    /// Changes the end of a lease.
    pub(super) fn extend(
        &mut self,
        token: LeaseToken,
        scope: SettleScope<'_>,
        until: Timestamp,
    ) -> SettleResult {
        let Some(slot) = self.find(token, scope) else {
            return SettleResult::Stale;
        };
        let lease = &mut self.open[slot];
        if let Some(timer) = lease.timer.take() {
            self.wheel.cancel(timer);
        }
        let number = u32::try_from(slot).expect("credit is bounded far below");
        lease.timer = self.wheel.insert(until.as_millis(), number).ok();
        SettleResult::Accepted
    }

    /// Removes and returns the leases whose time is over.
    pub(super) fn expired(&mut self, now: Timestamp) -> Vec<OpenLease> {
        let mut slots = Vec::new();
        self.wheel.advance(now.as_millis(), |_, slot| slots.push(slot as usize));
        slots.into_iter().filter_map(|slot| self.open.try_remove(slot)).collect()
    }

    /// Removes and returns the leases that match, whether their time is over or not.
    pub(super) fn take(&mut self, matches: impl Fn(&OpenLease) -> bool) -> Vec<OpenLease> {
        let matching = self.open.iter().filter(|(_, lease)| matches(lease));
        let slots: Vec<usize> = matching.map(|(slot, _)| slot).collect();
        let taken = slots.into_iter().map(|slot| self.open.remove(slot));
        let taken: Vec<OpenLease> = taken.collect();
        for timer in taken.iter().filter_map(|lease| lease.timer) {
            self.wheel.cancel(timer);
        }
        taken
    }

    fn find(&self, token: LeaseToken, scope: SettleScope<'_>) -> Option<usize> {
        let slot = usize::try_from(token.0 & SLOT_MASK).ok()?;
        let lease = self.open.get(slot)?;
        (lease.token == token && scope.contains(&lease.delivery)).then_some(slot)
    }
}
