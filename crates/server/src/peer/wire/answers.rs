//! Replies of an owner to forwarded commands.
//!
//! They are sent in pieces, because the replies to a thousand short commands can be a thousand long
//! tasks.

use punctual_core::{AttemptNo, Task, Version};
use punctual_engine::{COMMANDS_MAX, Cancelled, EngineError, Replies, Reply, Scheduled};
use punctual_store::Resource;
use punctual_store::codec::{
    CodecError, Interner, Reader, put_bytes, put_task, put_timestamp, put_varint, read_task,
};

use super::{Decoded, Packed, WireResult, read_list};

const CREATED: u8 = 0;
const REPLACED: u8 = 1;
const CANCELLED: u8 = 2;
const CANCELLED_FIRING: u8 = 3;
const CANCELLED_FIRED: u8 = 4;
const TASK: u8 = 5;
const TOUCHED: u8 = 6;
const FORGOTTEN: u8 = 7;
const BOUND: u8 = 8;

const NOT_FOUND: u8 = 32;
const NO_LETTER: u8 = 33;
const EXISTS: u8 = 34;
const OTHER_VERSION: u8 = 35;
const OTHER_ORDER: u8 = 36;
const FIRING: u8 = 38;
const PAUSED: u8 = 39;
const NO_WATCH: u8 = 40;
const NO_TOUCH: u8 = 41;
const NEVER: u8 = 42;
const BUSY: u8 = 43;
const FULL_DISK: u8 = 44;
const STOPPED: u8 = 45;
const LOST: u8 = 46;
const AWAY: u8 = 47;
const FULL_MEMORY: u8 = 48;
const DAMAGED: u8 = 49;

type Answered = std::result::Result<Reply, EngineError>;

/// Encodes replies in pieces of about a megabyte, each when the iterator reaches it.
pub(crate) fn answer_pieces(answers: Replies) -> impl Iterator<Item = Vec<u8>> + Send {
    Packed { values: answers.into_iter(), put: put_answer }
}

/// Reads one piece.
pub(crate) fn read_answers(bytes: &[u8], interner: &Interner) -> WireResult<Replies> {
    read_list(bytes, COMMANDS_MAX, |reader| read_answer(reader, interner))
}

fn put_answer(out: &mut Vec<u8>, answer: &Answered) {
    match answer {
        Ok(Reply::Scheduled(Scheduled::Created(task))) => put_one(out, CREATED, task),
        Ok(Reply::Scheduled(Scheduled::Replaced(task))) => put_one(out, REPLACED, task),
        Ok(Reply::Cancelled(Cancelled::Cancelled)) => out.push(CANCELLED),
        Ok(Reply::Cancelled(Cancelled::Firing(attempt))) => {
            put_attempt(out, CANCELLED_FIRING, *attempt);
        }
        Ok(Reply::Cancelled(Cancelled::AlreadyFired(at))) => {
            out.push(CANCELLED_FIRED);
            put_timestamp(out, *at);
        }
        Ok(Reply::Task(task)) => put_one(out, TASK, task),
        Ok(Reply::Touched { fire_at, version }) => {
            out.push(TOUCHED);
            put_timestamp(out, *fire_at);
            put_varint(out, version.get());
        }
        Ok(Reply::LetterDeleted) => out.push(FORGOTTEN),
        Ok(Reply::Bound) => out.push(BOUND),
        Err(error) => put_error(out, error),
    }
}

