//! Ended fires over all tasks, newest first, and the last fire of a key.
//!
//! Chunks in memory and runs on disk are merged by the time at which fires ended. A source is
//! opened only when its newest fire can be the next one. A record that a newer source replaces is
//! left out. What one page examines is bounded: then the page is short, and its `next` is where it
//! stopped.
//! A damaged index is built again from the records of its run, and the read is repeated.

use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use punctual_core::{
    EndKind, Epoch, FireId, FireRecord, Namespace, PartitionId, Sequence, TaskId, TaskKey,
    Timestamp,
};
use punctual_store::codec::{read_record, read_record_id};
use punctual_store::{FireFilter, FirePosition, Page};

use crate::fault::{ReadContext, StorageFault};
use crate::fire_index::entry::{
    after_all, ends_of, fires_of_key, keys_from, put_position, put_rank, read_end, read_key,
};
use crate::fire_index::{FireIndex, IndexCursor, fire_hash, key_hash};
use crate::key::EntryKey;
use crate::run::{RunBlock, RunPart, SortedRun};
use crate::state::history::HistorySources;
use crate::state::history_chunk::{HistoryChunk, ShortHash};
use crate::store_core::StoreCore;

/// What one page may examine, counted in records of memory: some ten milliseconds.
const EXAMINED_MAX: usize = 16_384;
/// What reading a block counts as.
const BLOCK_EXAMINED: usize = 8;
/// Records of a chunk that are sorted in the time in which one is examined: by end, and by key.
const SORTED_BY_END: usize = 16;
const SORTED_BY_KEY: usize = 4;
/// Fires of a run that are selected by key and then sorted by time. With more, the run is read by
/// time, and fires with other keys are skipped.
const SELECTED_MAX: u32 = 4096;
/// Blocks of runs that one read keeps: fires that ended together are often in the same ones.
const BLOCKS_KEPT_MAX: usize = 64;

impl StoreCore {
    /// A page of the ended fires of a partition that match.
    pub(crate) fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StorageFault> {
        self.with_fires(partition, |read| read.page(filter, after, limit))
    }

    /// The record of the fire of each key that ended last.
    pub(crate) fn last_fires(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StorageFault> {
        self.with_fires(partition, |read| {
            keys.iter().map(|key| read.last_of(namespace, key)).collect()
        })
    }

    /// Reads, and repeats the read after an index that cannot be read was built again. That happens
    /// once for each run: an index in memory has no file that could be damaged or removed.
    fn with_fires<T>(
        &self,
        partition: PartitionId,
        read: impl Fn(&mut FireRead<'_>) -> Result<T, StorageFault>,
    ) -> Result<T, StorageFault> {
        let sources = self.state()?.history.sources(partition);
        let mut sources = sources.sorted();
        for number in 0..sources.runs.len() {
            if sources.runs[number].index.is_none() {
                self.index_again(&mut sources, number)?;
            }
        }
        loop {
            let fault = match read(&mut FireRead::new(self, &sources, partition)) {
                Ok(read) => return Ok(read),
                Err(fault) => fault,
            };
            let number = sources.runs.iter().position(|history| {
                let in_file = history.index.as_ref().is_some_and(|index| index.is_in_file());
                in_file && fault.file() == Some(&self.files.index_path(history.run.no))
            });
            let Some(number) = number else { return Err(fault) };
            tracing::error!(%fault, "index of history unusable, built again from the records");
            self.index_again(&mut sources, number)?;
        }
    }

    /// Builds the index of a run in memory. Its file is removed, so that the next opening writes
    /// another one.
    fn index_again(&self, sources: &mut HistorySources, number: usize) -> Result<(), StorageFault> {
        let run = Arc::clone(&sources.runs[number].run);
        let index = FireIndex::of_run(&self.files, &run, self.options.block_bytes)?;
        let index = Arc::new(index);
        if let Err(fault) = self.files.remove_part(run.no, RunPart::Index) {
            tracing::warn!(%fault, "index of history not removed");
        }
        self.state()?.history.set_index(run.no, &index);
        sources.runs[number].index = Some(index);
        Ok(())
    }
}

/// One read of the ended fires of a partition.
struct FireRead<'a> {
    core: &'a StoreCore,
    sources: &'a HistorySources,
    partition: PartitionId,
    blocks: HashMap<(usize, usize), Arc<RunBlock>>,
    examined: usize,
}

/// What a page selects, as far as it is decided before a record is decoded.
struct FireSelection<'a> {
    filter: &'a FireFilter,
    /// Fires at or after this position are not part of the page.
    upper: Option<FirePosition>,
}

