//! Definitions: what a caller asked for.
//!
//! A [`NewTask`] is encoded on its own, as brokers send it to each other, or as a part of a task. A
//! delay stays a delay: the owner of the partition turns it into a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    AnswerRules, Backoff, Callbacks, ConnectionName, ExpectedValue, FireId, GrpcTarget, Guarantee,
    HttpTarget, Jitter, Labels, MailTarget, MessageAddress, MessageOptions, MessageSystem, Method,
    MqttQos, Namespace, NewTask, Payload, RetryPolicy, Schedule, SinkAddress, SinkTarget, SqlCall,
    SqlParam, StatementName, TIMEOUT_DEFAULT, Target, TaskKey,
};

use super::bytes::{Reader, put_bytes, put_duration, put_fire_id, put_varint, read_count};
use super::names::{Interner, read_key};
use super::schedule::{put_schedule, read_schedule};
use super::{CodecError, Decoded, FORMAT, PREALLOCATED_MAX};

pub(super) const FLAG_KEY: u8 = 0b0000_1000;
const FLAG_RETRY: u8 = 0b0001_0000;
const FLAG_TIMEOUT: u8 = 0b0010_0000;
const FLAG_EXPIRES: u8 = 0b0100_0000;
const FLAG_LABELS: u8 = 0b1000_0000;
const FLAGS: u8 = FLAG_KEY | FLAG_RETRY | FLAG_TIMEOUT | FLAG_EXPIRES | FLAG_LABELS;

/// Writes a new task.
pub fn put_new_task(out: &mut Vec<u8>, new_task: &NewTask) {
    let flags = flags_of(new_task);
    out.extend_from_slice(&[FORMAT, flags]);
    put_bytes(out, new_task.namespace.as_str().as_bytes());
    if let Some(key) = &new_task.key {
        put_bytes(out, key.as_str().as_bytes());
    }
    put_schedule(out, &new_task.schedule);
    put_rest(out, new_task, flags);
}

/// Reads a new task, up to the end of the bytes. Does not check limits; see [`NewTask::check`].
pub fn read_new_task(bytes: &[u8], interner: &Interner) -> Decoded<NewTask> {
    let mut reader = Reader::new(bytes);
    match reader.byte()? {
        FORMAT => {}
        other => return Err(CodecError::Format(other)),
    }
    let flags = reader.byte()?;
    if flags & !FLAGS != 0 {
        return Err(CodecError::Invalid("flags"));
    }
    let namespace = interner.namespace(reader.text()?)?;
    let key = match flags & FLAG_KEY {
        0 => None,
        _ => Some(read_key(reader.text()?)?),
    };
    let schedule = read_schedule(&mut reader)?;
    let rest = read_rest(&mut reader, flags, interner)?;
    reader.end()?;
    Ok(rest.with_front(namespace, key, schedule))
}

/// Returns the flags of the fields that differ from their default.
pub(super) fn flags_of(definition: &NewTask) -> u8 {
    let mut flags = 0;
    for (flag, set) in [
        (FLAG_KEY, definition.key.is_some()),
        (FLAG_RETRY, definition.retry != RetryPolicy::default()),
        (FLAG_TIMEOUT, definition.timeout != TIMEOUT_DEFAULT),
        (FLAG_EXPIRES, definition.expires_after.is_some()),
        (FLAG_LABELS, !definition.labels.is_empty()),
    ] {
        flags |= if set { flag } else { 0 };
    }
    flags
}

/// Writes everything but namespace, key and schedule, which come earlier in the bytes.
pub(super) fn put_rest(out: &mut Vec<u8>, definition: &NewTask, flags: u8) {
    put_target(out, &definition.target);
    put_payload(out, &definition.payload);
    out.push(guarantee_code(definition.guarantee) | extra_bits(definition));
    if flags & FLAG_RETRY != 0 {
        put_retry(out, &definition.retry);
    }
    if flags & FLAG_TIMEOUT != 0 {
        put_duration(out, definition.timeout);
    }
    if let Some(expires_after) = definition.expires_after {
        put_duration(out, expires_after);
    }
    if flags & FLAG_LABELS != 0 {
        put_labels(out, &definition.labels);
    }
    put_extras(out, definition);
}

