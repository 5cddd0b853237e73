//! A run on disk: its footer in memory, and how entries are found in its file.
//!
//! An entry is found with one or two reads. Every byte that is used is checked against its
//! checksum; damage is reported with file and offset.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{PartitionId, TaskId, Timestamp};

use super::format::{
    ENTRY_BYTES, Fence, Footer, HEAD_BYTES, KeysReader, TRAILER_BYTES, body_sum, footer_is_sound,
    number_of, read_trailer,
};
use super::{BlockKeys, EndedBits, RunFiles, RunNo, WrittenRun};
use crate::fault::StorageFault;
use crate::key::EntryKey;

/// When the entries of a run were filed, counted in checkpoints: a greater number is newer. A
/// merged run has the greatest number of its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Generation(pub(crate) u64);

/// A run.
#[derive(Debug)]
pub(crate) struct SortedRun {
    pub(crate) no: RunNo,
    pub(crate) generation: Generation,
    pub(crate) footer: Footer,
    pub(crate) file_bytes: u64,
    /// Which entries have ended.
    pub(crate) ended: EndedBits,
}

/// A run and its open file.
#[derive(Debug)]
pub(crate) struct OpenRun<'a> {
    run: &'a SortedRun,
    files: &'a RunFiles,
    file: Arc<File>,
}

/// A block that was read completely.
#[derive(Debug)]
pub(crate) struct RunBlock {
    pub(crate) keys: KeysReader<Bytes>,
    bytes: Bytes,
    bodies_at: usize,
    ordinal: u32,
    no: RunNo,
}

impl RunBlock {
    pub(crate) const fn ordinal(&self, index: usize) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a block has fewer")]
        let index = index as u32;
        self.ordinal + index
    }

    pub(crate) fn body(&self, index: usize) -> Result<Bytes, &'static str> {
        let (start, end, sum) = self.keys.body(index)?;
        let (start, end) = (self.bodies_at + start, self.bodies_at + end);
        if end > self.bytes.len() {
            return Err("a body is outside its block");
        }
        let body = self.bytes.slice(start..end);
        if body_sum(self.no, &body) != sum {
            return Err("the checksum of a body is wrong");
        }
        Ok(body)
    }
}

impl SortedRun {
    pub(crate) fn new(written: WrittenRun, generation: Generation) -> Self {
        let WrittenRun { no, footer, file_bytes } = written;
        let ended = EndedBits::new(footer.count);
        Self { no, generation, footer, file_bytes, ended }
    }

    /// Opens the run in a file.
    pub(crate) fn open(
        files: &RunFiles,
        no: RunNo,
        generation: Generation,
    ) -> Result<Self, StorageFault> {
        let path = files.path(no);
        let io = |source| StorageFault::io("open", &path, source);
        let file = File::open(&path).map_err(io)?;
        let file_bytes = file.metadata().map_err(io)?.len();
        let footer = read_footer(&file, no, file_bytes)
            .map_err(|what| StorageFault::damaged(&path, file_bytes, what))?;
        let ended = EndedBits::new(footer.count);
        Ok(Self { no, generation, footer, file_bytes, ended })
    }

    pub(crate) fn first(&self) -> EntryKey {
        self.footer.fences[0].first
    }

    pub(crate) const fn last(&self) -> EntryKey {
        self.footer.last
    }

    pub(crate) const fn count(&self) -> u32 {
        self.footer.count
    }

    /// The blocks of a partition.
    pub(crate) fn blocks_of(&self, partition: PartitionId) -> std::ops::Range<usize> {
        let fences = &self.footer.fences;
        let start = fences.partition_point(|fence| fence.first.partition < partition);
        let end = fences.partition_point(|fence| fence.first.partition <= partition);
        start..end
    }

    /// Whether the run may have an entry with this key, judged from memory.
    pub(crate) fn may_have(&self, key: EntryKey) -> bool {
        if key < self.first() || key > self.last() {
            return false;
        }
        let sections = &self.footer.sections;
        let Ok(at) = sections.binary_search_by_key(&key.partition, |s| s.partition) else {
            return false;
        };
        let section = &sections[at];
        if key.at == key.id.due() {
            let number = number_of(key.id);
            (section.numbers.0..=section.numbers.1).contains(&number)
        } else {
            section.relocated > 0
        }
    }

