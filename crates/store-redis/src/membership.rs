//! Membership: heartbeats of brokers and the proposals of their leader, in two keys beside the
//! leader seat.
//!
//! Both keys share the hash tag of the leader seat, so that a heartbeat is one script. A value that
//! cannot be decoded, because a later version or another program wrote it, is damaged and left out:
//! the next heartbeat, proposal or acquisition replaces it.

use std::time::Duration;

use punctual_core::{Assignment, BrokerId, Heartbeat, Lease, Seat, Timestamp};
use punctual_store::codec::CodecError;
use punctual_store::{MemberInfo, Members, MembershipStore, StoreError};
use redis::Value;
use ring::rand::{SecureRandom, SystemRandom};

use crate::damage::{DamageTracker, UNREADABLE};
use crate::format::keys;
use crate::open::get_or_propose;
use crate::store::{RedisStore, millis, read_lease, read_time, script_result};
use crate::transport::reply;
use crate::transport::script::{self, ScriptCall};

/// The size of the secret in bytes.
const SECRET_BYTES: usize = 32;

impl RedisStore {
    /// Returns the secret that the brokers of this store share: 64 hexadecimal digits. The first
    /// broker that asks for it creates it.
    pub async fn secret(&self) -> Result<String, StoreError> {
        let mut bytes = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| {
            StoreError::Broken("the operating system provides no random numbers".to_owned())
        })?;
        let proposed: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let meta = keys::meta(&self.cluster);
        let secret = get_or_propose(&self.reads, &meta, "secret", &proposed).await?;
        let whole = secret.len() == 2 * SECRET_BYTES;
        if !whole || !secret.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(self.damage.found("the secret", &meta, b"secret", "it is not 64 digits"));
        }
        Ok(secret)
    }

    /// Observes the epochs that members hold: they count even if Redis has lost the acquisition.
    fn observe_epochs(&self, members: &Members) {
        if let Some(leader) = &members.leader {
            self.epochs.observe(Seat::Leader, leader.epoch);
        }
        for member in &members.present {
            for (partition, epoch) in &member.heartbeat.holds {
                if self.keys(*partition).is_ok() {
                    self.epochs.observe(Seat::Partition(*partition), *epoch);
                }
            }
        }
    }
}

impl MembershipStore for RedisStore {
    async fn heartbeat(&self, heartbeat: &Heartbeat, ttl: Duration) -> Result<Members, StoreError> {
        let roll = keys::roll(&self.cluster);
        let leader = keys::own(&self.cluster, Seat::Leader);
        let assignment = keys::assignment(&self.cluster);
        let mut encoded = Vec::new();
        punctual_store::codec::put_heartbeat(&mut encoded, heartbeat);
        let call = ScriptCall::new(&script::HEARTBEAT, [roll.as_str(), &leader, &assignment])
            .arg(heartbeat.broker.as_str())
            .number(millis(ttl))
            .arg(encoded);
        // Not on a connection for writes, which may wait for replicas.
        let reader = MembersReader { cluster: &self.cluster, damage: &self.damage };
        let members = reader.read_members(self.reads.call(&call).await?)?;
        self.observe_epochs(&members);
        Ok(members)
    }

    async fn leave(&self, broker: &BrokerId) -> Result<(), StoreError> {
        let roll = keys::roll(&self.cluster);
        let mut command = redis::cmd("HDEL");
        command.arg(&roll).arg(broker.as_str());
        self.reads.command(command, &roll).await?;
        Ok(())
    }

    async fn propose(&self, lease: &Lease, assignment: &Assignment) -> Result<(), StoreError> {
        let seat = Seat::Leader;
        if lease.seat != seat {
            return Err(StoreError::Held { seat });
        }
        let leader = keys::own(&self.cluster, seat);
        let key = keys::assignment(&self.cluster);
        let mut bytes = Vec::new();
        punctual_store::codec::put_assignment(&mut bytes, assignment);
        let call = ScriptCall::new(&script::PROPOSE, [leader.as_str(), &key])
            .number(lease.epoch.get())
            .arg(self.epochs.token(seat, lease.epoch))
            .arg(bytes);
        match script_result(self.reads.call(&call).await?)?.0 {
            0 => Ok(()),
            1 => Err(StoreError::Held { seat }),
            _ => Err(reply::unexpected("a result of propose")),
        }
    }
}

/// Reads the reply of the heartbeat script. What is damaged is logged and counted, and left out.
struct MembersReader<'a> {
    cluster: &'a str,
    damage: &'a DamageTracker,
}

