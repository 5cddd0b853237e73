//! Ids of tasks and of fires.
//!
//! A [`TaskId`] packs due time, partition, epoch and sequence into 128 bits. So get and cancel by
//! id need no index, ids sort by due time, and two owners never make the same id, because the epoch
//! grows with each owner. Ids are printed as 26 letters of Crockford's base 32 in lower case, which
//! sort like the ids themselves.
//!
//! A [`FireId`] is a task and one nominal time. It is the same for all attempts, brokers and
//! restarts. The codecs of the stores define the layout of ids on disk.

use std::fmt;
use std::str::FromStr;

use crate::{Epoch, PartitionId, Timestamp};

const DUE_BITS: u32 = 48;
const PARTITION_BITS: u32 = 12;
const EPOCH_BITS: u32 = 26;
const SEQUENCE_BITS: u32 = 42;
const _: () = assert!(DUE_BITS + PARTITION_BITS + EPOCH_BITS + SEQUENCE_BITS == 128);
const _: () = assert!(Timestamp::MAX.as_millis() < 1 << DUE_BITS);
const _: () = assert!(crate::limits::PARTITIONS_MAX as u32 == 1 << PARTITION_BITS);

/// Without i, l, o and u, which people misread.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TASK_LETTERS: usize = 26;
const NOMINAL_LETTERS: usize = 10;

/// The number of a task among those that one owner made in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// The first number of an epoch.
    pub const FIRST: Self = Self(0);
    /// The last number: enough for fifty days at a million tasks a second. An owner that
    /// reaches it takes a new epoch.
    pub const MAX: Self = Self((1 << SEQUENCE_BITS) - 1);

    /// Makes a sequence of a number; `None` beyond [`Sequence::MAX`].
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number > Self::MAX.0 { None } else { Some(Self(number)) }
    }

    /// The number in the epoch, from 0.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next number; `None` if the epoch is used up.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

/// The id of a task: its first due time, its partition, and a unique number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(u128);

impl TaskId {
    /// How many letters an id has in print.
    pub const LETTERS: usize = TASK_LETTERS;

    /// A bound for ranges, not the id of a task: not above any id that is due at `due` or later,
    /// and above all ids that are due before.
    #[must_use]
    pub const fn floor(due: Timestamp) -> Self {
        Self((due.as_millis() as u128) << (128 - DUE_BITS))
    }

    /// A bound for ranges, not the id of a task: one below this id, or the lowest id itself.
    #[must_use]
    pub const fn below(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Makes the id of a task that the owner of `partition` schedules for `due`.
    #[must_use]
    pub const fn new(
        due: Timestamp,
        partition: PartitionId,
        epoch: Epoch,
        sequence: Sequence,
    ) -> Self {
        let due = due.as_millis() as u128;
        let partition = partition.get() as u128;
        let epoch = epoch.get() as u128;
        Self(
            (((due << PARTITION_BITS | partition) << EPOCH_BITS | epoch) << SEQUENCE_BITS)
                | sequence.get() as u128,
        )
    }

    /// When the task was due when it was created. Its `fire_at` may be different by now.
    #[must_use]
    pub const fn due(self) -> Timestamp {
        Timestamp::from_millis(self.bits(PARTITION_BITS + EPOCH_BITS + SEQUENCE_BITS, DUE_BITS))
    }

    /// The partition of the task, which never changes.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "twelve bits")]
    pub const fn partition(self) -> PartitionId {
        PartitionId::from_bits(self.bits(EPOCH_BITS + SEQUENCE_BITS, PARTITION_BITS) as u16)
    }

    /// The epoch of the owner that made the id.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "twenty-six bits")]
    pub const fn epoch(self) -> Epoch {
        Epoch::from_bits(self.bits(SEQUENCE_BITS, EPOCH_BITS) as u32)
    }

    /// The number of the task in that epoch.
    #[must_use]
    pub const fn sequence(self) -> Sequence {
        Sequence(self.bits(0, SEQUENCE_BITS))
    }

    /// The id as a number, for codecs.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// Makes an id of a number that a codec has read. A number that no owner can have made is an
    /// error.
    pub const fn try_from_u128(bits: u128) -> Result<Self, IdError> {
        if bits >> (128 - DUE_BITS) > Timestamp::MAX.as_millis() as u128 {
            return Err(IdError::TaskForm);
        }
        Ok(Self(bits))
    }

    #[expect(clippy::cast_possible_truncation, reason = "no field is wider than 48 bits")]
    const fn bits(self, shift: u32, width: u32) -> u64 {
        (self.0 >> shift) as u64 & ((1 << width) - 1)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters: [u8; TASK_LETTERS] = letters(self.0);
        f.write_str(str::from_utf8(&letters).expect("ASCII"))
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TaskId {
    type Err = IdError;

    /// Reads lower case only, as ids are printed: text in upper case may be the key of a task.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let bits = read_letters(text, TASK_LETTERS).ok_or(IdError::TaskForm)?;
        Self::try_from_u128(bits)
    }
}

/// One due moment of one task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FireId {
    /// The task that fires.
    pub task: TaskId,
    /// When the schedule has the fire due, before jitter and retries.
    pub nominal_at: Timestamp,
}

impl FireId {
    /// How many letters an id has in print: those of the task, a hyphen, and the nominal time.
    pub const LETTERS: usize = TASK_LETTERS + 1 + NOMINAL_LETTERS;

