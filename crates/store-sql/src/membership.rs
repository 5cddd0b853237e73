//! Membership: heartbeats of brokers and the proposals of their leader, by the database's clock.
//!
//! A value that cannot be decoded is damaged and left out: the next heartbeat or proposal replaces
//! it.

use std::time::Duration;

use punctual_core::{Assignment, BrokerId, Heartbeat, Lease, Seat, Timestamp};
use punctual_sql::tokio_postgres::Row;
use punctual_store::codec::{put_assignment, put_heartbeat, read_assignment, read_heartbeat};
use punctual_store::{MemberInfo, Members, MembershipStore, StoreError};
use ring::rand::{SecureRandom, SystemRandom};

use crate::leases::millis;
use crate::open::get_or_propose;
use crate::store::PostgresStore;

/// The size of the secret in bytes.
const SECRET_BYTES: usize = 32;

/// A member of which nothing was heard is deleted when its heartbeat has expired.
const HEARTBEAT: &str = "WITH clock AS (
        SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now),
    gone AS (DELETE FROM member USING clock WHERE expires <= now AND broker <> $1)
    INSERT INTO member (broker, sent, expires, heartbeat)
    SELECT $1, now, now + $2, $3 FROM clock
    ON CONFLICT (broker) DO UPDATE SET sent = excluded.sent, expires = excluded.expires,
        heartbeat = excluded.heartbeat";
const MEMBERS: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now,
        broker, sent, expires, heartbeat FROM member";
const LEADER: &str = "SELECT epoch, broker, until, expires FROM seat WHERE seat = -1";
const ASSIGNMENT: &str = "SELECT value FROM assignment";
const LEAVE: &str = "DELETE FROM member WHERE broker = $1";
const PROPOSE: &str = "INSERT INTO assignment (one, value)
    SELECT 0, $3 FROM seat WHERE seat = -1 AND epoch = $1 AND ($2::text = '' OR token = $2)
    ON CONFLICT (one) DO UPDATE SET value = excluded.value RETURNING 1";

impl PostgresStore {
    /// Returns the secret that the brokers of this store share: 64 hexadecimal digits. The first
    /// broker that asks for it creates it.
    pub async fn secret(&self) -> Result<String, StoreError> {
        let mut bytes = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| {
            StoreError::Broken("the operating system provides no random numbers".to_owned())
        })?;
        let proposed: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let secret = get_or_propose(&self.seats, &self.options, "secret", &proposed).await?;
        let whole = secret.len() == 2 * SECRET_BYTES;
        if !whole || !secret.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let place = "table meta, name = 'secret'".to_owned();
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
    fn read_member(&self, row: &Row) -> Option<MemberInfo> {
        let [now, sent, expires] = [0, 2, 3].map(|column| row.get::<_, i64>(column));
        if expires <= now {
            return None;
        }
        let broker: String = row.get(1);
        let heartbeat = read_heartbeat(BrokerId::new(&broker), row.get(4)).map_err(|error| {
            let place = format!("table member, broker = '{broker}'");
            self.damage.found("the heartbeat of a broker", place, error)
        });
        let age = Duration::from_millis(u64::try_from(now - sent).unwrap_or(0));
        heartbeat.ok().map(|heartbeat| MemberInfo { heartbeat, age })
    }
}

impl MembershipStore for PostgresStore {
    async fn heartbeat(&self, heartbeat: &Heartbeat, ttl: Duration) -> Result<Members, StoreError> {
        let mut encoded = Vec::new();
        put_heartbeat(&mut encoded, heartbeat);
        let broker = heartbeat.broker.as_str();
        let seats = &self.seats;
        seats.call(&self.options, HEARTBEAT, &[&broker, &millis(ttl), &encoded]).await?;
        let (members, leader, assignment) = tokio::join!(
            seats.call(&self.options, MEMBERS, &[]),
            seats.call(&self.options, LEADER, &[]),
            seats.call(&self.options, ASSIGNMENT, &[]),
        );
        let (members, leader, assignment) = (members?, leader?, assignment?);
        let now = members.first().map_or(0, |row| row.get::<_, i64>(0));
        let at = Timestamp::try_from_millis(i128::from(now));
        let at = at.map_err(|_| StoreError::Broken("the database's clock is wrong".to_owned()))?;
        let mut present: Vec<MemberInfo> =
            members.iter().filter_map(|row| self.read_member(row)).collect();
        present.sort_by(|a, b| a.heartbeat.broker.cmp(&b.heartbeat.broker));
        // What is damaged is logged and counted; the next acquisition replaces it.
        let lease = leader.first().and_then(|row| self.read_lease(Seat::Leader, row, 0).ok());
        let led = lease.is_some() && leader.first().is_some_and(|row| now < row.get::<_, i64>(3));
        let assignment = assignment.first().and_then(|row| {
            let read = read_assignment(row.get(0));
            let place = || "table assignment".to_owned();
            read.map_err(|error| self.damage.found("the assignment", place(), error)).ok()
        });
        let members = Members { at, present, leader: lease, led, assignment };
        self.observe_epochs(&members);
        Ok(members)
    }

    async fn leave(&self, broker: &BrokerId) -> Result<(), StoreError> {
        self.seats.call(&self.options, LEAVE, &[&broker.as_str()]).await?;
        Ok(())
    }

    async fn propose(&self, lease: &Lease, assignment: &Assignment) -> Result<(), StoreError> {
        let seat = Seat::Leader;
        if lease.seat != seat {
            return Err(StoreError::Held { seat });
        }
        let mut bytes = Vec::new();
        put_assignment(&mut bytes, assignment);
        let epoch = i64::from(lease.epoch.get());
        let token = self.epochs.token(seat, lease.epoch);
        let rows = self.seats.call(&self.options, PROPOSE, &[&epoch, &token, &bytes]).await?;
        if rows.is_empty() { Err(StoreError::Held { seat }) } else { Ok(()) }
    }
}
