//! Commands that are forwarded to the owner of their partition.

use std::sync::Arc;

use punctual_core::{DELAY_MAX, Due, NewTask, TaskKey, Version};
use punctual_engine::{
    COMMANDS_MAX, Command, Condition, Receipt, ScheduleCommand, StartState, Subject, TouchTo,
};
use punctual_store::codec::{
    CodecError, Interner, Reader, put_bytes, put_duration, put_fire_id, put_new_task, put_task_id,
    put_timestamp, put_varint, read_new_task,
};

use super::{Decoded, WireResult, read_list, read_namespace};

/// Bytes of the digest of a request: twice as many as the longest digest in use.
const DIGEST_BYTES_MAX: usize = 128;

const SCHEDULE: u8 = 0;
const CANCEL: u8 = 1;
const GET: u8 = 2;
const TOUCH: u8 = 3;
const PAUSE: u8 = 4;
const RESUME: u8 = 5;
const FIRE: u8 = 6;
const REDRIVE: u8 = 7;
const FORGET: u8 = 8;
const BIND: u8 = 9;

/// Writes one entry of a list of commands.
pub(crate) fn put_command(out: &mut Vec<u8>, command: &Command) {
    match command {
        Command::Schedule(order) => {
            out.push(SCHEDULE);
            put_schedule(out, order);
        }
        Command::Cancel(subject) => put_about(out, CANCEL, subject),
        Command::Get(subject) => put_about(out, GET, subject),
        Command::Touch(subject, push) => {
            put_about(out, TOUCH, subject);
            put_push(out, *push);
        }
        Command::Pause(subject) => put_about(out, PAUSE, subject),
        Command::Resume(subject) => put_about(out, RESUME, subject),
        Command::Fire(subject) => put_about(out, FIRE, subject),
        Command::Redrive { subject, fire_id } => {
            put_about(out, REDRIVE, subject);
            put_fire_id(out, *fire_id);
        }
        Command::DeleteLetter { namespace, fire_id } => {
            out.push(FORGET);
            put_bytes(out, namespace.as_str().as_bytes());
            put_fire_id(out, *fire_id);
        }
        Command::Bind(namespace, receipt) => {
            out.push(BIND);
            put_bytes(out, namespace.as_str().as_bytes());
            put_receipt(out, receipt);
        }
    }
}

/// Reads a list of commands.
pub(crate) fn read_commands(bytes: &[u8], interner: &Interner) -> WireResult<Vec<Command>> {
    read_list(bytes, COMMANDS_MAX, |reader| read_command(reader, interner))
}

fn read_command(reader: &mut Reader<'_>, interner: &Interner) -> Decoded<Command> {
    Ok(match reader.byte()? {
        SCHEDULE => Command::Schedule(read_schedule(reader, interner)?),
        CANCEL => Command::Cancel(read_subject(reader)?),
        GET => Command::Get(read_subject(reader)?),
        TOUCH => Command::Touch(read_subject(reader)?, read_push(reader)?),
        PAUSE => Command::Pause(read_subject(reader)?),
        RESUME => Command::Resume(read_subject(reader)?),
        FIRE => Command::Fire(read_subject(reader)?),
        REDRIVE => Command::Redrive { subject: read_subject(reader)?, fire_id: reader.fire_id()? },
        FORGET => {
            Command::DeleteLetter { namespace: read_namespace(reader)?, fire_id: reader.fire_id()? }
        }
        BIND => Command::Bind(read_namespace(reader)?, read_receipt(reader)?),
        _ => return Err(CodecError::Invalid("command")),
    })
}

fn put_about(out: &mut Vec<u8>, command: u8, subject: &Subject) {
    out.push(command);
    match subject {
        Subject::Key(namespace, key) => {
            out.push(0);
            put_bytes(out, namespace.as_str().as_bytes());
            put_bytes(out, key.as_str().as_bytes());
        }
        Subject::Id(namespace, id) => {
            out.push(1);
            put_bytes(out, namespace.as_str().as_bytes());
            put_task_id(out, *id);
        }
    }
}

