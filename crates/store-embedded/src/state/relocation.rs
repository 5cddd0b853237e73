//! Relocations: tasks whose entry is not at the time in their id, or whose time has changed since.
//!
//! A relocation says at which time the entry is filed, and the due time and version that replace
//! those in the entry. A task without a relocation is filed at the time in its id, and its entry is
//! up to date.
//! In the catalog these rows are the table `standings`.

use punctual_core::{TaskId, Timestamp, Version};
use punctual_store::codec::{CodecError, Reader, put_timestamp, put_varint};

use crate::key::EntryKey;
use crate::state::layers::{Layers, Weight};

/// No time: greater than every `Timestamp`.
const NONE: u64 = u64::MAX;

/// Where an entry is filed, and when its task is due. Packed, because a million watches have a
/// million of these in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Relocation {
    filed_at: u64,
    fire_at: u64,
    version: u64,
}

/// `None`: the entry is at the time in the id.
pub(crate) type Relocations = Layers<TaskId, Option<Relocation>>;

impl Weight for Relocation {}

impl Relocation {
    /// Filed at a time, with an entry that is up to date.
    pub(crate) const fn filed(at: Timestamp) -> Self {
        Self { filed_at: at.as_millis(), fire_at: NONE, version: 0 }
    }

    /// Postponed. The time of filing may be known to the catalog alone.
    pub(crate) const fn postponed(
        filed_at: Option<Timestamp>,
        fire_at: Timestamp,
        version: Version,
    ) -> Self {
        Self {
            filed_at: match filed_at {
                Some(at) => at.as_millis(),
                None => NONE,
            },
            fire_at: fire_at.as_millis(),
            version: version.get(),
        }
    }

    /// The time at which its entry is filed; `None` if only the catalog knows it.
    pub(crate) const fn filed_at(&self) -> Option<Timestamp> {
        match self.filed_at {
            NONE => None,
            millis => Some(Timestamp::from_millis(millis)),
        }
    }

    /// The time and version that replace those in the entry.
    pub(crate) const fn moved(&self) -> Option<Moved> {
        match self.fire_at {
            NONE => None,
            millis => Some(Moved {
                fire_at: Timestamp::from_millis(millis),
                version: Version::new(self.version),
            }),
        }
    }

    /// The same, with the entry filed at another time.
    pub(crate) const fn refiled(self, at: Timestamp) -> Self {
        Self { filed_at: at.as_millis(), ..self }
    }

    /// Takes the time of filing from the catalog if memory does not know it.
    pub(crate) fn completed(self, id: TaskId, in_catalog: Option<Self>) -> Self {
        if self.filed_at != NONE {
            return self;
        }
        let filed_at = in_catalog.and_then(|row| row.filed_at()).unwrap_or(id.due());
        self.refiled(filed_at)
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(20);
        put_varint(&mut out, self.filed_at);
        if let Some(moved) = self.moved() {
            put_timestamp(&mut out, moved.fire_at);
            put_varint(&mut out, moved.version.get());
        }
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let filed_at = reader.timestamp()?;
        if reader.rest().is_empty() {
            return Ok(Self::filed(filed_at));
        }
        let (fire_at, version) = (reader.timestamp()?, reader.varint()?);
        reader.end()?;
        Ok(Self::postponed(Some(filed_at), fire_at, Version::new(version)))
    }
}

/// What a postponement changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) fire_at: Timestamp,
    pub(crate) version: Version,
}

/// The key of a task's entry, given its relocation.
pub(crate) fn key_of(id: TaskId, relocation: Option<Relocation>) -> EntryKey {
    let filed_at = relocation.and_then(|relocation| relocation.filed_at());
    EntryKey::new(filed_at.unwrap_or(id.due()), id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relocation_reads_back() {
        let at = Timestamp::from_millis;
        for relocation in [
            Relocation::filed(at(5)),
            Relocation::postponed(Some(at(5)), at(9), Version::new(u64::MAX)),
        ] {
            assert_eq!(Relocation::read(&relocation.to_bytes()), Ok(relocation));
        }
    }

    #[test]
    fn a_place_that_is_not_known_comes_from_the_catalog_or_the_id() {
        let at = Timestamp::from_millis;
        let id = TaskId::floor(at(3));
        let relocation = Relocation::postponed(None, at(9), Version::FIRST);
        let known = Relocation::filed(at(7));
        assert_eq!(relocation.completed(id, Some(known)).filed_at(), Some(at(7)));
        assert_eq!(relocation.completed(id, None).filed_at(), Some(at(3)));
        assert_eq!(known.completed(id, None), known);
    }
}