impl FireSelection<'_> {
    fn ends(&self) -> Vec<EndKind> {
        self.filter.end.map_or_else(|| EndKind::ALL.to_vec(), |end| vec![end])
    }

    fn includes(&self, position: FirePosition) -> bool {
        position.ended_at >= self.filter.from && self.upper.is_none_or(|upper| position < upper)
    }
}

/// The fires of a source that were not read yet.
enum FireSource {
    Chunk(usize),
    Run(usize),
    ChunkFires {
        number: usize,
        ordinals: std::vec::IntoIter<u32>,
    },
    RunFires {
        number: usize,
        fires: std::vec::IntoIter<(Timestamp, u32)>,
    },
    /// The fires of a run that ended in one way; `front` is what their entries begin with.
    RunEnds {
        number: usize,
        cursor: IndexCursor,
        front: Vec<u8>,
        /// Where the keys that match are in the order by key.
        ranks: Option<Range<u32>>,
    },
}

/// A source and its next fire, or a position that all its fires are before.
struct FireHead {
    position: FirePosition,
    record: Option<Bytes>,
    source: FireSource,
}

impl PartialEq for FireHead {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for FireHead {}

impl PartialOrd for FireHead {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FireHead {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.position.cmp(&other.position)
    }
}

/// The position before all fires that ended at this time or later.
const fn ended_before(ended_at: Timestamp) -> FirePosition {
    let task = TaskId::floor(Timestamp::EPOCH);
    FirePosition { ended_at, fire_id: FireId { task, nominal_at: Timestamp::EPOCH } }
}

impl<'a> FireRead<'a> {
    fn new(core: &'a StoreCore, sources: &'a HistorySources, partition: PartitionId) -> Self {
        Self { core, sources, partition, blocks: HashMap::new(), examined: 0 }
    }

    fn run(&self, number: usize) -> &'a SortedRun {
        &self.sources.runs[number].run
    }

