//! Records of ended fires, and dead letters.

use punctual_core::{
    AttemptNo, DeadLetter, DeadReason, EndKind, FireEnd, FireId, FireRecord, Labels, Occasion,
    SkipReason, Skipped, TaskId, TaskKey, Timestamp,
};

use super::attempts::{
    first_number, put_attempts, put_first_number, read_attempts, read_first_number,
};
use super::bytes::{Reader, put_bytes, put_fire_id, put_task_id, put_timestamp, put_varint};
use super::definition::{put_labels, read_labels};
use super::names::{Interner, read_key};
use super::progress::{occasion_code, occasion_of};
use super::task::{put_task, read_task};
use super::{CodecError, Decoded, FORMAT};

/// The format of records with a time at which the fire was due, and with skipped fires.
const FORMAT_RECORD: u8 = 2;
/// The same with the task under which the fire was redriven, or that of the fire itself, after the
/// fire, and with the number of the first attempt.
const FORMAT_REDRIVEN: u8 = 3;
/// The same, with the occasion and the labels at the end.
const FORMAT_LABELLED: u8 = 4;

/// Writes the record of a fire.
pub fn put_record(out: &mut Vec<u8>, record: &FireRecord) {
    let skipped = match record.end {
        FireEnd::Skipped(skipped) => Some(skipped),
        _ => None,
    };
    let plain = skipped.is_none() && record.due_at == record.fire_id.nominal_at;
    let redriven =
        record.redriven_as.is_some() || first_number(&record.attempts) != AttemptNo::FIRST;
    let labelled = record.occasion != Occasion::Due || !record.labels.is_empty();
    let redriven = redriven || labelled;
    let plain = plain && !redriven;
    out.push(match (redriven, plain) {
        (true, _) if labelled => FORMAT_LABELLED,
        (true, _) => FORMAT_REDRIVEN,
        (false, true) => FORMAT,
        (false, false) => FORMAT_RECORD,
    });
    put_fire_id(out, record.fire_id);
    if redriven {
        put_task_id(out, record.task_id());
    }
    put_timestamp(out, record.ended_at);
    out.push(end_code(record.end));
    put_bytes(out, record.namespace.as_str().as_bytes());
    let key = record.key.as_ref().map_or("", TaskKey::as_str);
    put_bytes(out, key.as_bytes());
    put_attempts(out, &record.attempts);
    if redriven {
        put_first_number(out, &record.attempts);
    }
    if !plain {
        put_timestamp(out, record.due_at);
    }
    if let Some(Skipped { fires, until, why }) = skipped {
        put_varint(out, u64::from(fires));
        put_timestamp(out, until);
        out.push(skip_code(why));
    }
    if labelled {
        out.push(occasion_code(record.occasion));
        put_labels(out, &record.labels);
    }
}

/// Reads the fire and the end time of a record, and nothing further.
pub fn read_record_id(bytes: &[u8]) -> Decoded<(FireId, Timestamp)> {
    let mut reader = Reader::new(bytes);
    let front = read_front(&mut reader)?;
    Ok((front.fire_id, reader.timestamp()?))
}

/// The beginning of a record.
struct RecordFront {
    format: u8,
    fire_id: FireId,
    /// The task that the fire was a part of when it ended.
    task_id: TaskId,
}

fn read_front(reader: &mut Reader<'_>) -> Decoded<RecordFront> {
    let format = match reader.byte()? {
        format @ (FORMAT | FORMAT_RECORD | FORMAT_REDRIVEN | FORMAT_LABELLED) => format,
        other => return Err(CodecError::Format(other)),
    };
    let fire_id = reader.fire_id()?;
    let redriven = matches!(format, FORMAT_REDRIVEN | FORMAT_LABELLED);
    let task_id = if redriven { reader.task_id()? } else { fire_id.task };
    Ok(RecordFront { format, fire_id, task_id })
}

/// The part of a record that names its fire, its task and the task's key, and by which fires are
/// ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordName<'a> {
    /// The fire that ended.
    pub fire_id: FireId,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended.
    pub end: EndKind,
    /// The task that ended, if one did: see [`FireRecord::task_id`].
    pub task_id: TaskId,
    /// The namespace of the task.
    pub namespace: &'a str,
    /// The key of the task that the fire belongs to.
    pub key: Option<&'a str>,
}