impl MembersReader<'_> {
    fn read_members(&self, value: Value) -> Result<Members, StoreError> {
        let [now, present, leader, assignment] = reply::tuple(value)?;
        let at = read_time(&now)?;
        let values = reply::array(present)?;
        let mut present = Vec::with_capacity(values.len() / 3);
        let mut values = values.into_iter();
        while let (Some(broker), Some(age), Some(heartbeat)) =
            (values.next(), values.next(), values.next())
        {
            let broker = reply::bytes(broker)?;
            if let Ok(heartbeat) = self.read_heartbeat(&broker, reply::bytes(heartbeat)?) {
                let age = u64::try_from(reply::integer(&age)?);
                let age = age.map_err(|_| reply::unexpected("an age"))?;
                present.push(MemberInfo { heartbeat, age: Duration::from_millis(age) });
            }
        }
        present.sort_by(|a, b| a.heartbeat.broker.cmp(&b.heartbeat.broker));
        let leader = self.read_leader(leader, at)?;
        let led = leader.as_ref().is_some_and(|(_, led)| *led);
        let leader = leader.map(|(lease, _)| lease);
        let assignment = reply::optional_bytes(assignment)?;
        let assignment = assignment.and_then(|bytes| self.read_assignment(&bytes).ok());
        Ok(Members { at, present, leader, led, assignment })
    }

    fn read_heartbeat(&self, broker: &[u8], heartbeat: Vec<u8>) -> Result<Heartbeat, StoreError> {
        let id = std::str::from_utf8(broker).map_err(|_| CodecError::Invalid("broker"));
        let read =
            id.and_then(|id| punctual_store::codec::read_heartbeat(BrokerId::new(id), &heartbeat));
        let roll = keys::roll(self.cluster);
        read.map_err(|error| self.damage.found("the heartbeat of a broker", &roll, broker, error))
    }

    fn read_assignment(&self, bytes: &[u8]) -> Result<Assignment, StoreError> {
        let key = keys::assignment(self.cluster);
        punctual_store::codec::read_assignment(bytes)
            .map_err(|error| self.damage.found("the assignment", &key, b"", error))
    }

    /// Returns the last lease of the leader seat, and whether it is still valid; `None` if there is
    /// none, or if it is damaged. The next acquisition or renewal replaces it.
    fn read_leader(
        &self,
        value: Value,
        at: Timestamp,
    ) -> Result<Option<(Lease, bool)>, StoreError> {
        let [epoch, broker, until, expires] = reply::tuple(value)?;
        if epoch == Value::Nil {
            return Ok(None);
        }
        let expires = read_time(&expires).map_err(|_| "expires");
        let lease = read_lease(Seat::Leader, [&epoch, &broker, &until]);
        let read = lease.and_then(|lease| Ok((lease, at < expires?)));
        let key = keys::own(self.cluster, Seat::Leader);
        let damaged =
            |field: &str| self.damage.found("the lease", &key, field.as_bytes(), UNREADABLE);
        let read = read.map_err(damaged);
        Ok(read.ok())
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{Epoch, PartitionId};

    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn reply_with(present: Vec<Value>, leader: [Value; 4], assignment: Value) -> Value {
        let leader = Value::Array(leader.to_vec());
        Value::Array(vec![Value::Int(5_000), Value::Array(present), leader, assignment])
    }

    fn read_members(value: Value) -> Result<Members, StoreError> {
        let damage = DamageTracker::default();
        MembersReader { cluster: "shop", damage: &damage }.read_members(value)
    }

    const NO_LEADER: [Value; 4] = [const { Value::Nil }; 4];

    #[test]
    fn members_that_cannot_be_decoded_are_left_out() {
        let heartbeat = Heartbeat {
            broker: BrokerId::new("a:1"),
            holds: vec![(PartitionId::FIRST, Epoch::MAX)],
            leaving: true,
            ahead_ms: Some(-3),
        };
        let mut encoded = Vec::new();
        punctual_store::codec::put_heartbeat(&mut encoded, &heartbeat);
        let present = vec![
            bulk("b:1"),
            Value::Int(7),
            bulk("of a later version"),
            bulk("a:1"),
            Value::Int(8),
            Value::BulkString(encoded),
        ];
        let members = read_members(reply_with(present, NO_LEADER, bulk("?"))).unwrap();
        assert_eq!(members.present, [MemberInfo { heartbeat, age: Duration::from_millis(8) }]);
        assert_eq!((members.leader, members.led, members.assignment), (None, false, None));
    }

    #[test]
    fn a_leader_leads_until_its_lease_expires_by_the_clock_of_redis() {
        for (expires, leads) in [("5001", true), ("5000", false), ("0", false)] {
            let leader = [bulk("3"), bulk("a:1"), bulk("9"), bulk(expires)];
            let members = read_members(reply_with(Vec::new(), leader, Value::Nil)).unwrap();
            assert_eq!(members.led, leads, "{expires}");
            assert_eq!(members.leader.unwrap().broker, BrokerId::new("a:1"));
        }
    }

    #[test]
    fn a_damaged_lease_of_the_leader_is_no_leader() {
        let good = ["3", "a:1", "9", "5001"];
        for damaged in 0..good.len() {
            let mut leader = good.map(bulk);
            leader[damaged] = Value::BulkString(vec![0xff]);
            let members = read_members(reply_with(Vec::new(), leader, Value::Nil)).unwrap();
            assert_eq!((members.leader, members.led), (None, false), "{damaged}");
        }
    }

    #[test]
    fn a_reply_of_another_shape_is_an_error() {
        let no_leader = || Value::Array(NO_LEADER.to_vec());
        for value in [
            Value::Nil,
            Value::Array(vec![Value::Int(-1), Value::Array(Vec::new()), no_leader(), Value::Nil]),
            reply_with(vec![bulk("a:1"), Value::Nil, Value::Nil], NO_LEADER, Value::Nil),
            reply_with(Vec::new(), NO_LEADER, Value::Int(1)),
        ] {
            assert!(read_members(value.clone()).is_err(), "{value:?}");
        }
    }
}
