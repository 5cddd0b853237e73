//! A task in the file, and its conversion from and to `core`.
//!
//! Reading checks everything that the API checks: the file may have been edited.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use punctual_core::{
    AnswerRules, Backoff, Callbacks, ConnectionName, ExpectedValue, GrpcTarget, HttpTarget, Jitter,
    Labels, MailTarget, MessageAddress, MessageOptions, MessageSystem, Method, MqttQos, Namespace,
    NewTask, Origin, OverlappingFire, Payload, Queue, Redrive, RetryPolicy, SinkAddress,
    SinkTarget, SqlCall, SqlParam, StatementName, Target, Task, TaskKey, Version,
};
use serde::{Deserialize, Serialize};

use super::attempts::{ExportedAttempt, export_attempts, read_attempts};
use super::schedule::{ExportedSchedule, export_schedule, read_schedule};
use super::values::{DurationText, GuaranteeName, OccasionName, StateName, TimeText};

/// A live task with its full state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportedTask {
    pub(crate) id: String,
    pub(crate) namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    state: StateName,
    created_at: TimeText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    updated_at: Option<TimeText>,
    fire_at: TimeText,
    nominal_at: TimeText,
    version: u64,
    schedule: ExportedSchedule,
    target: ExportedTarget,
    payload: ExportedPayload,
    guarantee: GuaranteeName,
    retry: ExportedRetry,
    timeout: DurationText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_after: Option<DurationText>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attempts: Vec<ExportedAttempt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resumes_at: Option<TimeText>,
    occasion: OccasionName,
    fires: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given_at: Option<TimeText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    armed_at: Option<TimeText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    overlapping: Vec<ExportedOverlap>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    redrive: Option<ExportedRedrive>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on_done: Option<ExportedTarget>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    on_dead: Option<ExportedTarget>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    callback_of: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ExportedTarget {
    Queue(String),
    Http {
        url: String,
        method: String,
        headers: Vec<(String, String)>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rules: Option<ExportedRules>,
    },
    Mail {
        to: Vec<String>,
        subject: String,
    },
    Sql {
        connection: String,
        statement: String,
        /// The name of a parameter and its value, as JSON text.
        params: Vec<(String, String)>,
    },
    Message {
        connection: String,
        /// As the field of a task names it.
        system: String,
        place: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        headers: Vec<(String, String)>,
        /// The level of MQTT, if it is not the default one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qos: Option<u8>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        retain: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stream_length: Option<u64>,
    },
    Grpc {
        url: String,
        method: String,
    },
}

/// Which answers of a webhook are a success or a refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedRules {
    success_statuses: Vec<u16>,
    /// A JSON pointer and the value that is expected there, as JSON text.
    success_json: Vec<(String, String)>,
    refuse_statuses: Vec<u16>,
}

fn export_target(target: &Target) -> ExportedTarget {
    match target {
        Target::Queue(queue) => ExportedTarget::Queue(queue.as_str().to_owned()),
        Target::Http(http) => ExportedTarget::Http {
            url: http.url().to_owned(),
            method: http.method().as_str().to_owned(),
            headers: http.headers().to_vec(),
            rules: http.rules().map(export_rules),
        },
        Target::Mail(mail) => ExportedTarget::Mail {
            to: mail.recipients().to_vec(),
            subject: mail.subject().to_owned(),
        },
        Target::Sink(sink) => export_sink(sink),
        Target::Grpc(grpc) => {
            ExportedTarget::Grpc { url: grpc.url().to_owned(), method: grpc.method().to_owned() }
        }
    }
}

fn export_sink(sink: &SinkTarget) -> ExportedTarget {
    let connection = sink.connection.as_str().to_owned();
    match &sink.address {
        SinkAddress::Sql(call) => {
            let params = call.params().iter().cloned();
            ExportedTarget::Sql {
                connection,
                statement: call.statement().as_str().to_owned(),
                params: params.map(|param| (param.name, param.value)).collect(),
            }
        }
        SinkAddress::Message(message) => {
            let MessageOptions { key, headers, qos, retain, stream_length } =
                message.options().clone();
            ExportedTarget::Message {
                connection,
                system: message.system().field().to_owned(),
                place: message.place().to_owned(),
                key,
                headers,
                qos: (qos != MqttQos::default()).then(|| qos.level()),
                retain,
                stream_length,
            }
        }
    }
}

fn export_rules(rules: &AnswerRules) -> ExportedRules {
    let json = rules.success_json().iter();
    ExportedRules {
        success_statuses: rules.success_statuses().to_vec(),
        success_json: json.map(|it| (it.pointer.clone(), it.value.clone())).collect(),
        refuse_statuses: rules.refuse_statuses().to_vec(),
    }
}

