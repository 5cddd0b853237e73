//! The bytes of groups of dead letters: the group that a letter belongs to, and the counted groups
//! of a namespace.

use punctual_core::LetterGroup;

use crate::codec::{
    CodecError, Decoded, Reader, put_bytes, put_fire_id, put_timestamp, put_varint,
};
use crate::letter_groups::{CountedGroup, GroupLetters, LetterGroups};

/// The first format of counted groups.
const FORMAT: u8 = 1;

/// Writes what the letters of a group have in common.
pub fn put_letter_group(out: &mut Vec<u8>, group: &LetterGroup) {
    put_bytes(out, group.reason.as_bytes());
    put_bytes(out, group.target.as_bytes());
}

/// Reads the bytes of a group.
pub fn read_letter_group(bytes: &[u8]) -> Decoded<LetterGroup> {
    let mut reader = Reader::new(bytes);
    let group = group(&mut reader)?;
    reader.end()?;
    Ok(group)
}

fn group(reader: &mut Reader<'_>) -> Decoded<LetterGroup> {
    let [reason, target] = [reader.text()?.to_owned(), reader.text()?.to_owned()];
    Ok(LetterGroup { reason, target })
}

/// Writes a group and its letters.
pub fn put_counted_group(out: &mut Vec<u8>, group: &LetterGroup, letters: &GroupLetters) {
    put_letter_group(out, group);
    put_varint(out, letters.count);
    put_timestamp(out, letters.first_at);
    put_timestamp(out, letters.last_at);
    out.push(u8::from(letters.example.is_some()));
    if let Some(example) = letters.example {
        put_fire_id(out, example);
    }
}

/// Reads a group and its letters.
pub fn read_counted_group(reader: &mut Reader<'_>) -> Decoded<CountedGroup> {
    let group = group(reader)?;
    let (count, first_at, last_at) = (reader.varint()?, reader.timestamp()?, reader.timestamp()?);
    let example = (reader.byte()? != 0).then(|| reader.fire_id()).transpose()?;
    Ok(CountedGroup { group, letters: GroupLetters { count, first_at, last_at, example } })
}

/// Writes the counted groups of a namespace.
pub fn put_letter_groups(out: &mut Vec<u8>, groups: &LetterGroups) {
    out.push(FORMAT);
    for CountedGroup { group, letters } in groups.iter() {
        put_counted_group(out, &group, &letters);
    }
}

/// Reads the counted groups of a namespace, which are all that is left.
pub fn read_letter_groups(reader: &mut Reader<'_>) -> Decoded<LetterGroups> {
    match reader.byte()? {
        FORMAT => {}
        other => return Err(CodecError::Format(other)),
    }
    let mut groups = Vec::new();
    while !reader.rest().is_empty() {
        groups.push(read_counted_group(reader)?);
    }
    Ok(LetterGroups::from_stored(groups))
}
