//! Encodings in Redis: the fields, members and values under the keys.
//!
//! Bodies, heads, records and dead letters are encoded by `punctual_store::codec`; this file adds
//! what the scripts need in front of them, at fixed offsets: whether a task lives (1 byte), the id
//! that a name leads to (16 bytes), the end of a record (8 bytes). So scripts never decode a value.
//! Decoding treats its input as untrusted. The members by which ended fires are listed are in
//! `ends`, the names of keys in `keys`; `golden/` keeps samples of the bytes.

use punctual_core::{FireId, FireRecord, Namespace, Task, TaskId, TaskState, Timestamp, Version};
use punctual_store::codec::{self, CodecError, Decoded, Interner, Reader};
use punctual_store::{Counts, Head, Position};

/// The size of a task id in bytes.
pub(crate) const ID_BYTES: usize = 16;
/// The size of a fire in bytes: the task id and the nominal time.
pub(crate) const FIRE_BYTES: usize = ID_BYTES + 8;

/// The field of the size of history among the counts. No namespace is empty, so no count has this
/// field.
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

/// Returns the position of an entry of a sorted set, whatever its member and its score are: a read
/// that starts after it returns the entries behind it. `None` if no task can be behind it.
#[expect(clippy::cast_possible_truncation, reason = "larger numbers are no times")]
pub(crate) fn position(score: f64, member: &[u8]) -> Option<Position> {
    // Doubles are exact in this range.
    let fire_at = Timestamp::try_from_millis(score.max(0.0).ceil() as i128).ok()?;
    let mut id = [0; ID_BYTES];
    let known = member.len().min(ID_BYTES);
    id[..known].copy_from_slice(&member[..known]);
    match read_id(&id) {
        // Not the start, from which a read returns this entry again.
        _ if score < 0.0 => Some(Position { fire_at, id: TaskId::try_from_u128(1).ok()? }),
        // All tasks that are due at this time are behind the entry.
        _ if score.fract() != 0.0 => Some(Position::before(fire_at)),
        Ok(id) => Some(Position { fire_at, id }),
        // The member is above all ids, so the entry is behind all tasks of its time.
        Err(_) => {
            let next = i128::from(fire_at.as_millis()) + 1;
            Timestamp::try_from_millis(next).ok().map(Position::before)
        }
    }
}

/// Encodes a fire. The bytes sort in the order of fire ids.
pub(crate) fn fire(fire_id: FireId) -> [u8; FIRE_BYTES] {
    fire_at_time(fire_id.task, fire_id.nominal_at.as_millis())
}

pub(crate) fn read_fire(bytes: &[u8]) -> Decoded<FireId> {
    let (task, nominal) = bytes.split_at_checked(ID_BYTES).ok_or(CodecError::Short("fire"))?;
    let nominal = nominal.try_into().map_err(|_| CodecError::Short("fire"))?;
    let nominal_at = Timestamp::try_from_millis(u64::from_be_bytes(nominal).into())
        .map_err(|_| CodecError::Invalid("nominal time"))?;
    Ok(FireId { task: read_id(task)?, nominal_at })
}

/// Returns bytes that sort after every fire of a task.
pub(crate) fn fire_above(task: TaskId) -> [u8; FIRE_BYTES] {
    fire_at_time(task, u64::MAX)
}

fn fire_at_time(task: TaskId, millis: u64) -> [u8; FIRE_BYTES] {
    let mut bytes = [0; FIRE_BYTES];
    bytes[..ID_BYTES].copy_from_slice(&id(task));
    bytes[ID_BYTES..].copy_from_slice(&millis.to_be_bytes());
    bytes
}

/// Returns whether the task id alone leads to a fire: it is the first fire of a task that was never
/// postponed.
pub(crate) fn is_plain(fire_id: FireId) -> bool {
    fire_id.nominal_at == fire_id.task.due()
}

/// The first byte of the value of a task that has ended: its record follows.
const ENDED: u8 = 0;
/// The first byte of the value of a living task.
const LIVING: u8 = 1;

/// Writes a living task without its id.
pub(crate) fn put_task(out: &mut Vec<u8>, task: &Task) {
    out.push(LIVING);
    codec::put_timestamp(out, task.fire_at);
    codec::put_body(out, task);
}

/// Writes the record of the first fire of a task, which replaces the task.
pub(crate) fn put_ended(out: &mut Vec<u8>, record: &FireRecord) {
    out.push(ENDED);
    put_record(out, record);
}

/// Returns whether a value is the record of a task that has ended.
pub(crate) fn is_ended(value: &[u8]) -> bool {
    value.first() == Some(&ENDED)
}

pub(crate) fn read_task(id: TaskId, value: &[u8], interner: &Interner) -> Decoded<Task> {
    let mut reader = Reader::new(value);
    if reader.byte()? != LIVING {
        return Err(CodecError::Invalid("living task"));
    }
    let fire_at = reader.timestamp()?;
    codec::read_body(id, fire_at, reader.rest(), interner)
}

