//! Bytes in Redis: how the store frames what `punctual_store::codec` spells.
//!
//! In: tasks, heads, records, what brokers say of themselves. Out: the fields, members and values under the keys, and
//! back. What is read is untrusted: a foreign hand may have written it. Scripts never look into records; what they need of a value stands
//! before it at a fixed place: whether a task lives (1 byte), the id of a name (16 bytes), the end of a record (8 bytes),
//! the size of a piece.
//! Not here: bodies, heads, records and letters themselves (`punctual_store::codec`), names of keys (`keys`).

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::{
    Assignment, BrokerId, Epoch, FireId, FireRecord, Heartbeat, Namespace, PARTITIONS_MAX,
    PartitionId, Task, TaskId, TaskState, Timestamp, Version,
};
use punctual_store::codec::{self, CodecError, Decoded, Interner, Reader};
use punctual_store::{BatchNo, Counts, Head};

/// Bytes of a task's id.
pub(crate) const ID_BYTES: usize = 16;
/// Bytes of a fire: the id and the nominal time.
pub(crate) const FIRE_BYTES: usize = ID_BYTES + 8;
/// Bytes before the fires of a piece of history: epoch, batch, piece, size.
#[cfg(test)]
pub(crate) const PIECE_HEADER_BYTES: usize = 4 + 8 + 2 + 4;

/// The field of history's size among the counts. No namespace is empty, so none can have this one.
pub(crate) const HISTORY_BYTES_FIELD: &[u8] = b"\0history";

pub(crate) const fn id(id: TaskId) -> [u8; ID_BYTES] {
    id.as_u128().to_be_bytes()
}

pub(crate) fn read_id(bytes: &[u8]) -> Decoded<TaskId> {
    let mut reader = Reader::new(bytes);
    let id = reader.task_id()?;
    reader.end()?;
    Ok(id)
}

/// Sorts as fire ids do.
pub(crate) fn fire(fire_id: FireId) -> [u8; FIRE_BYTES] {
    fire_at_time(fire_id.task, fire_id.nominal_at.as_millis())
}

/// Above every fire of a task.
pub(crate) fn fire_above(task: TaskId) -> [u8; FIRE_BYTES] {
    fire_at_time(task, u64::MAX)
}

fn fire_at_time(task: TaskId, millis: u64) -> [u8; FIRE_BYTES] {
    let mut bytes = [0; FIRE_BYTES];
    bytes[..ID_BYTES].copy_from_slice(&id(task));
    bytes[ID_BYTES..].copy_from_slice(&millis.to_be_bytes());
    bytes
}

/// Whether history finds a fire by the task's id alone: the first of a task that was never postponed.
pub(crate) fn is_plain(fire_id: FireId) -> bool {
    fire_id.nominal_at == fire_id.task.due()
}

/// Before the record of a task that has ended.
const ENDED: u8 = 0;
/// Before a living task.
const LIVING: u8 = 1;

/// A living task, but for its id.
pub(crate) fn put_task(out: &mut Vec<u8>, task: &Task) {
    out.push(LIVING);
    codec::put_timestamp(out, task.fire_at);
    codec::put_body(out, task);
}

/// The record of a task's first fire, in the place of the task.
pub(crate) fn put_ended(out: &mut Vec<u8>, record: &FireRecord) {
    out.push(ENDED);
    put_record(out, record);
}

/// Whether a value stands in the place of a task that has ended.
pub(crate) fn is_ended(value: &[u8]) -> bool {
    value.first() == Some(&ENDED)
}

pub(crate) fn read_task(
    id: TaskId,
    value: &[u8],
    late: Option<&[u8]>,
    interner: &Interner,
) -> Decoded<Task> {
    let mut reader = Reader::new(value);
    if reader.byte()? != LIVING {
        return Err(CodecError::Invalid("living task"));
    }
    let fire_at = reader.timestamp()?;
    let task = codec::read_body(id, fire_at, reader.rest(), interner)?;
    let Some(late) = late else { return Ok(task) };
    let Postponement { fire_at, version } = read_postponement(late)?;
    Ok(Task { fire_at, nominal_at: fire_at, version, ..task })
}