    fn index(&self, number: usize) -> Result<&'a Arc<FireIndex>, StorageFault> {
        let missing = || StorageFault::Broken("a run of history has no index".into());
        self.sources.runs[number].index.as_ref().ok_or_else(missing)
    }

    fn page(
        &mut self,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StorageFault> {
        let to = (filter.to < Timestamp::MAX).then(|| ended_before(filter.to));
        let upper = [after, to].into_iter().flatten().min();
        let selection = FireSelection { filter, upper };
        let mut heads = self.unopened(&selection);
        let (mut items, mut last) = (Vec::new(), None);
        // Everything at or after this position was examined.
        let mut covered = None;
        while let Some(FireHead { position, record, source }) = heads.pop() {
            let Some(record) = record else {
                covered = Some(position);
                if self.may_stop(covered, upper) {
                    return Ok(Page { items, next: covered });
                }
                self.open(source, &selection, &mut heads)?;
                continue;
            };
            if self.may_stop(covered, upper) {
                return Ok(Page { items, next: covered });
            }
            let number = source.number(self.sources.runs.len());
            let record = self.decode(&record)?;
            if filter.matches(&record) && !self.is_replaced(position.fire_id, number)? {
                if items.len() >= limit {
                    return Ok(Page { items, next: last });
                }
                items.push(record);
                last = Some(position);
            }
            covered = Some(position);
            heads.extend(self.advance(source, &selection)?);
        }
        Ok(Page { items, next: None })
    }

    /// Whether enough was examined, and the next page would begin further on.
    fn may_stop(&self, covered: Option<FirePosition>, upper: Option<FirePosition>) -> bool {
        self.examined >= EXAMINED_MAX
            && covered.is_some_and(|covered| upper.is_none_or(|upper| covered < upper))
    }

    /// The sources that may have fires of the selection.
    fn unopened(&self, selection: &FireSelection<'_>) -> BinaryHeap<FireHead> {
        let chunks = self.sources.chunks.iter().enumerate();
        let chunks = chunks.map(|(number, chunk)| (FireSource::Chunk(number), chunk.ends()));
        let runs = self.sources.runs.iter().enumerate().map(|(number, history)| {
            let oldest = history.index.as_ref().map_or(Timestamp::EPOCH, |index| index.oldest());
            (FireSource::Run(number), (oldest, history.run.newest()))
        });
        let last = TaskId::new(Timestamp::MAX, self.partition, Epoch::MAX, Sequence::MAX);
        let fire_id = FireId { task: last, nominal_at: Timestamp::MAX };
        let heads = chunks.chain(runs).filter_map(|(source, (oldest, newest))| {
            let newest = FirePosition { ended_at: newest, fire_id };
            let position = selection.upper.map_or(newest, |upper| newest.min(upper));
            let within = newest.ended_at >= selection.filter.from && oldest <= position.ended_at;
            within.then_some(FireHead { position, record: None, source })
        });
        heads.collect()
    }

    /// Opens a source whose fires are wanted next, or continues one that was left.
    fn open(
        &mut self,
        source: FireSource,
        selection: &FireSelection<'_>,
        heads: &mut BinaryHeap<FireHead>,
    ) -> Result<(), StorageFault> {
        let opened = match source {
            FireSource::Chunk(number) => vec![self.open_chunk(number, selection)],
            FireSource::Run(number) => self.open_run(number, selection)?,
            opened => vec![opened],
        };
        for source in opened {
            heads.extend(self.advance(source, selection)?);
        }
        Ok(())
    }

    fn open_chunk(&mut self, number: usize, selection: &FireSelection<'_>) -> FireSource {
        let chunk = &self.sources.chunks[number];
        let filter = selection.filter;
        let selected = |ordinal: &u32| {
            let entry = chunk.entry(*ordinal);
            filter.end.is_none_or(|end| entry.ended_as(end)) && selection.includes(entry.position())
        };
        let ordinals: Vec<u32> = if filter.key_prefix.is_empty() {
            self.examined += chunk.unsorted_ends() / SORTED_BY_END;
            chunk.by_end(self.partition).iter().copied().filter(selected).collect()
        } else {
            self.examined += chunk.unsorted_keys() / SORTED_BY_KEY;
            let namespace = filter.namespace.as_str();
            let named = chunk.by_key(self.partition, namespace, &filter.key_prefix);
            let mut named: Vec<u32> = named.iter().copied().filter(selected).collect();
            named.sort_unstable_by_key(|ordinal| {
                std::cmp::Reverse((chunk.entry(*ordinal).ended_at(), *ordinal))
            });
            named
        };
        FireSource::ChunkFires { number, ordinals: ordinals.into_iter() }
    }

    fn open_run(
        &mut self,
        number: usize,
        selection: &FireSelection<'_>,
    ) -> Result<Vec<FireSource>, StorageFault> {
        let filter = selection.filter;
        let (namespace, prefix) = (filter.namespace.as_str(), filter.key_prefix.as_str());
        let start = self.start_in(number, selection.upper)?;
        let mut ranks = None;
        if !prefix.is_empty() {
            let front = keys_from(self.partition, namespace, prefix);
            let index = self.index(number)?;
            let upto = self.seek(number, &after_all(front.clone()))?.ordinal();
            let from = self.seek(number, &front)?;
            let (first, last) = (from.ordinal(), upto);
            if first >= last {
                return Ok(Vec::new());
            }
            if last - first <= SELECTED_MAX {
                let fires = self.select(from, last - first, start, selection)?.into_iter();
                return Ok(vec![FireSource::RunFires { number, fires }]);
            }
            ranks = Some(first - index.records()..last - index.records());
        }
        let mut opened = Vec::new();
        for end in selection.ends() {
            let front = ends_of(self.partition, namespace, end);
            let mut target = front.clone();
            if let Some((ended_at, ordinal)) = start {
                // The first entry after all that are at this time and not below this ordinal.
                put_position(&mut target, ended_at, ordinal);
                put_rank(&mut target, None);
                target.push(0);
            }
            let cursor = self.seek(number, &target)?;
            opened.push(FireSource::RunEnds { number, cursor, front, ranks: ranks.clone() });
        }
        Ok(opened)
    }

    /// Where a run begins to be before a position: a time, and the number of records in it that are
    /// before the fire of the position. `None` if all of the run is.
    fn start_in(
        &mut self,
        number: usize,
        upper: Option<FirePosition>,
    ) -> Result<Option<(Timestamp, u32)>, StorageFault> {
        let Some(FirePosition { ended_at, fire_id }) =
            upper.filter(|upper| upper.ended_at <= self.run(number).newest())
        else {
            return Ok(None);
        };
        Ok(Some((ended_at, self.records_before(number, fire_id)?)))
    }

    /// The number of records of a run that are before a fire in its order.
    fn records_before(&mut self, number: usize, fire_id: FireId) -> Result<u32, StorageFault> {
        let at = fire_id.task.due();
        let key = EntryKey { partition: self.partition, at, id: fire_id.task };
        self.examined += 2 * BLOCK_EXAMINED;
        let Range { start: mut low, end: mut high } =
            self.run(number).ordinals_of(&self.core.files, key)?;
        while low < high {
            let middle = u32::midpoint(low, high);
            let (other, _) = self.fire_at(number, middle)?;
            if other.fire_id < fire_id {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn seek(&mut self, number: usize, target: &[u8]) -> Result<IndexCursor, StorageFault> {
        let index = Arc::clone(self.index(number)?);
        let mut cursor = IndexCursor::seek(&self.core.files, index, target)?;
        self.examined += cursor.take_blocks_read() * BLOCK_EXAMINED;
        Ok(cursor)
    }

    /// The next fires in the order by key that are part of the selection, newest first.
    fn select(
        &mut self,
        mut cursor: IndexCursor,
        count: u32,
        start: Option<(Timestamp, u32)>,
        selection: &FireSelection<'_>,
    ) -> Result<Vec<(Timestamp, u32)>, StorageFault> {
        let files = &self.core.files;
        let mut fires = Vec::new();
        for _ in 0..count {
            let Some(entry) = cursor.entry() else { break };
            let fire = read_key(entry).map_err(|error| cursor.damaged(files, error))?;
            let position = (fire.ended_at, fire.ordinal);
            let within = fire.ended_at >= selection.filter.from
                && start.is_none_or(|start| position < start);
            if within && selection.filter.end.is_none_or(|end| end == fire.end) {
                fires.push(position);
            }
            cursor.advance(files)?;
        }
        self.examined += cursor.take_blocks_read() * BLOCK_EXAMINED;
        fires.sort_unstable_by(|a, b| b.cmp(a));
        Ok(fires)
    }

    /// Moves a source to its next fire. `None` if it has no more.
    fn advance(
        &mut self,
        source: FireSource,
        selection: &FireSelection<'_>,
    ) -> Result<Option<FireHead>, StorageFault> {
        match source {
            FireSource::ChunkFires { number, ordinals } => {
                Ok(self.advance_chunk(number, ordinals, selection))
            }
            FireSource::RunFires { number, mut fires } => {
                let Some((_, ordinal)) = fires.next() else { return Ok(None) };
                let (position, record) = self.fire_at(number, ordinal)?;
                let source = FireSource::RunFires { number, fires };
                Ok(Some(FireHead { position, record: Some(record), source }))
            }
            FireSource::RunEnds { number, cursor, front, ranks } => {
                self.advance_ends(number, cursor, front, ranks, selection)
            }
            FireSource::Chunk(_) | FireSource::Run(_) => Ok(None),
        }
    }

    fn advance_chunk(
        &mut self,
        number: usize,
        mut ordinals: std::vec::IntoIter<u32>,
        selection: &FireSelection<'_>,
    ) -> Option<FireHead> {
        let chunk = &self.sources.chunks[number];
        loop {
            let entry = chunk.entry(ordinals.next()?);
            self.examined += 1;
            let matches = entry.names().0 == selection.filter.namespace.as_str();
            if matches || self.examined >= EXAMINED_MAX {
                let record = matches.then(|| entry.record.clone());
                let source = FireSource::ChunkFires { number, ordinals };
                return Some(FireHead { position: entry.position(), record, source });
            }
        }
    }

    fn advance_ends(
        &mut self,
        number: usize,
        mut cursor: IndexCursor,
        front: Vec<u8>,
        ranks: Option<Range<u32>>,
        selection: &FireSelection<'_>,
    ) -> Result<Option<FireHead>, StorageFault> {
        let files = &self.core.files;
        loop {
            let Some(entry) = cursor.entry().filter(|entry| entry.starts_with(&front)) else {
                return Ok(None);
            };
            let fire = read_end(entry).map_err(|error| cursor.damaged(files, error))?;
            if fire.ended_at < selection.filter.from {
                return Ok(None);
            }
            cursor.advance(files)?;
            self.examined += cursor.take_blocks_read() * BLOCK_EXAMINED;
            let matches = ranks
                .as_ref()
                .is_none_or(|ranks| fire.rank.is_some_and(|rank| ranks.contains(&rank)));
            if matches || self.examined >= EXAMINED_MAX {
                let (position, record) = self.fire_at(number, fire.ordinal)?;
                let source = FireSource::RunEnds { number, cursor, front, ranks };
                return Ok(Some(FireHead { position, record: matches.then_some(record), source }));
            }
        }
    }

    /// The record of a run with this ordinal, and its position.
    fn fire_at(
        &mut self,
        number: usize,
        ordinal: u32,
    ) -> Result<(FirePosition, Bytes), StorageFault> {
        let run = self.run(number);
        let files = &self.core.files;
        let outside = || StorageFault::damaged(&files.index_path(run.no), 0, "no such record");
        let (block_no, index) = run.block_at(ordinal).ok_or_else(outside)?;
        self.examined += 1;
        let block = match self.blocks.get(&(number, block_no)) {
            Some(block) => Arc::clone(block),
            None => {
                self.examined += BLOCK_EXAMINED;
                if self.blocks.len() >= BLOCKS_KEPT_MAX {
                    self.blocks.clear();
                }
                let block = Arc::new(run.read_block(files, block_no)?);
                self.blocks.insert((number, block_no), Arc::clone(&block));
                block
            }
        };
        let record = block.body(index).map_err(|what| run.damaged(files, block_no, what))?;
        let (fire_id, ended_at) = read_record_id(&record).reading("record of a fire")?;
        Ok((FirePosition { ended_at, fire_id }, record))
    }

    fn decode(&self, record: &[u8]) -> Result<FireRecord, StorageFault> {
        read_record(record, &self.core.interner).reading("record of a fire")
    }

    /// Whether a source that is newer than the one with this number has a record of a fire.
    fn is_replaced(&mut self, fire_id: FireId, number: usize) -> Result<bool, StorageFault> {
        let runs = self.sources.runs.len();
        let chunks = &self.sources.chunks[(number + 1).saturating_sub(runs)..];
        if chunks.iter().any(|chunk| chunk.has_fire(fire_id)) {
            return Ok(true);
        }
        let hash = fire_hash(fire_id);
        for newer in number + 1..runs {
            let may_have = self.run(newer).may_have_history_of(fire_id.task)
                && self.index(newer)?.may_have(hash);
            if may_have && self.has_fire(newer, fire_id)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_fire(&mut self, number: usize, fire_id: FireId) -> Result<bool, StorageFault> {
        let ordinal = self.records_before(number, fire_id)?;
        if ordinal >= self.run(number).count() {
            return Ok(false);
        }
        Ok(self.fire_at(number, ordinal)?.0.fire_id == fire_id)
    }

    /// The record of the fire of a key that ended last.
    fn last_of(
        &mut self,
        namespace: &Namespace,
        key: &TaskKey,
    ) -> Result<Option<FireRecord>, StorageFault> {
        let (namespace, key) = (namespace.as_str(), key.as_str());
        let mut last: Option<(FirePosition, Bytes)> = None;
        let may_be_later = |last: &Option<(FirePosition, Bytes)>, newest: Timestamp| {
            last.as_ref().is_none_or(|(position, _)| newest >= position.ended_at)
        };
        let runs = self.sources.runs.len();
        let hash = ShortHash::of(self.partition, namespace, key);
        for (number, chunk) in self.sources.chunks.iter().enumerate().rev() {
            if may_be_later(&last, chunk.ends().1) && chunk.may_have_key(hash) {
                let found = self.last_in_chunk(chunk, runs + number, (namespace, key))?;
                last = latest(last, found);
            }
        }
        let hash = key_hash(self.partition, namespace, key);
        for number in (0..runs).rev() {
            let may_have = may_be_later(&last, self.run(number).newest())
                && self.index(number)?.may_have(hash);
            if may_have {
                let found = self.last_in_run(number, (namespace, key))?;
                last = latest(last, found);
            }
        }
        last.map(|(_, record)| self.decode(&record)).transpose()
    }

    fn last_in_chunk(
        &mut self,
        chunk: &HistoryChunk,
        number: usize,
        (namespace, key): (&str, &str),
    ) -> Result<Option<(FirePosition, Bytes)>, StorageFault> {
        for ordinal in chunk.by_key(self.partition, namespace, key) {
            let entry = chunk.entry(*ordinal);
            // Longer keys come after this one.
            if entry.names().1 != Some(key) {
                break;
            }
            if !self.is_replaced(entry.fire_id(), number)? {
                return Ok(Some((entry.position(), entry.record.clone())));
            }
        }
        Ok(None)
    }

    fn last_in_run(
        &mut self,
        number: usize,
        (namespace, key): (&str, &str),
    ) -> Result<Option<(FirePosition, Bytes)>, StorageFault> {
        let files = &self.core.files;
        let front = fires_of_key(self.partition, namespace, key);
        let mut cursor = self.seek(number, &front)?;
        while let Some(entry) = cursor.entry().filter(|entry| entry.starts_with(&front)) {
            let fire = read_key(entry).map_err(|error| cursor.damaged(files, error))?;
            let (position, record) = self.fire_at(number, fire.ordinal)?;
            if !self.is_replaced(position.fire_id, number)? {
                return Ok(Some((position, record)));
            }
            cursor.advance(files)?;
        }
        Ok(None)
    }
}

impl FireSource {
    /// Its number among all sources, the oldest first: runs, then chunks.
    const fn number(&self, runs: usize) -> usize {
        match self {
            Self::Chunk(number) | Self::ChunkFires { number, .. } => runs + *number,
            Self::Run(number) | Self::RunFires { number, .. } | Self::RunEnds { number, .. } => {
                *number
            }
        }
    }
}

fn latest(
    one: Option<(FirePosition, Bytes)>,
    other: Option<(FirePosition, Bytes)>,
) -> Option<(FirePosition, Bytes)> {
    [one, other].into_iter().flatten().max_by_key(|(position, _)| *position)
}
