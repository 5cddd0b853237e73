//! Names: which task a key leads to.
//!
//! In: tasks that are filed under a key, and tasks that end. Out: what the key leads to.
//! A task that ends frees its key only if the key still names it. When memory does not know whom it names, that question is
//! kept (`GoneIf`) and answered by whoever reads the catalog next.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use punctual_core::{Namespace, PartitionId, TaskId, TaskKey};
use punctual_store::Head;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::layers::Layers;

/// A partition, a namespace and a key, in the spelling of the catalog.
pub(crate) type Name = Box<[u8]>;

/// What is known of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    Is(Head),
    Gone,
    /// Gone if the catalog says that it names one of these.
    GoneIf(Vec<TaskId>),
}

/// Names come from callers, so they are hashed with a secret.
pub(crate) type Names = Layers<Name, Named, NameHash>;

/// XXH3 with a secret seed: names are hashed once per layer and lookup, which the standard hash makes dear.
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

pub(crate) fn name(partition: PartitionId, namespace: &str, key: &str) -> Name {
    let mut name = Vec::with_capacity(3 + namespace.len() + key.len());
    name.extend_from_slice(&partition.get().to_be_bytes());
    name.extend_from_slice(namespace.as_bytes());
    // No namespace contains a zero byte, so no two names run together.
    name.push(0);
    name.extend_from_slice(key.as_bytes());
    name.into_boxed_slice()
}

pub(crate) fn name_of(partition: PartitionId, namespace: &Namespace, key: &TaskKey) -> Name {
    name(partition, namespace.as_str(), key.as_str())
}

/// Frees a name, if it is the task's.
pub(crate) fn free(names: &mut Names, name: Name, id: TaskId) {
    let known = match names.get(&name) {
        Some(Named::Is(head)) if head.id == id => Named::Gone,
        Some(Named::Is(_) | Named::Gone) => return,
        Some(Named::GoneIf(ids)) => {
            let mut ids = ids.clone();
            ids.push(id);
            Named::GoneIf(ids)
        }
        None if names.beneath() => Named::GoneIf(vec![id]),
        None => return,
    };
    names.set(name, known);
}

impl Named {
    /// What it leads to, given what the catalog says.
    pub(crate) fn resolve(self, beneath: Option<Head>) -> Option<Head> {
        match self {
            Self::Is(head) => Some(head),
            Self::Gone => None,
            Self::GoneIf(ids) => beneath.filter(|head| !ids.contains(&head.id)),
        }
    }
}
