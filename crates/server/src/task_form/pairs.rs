//! Labels and webhook headers: JSON objects in which a name must not be repeated.
//!
//! JSON allows a name twice; most parsers keep the last value. Here a repeated name is refused, so
//! that no value is dropped silently. The core checks names and values. In gRPC these are maps,
//! where the decoder keeps the last value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use punctual_core::Invalid;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// Pairs in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct Pairs(Vec<(String, String)>);

impl Pairs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pairs by name; refuses a repeated name.
    pub(super) fn by_name(self, field: &str) -> Result<BTreeMap<String, String>, Invalid> {
        let mut pairs = BTreeMap::new();
        for (name, text) in self.0 {
            if pairs.contains_key(&name) {
                return Err(twice(field, &name));
            }
            pairs.insert(name, text);
        }
        Ok(pairs)
    }
}

/// Checks that no header is repeated. Header names ignore case.
pub(crate) fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), Invalid> {
    let mut names = BTreeSet::new();
    match headers.keys().find(|name| !names.insert(name.to_ascii_lowercase())) {
        Some(name) => Err(twice("headers", name)),
        None => Ok(()),
    }
}

fn twice(field: &str, name: &str) -> Invalid {
    Invalid::new(format!("{field}.{name}"), "is given twice")
}

impl FromIterator<(String, String)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl Serialize for Pairs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, text)| (name, text)))
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;

        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = object.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(PairsVisitor)
    }
}
