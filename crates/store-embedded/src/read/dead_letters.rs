//! Dead letters: reading them in pages, and finding those that are past their retention.
//!
//! A page reads the letters of all namespaces in order, step by step until it is full. Steps and
//! pages are bounded in letters and in bytes: a page may be short, and says where the next begins.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use punctual_core::{DeadLetter, FireId, Namespace, PartitionId, Timestamp};
use punctual_store::codec::read_letter;
use punctual_store::{Page, Retention};

use crate::fault::{ReadContext, StorageFault};
use crate::store_core::StoreCore;

/// Dead letters that one page examines, at most, apart from its last step.
const EXAMINED_MAX: usize = 4096;
/// Dead letters that one step examines: first what the page needs, then twice as much each time,
/// within these limits.
const STEP: std::ops::RangeInclusive<usize> = 32..=1024;
/// A step and a page end when they have this many bytes: 30 of the largest letters.
const BYTES_MAX: usize = 8 << 20;

impl StoreCore {
    /// At most `count` dead letters of a partition after one fire, in order, and whether these are
    /// all.
    fn letters(
        &self,
        partition: PartitionId,
        after: Option<FireId>,
        count: usize,
    ) -> Result<(Vec<(FireId, Bytes)>, bool), StorageFault> {
        loop {
            let (in_catalog, checkpoints) = {
                let state = self.state()?;
                (state.dead.in_catalog(), state.checkpoints)
            };
            let mut rows: BTreeMap<FireId, Option<Bytes>> = BTreeMap::new();
            let (mut more, mut bytes) = (false, 0);
            if in_catalog {
                self.catalog.letters_after(partition, after, |fire_id, letter| {
                    rows.insert(fire_id, Some(Bytes::copy_from_slice(letter)));
                    bytes += letter.len();
                    more = rows.len() >= count || bytes >= BYTES_MAX;
                    !more
                })?;
            }
            self.examined.fetch_add(rows.len() as u64, Ordering::Relaxed);
            let covered = rows.last_key_value().map(|(fire_id, _)| *fire_id).filter(|_| more);
            let state = self.state()?;
            if state.checkpoints != checkpoints {
                continue;
            }
            let mut known = std::collections::HashSet::new();
            for (fire_id, letter) in state.dead.iter() {
                let ours = fire_id.task.partition() == partition
                    && after.is_none_or(|after| *fire_id > after)
                    && covered.is_none_or(|covered| *fire_id <= covered);
                if ours && known.insert(*fire_id) {
                    rows.insert(*fire_id, letter.clone());
                }
            }
            drop(state);
            let mut letters: Vec<(FireId, Bytes)> =
                rows.into_iter().filter_map(|(fire_id, letter)| Some((fire_id, letter?))).collect();
            // A page needs a position to continue from, even if all letters that it examined were
            // deleted meanwhile.
            if more && letters.is_empty() {
                return self.letters(partition, covered, count);
            }
            if letters.len() > count {
                letters.truncate(count);
                more = true;
            }
            return Ok((letters, !more));
        }
    }

    /// All dead letters of a partition.
    pub(crate) fn all_letters(
        &self,
        partition: PartitionId,
    ) -> Result<Vec<(FireId, Bytes)>, StorageFault> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map(|(fire_id, _)| *fire_id);
            let (letters, complete) = self.letters(partition, after, *STEP.end())?;
            all.extend(letters);
            if complete {
                return Ok(all);
            }
        }
    }

    pub(crate) fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StorageFault> {
        let (mut items, mut examined, mut bytes) = (Vec::new(), 0, 0);
        let (mut last, mut want) = (after, limit.clamp(*STEP.start(), *STEP.end()));
        while examined < EXAMINED_MAX {
            let (letters, complete) = self.letters(partition, last, want)?;
            examined += letters.len();
            for (fire_id, encoded) in letters {
                let letter = read_letter(&encoded, &self.interner).reading("dead letter")?;
                last = Some(fire_id);
                if letter.task.definition.namespace == *namespace {
                    bytes += encoded.len();
                    items.push(letter);
                }
                if items.len() >= limit || bytes >= BYTES_MAX {
                    return Ok(Page { items, next: last });
                }
            }
            if complete {
                return Ok(Page { items, next: None });
            }
            want = (want * 2).min(*STEP.end());
        }
        Ok(Page { items, next: last })
    }

    pub(crate) fn dead_letter(&self, fire_id: FireId) -> Result<Option<DeadLetter>, StorageFault> {
        let (known, in_catalog) = {
            let state = self.state()?;
            (state.dead.get(&fire_id).cloned(), state.dead.in_catalog())
        };
        let letter = match known {
            Some(letter) => letter,
            None if in_catalog => self.catalog.letter(fire_id)?.map(Bytes::from),
            None => None,
        };
        letter.map(|letter| read_letter(&letter, &self.interner).reading("dead letter")).transpose()
    }

    /// Dead letters that are past their retention, with their namespaces.
    pub(crate) fn letters_past(
        &self,
        partition: PartitionId,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Vec<(FireId, Namespace)>, StorageFault> {
        let mut past = Vec::new();
        let mut after = None;
        loop {
            let (letters, complete) = self.letters(partition, after, *STEP.end())?;
            after = letters.last().map(|(fire_id, _)| *fire_id);
            for (fire_id, letter) in letters {
                let letter = read_letter(&letter, &self.interner).reading("dead letter")?;
                if now.since(letter.died_at) >= retention.dead_age {
                    past.push((fire_id, letter.task.definition.namespace.clone()));
                }
            }
            if complete {
                return Ok(past);
            }
        }
    }
}