    /// The block that would contain this key.
    pub(crate) fn block_of(&self, key: EntryKey) -> Option<usize> {
        let fences = &self.footer.fences;
        fences.partition_point(|fence| fence.first <= key).checked_sub(1)
    }

    /// Reads a block completely.
    pub(crate) fn read_block(
        &self,
        files: &RunFiles,
        block: usize,
    ) -> Result<RunBlock, StorageFault> {
        let fence = &self.footer.fences[block];
        let bodies_at = bodies_at(fence);
        let length = bodies_at + fence.bodies_bytes as usize;
        let bytes = Bytes::from(files.read(self.no, fence.offset, length)?);
        let keys = KeysReader::read(self.no, fence, bytes.clone())
            .map_err(|what| self.damaged(files, block, what))?;
        Ok(RunBlock { keys, bytes, bodies_at, ordinal: fence.ordinal, no: self.no })
    }

    /// Opens the file for several reads.
    pub(crate) fn open_file<'a>(
        &'a self,
        files: &'a RunFiles,
    ) -> Result<OpenRun<'a>, StorageFault> {
        Ok(OpenRun { run: self, files, file: files.file(self.no)? })
    }

    /// Finds the ordinal of an entry.
    pub(crate) fn ordinal_of(
        &self,
        files: &RunFiles,
        key: EntryKey,
    ) -> Result<Option<u32>, StorageFault> {
        let Some(block) = self.block_of(key) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let keys = self.open_file(files)?.read_keys(block, &mut bytes)?;
        let index = self.index_of(files, block, &keys, key)?;
        Ok(index.map(|index| self.ordinal_at(block, index)))
    }

    /// The index of a key in a block.
    pub(crate) fn index_of<B: AsRef<[u8]>>(
        &self,
        files: &RunFiles,
        block: usize,
        keys: &KeysReader<B>,
        key: EntryKey,
    ) -> Result<Option<usize>, StorageFault> {
        let damaged = |what| self.damaged(files, block, what);
        let index = keys.lower_bound(key).map_err(damaged)?;
        if index < keys.len() && keys.key(index).map_err(damaged)? == key {
            return Ok(Some(index));
        }
        Ok(None)
    }

    /// The block of an entry, and its index in the block.
    pub(crate) fn block_at(&self, ordinal: u32) -> Option<(usize, usize)> {
        let fences = &self.footer.fences;
        let block = fences.partition_point(|fence| fence.ordinal <= ordinal).checked_sub(1)?;
        let index = ordinal - fences[block].ordinal;
        (index < fences[block].count).then_some((block, index as usize))
    }

    /// The ordinals of the entries with a key. Several entries of history have the same one.
    pub(crate) fn ordinals_of(
        &self,
        files: &RunFiles,
        key: EntryKey,
    ) -> Result<std::ops::Range<u32>, StorageFault> {
        let fences = &self.footer.fences;
        let lower = |keys: &KeysReader<Bytes>| keys.lower_bound(key);
        let upper = |keys: &KeysReader<Bytes>| keys.upper_bound(key);
        let before = fences.partition_point(|fence| fence.first < key);
        let upto = fences.partition_point(|fence| fence.first <= key);
        let start = self.ordinal_in(files, before, lower)?;
        Ok(start..self.ordinal_in(files, upto, upper)?)
    }

    /// The ordinal that `search` finds in the last of the first `blocks` blocks.
    fn ordinal_in(
        &self,
        files: &RunFiles,
        blocks: usize,
        search: impl FnOnce(&KeysReader<Bytes>) -> Result<usize, &'static str>,
    ) -> Result<u32, StorageFault> {
        let Some(block) = blocks.checked_sub(1) else { return Ok(0) };
        let keys = self.read_block(files, block)?.keys;
        let index = search(&keys).map_err(|what| self.damaged(files, block, what))?;
        Ok(self.ordinal_at(block, index))
    }

    pub(crate) fn ordinal_at(&self, block: usize, index: usize) -> u32 {
        let index = u32::try_from(index).expect("a block has fewer");
        self.footer.fences[block].ordinal + index
    }

    pub(crate) fn damaged(
        &self,
        files: &RunFiles,
        block: usize,
        what: &'static str,
    ) -> StorageFault {
        StorageFault::damaged(&files.path(self.no), self.footer.fences[block].offset, what)
    }

    /// The latest end of a fire in a run of history.
    pub(crate) const fn newest(&self) -> Timestamp {
        self.footer.newest
    }

    /// Entries of a partition.
    pub(crate) fn count_of(&self, partition: PartitionId) -> u32 {
        let sections = self.footer.sections.iter();
        let own = sections.filter(|section| section.partition == partition);
        own.map(|section| section.count).sum()
    }

    /// Whether a run of history may have records of a task.
    pub(crate) fn may_have_history_of(&self, id: TaskId) -> bool {
        self.may_have(EntryKey::at_due(id))
    }
}

