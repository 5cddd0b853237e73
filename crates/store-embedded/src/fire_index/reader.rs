//! An index: its footer in memory, and cursors over its entries.
//!
//! The blocks are in the file of the index, or in memory if the file cannot be used.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::Timestamp;
use punctual_store::codec::CodecError;

use super::build::index_of;
use super::format::{BlockReader, IndexFooter, IndexTrailer, TRAILER_BYTES};
use crate::fault::{ReadContext, StorageFault};
use crate::run::{RunFiles, RunNo, SortedRun};

#[derive(Debug)]
pub(crate) struct FireIndex {
    no: RunNo,
    footer: IndexFooter,
    /// Bytes of the file, or in memory.
    bytes: u64,
    /// All bytes, if they are not in a file.
    in_memory: Option<Bytes>,
}

impl FireIndex {
    /// Builds the index of a run from its records, in the order of the run.
    pub(crate) fn build<'a>(
        no: RunNo,
        records: impl Iterator<Item = &'a [u8]>,
        block_bytes: usize,
    ) -> Result<Self, CodecError> {
        let (bytes, footer) = index_of(no, records, block_bytes)?;
        Ok(Self { no, footer, bytes: bytes.len() as u64, in_memory: Some(bytes.into()) })
    }

    /// Builds the index of a run from the records in its file.
    pub(crate) fn of_run(
        files: &RunFiles,
        run: &SortedRun,
        block_bytes: usize,
    ) -> Result<Self, StorageFault> {
        let mut records = Vec::with_capacity(run.count() as usize);
        for block_no in 0..run.footer.fences.len() {
            let block = run.read_block(files, block_no)?;
            for index in 0..block.keys.len() {
                let record = block.body(index);
                records.push(record.map_err(|what| run.damaged(files, block_no, what))?);
            }
        }
        let records = records.iter().map(|record| &**record);
        Self::build(run.no, records, block_bytes).reading("record of a fire")
    }

    /// Makes an index that was built durable as a file; its name is durable once the directory is
    /// synced.
    pub(crate) fn write(self, files: &RunFiles) -> Result<Self, StorageFault> {
        if let Some(bytes) = &self.in_memory {
            files.write_index(self.no, bytes)?;
        }
        Ok(Self { in_memory: None, ..self })
    }

    /// Opens the index of a run; `None` if there is no file.
    pub(crate) fn open(files: &RunFiles, run: &SortedRun) -> Result<Option<Self>, StorageFault> {
        let path = files.index_path(run.no);
        let file = match std::fs::File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|source| StorageFault::io("open", &path, source))?,
        };
        let bytes =
            file.metadata().map_err(|source| StorageFault::io("open", &path, source))?.len();
        let footer = read_footer(&file, run.no, bytes)
            .map_err(|what| StorageFault::damaged(&path, bytes, what))?;
        if footer.records != run.count() {
            let what = "it does not have as many fires as its run has records";
            return Err(StorageFault::damaged(&path, bytes, what));
        }
        Ok(Some(Self { no: run.no, footer, bytes, in_memory: None }))
    }

    /// Whether its blocks are in a file, not in memory.
    pub(crate) const fn is_in_file(&self) -> bool {
        self.in_memory.is_none()
    }

    /// Bytes that the index has on disk.
    pub(crate) const fn file_bytes(&self) -> u64 {
        if self.is_in_file() { self.bytes } else { 0 }
    }

    /// About how many bytes it takes in memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let fences = self.footer.fences.iter().map(|fence| size_of_val(fence) + fence.first.len());
        let image = self.in_memory.as_ref().map_or(0, Bytes::len);
        (fences.sum::<usize>() + self.footer.filter.bytes().len() + image) as u64
    }

    /// Whether it may have a fire or a key with this hash.
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        self.footer.filter.may_have(hash)
    }

    /// The number of fires; as many entries are in the order by end.
    pub(crate) const fn records(&self) -> u32 {
        self.footer.records
    }

    /// The earliest end of a fire.
    pub(crate) const fn oldest(&self) -> Timestamp {
        self.footer.oldest
    }

    /// Whether every entry is before `target`, judged from memory.
    pub(crate) fn ends_before(&self, target: &[u8]) -> bool {
        &*self.footer.last < target
    }

    pub(crate) fn damaged(&self, files: &RunFiles, block: usize, what: &str) -> StorageFault {
        let offset = self.footer.fences.get(block).map_or(0, |fence| fence.offset);
        StorageFault::damaged(&files.index_path(self.no), offset, what)
    }

    fn read_block(&self, files: &RunFiles, block: usize) -> Result<BlockReader, StorageFault> {
        let fence = &self.footer.fences[block];
        let damaged = |what| self.damaged(files, block, what);
        let bytes = match &self.in_memory {
            None => files.read_index(self.no, fence.offset, fence.bytes as usize)?,
            Some(image) => {
                let start = usize::try_from(fence.offset).unwrap_or(usize::MAX);
                let bytes = image.get(start..start.saturating_add(fence.bytes as usize));
                bytes.ok_or_else(|| damaged("the block is cut short"))?.to_vec()
            }
        };
        BlockReader::read(self.no, fence, bytes).map_err(damaged)
    }
}

