//! Converts between gRPC messages and the types of the core.
//!
//! Messages are untrusted: they become checked values, or an [`Invalid`] that names the field as
//! HTTP does. No value keeps a part of the message alive that it came in. Deliveries are not
//! converted but encoded directly (`deliveries`). `targets` has targets, `fires` has fires, dead
//! letters and explanations, `alarms` has alarms.

pub(super) mod alarms;
pub(super) mod fires;
mod targets;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use punctual_core::{
    Backoff, Callbacks, Cron, Dst, Due, Gap, Guarantee, Invalid, Jitter, Labels, Misfire,
    Namespace, NewTask, Overlap, Payload, Reason, RetryPolicy, Schedule, Series, TIMEOUT_MAX, Task,
    TaskKey, TaskState, Timestamp, Twice, Version,
};
use punctual_engine::{Cancelled, Condition, EngineError, Scheduled, TouchTo};
use punctual_proto::v1;
use serde::de::IgnoredAny;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::courier::queue::{LeaseToken, Settlement, WorkerResult};
use crate::problem::{Problem, TaskRef};
use crate::task_form::{ScheduleFields, TaskToSchedule, check_json, factor_thousandths};
use targets::{sent_target, sent_webhook, target, webhook};

const JSON: &str = "application/json";
const OCTETS: &str = "application/octet-stream";
/// The metadata key of the problem message of a status.
const PROBLEM_METADATA: &str = "punctual-problem-bin";

/// Converts and checks a task.
pub(super) fn new_task(
    namespace: &Namespace,
    sent: v1::NewTask,
) -> Result<TaskToSchedule, Invalid> {
    let schedule = schedule(&sent)?;
    let main = target("target", sent.target)?;
    let main = main.ok_or_else(|| Invalid::new("target", "must be given"))?;
    let guarantee = known("guarantee", sent.guarantee)?;
    let mut task = NewTask::new(namespace.clone(), schedule, main);
    task.key = (!sent.key.is_empty()).then(|| TaskKey::new(&sent.key)).transpose()?;
    task.payload = payload(&sent.payload, &sent.content_type)?;
    task.labels = Labels::new(sent.labels)?;
    task.guarantee = match guarantee {
        v1::Guarantee::Unspecified => Guarantee::default(),
        v1::Guarantee::AtLeastOnce => Guarantee::AtLeastOnce,
        v1::Guarantee::AtMostOnce => Guarantee::AtMostOnce,
        v1::Guarantee::ExactlyOnce => Guarantee::ExactlyOnce,
    };
    if let Some(sent) = sent.retry {
        task.retry = retry(sent).map_err(|invalid| invalid.within("retry"))?;
    }
    if let Some(timeout) = given(sent.timeout_ms) {
        task.timeout = timeout;
    }
    task.expires_after = given(sent.expires_after_ms);
    task.callbacks =
        Callbacks::new(target("on_done", sent.on_done)?, target("on_dead", sent.on_dead)?);
    task.check()?;
    Ok(TaskToSchedule::new(task, Some(sent.paused)))
}

/// What an expression says about clock changes.
pub(super) fn clock_changes(cron: &v1::Cron) -> Result<Dst, Invalid> {
    let gap = match known("dst.gap", cron.dst_gap)? {
        v1::Gap::Unspecified => None,
        v1::Gap::After => Some(Gap::After),
        v1::Gap::Skip => Some(Gap::Skip),
    };
    let overlap = match known("dst.overlap", cron.dst_overlap)? {
        v1::Twice::Unspecified => None,
        v1::Twice::Once => Some(Twice::Once),
        v1::Twice::Both => Some(Twice::Both),
    };
    Ok(Dst { gap, overlap })
}

