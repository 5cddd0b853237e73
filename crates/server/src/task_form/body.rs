//! The fields of a task in JSON, as they are sent and written.
//!
//! Doc comments of fields are the OpenAPI descriptions. `parse` checks a body, `render` writes one.

use std::borrow::Cow;
use std::time::Duration;

use punctual_core::{DELAY_MAX, EXPIRES_AFTER_MIN, INTERVAL_MIN, TIMEOUT_MAX, TIMEOUT_MIN};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::pairs::Pairs;
use super::payload::PayloadJson;
use super::retry::RetryBody;
use super::series::{DstBody, FireCount, MisfireBody, OverlapBody, SeriesJitter};
use super::target::TargetBody;
use super::time::TimeValue;
use super::whole_number::WholeNumber;
use crate::schema::{
    Base64Text, ContentTypeText, CronText, KeyText, LabelMap, ZoneText, documented, duration,
};

documented!(
    /// How long after it is accepted a task is due.
    Delay,
    "Delay",
    duration(Duration::ZERO, DELAY_MAX)
);
documented!(
    /// The interval of `every` or of a watch.
    Interval,
    "Interval",
    duration(INTERVAL_MIN, DELAY_MAX)
);
documented!(
    /// How long one attempt may take.
    Timeout,
    "Timeout",
    duration(TIMEOUT_MIN, TIMEOUT_MAX)
);
documented!(
    /// When a fire expires.
    Expiry,
    "Expiry",
    duration(EXPIRES_AFTER_MIN, DELAY_MAX)
);

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
    pub(super) key: Option<String>,
    /// Fires once, after this duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Delay>)]
    pub(super) r#in: Option<String>,
    /// Fires once, at this time. A time in the past fires at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<TimeValue>,
    /// Fires again and again by a cron expression. `@every 5m` is the same as `every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CronText>)]
    pub(super) cron: Option<String>,
    /// With `cron`: the IANA name of its time zone. Default: UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ZoneText>)]
    pub(super) timezone: Option<String>,
    /// With `cron`: what happens to local times that a clock change skips or repeats. Default:
    /// decided by the expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dst: Option<DstBody>,
    /// Fires again and again at this interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Interval>)]
    pub(super) every: Option<String>,
    /// With `cron` and `every`: no fire before this time. Intervals of `every` count from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) starts_at: Option<TimeValue>,
    /// With `cron` and `every`: no fire after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ends_at: Option<TimeValue>,
    /// With `cron` and `every`: how many times the task fires. Skipped fires do not count. Default:
    /// no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<FireCount>)]
    pub(super) count: Option<WholeNumber>,
    /// With `cron` and `every`: what happens to fires that were missed. Default: `fire_once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) misfire: Option<MisfireBody>,
    /// With `cron` and `every`: what happens to a fire that is due while the previous one has not
    /// ended. Default: `allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) overlap: Option<OverlapBody>,
    /// With `cron` and `every`: delays each fire by a random duration up to this one: at most the
    /// interval of `every`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SeriesJitter>)]
    pub(super) jitter: Option<String>,
    /// A watch: fires if it is not touched within this duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Interval>)]
    pub(super) within: Option<String>,
    /// With `within`: the duration by which all touches together can postpone a fire, at least
    /// `within`. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Interval>)]
    pub(super) postpone_max: Option<String>,
    /// With `within`: whether the watch fires again when it is touched after it has fired.
    /// Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) on_return: Option<bool>,
    /// Where the task is delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = TargetBody)]
    pub(super) target: Option<TargetBody>,
    /// Any JSON value, delivered as it was sent.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = PayloadJson)]
    pub(super) payload: Option<&'a RawValue>,
    /// Any other payload, in base64 with padding. Instead of `payload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Base64Text>)]
    pub(super) payload_base64: Option<String>,
    /// The content type of `payload_base64`. Default: `application/octet-stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ContentTypeText>)]
    pub(super) content_type: Option<Cow<'a, str>>,
    /// How often a fire may be delivered. Default: `at_least_once`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) guarantee: Option<GuaranteeBody>,
    /// How failed attempts are repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry: Option<RetryBody>,
    /// How long one attempt may take. For queues it is the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timeout>)]
    pub(super) timeout: Option<String>,
    /// A fire that was not delivered this long after it was due becomes a dead letter. Default:
    /// never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Expiry>)]
    pub(super) expires_after: Option<String>,
    /// Names and values to find the task by.
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = LabelMap)]
    pub(super) labels: Pairs,
    /// Whether the task is created paused: it does not fire until it is resumed. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paused: Option<bool>,
    /// Receives the record of each fire that succeeded, as a delivery of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TargetBody>)]
    pub(super) on_done: Option<TargetBody>,
    /// Receives the record of each fire that became a dead letter, as a delivery of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TargetBody>)]
    pub(super) on_dead: Option<TargetBody>,
}

/// How often a fire may be delivered: `at_most_once` never twice, `at_least_once` until an attempt
/// succeeds or none is left, `exactly_once` like that, with a fire id by which the receiver
/// recognizes repetitions.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = Guarantee)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names are the wire's")]
pub(super) enum GuaranteeBody {
    AtMostOnce,
    AtLeastOnce,
    ExactlyOnce,
}
