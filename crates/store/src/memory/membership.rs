//! Membership of the memory store: heartbeats, and the last proposed assignment.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::{Assignment, BrokerId, Epoch, Heartbeat, Lease, Seat, Timestamp};

use super::MemoryStore;
use crate::error::StoreError;
use crate::membership_store::{MemberInfo, Members, MembershipStore};

/// The latest heartbeat of each broker, and the last assignment.
#[derive(Debug, Default)]
pub(super) struct MemberTable {
    brokers: BTreeMap<BrokerId, MemberEntry>,
    assignment: Option<Assignment>,
}

#[derive(Debug)]
struct MemberEntry {
    heartbeat: Heartbeat,
    received_at: Timestamp,
    expires_at: Timestamp,
}

impl MembershipStore for MemoryStore {
    async fn heartbeat(&self, heartbeat: &Heartbeat, ttl: Duration) -> Result<Members, StoreError> {
        let mut state = self.state()?;
        let at = state.time.latest();
        let entry = MemberEntry {
            heartbeat: heartbeat.clone(),
            received_at: at,
            expires_at: at.after(ttl),
        };
        let MemberTable { brokers, assignment } = &mut state.members;
        brokers.insert(heartbeat.broker.clone(), entry);
        brokers.retain(|_, entry| at < entry.expires_at);
        let present = brokers.values().map(|entry| MemberInfo {
            heartbeat: entry.heartbeat.clone(),
            age: at.since(entry.received_at),
        });
        let (present, assignment) = (present.collect(), assignment.clone());
        let seat = state.seats.get(&Seat::Leader);
        let led = seat.is_some_and(|last| at < last.expires_at);
        Ok(Members { at, present, leader: seat.map(|last| last.lease.clone()), led, assignment })
    }

    async fn leave(&self, broker: &BrokerId) -> Result<(), StoreError> {
        self.state()?.members.brokers.remove(broker);
        Ok(())
    }

    async fn propose(&self, lease: &Lease, assignment: &Assignment) -> Result<(), StoreError> {
        let mut state = self.state()?;
        let current = state.epoch(Seat::Leader);
        if lease.seat != Seat::Leader || lease.epoch != current || current == Epoch::NONE {
            return Err(StoreError::Held { seat: Seat::Leader });
        }
        state.members.assignment = Some(assignment.clone());
        Ok(())
    }
}