fn schedule(sent: &v1::NewTask) -> Result<Schedule, Invalid> {
    use v1::new_task::When as Sent;
    let mut fields = ScheduleFields {
        postpone_max: given(sent.postpone_max_ms),
        on_return: sent.on_return.then_some(true),
        ..ScheduleFields::default()
    };
    match &sent.when {
        Some(Sent::InMs(delay)) => fields.delay = Some(millis(*delay)),
        Some(Sent::AtMs(at)) => fields.at = Some(timestamp("at", *at)?),
        Some(Sent::EveryMs(interval)) => fields.every = Some(millis(*interval)),
        Some(Sent::WithinMs(within)) => fields.within = Some(millis(*within)),
        Some(Sent::Cron(cron)) => {
            fields.cron = Some(&cron.expression);
            fields.timezone = Some(cron.timezone.as_str()).filter(|name| !name.is_empty());
            let dst = clock_changes(cron)?;
            fields.dst = (dst != Dst::default()).then_some(dst);
        }
        None => {}
    }
    if let Some(series) = &sent.series {
        fields.starts_at = series.starts_at_ms.map(|at| timestamp("starts_at", at)).transpose()?;
        fields.ends_at = series.ends_at_ms.map(|at| timestamp("ends_at", at)).transpose()?;
        fields.count = series.count;
        fields.jitter = given(series.jitter_ms);
        fields.misfire = match known("misfire", series.misfire)? {
            v1::Misfire::Unspecified => None,
            v1::Misfire::FireOnce => Some(Misfire::FireOnce),
            v1::Misfire::FireAll => Some(Misfire::FireAll),
            v1::Misfire::Skip => Some(Misfire::Skip),
        };
        fields.overlap = match known("overlap", series.overlap)? {
            v1::Overlap::Unspecified => None,
            v1::Overlap::Allow => Some(Overlap::Allow),
            v1::Overlap::Skip => Some(Overlap::Skip),
            v1::Overlap::QueueOne => Some(Overlap::QueueOne),
        };
    }
    fields.schedule()
}

/// Reads the number of an enum; refuses numbers that this version does not know.
pub(super) fn known<E: TryFrom<i32>>(field: &str, number: i32) -> Result<E, Invalid> {
    E::try_from(number).map_err(|_| Invalid::new(field, "is an unknown enum value"))
}

fn payload(payload: &Bytes, content_type: &str) -> Result<Payload, Invalid> {
    if payload.is_empty() && content_type.is_empty() {
        return Ok(Payload::Empty);
    }
    // A slice would keep the whole message in memory as long as the task.
    let bytes = Bytes::copy_from_slice(payload);
    if content_type == JSON {
        let json = std::str::from_utf8(&bytes)
            .map_err(|_| Invalid::new("payload", "must be JSON, which is UTF-8"))?;
        check_json(json)?;
        serde_json::from_str::<IgnoredAny>(json)
            .map_err(|error| Invalid::new("payload", format!("must be JSON: {error}")))?;
        return Ok(Payload::Json(bytes));
    }
    let content_type = if content_type.is_empty() { OCTETS } else { content_type };
    Ok(Payload::Binary { bytes, content_type: Arc::from(content_type) })
}

fn retry(sent: v1::Retry) -> Result<RetryPolicy, Invalid> {
    use v1::retry::Backoff as Sent;
    let default = RetryPolicy::default();
    let attempts_max = match sent.attempts_max {
        0 => default.attempts_max,
        count => u16::try_from(count).unwrap_or(u16::MAX),
    };
    let backoff = match sent.backoff {
        None => default.backoff,
        Some(Sent::FixedMs(pause)) => Backoff::Fixed(millis(pause)),
        Some(Sent::List(list)) => Backoff::List(list.pauses_ms.into_iter().map(millis).collect()),
        Some(Sent::Exponential(sent)) => {
            let factor = if sent.factor == 0.0 { 2.0 } else { sent.factor };
            let factor_thousandths =
                factor_thousandths(factor).map_err(|invalid| invalid.within("backoff"))?;
            let max = given(sent.max_ms).unwrap_or(Duration::from_secs(300));
            Backoff::Exponential { first: millis(sent.first_ms), factor_thousandths, max }
        }
    };
    let jitter = sent.jitter.map_or(Ok(default.jitter), Jitter::from_share)?;
    Ok(RetryPolicy { attempts_max, backoff, jitter })
}

pub(super) fn condition(sent: Option<v1::schedule_request::Condition>) -> Condition {
    match sent {
        None | Some(v1::schedule_request::Condition::IfAbsent(false)) => Condition::Always,
        Some(v1::schedule_request::Condition::IfAbsent(true)) => Condition::Absent,
        Some(v1::schedule_request::Condition::IfVersion(version)) => {
            Condition::Version(Version::new(version))
        }
    }
}

