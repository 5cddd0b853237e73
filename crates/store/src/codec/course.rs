//! The course of a task: whatever of it is not as it is for a new task.

use punctual_core::{Occasion, OverlappingFire, Task};

use super::attempts::{put_attempts, read_attempts};
use super::bytes::{Reader, put_timestamp, put_varint, read_count};
use super::{CodecError, Result};

const COURSE_RESUMES: u8 = 0b0000_0001;
const COURSE_FIRES: u8 = 0b0000_0010;
const COURSE_ARMED: u8 = 0b0000_0100;
const COURSE_OVERLAPPING: u8 = 0b0000_1000;
/// Two bits for the occasion.
const COURSE_OCCASION_SHIFT: u8 = 4;
const COURSE_GIVEN: u8 = 0b0100_0000;
const COURSE_KNOWN: u8 = 0b0111_1111;

pub(super) fn course_bits(task: &Task) -> u8 {
    let mut bits = occasion_code(task.occasion) << COURSE_OCCASION_SHIFT;
    for (bit, set) in [
        (COURSE_RESUMES, task.resumes_at.is_some()),
        (COURSE_FIRES, task.fires != 1),
        (COURSE_ARMED, task.armed_at.is_some()),
        (COURSE_OVERLAPPING, !task.overlapping.is_empty()),
        (COURSE_GIVEN, task.given_at.is_some()),
    ] {
        bits |= if set { bit } else { 0 };
    }
    bits
}

pub(super) fn put_course(out: &mut Vec<u8>, task: &Task, bits: u8) {
    out.push(bits);
    if let Some(resumes_at) = task.resumes_at {
        put_timestamp(out, resumes_at);
    }
    if bits & COURSE_FIRES != 0 {
        put_varint(out, u64::from(task.fires));
    }
    if let Some(armed_at) = task.armed_at {
        put_timestamp(out, armed_at);
    }
    if let Some(given_at) = task.given_at {
        put_timestamp(out, given_at);
    }
    if bits & COURSE_OVERLAPPING != 0 {
        put_varint(out, task.overlapping.len() as u64);
        for overlapping in &task.overlapping {
            put_timestamp(out, overlapping.nominal_at);
            put_timestamp(out, overlapping.fire_at);
            out.push(occasion_code(overlapping.occasion));
            put_attempts(out, &overlapping.attempts);
        }
    }
}

pub(super) fn read_course(reader: &mut Reader<'_>, task: &mut Task) -> Result<()> {
    let bits = reader.byte()?;
    if bits & !COURSE_KNOWN != 0 {
        return Err(CodecError::Invalid("course"));
    }
    task.occasion = occasion_of(bits >> COURSE_OCCASION_SHIFT & 0b11)?;
    if bits & COURSE_RESUMES != 0 {
        task.resumes_at = Some(reader.timestamp()?);
    }
    if bits & COURSE_FIRES != 0 {
        task.fires = reader.small("fires")?;
    }
    if bits & COURSE_ARMED != 0 {
        task.armed_at = Some(reader.timestamp()?);
    }
    if bits & COURSE_GIVEN != 0 {
        task.given_at = Some(reader.timestamp()?);
    }
    if bits & COURSE_OVERLAPPING != 0 {
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

/// Why there is a fire, as a byte.
#[must_use]
pub const fn occasion_code(occasion: Occasion) -> u8 {
    match occasion {
        Occasion::Due => 0,
        Occasion::Manual => 1,
        Occasion::Return => 2,
    }
}

/// Why there is a fire, by its byte.
pub const fn occasion_of(code: u8) -> Result<Occasion> {
    Ok(match code {
        0 => Occasion::Due,
        1 => Occasion::Manual,
        2 => Occasion::Return,
        _ => return Err(CodecError::Invalid("occasion")),
    })
}
