//! The bytes of the journal. No other file spells them; `scan` has the rules about damage.
//!
//! All integers are little endian. A journal file is
//! ```text
//! 0     magic 8 | version u32 | zero u32 | store id 16
//! 32    number u64 | salt u64 | file bytes u64 | sum u64
//! 4096  frame, frame, ... | 40 zero bytes | what the file contained before it was recycled
//! ```
//! and a frame, which begins at a multiple of 8, is
//! ```text
//! 0   magic u32 | length u32 | commit u64 | first commit of the group u64
//! 24  sum of the payload u64 | sum of the 32 bytes before u64, seeded with the file's salt
//! 40  payload, then zeros up to a multiple of 8
//! ```
//! A frame's first four bytes are never zero, so an empty commit cannot be read as the end. The
//! salt is new at each use of a file, so no frame of an earlier use is valid.
//! The sum of the payload has no salt, so that a caller can compute it before the file is known;
//! the sum of the head covers it.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::commit::CommitNo;

/// The store that the journal belongs to: a file of another store is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreId(pub [u8; 16]);

/// Where frames begin. The header has a page of its own, so that no later write touches it.
pub(super) const FRAMES_AT: u64 = 4096;
/// Bytes of a frame before its payload.
pub(super) const HEAD_BYTES: usize = 40;
/// Frames begin at multiples of this.
pub(super) const ALIGN: usize = 8;
/// What follows the last frame. Shorter only where the file ends.
pub(super) const END: [u8; HEAD_BYTES] = [0; HEAD_BYTES];
/// The only format so far.
pub(super) const FORMAT_VERSION: u32 = 1;

const FILE_MAGIC: [u8; 8] = *b"PUNCTJNL";
const CLOSED_MAGIC: [u8; 8] = *b"PUNCTEND";
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"cmt1");
const HEADER_BYTES: usize = 64;
const CLOSED_BYTES: usize = 48;

/// The first page of a journal file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) store: StoreId,
    pub(super) number: u64,
    pub(super) salt: u64,
    /// The length of the file when it was created. A file never becomes shorter, so a shorter one
    /// was cut.
    pub(super) file_bytes: u64,
}

/// Why a header or a closing mark cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    NotOurs,
    Version(u32),
    Damaged,
}

impl FileHeader {
    /// The page and an end marker, so that a recycled file is empty.
    pub(super) fn to_page(self) -> Vec<u8> {
        let page_bytes = usize::try_from(FRAMES_AT).expect("a page") + HEAD_BYTES;
        let mut page = Vec::with_capacity(page_bytes);
        page.extend_from_slice(&FILE_MAGIC);
        page.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        page.extend_from_slice(&0u32.to_le_bytes());
        page.extend_from_slice(&self.store.0);
        for word in [self.number, self.salt, self.file_bytes] {
            page.extend_from_slice(&word.to_le_bytes());
        }
        let sum = xxh3_64(&page);
        page.extend_from_slice(&sum.to_le_bytes());
        debug_assert_eq!(page.len(), HEADER_BYTES);
        page.resize(page_bytes, 0);
        page
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, HeaderFault> {
        checked(bytes, HEADER_BYTES, FILE_MAGIC)?;
        Ok(Self {
            store: store_id(bytes),
            number: word(bytes, 32),
            salt: word(bytes, 40),
            file_bytes: word(bytes, 48),
        })
    }
}

/// The closing mark, in a file of its own: the last commit of a journal that was closed cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClosingMark {
    pub(super) store: StoreId,
    pub(super) last: CommitNo,
}

impl ClosingMark {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CLOSED_BYTES);
        bytes.extend_from_slice(&CLOSED_MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&self.store.0);
        bytes.extend_from_slice(&self.last.0.to_le_bytes());
        let sum = xxh3_64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        debug_assert_eq!(bytes.len(), CLOSED_BYTES);
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, HeaderFault> {
        checked(bytes, CLOSED_BYTES, CLOSED_MAGIC)?;
        if bytes.len() != CLOSED_BYTES {
            return Err(HeaderFault::Damaged);
        }
        Ok(Self { store: store_id(bytes), last: CommitNo(word(bytes, 32)) })
    }
}