/// A postponement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Postponement {
    pub(crate) fire_at: Timestamp,
    pub(crate) version: Version,
}

pub(crate) fn put_postponement(out: &mut Vec<u8>, late: Postponement) {
    codec::put_timestamp(out, late.fire_at);
    codec::put_varint(out, late.version.get());
}

fn read_postponement(bytes: &[u8]) -> Decoded<Postponement> {
    let mut reader = Reader::new(bytes);
    let late =
        Postponement { fire_at: reader.timestamp()?, version: Version::new(reader.varint()?) };
    reader.end()?;
    Ok(late)
}

/// The field of a name. No namespace has a zero byte, so no two names run together.
pub(crate) fn put_name(out: &mut Vec<u8>, namespace: &str, key: &str) {
    out.extend_from_slice(namespace.as_bytes());
    out.push(0);
    out.extend_from_slice(key.as_bytes());
}

/// What a name leads to.
pub(crate) fn put_head(out: &mut Vec<u8>, head: &Head) {
    out.extend_from_slice(&id(head.id));
    codec::put_head(out, head);
}

pub(crate) fn read_head(value: &[u8], late: Option<&[u8]>) -> Decoded<Head> {
    let (_, bytes) = value.split_at_checked(ID_BYTES).ok_or(CodecError::Short("name"))?;
    let head = codec::read_head(bytes)?;
    let Some(late) = late else { return Ok(head) };
    let Postponement { fire_at, version } = read_postponement(late)?;
    Ok(Head { fire_at, nominal_at: fire_at, version, ..head })
}

/// A letter's place among those of its namespace.
pub(crate) fn put_letter_member(out: &mut Vec<u8>, namespace: &Namespace, fire_id: FireId) {
    out.extend_from_slice(namespace.as_str().as_bytes());
    out.push(0);
    out.extend_from_slice(&fire(fire_id));
}

/// A record, with the time of its end at a fixed place.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &FireRecord) {
    out.extend_from_slice(&record.ended_at.as_millis().to_be_bytes());
    codec::put_record(out, record);
}

pub(crate) fn read_record(value: &[u8], interner: &Interner) -> Decoded<FireRecord> {
    let (_, bytes) = value.split_at_checked(8).ok_or(CodecError::Short("record"))?;
    codec::read_record(bytes, interner)
}

/// Begins a piece of history; the fires follow. Epoch, batch and number make it unlike every other.
pub(crate) fn put_piece_header(
    out: &mut Vec<u8>,
    epoch: Epoch,
    batch: BatchNo,
    number: u16,
    size: u32,
) {
    out.extend_from_slice(&epoch.get().to_be_bytes());
    out.extend_from_slice(&batch.get().to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&size.to_be_bytes());
}

/// The counts of a namespace by the letters of their fields.
pub(crate) const fn by_letter(counts: &Counts) -> [(u8, i64); 6] {
    [
        (b's', counts.scheduled),
        (b'p', counts.paused),
        (b'd', counts.done),
        (b'x', counts.dead),
        (b'c', counts.cancelled),
        (b'l', counts.dead_letters),
    ]
}

/// The field of one count.
pub(crate) fn put_count_field(out: &mut Vec<u8>, namespace: &str, letter: u8) {
    out.extend_from_slice(namespace.as_bytes());
    out.extend_from_slice(&[0, letter]);
}

/// Counts from the numbers in the order of [`by_letter`].
pub(crate) const fn counts_of(numbers: [i64; 6]) -> Counts {
    let [scheduled, paused, done, dead, cancelled, dead_letters] = numbers;
    Counts { scheduled, paused, done, dead, cancelled, dead_letters }
}

