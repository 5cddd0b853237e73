//! Dead letters: reading them in pages, and finding those that are past their retention.
//!
//! A page reads the letters of all namespaces in order, step by step until it is full. A step
//! merges rows of the catalog with those that changed since the last checkpoint, both in order, so
//! that what it examines does not depend on how many letters there are. Steps and pages are bounded
//! in rows and in bytes: a page may be short, and says where the next begins.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use punctual_core::{DeadLetter, FireId, LetterGroup, Namespace, PartitionId, Timestamp};
use punctual_store::codec::read_letter;
use punctual_store::{Page, Retention};

use crate::fault::{ReadContext, StorageFault};
use crate::store_core::StoreCore;

/// Rows that one page examines, at most, apart from its last step.
const EXAMINED_MAX: usize = 4096;
/// Rows of the catalog that one step examines, and rows in memory: first what the page needs, then
/// twice as much each time, within these limits.
const STEP: std::ops::RangeInclusive<usize> = 32..=1024;
/// A step and a page end when they have this many bytes: 30 of the largest letters.
const BYTES_MAX: usize = 8 << 20;

/// Some dead letters of a partition, in order.
struct LetterStep {
    letters: Vec<(FireId, Bytes)>,
    /// How many rows were examined, with those of deleted letters.
    examined: usize,
    /// Up to which fire all letters were examined; `None` if there are none after it.
    covered: Option<FireId>,
}

impl StoreCore {
    /// The next dead letters of a partition after one fire. Examines at most `count` rows of the
    /// catalog and as many in memory.
    fn letters(
        &self,
        partition: PartitionId,
        after: Option<FireId>,
        count: usize,
    ) -> Result<LetterStep, StorageFault> {
        loop {
            let (in_catalog, checkpoints) = {
                let state = self.state()?;
                (state.dead.in_catalog(), state.checkpoints)
            };
            let mut rows: BTreeMap<FireId, Option<Bytes>> = BTreeMap::new();
            let (mut covered, mut bytes) = (None, 0);
            if in_catalog {
                self.catalog.letters_after(partition, after, |fire_id, letter| {
                    rows.insert(fire_id, Some(Bytes::copy_from_slice(letter)));
                    bytes += letter.len();
                    covered = (rows.len() >= count || bytes >= BYTES_MAX).then_some(fire_id);
                    covered.is_none()
                })?;
            }
            let state = self.state()?;
            if state.checkpoints != checkpoints {
                continue;
            }
            let changed = state.changed_letters(partition, after, covered, count);
            if changed.len() >= count {
                covered = changed.last().map(|(fire_id, _)| *fire_id);
            }
            drop(state);
            let examined = rows.len() + changed.len();
            self.examined.fetch_add(examined as u64, Ordering::Relaxed);
            rows.extend(changed);
            let within = |fire_id: &FireId| covered.is_none_or(|covered| *fire_id <= covered);
            let letters = rows.into_iter().take_while(|(fire_id, _)| within(fire_id));
            let letters = letters.filter_map(|(fire_id, letter)| Some((fire_id, letter?)));
            return Ok(LetterStep { letters: letters.collect(), examined, covered });
        }
    }

    /// Calls `each` for all dead letters of a partition, in order.
    pub(crate) fn each_letter(
        &self,
        partition: PartitionId,
        mut each: impl FnMut(FireId, Bytes) -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        let mut after = None;
        loop {
            let step = self.letters(partition, after, *STEP.end())?;
            for (fire_id, letter) in step.letters {
                each(fire_id, letter)?;
            }
            if step.covered.is_none() {
                return Ok(());
            }
            after = step.covered;
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
        let (mut next, mut want) = (after, limit.clamp(*STEP.start(), *STEP.end()));
        while examined < EXAMINED_MAX {
            let step = self.letters(partition, next, want)?;
            examined += step.examined;
            for (fire_id, encoded) in step.letters {
                let letter = read_letter(&encoded, &self.interner).reading("dead letter")?;
                if letter.task.definition.namespace == *namespace {
                    bytes += encoded.len();
                    items.push(letter);
                }
                if items.len() >= limit || bytes >= BYTES_MAX {
                    return Ok(Page { items, next: Some(fire_id) });
                }
            }
            next = step.covered;
            if next.is_none() {
                break;
            }
            want = (want * 2).min(*STEP.end());
        }
        Ok(Page { items, next })
    }

    /// The dead letters of fires, in their order; `None` for a fire of another partition.
    pub(crate) fn dead_letters(
        &self,
        partition: PartitionId,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StorageFault> {
        let letter_of = |fire_id: &FireId| match fire_id.task.partition() == partition {
            true => self.dead_letter(*fire_id),
            false => Ok(None),
        };
        fire_ids.iter().map(letter_of).collect()
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

    /// Dead letters that are past their retention, with their namespaces and groups.
    pub(crate) fn letters_past(
        &self,
        partition: PartitionId,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Vec<(FireId, Namespace, LetterGroup)>, StorageFault> {
        let mut past = Vec::new();
        self.each_letter(partition, |fire_id, letter| {
            let letter = read_letter(&letter, &self.interner).reading("dead letter")?;
            if now.since(letter.died_at) >= retention.dead_age {
                past.push((fire_id, letter.task.definition.namespace.clone(), letter.group()));
            }
            Ok(())
        })?;
        Ok(past)
    }
}
