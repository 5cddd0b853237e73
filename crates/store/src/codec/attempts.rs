//! Attempts: when each was made, and its outcome.

use punctual_core::{AttemptRecord, Outcome, Reason};

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
    for _ in 0..count {
        attempts.push(AttemptRecord {
            fired_at: reader.timestamp()?,
            ended_at: reader.timestamp()?,
            outcome: read_outcome(reader)?,
        });
    }
    Ok(attempts)
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
