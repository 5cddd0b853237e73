//! The JSON form of a task: the types that are parsed from requests and written to responses.
//!
//! `parse` turns a [`TaskBody`] into a checked `NewTask`, `render` writes a task back, `schedule`
//! does both for the fields that say when it is due. `schedule_fields`, `payload` and `pairs` hold
//! checks that gRPC shares. Doc comments of fields are the OpenAPI descriptions. No other part of
//! the broker knows these types.

mod pairs;
mod parse;
mod payload;
mod render;
mod schedule;
mod schedule_fields;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use pairs::Pairs;
pub(crate) use pairs::check_headers;
pub(crate) use parse::{TimeValue, factor_thousandths, parse_duration_field, parse_time_field};
pub(crate) use payload::check_json;
pub(crate) use render::{EndedTask, TaskAnswer, end_name};
use schedule::{DstBody, MisfireBody, OverlapBody};
pub(crate) use schedule_fields::{ScheduleFields, check_fires, parse_cron};

/// A task to create. Exactly one of `in`, `at`, `cron`, `every` and `within` says when it fires.
///
/// Durations are text like `500ms`, `15s`, `15m`, `1h30m`, `30d` or `PT15M`.
#[derive(Debug, Deserialize, Serialize, Default, ToSchema)]
#[schema(as = NewTask)]
#[serde(deny_unknown_fields, default, expecting = "one task, a JSON object")]
pub(crate) struct TaskBody<'a> {
    /// The caller's own name for the task, unique in its namespace: 1 to 256 bytes. A task with
    /// the same key is replaced. Without a key the task has only its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Fires once, after this duration: up to 36500d.
    #[serde(skip_serializing_if = "Option::is_none")]
    r#in: Option<String>,
    /// Fires once, at this time. A time in the past fires at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<TimeValue>,
    /// Fires again and again by a cron expression of 5 or 6 fields, or `@daily` and the like;
    /// `@every 5m` is the same as `every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    /// With `cron`: the IANA name of its time zone. Default: UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<String>,
    /// With `cron`: what happens to local times that a clock change skips or repeats. Default:
    /// decided by the expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<DstBody>,
    /// Fires again and again at this interval: 100ms to 36500d.
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<String>,
    /// With `cron` and `every`: no fire before this time. Intervals of `every` count from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<TimeValue>,
    /// With `cron` and `every`: no fire after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<TimeValue>,
    /// With `cron` and `every`: how many times the task fires, at least 1. Skipped fires do not
    /// count. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    /// With `cron` and `every`: what happens to fires that were missed. Default: `fire_once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    misfire: Option<MisfireBody>,
    /// With `cron` and `every`: what happens to a fire that is due while the previous one has not
    /// ended. Default: `allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<OverlapBody>,
    /// With `cron` and `every`: delays each fire by a random duration up to this one: at most 1d,
    /// and at most the interval of `every`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<String>,
    /// A watch: fires if it is not touched within this duration: 100ms to 36500d.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<String>,
    /// With `within`: the duration by which all touches together can postpone a fire. Default: no
    /// limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    postpone_max: Option<String>,
    /// With `within`: whether the watch fires again when it is touched after it has fired.
    /// Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_return: Option<bool>,
    /// Where the task is delivered. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetBody>,
    /// Any JSON value, delivered as it was sent: up to 256 KiB, nested at most 100 deep.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<&'a RawValue>,
    /// Any other payload, in base64 with padding: up to 256 KiB decoded. Instead of `payload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// The content type of `payload_base64`. Default: `application/octet-stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<Cow<'a, str>>,
    /// How often a fire may be delivered. Default: `at_least_once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    guarantee: Option<GuaranteeBody>,
    /// How failed attempts are repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryBody>,
    /// How long one attempt may take: 10ms to 15m. Default: 10s. For queues it is the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
    /// A fire that was not delivered this long after it was due becomes a dead letter: 1ms to
    /// 36500d. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_after: Option<String>,
    /// Names and values to find the task by: at most 16, names up to 64 bytes, values up to 256.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    labels: Pairs,
}

/// Where deliveries go: a webhook, or a queue that workers subscribe to.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Target)]
#[serde(rename_all = "snake_case")]
enum TargetBody {
    /// A webhook.
    Http(HttpBody),
    /// The name of a queue: 1 to 128 letters, digits, `.`, `_` or `-`.
    Queue(String),
}

/// A webhook.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = HttpTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `url`")]
struct HttpBody {
    /// An absolute `http://` or `https://` URL of up to 2048 bytes.
    url: String,
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`. Default: `POST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    /// Headers to send: at most 32, together at most 4096 bytes.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    headers: Pairs,
}

/// How often a fire may be delivered: `at_most_once` never twice, `at_least_once` until an attempt
/// succeeds or none is left, `exactly_once` like that, with a fire id by which the receiver
/// recognizes repetitions.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Guarantee)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names are the wire's")]
enum GuaranteeBody {
    AtMostOnce,
    AtLeastOnce,
    ExactlyOnce,
}

/// How failed attempts are repeated.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = RetryPolicy)]
#[serde(deny_unknown_fields, expecting = "an object with `attempts_max`, `backoff` and `jitter`")]
struct RetryBody {
    /// Attempts of one fire, the first included: 1 to 100. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>)]
    attempts_max: Option<i64>,
    /// The pauses between attempts. Default: exponential, from 1s to 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backoff: Option<BackoffBody>,
    /// The random share of each pause, from 0 to 1. Default: 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jitter: Option<f64>,
}

/// The pauses between attempts, each at most 30d.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Backoff)]
#[serde(rename_all = "snake_case")]
enum BackoffBody {
    /// The same pause before every further attempt.
    Fixed(String),
    /// Pauses that grow.
    Exponential(ExponentialBody),
    /// One pause per further attempt, 1 to 99 of them. The last one is used again if there are
    /// more attempts.
    List(Vec<String>),
}

/// Pauses that grow by a factor.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = ExponentialBackoff)]
#[serde(deny_unknown_fields, expecting = "an object with `first`, `factor` and `max`")]
struct ExponentialBody {
    /// The first pause.
    first: String,
    /// What each pause is multiplied by to get the next: 1 to 100. Default: 2.
    #[serde(default = "ExponentialBody::factor_default")]
    factor: f64,
    /// The longest pause. Default: 5m.
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
