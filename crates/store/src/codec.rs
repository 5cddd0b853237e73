//! Bytes of tasks, records and letters: the only place that spells them, for every durable store.
//!
//! In: a value. Out: compact bytes, and back. What is read may come from a damaged disk or a foreign hand,
//! so it is parsed as untrusted: every read is a `Result`, nothing panics, nothing is allocated by a length that was
//! not checked against what is there. The first byte of a body is the format; an old format is read for ever.
//!
//! A task is `(id, fire_at, body)`, because stores keep the first two as their key and ask for the body only when
//! they need it. What touching, replacing and cancelling take stands first in the body, so that a
//! [`Summary`] does not read the rest.
//! Not here: frames, blocks and keys, which are each store's own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    Aside, AttemptRecord, Backoff, Cron, DeadLetter, DeadReason, Dst, Due, FireEnd, FireId,
    FireRecord, Gap, Guarantee, HttpTarget, Jitter, Labels, Method, Misfire, Namespace, NewTask,
    Occasion, Outcome, Overlap, Payload, Queue, Reason, RetryPolicy, Schedule, Series, SkipReason,
    Skipped, TIMEOUT_DEFAULT, Target, Task, TaskId, TaskKey, TaskState, Timestamp, Twice, Version,
    Zone,
};

use crate::query::Head;

/// The format of bodies.
const FORMAT: u8 = 1;
/// The same with the time at which the schedule goes on at its end.
const FORMAT_BESIDES: u8 = 2;
/// The same with the course of a task at its end: whatever of it is not as it is for a new task.
const FORMAT_COURSE: u8 = 3;
/// The format of records that say when the fire was due, and what was skipped with it.
const FORMAT_RECORD: u8 = 2;
const COURSE_RESUMES: u8 = 0b0000_0001;
const COURSE_FIRES: u8 = 0b0000_0010;
const COURSE_ARMED: u8 = 0b0000_0100;
const COURSE_ASIDE: u8 = 0b0000_1000;
/// Two bits for the occasion.
const COURSE_OCCASION_SHIFT: u8 = 4;
const COURSE_GIVEN: u8 = 0b0100_0000;
const COURSE_KNOWN: u8 = 0b0111_1111;

/// Names that an [`Interner`] shares, at most; beyond it they are copied.
const INTERNED_MAX: usize = 4096;