    /// The id as text, without an allocation, because every delivery carries it.
    #[must_use]
    pub fn letters(self) -> [u8; Self::LETTERS] {
        let mut all = [b'-'; Self::LETTERS];
        let nominal: [u8; NOMINAL_LETTERS] = letters(u128::from(self.nominal_at.as_millis()));
        all[..TASK_LETTERS].copy_from_slice(&letters::<TASK_LETTERS>(self.task.0));
        all[TASK_LETTERS + 1..].copy_from_slice(&nominal);
        all
    }

    /// A hash of the fire and the attempt: always the same for the same attempt, and evenly
    /// distributed over different ones.
    #[must_use]
    pub fn entropy(self, attempt: crate::AttemptNo) -> u64 {
        let mut bytes = [0; 26];
        bytes[..16].copy_from_slice(&self.task.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.nominal_at.as_millis().to_be_bytes());
        // The lower half: a retry policy has far fewer attempts.
        bytes[24..].copy_from_slice(&attempt.get().to_be_bytes()[2..]);
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

impl fmt::Display for FireId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.letters()).expect("ASCII"))
    }
}

impl fmt::Debug for FireId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for FireId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (task, nominal) = text.split_once('-').ok_or(IdError::FireForm)?;
        let task = task.parse().map_err(|_| IdError::FireForm)?;
        let millis = read_letters(nominal, NOMINAL_LETTERS).ok_or(IdError::FireForm)?;
        let millis = i128::try_from(millis).map_err(|_| IdError::FireForm)?;
        let nominal_at = Timestamp::try_from_millis(millis).map_err(|_| IdError::FireForm)?;
        Ok(Self { task, nominal_at })
    }
}

/// Why a text or a number is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text or number is no task id.
    #[error("must be a task id: 26 lower-case letters and digits")]
    TaskForm,
    /// The text is no fire id.
    #[error("must be a fire id: a task id, a hyphen and 10 lower-case letters and digits")]
    FireForm,
}

/// Writes base 32, twelve letters at a time, because their sixty bits fit a register. Every
/// delivery and every answer carries an id, so this is hot.
#[expect(clippy::cast_possible_truncation, reason = "only the lower bits are used")]
fn letters<const COUNT: usize>(mut bits: u128) -> [u8; COUNT] {
    let mut letters = [0; COUNT];
    for twelve in letters.rchunks_mut(12) {
        let mut low = bits as u64;
        bits >>= 60;
        for letter in twelve.iter_mut().rev() {
            *letter = LETTERS[(low & 31) as usize];
            low >>= 5;
        }
    }
    letters
}

/// The value of each byte as a letter, or [`NO_LETTER`].
const VALUES: [u8; 256] = {
    let mut values = [NO_LETTER; 256];
    let mut value = 0u8;
    while (value as usize) < LETTERS.len() {
        values[LETTERS[value as usize] as usize] = value;
        value += 1;
    }
    values
};
const NO_LETTER: u8 = u8::MAX;

