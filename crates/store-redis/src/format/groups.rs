//! The bytes of groups of dead letters: reading what `letter_groups.lua` wrote.

use punctual_core::{LetterGroup, Timestamp};
use punctual_store::codec::{CodecError, Decoded, read_letter_group};
use punctual_store::{CountedGroup, GroupLetters};

use crate::format::codec::{self, FIRE_BYTES};

/// Reads a group with its counts: three numbers, each followed by a space, the fire of a letter,
/// and the group, which is empty for that of all others.
pub(crate) fn read_group(value: &[u8]) -> Decoded<CountedGroup> {
    let mut rest = value;
    let mut number = || -> Decoded<u64> {
        let end = rest.iter().position(|byte| *byte == b' ');
        let (digits, after) = rest.split_at(end.ok_or(CodecError::Short("group"))?);
        rest = &after[1..];
        let digits = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
        digits.ok_or(CodecError::Invalid("number of a group"))
    };
    let [count, first_at, last_at] = [number()?, number()?, number()?];
    let time = |millis: u64| {
        let at = Timestamp::try_from_millis(millis.into());
        at.map_err(|_| CodecError::Invalid("time of a group"))
    };
    let (fire, name) = rest.split_at_checked(FIRE_BYTES).ok_or(CodecError::Short("group"))?;
    let example = match fire.iter().all(|byte| *byte == 0) {
        true => None,
        false => Some(codec::read_fire(fire)?),
    };
    let group = match name {
        [] => LetterGroup::other(),
        name => read_letter_group(name)?,
    };
    let letters =
        GroupLetters { count, first_at: time(first_at)?, last_at: time(last_at)?, example };
    Ok(CountedGroup { group, letters })
}