const FLAG_STATE: u8 = 0b0000_0111;
const FLAG_KEY: u8 = 0b0000_1000;
const FLAG_RETRY: u8 = 0b0001_0000;
const FLAG_TIMEOUT: u8 = 0b0010_0000;
const FLAG_EXPIRES: u8 = 0b0100_0000;
const FLAG_LABELS: u8 = 0b1000_0000;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// They end too early.
    #[error("the bytes end within {0}")]
    Short(&'static str),
    /// They hold what nobody writes.
    #[error("the bytes hold no valid {0}")]
    Invalid(&'static str),
    /// A newer program wrote them.
    #[error("the bytes are of format {0}, which this program does not know")]
    Format(u8),
}

type Result<T> = std::result::Result<T, CodecError>;

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

/// Shares names that come again and again, so that a loaded task does not allocate its namespace.
#[derive(Debug, Default)]
pub struct Interner {
    namespaces: Mutex<HashMap<Box<str>, Namespace>>,
    queues: Mutex<HashMap<Box<str>, Queue>>,
}

impl Interner {
    /// The namespace of this text.
    pub fn namespace(&self, text: &str) -> Result<Namespace> {
        intern(&self.namespaces, text, |text| {
            Namespace::from_stored(text).map_err(|_| CodecError::Invalid("namespace"))
        })
    }

    fn queue(&self, text: &str) -> Result<Queue> {
        intern(&self.queues, text, |text| {
            Queue::new(text).map_err(|_| CodecError::Invalid("queue"))
        })
    }
}

fn intern<T: Clone>(
    known: &Mutex<HashMap<Box<str>, T>>,
    text: &str,
    make: impl FnOnce(&str) -> Result<T>,
) -> Result<T> {
    // A cache is as good after a panic as before it.
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = known.get(text) {
        return Ok(name.clone());
    }
    let name = make(text)?;
    if known.len() < INTERNED_MAX {
        known.insert(text.into(), name.clone());
    }
    Ok(name)
}

/// Reads values off the front of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// At the start of them.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// What was not read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// That everything was read.
    pub const fn end(&self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(CodecError::Invalid("end")) }
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.bytes.split_first().ok_or(CodecError::Short("byte"))?;
        self.bytes = rest;
        Ok(*first)
    }

    /// A number of up to 64 bits, seven to the byte.
    pub fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError::Invalid("number"))
    }

    /// A number with a sign.
    pub fn signed(&mut self) -> Result<i64> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1).cast_signed() ^ -((zigzag & 1).cast_signed()))
    }

    /// A number that fits a smaller type.
    pub fn small<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T> {
        T::try_from(self.varint()?).map_err(|_| CodecError::Invalid(what))
    }

    /// So many bytes.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) =
            self.bytes.split_at_checked(length).ok_or(CodecError::Short("bytes"))?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Bytes with their length before them.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.small("length")?;
        self.take(length)
    }

    /// Text with its length before it.
    pub fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| CodecError::Invalid("text"))
    }

    /// An instant.
    pub fn timestamp(&mut self) -> Result<Timestamp> {
        Timestamp::try_from_millis(i128::from(self.varint()?))
            .map_err(|_| CodecError::Invalid("timestamp"))
    }

    /// A span of time.
    pub fn duration(&mut self) -> Result<Duration> {
        let secs = self.varint()?;
        let nanos: u32 = self.small("duration")?;
        if nanos >= 1_000_000_000 {
            return Err(CodecError::Invalid("duration"));
        }
        Ok(Duration::new(secs, nanos))
    }

    /// A task's id.
    pub fn task_id(&mut self) -> Result<TaskId> {
        let bytes = self.take(16)?.try_into().map_err(|_| CodecError::Short("id"))?;
        TaskId::try_from_u128(u128::from_be_bytes(bytes)).map_err(|_| CodecError::Invalid("id"))
    }

    /// A fire's id.
    pub fn fire_id(&mut self) -> Result<FireId> {
        Ok(FireId { task: self.task_id()?, nominal_at: self.timestamp()? })
    }
}

/// Writes a number of up to 64 bits.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).expect("seven bits"));
}

/// Writes a number with a sign.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, (value << 1).cast_unsigned() ^ (value >> 63).cast_unsigned());
}

/// Writes bytes with their length before them.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes an instant.
pub fn put_timestamp(out: &mut Vec<u8>, at: Timestamp) {
    put_varint(out, at.as_millis());
}

/// Writes a span of time.
pub fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    put_varint(out, duration.as_secs());
    put_varint(out, u64::from(duration.subsec_nanos()));
}

/// Writes a task's id, so that bytes sort as ids do.
pub fn put_task_id(out: &mut Vec<u8>, id: TaskId) {
    out.extend_from_slice(&id.as_u128().to_be_bytes());
}

/// Writes a fire's id.
pub fn put_fire_id(out: &mut Vec<u8>, fire_id: FireId) {
    put_task_id(out, fire_id.task);
    put_timestamp(out, fire_id.nominal_at);
}

/// Writes a whole task: id, time, body.
pub fn put_task(out: &mut Vec<u8>, task: &Task) {
    put_task_id(out, task.id);
    put_timestamp(out, task.fire_at);
    put_body(out, task);
}

/// Reads a whole task, up to the end of the bytes.
pub fn read_task(bytes: &[u8], interner: &Interner) -> Result<Task> {
    let mut reader = Reader::new(bytes);
    let id = reader.task_id()?;
    let fire_at = reader.timestamp()?;
    read_body(id, fire_at, reader.rest(), interner)
}

