//! The wire form of a task: JSON as callers send it, and JSON as they get it back.
//!
//! In: a body. Out: a checked [`NewTask`], or a problem that names the field by its path (`retry.backoff.list`).
//! And back: a [`Task`] with all that was sent. These types exist only here; nothing behind this file knows of JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::StatusCode;
use punctual_core::{
    Backoff, Due, Guarantee, HttpTarget, Invalid, Jitter, Labels, Method, Namespace, NewTask,
    Payload, Queue, RetryPolicy, Schedule, Target, Task, TaskKey, TaskState, Timestamp,
    format_duration, parse_duration,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::error::Problem;

/// Arrays and objects within each other in a payload: common parsers stop at 128.
const PAYLOAD_DEPTH_MAX: usize = 100;

/// A task as sent.
#[derive(Debug, Deserialize, Serialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TaskBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#in: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetBody>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guarantee: Option<GuaranteeBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_after: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

/// A time: RFC 3339 text, or milliseconds since the Unix epoch.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "a time must be RFC 3339 text or whole milliseconds since 1970")]
enum Instant {
    Millis(i64),
    Text(String),
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum TargetBody {
    Http(HttpBody),
    Queue(String),
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct HttpBody {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names are the wire's")]
enum GuaranteeBody {
    AtMostOnce,
    AtLeastOnce,
    ExactlyOnce,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RetryBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempts_max: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backoff: Option<BackoffBody>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jitter: Option<f64>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum BackoffBody {
    Fixed(String),
    Exponential(ExponentialBody),
    List(Vec<String>),
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ExponentialBody {
    first: String,
    #[serde(default = "ExponentialBody::factor_default")]
    factor: f64,
    #[serde(default = "ExponentialBody::max_default")]
    max: String,
}

impl ExponentialBody {
    fn factor_default() -> f64 {
        2.0
    }

    fn max_default() -> String {
        "5m".to_owned()
    }
}

/// A task as answered: what is known of it, and all that was sent.
#[derive(Debug, Serialize)]
struct TaskAnswer<'a> {
    id: String,
    namespace: &'a str,
    state: &'static str,
    fire_at: String,
    version: u64,
    /// Attempts begun of the present fire.
    attempt: usize,
    created_at: String,
    #[serde(flatten)]
    sent: TaskBody<'a>,
}

impl<'a> TaskBody<'a> {
    /// Reads a body.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, Problem> {
        // Serde would take an array for an object, field by field.
        if body.trim_ascii_start().first() == Some(&b'[') {
            let detail = "the body must be one task, a JSON object".to_owned();
            return Err(Problem::body(StatusCode::BAD_REQUEST, detail, None));
        }
        let mut json = serde_json::Deserializer::from_slice(body);
        let task = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            // A dot stands for the body as a whole, a question mark for a place that has no name.
            let field = (!path.starts_with(['.', '?'])).then_some(path);
            Problem::body(StatusCode::BAD_REQUEST, error.inner().to_string(), field)
        })?;
        json.end()
            .map_err(|error| Problem::body(StatusCode::BAD_REQUEST, error.to_string(), None))?;
        Ok(task)
    }

    /// Checks everything. A key in the path wins over none in the body; two that differ are refused.
    pub(crate) fn into_new_task(
        self,
        namespace: Namespace,
        key: Option<TaskKey>,
    ) -> Result<NewTask, Invalid> {
        let named = self.key.as_deref().map(TaskKey::new).transpose()?;
        if key.is_some() && named.is_some() && key != named {
            return Err(Invalid::new("key", "must be left out or be the key in the path"));
        }
        let schedule = self.schedule()?;
        let payload = self.payload()?;
        let target = self.target.ok_or_else(|| Invalid::new("target", "must be given"))?;
        let mut task = NewTask::new(namespace, schedule, target.into_target()?);
        task.key = key.or(named);
        task.payload = payload;
        task.labels = Labels::new(self.labels)?;
        if let Some(guarantee) = self.guarantee {
            task.guarantee = guarantee.into();
        }
        if let Some(retry) = self.retry {
            task.retry = retry.into_policy().map_err(|invalid| invalid.within("retry"))?;
        }
        if let Some(timeout) = &self.timeout {
            task.timeout = duration("timeout", timeout)?;
        }
        if let Some(after) = &self.expires_after {
            task.expires_after = Some(duration("expires_after", after)?);
        }
        task.check()?;
        Ok(task)
    }

    fn schedule(&self) -> Result<Schedule, Invalid> {
        match (&self.r#in, &self.at) {
            (Some(delay), None) => Ok(Schedule::Once(Due::In(duration("in", delay)?))),
            (None, Some(at)) => Ok(Schedule::Once(Due::At(at.to_timestamp()?))),
            _ => Err(Invalid::new("in", "exactly one of `in` and `at` must be given")),
        }
    }

    fn payload(&self) -> Result<Payload, Invalid> {
        match (self.payload, &self.payload_base64, &self.content_type) {
            (None, None, None) => Ok(Payload::Empty),
            (Some(json), None, None) => {
                check_depth(json.get())?;
                Ok(Payload::Json(Bytes::copy_from_slice(json.get().as_bytes())))
            }
            (None, Some(text), content_type) => {
                let bytes = STANDARD
                    .decode(text)
                    .map_err(|_| Invalid::new("payload_base64", "must be base64 with padding"))?;
                let content_type = content_type.as_deref().unwrap_or("application/octet-stream");
                Ok(Payload::Binary { bytes: bytes.into(), content_type: Arc::from(content_type) })
            }
            (Some(_), Some(_), _) => {
                Err(Invalid::new("payload_base64", "must not be given beside `payload`"))
            }
            (_, None, Some(_)) => {
                Err(Invalid::new("content_type", "must be given with `payload_base64` only"))
            }
        }
    }
}

impl Instant {
    fn to_timestamp(&self) -> Result<Timestamp, Invalid> {
        let at = match self {
            Self::Millis(millis) => Timestamp::try_from_millis(i128::from(*millis)),
            Self::Text(text) => Timestamp::parse_rfc3339(text),
        };
        at.map_err(|error| Invalid::new("at", error.to_string()))
    }
}

impl TargetBody {
    fn into_target(self) -> Result<Target, Invalid> {
        let http = match self {
            Self::Http(http) => http,
            Self::Queue(queue) => return Ok(Target::Queue(Queue::new(&queue)?)),
        };
        let method = http.method.as_deref().map(Method::parse).transpose();
        let target = method.and_then(|method| {
            let headers = http.headers.into_iter().collect();
            HttpTarget::new(&http.url, method.unwrap_or_default(), headers)
        });
        Ok(Target::Http(target.map_err(|invalid| invalid.within("target.http"))?))
    }
}

impl RetryBody {
    fn into_policy(self) -> Result<RetryPolicy, Invalid> {
        let default = RetryPolicy::default();
        let backoff = match self.backoff {
            Some(backoff) => backoff.into_backoff().map_err(|i| i.within("backoff"))?,
            None => default.backoff,
        };
        Ok(RetryPolicy {
            attempts_max: self.attempts_max.unwrap_or(default.attempts_max),
            backoff,
            jitter: self.jitter.map_or(Ok(default.jitter), Jitter::from_share)?,
        })
    }
}

impl BackoffBody {
    fn into_backoff(self) -> Result<Backoff, Invalid> {
        match self {
            Self::Fixed(pause) => Ok(Backoff::Fixed(duration("fixed", &pause)?)),
            Self::Exponential(body) => Ok(Backoff::Exponential {
                first: duration("exponential.first", &body.first)?,
                factor_thousandths: factor_thousandths(body.factor)?,
                max: duration("exponential.max", &body.max)?,
            }),
            Self::List(pauses) => {
                let pauses = pauses.iter().map(|pause| duration("list", pause));
                Ok(Backoff::List(pauses.collect::<Result<_, _>>()?))
            }
        }
    }
}

/// Whole thousandths; what is out of range is refused here or by the policy's own check.
pub(crate) fn factor_thousandths(factor: f64) -> Result<u32, Invalid> {
    let thousandths = (factor * 1000.0).round();
    if !(0.0..=f64::from(u32::MAX)).contains(&thousandths) {
        return Err(Invalid::new("exponential.factor", "must be a number from 1 to 100"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just checked")]
    Ok(thousandths as u32)
}

/// A payload is kept as text and never parsed here, but whoever receives it parses it.
pub(crate) fn check_depth(json: &str) -> Result<(), Invalid> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > PAYLOAD_DEPTH_MAX {
            let problem = format!("must be nested at most {PAYLOAD_DEPTH_MAX} deep");
            return Err(Invalid::new("payload", problem));
        }
    }
    Ok(())
}

fn duration(field: &str, text: &str) -> Result<Duration, Invalid> {
    parse_duration(text).map_err(|error| Invalid::new(field, error.to_string()))
}

/// A task as answered.
pub(crate) fn to_json(task: &Task) -> Vec<u8> {
    let sent = TaskBody::of(&task.definition);
    let firing = usize::from(task.state == TaskState::Firing);
    let answer = TaskAnswer {
        id: task.id.to_string(),
        namespace: task.definition.namespace.as_str(),
        state: state_name(task.state),
        fire_at: task.fire_at.to_string(),
        version: task.version.get(),
        attempt: task.attempts.len() + firing,
        created_at: task.created_at.to_string(),
        sent,
    };
    serde_json::to_vec(&answer).expect("nothing in an answer can fail to be written")
}

/// A task as answered, to be put into a larger answer.
pub(crate) fn to_raw_json(task: &Task) -> Option<Box<RawValue>> {
    let json = String::from_utf8(to_json(task)).ok()?;
    RawValue::from_string(json).ok()
}

fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Scheduled => "scheduled",
        TaskState::Firing => "firing",
        TaskState::Paused => "paused",
        TaskState::Done => "done",
        TaskState::Dead => "dead",
        TaskState::Cancelled => "cancelled",
    }
}

impl<'a> TaskBody<'a> {
    /// What was sent, with defaults filled in.
    fn of(task: &'a NewTask) -> Self {
        let (r#in, at) = match task.schedule {
            Schedule::Once(Due::In(delay)) => (Some(format_duration(delay)), None),
            Schedule::Once(Due::At(at)) => (None, Some(Instant::Text(at.to_string()))),
            // No way in makes these yet.
            Schedule::Every { .. } | Schedule::Watch { .. } => (None, None),
        };
        let (payload, payload_base64, content_type) = match &task.payload {
            Payload::Empty => (None, None, None),
            Payload::Json(json) => (serde_json::from_slice(json).ok(), None, None),
            Payload::Binary { bytes, content_type } => {
                (None, Some(STANDARD.encode(bytes)), Some(Cow::Borrowed(&**content_type)))
            }
        };
        Self {
            key: task.key.as_ref().map(|key| key.as_str().to_owned()),
            r#in,
            at,
            target: Some(TargetBody::of(&task.target)),
            payload,
            payload_base64,
            content_type,
            guarantee: Some(GuaranteeBody::of(task.guarantee)),
            retry: Some(RetryBody::of(&task.retry)),
            timeout: Some(format_duration(task.timeout)),
            expires_after: task.expires_after.map(format_duration),
            labels: task.labels.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
        }
    }
}

impl TargetBody {
    fn of(target: &Target) -> Self {
        match target {
            Target::Queue(queue) => Self::Queue(queue.as_str().to_owned()),
            Target::Http(http) => Self::Http(HttpBody {
                url: http.url().to_owned(),
                method: Some(http.method().as_str().to_owned()),
                headers: http.headers().iter().cloned().collect(),
            }),
        }
    }
}

impl GuaranteeBody {
    const fn of(guarantee: Guarantee) -> Self {
        match guarantee {
            Guarantee::AtMostOnce => Self::AtMostOnce,
            Guarantee::AtLeastOnce => Self::AtLeastOnce,
            Guarantee::ExactlyOnce => Self::ExactlyOnce,
        }
    }
}

impl From<GuaranteeBody> for Guarantee {
    fn from(body: GuaranteeBody) -> Self {
        match body {
            GuaranteeBody::AtMostOnce => Self::AtMostOnce,
            GuaranteeBody::AtLeastOnce => Self::AtLeastOnce,
            GuaranteeBody::ExactlyOnce => Self::ExactlyOnce,
        }
    }
}

impl RetryBody {
    fn of(policy: &RetryPolicy) -> Self {
        let backoff = match &policy.backoff {
            Backoff::Fixed(pause) => BackoffBody::Fixed(format_duration(*pause)),
            Backoff::Exponential { first, factor_thousandths, max } => {
                BackoffBody::Exponential(ExponentialBody {
                    first: format_duration(*first),
                    factor: f64::from(*factor_thousandths) / 1000.0,
                    max: format_duration(*max),
                })
            }
            Backoff::List(pauses) => {
                BackoffBody::List(pauses.iter().copied().map(format_duration).collect())
            }
        };
        Self {
            attempts_max: Some(policy.attempts_max),
            backoff: Some(backoff),
            jitter: Some(f64::from(policy.jitter.thousandths()) / 1000.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_outside_strings() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        for (json, taken) in [
            (nested(100), true),
            (nested(101), false),
            (format!("[{}]", vec!["[]"; 200].join(",")), true),
            (format!("\"{}\"", "[".repeat(200)), true),
            (format!("\"\\\"{}\"", "[".repeat(200)), true),
            (format!("[\"\\\\\",{}]", nested(100)), false),
        ] {
            assert_eq!(check_depth(&json).is_ok(), taken, "{json}");
        }
    }
}
