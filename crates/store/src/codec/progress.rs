//! The progress of a task: the fields that differ from those of a new task.
//!
//! A byte of flags tells which fields follow. A task without progress has no such byte, and its
//! body has the first format.

use punctual_core::{Occasion, Origin, OverlappingFire, Redrive, Task};

use super::attempts::{put_attempts, put_first_number, read_attempts, read_first_number};
use super::bytes::{Reader, put_bytes, put_fire_id, put_timestamp, put_varint, read_count};
use super::names::read_key;
use super::{CodecError, Decoded};

const PROGRESS_RESUMES: u8 = 0b0000_0001;
const PROGRESS_FIRES: u8 = 0b0000_0010;
const PROGRESS_ARMED: u8 = 0b0000_0100;
const PROGRESS_OVERLAPPING: u8 = 0b0000_1000;
/// Two bits for the occasion start here.
const PROGRESS_OCCASION_SHIFT: u8 = 4;
const PROGRESS_GIVEN: u8 = 0b0100_0000;
/// The redrive follows at the very end.
const PROGRESS_REDRIVE: u8 = 0b1000_0000;
/// In a redrive: nothing follows, the fire of another task follows, or that and its key.
const ORIGIN_NONE: u8 = 0;
const ORIGIN: u8 = 1;
const ORIGIN_KEY: u8 = 2;

pub(super) fn progress_flags(task: &Task) -> u8 {
    let mut bits = occasion_code(task.occasion) << PROGRESS_OCCASION_SHIFT;
    for (bit, set) in [
        (PROGRESS_RESUMES, task.resumes_at.is_some()),
        (PROGRESS_FIRES, task.fires != 1),
        (PROGRESS_ARMED, task.armed_at.is_some()),
        (PROGRESS_OVERLAPPING, !task.overlapping.is_empty()),
        (PROGRESS_GIVEN, task.given_at.is_some()),
        (PROGRESS_REDRIVE, task.redrive.is_some()),
    ] {
        bits |= if set { bit } else { 0 };
    }
    bits
}

pub(super) fn put_progress(out: &mut Vec<u8>, task: &Task, bits: u8) {
    out.push(bits);
    if let Some(resumes_at) = task.resumes_at {
        put_timestamp(out, resumes_at);
    }
    if bits & PROGRESS_FIRES != 0 {
        put_varint(out, u64::from(task.fires));
    }
    if let Some(armed_at) = task.armed_at {
        put_timestamp(out, armed_at);
    }
    if let Some(given_at) = task.given_at {
        put_timestamp(out, given_at);
    }
    if bits & PROGRESS_OVERLAPPING != 0 {
        put_varint(out, task.overlapping.len() as u64);
        for overlapping in &task.overlapping {
            put_timestamp(out, overlapping.nominal_at);
            put_timestamp(out, overlapping.fire_at);
            out.push(occasion_code(overlapping.occasion));
            put_attempts(out, &overlapping.attempts);
        }
    }
    if let Some(redrive) = &task.redrive {
        put_first_number(out, &task.attempts);
        put_redrive(out, redrive);
    }
}

fn put_redrive(out: &mut Vec<u8>, Redrive { at, attempts_before, origin }: &Redrive) {
    put_timestamp(out, *at);
    put_varint(out, u64::from(*attempts_before));
    let Some(Origin { fire_id, key }) = origin else {
        return out.push(ORIGIN_NONE);
    };
    out.push(if key.is_some() { ORIGIN_KEY } else { ORIGIN });
    put_fire_id(out, *fire_id);
    if let Some(key) = key {
        put_bytes(out, key.as_str().as_bytes());
    }
}

fn read_redrive(reader: &mut Reader<'_>) -> Decoded<Redrive> {
    let at = reader.timestamp()?;
    let attempts_before = reader.small("attempts before a redrive")?;
    let origin = match reader.byte()? {
        ORIGIN_NONE => None,
        ORIGIN => Some(Origin { fire_id: reader.fire_id()?, key: None }),
        ORIGIN_KEY => {
            let fire_id = reader.fire_id()?;
            Some(Origin { fire_id, key: Some(read_key(reader.text()?)?) })
        }
        _ => return Err(CodecError::Invalid("redrive")),
    };
    Ok(Redrive { at, attempts_before, origin })
}

pub(super) fn read_progress(reader: &mut Reader<'_>, task: &mut Task) -> Decoded<()> {
    let bits = reader.byte()?;
    task.occasion = occasion_of(bits >> PROGRESS_OCCASION_SHIFT & 0b11)?;
    if bits & PROGRESS_RESUMES != 0 {
        task.resumes_at = Some(reader.timestamp()?);
    }
    if bits & PROGRESS_FIRES != 0 {
        task.fires = reader.small("fires")?;
    }
    if bits & PROGRESS_ARMED != 0 {
        task.armed_at = Some(reader.timestamp()?);
    }
    if bits & PROGRESS_GIVEN != 0 {
        task.given_at = Some(reader.timestamp()?);
    }
    if bits & PROGRESS_OVERLAPPING != 0 {
        for _ in 0..read_count(reader)? {
            task.overlapping.push(OverlappingFire {
                nominal_at: reader.timestamp()?,
                fire_at: reader.timestamp()?,
                occasion: occasion_of(reader.byte()?)?,
                attempts: read_attempts(reader)?,
            });
        }
    }
    if bits & PROGRESS_REDRIVE != 0 {
        read_first_number(reader, &mut task.attempts)?;
        task.redrive = Some(Box::new(read_redrive(reader)?));
    }
    Ok(())
}

/// Returns the code of an occasion.
#[must_use]
pub const fn occasion_code(occasion: Occasion) -> u8 {
    match occasion {
        Occasion::Due => 0,
        Occasion::Manual => 1,
        Occasion::Return => 2,
    }
}

/// Returns the occasion of a code.
pub const fn occasion_of(code: u8) -> Decoded<Occasion> {
    Ok(match code {
        0 => Occasion::Due,
        1 => Occasion::Manual,
        2 => Occasion::Return,
        _ => return Err(CodecError::Invalid("occasion")),
    })
}