/// Checks magic, version and the checksum at the end.
fn checked(bytes: &[u8], length: usize, magic: [u8; 8]) -> Result<(), HeaderFault> {
    let Some(bytes) = bytes.get(..length) else {
        return Err(HeaderFault::Damaged);
    };
    let sound = xxh3_64(&bytes[..length - 8]) == word(bytes, length - 8);
    if bytes[..8] != magic {
        return Err(HeaderFault::NotOurs);
    }
    match half(bytes, 8) {
        // If the checksum is right, the version was written like this and is not damaged.
        FORMAT_VERSION if sound => Ok(()),
        version if version != FORMAT_VERSION && sound => Err(HeaderFault::Version(version)),
        _ => Err(HeaderFault::Damaged),
    }
}

/// A frame before its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) length: u32,
    pub(super) commit: CommitNo,
    /// The first commit of the group that this frame was written with.
    pub(super) group: CommitNo,
    pub(super) payload_sum: u64,
}

impl FrameHead {
    pub(super) fn to_bytes(self, salt: u64) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.commit.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.group.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_sum.to_le_bytes());
        let sum = xxh3_64_with_seed(&bytes[..32], salt);
        bytes[32..40].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The head at the start of `bytes`, if there is one with this salt.
    pub(super) fn read(bytes: &[u8], salt: u64) -> Option<Self> {
        let bytes = bytes.get(..HEAD_BYTES)?;
        if half(bytes, 0) != FRAME_MAGIC {
            return None;
        }
        if xxh3_64_with_seed(&bytes[..32], salt) != word(bytes, 32) {
            return None;
        }
        Some(Self {
            length: half(bytes, 4),
            commit: CommitNo(word(bytes, 8)),
            group: CommitNo(word(bytes, 16)),
            payload_sum: word(bytes, 24),
        })
    }

    /// Bytes of the whole frame, padding included.
    pub(super) fn frame_bytes(self) -> u64 {
        frame_bytes(self.length as usize)
    }
}

/// The checksum of a payload, as its head contains it.
pub(super) fn payload_sum(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// The bytes that a payload of this length takes in the file.
pub(super) fn frame_bytes(length: usize) -> u64 {
    (HEAD_BYTES as u64) + (length as u64).next_multiple_of(ALIGN as u64)
}

/// The zeros after a payload of this length.
pub(super) fn padding(length: usize) -> usize {
    length.next_multiple_of(ALIGN) - length
}

/// Whether these bytes, which are no frame, are the end as the journal writes it.
pub(super) fn is_end(rest: &[u8]) -> bool {
    rest.iter().take(HEAD_BYTES).all(|&byte| byte == 0)
}

/// The name of a file in the chain.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:012}.journal")
}

/// The name of a file that waits to be recycled.
pub(super) fn spare_name(number: u64) -> String {
    format!("{number:012}.spare")
}

/// A file that is being created. Of no use after a crash.
pub(super) const UNFINISHED_NAME: &str = "unfinished";
/// The closing mark.
pub(super) const CLOSED_NAME: &str = "closed";
/// The closing mark while it is written.
pub(super) const CLOSED_UNFINISHED_NAME: &str = "closed.unfinished";

/// What a name in the journal's directory means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileName {
    File(u64),
    Spare(u64),
    Closed,
    Unfinished,
    /// Created by the file system itself, if the journal has one of its own.
    LostAndFound,
    Foreign,
}

pub(super) fn read_name(name: &str) -> FileName {
    let number = |suffix: &str| name.strip_suffix(suffix).and_then(|n| n.parse::<u64>().ok());
    match name {
        CLOSED_NAME => FileName::Closed,
        UNFINISHED_NAME | CLOSED_UNFINISHED_NAME => FileName::Unfinished,
        "lost+found" => FileName::LostAndFound,
        _ => match (number(".journal"), number(".spare")) {
            (Some(n), _) if name == file_name(n) => FileName::File(n),
            (_, Some(n)) if name == spare_name(n) => FileName::Spare(n),
            _ => FileName::Foreign,
        },
    }
}

fn store_id(bytes: &[u8]) -> StoreId {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[16..32]);
    StoreId(id)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were cut"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were cut"))
}