/// Writes everything of a task but its id and its time.
pub fn put_body(out: &mut Vec<u8>, task: &Task) {
    let definition = &*task.definition;
    let default_retry = definition.retry == RetryPolicy::default();
    let mut flags = state_code(task.state);
    for (flag, set) in [
        (FLAG_KEY, definition.key.is_some()),
        (FLAG_RETRY, !default_retry),
        (FLAG_TIMEOUT, definition.timeout != TIMEOUT_DEFAULT),
        (FLAG_EXPIRES, definition.expires_after.is_some()),
        (FLAG_LABELS, !definition.labels.is_empty()),
    ] {
        flags |= if set { flag } else { 0 };
    }
    let course = course_bits(task);
    let format = if course == 0 { FORMAT } else { FORMAT_COURSE };
    out.extend_from_slice(&[format, flags]);
    put_timestamp(out, task.nominal_at);
    put_varint(out, task.version.get());
    put_bytes(out, definition.namespace.as_str().as_bytes());
    if let Some(key) = &definition.key {
        put_bytes(out, key.as_str().as_bytes());
    }
    put_schedule(out, &definition.schedule);
    put_timestamp(out, task.created_at);
    put_target(out, &definition.target);
    put_payload(out, &definition.payload);
    out.push(guarantee_code(definition.guarantee));
    if !default_retry {
        put_retry(out, &definition.retry);
    }
    if flags & FLAG_TIMEOUT != 0 {
        put_duration(out, definition.timeout);
    }
    if let Some(expires_after) = definition.expires_after {
        put_duration(out, expires_after);
    }
    if flags & FLAG_LABELS != 0 {
        put_varint(out, definition.labels.iter().len() as u64);
        for (name, value) in definition.labels.iter() {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    }
    put_attempts(out, &task.attempts);
    if course != 0 {
        put_course(out, task, course);
    }
}

fn course_bits(task: &Task) -> u8 {
    let mut bits = occasion_code(task.occasion) << COURSE_OCCASION_SHIFT;
    for (bit, set) in [
        (COURSE_RESUMES, task.resumes_at.is_some()),
        (COURSE_FIRES, task.fires != 1),
        (COURSE_ARMED, task.armed_at.is_some()),
        (COURSE_ASIDE, !task.aside.is_empty()),
        (COURSE_GIVEN, task.given_at.is_some()),
    ] {
        bits |= if set { bit } else { 0 };
    }
    bits
}

fn put_course(out: &mut Vec<u8>, task: &Task, bits: u8) {
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
    if bits & COURSE_ASIDE != 0 {
        put_varint(out, task.aside.len() as u64);
        for aside in &task.aside {
            put_timestamp(out, aside.nominal_at);
            put_timestamp(out, aside.fire_at);
            out.push(occasion_code(aside.occasion));
            put_attempts(out, &aside.attempts);
        }
    }
}

fn read_course(reader: &mut Reader<'_>, task: &mut Task) -> Result<()> {
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
    if bits & COURSE_ASIDE != 0 {
        for _ in 0..read_count(reader)? {
            task.aside.push(Aside {
                nominal_at: reader.timestamp()?,
                fire_at: reader.timestamp()?,
                occasion: occasion_of(reader.byte()?)?,
                attempts: read_attempts(reader)?,
            });
        }
    }
    Ok(())
}

/// Reads what a name leads to, and nothing further.
pub fn read_summary(id: TaskId, fire_at: Timestamp, body: &[u8]) -> Result<Summary<'_>> {
    Ok(read_front(id, fire_at, body)?.0)
}

/// Reads how a task stands, and nothing further.
pub fn read_state(body: &[u8]) -> Result<TaskState> {
    let mut reader = Reader::new(body);
    state_of(read_flags(&mut reader)? & FLAG_STATE)
}

/// Reads whether a task has a name, and nothing further.
pub fn read_named(body: &[u8]) -> Result<bool> {
    let mut reader = Reader::new(body);
    Ok(read_flags(&mut reader)? & FLAG_KEY != 0)
}