fn read_target(exported: ExportedTarget) -> anyhow::Result<Target> {
    Ok(match exported {
        ExportedTarget::Queue(queue) => Target::Queue(Queue::new(&queue)?),
        ExportedTarget::Mail { to, subject } => {
            Target::Mail(Box::new(MailTarget::new(to, &subject)?))
        }
        ExportedTarget::Sql { connection, statement, params } => {
            let params = params.into_iter().map(|(name, value)| SqlParam { name, value });
            let call = SqlCall::new(StatementName::new(&statement)?, params.collect())?;
            let connection = ConnectionName::new(&connection)?;
            Target::Sink(Box::new(SinkTarget { connection, address: SinkAddress::Sql(call) }))
        }
        ExportedTarget::Message {
            connection,
            system,
            place,
            key,
            headers,
            qos,
            retain,
            stream_length,
        } => {
            let known = MessageSystem::ALL.into_iter().find(|known| known.field() == system);
            let system = known.ok_or_else(|| anyhow!("{system:?} is not a system of messages"))?;
            let level = |level| MqttQos::from_level(u64::from(level));
            let qos = qos.map_or(Ok(MqttQos::default()), level)?;
            let options = MessageOptions { key, headers, qos, retain, stream_length };
            let address = SinkAddress::Message(MessageAddress::new(system, &place, options)?);
            let connection = ConnectionName::new(&connection)?;
            Target::Sink(Box::new(SinkTarget { connection, address }))
        }
        ExportedTarget::Grpc { url, method } => {
            Target::Grpc(Box::new(GrpcTarget::new(&url, &method)?))
        }
        ExportedTarget::Http { url, method, headers, rules } => {
            let target = HttpTarget::new(&url, Method::parse(&method)?, headers)?;
            Target::Http(target.with_rules(rules.map_or(Ok(AnswerRules::default()), read_rules)?))
        }
    })
}

