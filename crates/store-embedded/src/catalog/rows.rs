//! The bytes of catalog rows: keys and values, and back.
//!
//! Commits in the journal spell counts and leases in the same way (`write::commit`).

use punctual_core::{BrokerId, Epoch, FireId, Lease, PartitionId, Seat, TaskId, Timestamp};
use punctual_journal::CommitNo;
use punctual_store::codec::{CodecError, Reader, put_bytes, put_signed, put_timestamp, put_varint};
use punctual_store::{BatchNo, Counts};

use crate::run::{Generation, RunNo};
use crate::state::layers::Weight;
use crate::state::order::{ListedKind, OrderKey};

pub(super) const META: &[u8] = b"m";
pub(super) const RUN: u8 = b'r';
pub(super) const BITS: u8 = b'b';
pub(super) const COUNTS: u8 = b'c';
pub(super) const SEAT: u8 = b's';
pub(super) const BATCH: u8 = b'n';
pub(super) const GROUPS: u8 = b'g';
/// The row is there if due counts, series and groups are those of all tasks.
pub(super) const COUNTED: &[u8] = b"d";

/// Up to which commit the files are complete, and the next numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CatalogMeta {
    pub(crate) commit: CommitNo,
    pub(crate) generation: Generation,
    pub(crate) run_next: u64,
    /// The latest time that a caller has given.
    pub(crate) now: u64,
}

/// The kind of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunKind {
    /// Tasks of a near slice.
    Near,
    Far,
    History,
}

/// A run in the list of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedRun {
    pub(crate) no: RunNo,
    pub(crate) generation: Generation,
    pub(crate) kind: RunKind,
    pub(crate) file_bytes: u64,
    /// Partitions that have swept it, if it is a run of history.
    pub(crate) swept: Vec<PartitionId>,
}

/// The row of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastBatch {
    /// The last batch of its owner.
    pub(crate) batch: Option<BatchNo>,
}

/// A paused task with its whole body, because the run of its slice may be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paused {
    pub(crate) fire_at: Timestamp,
    pub(crate) body: bytes::Bytes,
}

impl Weight for Paused {
    fn heap_bytes(&self) -> usize {
        self.body.len()
    }
}

impl Paused {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + self.body.len());
        put_timestamp(&mut out, self.fire_at);
        out.extend_from_slice(&self.body);
        out
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        Ok(Self {
            fire_at: reader.timestamp()?,
            body: bytes::Bytes::copy_from_slice(reader.rest()),
        })
    }
}

impl CatalogMeta {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut out = vec![1];
        for number in [self.commit.0, self.generation.0, self.run_next, self.now] {
            put_varint(&mut out, number);
        }
        out
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            1 => {}
            other => return Err(CodecError::Format(other)),
        }
        Ok(Self {
            commit: CommitNo(reader.varint()?),
            generation: Generation(reader.varint()?),
            run_next: reader.varint()?,
            now: reader.varint()?,
        })
    }
}

impl ListedRun {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![match self.kind {
            RunKind::Near => 0,
            RunKind::Far => 1,
            RunKind::History => 2,
        }];
        put_varint(&mut out, self.generation.0);
        put_varint(&mut out, self.file_bytes);
        for partition in &self.swept {
            out.extend_from_slice(&partition.get().to_be_bytes());
        }
        out
    }

    pub(super) fn read(no: RunNo, bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let kind = match reader.byte()? {
            0 => RunKind::Near,
            1 => RunKind::Far,
            2 => RunKind::History,
            _ => return Err(CodecError::Invalid("kind of run")),
        };
        let (generation, file_bytes) = (Generation(reader.varint()?), reader.varint()?);
        let mut swept = Vec::new();
        while !reader.rest().is_empty() {
            swept.push(read_partition(&mut reader)?);
        }
        Ok(Self { no, generation, kind, file_bytes, swept })
    }
}

/// Partition first, so that the rows of one owner are adjacent; then the id, which begins with a
/// time.
pub(super) const RELOCATION_KEY_BYTES: usize = 18;

pub(super) fn relocation_key(id: TaskId) -> [u8; RELOCATION_KEY_BYTES] {
    let mut key = [0; RELOCATION_KEY_BYTES];
    key[..2].copy_from_slice(&id.partition().get().to_be_bytes());
    key[2..].copy_from_slice(&id.as_u128().to_be_bytes());
    key
}

