//! Leases: which worker has which delivery, and until when.
//!
//! In: deliveries that are handed out. Out: a token each, and the delivery back when the token is shown or the time is over.
//! Invariant: a token is good once. It cannot be guessed: thirty-six of its bits are the keyed hash of a counter.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::time::Duration;

use punctual_core::Timestamp;
use punctual_engine::{Delivery, Reports};
use punctual_wheel::{TimerId, Wheel};
use slab::Slab;

use super::hub::{LineId, WorkerNo, line_of};
use super::line::{Line, Waiting};
use super::settlement::{Heard, Leased, Place};

/// Twenty-eight bits say where the lease is kept, the others are the secret.
const SLOT_BITS: u32 = 28;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// What settles a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Token {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// A delivery in the hands of a worker, as the hub keeps it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) delivery: Delivery,
    pub(super) reports: Reports,
    /// On a stream; `None` if it was polled.
    pub(super) worker: Option<WorkerNo>,
    token: Token,
    timer: Option<TimerId>,
}

impl Held {
    /// The line that it came from.
    pub(super) fn line(&self) -> LineId {
        line_of(&self.delivery).expect("only deliveries to queues are leased")
    }

    /// As it stood in line.
    pub(super) fn into_waiting(self) -> Waiting {
        let Self { delivery, reports, .. } = self;
        let since = delivery.fired_at;
        Waiting { delivery, reports, since }
    }
}

/// All leases of a hub.
#[derive(Debug)]
pub(super) struct Leases {
    held: Slab<Held>,
    wheel: Wheel<u32>,
    /// Keys the secret part of tokens; made anew with every start.
    secret: RandomState,
    count: u64,
}

impl Default for Leases {
    fn default() -> Self {
        Self { held: Slab::new(), wheel: Wheel::new(0), secret: RandomState::new(), count: 0 }
    }
}

impl Leases {
    /// Whether nobody has anything.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Hands a delivery out.
    pub(super) fn begin(
        &mut self,
        waiting: Waiting,
        worker: Option<WorkerNo>,
        lease: Duration,
        now: Timestamp,
    ) -> Leased {
        let Waiting { mut delivery, reports, .. } = waiting;
        delivery.fired_at = now;
        self.count += 1;
        let entry = self.held.vacant_entry();
        let slot = u32::try_from(entry.key()).expect("credit is bounded far below");
        let secret = self.secret.hash_one(self.count) << SLOT_BITS;
        let token = Token(secret | u64::from(slot) & SLOT_MASK);
        let timer = self.wheel.insert(now.after(lease).as_millis(), slot).ok();
        entry.insert(Held { delivery: delivery.clone(), reports, worker, token, timer });
        Leased { token, delivery, lease }
    }

    /// Ends a lease by its token.
    pub(super) fn end(&mut self, token: Token, place: Place<'_>) -> Option<Held> {
        let slot = self.find(token, place)?;
        let held = self.held.remove(slot);
        if let Some(timer) = held.timer {
            self.wheel.cancel(timer);
        }
        Some(held)
    }

    /// Gives a lease another end.
    pub(super) fn extend(&mut self, token: Token, place: Place<'_>, until: Timestamp) -> Heard {
        let Some(slot) = self.find(token, place) else {
            return Heard::Stale;
        };
        let held = &mut self.held[slot];
        if let Some(timer) = held.timer.take() {
            self.wheel.cancel(timer);
        }
        let number = u32::try_from(slot).expect("credit is bounded far below");
        held.timer = self.wheel.insert(until.as_millis(), number).ok();
        Heard::Taken
    }

    /// The leases whose time is over.
    pub(super) fn expired(&mut self, now: Timestamp) -> Vec<Held> {
        let mut slots = Vec::new();
        self.wheel.advance(now.as_millis(), |_, slot| slots.push(slot as usize));
        slots.into_iter().filter_map(|slot| self.held.try_remove(slot)).collect()
    }

    /// Ends those of which this is true, whatever their time.
    pub(super) fn take(&mut self, is_over: impl Fn(&Held) -> bool) -> Vec<Held> {
        let over = self.held.iter().filter(|(_, held)| is_over(held));
        let slots: Vec<usize> = over.map(|(slot, _)| slot).collect();
        let taken = slots.into_iter().map(|slot| self.held.remove(slot));
        let taken: Vec<Held> = taken.collect();
        for timer in taken.iter().filter_map(|held| held.timer) {
            self.wheel.cancel(timer);
        }
        taken
    }

    /// What was handed out and never arrived stands in line again, where it was.
    pub(super) fn give_back(&mut self, leased: Leased, line: &mut Line) {
        let namespace = &leased.delivery.definition.namespace;
        if let Some(held) = self.end(leased.token, Place::anywhere_in(namespace)) {
            line.waiting.push_front(held.into_waiting());
        }
    }

    fn find(&self, token: Token, place: Place<'_>) -> Option<usize> {
        let slot = usize::try_from(token.0 & SLOT_MASK).ok()?;
        let held = self.held.get(slot)?;
        (held.token == token && place.has(&held.delivery)).then_some(slot)
    }
}