pub(super) fn push(to: Option<v1::touch_request::To>) -> Result<TouchTo, Invalid> {
    match to {
        None => Ok(TouchTo::Within),
        Some(v1::touch_request::To::InMs(delay)) => {
            Schedule::Once(Due::In(millis(delay))).check()?;
            Ok(TouchTo::To(Due::In(millis(delay))))
        }
        Some(v1::touch_request::To::AtMs(at)) => Ok(TouchTo::To(Due::At(timestamp("at", at)?))),
        Some(v1::touch_request::To::WithinMs(within)) => {
            Schedule::watch(millis(within)).check()?;
            Ok(TouchTo::To(Due::In(millis(within))))
        }
    }
}

/// A time that was sent; zero is 1970, not absent.
pub(super) fn timestamp(field: &str, millis: u64) -> Result<Timestamp, Invalid> {
    Timestamp::try_from_millis(i128::from(millis))
        .map_err(|error| Invalid::new(field, error.to_string()))
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Zero means absent.
pub(super) fn given(millis: u64) -> Option<Duration> {
    (millis != 0).then(|| Duration::from_millis(millis))
}

pub(super) fn as_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A task with its state.
pub(super) fn task(task: &Task) -> v1::Task {
    let firing = u32::from(task.state == TaskState::Firing);
    v1::Task {
        id: task.id.to_string(),
        namespace: task.definition.namespace.as_str().to_owned(),
        state: state(task.state).into(),
        fire_at_ms: task.fire_at.as_millis(),
        version: task.version.get(),
        attempt: task.attempt_next().get() - 1 + firing,
        created_at_ms: task.created_at.as_millis(),
        sent: Some(sent(&task.definition)),
        nominal_at_ms: task.nominal_at.as_millis(),
        redriven_fire_id: task
            .redrive
            .as_ref()
            .map_or_else(String::new, |_| task.fire().id.to_string()),
        updated_at_ms: task.updated_at.as_millis(),
        callback_of: task
            .definition
            .callback_of
            .map_or_else(String::new, |fire_id| fire_id.to_string()),
        ..v1::Task::default()
    }
}

fn state(state: TaskState) -> v1::TaskState {
    match state {
        TaskState::Scheduled => v1::TaskState::Scheduled,
        TaskState::Firing => v1::TaskState::Firing,
        TaskState::Paused => v1::TaskState::Paused,
        TaskState::Done => v1::TaskState::Done,
        TaskState::Dead => v1::TaskState::Dead,
        TaskState::Cancelled => v1::TaskState::Cancelled,
    }
}

/// The fields that were sent, defaults included.
fn sent(task: &NewTask) -> v1::NewTask {
    use v1::new_task::When;
    let when = match &task.schedule {
        Schedule::Once(Due::In(delay)) => When::InMs(as_millis(*delay)),
        Schedule::Once(Due::At(at)) => When::AtMs(at.as_millis()),
        Schedule::Every { interval, .. } => When::EveryMs(as_millis(*interval)),
        Schedule::Cron { cron, .. } => When::Cron(sent_cron(cron)),
        Schedule::Watch { within, .. } => When::WithinMs(as_millis(*within)),
    };
    let (postpone_max, on_return) = match task.schedule {
        Schedule::Watch { postpone_max, on_return, .. } => (postpone_max, on_return),
        _ => (None, false),
    };
    let callbacks = task.callbacks.as_deref();
    let guarantee = match task.guarantee {
        Guarantee::AtLeastOnce => v1::Guarantee::AtLeastOnce,
        Guarantee::AtMostOnce => v1::Guarantee::AtMostOnce,
        Guarantee::ExactlyOnce => v1::Guarantee::ExactlyOnce,
    };
    let labels = task.labels.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    v1::NewTask {
        key: task.key.as_ref().map_or_else(String::new, |key| key.as_str().to_owned()),
        when: Some(when),
        target: Some(sent_target(&task.target)),
        payload: task.payload.bytes().clone(),
        content_type: task.payload.content_type().unwrap_or_default().to_owned(),
        guarantee: guarantee.into(),
        retry: Some(sent_retry(&task.retry)),
        timeout_ms: as_millis(task.timeout),
        expires_after_ms: task.expires_after.map_or(0, as_millis),
        labels: labels.collect(),
        series: task.schedule.series().map(sent_series),
        postpone_max_ms: postpone_max.map_or(0, as_millis),
        on_return,
        // The state of the task says whether it is paused.
        paused: false,
        on_done: callbacks.and_then(|it| it.on_done.as_ref()).map(sent_target),
        on_dead: callbacks.and_then(|it| it.on_dead.as_ref()).map(sent_target),
    }
}

fn sent_cron(cron: &Cron) -> v1::Cron {
    let gap = match cron.dst().gap {
        None => v1::Gap::Unspecified,
        Some(Gap::After) => v1::Gap::After,
        Some(Gap::Skip) => v1::Gap::Skip,
    };
    let overlap = match cron.dst().overlap {
        None => v1::Twice::Unspecified,
        Some(Twice::Once) => v1::Twice::Once,
        Some(Twice::Both) => v1::Twice::Both,
    };
    v1::Cron {
        expression: cron.expression().to_owned(),
        timezone: cron.zone().name().to_owned(),
        dst_gap: gap.into(),
        dst_overlap: overlap.into(),
    }
}

fn sent_series(series: &Series) -> v1::Series {
    let misfire = match series.misfire {
        Misfire::FireOnce => v1::Misfire::FireOnce,
        Misfire::FireAll => v1::Misfire::FireAll,
        Misfire::Skip => v1::Misfire::Skip,
    };
    let overlap = match series.overlap {
        Overlap::Allow => v1::Overlap::Allow,
        Overlap::Skip => v1::Overlap::Skip,
        Overlap::QueueOne => v1::Overlap::QueueOne,
    };
    v1::Series {
        starts_at_ms: series.starts_at.map(Timestamp::as_millis),
        ends_at_ms: series.ends_at.map(Timestamp::as_millis),
        count: series.count,
        misfire: misfire.into(),
        overlap: overlap.into(),
        jitter_ms: as_millis(series.jitter),
    }
}

fn sent_retry(policy: &RetryPolicy) -> v1::Retry {
    let backoff = match &policy.backoff {
        Backoff::Fixed(pause) => v1::retry::Backoff::FixedMs(as_millis(*pause)),
        Backoff::Exponential { first, factor_thousandths, max } => {
            v1::retry::Backoff::Exponential(v1::Exponential {
                first_ms: as_millis(*first),
                factor: f64::from(*factor_thousandths) / 1000.0,
                max_ms: as_millis(*max),
            })
        }
        Backoff::List(pauses) => {
            let pauses_ms = pauses.iter().copied().map(as_millis).collect();
            v1::retry::Backoff::List(v1::BackoffList { pauses_ms })
        }
    };
    v1::Retry {
        attempts_max: u32::from(policy.attempts_max),
        backoff: Some(backoff),
        jitter: Some(f64::from(policy.jitter.thousandths()) / 1000.0),
    }
}

/// The result of one task of a batch.
pub(super) fn schedule_result(result: Result<Scheduled, Problem>) -> v1::ScheduleResult {
    let result = match result {
        Ok(scheduled) => v1::schedule_result::Result::Scheduled(v1::Scheduled {
            id: scheduled.task().id.to_string(),
            fire_at_ms: scheduled.task().fire_at.as_millis(),
            version: scheduled.task().version.get(),
            replaced: matches!(scheduled, Scheduled::Replaced(_)),
        }),
        Err(problem) => v1::schedule_result::Result::Problem(to_problem(&problem)),
    };
    v1::ScheduleResult { result: Some(result) }
}

pub(super) fn cancel_result(result: Result<Cancelled, Problem>) -> v1::CancelResult {
    use v1::cancel_result::Result as Outcome;
    let result = match result {
        Ok(Cancelled::Cancelled) => Outcome::Cancelled(v1::Cancelled {}),
        Ok(Cancelled::Firing(attempt)) => Outcome::Firing(v1::Firing { attempt: attempt.get() }),
        Ok(Cancelled::AlreadyFired(at)) => {
            Outcome::AlreadyFired(v1::AlreadyFired { fired_at_ms: at.as_millis() })
        }
        Err(problem) => Outcome::Problem(to_problem(&problem)),
    };
    v1::CancelResult { result: Some(result) }
}

pub(super) fn is_cancelled(result: &v1::CancelResult) -> bool {
    matches!(result.result, Some(v1::cancel_result::Result::Cancelled(_)))
}

pub(super) fn to_problem(problem: &Problem) -> v1::Problem {
    let (kind, status, detail, field) = problem.parts();
    v1::Problem {
        r#type: kind.to_owned(),
        status: u32::from(status.as_u16()),
        detail: detail.to_owned(),
        field: field.unwrap_or_default().to_owned(),
        existing: None,
    }
}

/// The status of a call that failed as a whole.
pub(super) fn to_status(problem: &Problem) -> Status {
    status_with(problem, to_problem(problem))
}

fn status_with(problem: &Problem, message: v1::Problem) -> Status {
    let mut status = Status::new(problem.code(), problem.detail());
    let message = MetadataValue::from_bytes(&message.encode_to_vec());
    status.metadata_mut().insert_bin(PROBLEM_METADATA, message);
    status
}

pub(super) fn invalid(invalid: Invalid) -> Status {
    to_status(&Problem::from(invalid))
}

pub(super) fn failed(error: EngineError, task: TaskRef<'_>) -> Status {
    // Without its payload: metadata must stay small.
    let existing = match &error {
        EngineError::Exists(existing) => Some(v1::ExistingTask {
            id: existing.id.to_string(),
            fire_at_ms: existing.fire_at.as_millis(),
            version: existing.version.get(),
        }),
        _ => None,
    };
    let problem = Problem::of_task(error, task);
    let message = v1::Problem { existing, ..to_problem(&problem) };
    status_with(&problem, message)
}

/// Acks with results. Those whose results are not allowed are rejected and change nothing.
pub(super) fn acks_with_result(
    acks: Vec<v1::AckWithResult>,
) -> (Vec<(LeaseToken, Settlement)>, Vec<v1::RejectedAck>) {
    let (mut taken, mut rejected) = (Vec::with_capacity(acks.len()), Vec::new());
    for (index, v1::AckWithResult { token, result }) in acks.into_iter().enumerate() {
        if result.is_empty() {
            taken.push((LeaseToken(token), Settlement::Ack));
            continue;
        }
        match WorkerResult::new(&result) {
            Ok(result) => taken.push((LeaseToken(token), Settlement::AckWith { result })),
            Err(problem) => {
                let field = format!("ack_with_result[{index}].result");
                let problem = to_problem(&Problem::from(Invalid::new(field, problem)));
                rejected.push(v1::RejectedAck { token, problem: Some(problem) });
            }
        }
    }
    (taken, rejected)
}

/// The settlements of a message, with their tokens, except for acks with results.
pub(super) fn settlements(settle: v1::Settle) -> impl Iterator<Item = (LeaseToken, Settlement)> {
    let acks = settle.ack.into_iter().map(|token| (LeaseToken(token), Settlement::Ack));
    let fails = settle.fail.into_iter().map(|fail| {
        let retry_in = fail.retry_in_ms.map(millis);
        (LeaseToken(fail.token), Settlement::Fail { reason: Reason::new(&fail.reason), retry_in })
    });
    let refusals = settle.refuse.into_iter().map(|refuse| {
        (LeaseToken(refuse.token), Settlement::Refuse { reason: Reason::new(&refuse.reason) })
    });
    let extensions = settle.extend.into_iter().map(|extend| {
        (
            LeaseToken(extend.token),
            Settlement::Extend { lease: millis(extend.lease_ms).min(TIMEOUT_MAX) },
        )
    });
    acks.chain(fails).chain(refusals).chain(extensions)
}

/// All tokens of a message, in the order of [`settlements`].
pub(super) fn tokens(settle: &v1::Settle) -> Vec<u64> {
    let fails = settle.fail.iter().map(|fail| fail.token);
    let refusals = settle.refuse.iter().map(|refuse| refuse.token);
    let extensions = settle.extend.iter().map(|extend| extend.token);
    settle.ack.iter().copied().chain(fails).chain(refusals).chain(extensions).collect()
}
