//! The bytes of a run. No other file spells them, and this one does no IO.
//!
//! All integers are little endian, except ids, which are big endian so that they sort. A run file
//! is
//! ```text
//! 0     magic 8 | number u64
//! 16    block, block, ...
//!       footer | trailer
//! ```
//! A block has entries of one partition, in order. Keys come first, so that a search for an id does
//! not read bodies:
//! ```text
//! 0     sum of the keys u64 | count u32 | bytes of the bodies u32 | base time u64
//! 24    partition u16 | zero 6
//! 32    count x (time - base u32 | id 16 | end of the body u32 | sum of the body u32)
//!       bodies
//! ```
//! Sums are seeded with the run's number and the block's offset, so that a good block at a wrong
//! offset is detected.

use std::sync::Arc;

use punctual_core::{PartitionId, TaskId, Timestamp};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::key::EntryKey;

pub(crate) const HEADER_BYTES: u64 = 16;
pub(crate) const HEAD_BYTES: usize = 32;
pub(crate) const ENTRY_BYTES: usize = 28;
pub(crate) const TRAILER_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"PUNCTRUN";
const FORMAT: u32 = 1;
const FENCE_BYTES: usize = 44;
const SECTION_BYTES: usize = 42;
const FOOTER_FIXED_BYTES: usize = 60;
/// The bits of an id that contain epoch and sequence.
const NUMBER_BITS: u32 = 68;

/// The number of a run; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunNo(pub(crate) u64);

/// A block as the footer describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) first: EntryKey,
    pub(crate) offset: u64,
    pub(crate) count: u32,
    pub(crate) bodies_bytes: u32,
    /// The number of entries before this block.
    pub(crate) ordinal: u32,
}

/// The entries of one partition in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunSection {
    pub(crate) partition: PartitionId,
    pub(crate) count: u32,
    /// Entries that are not at the time in their id.
    pub(crate) relocated: u32,
    /// The least and the greatest number of an id whose entry is at the time in the id.
    pub(crate) numbers: (u128, u128),
}

/// The part of a run that is held in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) fences: Vec<Fence>,
    pub(crate) sections: Vec<RunSection>,
    pub(crate) last: EntryKey,
    pub(crate) count: u32,
    /// The latest end of a fire, in a run of history.
    pub(crate) newest: Timestamp,
    /// Bytes of all bodies.
    pub(crate) bodies_bytes: u64,
}

/// Epoch and sequence of an id as one number.
pub(crate) const fn number_of(id: TaskId) -> u128 {
    id.as_u128() & ((1 << NUMBER_BITS) - 1)
}

pub(crate) fn header(no: RunNo) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&no.0.to_le_bytes());
    bytes
}

fn seed(no: RunNo, offset: u64) -> u64 {
    no.0.rotate_left(32) ^ offset
}

/// The checksum of one body.
pub(crate) fn body_sum(no: RunNo, body: &[u8]) -> u32 {
    let sum = xxh3_64_with_seed(body, no.0);
    u32::try_from(sum & u64::from(u32::MAX)).expect("32 bits")
}

/// Encodes the head of a block and its keys.
pub(crate) struct KeysWriter {
    partition: PartitionId,
    base: Timestamp,
    keys: Vec<u8>,
    count: u32,
}

impl KeysWriter {
    pub(crate) fn new(first: EntryKey) -> Self {
        Self { partition: first.partition, base: first.at, keys: Vec::new(), count: 0 }
    }

    /// Whether an entry fits in the same block.
    pub(crate) fn takes(&self, key: EntryKey) -> bool {
        let delta = key.at.as_millis().checked_sub(self.base.as_millis());
        key.partition == self.partition && delta.is_some_and(|d| u32::try_from(d).is_ok())
    }