fn put_error(out: &mut Vec<u8>, error: &EngineError) {
    match error {
        EngineError::NotFound => out.push(NOT_FOUND),
        EngineError::DeadLetterNotFound => out.push(NO_LETTER),
        EngineError::Exists(task) => put_one(out, EXISTS, task),
        EngineError::VersionMismatch(version) => {
            out.push(OTHER_VERSION);
            put_varint(out, version.get());
        }
        EngineError::IdempotencyConflict => out.push(OTHER_ORDER),
        EngineError::Firing(attempt) => put_attempt(out, FIRING, *attempt),
        EngineError::Paused => out.push(PAUSED),
        EngineError::NotAWatch => out.push(NO_WATCH),
        EngineError::NotTouchable => out.push(NO_TOUCH),
        EngineError::NeverFires => out.push(NEVER),
        EngineError::Busy => out.push(BUSY),
        EngineError::Full(Resource::Disk) => out.push(FULL_DISK),
        EngineError::Full(Resource::Memory) => out.push(FULL_MEMORY),
        EngineError::Damaged(damage) => {
            out.push(DAMAGED);
            put_bytes(out, damage.as_bytes());
        }
        EngineError::Stopped => out.push(STOPPED),
        EngineError::Lost => out.push(LOST),
        EngineError::StoreUnavailable => out.push(AWAY),
    }
}

fn read_answer(reader: &mut Reader<'_>, interner: &Interner) -> Decoded<Answered> {
    let answer = match reader.byte()? {
        CREATED => Reply::Scheduled(Scheduled::Created(read_one(reader, interner)?)),
        REPLACED => Reply::Scheduled(Scheduled::Replaced(read_one(reader, interner)?)),
        CANCELLED => Reply::Cancelled(Cancelled::Cancelled),
        CANCELLED_FIRING => Reply::Cancelled(Cancelled::Firing(read_attempt(reader)?)),
        CANCELLED_FIRED => Reply::Cancelled(Cancelled::AlreadyFired(reader.timestamp()?)),
        TASK => Reply::Task(read_one(reader, interner)?),
        TOUCHED => {
            Reply::Touched { fire_at: reader.timestamp()?, version: Version::new(reader.varint()?) }
        }
        FORGOTTEN => Reply::LetterDeleted,
        BOUND => Reply::Bound,
        error => return read_error(error, reader, interner).map(Err),
    };
    Ok(Ok(answer))
}

fn read_error(code: u8, reader: &mut Reader<'_>, interner: &Interner) -> Decoded<EngineError> {
    Ok(match code {
        NOT_FOUND => EngineError::NotFound,
        NO_LETTER => EngineError::DeadLetterNotFound,
        EXISTS => EngineError::Exists(Box::new(read_one(reader, interner)?)),
        OTHER_VERSION => EngineError::VersionMismatch(Version::new(reader.varint()?)),
        OTHER_ORDER => EngineError::IdempotencyConflict,
        FIRING => EngineError::Firing(read_attempt(reader)?),
        PAUSED => EngineError::Paused,
        NO_WATCH => EngineError::NotAWatch,
        NO_TOUCH => EngineError::NotTouchable,
        NEVER => EngineError::NeverFires,
        BUSY => EngineError::Busy,
        FULL_DISK => EngineError::Full(Resource::Disk),
        FULL_MEMORY => EngineError::Full(Resource::Memory),
        DAMAGED => EngineError::Damaged(reader.text()?.into()),
        STOPPED => EngineError::Stopped,
        AWAY => EngineError::StoreUnavailable,
        LOST => EngineError::Lost,
        _ => return Err(CodecError::Invalid("answer")),
    })
}

fn put_one(out: &mut Vec<u8>, code: u8, task: &Task) {
    out.push(code);
    let mut bytes = Vec::new();
    put_task(&mut bytes, task);
    put_bytes(out, &bytes);
}

fn read_one(reader: &mut Reader<'_>, interner: &Interner) -> Decoded<Task> {
    read_task(reader.bytes()?, interner)
}

fn put_attempt(out: &mut Vec<u8>, code: u8, attempt: AttemptNo) {
    out.push(code);
    put_varint(out, u64::from(attempt.get()));
}

fn read_attempt(reader: &mut Reader<'_>) -> Decoded<AttemptNo> {
    Ok(AttemptNo::new(reader.small("attempt")?))
}
