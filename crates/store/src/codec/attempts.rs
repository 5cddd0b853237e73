//! Attempts: when each was made, its outcome, and what the receiver answered.
//!
//! Their numbers have no gaps. They begin at 1 unless the first number is written apart. The code
//! of an outcome has a bit that says whether an answer follows it.

use punctual_core::{Answer, AttemptNo, AttemptRecord, AttemptResult, Outcome, Reason};

use super::bytes::{Reader, put_bytes, put_duration, put_timestamp, put_varint, read_count};
use super::{CodecError, Decoded, PREALLOCATED_MAX};

pub(super) fn put_attempts(out: &mut Vec<u8>, attempts: &[AttemptRecord]) {
    put_varint(out, attempts.len() as u64);
    for attempt in attempts {
        put_timestamp(out, attempt.fired_at);
        put_timestamp(out, attempt.ended_at);
        put_result(out, &attempt.outcome, attempt.answer.as_deref());
    }
}

pub(super) fn read_attempts(reader: &mut Reader<'_>) -> Decoded<Vec<AttemptRecord>> {
    let count = read_count(reader)?;
    let mut attempts = Vec::with_capacity(count.min(PREALLOCATED_MAX));
    let mut number = AttemptNo::FIRST;
    for _ in 0..count {
        let (fired_at, ended_at) = (reader.timestamp()?, reader.timestamp()?);
        let AttemptResult { outcome, answer } = read_result(reader)?;
        attempts.push(AttemptRecord { number, fired_at, ended_at, outcome, answer });
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

/// In the code of an outcome: an answer follows.
const HAS_ANSWER: u8 = 0b1000_0000;
/// In the flags of an answer.
const ANSWER_STATUS: u8 = 0b01;
const ANSWER_TRUNCATED: u8 = 0b10;

/// Writes the outcome of an attempt and what the receiver answered.
pub fn put_result(out: &mut Vec<u8>, outcome: &Outcome, answer: Option<&Answer>) {
    let flag = if answer.is_some() { HAS_ANSWER } else { 0 };
    match outcome {
        Outcome::Acked => out.push(flag),
        Outcome::Failed { reason, retry_in: None } => {
            out.push(1 | flag);
            put_bytes(out, reason.as_str().as_bytes());
        }
        Outcome::Failed { reason, retry_in: Some(retry_in) } => {
            out.push(2 | flag);
            put_bytes(out, reason.as_str().as_bytes());
            put_duration(out, *retry_in);
        }
        Outcome::Refused { reason } => {
            out.push(3 | flag);
            put_bytes(out, reason.as_str().as_bytes());
        }
        Outcome::Expired => out.push(4 | flag),
    }
    if let Some(answer) = answer {
        put_answer(out, answer);
    }
}

fn put_answer(out: &mut Vec<u8>, answer: &Answer) {
    let truncated = if answer.is_truncated() { ANSWER_TRUNCATED } else { 0 };
    let status = if answer.status().is_some() { ANSWER_STATUS } else { 0 };
    out.push(status | truncated);
    if let Some(status) = answer.status() {
        put_varint(out, u64::from(status));
    }
    put_bytes(out, answer.content_type().as_bytes());
    put_bytes(out, answer.body());
}

fn read_answer(reader: &mut Reader<'_>) -> Decoded<Answer> {
    let flags = reader.byte()?;
    if flags & !(ANSWER_STATUS | ANSWER_TRUNCATED) != 0 {
        return Err(CodecError::Invalid("answer"));
    }
    let status = match flags & ANSWER_STATUS {
        0 => None,
        _ => Some(reader.small("status")?),
    };
    let content_type = reader.text()?;
    let truncated = flags & ANSWER_TRUNCATED != 0;
    Ok(Answer::from_stored(status, content_type, reader.bytes()?, truncated))
}

/// Reads the outcome of an attempt and what the receiver answered.
pub fn read_result(reader: &mut Reader<'_>) -> Decoded<AttemptResult> {
    let code = reader.byte()?;
    let outcome = read_outcome(code & !HAS_ANSWER, reader)?;
    let answer = match code & HAS_ANSWER {
        0 => None,
        _ => Some(Box::new(read_answer(reader)?)),
    };
    Ok(AttemptResult { outcome, answer })
}

fn read_outcome(code: u8, reader: &mut Reader<'_>) -> Decoded<Outcome> {
    Ok(match code {
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
