//! Names: checked as they are read, and shared where they come again and again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use punctual_core::{Namespace, Queue, TaskKey};

use super::{CodecError, INTERNED_MAX, Result};

/// Shares names that come again and again, so that a loaded task does not allocate its namespace.
#[derive(Debug, Default)]
pub struct Interner {
    namespaces: Mutex<HashMap<Box<str>, Namespace>>,
    queues: Mutex<HashMap<Box<str>, Queue>>,
}

impl Interner {
    /// The namespace of this text.
    pub fn namespace(&self, text: &str) -> Result<Namespace> {
        intern(&self.namespaces, text, |text| {
            Namespace::from_stored(text).map_err(|_| CodecError::Invalid("namespace"))
        })
    }

    pub(super) fn queue(&self, text: &str) -> Result<Queue> {
        intern(&self.queues, text, |text| {
            Queue::new(text).map_err(|_| CodecError::Invalid("queue"))
        })
    }
}

fn intern<T: Clone>(
    known: &Mutex<HashMap<Box<str>, T>>,
    text: &str,
    make: impl FnOnce(&str) -> Result<T>,
) -> Result<T> {
    // A cache is as good after a panic as before it.
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = known.get(text) {
        return Ok(name.clone());
    }
    let name = make(text)?;
    if known.len() < INTERNED_MAX {
        known.insert(text.into(), name.clone());
    }
    Ok(name)
}

pub(super) fn read_key(text: &str) -> Result<TaskKey> {
    TaskKey::new(text).map_err(|_| CodecError::Invalid("key"))
}