fn read_rules(exported: ExportedRules) -> anyhow::Result<AnswerRules> {
    let json = exported.success_json.into_iter();
    let json = json.map(|(pointer, value)| ExpectedValue { pointer, value }).collect();
    Ok(AnswerRules::new(exported.success_statuses, json, exported.refuse_statuses)?)
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ExportedPayload {
    Empty,
    Json { base64: String },
    Binary { base64: String, content_type: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedRetry {
    attempts_max: u16,
    backoff: ExportedBackoff,
    jitter_thousandths: u16,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ExportedBackoff {
    Fixed(DurationText),
    Exponential { first: DurationText, factor_thousandths: u32, max: DurationText },
    List(Vec<DurationText>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedOverlap {
    nominal_at: TimeText,
    fire_at: TimeText,
    occasion: OccasionName,
    attempts: Vec<ExportedAttempt>,
}

/// The last redrive of the current fire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedRedrive {
    at: TimeText,
    attempts_before: u32,
    /// The fire, if it belongs to another task, and the key of that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fire_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

pub(crate) fn export_task(task: &Task) -> ExportedTask {
    let definition = &*task.definition;
    let callback = |target: fn(&Callbacks) -> Option<&Target>| {
        definition.callbacks.as_deref().and_then(target).map(export_target)
    };
    ExportedTask {
        id: task.id.to_string(),
        namespace: definition.namespace.as_str().to_owned(),
        key: definition.key.as_ref().map(|key| key.as_str().to_owned()),
        state: task.state.into(),
        created_at: TimeText(task.created_at),
        updated_at: (task.updated_at != task.created_at).then_some(TimeText(task.updated_at)),
        fire_at: TimeText(task.fire_at),
        nominal_at: TimeText(task.nominal_at),
        version: task.version.get(),
        schedule: export_schedule(&definition.schedule),
        target: export_target(&definition.target),
        payload: match &definition.payload {
            Payload::Empty => ExportedPayload::Empty,
            Payload::Json(bytes) => ExportedPayload::Json { base64: STANDARD.encode(bytes) },
            Payload::Binary { bytes, content_type } => ExportedPayload::Binary {
                base64: STANDARD.encode(bytes),
                content_type: content_type.to_string(),
            },
        },
        guarantee: definition.guarantee.into(),
        retry: export_retry(&definition.retry),
        timeout: DurationText(definition.timeout),
        expires_after: definition.expires_after.map(DurationText),
        labels: definition
            .labels
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        attempts: export_attempts(&task.attempts),
        resumes_at: task.resumes_at.map(TimeText),
        occasion: task.occasion.into(),
        fires: task.fires,
        given_at: task.given_at.map(TimeText),
        armed_at: task.armed_at.map(TimeText),
        overlapping: task
            .overlapping
            .iter()
            .map(|overlapping| ExportedOverlap {
                nominal_at: TimeText(overlapping.nominal_at),
                fire_at: TimeText(overlapping.fire_at),
                occasion: overlapping.occasion.into(),
                attempts: export_attempts(&overlapping.attempts),
            })
            .collect(),
        redrive: task.redrive.as_deref().map(export_redrive),
        on_done: callback(|callbacks| callbacks.on_done.as_ref()),
        on_dead: callback(|callbacks| callbacks.on_dead.as_ref()),
        callback_of: definition.callback_of.map(|fire_id| fire_id.to_string()),
    }
}

fn export_redrive(Redrive { at, attempts_before, origin }: &Redrive) -> ExportedRedrive {
    let key = origin.as_ref().and_then(|origin| origin.key.as_ref());
    ExportedRedrive {
        at: TimeText(*at),
        attempts_before: *attempts_before,
        fire_id: origin.as_ref().map(|origin| origin.fire_id.to_string()),
        key: key.map(|key| key.as_str().to_owned()),
    }
}

fn read_redrive(exported: ExportedRedrive) -> anyhow::Result<Redrive> {
    let fire_id = exported.fire_id.map(|text| text.parse());
    let fire_id = fire_id.transpose().map_err(|error| anyhow!("redrive.fire_id: {error}"))?;
    let key = exported.key.as_deref().map(TaskKey::new).transpose()?;
    Ok(Redrive {
        at: exported.at.0,
        attempts_before: exported.attempts_before,
        origin: fire_id.map(|fire_id| Origin { fire_id, key }),
    })
}

pub(crate) fn read_task(exported: ExportedTask) -> anyhow::Result<Task> {
    let callback_of = exported.callback_of.map(|text| text.parse()).transpose();
    let definition = NewTask {
        namespace: Namespace::from_stored(&exported.namespace)?,
        key: exported.key.as_deref().map(TaskKey::new).transpose()?,
        schedule: read_schedule(exported.schedule)?,
        target: read_target(exported.target)?,
        payload: match exported.payload {
            ExportedPayload::Empty => Payload::Empty,
            ExportedPayload::Json { base64 } => Payload::Json(read_base64(&base64)?),
            ExportedPayload::Binary { base64, content_type } => {
                Payload::Binary { bytes: read_base64(&base64)?, content_type: content_type.into() }
            }
        },
        guarantee: exported.guarantee.into(),
        retry: read_retry(exported.retry)?,
        timeout: exported.timeout.0,
        expires_after: exported.expires_after.map(|span| span.0),
        labels: Labels::new(exported.labels)?,
        callbacks: Callbacks::new(
            exported.on_done.map(read_target).transpose()?,
            exported.on_dead.map(read_target).transpose()?,
        ),
        callback_of: callback_of.map_err(|error| anyhow!("callback_of: {error}"))?,
    };
    definition.check()?;
    let id = exported.id.parse().map_err(|error| anyhow!("id: {error}"))?;
    let version = Version::new(exported.version);
    Ok(Task {
        state: exported.state.into(),
        fire_at: exported.fire_at.0,
        nominal_at: exported.nominal_at.0,
        updated_at: exported.updated_at.unwrap_or(exported.created_at).0,
        attempts: read_attempts(exported.attempts)?,
        resumes_at: exported.resumes_at.map(|at| at.0),
        occasion: exported.occasion.into(),
        fires: exported.fires,
        given_at: exported.given_at.map(|at| at.0),
        armed_at: exported.armed_at.map(|at| at.0),
        overlapping: exported
            .overlapping
            .into_iter()
            .map(read_overlap)
            .collect::<anyhow::Result<_>>()?,
        redrive: exported.redrive.map(read_redrive).transpose()?.map(Box::new),
        ..Task::new(id, Arc::new(definition), exported.created_at.0, version)
    })
}

fn read_overlap(exported: ExportedOverlap) -> anyhow::Result<OverlappingFire> {
    Ok(OverlappingFire {
        nominal_at: exported.nominal_at.0,
        fire_at: exported.fire_at.0,
        occasion: exported.occasion.into(),
        attempts: read_attempts(exported.attempts)?,
    })
}

fn export_retry(retry: &RetryPolicy) -> ExportedRetry {
    ExportedRetry {
        attempts_max: retry.attempts_max,
        backoff: match &retry.backoff {
            Backoff::Fixed(pause) => ExportedBackoff::Fixed(DurationText(*pause)),
            Backoff::Exponential { first, factor_thousandths, max } => {
                ExportedBackoff::Exponential {
                    first: DurationText(*first),
                    factor_thousandths: *factor_thousandths,
                    max: DurationText(*max),
                }
            }
            Backoff::List(pauses) => {
                ExportedBackoff::List(pauses.iter().copied().map(DurationText).collect())
            }
        },
        jitter_thousandths: retry.jitter.thousandths(),
    }
}

fn read_retry(exported: ExportedRetry) -> anyhow::Result<RetryPolicy> {
    Ok(RetryPolicy {
        attempts_max: exported.attempts_max,
        backoff: match exported.backoff {
            ExportedBackoff::Fixed(pause) => Backoff::Fixed(pause.0),
            ExportedBackoff::Exponential { first, factor_thousandths, max } => {
                Backoff::Exponential { first: first.0, factor_thousandths, max: max.0 }
            }
            ExportedBackoff::List(pauses) => {
                Backoff::List(pauses.into_iter().map(|pause| pause.0).collect())
            }
        },
        jitter: Jitter::from_thousandths(exported.jitter_thousandths)?,
    })
}

fn read_base64(base64: &str) -> anyhow::Result<Bytes> {
    Ok(STANDARD.decode(base64).context("payload: must be base64")?.into())
}
