//! Bytes in Redis: how the store frames what `punctual_store::codec` spells.
//!
//! In: tasks, heads, records. Out: the fields, members and values under the keys, and back. What is read is untrusted:
//! a foreign hand may have written it. Scripts never look into records; what they need of a value stands
//! before it at a fixed place: whether a task lives (1 byte), the id of a name (16 bytes), the end of a record (8 bytes),
//! the size of a piece.
//! Not here: bodies, heads, records and letters themselves (`punctual_store::codec`), names of keys (`keys`).

use punctual_core::{FireId, FireRecord, Namespace, Task, TaskId, TaskState, Timestamp, Version};
use punctual_store::codec::{self, CodecError, Interner, Reader};
use punctual_store::{BatchNo, Counts, Head};

type Result<T> = std::result::Result<T, CodecError>;

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

pub(crate) fn read_id(bytes: &[u8]) -> Result<TaskId> {
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
) -> Result<Task> {
    let mut reader = Reader::new(value);
    if reader.byte()? != LIVING {
        return Err(CodecError::Invalid("living task"));
    }
    let fire_at = reader.timestamp()?;
    let task = codec::read_body(id, fire_at, reader.rest(), interner)?;
    let Some(late) = late else { return Ok(task) };
    let Late { fire_at, version } = read_late(late)?;
    Ok(Task { fire_at, nominal_at: fire_at, version, ..task })
}

/// A postponement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Late {
    pub(crate) fire_at: Timestamp,
    pub(crate) version: Version,
}

pub(crate) fn put_late(out: &mut Vec<u8>, late: Late) {
    codec::put_timestamp(out, late.fire_at);
    codec::put_varint(out, late.version.get());
}

fn read_late(bytes: &[u8]) -> Result<Late> {
    let mut reader = Reader::new(bytes);
    let late = Late { fire_at: reader.timestamp()?, version: Version::new(reader.varint()?) };
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

pub(crate) fn read_head(value: &[u8], late: Option<&[u8]>) -> Result<Head> {
    let (_, bytes) = value.split_at_checked(ID_BYTES).ok_or(CodecError::Short("name"))?;
    let head = codec::read_head(bytes)?;
    let Some(late) = late else { return Ok(head) };
    let Late { fire_at, version } = read_late(late)?;
    Ok(Head { fire_at, nominal_at: fire_at, version, ..head })
}

/// A letter's place among those of its namespace.
pub(crate) fn put_letter_place(out: &mut Vec<u8>, namespace: &Namespace, fire_id: FireId) {
    out.extend_from_slice(namespace.as_str().as_bytes());
    out.push(0);
    out.extend_from_slice(&fire(fire_id));
}

/// A record, with the time of its end at a fixed place.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &FireRecord) {
    out.extend_from_slice(&record.ended_at.as_millis().to_be_bytes());
    codec::put_record(out, record);
}

pub(crate) fn read_record(value: &[u8], interner: &Interner) -> Result<FireRecord> {
    let (_, bytes) = value.split_at_checked(8).ok_or(CodecError::Short("record"))?;
    codec::read_record(bytes, interner)
}

/// Begins a piece of history; the fires follow. Epoch, batch and number make it unlike every other.
pub(crate) fn put_piece_header(
    out: &mut Vec<u8>,
    epoch: punctual_core::Epoch,
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
