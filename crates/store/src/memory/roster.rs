//! The roster of the memory store: who is there, and what was proposed.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::{Assignment, BrokerId, Epoch, Lease, Presence, Seat, Timestamp};

use super::MemoryStore;
use crate::error::StoreError;
use crate::roster::{Attendance, Roll, Roster};

/// What the brokers said, and their leader.
#[derive(Debug, Default)]
pub(super) struct Attendances {
    brokers: BTreeMap<BrokerId, Entry>,
    assignment: Option<Assignment>,
}

#[derive(Debug)]
struct Entry {
    presence: Presence,
    said_at: Timestamp,
    over_at: Timestamp,
}

impl Roster for MemoryStore {
    async fn heartbeat(&self, presence: &Presence, ttl: Duration) -> Result<Roll, StoreError> {
        let mut state = self.state()?;
        let at = state.time.latest();
        let entry = Entry { presence: presence.clone(), said_at: at, over_at: at.after(ttl) };
        let Attendances { brokers, assignment } = &mut state.attendances;
        brokers.insert(presence.broker.clone(), entry);
        brokers.retain(|_, entry| at < entry.over_at);
        let present = brokers.values().map(|entry| Attendance {
            presence: entry.presence.clone(),
            age: at.since(entry.said_at),
        });
        let (present, assignment) = (present.collect(), assignment.clone());
        let seat = state.seats.get(&Seat::Leader);
        let led = seat.is_some_and(|last| at < last.over_at);
        Ok(Roll { at, present, leader: seat.map(|last| last.lease.clone()), led, assignment })
    }

    async fn leave(&self, broker: &BrokerId) -> Result<(), StoreError> {
        self.state()?.attendances.brokers.remove(broker);
        Ok(())
    }

    async fn propose(&self, lease: &Lease, assignment: &Assignment) -> Result<(), StoreError> {
        let mut state = self.state()?;
        let current = state.epoch(Seat::Leader);
        if lease.seat != Seat::Leader || lease.epoch != current || current == Epoch::NONE {
            return Err(StoreError::Held { seat: Seat::Leader });
        }
        state.attendances.assignment = Some(assignment.clone());
        Ok(())
    }
}
