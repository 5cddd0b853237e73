//! Attempts: when each was made, and its outcome.
//!
//! Their numbers have no gaps. They begin at 1 unless the first number is written apart.

use punctual_core::{AttemptNo, AttemptRecord, Outcome, Reason};

use super::bytes::{Reader, put_bytes, put_duration, put_timestamp, put_varint, read_count};
use super::{CodecError, Decoded, PREALLOCATED_MAX};

pub(super) fn put_attempts(out: &mut Vec<u8>, attempts: &[AttemptRecord]) {
    put_varint(out, attempts.len() as u64);
    for attempt in attempts {
        put_timestamp(out, attempt.fired_at);
        put_timestamp(out, attempt.ended_at);
        put_outcome(out, &attempt.outcome);
    }
}

pub(super) fn read_attempts(reader: &mut Reader<'_>) -> Decoded<Vec<AttemptRecord>> {
    let count = read_count(reader)?;
    let mut attempts = Vec::with_capacity(count.min(PREALLOCATED_MAX));
    let mut number = AttemptNo::FIRST;
    for _ in 0..count {
        attempts.push(AttemptRecord {
            number,
            fired_at: reader.timestamp()?,
            ended_at: reader.timestamp()?,
            outcome: read_outcome(reader)?,
        });
        number = number.next();
    }
    Ok(attempts)
}

/// Returns the number of the first attempt; 1 without attempts.
pub(super) fn first_number(attempts: &[AttemptRecord]) -> AttemptNo {
    attempts.first().map_or(AttemptNo::FIRST, |first| first.number)
}

pub(super) fn put_first_number(out: &mut Vec<u8>, attempts: &[AttemptRecord]) {
    put_varint(out, u64::from(first_number(attempts).get()));
}

/// Reads the number of the first attempt, and numbers attempts that were read before from it.
pub(super) fn read_first_number(
    reader: &mut Reader<'_>,
    attempts: &mut [AttemptRecord],
) -> Decoded<()> {
    let mut number = AttemptNo::new(reader.small("number of an attempt")?);
    for attempt in attempts {
        attempt.number = number;
        number = number.next();
    }
    Ok(())
}

/// Writes the outcome of an attempt.
pub fn put_outcome(out: &mut Vec<u8>, outcome: &Outcome) {
    match outcome {
        Outcome::Acked => out.push(0),
        Outcome::Failed { reason, retry_in: None } => {
            out.push(1);
            put_bytes(out, reason.as_str().as_bytes());
        }
        Outcome::Failed { reason, retry_in: Some(retry_in) } => {
            out.push(2);
            put_bytes(out, reason.as_str().as_bytes());
            put_duration(out, *retry_in);
        }
        Outcome::Refused { reason } => {
            out.push(3);
            put_bytes(out, reason.as_str().as_bytes());
        }
        Outcome::Expired => out.push(4),
    }
}

/// Reads the outcome of an attempt.
pub fn read_outcome(reader: &mut Reader<'_>) -> Decoded<Outcome> {
    Ok(match reader.byte()? {
        0 => Outcome::Acked,
        1 => Outcome::Failed { reason: Reason::new(reader.text()?), retry_in: None },
        2 => Outcome::Failed {
            reason: Reason::new(reader.text()?),
            retry_in: Some(reader.duration()?),
        },
        3 => Outcome::Refused { reason: Reason::new(reader.text()?) },
        4 => Outcome::Expired,
        _ => return Err(CodecError::Invalid("outcome")),
    })
}
