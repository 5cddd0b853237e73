//! Ended fires in Redis: the members of the sorted sets by which they are listed and swept.
//!
//! The fires that end with one batch form groups: fires of one namespace that ended in the same
//! way, at most [`SPREAD_MAX`] apart. `ends` has the groups, ordered by namespace, end and latest
//! time, so that a page is read from the newest group downwards. `keyed` has a member for every
//! fire of a task with a key. A piece in `ages` names the groups of a batch for the sweep.
//!
//! Scripts read these members at fixed offsets; they never decode records. Decoding here treats
//! its input as untrusted.

use std::cmp::Reverse;
use std::time::Duration;

use punctual_core::{EndKind, Epoch, FireId, FireRecord, TaskKey, Timestamp};
use punctual_store::codec::{CodecError, Decoded, Reader};
use punctual_store::{BatchNo, FirePosition};

use super::codec::{self, FIRE_BYTES, ID_BYTES};

/// The longest time between the ends of two fires of one group: a page that starts in the middle
/// of the order has to read only groups whose latest end is at most this much later. Fires of one
/// batch mostly end within some tens of milliseconds.
pub(crate) const SPREAD_MAX: Duration = Duration::from_millis(100);

/// The first byte of a piece that names groups. Pieces of the first format start with an epoch,
/// which is below `1 << 26`.
const PIECE_OF_GROUPS: u8 = 0xff;
/// The flag of an entry whose nominal time is not in the id of its task.
const WITH_NOMINAL: u16 = 1 << 15;
/// The size of a time in an entry: times have 48 bits.
const TIME_BYTES: usize = 6;
/// The size of a group from its end to its number: end, latest time, epoch, batch, number.
const NAME_BYTES: usize = 1 + 8 + 4 + 8 + 4;
/// The end of a member of `keyed`: time, fire and end.
const KEYED_TAIL_BYTES: usize = 8 + FIRE_BYTES + 1;

/// Returns the letter of an end.
pub(crate) const fn letter(end: EndKind) -> u8 {
    match end {
        EndKind::Done => b'd',
        EndKind::Dead => b'x',
        EndKind::Cancelled => b'c',
        EndKind::Replaced => b'r',
        EndKind::Skipped => b's',
    }
}

/// The batch that fires ended with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupOrigin {
    pub(crate) epoch: Epoch,
    pub(crate) batch: BatchNo,
}

impl GroupOrigin {
    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.get().to_be_bytes());
        out.extend_from_slice(&self.batch.get().to_be_bytes());
    }
}

/// Fires of one namespace that ended in the same way at about the same time, newest first.
#[derive(Debug)]
pub(crate) struct FireGroup<'a> {
    first: &'a FireRecord,
    others: Vec<&'a FireRecord>,
}