    pub(crate) fn push(&mut self, key: EntryKey, body_end: u32, body_sum: u32) {
        let delta = key.at.as_millis().saturating_sub(self.base.as_millis());
        let delta = u32::try_from(delta).expect("`takes` returned true");
        self.keys.extend_from_slice(&delta.to_le_bytes());
        self.keys.extend_from_slice(&key.id.as_u128().to_be_bytes());
        self.keys.extend_from_slice(&body_end.to_le_bytes());
        self.keys.extend_from_slice(&body_sum.to_le_bytes());
        self.count += 1;
    }

    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of the block up to its bodies.
    pub(crate) fn finish(self, no: RunNo, offset: u64, bodies_bytes: u32) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        bytes.extend_from_slice(&self.count.to_le_bytes());
        bytes.extend_from_slice(&bodies_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.base.as_millis().to_le_bytes());
        bytes.extend_from_slice(&self.partition.get().to_le_bytes());
        bytes.extend_from_slice(&[0; 6]);
        bytes.extend_from_slice(&self.keys);
        let sum = xxh3_64_with_seed(&bytes[8..], seed(no, offset));
        bytes[..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

impl KeysReader<&[u8]> {
    /// The same keys in memory of their own.
    pub(crate) fn shared(&self) -> KeysReader<Arc<[u8]>> {
        let Self { partition, base, count, bytes } = *self;
        KeysReader { partition, base, count, bytes: bytes.into() }
    }
}

/// The keys of a block whose checksum is right.
#[derive(Debug, Clone)]
pub(crate) struct KeysReader<B> {
    partition: PartitionId,
    base: u64,
    count: usize,
    bytes: B,
}

impl<B: AsRef<[u8]>> KeysReader<B> {
    /// Checks that the bytes are the front of the block that the fence describes.
    pub(crate) fn read(no: RunNo, fence: &Fence, bytes: B) -> Result<Self, &'static str> {
        let front = bytes.as_ref();
        let count = fence.count as usize;
        let length = HEAD_BYTES + count * ENTRY_BYTES;
        let front = front.get(..length).ok_or("the block is cut short")?;
        if xxh3_64_with_seed(&front[8..], seed(no, fence.offset)) != word(front, 0) {
            return Err("the checksum of the keys is wrong");
        }
        if half(front, 8) != fence.count || half(front, 12) != fence.bodies_bytes {
            return Err("the block is not the one that the footer describes");
        }
        let base = word(front, 16);
        let partition = u16::from_le_bytes([front[24], front[25]]);
        if partition != fence.first.partition.get() || base != fence.first.at.as_millis() {
            return Err("the block is not the one that the footer describes");
        }
        Ok(Self { partition: fence.first.partition, base, count, bytes })
    }

    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    /// The bytes that the keys take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.as_ref().len()
    }

    fn entry(&self, index: usize) -> &[u8] {
        let at = HEAD_BYTES + index * ENTRY_BYTES;
        &self.bytes.as_ref()[at..at + ENTRY_BYTES]
    }

    pub(crate) fn key(&self, index: usize) -> Result<EntryKey, &'static str> {
        let entry = self.entry(index);
        let at = self.base + u64::from(half(entry, 0));
        let id = read_id(&entry[4..20])?;
        Ok(EntryKey { partition: self.partition, at: Timestamp::from_millis(at), id })
    }

    /// The range of a body among the bodies, and its checksum.
    pub(crate) fn body(&self, index: usize) -> Result<(usize, usize, u32), &'static str> {
        let start = match index.checked_sub(1) {
            Some(before) => half(self.entry(before), 20),
            None => 0,
        };
        let entry = self.entry(index);
        let end = half(entry, 20);
        if start > end {
            return Err("bodies overlap");
        }
        Ok((start as usize, end as usize, half(entry, 24)))
    }

    /// The first entry at or after a key.
    pub(crate) fn lower_bound(&self, key: EntryKey) -> Result<usize, &'static str> {
        self.partition_point(|other| other < key)
    }

    /// The first entry after a key.
    pub(crate) fn upper_bound(&self, key: EntryKey) -> Result<usize, &'static str> {
        self.partition_point(|other| other <= key)
    }

    fn partition_point(&self, before: impl Fn(EntryKey) -> bool) -> Result<usize, &'static str> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = usize::midpoint(low, high);
            if before(self.key(middle)?) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

