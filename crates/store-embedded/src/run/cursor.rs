//! A cursor over the live entries of one partition of a run, in order, from a key on.
//!
//! It holds one block at a time. A block whose entries have all ended is not read.

use std::sync::Arc;

use bytes::Bytes;
use punctual_core::PartitionId;

use super::format::Fence;
use super::reader::RunBlock;
use super::{RunFiles, SortedRun};
use crate::fault::StorageFault;
use crate::key::EntryKey;

/// One entry of a run.
#[derive(Debug, Clone)]
pub(crate) struct RunEntry {
    pub(crate) key: EntryKey,
    pub(crate) ordinal: u32,
    pub(crate) body: Bytes,
}

#[derive(Debug)]
pub(crate) struct RunCursor {
    run: Arc<SortedRun>,
    blocks: std::ops::Range<usize>,
    block: Option<RunBlock>,
    index: usize,
}

impl RunCursor {
    /// A cursor before the first entry of the partition that is greater than `after`.
    pub(crate) fn after(
        files: &RunFiles,
        run: Arc<SortedRun>,
        after: EntryKey,
    ) -> Result<Self, StorageFault> {
        let mut blocks = run.blocks_of(after.partition);
        let start = run.block_of(after).unwrap_or(blocks.start).max(blocks.start);
        blocks.start = start.min(blocks.end);
        let mut cursor = Self { run, blocks, block: None, index: 0 };
        cursor.skip_to(files, after)?;
        Ok(cursor)
    }

    /// A cursor before the first entry of a partition.
    pub(crate) fn start(run: Arc<SortedRun>, partition: PartitionId) -> Self {
        let blocks = run.blocks_of(partition);
        Self { run, blocks, block: None, index: 0 }
    }

    pub(crate) const fn run(&self) -> &Arc<SortedRun> {
        &self.run
    }

    fn skip_to(&mut self, files: &RunFiles, after: EntryKey) -> Result<(), StorageFault> {
        if !self.read_on(files)? {
            return Ok(());
        }
        let block_no = self.blocks.start - 1;
        let block = self.block.as_ref().expect("just read");
        let damaged = |what| self.run.damaged(files, block_no, what);
        let mut index = block.keys.lower_bound(after).map_err(damaged)?;
        while index < block.keys.len() && block.keys.key(index).map_err(damaged)? == after {
            index += 1;
        }
        self.index = index;
        Ok(())
    }

    /// Reads the next block; false if there is none.
    fn read_on(&mut self, files: &RunFiles) -> Result<bool, StorageFault> {
        let fences = &self.run.footer.fences;
        let over = |block: &usize| {
            let Fence { ordinal, count, .. } = fences[*block];
            self.run.ended.all(ordinal..ordinal + count)
        };
        let Some(next) = self.blocks.find(|block| !over(block)) else {
            self.block = None;
            return Ok(false);
        };
        self.block = Some(self.run.read_block(files, next)?);
        self.index = 0;
        Ok(true)
    }

    /// The next entry that has not ended.
    pub(crate) fn next(&mut self, files: &RunFiles) -> Result<Option<RunEntry>, StorageFault> {
        loop {
            if let Some(block) = &self.block {
                while self.index < block.keys.len() {
                    let index = self.index;
                    self.index += 1;
                    let ordinal = block.ordinal(index);
                    if self.run.ended.get(ordinal) {
                        continue;
                    }
                    let block_no = self.blocks.start - 1;
                    let damaged = |what| self.run.damaged(files, block_no, what);
                    let key = block.keys.key(index).map_err(damaged)?;
                    let body = block.body(index).map_err(damaged)?;
                    return Ok(Some(RunEntry { key, ordinal, body }));
                }
            }
            if !self.read_on(files)? {
                return Ok(None);
            }
        }
    }
}
