//! The progress of a task: the fields that differ from those of a new task.
//!
//! A byte of flags tells which fields follow. A task without progress has no such byte, and its
//! body has the first format.

use punctual_core::{Occasion, OverlappingFire, Task};

use super::attempts::{put_attempts, read_attempts};
use super::bytes::{Reader, put_timestamp, put_varint, read_count};
use super::{CodecError, Decoded};

const PROGRESS_RESUMES: u8 = 0b0000_0001;
const PROGRESS_FIRES: u8 = 0b0000_0010;
const PROGRESS_ARMED: u8 = 0b0000_0100;
const PROGRESS_OVERLAPPING: u8 = 0b0000_1000;
/// Two bits for the occasion start here.
const PROGRESS_OCCASION_SHIFT: u8 = 4;
const PROGRESS_GIVEN: u8 = 0b0100_0000;
const PROGRESS_KNOWN: u8 = 0b0111_1111;

pub(super) fn progress_flags(task: &Task) -> u8 {
    let mut bits = occasion_code(task.occasion) << PROGRESS_OCCASION_SHIFT;
    for (bit, set) in [
        (PROGRESS_RESUMES, task.resumes_at.is_some()),
        (PROGRESS_FIRES, task.fires != 1),
        (PROGRESS_ARMED, task.armed_at.is_some()),
        (PROGRESS_OVERLAPPING, !task.overlapping.is_empty()),
        (PROGRESS_GIVEN, task.given_at.is_some()),
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
}

pub(super) fn read_progress(reader: &mut Reader<'_>, task: &mut Task) -> Decoded<()> {
    let bits = reader.byte()?;
    if bits & !PROGRESS_KNOWN != 0 {
        return Err(CodecError::Invalid("progress"));
    }
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