impl Footer {
    /// The footer and the trailer after it.
    pub(crate) fn to_bytes(&self, no: RunNo, offset: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.fences.len() * FENCE_BYTES + 256);
        for count in [self.fences.len(), self.sections.len()] {
            let count = u32::try_from(count).expect("fewer than entries");
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.newest.as_millis().to_le_bytes());
        out.extend_from_slice(&self.bodies_bytes.to_le_bytes());
        put_key(&mut out, self.last);
        out.extend_from_slice(&[0; 2]);
        debug_assert_eq!(out.len(), FOOTER_FIXED_BYTES);
        for fence in &self.fences {
            put_key(&mut out, fence.first);
            out.extend_from_slice(&[0; 2]);
            out.extend_from_slice(&fence.offset.to_le_bytes());
            out.extend_from_slice(&fence.count.to_le_bytes());
            out.extend_from_slice(&fence.bodies_bytes.to_le_bytes());
        }
        for section in &self.sections {
            out.extend_from_slice(&section.partition.get().to_le_bytes());
            out.extend_from_slice(&section.count.to_le_bytes());
            out.extend_from_slice(&section.relocated.to_le_bytes());
            out.extend_from_slice(&section.numbers.0.to_le_bytes());
            out.extend_from_slice(&section.numbers.1.to_le_bytes());
        }
        let length = u32::try_from(out.len()).expect("a footer is far smaller");
        let sum = xxh3_64_with_seed(&out, seed(no, offset));
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(&MAGIC);
        out
    }

    /// Decodes a footer without its trailer.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "the footer is cut short";
        let fixed = bytes.get(..FOOTER_FIXED_BYTES).ok_or(SHORT)?;
        let (fences, sections) = (half(fixed, 0) as usize, half(fixed, 4) as usize);
        let need = fences
            .checked_mul(FENCE_BYTES)
            .zip(sections.checked_mul(SECTION_BYTES))
            .and_then(|(a, b)| a.checked_add(b)?.checked_add(FOOTER_FIXED_BYTES));
        if need != Some(bytes.len()) || fences == 0 {
            return Err(SHORT);
        }
        let (fence_bytes, section_bytes) =
            bytes[FOOTER_FIXED_BYTES..].split_at(fences * FENCE_BYTES);
        let mut ordinal = 0u32;
        let mut read_fences = Vec::with_capacity(fences);
        for chunk in fence_bytes.chunks_exact(FENCE_BYTES) {
            let count = half(chunk, 36);
            read_fences.push(Fence {
                first: read_key(chunk)?,
                offset: word(chunk, 28),
                count,
                bodies_bytes: half(chunk, 40),
                ordinal,
            });
            ordinal = ordinal.checked_add(count).ok_or("too many entries")?;
        }
        if ordinal != half(fixed, 8) {
            return Err("the counts of the footer do not add up");
        }
        let sections = section_bytes
            .chunks_exact(SECTION_BYTES)
            .map(read_section)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            fences: read_fences,
            sections,
            last: read_key(&fixed[32..])?,
            count: ordinal,
            newest: Timestamp::from_millis(word(fixed, 16)),
            bodies_bytes: word(fixed, 24),
        })
    }
}

/// The offset of the footer, its length and its checksum.
pub(crate) fn read_trailer(bytes: &[u8]) -> Result<(u64, u32, u64), String> {
    if bytes.len() != TRAILER_BYTES || bytes[24..] != MAGIC {
        return Err("it does not end with the trailer of a run".to_owned());
    }
    match half(bytes, 12) {
        FORMAT => Ok((word(bytes, 0), half(bytes, 8), word(bytes, 16))),
        other => Err(format!("it has format {other}, this version reads {FORMAT}")),
    }
}

/// Whether the bytes of a footer match the checksum in the trailer.
pub(crate) fn footer_is_sound(no: RunNo, offset: u64, bytes: &[u8], sum: u64) -> bool {
    xxh3_64_with_seed(bytes, seed(no, offset)) == sum
}

fn put_key(out: &mut Vec<u8>, key: EntryKey) {
    out.extend_from_slice(&key.partition.get().to_le_bytes());
    out.extend_from_slice(&key.at.as_millis().to_le_bytes());
    out.extend_from_slice(&key.id.as_u128().to_be_bytes());
}

fn read_key(bytes: &[u8]) -> Result<EntryKey, &'static str> {
    Ok(EntryKey {
        partition: read_partition(bytes)?,
        at: Timestamp::from_millis(word(bytes, 2)),
        id: read_id(&bytes[10..26])?,
    })
}

fn read_section(bytes: &[u8]) -> Result<RunSection, &'static str> {
    Ok(RunSection {
        partition: read_partition(bytes)?,
        count: half(bytes, 2),
        relocated: half(bytes, 6),
        numbers: (wide(bytes, 10), wide(bytes, 26)),
    })
}

fn read_partition(bytes: &[u8]) -> Result<PartitionId, &'static str> {
    PartitionId::new(u16::from_le_bytes([bytes[0], bytes[1]])).ok_or("invalid partition")
}

fn read_id(bytes: &[u8]) -> Result<TaskId, &'static str> {
    let bytes = bytes.try_into().map_err(|_| "an id is cut short")?;
    TaskId::try_from_u128(u128::from_be_bytes(bytes)).map_err(|_| "invalid task id")
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn wide(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}
