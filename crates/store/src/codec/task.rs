//! Tasks: whole, and the parts that are read alone.
//!
//! A task can be read as a whole, as a [`Summary`], or only its state. The head of a task, which a
//! lookup by key returns, has its own encoding.

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
/// No longer written: a manual fire, with the time at which the schedule resumes at the end.
const FORMAT_MANUAL: u8 = 2;
/// The progress of the task follows at the end. See `progress`.
const FORMAT_PROGRESS: u8 = 3;
/// The same, with the time of the last change before the progress.
const FORMAT_UPDATED: u8 = 4;

/// The part of a task that lookups, names and counts need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary<'a> {
    /// The namespace of the task.
    pub namespace: &'a str,
    /// The key of the task, if it has one.
    pub key: Option<&'a str>,
    /// The head of the task.
    pub head: Head,
}

/// Writes a whole task: id, `fire_at`, body.
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

/// Writes everything but id and `fire_at`.
pub fn put_body(out: &mut Vec<u8>, task: &Task) {
    let definition = &*task.definition;
    let flags = state_code(task.state) | flags_of(definition);
    let progress = progress_flags(task);
    let updated = task.updated_at != task.created_at;
    let format = match (updated, progress) {
        (true, _) => FORMAT_UPDATED,
        (false, 0) => FORMAT,
        (false, _) => FORMAT_PROGRESS,
    };
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
    if updated {
        put_timestamp(out, task.updated_at);
    }
    if updated || progress != 0 {
        put_progress(out, task, progress);
    }
}

/// Reads the summary of a task, and nothing further.
pub fn read_summary(id: TaskId, fire_at: Timestamp, body: &[u8]) -> Decoded<Summary<'_>> {
    Ok(read_front(id, fire_at, body)?.0)
}

/// Reads the state of a task, and nothing further.
pub fn read_state(body: &[u8]) -> Decoded<TaskState> {
    let mut reader = Reader::new(body);
    state_of(read_flags(&mut reader)? & FLAG_STATE)
}

/// Reads whether a task has a key, and nothing further.
pub fn read_named(body: &[u8]) -> Decoded<bool> {
    let mut reader = Reader::new(body);
    Ok(read_flags(&mut reader)? & FLAG_KEY != 0)
}

/// Reads a task from its id, its `fire_at` and its body, up to the end of the body.
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
    let definition = rest.with_front(namespace, key, head.schedule);
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
        Some(&FORMAT_UPDATED) => {
            task.updated_at = reader.timestamp()?;
            read_progress(&mut reader, &mut task)?;
        }
        _ => {}
    }
    reader.end()?;
    Ok(task)
}

fn read_flags(reader: &mut Reader<'_>) -> Decoded<u8> {
    match reader.byte()? {
        FORMAT | FORMAT_MANUAL | FORMAT_PROGRESS | FORMAT_UPDATED => reader.byte(),
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

/// Writes the head of a task.
pub fn put_head(out: &mut Vec<u8>, head: &Head) {
    out.extend_from_slice(&[FORMAT, state_code(head.state)]);
    put_task_id(out, head.id);
    put_timestamp(out, head.fire_at);
    put_timestamp(out, head.nominal_at);
    put_varint(out, head.version.get());
    put_schedule(out, &head.schedule);
}

/// Reads the head of a task.
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
