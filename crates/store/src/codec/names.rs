//! Names: validated when they are read, and shared where they repeat.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use punctual_core::{Namespace, Queue, TaskKey};

use super::{CodecError, Decoded, INTERNED_MAX};

/// Shares equal names, so that loading a task does not allocate its namespace and queue.
#[derive(Debug, Default)]
pub struct Interner {
    namespaces: Mutex<HashMap<Box<str>, Namespace>>,
    queues: Mutex<HashMap<Box<str>, Queue>>,
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
    cache: &Mutex<HashMap<Box<str>, T>>,
    text: &str,
    make: impl FnOnce(&str) -> Decoded<T>,
) -> Decoded<T> {
    // A panic cannot leave this cache half-written.
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = cache.get(text) {
        return Ok(name.clone());
    }
    let name = make(text)?;
    if cache.len() < INTERNED_MAX {
        cache.insert(text.into(), name.clone());
    }
    Ok(name)
}

pub(super) fn read_key(text: &str) -> Decoded<TaskKey> {
    TaskKey::new(text).map_err(|_| CodecError::Invalid("key"))
}
