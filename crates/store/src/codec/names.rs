//! Names: validated when they are read, and shared where they repeat.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use punctual_core::{Namespace, Queue, TaskKey};

use super::{CodecError, Decoded, INTERNED_MAX};

/// How many tasks share one copy of a name. All threads that have tasks with the same copy change
/// its count of references, which moves from core to core each time; tasks that are read together
/// are used together.
const USES_MAX: u32 = 256;

/// Shares equal names, so that loading a task does not allocate its namespace and queue.
#[derive(Debug, Default)]
pub struct Interner {
    namespaces: Mutex<Names<Namespace>>,
    queues: Mutex<Names<Queue>>,
}

type Names<T> = HashMap<Box<str>, SharedName<T>>;

#[derive(Debug)]
struct SharedName<T> {
    name: T,
    uses: u32,
}

impl Interner {
    /// Returns the namespace with this name.
    pub fn namespace(&self, text: &str) -> Decoded<Namespace> {
        intern(&self.namespaces, text, |text| {
            Namespace::from_stored(text).map_err(|_| CodecError::Invalid("namespace"))
        })
    }

    pub(super) fn queue(&self, text: &str) -> Decoded<Queue> {
        intern(&self.queues, text, |text| {
            Queue::new(text).map_err(|_| CodecError::Invalid("queue"))
        })
    }
}

fn intern<T: Clone>(
    names: &Mutex<Names<T>>,
    text: &str,
    make: impl FnOnce(&str) -> Decoded<T>,
) -> Decoded<T> {
    // A panic cannot leave the names half-written.
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = names.get_mut(text) {
        if shared.uses == USES_MAX {
            *shared = SharedName { name: make(text)?, uses: 0 };
        }
        shared.uses += 1;
        return Ok(shared.name.clone());
    }
    let name = make(text)?;
    if names.len() < INTERNED_MAX {
        names.insert(text.into(), SharedName { name: name.clone(), uses: 1 });
    }
    Ok(name)
}

pub(super) fn read_key(text: &str) -> Decoded<TaskKey> {
    TaskKey::new(text).map_err(|_| CodecError::Invalid("key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_read_together_share_a_copy_and_all_are_equal() {
        let interner = Interner::default();
        let names: Vec<Namespace> =
            (0..=2 * USES_MAX).map(|_| interner.namespace("shop").unwrap()).collect();
        assert!(names.iter().all(|name| *name == names[0]));
        let mut copies: Vec<*const u8> = names.iter().map(|name| name.as_str().as_ptr()).collect();
        copies.dedup();
        assert_eq!(copies.len(), 3);
    }
}
