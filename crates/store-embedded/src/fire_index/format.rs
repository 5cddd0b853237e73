//! The bytes of an index. No other file spells them, and this one does no IO.
//!
//! ```text
//! 0     magic 8 | number of the run u64
//! 16    block, block, ...
//!       footer | trailer
//!
//! block    sum u64 | count u32 | count x (shared bytes | length of the rest | rest)
//! footer   records | earliest end | last entry
//!          blocks | blocks x (first entry | offset | bytes | count) | filter
//! trailer  offset of the footer u64 | bytes of the footer u32 | format u32 | sum u64 | magic 8
//! ```
//! Fixed integers are little endian, others are varints. An entry of a block leaves out what it
//! shares with the entry before. Sums are seeded with the run's number and the offset, as in runs.

use punctual_core::Timestamp;
use punctual_store::codec::{CodecError, Reader, put_bytes, put_timestamp, put_varint};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::filter::IndexFilter;
use crate::run::RunNo;

pub(super) const TRAILER_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"PUNCTIDX";
const FORMAT: u32 = 1;
const SUM_BYTES: usize = 8;
const HEAD_BYTES: usize = 12;

/// A block as the footer describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexFence {
    pub(super) first: Box<[u8]>,
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) count: u32,
    /// The number of entries before this block.
    pub(super) ordinal: u32,
}

/// The part of an index that is held in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexFooter {
    /// The number of records in the run, and of entries by end.
    pub(super) records: u32,
    /// The earliest end of a fire.
    pub(super) oldest: Timestamp,
    pub(super) last: Box<[u8]>,
    pub(super) fences: Vec<IndexFence>,
    pub(super) filter: IndexFilter,
}

fn seed(no: RunNo, offset: u64) -> u64 {
    no.0.rotate_left(32) ^ offset ^ u64::from_le_bytes(MAGIC)
}

/// Encodes sorted entries into the bytes of an index.
pub(super) struct IndexWriter {
    no: RunNo,
    block_bytes: usize,
    out: Vec<u8>,
    /// Where the block that is being written begins.
    block_at: usize,
    count: u32,
    total: u32,
    last: Vec<u8>,
    fences: Vec<IndexFence>,
}

impl IndexWriter {
    pub(super) fn new(no: RunNo, block_bytes: usize) -> Self {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&no.0.to_le_bytes());
        let (block_at, last, fences) = (out.len(), Vec::new(), Vec::new());
        Self { no, block_bytes, out, block_at, count: 0, total: 0, last, fences }
    }

    /// Adds an entry, which is greater than the one before.
    pub(super) fn push(&mut self, entry: &[u8]) {
        debug_assert!(self.total == 0 || self.last.as_slice() < entry, "entries go back");
        if self.count > 0 && self.out.len() - self.block_at >= self.block_bytes {
            self.finish_block();
        }
        if self.count == 0 {
            self.block_at = self.out.len();
            self.out.extend_from_slice(&[0; HEAD_BYTES]);
            self.fences.push(IndexFence {
                first: entry.into(),
                offset: self.block_at as u64,
                bytes: 0,
                count: 0,
                ordinal: self.total,
            });
            self.last.clear();
        }
        let shared = self.last.iter().zip(entry).take_while(|(a, b)| a == b).count();
        put_varint(&mut self.out, shared as u64);
        put_bytes(&mut self.out, &entry[shared..]);
        self.last.truncate(shared);
        self.last.extend_from_slice(&entry[shared..]);
        self.count += 1;
        self.total += 1;
    }

    fn finish_block(&mut self) {
        let Some(fence) = self.fences.last_mut().filter(|_| self.count > 0) else { return };
        let block = &mut self.out[self.block_at..];
        block[SUM_BYTES..HEAD_BYTES].copy_from_slice(&self.count.to_le_bytes());
        let sum = xxh3_64_with_seed(&block[SUM_BYTES..], seed(self.no, fence.offset));
        block[..SUM_BYTES].copy_from_slice(&sum.to_le_bytes());
        fence.bytes = u32::try_from(block.len()).expect("a block ends at its bound");
        fence.count = std::mem::take(&mut self.count);
    }

    /// The whole index, and its footer.
    pub(super) fn finish(
        mut self,
        records: u32,
        oldest: Timestamp,
        filter: IndexFilter,
    ) -> (Vec<u8>, IndexFooter) {
        self.finish_block();
        let Self { no, mut out, last, fences, .. } = self;
        let footer = IndexFooter { records, oldest, last: last.into(), fences, filter };
        let offset = out.len() as u64;
        let bytes = footer.to_bytes();
        out.extend_from_slice(&bytes);
        out.extend_from_slice(&offset.to_le_bytes());
        let length = u32::try_from(bytes.len()).expect("a footer is far smaller");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&FORMAT.to_le_bytes());
        let sum = xxh3_64_with_seed(&bytes, seed(no, offset));
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(&MAGIC);
        (out, footer)
    }
}