pub(super) const ORDER_KEY_BYTES: usize = 1 + OrderKey::BYTES;

/// The kind first, then the order of the timeline.
pub(super) fn order_key(kind: ListedKind, key: OrderKey) -> [u8; ORDER_KEY_BYTES] {
    let mut bytes = [kind as u8; 1 + OrderKey::BYTES];
    bytes[1..].copy_from_slice(key.bytes());
    bytes
}

/// The key that a fire has, or would have, among the dead letters of a partition.
pub(super) fn dead_key(partition: PartitionId, fire_id: FireId) -> Vec<u8> {
    let mut key = partition.get().to_be_bytes().to_vec();
    key.extend_from_slice(&fire_id.task.as_u128().to_be_bytes());
    key.extend_from_slice(&fire_id.nominal_at.as_millis().to_be_bytes());
    key
}

pub(super) fn read_dead_key(key: &[u8]) -> Result<FireId, CodecError> {
    let mut reader = Reader::new(key.get(2..).unwrap_or_default());
    let task = reader.task_id()?;
    let millis = i128::from(read_word(&mut reader)?);
    let nominal_at = Timestamp::try_from_millis(millis);
    let nominal_at = nominal_at.map_err(|_| CodecError::Invalid("timestamp"))?;
    Ok(FireId { task, nominal_at })
}

pub(super) fn numbered(tag: u8, no: RunNo) -> Vec<u8> {
    let mut key = vec![tag];
    key.extend_from_slice(&no.0.to_be_bytes());
    key
}

pub(super) fn bits_key(no: RunNo, chunk: u32) -> Vec<u8> {
    let mut key = numbered(BITS, no);
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

pub(super) fn read_word(reader: &mut Reader<'_>) -> Result<u64, CodecError> {
    let bytes = reader.take(8)?.try_into().map_err(|_| CodecError::Short("key"))?;
    Ok(u64::from_be_bytes(bytes))
}

pub(super) fn read_partition(reader: &mut Reader<'_>) -> Result<PartitionId, CodecError> {
    let bytes = reader.take(2)?.try_into().map_err(|_| CodecError::Short("key"))?;
    PartitionId::new(u16::from_be_bytes(bytes)).ok_or(CodecError::Invalid("partition"))
}

/// Encodes counts, also in commits.
pub(crate) fn put_counts(out: &mut Vec<u8>, counts: &Counts) {
    for count in [
        counts.scheduled,
        counts.paused,
        counts.done,
        counts.dead,
        counts.cancelled,
        counts.dead_letters,
    ] {
        put_signed(out, count);
    }
}

/// Decodes counts.
pub(crate) fn read_counts(reader: &mut Reader<'_>) -> Result<Counts, CodecError> {
    Ok(Counts {
        scheduled: reader.signed()?,
        paused: reader.signed()?,
        done: reader.signed()?,
        dead: reader.signed()?,
        cancelled: reader.signed()?,
        dead_letters: reader.signed()?,
    })
}

pub(super) fn put_seat(out: &mut Vec<u8>, seat: Seat) {
    match seat {
        Seat::Leader => out.push(0),
        Seat::Partition(partition) => {
            out.push(1);
            out.extend_from_slice(&partition.get().to_be_bytes());
        }
    }
}

/// Encodes a lease, also in commits.
pub(crate) fn put_lease(out: &mut Vec<u8>, lease: &Lease) {
    put_seat(out, lease.seat);
    put_bytes(out, lease.broker.as_str().as_bytes());
    put_varint(out, u64::from(lease.epoch.get()));
    put_timestamp(out, lease.until);
}

/// Decodes a lease.
pub(crate) fn read_lease(reader: &mut Reader<'_>) -> Result<Lease, CodecError> {
    let seat = match reader.byte()? {
        0 => Seat::Leader,
        1 => Seat::Partition(read_partition(reader)?),
        _ => return Err(CodecError::Invalid("seat")),
    };
    let broker = BrokerId::new(reader.text()?);
    let epoch = Epoch::new(reader.small("epoch")?).ok_or(CodecError::Invalid("epoch"))?;
    Ok(Lease { seat, broker, epoch, until: reader.timestamp()? })
}
