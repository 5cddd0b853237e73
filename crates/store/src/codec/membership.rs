//! Heartbeats of brokers and the assignment that their leader proposed, for every shared store.
//! Golden samples are in `store-redis`.

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::{Assignment, BrokerId, Epoch, Heartbeat, PARTITIONS_MAX, PartitionId};

use super::{CodecError, Decoded, Reader, put_bytes, put_signed, put_varint};

/// The format of heartbeats and assignments.
const MEMBERSHIP_FORMAT: u8 = 1;
const HEARTBEAT_LEAVING: u8 = 0b01;
const HEARTBEAT_AHEAD: u8 = 0b10;
const HEARTBEAT_KNOWN: u8 = 0b11;

/// Writes a heartbeat without the broker id.
pub fn put_heartbeat(out: &mut Vec<u8>, heartbeat: &Heartbeat) {
    let mut flags = if heartbeat.leaving { HEARTBEAT_LEAVING } else { 0 };
    if heartbeat.ahead_ms.is_some() {
        flags |= HEARTBEAT_AHEAD;
    }
    out.extend_from_slice(&[MEMBERSHIP_FORMAT, flags]);
    if let Some(ahead_ms) = heartbeat.ahead_ms {
        put_signed(out, ahead_ms);
    }
    for (partition, epoch) in &heartbeat.holds {
        put_varint(out, partition.get().into());
        put_varint(out, epoch.get().into());
    }
}

/// Reads a heartbeat.
pub fn read_heartbeat(broker: BrokerId, bytes: &[u8]) -> Decoded<Heartbeat> {
    let mut reader = Reader::new(bytes);
    if reader.byte()? != MEMBERSHIP_FORMAT {
        return Err(CodecError::Invalid("format of a heartbeat"));
    }
    let flags = reader.byte()?;
    if flags & !HEARTBEAT_KNOWN != 0 {
        return Err(CodecError::Invalid("flags of a heartbeat"));
    }
    let ahead_ms = if flags & HEARTBEAT_AHEAD != 0 { Some(reader.signed()?) } else { None };
    let mut holds = Vec::new();
    while !reader.rest().is_empty() {
        let partition = PartitionId::new(reader.small("partition")?);
        let epoch = Epoch::new(reader.small("epoch")?);
        let hold = partition.zip(epoch).ok_or(CodecError::Invalid("partition or epoch"))?;
        holds.push(hold);
    }
    Ok(Heartbeat { broker, holds, leaving: flags & HEARTBEAT_LEAVING != 0, ahead_ms })
}

/// Writes an assignment: the ids of all owners, once each, then for every partition the number of
/// its owner among them, from 1; 0 means that the partition has no owner.
pub fn put_assignment(out: &mut Vec<u8>, assignment: &Assignment) {
    let names: BTreeSet<_> = assignment.owners.iter().flatten().collect();
    let numbers: BTreeMap<_, u64> = names.iter().copied().zip(1..).collect();
    out.push(MEMBERSHIP_FORMAT);
    put_varint(out, numbers.len() as u64);
    for name in &names {
        put_bytes(out, name.as_str().as_bytes());
    }
    for owner in &assignment.owners {
        put_varint(out, owner.as_ref().map_or(0, |owner| numbers[owner]));
    }
}

/// Reads an assignment.
pub fn read_assignment(bytes: &[u8]) -> Decoded<Assignment> {
    let mut reader = Reader::new(bytes);
    if reader.byte()? != MEMBERSHIP_FORMAT {
        return Err(CodecError::Invalid("format of an assignment"));
    }
    let mut names = Vec::new();
    for _ in 0..reader.small::<u16>("brokers")? {
        names.push(BrokerId::new(reader.text()?));
    }
    let mut owners = Vec::new();
    while !reader.rest().is_empty() {
        let number: usize = reader.small("owner")?;
        let owner = match number.checked_sub(1) {
            None => None,
            Some(index) => Some(names.get(index).ok_or(CodecError::Invalid("owner"))?.clone()),
        };
        owners.push(owner);
    }
    if owners.len() > usize::from(PARTITIONS_MAX) {
        return Err(CodecError::Invalid("partitions"));
    }
    Ok(Assignment { owners })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_heartbeats_and_assignments_are_refused_and_nothing_panics() {
        let heartbeat = Heartbeat {
            broker: BrokerId::new("a:1"),
            holds: vec![(PartitionId::FIRST, Epoch::MAX)],
            leaving: false,
            ahead_ms: Some(i64::MIN),
        };
        let mut encoded = Vec::new();
        put_heartbeat(&mut encoded, &heartbeat);
        assert_eq!(read_heartbeat(heartbeat.broker.clone(), &encoded), Ok(heartbeat.clone()));
        let owners = vec![Some(BrokerId::new("b:1")), None, Some(BrokerId::new("a:1"))];
        let assignment = Assignment { owners };
        let mut proposed = Vec::new();
        put_assignment(&mut proposed, &assignment);
        assert_eq!(read_assignment(&proposed), Ok(assignment));
        // Every byte with every value is decoded or refused.
        for position in 0..encoded.len().max(proposed.len()) {
            for value in 0..=u8::MAX {
                for bytes in [&encoded, &proposed] {
                    let mut bytes = bytes.clone();
                    if let Some(byte) = bytes.get_mut(position) {
                        *byte = value;
                    }
                    let _ = read_heartbeat(heartbeat.broker.clone(), &bytes);
                    let _ = read_assignment(&bytes);
                }
            }
        }
        assert!(read_heartbeat(heartbeat.broker.clone(), &encoded[..encoded.len() - 1]).is_err());
        assert!(read_heartbeat(heartbeat.broker.clone(), &[2, 0]).is_err(), "an unknown format");
        assert!(read_assignment(&[1, 1, 1, b'a', 2]).is_err(), "an owner that is not listed");
        assert!(
            read_assignment(&[&[1, 0][..], &[0; 4097]].concat()).is_err(),
            "too many partitions"
        );
    }
}