impl<'a> FireGroup<'a> {
    /// Divides records into groups.
    pub(crate) fn divide(records: impl Iterator<Item = &'a FireRecord>) -> Vec<Self> {
        let mut records: Vec<&FireRecord> = records.collect();
        let order = |record: &'a FireRecord| {
            (&record.namespace, record.end.kind(), Reverse(FirePosition::of(record)))
        };
        records.sort_by(|a, b| order(a).cmp(&order(b)));
        let mut groups: Vec<Self> = Vec::new();
        for record in records {
            match groups.last_mut() {
                Some(group) if group.accepts(record) => group.others.push(record),
                _ => groups.push(Self { first: record, others: Vec::new() }),
            }
        }
        groups
    }

    fn accepts(&self, record: &FireRecord) -> bool {
        self.first.namespace == record.namespace
            && self.first.end.kind() == record.end.kind()
            && self.first.ended_at.since(record.ended_at) <= SPREAD_MAX
    }

    fn records(&self) -> impl Iterator<Item = &'a FireRecord> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    fn earliest(&self) -> Timestamp {
        self.others.last().unwrap_or(&self.first).ended_at
    }

    /// Writes the member of a group. `number` makes it unique among the groups of its batch.
    pub(crate) fn put(&self, out: &mut Vec<u8>, origin: GroupOrigin, number: u32) {
        put_start(out, self.first.namespace.as_str(), self.first.end.kind());
        put_time(out, self.first.ended_at);
        origin.put(out);
        out.extend_from_slice(&number.to_be_bytes());
        put_time(out, self.earliest());
        // No piece has more fires than this.
        let count = u16::try_from(1 + self.others.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&count.to_be_bytes());
        for record in self.records() {
            put_entry(out, record);
        }
    }

    /// Writes what a piece has of a group: its namespace, end, latest time and number. The batch is
    /// that of the piece.
    pub(crate) fn put_reference(&self, out: &mut Vec<u8>, number: u32) {
        let namespace = self.first.namespace.as_str();
        // A namespace has at most 65 bytes.
        out.push(u8::try_from(namespace.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(namespace.as_bytes());
        out.push(letter(self.first.end.kind()));
        put_time(out, self.first.ended_at);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

/// Writes the first bytes of all groups of a namespace and an end.
pub(crate) fn put_start(out: &mut Vec<u8>, namespace: &str, end: EndKind) {
    out.extend_from_slice(namespace.as_bytes());
    out.extend_from_slice(&[0, letter(end)]);
}

/// Writes a time such that the bytes sort in the order of times.
pub(crate) fn put_time(out: &mut Vec<u8>, at: Timestamp) {
    out.extend_from_slice(&at.as_millis().to_be_bytes());
}

/// Writes an entry of a group: the length of the key and a flag, the id, the end, the nominal time
/// if the id does not have it, and the key.
fn put_entry(out: &mut Vec<u8>, record: &FireRecord) {
    let plain = codec::is_plain(record.fire_id);
    let key = record.key.as_ref().map_or("", TaskKey::as_str);
    // A key has at most 256 bytes.
    let length = u16::try_from(key.len()).unwrap_or(0);
    let flag = if plain { 0 } else { WITH_NOMINAL };
    out.extend_from_slice(&(length | flag).to_be_bytes());
    let fire = codec::fire(record.fire_id);
    out.extend_from_slice(&fire[..ID_BYTES]);
    out.extend_from_slice(&record.ended_at.as_millis().to_be_bytes()[8 - TIME_BYTES..]);
    if !plain {
        out.extend_from_slice(&fire[ID_BYTES..]);
    }
    out.extend_from_slice(&key.as_bytes()[..usize::from(length)]);
}

/// A fire that a group lists.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GroupEntry<'a> {
    pub(crate) position: FirePosition,
    /// Empty if the task has no key.
    pub(crate) key: &'a [u8],
}

/// Reads the entries of a group, newest first. `start` is the length of its namespace and of the
/// zero behind it.
pub(crate) fn read_group(member: &[u8], start: usize) -> Decoded<Vec<GroupEntry<'_>>> {
    let mut reader = Reader::new(member.get(start + NAME_BYTES..).ok_or(SHORT)?);
    read_time(reader.take(8)?)?;
    let count = u16::from_be_bytes(array(reader.take(2)?)?);
    let entries = (0..count).map(|_| read_entry(&mut reader)).collect::<Decoded<_>>()?;
    reader.end()?;
    Ok(entries)
}

/// The error for a member that ends too early.
const SHORT: CodecError = CodecError::Short("group");

fn read_entry<'a>(reader: &mut Reader<'a>) -> Decoded<GroupEntry<'a>> {
    let mark = u16::from_be_bytes(array(reader.take(2)?)?);
    let task = codec::read_id(reader.take(ID_BYTES)?)?;
    let mut millis = [0; 8];
    millis[8 - TIME_BYTES..].copy_from_slice(reader.take(TIME_BYTES)?);
    let ended_at = read_time(&millis)?;
    let nominal_at = match mark & WITH_NOMINAL {
        0 => task.due(),
        _ => read_time(reader.take(8)?)?,
    };
    let key = reader.take(usize::from(mark & !WITH_NOMINAL))?;
    let fire_id = FireId { task, nominal_at };
    Ok(GroupEntry { position: FirePosition { ended_at, fire_id }, key })
}

/// Returns the latest time of a group from the first bytes of its member.
pub(crate) fn latest_of(member: &[u8], start: usize) -> Decoded<Timestamp> {
    read_time(member.get(start + 1..start + 9).ok_or(SHORT)?)
}

/// Returns the first bytes of a member, which no other group has: up to its number.
pub(crate) fn name_of(member: &[u8], start: usize) -> &[u8] {
    &member[..member.len().min(start + NAME_BYTES)]
}

fn array<const N: usize>(bytes: &[u8]) -> Decoded<[u8; N]> {
    bytes.try_into().map_err(|_| SHORT)
}

fn read_time(bytes: &[u8]) -> Decoded<Timestamp> {
    let millis = u64::from_be_bytes(array(bytes)?);
    Timestamp::try_from_millis(millis.into()).map_err(|_| CodecError::Invalid("time"))
}

/// Writes the header of a piece of history; references to its groups follow. Epoch, batch and
/// number make the piece unique.
pub(crate) fn put_piece_header(out: &mut Vec<u8>, origin: GroupOrigin, number: u16, size: u32) {
    out.push(PIECE_OF_GROUPS);
    origin.put(out);
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&size.to_be_bytes());
}

/// Writes the member of a fire of a task with a key: namespace, key, end time, fire and end. No
/// namespace and no key has a zero byte.
pub(crate) fn put_keyed(out: &mut Vec<u8>, record: &FireRecord, key: &TaskKey) {
    codec::put_name(out, record.namespace.as_str(), key.as_str());
    out.push(0);
    put_time(out, record.ended_at);
    out.extend_from_slice(&codec::fire(record.fire_id));
    out.push(letter(record.end.kind()));
}