/// Reads base 32, twelve letters at a time. A cancel by id reads one for every task.
fn read_letters(text: &str, count: usize) -> Option<u128> {
    if text.len() != count {
        return None;
    }
    let mut bits: u128 = 0;
    for twelve in text.as_bytes().chunks(12) {
        let (mut low, mut seen) = (0, 0);
        for letter in twelve {
            let value = VALUES[usize::from(*letter)];
            seen |= value;
            low = low << 5 | u64::from(value & 31);
        }
        let length = 5 * u32::try_from(twelve.len()).ok()?;
        // Twenty-six letters hold 130 bits: a first letter above 7 does not fit.
        if seen == NO_LETTER || bits > u128::MAX >> length {
            return None;
        }
        bits = bits << length | u128::from(low);
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::AttemptNo;

    fn any_id() -> impl Strategy<Value = TaskId> {
        let due = 0..=Timestamp::MAX.as_millis();
        (due, 0..4096u16, 0..1u32 << 26, 0..1u64 << 42).prop_map(|(due, partition, epoch, seq)| {
            TaskId::new(
                Timestamp::from_millis(due),
                PartitionId::from_bits(partition),
                Epoch::from_bits(epoch),
                Sequence::new(seq).unwrap(),
            )
        })
    }

    #[test]
    fn the_text_of_an_id_never_changes() {
        let id = TaskId::new(
            Timestamp::from_millis(1_893_456_000_000),
            PartitionId::from_bits(7),
            Epoch::from_bits(3),
            Sequence::new(42).unwrap(),
        );
        assert_eq!(id.to_string(), "01q3dcbd0001r0000c0000001a");
        let fire = FireId { task: id, nominal_at: id.due() };
        assert_eq!(fire.to_string(), "01q3dcbd0001r0000c0000001a-01q3dcbd00");
    }

    #[test]
    fn text_that_is_no_id_is_refused() {
        for text in [
            "",
            "order-42",
            "01Q3DCBD0001R0000C0000001A",
            "01q3dcbd0001r0000c0000001",
            "01q3dcbd0001r0000c0000001u",
            "zzzzzzzzzzzzzzzzzzzzzzzzzz",
            "7zzzzzzzzzzzzzzzzzzzzzzzzz",
            "01q3dcbd0001r0000c000000é",
        ] {
            assert_eq!(text.parse::<TaskId>(), Err(IdError::TaskForm), "{text:?}");
            assert_eq!(text.parse::<FireId>(), Err(IdError::FireForm), "{text:?}");
        }
    }

    #[test]
    fn every_letter_is_read_at_every_place_and_no_other_byte_is() {
        let digits = *b"01q3dcbd0001r0000c0000001a";
        for place in 0..TASK_LETTERS {
            for byte in 0..128u8 {
                let mut text = digits;
                text[place] = byte;
                let text = str::from_utf8(&text).unwrap();
                let value = LETTERS.iter().position(|letter| *letter == byte);
                let fits = place > 0 || value.is_none_or(|value| value < 8);
                let bits = read_letters(text, TASK_LETTERS);
                let shift = 5 * (TASK_LETTERS - 1 - place);
                let got = bits.map(|bits| (bits >> shift & 31) as usize);
                assert_eq!(got, value.filter(|_| fits), "{text:?}");
                let read_back = bits.map(letters::<TASK_LETTERS>);
                assert!(read_back.is_none_or(|back| back == text.as_bytes()), "{text:?}");
            }
        }
    }

    #[test]
    fn a_sequence_does_not_wrap_around() {
        assert_eq!(Sequence::FIRST.next(), Sequence::new(1));
        assert_eq!(Sequence::MAX.next(), None);
    }

    #[test]
    fn entropy_depends_only_on_the_fire_and_the_attempt() {
        let task = TaskId::floor(Timestamp::from_millis(5));
        let fire = |millis| FireId { task, nominal_at: Timestamp::from_millis(millis) };
        let (first, second) = (AttemptNo::new(1), AttemptNo::new(2));
        assert_eq!(fire(1).entropy(first), fire(1).entropy(first));
        assert_ne!(fire(1).entropy(first), fire(1).entropy(second));
        assert_ne!(fire(1).entropy(first), fire(2).entropy(first));
    }

    proptest! {
        #[test]
        fn an_id_reads_back_and_keeps_its_parts(id in any_id(), nominal in 0..1u64 << 47) {
            prop_assert_eq!(id.to_string().parse::<TaskId>(), Ok(id));
            prop_assert_eq!(TaskId::try_from_u128(id.as_u128()), Ok(id));
            prop_assert_eq!(TaskId::new(id.due(), id.partition(), id.epoch(), id.sequence()), id);
            prop_assert!(TaskId::floor(id.due()) <= id);
            let fire = FireId { task: id, nominal_at: Timestamp::from_millis(nominal) };
            prop_assert_eq!(fire.to_string().parse::<FireId>(), Ok(fire));
        }

        #[test]
        fn ids_and_their_texts_sort_by_due_time(a in any_id(), b in any_id()) {
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
            if a.due() != b.due() {
                prop_assert_eq!(a.cmp(&b), a.due().cmp(&b.due()));
            }
        }
    }
}
