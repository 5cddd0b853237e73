//! The JSON form of a task: the types that are parsed from requests and written to responses.
//!
//! `parse` turns a [`TaskBody`] into a checked `NewTask`, `render` writes a task back, `schedule`
//! does both for the fields that say when it is due. `whole_number` reads numbers;
//! `schedule_fields`, `payload` and `pairs` hold checks that gRPC shares. Doc comments of fields
//! are the OpenAPI descriptions, `document` has the limits that they state. No other part of the
//! broker knows these types.

mod document;
mod pairs;
mod parse;
mod payload;
mod render;
mod schedule;
mod schedule_fields;
mod whole_number;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::schema::{
    Base64Text, ContentTypeText, CronText, HeaderMap, KeyText, LabelMap, UrlText, ZoneText,
};
use document::{
    AttemptsMax, Expiry, Factor, FireCount, MethodName, PayloadJson, SeriesJitter, Share,
    TaskFields, Timeout,
};
pub(crate) use document::{
    Delay, InstantText, Interval, KeylessTask, NewTaskBody, Pause, StateName,
};
use pairs::Pairs;
pub(crate) use pairs::check_headers;
pub(crate) use parse::{TimeValue, factor_thousandths, parse_duration_field, parse_time_field};
pub(crate) use payload::check_json;
pub(crate) use render::{EndName, EndedTask, TaskAnswer, end_name};
use schedule::{DstBody, MisfireBody, OverlapBody};
pub(crate) use schedule_fields::{ScheduleFields, check_fires, parse_cron};
pub(crate) use whole_number::WholeNumber;

/// A task to create. Exactly one of `in`, `at`, `cron`, `every` and `within` says when it fires.
///
/// Durations are text like `500ms`, `15s`, `15m`, `1h30m`, `30d` or `PT15M`.
#[derive(Debug, Deserialize, Serialize, Default, ToSchema)]
#[serde(deny_unknown_fields, default, expecting = "one task, a JSON object")]
pub(crate) struct TaskBody<'a> {
    /// The caller's own name for the task, unique in its namespace. A task with the same key is
    /// replaced. Without a key the task has only its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<KeyText>)]
    key: Option<String>,
    /// Fires once, after this duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Delay>)]
    r#in: Option<String>,
    /// Fires once, at this time. A time in the past fires at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<TimeValue>,
    /// Fires again and again by a cron expression. `@every 5m` is the same as `every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CronText>)]
    cron: Option<String>,
    /// With `cron`: the IANA name of its time zone. Default: UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ZoneText>)]
    timezone: Option<String>,
    /// With `cron`: what happens to local times that a clock change skips or repeats. Default:
    /// decided by the expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<DstBody>,
    /// Fires again and again at this interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Interval>)]
    every: Option<String>,
    /// With `cron` and `every`: no fire before this time. Intervals of `every` count from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<TimeValue>,
    /// With `cron` and `every`: no fire after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<TimeValue>,
    /// With `cron` and `every`: how many times the task fires. Skipped fires do not count. Default:
    /// no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FireCount>)]
    count: Option<WholeNumber>,
    /// With `cron` and `every`: what happens to fires that were missed. Default: `fire_once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    misfire: Option<MisfireBody>,
    /// With `cron` and `every`: what happens to a fire that is due while the previous one has not
    /// ended. Default: `allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<OverlapBody>,
    /// With `cron` and `every`: delays each fire by a random duration up to this one: at most the
    /// interval of `every`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SeriesJitter>)]
    jitter: Option<String>,
    /// A watch: fires if it is not touched within this duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Interval>)]
    within: Option<String>,
    /// With `within`: the duration by which all touches together can postpone a fire, at least
    /// `within`. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Interval>)]
    postpone_max: Option<String>,
    /// With `within`: whether the watch fires again when it is touched after it has fired.
    /// Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_return: Option<bool>,
    /// Where the task is delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = TargetBody)]
    target: Option<TargetBody>,
    /// Any JSON value, delivered as it was sent.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = PayloadJson)]
    payload: Option<&'a RawValue>,
    /// Any other payload, in base64 with padding. Instead of `payload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Base64Text>)]
    payload_base64: Option<String>,
    /// The content type of `payload_base64`. Default: `application/octet-stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ContentTypeText>)]
    content_type: Option<Cow<'a, str>>,
    /// How often a fire may be delivered. Default: `at_least_once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    guarantee: Option<GuaranteeBody>,
    /// How failed attempts are repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<RetryBody>,
    /// How long one attempt may take. For queues it is the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timeout>)]
    timeout: Option<String>,
    /// A fire that was not delivered this long after it was due becomes a dead letter. Default:
    /// never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Expiry>)]
    expires_after: Option<String>,
    /// Names and values to find the task by.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = LabelMap)]
    labels: Pairs,
}

/// Where deliveries go: a webhook, or a queue that workers subscribe to.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum TargetBody {
    /// A webhook.
    Http(HttpBody),
    /// The name of a queue.
    Queue(String),
}

/// A webhook.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = HttpTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `url`")]
struct HttpBody {
    /// Where the request is sent.
    #[schema(value_type = UrlText)]
    url: String,
    /// The method of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MethodName>)]
    method: Option<String>,
    /// Headers to send.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = HeaderMap)]
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
    /// Attempts of one fire, the first included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AttemptsMax>)]
    attempts_max: Option<WholeNumber>,
    /// The pauses between attempts. Default: exponential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backoff: Option<BackoffBody>,
    /// The random share of each pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Share>)]
    jitter: Option<f64>,
}

/// The pauses between attempts.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum BackoffBody {
    /// The same pause before every further attempt.
    Fixed(String),
    /// Pauses that grow.
    Exponential(ExponentialBody),
    /// One pause per further attempt. The last one is used again if there are more attempts.
    List(Vec<String>),
}

/// Pauses that grow by a factor.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = ExponentialBackoff)]
#[serde(deny_unknown_fields, expecting = "an object with `first`, `factor` and `max`")]
struct ExponentialBody {
    /// The first pause.
    #[schema(value_type = Pause)]
    first: String,
    /// What each pause is multiplied by to get the next.
    #[serde(default = "ExponentialBody::factor_default")]
    #[schema(value_type = Factor)]
    factor: f64,
    /// The longest pause.
    #[serde(default = "ExponentialBody::max_default")]
    #[schema(value_type = Pause)]
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