impl IndexFooter {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.fences.len() * 64 + self.filter.bytes().len() + 64);
        put_varint(&mut out, u64::from(self.records));
        put_timestamp(&mut out, self.oldest);
        put_bytes(&mut out, &self.last);
        put_varint(&mut out, self.fences.len() as u64);
        for fence in &self.fences {
            put_bytes(&mut out, &fence.first);
            put_varint(&mut out, fence.offset);
            put_varint(&mut out, u64::from(fence.bytes));
            put_varint(&mut out, u64::from(fence.count));
        }
        put_bytes(&mut out, self.filter.bytes());
        out
    }

    fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let records = reader.small("records")?;
        let oldest = reader.timestamp()?;
        let last = reader.bytes()?.into();
        let (mut fences, mut ordinal) = (Vec::new(), 0u32);
        for _ in 0..reader.varint()? {
            let first = reader.bytes()?.into();
            let (offset, bytes) = (reader.varint()?, reader.small("length")?);
            let count = reader.small("count")?;
            fences.push(IndexFence { first, offset, bytes, count, ordinal });
            ordinal = ordinal.checked_add(count).ok_or(CodecError::Invalid("count"))?;
        }
        let filter = IndexFilter::from_bytes(reader.bytes()?.to_vec());
        reader.end()?;
        Ok(Self { records, oldest, last, fences, filter })
    }

    /// Decodes a footer whose checksum is right.
    pub(super) fn checked(no: RunNo, trailer: &IndexTrailer, bytes: &[u8]) -> Result<Self, String> {
        if xxh3_64_with_seed(bytes, seed(no, trailer.offset)) != trailer.sum {
            return Err("the checksum of its footer is wrong".to_owned());
        }
        Self::read(bytes).map_err(|error| error.to_string())
    }
}

/// Where the footer is.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexTrailer {
    pub(super) offset: u64,
    pub(super) length: u32,
    sum: u64,
}

impl IndexTrailer {
    pub(super) fn read(bytes: &[u8; TRAILER_BYTES]) -> Result<Self, String> {
        let (fields, magic) = bytes.split_at(TRAILER_BYTES - MAGIC.len());
        if magic != MAGIC {
            return Err("it does not end with the trailer of an index".to_owned());
        }
        let word =
            |at: usize| fields[at..at + 8].iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        let half =
            |at: usize| fields[at..at + 4].iter().rev().fold(0, |w, b| w << 8 | u32::from(*b));
        match half(12) {
            FORMAT => Ok(Self { offset: word(0), length: half(8), sum: word(16) }),
            other => Err(format!("it has format {other}, this version reads {FORMAT}")),
        }
    }
}

/// The entries of a block whose checksum is right, read one after the other.
#[derive(Debug)]
pub(super) struct BlockReader {
    bytes: Vec<u8>,
    /// Bytes that were not read yet, counted from the end.
    left_bytes: usize,
    left: u32,
    entry: Vec<u8>,
}

impl BlockReader {
    /// Checks that the bytes are the block that the fence describes.
    pub(super) fn read(
        no: RunNo,
        fence: &IndexFence,
        bytes: Vec<u8>,
    ) -> Result<Self, &'static str> {
        let (Some(sum), Some(rest)) = (bytes.first_chunk::<SUM_BYTES>(), bytes.get(SUM_BYTES..))
        else {
            return Err("the block is cut short");
        };
        if xxh3_64_with_seed(rest, seed(no, fence.offset)).to_le_bytes() != *sum {
            return Err("the checksum of a block is wrong");
        }
        if rest.first_chunk() != Some(&fence.count.to_le_bytes()) {
            return Err("the block is not the one that the footer describes");
        }
        let left_bytes = bytes.len() - HEAD_BYTES;
        Ok(Self { bytes, left_bytes, left: fence.count, entry: Vec::new() })
    }

    /// Moves to the next entry; false if there is none.
    pub(super) fn advance(&mut self) -> Result<bool, CodecError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(false) };
        let mut reader = Reader::new(&self.bytes[self.bytes.len() - self.left_bytes..]);
        let shared: usize = reader.small("length")?;
        let rest = reader.bytes()?;
        if shared > self.entry.len() {
            return Err(CodecError::Invalid("length"));
        }
        self.entry.truncate(shared);
        self.entry.extend_from_slice(rest);
        self.left_bytes = reader.rest().len();
        self.left = left;
        Ok(true)
    }

    pub(super) fn entry(&self) -> &[u8] {
        &self.entry
    }

    /// How many entries come after this one.
    pub(super) const fn left(&self) -> u32 {
        self.left
    }
}
