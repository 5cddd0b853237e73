//! The wire form of a task: the types that JSON is read into and written from.
//!
//! `sent` reads a task as callers send it into a checked `NewTask`; `shown` writes a task as they get it back; `schedule` does both for
//! when it is due; `payload` says which payloads can be read back, `pairs` that no label and no header is given twice. These types exist only here; nothing behind this folder knows of JSON.

mod pairs;
mod payload;
mod schedule;
mod sent;
mod shown;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use pairs::Pairs;
pub(crate) use pairs::check_headers;
pub(crate) use payload::check_json;
use schedule::{DstBody, MisfireBody, OverlapBody};
pub(crate) use sent::{Instant, duration, factor_thousandths, instant};
pub(crate) use shown::{EndedTask, TaskAnswer, end_name};

/// A task as sent.
#[derive(Debug, Deserialize, Serialize, Default, ToSchema)]
#[schema(as = NewTask)]
#[serde(deny_unknown_fields, default, expecting = "one task, a JSON object")]
pub(crate) struct TaskBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#in: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Instant>,
    /// Again and again, by an expression; `@every 5m` is an interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    /// With `cron`: the IANA name of the zone that its times are read in; UTC unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    timezone: Option<String>,
    /// With `cron`: what happens when clocks change; by the kind of the expression unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<DstBody>,
    /// Again and again, so far apart; at least 100ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<String>,
    /// With `cron` and `every`: no fire before. The intervals of `every` are counted from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    starts_at: Option<Instant>,
    /// With `cron` and `every`: no fire after.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends_at: Option<Instant>,
    /// With `cron` and `every`: so many fires; what is skipped does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    /// With `cron` and `every`; `fire_once` unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    misfire: Option<MisfireBody>,
    /// With `cron` and `every`; `allow` unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<OverlapBody>,
    /// With `cron` and `every`: each fire is up to so much later, by chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<String>,
    /// A watch: unless touched within this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<String>,
    /// With `within`: how long touches can put off a fire, all together.
    #[serde(skip_serializing_if = "Option::is_none")]
    postpone_max: Option<String>,
    /// With `within`: whether there is another fire when a watch that has fired is touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_return: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetBody>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
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
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    labels: Pairs,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Target)]
#[serde(rename_all = "snake_case")]
enum TargetBody {
    Http(HttpBody),
    Queue(String),
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = HttpTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `url`")]
struct HttpBody {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    headers: Pairs,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Guarantee)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names are the wire's")]
enum GuaranteeBody {
    AtMostOnce,
    AtLeastOnce,
    ExactlyOnce,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = RetryPolicy)]
#[serde(deny_unknown_fields, expecting = "an object with `attempts_max`, `backoff` and `jitter`")]
struct RetryBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>)]
    attempts_max: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backoff: Option<BackoffBody>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jitter: Option<f64>,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Backoff)]
#[serde(rename_all = "snake_case")]
enum BackoffBody {
    Fixed(String),
    Exponential(ExponentialBody),
    List(Vec<String>),
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = ExponentialBackoff)]
#[serde(deny_unknown_fields, expecting = "an object with `first`, `factor` and `max`")]
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
