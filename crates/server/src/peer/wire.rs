//! The bytes of what brokers say to each other: the only place that spells them.
//!
//! In: values of the engine and of the hub. Out: bytes, and back. The first byte is the version; another one is refused before
//! anything is read, so that brokers of two versions that do not understand each other say so and do nothing.
//! Invariant: what is read is untrusted, for a peer may be of a newer make or not what it seems: it is bounded, nothing
//! panics, and no place is made ready for more than was checked.
//!
//! Rooms: `commands` and their `answers`, `gauges`, `flights` (when a partition moves) and their reports, `deliveries` (of workers that poll elsewhere, and their words). Tasks and the like are
//! spelled in `punctual_store::codec`.

mod answers;
mod commands;
mod deliveries;
mod flights;
mod gauges;

use punctual_core::Namespace;
use punctual_store::codec::{CodecError, Reader, put_varint};

pub(super) use answers::{answer_pieces, read_answers};
pub(super) use commands::{put_command, read_commands};
pub(crate) use deliveries::Polled;
pub(super) use deliveries::{
    DELIVERIES_MAX, delivery_pieces, put_heard, put_words, read_deliveries, read_heard, read_words,
};
pub(super) use flights::{REPORTS_MAX, put_flights, put_reports, read_flights, read_reports};
pub(super) use gauges::{put_gauges, read_gauges};

/// Of everything here. It changes with the meaning of any byte.
const VERSION: u8 = 1;
/// Places made ready for a list before it is read: a list that says more may lie.
const ROOM_MAX: usize = 1024;
/// What is sent in one piece of many: large enough that pieces cost nothing, small enough that none of them is in the way.
const PIECE_BYTES: usize = 1 << 20;

/// Why bytes of a peer were not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The peer speaks another version.
    #[error("the peer speaks version {0}, this broker version {VERSION}")]
    Version(u8),
    /// There are more than anybody sends.
    #[error("more than {0} at once")]
    TooMany(usize),
    /// They make no sense.
    #[error(transparent)]
    Broken(#[from] CodecError),
}

type Result<T> = std::result::Result<T, CodecError>;
type Read<T> = std::result::Result<T, WireError>;

/// A list of so many, whose entries are written already.
pub(super) fn list(count: usize, entries: &[&[u8]]) -> Vec<u8> {
    let bytes: usize = entries.iter().map(|entry| entry.len()).sum();
    // The version, and the longest number.
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

/// Reads a list of at most `max`, up to the end of the bytes.
fn read_list<T>(
    bytes: &[u8],
    max: usize,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T>,
) -> Read<Vec<T>> {
    let mut reader = open(bytes)?;
    let count: usize = reader.small("count")?;
    if count > max {
        return Err(WireError::TooMany(max));
    }
    let mut values = Vec::with_capacity(count.min(ROOM_MAX));
    for _ in 0..count {
        values.push(read(&mut reader)?);
    }
    reader.end()?;
    Ok(values)
}

/// What stands behind the version.
fn open(bytes: &[u8]) -> Read<Reader<'_>> {
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

/// A namespace that a caller can name: those of receipts are each owner's own.
fn read_namespace(reader: &mut Reader<'_>) -> Result<Namespace> {
    Namespace::new(reader.text()?).map_err(|_| CodecError::Invalid("namespace"))
}

#[cfg(test)]
mod tests;