/// Reads a task by its key and its body, up to the end of the body.
pub fn read_body(id: TaskId, fire_at: Timestamp, body: &[u8], interner: &Interner) -> Result<Task> {
    let (summary, flags, mut reader) = read_front(id, fire_at, body)?;
    let created_at = reader.timestamp()?;
    let target = read_target(&mut reader, interner)?;
    let payload = read_payload(&mut reader)?;
    let guarantee = guarantee_of(reader.byte()?)?;
    let retry = match flags & FLAG_RETRY {
        0 => RetryPolicy::default(),
        _ => read_retry(&mut reader)?,
    };
    let timeout = match flags & FLAG_TIMEOUT {
        0 => TIMEOUT_DEFAULT,
        _ => reader.duration()?,
    };
    let expires_after = match flags & FLAG_EXPIRES {
        0 => None,
        _ => Some(reader.duration()?),
    };
    let labels = match flags & FLAG_LABELS {
        0 => Labels::default(),
        _ => read_labels(&mut reader)?,
    };
    let attempts = read_attempts(&mut reader)?;
    let Summary { namespace, key, head } = summary;
    let definition = NewTask {
        namespace: interner.namespace(namespace)?,
        key: key.map(read_key).transpose()?,
        schedule: head.schedule,
        target,
        payload,
        guarantee,
        retry,
        timeout,
        expires_after,
        labels,
    };
    let mut task = Task {
        state: head.state,
        fire_at,
        nominal_at: head.nominal_at,
        attempts,
        ..Task::new(id, Arc::new(definition), created_at, head.version)
    };
    match body.first() {
        Some(&FORMAT_BESIDES) => {
            task.resumes_at = Some(reader.timestamp()?);
            task.occasion = Occasion::Besides;
        }
        Some(&FORMAT_COURSE) => read_course(&mut reader, &mut task)?,
        _ => {}
    }
    reader.end()?;
    Ok(task)
}

fn read_flags(reader: &mut Reader<'_>) -> Result<u8> {
    match reader.byte()? {
        FORMAT | FORMAT_BESIDES | FORMAT_COURSE => reader.byte(),
        other => Err(CodecError::Format(other)),
    }
}

