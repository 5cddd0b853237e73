//! Membership: heartbeats of brokers and the proposals of their leader, by the database's clock.
//!
//! A value that cannot be decoded is damaged and left out: the next heartbeat or proposal replaces
//! it.

use std::time::Duration;

use punctual_core::{Assignment, BrokerId, Heartbeat, Lease, Seat, Timestamp};
use punctual_store::codec::{put_assignment, put_heartbeat, read_assignment, read_heartbeat};
use punctual_store::{MemberInfo, Members, MembershipStore, StoreError};
use ring::rand::{SecureRandom, SystemRandom};

use crate::database::{SqlDatabase, SqlRole};
use crate::error::store_error;
use crate::leases::millis;
use crate::store::SqlStore;
use crate::values::Columns as _;

/// The size of the secret in bytes.
const SECRET_BYTES: usize = 32;

impl<D: SqlDatabase> SqlStore<D> {
    /// Returns the secret that the brokers of this store share: 64 hexadecimal digits. The first
    /// broker that asks for it creates it.
    pub async fn secret(&self) -> Result<String, StoreError> {
        let mut bytes = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| {
            StoreError::Broken("the operating system provides no random numbers".to_owned())
        })?;
        let proposed: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let secret = self.get_or_propose("secret", &proposed).await?;
        let whole = secret.len() == 2 * SECRET_BYTES;
        if !whole || !secret.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let place = format!("{}, name = 'secret'", self.database.table("meta"));
            return Err(self.damage.found("the secret", place, "it is not 64 digits"));
        }
        Ok(secret)
    }

    /// Observes the epochs that members hold: they count even if the database has lost the
    /// acquisition.
    fn observe_epochs(&self, members: &Members) {
        if let Some(leader) = &members.leader {
            self.epochs.observe(Seat::Leader, leader.epoch);
        }
        for member in &members.present {
            for (partition, epoch) in &member.heartbeat.holds {
                if self.column(*partition).is_ok() {
                    self.epochs.observe(Seat::Partition(*partition), *epoch);
                }
            }
        }
    }

    /// Reads a member from the columns now, broker, sent, expires, heartbeat; `None` if it has
    /// expired or is damaged.
    fn read_member(&self, row: &D::Row) -> Option<MemberInfo> {
        let [now, sent, expires] = [0, 2, 3].map(|column| row.int(column));
        if expires <= now {
            return None;
        }
        let broker = row.text(1);
        let heartbeat = read_heartbeat(BrokerId::new(&broker), row.bytes(4)).map_err(|error| {
            let place = format!("{}, broker = '{broker}'", self.database.table("member"));
            self.damage.found("the heartbeat of a broker", place, error)
        });
        let age = Duration::from_millis(u64::try_from(now - sent).unwrap_or(0));
        heartbeat.ok().map(|heartbeat| MemberInfo { heartbeat, age })
    }
}

impl<D: SqlDatabase> MembershipStore for SqlStore<D> {
    async fn heartbeat(&self, heartbeat: &Heartbeat, ttl: Duration) -> Result<Members, StoreError> {
        let mut encoded = Vec::new();
        put_heartbeat(&mut encoded, heartbeat);
        let broker = heartbeat.broker.as_str();
        let recorded = self.database.heartbeat(broker, millis(ttl), &encoded).await;
        recorded.map_err(store_error::<D>)?;
        let (members, leader, assignment) = tokio::join!(
            self.read(SqlRole::Seats, D::READS.members, &[]),
            self.read(SqlRole::Seats, D::READS.leader, &[]),
            self.read(SqlRole::Seats, D::READS.assignment, &[]),
        );
        let (members, leader, assignment) = (members?, leader?, assignment?);
        let now = members.first().map_or(0, |row| row.int(0));
        let at = Timestamp::try_from_millis(i128::from(now));
        let at = at.map_err(|_| StoreError::Broken("the database's clock is wrong".to_owned()))?;
        let mut present: Vec<MemberInfo> =
            members.iter().filter_map(|row| self.read_member(row)).collect();
        present.sort_by(|a, b| a.heartbeat.broker.cmp(&b.heartbeat.broker));
        // What is damaged is logged and counted; the next acquisition replaces it.
        let lease = leader.first().and_then(|row| self.read_lease(Seat::Leader, row).ok());
        let led = lease.is_some() && leader.first().is_some_and(|row| now < row.int(3));
        let assignment = assignment.first().and_then(|row| {
            let read = read_assignment(row.bytes(0));
            let place = || self.database.table("assignment");
            read.map_err(|error| self.damage.found("the assignment", place(), error)).ok()
        });
        let members = Members { at, present, leader: lease, led, assignment };
        self.observe_epochs(&members);
        Ok(members)
    }

    async fn leave(&self, broker: &BrokerId) -> Result<(), StoreError> {
        self.database.leave(broker.as_str()).await.map_err(store_error::<D>)
    }

    async fn propose(&self, lease: &Lease, assignment: &Assignment) -> Result<(), StoreError> {
        let seat = Seat::Leader;
        if lease.seat != seat {
            return Err(StoreError::Held { seat });
        }
        let mut bytes = Vec::new();
        put_assignment(&mut bytes, assignment);
        let leader = self.writer(seat, lease.epoch)?;
        match self.database.propose(&leader, &bytes).await.map_err(store_error::<D>)? {
            true => Ok(()),
            false => Err(StoreError::Held { seat }),
        }
    }
}
