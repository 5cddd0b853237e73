//! The bytes of groups of dead letters. `letter_groups.lua` writes their counts; here are the group
//! that it is given, and the reading of what it wrote.

use punctual_core::{LetterGroup, Timestamp};
use punctual_store::codec::{CodecError, Decoded, Reader, put_bytes};
use punctual_store::{CountedGroup, GroupLetters};

use crate::format::codec::{self, FIRE_BYTES};

/// Writes what the letters of a group have in common.
pub(crate) fn put_group(out: &mut Vec<u8>, group: &LetterGroup) {
    put_bytes(out, group.reason.as_bytes());
    put_bytes(out, group.target.as_bytes());
}

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
        _ => {
            let mut reader = Reader::new(name);
            let (reason, target) = (reader.text()?.to_owned(), reader.text()?.to_owned());
            reader.end()?;
            LetterGroup { reason, target }
        }
    };
    let letters =
        GroupLetters { count, first_at: time(first_at)?, last_at: time(last_at)?, example };
    Ok(CountedGroup { group, letters })
}
