//! Relocations: tasks whose entry is not at the time in their id, or whose time has changed since.
//!
//! A relocation says at which time the entry is filed, and the due time, version and time of change
//! that replace those in the entry. A task without a relocation is filed at the time in its id, and
//! its entry is up to date.
//! In the catalog these rows are the table `standings`.

use punctual_core::{Task, TaskId, Timestamp, Version};
use punctual_store::codec::{CodecError, Reader, put_signed, put_timestamp, put_varint};

use crate::key::EntryKey;
use crate::state::layers::{Layers, Weight};

/// Where an entry is filed, and when its task is due. Packed, because a million watches have a
/// million of these in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Relocation {
    version: u64,
    filed_at: PackedTime,
    fire_at: PackedTime,
    updated_at: PackedTime,
    entry: EntryState,
}

/// Whether the values in the entry are the present ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryState {
    UpToDate,
    Postponed,
}

/// Two relocations of a cache line; a row in memory has the id as well.
const _: () = assert!(size_of::<Option<Relocation>>() == 32);

/// A time, or none, in 48 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedTime([u16; 3]);

impl PackedTime {
    /// Greater than every `Timestamp`.
    const NONE: Self = Self([u16::MAX; 3]);

    #[expect(clippy::cast_possible_truncation, reason = "a timestamp has 48 bits")]
    const fn new(at: Option<Timestamp>) -> Self {
        match at {
            Some(at) => {
                let millis = at.as_millis();
                Self([(millis >> 32) as u16, (millis >> 16) as u16, millis as u16])
            }
            None => Self::NONE,
        }
    }

    const fn get(self) -> Option<Timestamp> {
        match self.0 {
            [u16::MAX, u16::MAX, u16::MAX] => None,
            [high, middle, low] => {
                let millis = (high as u64) << 32 | (middle as u64) << 16 | low as u64;
                Some(Timestamp::from_millis(millis))
            }
        }
    }
}

const _: () = assert!(Timestamp::MAX.as_millis() < (1 << 48) - 1);

/// `None`: the entry is at the time in the id.
pub(crate) type Relocations = Layers<TaskId, Option<Relocation>>;

impl Weight for Relocation {}

impl Relocation {
    /// At most how many bytes it is written as: three times and a version.
    pub(crate) const BYTES_MAX: usize = 3 * 8 + 10;

    /// Filed at a time, with an entry that is up to date.
    pub(crate) const fn filed(at: Timestamp) -> Self {
        Self {
            version: 0,
            filed_at: PackedTime::new(Some(at)),
            fire_at: PackedTime::NONE,
            updated_at: PackedTime::NONE,
            entry: EntryState::UpToDate,
        }
    }

    /// Postponed. The time of filing may be known to the catalog alone.
    pub(crate) const fn postponed(filed_at: Option<Timestamp>, moved: Moved) -> Self {
        Self {
            version: moved.version.get(),
            filed_at: PackedTime::new(filed_at),
            fire_at: PackedTime::new(Some(moved.fire_at)),
            updated_at: PackedTime::new(moved.updated_at),
            entry: EntryState::Postponed,
        }
    }

    /// The time at which its entry is filed; `None` if only the catalog knows it.
    pub(crate) const fn filed_at(&self) -> Option<Timestamp> {
        self.filed_at.get()
    }

    /// The values that replace those in the entry.
    pub(crate) const fn moved(&self) -> Option<Moved> {
        match (self.entry, self.fire_at.get()) {
            (EntryState::Postponed, Some(fire_at)) => Some(Moved {
                fire_at,
                version: Version::new(self.version),
                updated_at: self.updated_at.get(),
            }),
            _ => None,
        }
    }

    /// The same, with the entry filed at another time.
    pub(crate) const fn refiled(self, at: Timestamp) -> Self {
        Self { filed_at: PackedTime::new(Some(at)), ..self }
    }