/// Reads the names of a record, and nothing further.
pub fn read_record_name(bytes: &[u8]) -> Decoded<RecordName<'_>> {
    let mut reader = Reader::new(bytes);
    let RecordFront { fire_id, task_id, .. } = read_front(&mut reader)?;
    let ended_at = reader.timestamp()?;
    let end = match reader.byte()? {
        END_SKIPPED => EndKind::Skipped,
        end => end_of(end)?.kind(),
    };
    let namespace = reader.text()?;
    let key = Some(reader.text()?).filter(|key| !key.is_empty());
    Ok(RecordName { fire_id, ended_at, end, task_id, namespace, key })
}

/// Reads the record of a fire.
pub fn read_record(bytes: &[u8], interner: &Interner) -> Decoded<FireRecord> {
    let mut reader = Reader::new(bytes);
    let RecordFront { format, fire_id, task_id } = read_front(&mut reader)?;
    let has_due_at = format != FORMAT;
    let ended_at = reader.timestamp()?;
    let end = reader.byte()?;
    let namespace = interner.namespace(reader.text()?)?;
    let key = match reader.text()? {
        "" => None,
        text => Some(read_key(text)?),
    };
    let mut attempts = read_attempts(&mut reader)?;
    if matches!(format, FORMAT_REDRIVEN | FORMAT_LABELLED) {
        read_first_number(&mut reader, &mut attempts)?;
    }
    let due_at = if has_due_at { reader.timestamp()? } else { fire_id.nominal_at };
    let end = match end {
        END_SKIPPED if has_due_at => FireEnd::Skipped(Skipped {
            fires: reader.small("fires")?,
            until: reader.timestamp()?,
            why: skip_of(reader.byte()?)?,
        }),
        end => end_of(end)?,
    };
    let (occasion, labels) = match format {
        FORMAT_LABELLED => (occasion_of(reader.byte()?)?, read_labels(&mut reader)?),
        _ => (Occasion::Due, Labels::default()),
    };
    reader.end()?;
    let redriven_as = (task_id != fire_id.task).then_some(task_id);
    Ok(FireRecord {
        fire_id,
        redriven_as,
        namespace,
        key,
        ended_at,
        end,
        attempts,
        due_at,
        occasion,
        labels,
    })
}

/// Writes a dead letter.
pub fn put_letter(out: &mut Vec<u8>, letter: &DeadLetter) {
    out.push(FORMAT);
    put_timestamp(out, letter.died_at);
    out.push(dead_code(letter.reason));
    put_task(out, &letter.task);
}

/// Reads a dead letter.
pub fn read_letter(bytes: &[u8], interner: &Interner) -> Decoded<DeadLetter> {
    let mut reader = Reader::new(bytes);
    match reader.byte()? {
        FORMAT => {}
        other => return Err(CodecError::Format(other)),
    }
    Ok(DeadLetter {
        died_at: reader.timestamp()?,
        reason: dead_of(reader.byte()?)?,
        task: read_task(reader.rest(), interner)?,
    })
}

const fn dead_code(reason: DeadReason) -> u8 {
    match reason {
        DeadReason::Exhausted => 0,
        DeadReason::Refused => 1,
        DeadReason::Expired => 2,
        DeadReason::Unknown => 3,
    }
}

const fn dead_of(code: u8) -> Decoded<DeadReason> {
    Ok(match code {
        0 => DeadReason::Exhausted,
        1 => DeadReason::Refused,
        2 => DeadReason::Expired,
        3 => DeadReason::Unknown,
        _ => return Err(CodecError::Invalid("reason")),
    })
}

const fn skip_code(why: SkipReason) -> u8 {
    match why {
        SkipReason::Misfire => 0,
        SkipReason::Overlap => 1,
        SkipReason::Paused => 2,
    }
}

const fn skip_of(code: u8) -> Decoded<SkipReason> {
    Ok(match code {
        0 => SkipReason::Misfire,
        1 => SkipReason::Overlap,
        2 => SkipReason::Paused,
        _ => return Err(CodecError::Invalid("reason of a skip")),
    })
}

/// The number of skipped fires, their last time and the reason follow the record.
const END_SKIPPED: u8 = 3;

const fn end_code(end: FireEnd) -> u8 {
    match end {
        FireEnd::Done => 0,
        FireEnd::Cancelled => 1,
        FireEnd::Replaced => 2,
        FireEnd::Skipped(_) => END_SKIPPED,
        FireEnd::Dead(reason) => 16 + dead_code(reason),
    }
}

fn end_of(code: u8) -> Decoded<FireEnd> {
    Ok(match code {
        0 => FireEnd::Done,
        1 => FireEnd::Cancelled,
        2 => FireEnd::Replaced,
        16.. => FireEnd::Dead(dead_of(code - 16)?),
        _ => return Err(CodecError::Invalid("end")),
    })
}
