//! Damaged values: what the store found in the database and cannot read.
//!
//! Each damaged value is logged and counted once, and named by its table and key, so that an
//! operator finds it with `psql` or `mysql`.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use punctual_store::{Damage, StoreError};

/// The largest number of places that are remembered: some megabytes. Damage in further places is
/// neither logged nor counted.
const PLACES_MAX: usize = 10_000;

/// The places of damaged values that were logged and counted.
#[derive(Debug, Default)]
pub(crate) struct DamagedRows {
    places: Mutex<HashSet<String>>,
}

impl DamagedRows {
    /// A panic cannot leave the places half-written.
    fn with<T>(&self, use_places: impl FnOnce(&mut HashSet<String>) -> T) -> T {
        use_places(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn count(&self) -> usize {
        self.with(|places| places.len())
    }

    /// Returns where one of the damaged values is, if there are any.
    pub(crate) fn first(&self) -> Option<String> {
        self.with(|places| places.iter().min().cloned())
    }

    /// Logs and counts a damaged value, and returns the error that names it.
    pub(crate) fn found(&self, what: &'static str, place: String, why: impl Display) -> StoreError {
        let why = why.to_string();
        let is_new = self.with(|places| places.len() < PLACES_MAX && places.insert(place.clone()));
        if is_new {
            tracing::error!(what, place, error = why, "damaged value in the database");
        }
        StoreError::Damaged(Box::new(Damage { what, place, why }))
    }
}