/// A postponement of a task, stored apart from its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Postponement {
    pub(crate) fire_at: Timestamp,
    pub(crate) version: Version,
    /// When the task was touched. Values of the first format do not have it.
    pub(crate) updated_at: Option<Timestamp>,
}

impl Postponement {
    pub(crate) fn of_task(self, task: Task) -> Task {
        let Self { fire_at, version, updated_at } = self;
        let updated_at = updated_at.unwrap_or(task.updated_at);
        Task { fire_at, nominal_at: fire_at, version, updated_at, ..task }
    }

    pub(crate) fn of_head(self, head: Head) -> Head {
        let Self { fire_at, version, .. } = self;
        Head { fire_at, nominal_at: fire_at, version, ..head }
    }
}

pub(crate) fn put_postponement(out: &mut Vec<u8>, postponement: Postponement) {
    codec::put_timestamp(out, postponement.fire_at);
    codec::put_varint(out, postponement.version.get());
    if let Some(updated_at) = postponement.updated_at {
        codec::put_timestamp(out, updated_at);
    }
}

pub(crate) fn read_postponement(bytes: &[u8]) -> Decoded<Postponement> {
    let mut reader = Reader::new(bytes);
    let (fire_at, version) = (reader.timestamp()?, Version::new(reader.varint()?));
    let updated_at = match reader.rest() {
        [] => None,
        _ => Some(reader.timestamp()?),
    };
    reader.end()?;
    Ok(Postponement { fire_at, version, updated_at })
}

/// Writes the field of a name. No namespace has a zero byte, so different names have different
/// fields.
pub(crate) fn put_name(out: &mut Vec<u8>, namespace: &str, key: &str) {
    out.extend_from_slice(namespace.as_bytes());
    out.push(0);
    out.extend_from_slice(key.as_bytes());
}

/// Writes the value of a name: the id and the head of the task.
pub(crate) fn put_head(out: &mut Vec<u8>, head: &Head) {
    out.extend_from_slice(&id(head.id));
    codec::put_head(out, head);
}

pub(crate) fn read_head(value: &[u8]) -> Decoded<Head> {
    let (id, bytes) = value.split_at_checked(ID_BYTES).ok_or(CodecError::Short("name"))?;
    let head = codec::read_head(bytes)?;
    if read_id(id)? != head.id {
        return Err(CodecError::Invalid("id of the name"));
    }
    Ok(head)
}

/// Writes the member of a dead letter in the sorted sets.
pub(crate) fn put_letter_member(out: &mut Vec<u8>, namespace: &Namespace, fire_id: FireId) {
    out.extend_from_slice(namespace.as_str().as_bytes());
    out.push(0);
    out.extend_from_slice(&fire(fire_id));
}

/// Writes a record behind the time of its end, which has a fixed offset.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &FireRecord) {
    out.extend_from_slice(&record.ended_at.as_millis().to_be_bytes());
    codec::put_record(out, record);
}

pub(crate) fn read_record(value: &[u8], interner: &Interner) -> Decoded<FireRecord> {
    let (_, bytes) = value.split_at_checked(8).ok_or(CodecError::Short("record"))?;
    codec::read_record(bytes, interner)
}

/// Returns the counts of a namespace with the letters of their fields.
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

/// Writes the field of one count.
pub(crate) fn put_count_field(out: &mut Vec<u8>, namespace: &str, letter: u8) {
    out.extend_from_slice(namespace.as_bytes());
    out.extend_from_slice(&[0, letter]);
}

/// Returns counts from numbers in the order of [`by_letter`].
pub(crate) const fn counts_of(numbers: [i64; 6]) -> Counts {
    let [scheduled, paused, done, dead, cancelled, dead_letters] = numbers;
    Counts { scheduled, paused, done, dead, cancelled, dead_letters }
}

/// Returns whether a living task has no due time: it is paused, or a watch that has fired and was
/// not touched since.
pub(crate) fn is_paused(task: &Task) -> bool {
    task.state != TaskState::Scheduled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_starts_after_any_entry_passes_it_and_no_task_behind_it() {
        let at = |millis: u64| Timestamp::from_millis(millis);
        let id = TaskId::floor(at(5));
        let plain = Position { fire_at: at(7), id };
        let short = Position { fire_at: at(7), id: TaskId::floor(Timestamp::EPOCH) };
        let first = Position { fire_at: at(0), id: TaskId::try_from_u128(1).unwrap() };
        for (score, member, want) in [
            (7.0, &super::id(id)[..], Some(plain)),
            (7.0, &[&super::id(id)[..], b"more"].concat(), Some(plain)),
            (7.0, b"", Some(short)),
            (7.0, &[0xff; ID_BYTES], Some(Position::before(at(8)))),
            (6.5, &super::id(id), Some(Position::before(at(7)))),
            (-3.0, &super::id(id), Some(first)),
            (f64::NEG_INFINITY, b"", Some(first)),
            (f64::INFINITY, &super::id(id), None),
            (1e300, &super::id(id), None),
        ] {
            assert_eq!(position(score, member), want, "{score} {member:?}");
        }
    }
}