pub(super) fn put_labels(out: &mut Vec<u8>, labels: &Labels) {
    put_varint(out, labels.iter().len() as u64);
    for (name, value) in labels.iter() {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

/// In the byte of the guarantee: a target for done fires, one for dead fires, and the fire of a
/// callback follow at the end.
const EXTRA_ON_DONE: u8 = 0b1000_0000;
const EXTRA_ON_DEAD: u8 = 0b0100_0000;
const EXTRA_CALLBACK_OF: u8 = 0b0010_0000;
const EXTRAS: u8 = EXTRA_ON_DONE | EXTRA_ON_DEAD | EXTRA_CALLBACK_OF;

fn extra_bits(definition: &NewTask) -> u8 {
    let callbacks = definition.callbacks.as_deref();
    let mut bits = 0;
    for (bit, set) in [
        (EXTRA_ON_DONE, callbacks.is_some_and(|it| it.on_done.is_some())),
        (EXTRA_ON_DEAD, callbacks.is_some_and(|it| it.on_dead.is_some())),
        (EXTRA_CALLBACK_OF, definition.callback_of.is_some()),
    ] {
        bits |= if set { bit } else { 0 };
    }
    bits
}

fn put_extras(out: &mut Vec<u8>, definition: &NewTask) {
    if let Some(callbacks) = &definition.callbacks {
        for target in [&callbacks.on_done, &callbacks.on_dead].into_iter().flatten() {
            put_target(out, target);
        }
    }
    if let Some(fire_id) = definition.callback_of {
        put_fire_id(out, fire_id);
    }
}

type Extras = (Option<Arc<Callbacks>>, Option<FireId>);

fn read_extras(reader: &mut Reader<'_>, bits: u8, interner: &Interner) -> Decoded<Extras> {
    let mut target = |bit| match bits & bit {
        0 => Ok(None),
        _ => read_target(reader, interner).map(Some),
    };
    let callbacks = Callbacks::new(target(EXTRA_ON_DONE)?, target(EXTRA_ON_DEAD)?);
    let callback_of = match bits & EXTRA_CALLBACK_OF {
        0 => None,
        _ => Some(reader.fire_id()?),
    };
    Ok((callbacks, callback_of))
}

/// A definition without namespace, key and schedule.
pub(super) struct Rest {
    target: Target,
    payload: Payload,
    guarantee: Guarantee,
    retry: RetryPolicy,
    timeout: Duration,
    expires_after: Option<Duration>,
    labels: Labels,
    extras: Extras,
}

impl Rest {
    /// Adds the fields that come earlier in the bytes.
    pub(super) fn with_front(
        self,
        namespace: Namespace,
        key: Option<TaskKey>,
        schedule: Schedule,
    ) -> NewTask {
        let Self { target, payload, guarantee, retry, timeout, expires_after, labels, extras } =
            self;
        let (callbacks, callback_of) = extras;
        NewTask {
            namespace,
            key,
            schedule,
            target,
            payload,
            guarantee,
            retry,
            timeout,
            expires_after,
            labels,
            callbacks,
            callback_of,
        }
    }
}

pub(super) fn read_rest(reader: &mut Reader<'_>, flags: u8, interner: &Interner) -> Decoded<Rest> {
    let (target, payload) = (read_target(reader, interner)?, read_payload(reader)?);
    let guarantee = reader.byte()?;
    Ok(Rest {
        target,
        payload,
        guarantee: guarantee_of(guarantee & !EXTRAS)?,
        retry: match flags & FLAG_RETRY {
            0 => RetryPolicy::default(),
            _ => read_retry(reader)?,
        },
        timeout: match flags & FLAG_TIMEOUT {
            0 => TIMEOUT_DEFAULT,
            _ => reader.duration()?,
        },
        expires_after: match flags & FLAG_EXPIRES {
            0 => None,
            _ => Some(reader.duration()?),
        },
        labels: match flags & FLAG_LABELS {
            0 => Labels::default(),
            _ => read_labels(reader)?,
        },
        extras: read_extras(reader, guarantee & EXTRAS, interner)?,
    })
}

fn put_target(out: &mut Vec<u8>, target: &Target) {
    match target {
        Target::Queue(queue) => {
            out.push(TARGET_QUEUE);
            put_bytes(out, queue.as_str().as_bytes());
        }
        Target::Http(http) => {
            let method = Method::ALL.iter().position(|method| *method == http.method());
            let method = u8::try_from(method.unwrap_or_default()).unwrap_or_default();
            let code = if http.rules().is_some() { TARGET_HTTP_RULES } else { TARGET_HTTP };
            out.extend_from_slice(&[code, method]);
            put_bytes(out, http.url().as_bytes());
            put_varint(out, http.headers().len() as u64);
            for (name, value) in http.headers() {
                put_bytes(out, name.as_bytes());
                put_bytes(out, value.as_bytes());
            }
            if let Some(rules) = http.rules() {
                put_rules(out, rules);
            }
        }
        Target::Mail(mail) => {
            out.push(TARGET_MAIL);
            put_varint(out, mail.recipients().len() as u64);
            mail.recipients().iter().for_each(|address| put_bytes(out, address.as_bytes()));
            put_bytes(out, mail.subject().as_bytes());
        }
        Target::Sink(sink) => {
            out.push(TARGET_SINK);
            put_bytes(out, sink.connection.as_str().as_bytes());
            put_address(out, &sink.address);
        }
        Target::Grpc(grpc) => {
            out.push(TARGET_GRPC);
            put_bytes(out, grpc.url().as_bytes());
            put_bytes(out, grpc.method().as_bytes());
        }
    }
}

fn put_address(out: &mut Vec<u8>, address: &SinkAddress) {
    match address {
        SinkAddress::Sql(call) => {
            out.push(SINK_SQL);
            put_bytes(out, call.statement().as_str().as_bytes());
            put_varint(out, call.params().len() as u64);
            for SqlParam { name, value } in call.params() {
                put_bytes(out, name.as_bytes());
                put_bytes(out, value.as_bytes());
            }
        }
        SinkAddress::Message(message) => put_message(out, message),
    }
}

fn put_message(out: &mut Vec<u8>, message: &MessageAddress) {
    let system = MessageSystem::ALL.iter().position(|system| *system == message.system());
    let system = u8::try_from(system.unwrap_or_default()).unwrap_or_default();
    let MessageOptions { key, headers, qos, retain, stream_length } = message.options();
    out.push(SINK_MESSAGES + system);
    put_bytes(out, message.place().as_bytes());
    let flags = (u8::from(key.is_some()) * MESSAGE_HAS_KEY)
        | (u8::from(*qos == MqttQos::ExactlyOnce) * MESSAGE_EXACTLY_ONCE)
        | (u8::from(*retain) * MESSAGE_RETAINED)
        | (u8::from(stream_length.is_some()) * MESSAGE_HAS_LENGTH);
    out.push(flags);
    if let Some(key) = key {
        put_bytes(out, key.as_bytes());
    }
    if let Some(length) = stream_length {
        put_varint(out, *length);
    }
    put_varint(out, headers.len() as u64);
    for (name, value) in headers {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

fn read_message(reader: &mut Reader<'_>, code: u8) -> Decoded<MessageAddress> {
    let system = code.checked_sub(SINK_MESSAGES).map(usize::from);
    let system = system.and_then(|at| MessageSystem::ALL.get(at));
    let system = *system.ok_or(CodecError::Invalid("sink"))?;
    let place = reader.text()?.to_owned();
    let flags = reader.byte()?;
    let has = |flag: u8| flags & flag != 0;
    let key = has(MESSAGE_HAS_KEY).then(|| reader.text().map(str::to_owned)).transpose()?;
    let stream_length = has(MESSAGE_HAS_LENGTH).then(|| reader.varint()).transpose()?;
    let count = read_count(reader)?;
    let mut header = || Ok((reader.text()?.to_owned(), reader.text()?.to_owned()));
    let headers = (0..count).map(|_| header()).collect::<Decoded<Vec<_>>>()?;
    let qos = if has(MESSAGE_EXACTLY_ONCE) { MqttQos::ExactlyOnce } else { MqttQos::AtLeastOnce };
    let retain = has(MESSAGE_RETAINED);
    let options = MessageOptions { key, headers, qos, retain, stream_length };
    MessageAddress::new(system, &place, options).map_err(|_| CodecError::Invalid("sink"))
}

fn read_sink(reader: &mut Reader<'_>) -> Decoded<SinkTarget> {
    let invalid = |_| CodecError::Invalid("sink");
    let connection = ConnectionName::new(reader.text()?).map_err(invalid)?;
    let address = match reader.byte()? {
        SINK_SQL => {
            let statement = StatementName::new(reader.text()?).map_err(invalid)?;
            let count = read_count(reader)?;
            let mut param = || {
                let (name, value) = (reader.text()?.to_owned(), reader.text()?.to_owned());
                Ok(SqlParam { name, value })
            };
            let params = (0..count).map(|_| param()).collect::<Decoded<Vec<_>>>()?;
            SinkAddress::Sql(SqlCall::new(statement, params).map_err(invalid)?)
        }
        code => SinkAddress::Message(read_message(reader, code)?),
    };
    Ok(SinkTarget { connection, address })
}

fn put_rules(out: &mut Vec<u8>, rules: &AnswerRules) {
    for statuses in [rules.success_statuses(), rules.refuse_statuses()] {
        put_varint(out, statuses.len() as u64);
        statuses.iter().for_each(|status| put_varint(out, u64::from(*status)));
    }
    put_varint(out, rules.success_json().len() as u64);
    for ExpectedValue { pointer, value } in rules.success_json() {
        put_bytes(out, pointer.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

fn read_rules(reader: &mut Reader<'_>) -> Decoded<AnswerRules> {
    let mut statuses = || {
        let count = read_count(reader)?;
        (0..count).map(|_| reader.small("status")).collect::<Decoded<Vec<u16>>>()
    };
    let (success, refuse) = (statuses()?, statuses()?);
    let count = read_count(reader)?;
    let mut value = || {
        Ok(ExpectedValue { pointer: reader.text()?.to_owned(), value: reader.text()?.to_owned() })
    };
    let json = (0..count).map(|_| value()).collect::<Decoded<Vec<_>>>()?;
    AnswerRules::new(success, json, refuse).map_err(|_| CodecError::Invalid("answer rules"))
}

const TARGET_QUEUE: u8 = 0;
const TARGET_HTTP: u8 = 1;
/// A webhook, with its answer rules at the end.
const TARGET_HTTP_RULES: u8 = 2;
const TARGET_MAIL: u8 = 3;
/// A connection, then the kind of the address.
const TARGET_SINK: u8 = 4;
const SINK_SQL: u8 = 0;
/// The code of the first system of [`MessageSystem::ALL`]; the others follow.
const SINK_MESSAGES: u8 = 1;
const MESSAGE_HAS_KEY: u8 = 1;
const MESSAGE_EXACTLY_ONCE: u8 = 2;
const MESSAGE_RETAINED: u8 = 4;
const MESSAGE_HAS_LENGTH: u8 = 8;
const TARGET_GRPC: u8 = 5;

fn read_target(reader: &mut Reader<'_>, interner: &Interner) -> Decoded<Target> {
    match reader.byte()? {
        TARGET_QUEUE => Ok(Target::Queue(interner.queue(reader.text()?)?)),
        code @ (TARGET_HTTP | TARGET_HTTP_RULES) => {
            let method = Method::ALL.get(usize::from(reader.byte()?));
            let method = *method.ok_or(CodecError::Invalid("method"))?;
            let url = reader.text()?;
            let count = read_count(reader)?;
            let mut headers = Vec::with_capacity(count.min(PREALLOCATED_MAX));
            for _ in 0..count {
                headers.push((reader.text()?.to_owned(), reader.text()?.to_owned()));
            }
            let target = HttpTarget::new(url, method, headers);
            let target = target.map_err(|_| CodecError::Invalid("webhook"))?;
            let rules = match code {
                TARGET_HTTP_RULES => read_rules(reader)?,
                _ => AnswerRules::default(),
            };
            Ok(Target::Http(target.with_rules(rules)))
        }
        TARGET_MAIL => {
            let count = read_count(reader)?;
            let recipients = (0..count).map(|_| Ok(reader.text()?.to_owned()));
            let recipients = recipients.collect::<Decoded<Vec<String>>>()?;
            let mail = MailTarget::new(recipients, reader.text()?);
            Ok(Target::Mail(Box::new(mail.map_err(|_| CodecError::Invalid("mail"))?)))
        }
        TARGET_SINK => Ok(Target::Sink(Box::new(read_sink(reader)?))),
        TARGET_GRPC => {
            let grpc = GrpcTarget::new(reader.text()?, reader.text()?);
            Ok(Target::Grpc(Box::new(grpc.map_err(|_| CodecError::Invalid("grpc"))?)))
        }
        _ => Err(CodecError::Invalid("target")),
    }
}

/// Writes a payload.
pub fn put_payload(out: &mut Vec<u8>, payload: &Payload) {
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

/// Reads a payload. The bytes are copied: a slice would keep a whole block in memory as long as one
/// of its tasks lives.
pub fn read_payload(reader: &mut Reader<'_>) -> Decoded<Payload> {
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

fn read_retry(reader: &mut Reader<'_>) -> Decoded<RetryPolicy> {
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
            let mut pauses = Vec::with_capacity(count.min(PREALLOCATED_MAX));
            for _ in 0..count {
                pauses.push(reader.duration()?);
            }
            Backoff::List(pauses)
        }
        _ => return Err(CodecError::Invalid("backoff")),
    };
    Ok(RetryPolicy { attempts_max, backoff, jitter })
}

pub(super) fn read_labels(reader: &mut Reader<'_>) -> Decoded<Labels> {
    let mut labels = BTreeMap::new();
    for _ in 0..read_count(reader)? {
        labels.insert(reader.text()?.to_owned(), reader.text()?.to_owned());
    }
    Labels::new(labels).map_err(|_| CodecError::Invalid("labels"))
}

const fn guarantee_code(guarantee: Guarantee) -> u8 {
    match guarantee {
        Guarantee::AtMostOnce => 0,
        Guarantee::AtLeastOnce => 1,
        Guarantee::ExactlyOnce => 2,
    }
}

const fn guarantee_of(code: u8) -> Decoded<Guarantee> {
    Ok(match code {
        0 => Guarantee::AtMostOnce,
        1 => Guarantee::AtLeastOnce,
        2 => Guarantee::ExactlyOnce,
        _ => return Err(CodecError::Invalid("guarantee")),
    })
}