fn read_front(
    id: TaskId,
    fire_at: Timestamp,
    body: &[u8],
) -> Result<(Summary<'_>, u8, Reader<'_>)> {
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

fn read_key(text: &str) -> Result<TaskKey> {
    TaskKey::new(text).map_err(|_| CodecError::Invalid("key"))
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
pub fn read_head(bytes: &[u8]) -> Result<Head> {
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

/// Writes how a fire ended.
pub fn put_record(out: &mut Vec<u8>, record: &FireRecord) {
    let skipped = match record.end {
        FireEnd::Skipped(skipped) => Some(skipped),
        _ => None,
    };
    let plain = skipped.is_none() && record.due_at == record.fire_id.nominal_at;
    out.push(if plain { FORMAT } else { FORMAT_RECORD });
    put_fire_id(out, record.fire_id);
    put_timestamp(out, record.ended_at);
    out.push(end_code(record.end));
    put_bytes(out, record.namespace.as_str().as_bytes());
    let key = record.key.as_ref().map_or("", TaskKey::as_str);
    put_bytes(out, key.as_bytes());
    put_attempts(out, &record.attempts);
    if !plain {
        put_timestamp(out, record.due_at);
    }
    if let Some(Skipped { fires, until, why }) = skipped {
        put_varint(out, u64::from(fires));
        put_timestamp(out, until);
        out.push(skip_code(why));
    }
}

/// Reads which fire a record is of and when it ended, and nothing further.
pub fn read_record_id(bytes: &[u8]) -> Result<(FireId, Timestamp)> {
    let mut reader = Reader::new(bytes);
    read_record_format(&mut reader)?;
    Ok((reader.fire_id()?, reader.timestamp()?))
}

/// Whether the record says when the fire was due.
fn read_record_format(reader: &mut Reader<'_>) -> Result<bool> {
    match reader.byte()? {
        FORMAT => Ok(false),
        FORMAT_RECORD => Ok(true),
        other => Err(CodecError::Format(other)),
    }
}

/// Reads whose fire a record is of, and nothing further.
pub fn read_record_name(bytes: &[u8]) -> Result<(FireId, &str, Option<&str>)> {
    let mut reader = Reader::new(bytes);
    read_record_format(&mut reader)?;
    let fire_id = reader.fire_id()?;
    reader.timestamp()?;
    reader.byte()?;
    let namespace = reader.text()?;
    let key = reader.text()?;
    Ok((fire_id, namespace, (!key.is_empty()).then_some(key)))
}

/// Reads how a fire ended.
pub fn read_record(bytes: &[u8], interner: &Interner) -> Result<FireRecord> {
    let mut reader = Reader::new(bytes);
    let says_due = read_record_format(&mut reader)?;
    let fire_id = reader.fire_id()?;
    let ended_at = reader.timestamp()?;
    let end = reader.byte()?;
    let namespace = interner.namespace(reader.text()?)?;
    let key = match reader.text()? {
        "" => None,
        text => Some(read_key(text)?),
    };
    let attempts = read_attempts(&mut reader)?;
    let due_at = if says_due { reader.timestamp()? } else { fire_id.nominal_at };
    let end = match end {
        END_SKIPPED if says_due => FireEnd::Skipped(Skipped {
            fires: reader.small("fires")?,
            until: reader.timestamp()?,
            why: skip_of(reader.byte()?)?,
        }),
        end => end_of(end)?,
    };
    reader.end()?;
    Ok(FireRecord { fire_id, namespace, key, ended_at, end, attempts, due_at })
}

/// Writes a dead letter.
pub fn put_letter(out: &mut Vec<u8>, letter: &DeadLetter) {
    out.push(FORMAT);
    put_timestamp(out, letter.died_at);
    out.push(dead_code(letter.reason));
    put_task(out, &letter.task);
}

/// Reads a dead letter.
pub fn read_letter(bytes: &[u8], interner: &Interner) -> Result<DeadLetter> {
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

fn put_schedule(out: &mut Vec<u8>, schedule: &Schedule) {
    match schedule {
        Schedule::Once(Due::At(at)) => {
            out.push(0);
            put_timestamp(out, *at);
        }
        Schedule::Once(Due::In(delay)) => {
            out.push(1);
            put_duration(out, *delay);
        }
        Schedule::Every { interval, series } if **series == Series::default() => {
            out.push(2);
            put_duration(out, *interval);
        }
        Schedule::Watch { within, postpone_max: None, on_return: false } => {
            out.push(3);
            put_duration(out, *within);
        }
        Schedule::Every { interval, series } => {
            out.push(4);
            put_duration(out, *interval);
            put_series(out, series);
        }
        Schedule::Cron { cron, series } => {
            out.push(5);
            put_bytes(out, cron.expression().as_bytes());
            put_bytes(out, cron.zone().name().as_bytes());
            out.push(dst_code(cron.dst()));
            put_series(out, series);
        }
        Schedule::Watch { within, postpone_max, on_return } => {
            out.extend_from_slice(&[6, u8::from(*on_return)]);
            put_duration(out, *within);
            put_duration(out, postpone_max.unwrap_or_default());
        }
    }
}

fn read_schedule(reader: &mut Reader<'_>) -> Result<Schedule> {
    Ok(match reader.byte()? {
        0 => Schedule::Once(Due::At(reader.timestamp()?)),
        1 => Schedule::Once(Due::In(reader.duration()?)),
        2 => Schedule::every(reader.duration()?),
        3 => Schedule::watch(reader.duration()?),
        4 => Schedule::Every { interval: reader.duration()?, series: read_series(reader)? },
        5 => {
            let (expression, zone) = (reader.text()?, reader.text()?);
            let dst = dst_of(reader.byte()?)?;
            Schedule::Cron { cron: cron(expression, zone, dst)?, series: read_series(reader)? }
        }
        6 => {
            let on_return = match reader.byte()? {
                0 => false,
                1 => true,
                _ => return Err(CodecError::Invalid("on_return")),
            };
            let within = reader.duration()?;
            let postpone_max = Some(reader.duration()?).filter(|max| !max.is_zero());
            Schedule::Watch { within, postpone_max, on_return }
        }
        _ => return Err(CodecError::Invalid("schedule")),
    })
}

/// Of all tasks with the same expression, zone and rule there is one copy: reading it is slow, and there may be a hundred thousand.
fn cron(expression: &str, zone: &str, dst: Dst) -> Result<Arc<Cron>> {
    type Known = HashMap<(String, String, u8), Arc<Cron>>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let name = (expression.to_owned(), zone.to_owned(), dst_code(dst));
    // A cache is as good after a panic as before it.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cron) = known.get(&name) {
        return Ok(Arc::clone(cron));
    }
    let zone = Zone::new(zone).map_err(|_| CodecError::Invalid("time zone"))?;
    let cron = Cron::new(expression, zone, dst).map_err(|_| CodecError::Invalid("cron"))?;
    let cron = Arc::new(cron);
    if known.len() < INTERNED_MAX {
        known.insert(name, Arc::clone(&cron));
    }
    Ok(cron)
}

fn put_series(out: &mut Vec<u8>, series: &Series) {
    let Series { starts_at, ends_at, count, misfire, overlap, jitter } = series;
    let set = |bit: u8, set: bool| if set { bit } else { 0 };
    let misfire = match misfire {
        Misfire::FireOnce => 0,
        Misfire::FireAll => 0b0100,
        Misfire::Skip => 0b1000,
    };
    let overlap = match overlap {
        Overlap::Allow => 0,
        Overlap::Skip => 0b01_0000,
        Overlap::QueueOne => 0b10_0000,
    };
    let times = set(0b01, starts_at.is_some()) | set(0b10, ends_at.is_some());
    out.push(times | misfire | overlap);
    for at in [starts_at, ends_at].into_iter().flatten() {
        put_timestamp(out, *at);
    }
    put_varint(out, u64::from(count.unwrap_or(0)));
    put_duration(out, *jitter);
}

fn read_series(reader: &mut Reader<'_>) -> Result<Arc<Series>> {
    let bits = reader.byte()?;
    let misfire = match bits & 0b1100 {
        0 => Misfire::FireOnce,
        0b0100 => Misfire::FireAll,
        0b1000 => Misfire::Skip,
        _ => return Err(CodecError::Invalid("misfire")),
    };
    let overlap = match bits >> 4 {
        0 => Overlap::Allow,
        1 => Overlap::Skip,
        2 => Overlap::QueueOne,
        _ => return Err(CodecError::Invalid("overlap")),
    };
    let mut at = |bit: u8| if bits & bit == 0 { Ok(None) } else { reader.timestamp().map(Some) };
    let (starts_at, ends_at) = (at(0b01)?, at(0b10)?);
    let count = Some(reader.small("count")?).filter(|count| *count != 0);
    let jitter = reader.duration()?;
    Ok(Arc::new(Series { starts_at, ends_at, count, misfire, overlap, jitter }))
}

const fn dst_code(dst: Dst) -> u8 {
    let gap = match dst.gap {
        None => 0,
        Some(Gap::After) => 1,
        Some(Gap::Skip) => 2,
    };
    let overlap = match dst.overlap {
        None => 0,
        Some(Twice::Once) => 1,
        Some(Twice::Both) => 2,
    };
    gap | overlap << 2
}

const fn dst_of(code: u8) -> Result<Dst> {
    let gap = match code & 0b11 {
        0 => None,
        1 => Some(Gap::After),
        2 => Some(Gap::Skip),
        _ => return Err(CodecError::Invalid("dst")),
    };
    let overlap = match code >> 2 {
        0 => None,
        1 => Some(Twice::Once),
        2 => Some(Twice::Both),
        _ => return Err(CodecError::Invalid("dst")),
    };
    Ok(Dst { gap, overlap })
}

fn put_target(out: &mut Vec<u8>, target: &Target) {
    match target {
        Target::Queue(queue) => {
            out.push(0);
            put_bytes(out, queue.as_str().as_bytes());
        }
        Target::Http(http) => {
            let method = Method::ALL.iter().position(|method| *method == http.method());
            let method = u8::try_from(method.unwrap_or_default()).unwrap_or_default();
            out.extend_from_slice(&[1, method]);
            put_bytes(out, http.url().as_bytes());
            put_varint(out, http.headers().len() as u64);
            for (name, value) in http.headers() {
                put_bytes(out, name.as_bytes());
                put_bytes(out, value.as_bytes());
            }
        }
    }
}

fn read_target(reader: &mut Reader<'_>, interner: &Interner) -> Result<Target> {
    match reader.byte()? {
        0 => Ok(Target::Queue(interner.queue(reader.text()?)?)),
        1 => {
            let method = Method::ALL.get(usize::from(reader.byte()?));
            let method = *method.ok_or(CodecError::Invalid("method"))?;
            let url = reader.text()?;
            let count = read_count(reader)?;
            let mut headers = Vec::with_capacity(count);
            for _ in 0..count {
                headers.push((reader.text()?.to_owned(), reader.text()?.to_owned()));
            }
            let target = HttpTarget::new(url, method, headers);
            Ok(Target::Http(target.map_err(|_| CodecError::Invalid("webhook"))?))
        }
        _ => Err(CodecError::Invalid("target")),
    }
}

fn put_payload(out: &mut Vec<u8>, payload: &Payload) {
    match payload {
        Payload::Empty => out.push(0),
        Payload::Json(bytes) => {
            out.push(1);
            put_bytes(out, bytes);
        }
        Payload::Binary { bytes, content_type } => {
            out.push(2);
            put_bytes(out, bytes);
            put_bytes(out, content_type.as_bytes());
        }
    }
}

/// Payloads are copied: a slice would keep a whole block in memory for as long as one task of it lives.
fn read_payload(reader: &mut Reader<'_>) -> Result<Payload> {
    Ok(match reader.byte()? {
        0 => Payload::Empty,
        1 => Payload::Json(Bytes::copy_from_slice(reader.bytes()?)),
        2 => Payload::Binary {
            bytes: Bytes::copy_from_slice(reader.bytes()?),
            content_type: reader.text()?.into(),
        },
        _ => return Err(CodecError::Invalid("payload")),
    })
}

fn put_retry(out: &mut Vec<u8>, retry: &RetryPolicy) {
    put_varint(out, u64::from(retry.attempts_max));
    put_varint(out, u64::from(retry.jitter.thousandths()));
    match &retry.backoff {
        Backoff::Fixed(pause) => {
            out.push(0);
            put_duration(out, *pause);
        }
        Backoff::Exponential { first, factor_thousandths, max } => {
            out.push(1);
            put_duration(out, *first);
            put_varint(out, u64::from(*factor_thousandths));
            put_duration(out, *max);
        }
        Backoff::List(pauses) => {
            out.push(2);
            put_varint(out, pauses.len() as u64);
            for pause in pauses {
                put_duration(out, *pause);
            }
        }
    }
}

fn read_retry(reader: &mut Reader<'_>) -> Result<RetryPolicy> {
    let attempts_max = reader.small("attempts_max")?;
    let jitter = Jitter::from_thousandths(reader.small("jitter")?);
    let jitter = jitter.map_err(|_| CodecError::Invalid("jitter"))?;
    let backoff = match reader.byte()? {
        0 => Backoff::Fixed(reader.duration()?),
        1 => Backoff::Exponential {
            first: reader.duration()?,
            factor_thousandths: reader.small("factor")?,
            max: reader.duration()?,
        },
        2 => {
            let count = read_count(reader)?;
            let mut pauses = Vec::with_capacity(count);
            for _ in 0..count {
                pauses.push(reader.duration()?);
            }
            Backoff::List(pauses)
        }
        _ => return Err(CodecError::Invalid("backoff")),
    };
    Ok(RetryPolicy { attempts_max, backoff, jitter })
}

fn read_labels(reader: &mut Reader<'_>) -> Result<Labels> {
    let mut labels = BTreeMap::new();
    for _ in 0..read_count(reader)? {
        labels.insert(reader.text()?.to_owned(), reader.text()?.to_owned());
    }
    Labels::new(labels).map_err(|_| CodecError::Invalid("labels"))
}

fn put_attempts(out: &mut Vec<u8>, attempts: &[AttemptRecord]) {
    put_varint(out, attempts.len() as u64);
    for attempt in attempts {
        put_timestamp(out, attempt.fired_at);
        put_timestamp(out, attempt.ended_at);
        match &attempt.outcome {
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
}

fn read_attempts(reader: &mut Reader<'_>) -> Result<Vec<AttemptRecord>> {
    let count = read_count(reader)?;
    let mut attempts = Vec::with_capacity(count);
    for _ in 0..count {
        attempts.push(AttemptRecord {
            fired_at: reader.timestamp()?,
            ended_at: reader.timestamp()?,
            outcome: read_outcome(reader)?,
        });
    }
    Ok(attempts)
}

fn read_outcome(reader: &mut Reader<'_>) -> Result<Outcome> {
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

/// How many of something follow. Each takes a byte at least, so more than the bytes that are left is a lie.
fn read_count(reader: &mut Reader<'_>) -> Result<usize> {
    let count = reader.small("count")?;
    if count > reader.rest().len() {
        return Err(CodecError::Short("list"));
    }
    Ok(count)
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

const fn state_of(code: u8) -> Result<TaskState> {
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

const fn guarantee_code(guarantee: Guarantee) -> u8 {
    match guarantee {
        Guarantee::AtMostOnce => 0,
        Guarantee::AtLeastOnce => 1,
        Guarantee::ExactlyOnce => 2,
    }
}

const fn guarantee_of(code: u8) -> Result<Guarantee> {
    Ok(match code {
        0 => Guarantee::AtMostOnce,
        1 => Guarantee::AtLeastOnce,
        2 => Guarantee::ExactlyOnce,
        _ => return Err(CodecError::Invalid("guarantee")),
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

const fn dead_of(code: u8) -> Result<DeadReason> {
    Ok(match code {
        0 => DeadReason::Exhausted,
        1 => DeadReason::Refused,
        2 => DeadReason::Expired,
        3 => DeadReason::Unknown,
        _ => return Err(CodecError::Invalid("reason")),
    })
}

const fn occasion_code(occasion: Occasion) -> u8 {
    match occasion {
        Occasion::Due => 0,
        Occasion::Besides => 1,
        Occasion::Return => 2,
    }
}

const fn occasion_of(code: u8) -> Result<Occasion> {
    Ok(match code {
        0 => Occasion::Due,
        1 => Occasion::Besides,
        2 => Occasion::Return,
        _ => return Err(CodecError::Invalid("occasion")),
    })
}

const fn skip_code(why: SkipReason) -> u8 {
    match why {
        SkipReason::Misfire => 0,
        SkipReason::Overlap => 1,
        SkipReason::Paused => 2,
    }
}

const fn skip_of(code: u8) -> Result<SkipReason> {
    Ok(match code {
        0 => SkipReason::Misfire,
        1 => SkipReason::Overlap,
        2 => SkipReason::Paused,
        _ => return Err(CodecError::Invalid("reason of a skip")),
    })
}

/// What follows it says how many, until when and why.
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

fn end_of(code: u8) -> Result<FireEnd> {
    Ok(match code {
        0 => FireEnd::Done,
        1 => FireEnd::Cancelled,
        2 => FireEnd::Replaced,
        16.. => FireEnd::Dead(dead_of(code - 16)?),
        _ => return Err(CodecError::Invalid("end")),
    })
}
