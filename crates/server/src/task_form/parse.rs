//! Turns the JSON form of a task into a checked [`NewTask`].
//!
//! An [`Invalid`] names the wrong field by its path, like `retry.backoff.list`.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use punctual_core::{
    ATTEMPTS_MAX, BACKOFF_FACTOR_MAX, Backoff, Guarantee, HttpTarget, Invalid, Jitter, Labels,
    Method, Namespace, NewTask, Payload, Queue, RetryPolicy, Target, TaskKey, Timestamp,
    parse_duration,
};
use serde::{Deserialize, Serialize};

use super::pairs::check_headers;
use super::payload::check_json;
use super::{BackoffBody, GuaranteeBody, RetryBody, TargetBody, TaskBody, WholeNumber};
use crate::schema::{self, documented};

/// A time: RFC 3339 text like `2030-01-31T12:00:00Z`, or whole milliseconds since the Unix epoch.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(untagged, expecting = "a time must be RFC 3339 text or whole milliseconds since 1970")]
pub(crate) enum TimeValue {
    Millis(WholeNumber),
    Text(String),
}

documented!(impl TimeValue, "Time", schema::time());

impl TaskBody<'_> {
    /// Checks every field. `key` is the key in the path; a different one in the body is refused.
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
        task.labels = Labels::new(self.labels.by_name("labels")?)?;
        if let Some(guarantee) = self.guarantee {
            task.guarantee = guarantee.into();
        }
        if let Some(retry) = self.retry {
            task.retry = retry.into_policy().map_err(|invalid| invalid.within("retry"))?;
        }
        if let Some(timeout) = &self.timeout {
            task.timeout = parse_duration_field("timeout", timeout)?;
        }
        if let Some(after) = &self.expires_after {
            task.expires_after = Some(parse_duration_field("expires_after", after)?);
        }
        task.check()?;
        Ok(task)
    }

    fn payload(&self) -> Result<Payload, Invalid> {
        match (self.payload, &self.payload_base64, &self.content_type) {
            (None, None, None) => Ok(Payload::Empty),
            (Some(json), None, None) => {
                check_json(json.get())?;
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
                Err(Invalid::new("payload_base64", "must not be given together with `payload`"))
            }
            (_, None, Some(_)) => {
                Err(Invalid::new("content_type", "must be given with `payload_base64` only"))
            }
        }
    }
}

impl TimeValue {
    /// The time, or an error that names `field`.
    pub(crate) fn to_timestamp(&self, field: &str) -> Result<Timestamp, Invalid> {
        let at = match self {
            Self::Millis(millis) => Timestamp::try_from_millis(i128::from(millis.0)),
            Self::Text(text) => Timestamp::parse_rfc3339(text),
        };
        at.map_err(|error| Invalid::new(field, error.to_string()))
    }
}

/// Parses a time in a query: RFC 3339 text or milliseconds.
pub(crate) fn parse_time_field(field: &str, text: &str) -> Result<Timestamp, Invalid> {
    let time = match text.parse() {
        Ok(millis) => TimeValue::Millis(WholeNumber(millis)),
        Err(_) => TimeValue::Text(text.to_owned()),
    };
    time.to_timestamp(field)
}

impl TargetBody {
    fn into_target(self) -> Result<Target, Invalid> {
        let http = match self {
            Self::Http(http) => http,
            Self::Queue(queue) => return Ok(Target::Queue(Queue::new(&queue)?)),
        };
        let method = http.method.as_deref().map(Method::parse).transpose();
        let target = method.and_then(|method| {
            let headers = http.headers.by_name("headers")?;
            check_headers(&headers)?;
            let headers = headers.into_iter().collect();
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
        let attempts_max = match self.attempts_max {
            Some(WholeNumber(count)) => u16::try_from(count).map_err(|_| {
                let problem = format!("must be from 1 to {ATTEMPTS_MAX}, is {count}");
                Invalid::new("attempts_max", problem)
            })?,
            None => default.attempts_max,
        };
        Ok(RetryPolicy {
            attempts_max,
            backoff,
            jitter: self.jitter.map_or(Ok(default.jitter), Jitter::from_share)?,
        })
    }
}

impl BackoffBody {
    fn into_backoff(self) -> Result<Backoff, Invalid> {
        match self {
            Self::Fixed(pause) => Ok(Backoff::Fixed(parse_duration_field("fixed", &pause)?)),
            Self::Exponential(body) => Ok(Backoff::Exponential {
                first: parse_duration_field("exponential.first", &body.first)?,
                factor_thousandths: factor_thousandths(body.factor)?,
                max: parse_duration_field("exponential.max", &body.max)?,
            }),
            Self::List(pauses) => {
                let pauses = pauses.iter().map(|pause| parse_duration_field("list", pause));
                Ok(Backoff::List(pauses.collect::<Result<_, _>>()?))
            }
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

/// Converts a backoff factor to thousandths. Its range is checked before it is rounded.
pub(crate) fn factor_thousandths(factor: f64) -> Result<u32, Invalid> {
    if !(1.0..=f64::from(BACKOFF_FACTOR_MAX)).contains(&factor) {
        let problem = format!("must be from 1 to {BACKOFF_FACTOR_MAX}");
        return Err(Invalid::new("exponential.factor", problem));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just checked")]
    Ok((factor * 1000.0).round() as u32)
}

/// Parses a duration; the error names `field`.
pub(crate) fn parse_duration_field(field: &str, text: &str) -> Result<Duration, Invalid> {
    parse_duration(text).map_err(|error| Invalid::new(field, error.to_string()))
}
