//! The entries of an index: byte strings that sort in the order in which they are read.
//!
//! ```text
//! by end   0 | partition 2 | namespace | 0 | kind of end 1 | time 6 | ordinal 4 | rank 4
//! by key   1 | partition 2 | namespace | 0 | key | 0 | time 6 | ordinal 4 | kind of end 1
//! ```
//! Integers are big endian. The time at which a fire ended and the ordinal of its record are
//! inverted, so that the newest comes first. Within a partition, ordinals of a run are in the order
//! of fire ids. The rank of a fire is its position in the order by key, so that a walk by end
//! selects a range of keys without reading any.

use punctual_core::{EndKind, PartitionId, Timestamp};
use punctual_store::codec::CodecError;

const BY_END: u8 = 0;
const BY_KEY: u8 = 1;
/// Ends a namespace and a key, which have no control characters.
const END_OF_NAME: u8 = 0;
const TIME_BYTES: usize = 6;
const ORDINAL_BYTES: usize = 4;
const RANK_BYTES: usize = 4;
const KIND_BYTES: usize = 1;
const NO_KEY: u32 = u32::MAX;

/// A fire in the order by end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndEntry {
    pub(crate) ended_at: Timestamp,
    pub(crate) ordinal: u32,
    /// The position in the order by key, unless the fire has no key.
    pub(crate) rank: Option<u32>,
}

/// A fire in the order by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyEntry {
    pub(crate) ended_at: Timestamp,
    pub(crate) ordinal: u32,
    pub(crate) end: EndKind,
}

pub(crate) const fn end_code(end: EndKind) -> u8 {
    match end {
        EndKind::Done => 0,
        EndKind::Dead => 1,
        EndKind::Cancelled => 2,
        EndKind::Replaced => 3,
        EndKind::Skipped => 4,
    }
}

pub(crate) const fn end_of_code(code: u8) -> Option<EndKind> {
    match code {
        0 => Some(EndKind::Done),
        1 => Some(EndKind::Dead),
        2 => Some(EndKind::Cancelled),
        3 => Some(EndKind::Replaced),
        4 => Some(EndKind::Skipped),
        _ => None,
    }
}

/// What all fires of a namespace that ended in one way begin with.
pub(crate) fn ends_of(partition: PartitionId, namespace: &str, end: EndKind) -> Vec<u8> {
    let mut out = names_of(BY_END, partition, namespace);
    out.push(end_code(end));
    out
}

/// What all fires of a namespace whose key begins with `prefix` begin with.
pub(crate) fn keys_from(partition: PartitionId, namespace: &str, prefix: &str) -> Vec<u8> {
    let mut out = names_of(BY_KEY, partition, namespace);
    out.extend_from_slice(prefix.as_bytes());
    out
}

/// What all fires of a key begin with.
pub(crate) fn fires_of_key(partition: PartitionId, namespace: &str, key: &str) -> Vec<u8> {
    let mut out = keys_from(partition, namespace, key);
    out.push(END_OF_NAME);
    out
}

/// The least byte string that is greater than all that begin with `prefix`.
pub(crate) fn after_all(mut prefix: Vec<u8>) -> Vec<u8> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            break;
        }
    }
    prefix
}

fn names_of(order: u8, partition: PartitionId, namespace: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.push(order);
    out.extend_from_slice(&partition.get().to_be_bytes());
    out.extend_from_slice(namespace.as_bytes());
    out.push(END_OF_NAME);
    out
}

/// Appends when a fire ended and the ordinal of its record, the newest first.
pub(crate) fn put_position(out: &mut Vec<u8>, ended_at: Timestamp, ordinal: u32) {
    out.extend_from_slice(&(!ended_at.as_millis()).to_be_bytes()[2..]);
    out.extend_from_slice(&(!ordinal).to_be_bytes());
}

pub(crate) fn put_rank(out: &mut Vec<u8>, rank: Option<u32>) {
    out.extend_from_slice(&rank.unwrap_or(NO_KEY).to_be_bytes());
}

pub(crate) fn read_end(entry: &[u8]) -> Result<EndEntry, CodecError> {
    let (rest, rank) = split_last(entry, RANK_BYTES)?;
    let (ended_at, ordinal) = read_position(rest)?;
    let rank = Some(number(rank)).filter(|rank| *rank != NO_KEY);
    Ok(EndEntry { ended_at, ordinal, rank })
}

pub(crate) fn read_key(entry: &[u8]) -> Result<KeyEntry, CodecError> {
    let (rest, end) = split_last(entry, KIND_BYTES)?;
    let (ended_at, ordinal) = read_position(rest)?;
    let end = end.first().copied().and_then(end_of_code).ok_or(CodecError::Invalid("end"))?;
    Ok(KeyEntry { ended_at, ordinal, end })
}

fn read_position(entry: &[u8]) -> Result<(Timestamp, u32), CodecError> {
    let (rest, ordinal) = split_last(entry, ORDINAL_BYTES)?;
    let (_, time) = split_last(rest, TIME_BYTES)?;
    let inverted = time.iter().fold(0xffff, |millis, byte| millis << 8 | u64::from(*byte));
    let ended_at = Timestamp::try_from_millis(i128::from(!inverted));
    Ok((ended_at.map_err(|_| CodecError::Invalid("timestamp"))?, !number(ordinal)))
}

fn split_last(bytes: &[u8], length: usize) -> Result<(&[u8], &[u8]), CodecError> {
    let at = bytes.len().checked_sub(length).ok_or(CodecError::Short("entry of an index"))?;
    Ok(bytes.split_at(at))
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}
