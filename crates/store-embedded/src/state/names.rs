//! Names: which task a key names.
//!
//! A task that ends frees its key only if the key still names this task. If memory does not know
//! which task it names, the row says so (`GoneIf`), and the next reader of the catalog decides.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, OnceLock};

use punctual_core::{Namespace, PartitionId, TaskId, TaskKey};
use punctual_store::Head;
use punctual_store::codec::{CodecError, Reader, put_head, read_head};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::state::layers::{Layers, Weight};

/// A partition, a namespace and a key, as the catalog spells them.
pub(crate) type NameKey = Box<[u8]>;

/// What a name leads to, as far as memory knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NameTarget {
    Is(Head),
    Gone,
    /// Freed if the catalog has one of these tasks.
    GoneIf(Vec<TaskId>),
}

/// A name and its target in one allocation, because a million watches have a million of these. Two
/// rows are equal if they have the same name.
///
/// The bytes are: length of the name, name, kind of target, target.
#[derive(Debug, Clone)]
pub(crate) struct NameRow(Arc<[u8]>);

const LENGTH_BYTES: usize = 2;
/// The reference counts of an `Arc`.
const COUNTS_BYTES: usize = 16;

const GONE: u8 = 0;
const IS: u8 = 1;
const GONE_IF: u8 = 2;

impl NameRow {
    pub(crate) fn new(name: &[u8], target: &NameTarget) -> Self {
        let mut bytes = Vec::with_capacity(LENGTH_BYTES + name.len() + 64);
        let length = u16::try_from(name.len()).expect("a name is far shorter");
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(name);
        match target {
            NameTarget::Gone => bytes.push(GONE),
            NameTarget::Is(head) => {
                bytes.push(IS);
                put_head(&mut bytes, head);
            }
            NameTarget::GoneIf(ids) => {
                bytes.push(GONE_IF);
                for id in ids {
                    bytes.extend_from_slice(&id.as_u128().to_be_bytes());
                }
            }
        }
        Self(bytes.into())
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        let (length, rest) = self.0.split_at(LENGTH_BYTES);
        rest.split_at(usize::from(u16::from_le_bytes([length[0], length[1]])))
    }

    pub(crate) fn name(&self) -> &[u8] {
        self.parts().0
    }

    /// The target, with the head as it is written to the catalog.
    pub(crate) fn target_bytes(&self) -> NameBytes<'_> {
        match self.parts().1.split_first() {
            Some((&IS, head)) => NameBytes::Is(head),
            Some((&GONE_IF, ids)) => NameBytes::GoneIf(ids),
            _ => NameBytes::Gone,
        }
    }

    pub(crate) fn target(&self) -> Result<NameTarget, CodecError> {
        match self.target_bytes() {
            NameBytes::Gone => Ok(NameTarget::Gone),
            NameBytes::Is(head) => read_head(head).map(NameTarget::Is),
            NameBytes::GoneIf(ids) => {
                let mut reader = Reader::new(ids);
                let mut read = Vec::with_capacity(ids.len() / 16);
                while !reader.rest().is_empty() {
                    read.push(reader.task_id()?);
                }
                Ok(NameTarget::GoneIf(read))
            }
        }
    }
}

/// A target in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameBytes<'a> {
    Gone,
    Is(&'a [u8]),
    GoneIf(&'a [u8]),
}

impl Borrow<[u8]> for NameRow {
    fn borrow(&self) -> &[u8] {
        self.name()
    }
}

impl Hash for NameRow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl PartialEq for NameRow {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for NameRow {}

impl PartialOrd for NameRow {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NameRow {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.name().cmp(other.name())
    }
}

impl Weight for NameRow {
    fn heap_bytes(&self) -> usize {
        COUNTS_BYTES + self.0.len()
    }
}

/// Callers choose names, so these are hashed with a secret seed.
pub(crate) type NameRows = Layers<NameRow, (), NameHash>;

/// XXH3 with a secret seed: a name is hashed once per layer and lookup, for which the standard hash
/// is too slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NameHash(u64);

impl Default for NameHash {
    /// One secret per process.
    fn default() -> Self {
        static SECRET: OnceLock<u64> = OnceLock::new();
        Self(*SECRET.get_or_init(|| RandomState::new().hash_one(0)))
    }
}

impl BuildHasher for NameHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl Hasher for NameHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_usize(&mut self, length: usize) {
        self.0 = self.0.rotate_left(17) ^ length as u64;
    }
}

pub(crate) fn name(partition: PartitionId, namespace: &str, key: &str) -> NameKey {
    let mut name = Vec::with_capacity(3 + namespace.len() + key.len());
    name.extend_from_slice(&partition.get().to_be_bytes());
    name.extend_from_slice(namespace.as_bytes());
    // No namespace contains a zero byte, so two names cannot have the same bytes.
    name.push(0);
    name.extend_from_slice(key.as_bytes());
    name.into_boxed_slice()
}

pub(crate) fn name_of(partition: PartitionId, namespace: &Namespace, key: &TaskKey) -> NameKey {
    name(partition, namespace.as_str(), key.as_str())
}

/// Frees a name if it names this task.
pub(crate) fn free(names: &mut NameRows, name: &[u8], id: TaskId) -> Result<(), CodecError> {
    let target = match names.row(name).map(|(row, ())| row.target()).transpose()? {
        Some(NameTarget::Is(head)) if head.id == id => NameTarget::Gone,
        Some(NameTarget::Is(_) | NameTarget::Gone) => return Ok(()),
        Some(NameTarget::GoneIf(mut ids)) => {
            ids.push(id);
            NameTarget::GoneIf(ids)
        }
        None if names.in_catalog() => NameTarget::GoneIf(vec![id]),
        None => return Ok(()),
    };
    names.set(NameRow::new(name, &target), ());
    Ok(())
}

impl NameTarget {
    /// The head that the name leads to, given the row of the catalog.
    pub(crate) fn resolve(self, in_catalog: Option<Head>) -> Option<Head> {
        match self {
            Self::Is(head) => Some(head),
            Self::Gone => None,
            Self::GoneIf(ids) => in_catalog.filter(|head| !ids.contains(&head.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::Timestamp;

    use super::*;

    #[test]
    fn a_name_that_is_set_again_is_one_row_with_its_last_target() {
        let row = |key: &str, target: &NameTarget| {
            NameRow::new(&name(PartitionId::FIRST, "shop", key), target)
        };
        let id = |millis| TaskId::floor(Timestamp::from_millis(millis));
        let gone_if = NameTarget::GoneIf(vec![id(1), id(2)]);
        let mut names = NameRows::new(true, 1 << 20);
        for key in ["order-1", "order-2", "order-3"] {
            names.set(row(key, &gone_if), ());
        }
        let before = names.changed_bytes();
        names.set(row("order-2", &NameTarget::Gone), ());
        assert_eq!(names.len(), 3);
        assert_eq!(before - names.changed_bytes(), 2 * size_of::<TaskId>(), "two ids less");
        for (key, target) in
            [("order-1", &gone_if), ("order-2", &NameTarget::Gone), ("order-3", &gone_if)]
        {
            let name = name(PartitionId::FIRST, "shop", key);
            let found = names.row::<[u8]>(&name).map(|(row, ())| row.target());
            assert_eq!(found.as_ref(), Some(&Ok(target.clone())), "{key}");
        }
    }
}