fn read_subject(reader: &mut Reader<'_>) -> Decoded<Subject> {
    Ok(match reader.byte()? {
        0 => Subject::Key(read_namespace(reader)?, read_key(reader)?),
        1 => Subject::Id(read_namespace(reader)?, reader.task_id()?),
        _ => return Err(CodecError::Invalid("subject")),
    })
}

fn read_key(reader: &mut Reader<'_>) -> Decoded<TaskKey> {
    TaskKey::new(reader.text()?).map_err(|_| CodecError::Invalid("key"))
}

fn put_push(out: &mut Vec<u8>, push: TouchTo) {
    match push {
        TouchTo::Within => out.push(0),
        TouchTo::To(Due::At(at)) => {
            out.push(1);
            put_timestamp(out, at);
        }
        TouchTo::To(Due::In(delay)) => {
            out.push(2);
            put_duration(out, delay);
        }
    }
}

fn read_push(reader: &mut Reader<'_>) -> Decoded<TouchTo> {
    Ok(match reader.byte()? {
        0 => TouchTo::Within,
        1 => TouchTo::To(Due::At(reader.timestamp()?)),
        2 => match reader.duration()? {
            delay if delay <= DELAY_MAX => TouchTo::To(Due::In(delay)),
            _ => return Err(CodecError::Invalid("delay")),
        },
        _ => return Err(CodecError::Invalid("push")),
    })
}

fn put_schedule(out: &mut Vec<u8>, order: &ScheduleCommand) {
    let mut new_task = Vec::new();
    put_new_task(&mut new_task, &order.new_task);
    put_bytes(out, &new_task);
    match order.condition {
        Condition::Always => out.push(0),
        Condition::Absent => out.push(1),
        Condition::Version(version) => {
            out.push(2);
            put_varint(out, version.get());
        }
    }
    match &order.receipt {
        None => out.push(0),
        Some(receipt) => {
            out.push(1);
            put_receipt(out, receipt);
        }
    }
    out.push(match order.start {
        StartState::Scheduled => 0,
        StartState::Paused => 1,
    });
}

fn put_receipt(out: &mut Vec<u8>, Receipt { key, digest }: &Receipt) {
    put_bytes(out, key.as_str().as_bytes());
    put_bytes(out, digest.as_bytes());
}

fn read_schedule(reader: &mut Reader<'_>, interner: &Interner) -> Decoded<ScheduleCommand> {
    let new_task = read_new_task(reader.bytes()?, interner)?;
    // The peer has checked the task too, but its version may have other limits.
    let is_internal = new_task.namespace.is_of_receipts() || new_task.callback_of.is_some();
    if new_task.check().is_err() || is_internal {
        return Err(CodecError::Invalid("task"));
    }
    let new_task: Arc<NewTask> = new_task.into();
    let condition = match reader.byte()? {
        0 => Condition::Always,
        1 => Condition::Absent,
        2 => Condition::Version(Version::new(reader.varint()?)),
        _ => return Err(CodecError::Invalid("condition")),
    };
    let receipt = match reader.byte()? {
        0 => None,
        1 => Some(read_receipt(reader)?),
        _ => return Err(CodecError::Invalid("receipt")),
    };
    let start = match reader.byte()? {
        0 => StartState::Scheduled,
        1 => StartState::Paused,
        _ => return Err(CodecError::Invalid("start")),
    };
    Ok(ScheduleCommand { new_task, condition, receipt, start })
}

fn read_receipt(reader: &mut Reader<'_>) -> Decoded<Receipt> {
    Ok(Receipt { key: read_key(reader)?, digest: read_digest(reader)? })
}

fn read_digest(reader: &mut Reader<'_>) -> Decoded<String> {
    let digest = reader.text()?;
    if digest.len() > DIGEST_BYTES_MAX {
        return Err(CodecError::Invalid("digest"));
    }
    Ok(digest.to_owned())
}