/// A position among the entries of an index, which moves forward.
#[derive(Debug)]
pub(crate) struct IndexCursor {
    index: Arc<FireIndex>,
    /// The next block to read.
    next_block: usize,
    block: Option<BlockReader>,
    blocks_read: usize,
}

impl IndexCursor {
    /// A cursor at the first entry that is not before `target`.
    pub(crate) fn seek(
        files: &RunFiles,
        index: Arc<FireIndex>,
        target: &[u8],
    ) -> Result<Self, StorageFault> {
        let fences = &index.footer.fences;
        let next_block = match index.ends_before(target) {
            true => fences.len(),
            false => fences.partition_point(|fence| &*fence.first <= target).saturating_sub(1),
        };
        let mut cursor = Self { index, next_block, block: None, blocks_read: 0 };
        cursor.advance(files)?;
        while cursor.entry().is_some_and(|entry| entry < target) {
            cursor.advance(files)?;
        }
        Ok(cursor)
    }

    /// The entry at the cursor, if there is one.
    pub(crate) fn entry(&self) -> Option<&[u8]> {
        self.block.as_ref().map(BlockReader::entry)
    }

    /// The number of entries before the one at the cursor.
    pub(crate) fn ordinal(&self) -> u32 {
        let fences = &self.index.footer.fences;
        match (&self.block, self.next_block.checked_sub(1).and_then(|block| fences.get(block))) {
            (Some(block), Some(fence)) => fence.ordinal + fence.count - 1 - block.left(),
            _ => fences.last().map_or(0, |fence| fence.ordinal + fence.count),
        }
    }

    /// Blocks that were read since the last call.
    pub(crate) const fn take_blocks_read(&mut self) -> usize {
        std::mem::replace(&mut self.blocks_read, 0)
    }

    /// Moves to the next entry.
    pub(crate) fn advance(&mut self, files: &RunFiles) -> Result<(), StorageFault> {
        loop {
            if let Some(block) = &mut self.block {
                match block.advance() {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => return Err(self.damaged(files, error)),
                }
            }
            self.block = None;
            if self.next_block >= self.index.footer.fences.len() {
                return Ok(());
            }
            self.block = Some(self.index.read_block(files, self.next_block)?);
            self.next_block += 1;
            self.blocks_read += 1;
        }
    }

    /// An entry at the cursor that cannot be decoded.
    pub(crate) fn damaged(&self, files: &RunFiles, error: CodecError) -> StorageFault {
        self.index.damaged(files, self.next_block.saturating_sub(1), &error.to_string())
    }
}

fn read_footer(file: &std::fs::File, no: RunNo, bytes: u64) -> Result<IndexFooter, String> {
    let trailer_at =
        bytes.checked_sub(TRAILER_BYTES as u64).ok_or("it is too short for an index")?;
    let failed = |error: std::io::Error| error.to_string();
    let mut trailer = [0; TRAILER_BYTES];
    file.read_exact_at(&mut trailer, trailer_at).map_err(failed)?;
    let trailer = IndexTrailer::read(&trailer)?;
    if trailer.offset.checked_add(u64::from(trailer.length)) != Some(trailer_at) {
        return Err("its footer is not at the offset in its trailer".to_owned());
    }
    let mut footer = vec![0; trailer.length as usize];
    file.read_exact_at(&mut footer, trailer.offset).map_err(failed)?;
    IndexFooter::checked(no, &trailer, &footer)
}