/// A member of `keyed`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KeyedFire {
    pub(crate) position: FirePosition,
    /// The letter of the end.
    pub(crate) letter: u8,
}

pub(crate) fn read_keyed(member: &[u8]) -> Decoded<KeyedFire> {
    let tail = member.len().checked_sub(KEYED_TAIL_BYTES).and_then(|at| member.get(at..));
    let mut reader = Reader::new(tail.ok_or(CodecError::Short("fire of a key"))?);
    let ended_at = read_time(reader.take(8)?)?;
    let fire_id = codec::read_fire(reader.take(FIRE_BYTES)?)?;
    Ok(KeyedFire { position: FirePosition { ended_at, fire_id }, letter: reader.byte()? })
}

#[cfg(test)]
mod tests {
    use punctual_core::{DeadReason, FireEnd};
    use punctual_store::conformance::fixtures::{at, epoch, id, namespace, partition, task};

    use super::*;

    const ORIGIN: GroupOrigin = GroupOrigin { epoch: Epoch::MAX, batch: BatchNo::FIRST };

    fn record(number: u64, end: FireEnd, ended_at: Timestamp) -> FireRecord {
        let task = task(id(at(number), partition(0), epoch(1), number));
        let task = if number.is_multiple_of(2) { task.key(&format!("a{number}")) } else { task };
        FireRecord::of(&task.build(), end, ended_at)
    }

    fn member_of(group: &FireGroup<'_>) -> Vec<u8> {
        let mut member = Vec::new();
        group.put(&mut member, ORIGIN, 7);
        member
    }

    #[test]
    fn fires_are_divided_by_namespace_end_and_time_and_are_newest_first() {
        let dead = FireEnd::Dead(DeadReason::Exhausted);
        let other = FireRecord { namespace: namespace("other"), ..record(9, dead, at(5)) };
        let after = |millis| at(5).after(Duration::from_millis(millis));
        let records = [
            record(1, FireEnd::Done, after(0)),
            record(2, FireEnd::Done, after(50)),
            record(3, FireEnd::Done, after(150)),
            record(4, dead, after(50)),
            other,
            record(5, FireEnd::Done, after(50)),
        ];
        let groups = FireGroup::divide(records.iter());
        let numbers = |group: &FireGroup<'_>| {
            let number =
                |record: &FireRecord| records.iter().position(|other| other == record).unwrap() + 1;
            group.records().map(number).collect::<Vec<_>>()
        };
        // The first ended too long before the third.
        let want = [vec![5], vec![3, 6, 2], vec![1], vec![4]];
        assert_eq!(groups.iter().map(numbers).collect::<Vec<_>>(), want);
        for group in &groups {
            let member = member_of(group);
            let start = group.first.namespace.as_str().len() + 1;
            let entries = read_group(&member, start).unwrap();
            let positions = entries.iter().map(|entry| entry.position);
            assert!(positions.eq(group.records().map(FirePosition::of)));
            let keys = group.records().map(|it| it.key.as_ref().map_or("", TaskKey::as_str));
            assert!(entries.iter().map(|entry| entry.key).eq(keys.map(str::as_bytes)));
            assert_eq!(latest_of(&member, start), Ok(group.first.ended_at));
        }
    }

    #[test]
    fn groups_of_a_namespace_and_an_end_sort_by_their_latest_time() {
        let records = [1, 2, 3].map(|second| record(1, FireEnd::Done, at(second * 10)));
        let members: Vec<_> =
            records.iter().flat_map(|it| FireGroup::divide([it].into_iter())).collect();
        assert!(members.iter().map(member_of).is_sorted());
    }

    #[test]
    fn damaged_members_are_refused_and_nothing_panics() {
        let records = [record(1, FireEnd::Done, at(5)), record(2, FireEnd::Done, at(5))];
        let group = member_of(&FireGroup::divide(records.iter())[0]);
        let start = "shop".len() + 1;
        let mut keyed = Vec::new();
        put_keyed(&mut keyed, &records[1], records[1].key.as_ref().unwrap());
        let read = KeyedFire { position: FirePosition::of(&records[1]), letter: b'd' };
        assert_eq!(read_keyed(&keyed), Ok(read));
        for length in 0..group.len() {
            assert!(read_group(&group[..length], start).is_err(), "{length}");
        }
        assert!(read_group(&[&group[..], b"x"].concat(), start).is_err());
        assert!(read_keyed(&keyed[..KEYED_TAIL_BYTES - 1]).is_err());
        for position in 0..group.len() {
            for value in 0..=u8::MAX {
                let mut damaged = group.clone();
                damaged[position] = value;
                let _ = read_group(&damaged, start);
            }
        }
    }
}