/// Whether a living task is outside of time: paused, or a watch that has fired and was not touched since.
pub(crate) fn is_paused(task: &Task) -> bool {
    task.state != TaskState::Scheduled
}

/// The format of what brokers say and leaders propose.
const MEMBERSHIP_FORMAT: u8 = 1;
const HEARTBEAT_LEAVING: u8 = 0b01;
const HEARTBEAT_AHEAD: u8 = 0b10;
const HEARTBEAT_KNOWN: u8 = 0b11;

/// What a broker says of itself, but for its name.
pub(crate) fn put_heartbeat(out: &mut Vec<u8>, presence: &Heartbeat) {
    let mut flags = if presence.leaving { HEARTBEAT_LEAVING } else { 0 };
    if presence.ahead_ms.is_some() {
        flags |= HEARTBEAT_AHEAD;
    }
    out.extend_from_slice(&[MEMBERSHIP_FORMAT, flags]);
    if let Some(ahead_ms) = presence.ahead_ms {
        codec::put_signed(out, ahead_ms);
    }
    for (partition, epoch) in &presence.holds {
        codec::put_varint(out, partition.get().into());
        codec::put_varint(out, epoch.get().into());
    }
}

pub(crate) fn read_heartbeat(broker: BrokerId, bytes: &[u8]) -> Decoded<Heartbeat> {
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

/// The names of all owners, once each, and for every partition the place of its owner among them; 0 is nobody.
pub(crate) fn put_assignment(out: &mut Vec<u8>, assignment: &Assignment) {
    let names: BTreeSet<_> = assignment.owners.iter().flatten().collect();
    let places: BTreeMap<_, u64> = names.iter().copied().zip(1..).collect();
    out.push(MEMBERSHIP_FORMAT);
    codec::put_varint(out, places.len() as u64);
    for name in &names {
        codec::put_bytes(out, name.as_str().as_bytes());
    }
    for owner in &assignment.owners {
        codec::put_varint(out, owner.as_ref().map_or(0, |owner| places[owner]));
    }
}

pub(crate) fn read_assignment(bytes: &[u8]) -> Decoded<Assignment> {
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
        let place: usize = reader.small("owner")?;
        let owner = match place.checked_sub(1) {
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
        let presence = Heartbeat {
            broker: BrokerId::new("a:1"),
            holds: vec![(PartitionId::FIRST, Epoch::MAX)],
            leaving: false,
            ahead_ms: Some(i64::MIN),
        };
        let mut said = Vec::new();
        put_heartbeat(&mut said, &presence);
        assert_eq!(read_heartbeat(presence.broker.clone(), &said), Ok(presence.clone()));
        let owners = vec![Some(BrokerId::new("b:1")), None, Some(BrokerId::new("a:1"))];
        let assignment = Assignment { owners };
        let mut proposed = Vec::new();
        put_assignment(&mut proposed, &assignment);
        assert_eq!(read_assignment(&proposed), Ok(assignment));
        // Every byte changed in every way: read or refused.
        for place in 0..said.len().max(proposed.len()) {
            for value in 0..=u8::MAX {
                for bytes in [&said, &proposed] {
                    let mut bytes = bytes.clone();
                    if let Some(byte) = bytes.get_mut(place) {
                        *byte = value;
                    }
                    let _ = read_heartbeat(presence.broker.clone(), &bytes);
                    let _ = read_assignment(&bytes);
                }
            }
        }
        assert!(read_heartbeat(presence.broker.clone(), &said[..said.len() - 1]).is_err());
        assert!(read_heartbeat(presence.broker.clone(), &[2, 0]).is_err(), "a later format");
        assert!(read_assignment(&[1, 1, 1, b'a', 2]).is_err(), "an owner without a name");
        assert!(read_assignment(&[&[1, 0][..], &[0; 4097]].concat()).is_err(), "too many");
    }
}
