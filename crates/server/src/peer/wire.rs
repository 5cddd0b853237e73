//! The encoding of messages between brokers. No other file knows these bytes.
//!
//! The first byte of every message is the version. A message of another version is refused before
//! anything else is read, so that brokers of incompatible versions do nothing and say why. What is
//! read is untrusted: every length is bounded, no input panics, and memory is allocated only for
//! lengths that were checked.
//!
//! One file per kind: `commands`, their `answers`, `gauges`, `in_flight` (deliveries in flight of a
//! partition that moves, and their reports) and `deliveries` (of a poll, and their settlements).
//! Tasks and their parts are encoded by `punctual_store::codec`.

mod answers;
mod commands;
mod deliveries;
mod gauges;
mod in_flight;

use punctual_core::Namespace;
use punctual_store::codec::{CodecError, Reader, put_varint};

pub(super) use answers::{answer_pieces, read_answers};
pub(super) use commands::{put_command, read_commands};
pub(crate) use deliveries::Polled;
pub(super) use deliveries::{
    DELIVERIES_MAX, delivery_pieces, put_settle_results, put_settlements, read_deliveries,
    read_settle_results, read_settlements,
};
pub(super) use gauges::{put_gauges, read_gauges};
pub(super) use in_flight::{REPORTS_MAX, put_in_flight, put_reports, read_in_flight, read_reports};

/// The version of all messages. Changes when the meaning of any byte changes.
const VERSION: u8 = 3;
/// Entries for which memory is allocated before a list is read: a larger count may be wrong.
const PREALLOCATE_MAX: usize = 1024;
/// The size of one piece of a long answer: large enough to make pieces cheap, small enough not to
/// hold up other messages.
const PIECE_BYTES: usize = 1 << 20;

/// Why a message of a peer could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The message has another version.
    #[error("the peer speaks version {0}, this broker version {VERSION}")]
    Version(u8),
    /// A list has more entries than allowed.
    #[error("more than {0} at once")]
    TooMany(usize),
    /// The bytes are invalid.
    #[error(transparent)]
    Broken(#[from] CodecError),
}

type Decoded<T> = std::result::Result<T, CodecError>;
type WireResult<T> = std::result::Result<T, WireError>;

/// Builds a list of `count` entries that are already encoded.
pub(super) fn list(count: usize, entries: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = entries.iter().map(|entry| entry.len()).sum();
    // One byte of version, and up to ten of the count.
    let mut out = Vec::with_capacity(1 + 10 + bytes);
    out.push(VERSION);
    put_varint(&mut out, count as u64);
    entries.iter().for_each(|entry| out.extend_from_slice(entry));
    out
}

fn list_of<T>(values: &[T], put: impl Fn(&mut Vec<u8>, &T)) -> Vec<u8> {
    let mut entries = Vec::new();
    values.iter().for_each(|value| put(&mut entries, value));
    list(values.len(), &[&entries])
}

/// Reads a list of at most `max` entries that takes up all bytes.
fn read_list<T>(
    bytes: &[u8],
    max: usize,
    mut read: impl FnMut(&mut Reader<'_>) -> Decoded<T>,
) -> WireResult<Vec<T>> {
    let mut reader = open(bytes)?;
    let count: usize = reader.small("count")?;
    if count > max {
        return Err(WireError::TooMany(max));
    }
    let mut values = Vec::with_capacity(count.min(PREALLOCATE_MAX));
    for _ in 0..count {
        values.push(read(&mut reader)?);
    }
    reader.end()?;
    Ok(values)
}

/// Checks the version and returns a reader of the rest.
fn open(bytes: &[u8]) -> WireResult<Reader<'_>> {
    let mut reader = Reader::new(bytes);
    match reader.byte()? {
        VERSION => Ok(reader),
        other => Err(WireError::Version(other)),
    }
}

/// Packs entries into lists of about [`PIECE_BYTES`] each.
#[derive(Debug)]
struct Packed<I, P> {
    values: I,
    put: P,
}

impl<I: Iterator, P: Fn(&mut Vec<u8>, &I::Item)> Iterator for Packed<I, P> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let (mut count, mut entries) = (0, Vec::new());
        while entries.len() < PIECE_BYTES
            && let Some(value) = self.values.next()
        {
            (self.put)(&mut entries, &value);
            count += 1;
        }
        (count > 0).then(|| list(count, &[&entries]))
    }
}

/// Reads a namespace that brokers may use: of callers, alarms or notices. Namespaces of receipts
/// are internal to owners.
fn read_namespace(reader: &mut Reader<'_>) -> Decoded<Namespace> {
    let namespace = Namespace::from_stored(reader.text()?).ok();
    let namespace = namespace.filter(|namespace| !namespace.is_of_receipts());
    namespace.ok_or(CodecError::Invalid("namespace"))
}

#[cfg(test)]
mod tests;