impl OpenRun<'_> {
    /// Reads the keys of a block into a buffer that is reused.
    pub(crate) fn read_keys<'b>(
        &self,
        block: usize,
        bytes: &'b mut Vec<u8>,
    ) -> Result<KeysReader<&'b [u8]>, StorageFault> {
        let fence = &self.run.footer.fences[block];
        bytes.resize(bodies_at(fence), 0);
        self.files.read_into(&self.file, self.run.no, fence.offset, bytes)?;
        KeysReader::read(self.run.no, fence, bytes.as_slice())
            .map_err(|what| self.run.damaged(self.files, block, what))
    }

    /// Reads the keys of a block, to be shared.
    pub(crate) fn read_shared_keys(&self, block: usize) -> Result<BlockKeys, StorageFault> {
        let mut bytes = Vec::new();
        Ok(self.read_keys(block, &mut bytes)?.shared())
    }

    /// Reads one body of a block and appends it to `bodies`.
    pub(crate) fn read_body<B: AsRef<[u8]>>(
        &self,
        block: usize,
        keys: &KeysReader<B>,
        index: usize,
        bodies: &mut Vec<u8>,
    ) -> Result<std::ops::Range<usize>, StorageFault> {
        let Self { run, files, file } = self;
        let fence = &run.footer.fences[block];
        let damaged = |what| run.damaged(files, block, what);
        let (start, end, sum) = keys.body(index).map_err(damaged)?;
        if end > fence.bodies_bytes as usize {
            return Err(damaged("a body is outside its block"));
        }
        let at = fence.offset + bodies_at(fence) as u64 + start as u64;
        let before = bodies.len();
        bodies.resize(before + (end - start), 0);
        files.read_into(file, run.no, at, &mut bodies[before..])?;
        if body_sum(run.no, &bodies[before..]) != sum {
            return Err(damaged("the checksum of a body is wrong"));
        }
        Ok(before..bodies.len())
    }
}

fn bodies_at(fence: &Fence) -> usize {
    HEAD_BYTES + fence.count as usize * ENTRY_BYTES
}

fn read_footer(file: &File, no: RunNo, file_bytes: u64) -> Result<Footer, String> {
    let trailer_at =
        file_bytes.checked_sub(TRAILER_BYTES as u64).ok_or("it is too short for a run")?;
    let mut trailer = [0; TRAILER_BYTES];
    let failed = |error: std::io::Error| error.to_string();
    file.read_exact_at(&mut trailer, trailer_at).map_err(failed)?;
    let (offset, length, sum) = read_trailer(&trailer)?;
    if offset.checked_add(u64::from(length)) != Some(trailer_at) {
        return Err("its footer is not at the offset in its trailer".to_owned());
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, offset).map_err(failed)?;
    if !footer_is_sound(no, offset, &bytes, sum) {
        return Err("the checksum of its footer is wrong".to_owned());
    }
    Ok(Footer::read(&bytes)?)
}
