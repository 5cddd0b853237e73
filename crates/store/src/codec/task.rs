//! Tasks, whole and in part.
//!
//! In: a task. Out: its key and its body; and back, as much of it as is wanted: the whole, a [`Summary`], its state, what a
//! name leads to.

use std::sync::Arc;

use punctual_core::{Occasion, Task, TaskId, TaskState, Timestamp, Version};

use super::attempts::{put_attempts, read_attempts};
use super::bytes::{Reader, put_bytes, put_task_id, put_timestamp, put_varint};
use super::definition::{FLAG_KEY, flags_of, put_rest, read_rest};
use super::names::{Interner, read_key};
use super::progress::{progress_flags, put_progress, read_progress};
use super::schedule::{put_schedule, read_schedule};
use super::{CodecError, Decoded, FORMAT};
use crate::query::Head;

const FLAG_STATE: u8 = 0b0000_0111;
/// The same with the time at which the schedule goes on at its end.
const FORMAT_MANUAL: u8 = 2;
/// The same with the course of a task at its end: whatever of it is not as it is for a new task.
const FORMAT_PROGRESS: u8 = 3;

/// What `find`, names and counts need of a task, without the rest of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary<'a> {
    /// Whose.
    pub namespace: &'a str,
    /// Its name, if it has one.
    pub key: Option<&'a str>,
    /// As much as a name leads to.
    pub head: Head,
}

/// Writes a whole task: id, time, body.
pub fn put_task(out: &mut Vec<u8>, task: &Task) {
    put_task_id(out, task.id);
    put_timestamp(out, task.fire_at);
    put_body(out, task);
}

/// Reads a whole task, up to the end of the bytes.
pub fn read_task(bytes: &[u8], interner: &Interner) -> Decoded<Task> {
    let mut reader = Reader::new(bytes);
    let id = reader.task_id()?;
    let fire_at = reader.timestamp()?;
    read_body(id, fire_at, reader.rest(), interner)
}

/// Writes everything of a task but its id and its time.
pub fn put_body(out: &mut Vec<u8>, task: &Task) {
    let definition = &*task.definition;
    let flags = state_code(task.state) | flags_of(definition);
    let progress = progress_flags(task);
    let format = if progress == 0 { FORMAT } else { FORMAT_PROGRESS };
    out.extend_from_slice(&[format, flags]);
    put_timestamp(out, task.nominal_at);
    put_varint(out, task.version.get());
    put_bytes(out, definition.namespace.as_str().as_bytes());
    if let Some(key) = &definition.key {
        put_bytes(out, key.as_str().as_bytes());
    }
    put_schedule(out, &definition.schedule);
    put_timestamp(out, task.created_at);
    put_rest(out, definition, flags);
    put_attempts(out, &task.attempts);
    if progress != 0 {
        put_progress(out, task, progress);
    }
}

/// Reads what a name leads to, and nothing further.
pub fn read_summary(id: TaskId, fire_at: Timestamp, body: &[u8]) -> Decoded<Summary<'_>> {
    Ok(read_front(id, fire_at, body)?.0)
}

/// Reads how a task stands, and nothing further.
pub fn read_state(body: &[u8]) -> Decoded<TaskState> {
    let mut reader = Reader::new(body);
    state_of(read_flags(&mut reader)? & FLAG_STATE)
}

/// Reads whether a task has a name, and nothing further.
pub fn read_named(body: &[u8]) -> Decoded<bool> {
    let mut reader = Reader::new(body);
    Ok(read_flags(&mut reader)? & FLAG_KEY != 0)
}

/// Reads a task by its key and its body, up to the end of the body.
pub fn read_body(
    id: TaskId,
    fire_at: Timestamp,
    body: &[u8],
    interner: &Interner,
) -> Decoded<Task> {
    let (summary, flags, mut reader) = read_front(id, fire_at, body)?;
    let created_at = reader.timestamp()?;
    let rest = read_rest(&mut reader, flags, interner)?;
    let attempts = read_attempts(&mut reader)?;
    let Summary { namespace, key, head } = summary;
    let namespace = interner.namespace(namespace)?;
    let key = key.map(read_key).transpose()?;
    let definition = rest.of(namespace, key, head.schedule);
    let mut task = Task {
        state: head.state,
        fire_at,
        nominal_at: head.nominal_at,
        attempts,
        ..Task::new(id, Arc::new(definition), created_at, head.version)
    };
    match body.first() {
        Some(&FORMAT_MANUAL) => {
            task.resumes_at = Some(reader.timestamp()?);
            task.occasion = Occasion::Manual;
        }
        Some(&FORMAT_PROGRESS) => read_progress(&mut reader, &mut task)?,
        _ => {}
    }
    reader.end()?;
    Ok(task)
}

fn read_flags(reader: &mut Reader<'_>) -> Decoded<u8> {
    match reader.byte()? {
        FORMAT | FORMAT_MANUAL | FORMAT_PROGRESS => reader.byte(),
        other => Err(CodecError::Format(other)),
    }
}

fn read_front(
    id: TaskId,
    fire_at: Timestamp,
    body: &[u8],
) -> Decoded<(Summary<'_>, u8, Reader<'_>)> {
    let mut reader = Reader::new(body);
    let flags = read_flags(&mut reader)?;
    let nominal_at = reader.timestamp()?;
    let version = Version::new(reader.varint()?);
    let namespace = reader.text()?;
    let key = match flags & FLAG_KEY {
        0 => None,
        _ => Some(reader.text()?),
    };
    let schedule = read_schedule(&mut reader)?;
    let head =
        Head { id, state: state_of(flags & FLAG_STATE)?, fire_at, nominal_at, version, schedule };
    let summary = Summary { namespace, key, head };
    Ok((summary, flags, reader))
}

/// Writes what a name leads to.
pub fn put_head(out: &mut Vec<u8>, head: &Head) {
    out.extend_from_slice(&[FORMAT, state_code(head.state)]);
    put_task_id(out, head.id);
    put_timestamp(out, head.fire_at);
    put_timestamp(out, head.nominal_at);
    put_varint(out, head.version.get());
    put_schedule(out, &head.schedule);
}

/// Reads what a name leads to.
pub fn read_head(bytes: &[u8]) -> Decoded<Head> {
    let mut reader = Reader::new(bytes);
    let state = state_of(read_flags(&mut reader)?)?;
    let head = Head {
        id: reader.task_id()?,
        state,
        fire_at: reader.timestamp()?,
        nominal_at: reader.timestamp()?,
        version: Version::new(reader.varint()?),
        schedule: read_schedule(&mut reader)?,
    };
    reader.end()?;
    Ok(head)
}

const fn state_code(state: TaskState) -> u8 {
    match state {
        TaskState::Scheduled => 0,
        TaskState::Firing => 1,
        TaskState::Paused => 2,
        TaskState::Done => 3,
        TaskState::Dead => 4,
        TaskState::Cancelled => 5,
    }
}

const fn state_of(code: u8) -> Decoded<TaskState> {
    Ok(match code {
        0 => TaskState::Scheduled,
        1 => TaskState::Firing,
        2 => TaskState::Paused,
        3 => TaskState::Done,
        4 => TaskState::Dead,
        5 => TaskState::Cancelled,
        _ => return Err(CodecError::Invalid("state")),
    })
}
