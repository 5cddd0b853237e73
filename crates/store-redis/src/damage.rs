//! Damaged values: what the store found in Redis and cannot read.
//!
//! Another program, an operator or a fault of memory may change values in Redis. Each damaged value
//! is logged and counted once, however often it is read, and named so that an operator finds it
//! with redis-cli. `docs/operations.md` has what to do about it.

use std::collections::HashSet;
use std::fmt::{Display, Write as _};
use std::sync::{Mutex, PoisonError};

use punctual_store::{Damage, StoreError};

/// Why a number is damaged.
pub(crate) const NO_NUMBER: &str = "it is not a whole number";
/// Why a field of a lease is damaged.
pub(crate) const UNREADABLE: &str = "it cannot be read";
/// Why a sweep passes over a count or a member.
pub(crate) const NOT_SWEPT: &str = "it is not what the sweep expects there";

/// The largest number of places that are remembered: some megabytes. Damage in further places is
/// neither logged nor counted.
const PLACES_MAX: usize = 10_000;

/// The places of damaged values that were logged and counted.
#[derive(Debug, Default)]
pub(crate) struct DamageTracker {
    places: Mutex<HashSet<String>>,
}

impl DamageTracker {
    /// A panic cannot leave the places half-written.
    fn with<T>(&self, use_places: impl FnOnce(&mut HashSet<String>) -> T) -> T {
        use_places(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns how many damaged values were found.
    pub(crate) fn count(&self) -> usize {
        self.with(|places| places.len())
    }

    /// Returns where one of the damaged values is, if there are any.
    pub(crate) fn first(&self) -> Option<String> {
        self.with(|places| places.iter().min().cloned())
    }

    /// Remembers a place. Returns whether it is to be logged.
    fn is_new(&self, place: &str) -> bool {
        self.with(|places| places.len() < PLACES_MAX && places.insert(place.to_owned()))
    }

    /// Logs and counts a damaged value, and returns the error that names it. `field` is a field of
    /// a hash, a member of a sorted set, or empty if the whole key is damaged.
    pub(crate) fn found(
        &self,
        what: &'static str,
        key: &str,
        field: &[u8],
        why: impl Display,
    ) -> StoreError {
        let place = place(key, field);
        let why = why.to_string();
        if self.is_new(&place) {
            tracing::error!(what, place, error = why, "damaged value in Redis");
        }
        StoreError::Damaged(Box::new(Damage { what, place, why }))
    }
}

/// Names a place as redis-cli reads it with `--quoted-input`.
fn place(key: &str, field: &[u8]) -> String {
    let mut place = format!("key {key}");
    if !field.is_empty() {
        place.push_str(", field \"");
        for byte in field {
            match byte {
                b'"' | b'\\' => place.extend(['\\', char::from(*byte)]),
                b' '..=b'~' => place.push(char::from(*byte)),
                // Writing to a string does not fail.
                _ => drop(write!(place, "\\x{byte:02x}")),
            }
        }
        place.push('"');
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_spelled_as_redis_cli_reads_it() {
        assert_eq!(place("{a.0}:due", b""), "key {a.0}:due");
        let field = b"shop\0\xff\"a\\b\n";
        let spelled = r#"key {a.0}:names, field "shop\x00\xff\"a\\b\x0a""#;
        assert_eq!(place("{a.0}:names", field), spelled);
    }

    #[test]
    fn a_place_is_logged_once_and_few_places_are_remembered() {
        let tracker = DamageTracker::default();
        assert!(tracker.is_new("a"));
        assert!(!tracker.is_new("a"));
        for number in 1..PLACES_MAX {
            assert!(tracker.is_new(&number.to_string()));
        }
        assert!(!tracker.is_new("b"), "the limit is reached");
        assert_eq!(tracker.count(), PLACES_MAX);
    }
}