    /// Takes the time of filing from the catalog if memory does not know it.
    pub(crate) fn completed(self, id: TaskId, in_catalog: Option<Self>) -> Self {
        if self.filed_at().is_some() {
            return self;
        }
        let filed_at = in_catalog.and_then(|row| row.filed_at()).unwrap_or(id.due());
        self.refiled(filed_at)
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        put_varint(&mut out, self.filed_at().map_or(u64::MAX, Timestamp::as_millis));
        if let Some(moved) = self.moved() {
            moved.put(&mut out);
        }
        out
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let filed_at = reader.timestamp()?;
        if reader.rest().is_empty() {
            return Ok(Self::filed(filed_at));
        }
        let mut moved = Moved::read_without_update(&mut reader)?;
        if !reader.rest().is_empty() {
            moved.updated_at = Some(read_before(&mut reader, moved.fire_at)?);
        }
        reader.end()?;
        Ok(Self::postponed(Some(filed_at), moved))
    }
}

/// What a postponement changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) fire_at: Timestamp,
    pub(crate) version: Version,
    /// `None` if it was written before postponements had the time.
    pub(crate) updated_at: Option<Timestamp>,
}

impl Moved {
    pub(crate) const fn apply_to(self, task: &mut Task) {
        task.fire_at = self.fire_at;
        task.nominal_at = self.fire_at;
        task.version = self.version;
        if let Some(updated_at) = self.updated_at {
            task.updated_at = updated_at;
        }
    }

    /// Encodes it, in commits and in rows. The time of the touch is relative to `fire_at`: three
    /// bytes for a watch of up to seventeen minutes, four for one of a day.
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        put_timestamp(out, self.fire_at);
        put_varint(out, self.version.get());
        if let Some(updated_at) = self.updated_at {
            let before = self.fire_at.as_millis().cast_signed();
            put_signed(out, before - updated_at.as_millis().cast_signed());
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, CodecError> {
        let moved = Self::read_without_update(reader)?;
        Ok(Self { updated_at: Some(read_before(reader, moved.fire_at)?), ..moved })
    }

    /// Decodes what was written before postponements had the time of the touch.
    pub(crate) fn read_without_update(reader: &mut Reader<'_>) -> Result<Self, CodecError> {
        let (fire_at, version) = (reader.timestamp()?, Version::new(reader.varint()?));
        Ok(Self { fire_at, version, updated_at: None })
    }
}

fn read_before(reader: &mut Reader<'_>, fire_at: Timestamp) -> Result<Timestamp, CodecError> {
    let millis = i128::from(fire_at.as_millis()) - i128::from(reader.signed()?);
    Timestamp::try_from_millis(millis).map_err(|_| CodecError::Invalid("timestamp"))
}

/// The key of a task's entry, given its relocation.
pub(crate) fn key_of(id: TaskId, relocation: Option<Relocation>) -> EntryKey {
    let filed_at = relocation.and_then(|relocation| relocation.filed_at());
    EntryKey::new(filed_at.unwrap_or(id.due()), id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(millis: u64, version: u64, updated_at: Option<Timestamp>) -> Moved {
        let fire_at = Timestamp::from_millis(millis);
        Moved { fire_at, version: Version::new(version), updated_at }
    }

    #[test]
    fn a_relocation_reads_back() {
        let at = Timestamp::from_millis;
        for relocation in [
            Relocation::filed(at(5)),
            Relocation::postponed(Some(at(5)), moved(9, u64::MAX, None)),
            Relocation::postponed(Some(at(5)), moved(9, 1, Some(at(0)))),
            Relocation::postponed(Some(Timestamp::MAX), moved(9, 1, Some(Timestamp::MAX))),
        ] {
            assert_eq!(Relocation::read(&relocation.to_bytes()), Ok(relocation));
        }
    }

    #[test]
    fn a_place_that_is_not_known_comes_from_the_catalog_or_the_id() {
        let at = Timestamp::from_millis;
        let id = TaskId::floor(at(3));
        let relocation = Relocation::postponed(None, moved(9, 1, None));
        let known = Relocation::filed(at(7));
        assert_eq!(relocation.completed(id, Some(known)).filed_at(), Some(at(7)));
        assert_eq!(relocation.completed(id, None).filed_at(), Some(at(3)));
        assert_eq!(known.completed(id, None), known);
    }
}
