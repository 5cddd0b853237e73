//! The schemas of a task in the OpenAPI document: limits of its fields, and which go together.
//!
//! [`NewTaskBody`] stands for a task as it is sent: exactly one kind of schedule with the fields
//! that belong to it, and at most one kind of payload. [`TaskFields`] has the same fields without
//! these rules, for tasks in responses. A field that is `null` counts as absent.

use std::time::Duration;

use punctual_core::{
    ATTEMPTS_DEFAULT, ATTEMPTS_MAX, BACKOFF_FACTOR_MAX, BACKOFF_LIST_MAX, BACKOFF_MAX, DELAY_MAX,
    EXPIRES_AFTER_MIN, INTERVAL_MIN, JITTER_MAX, Method, PAYLOAD_BYTES_MAX, TIMEOUT_MAX,
    TIMEOUT_MIN, TaskState,
};
use serde_json::{Value, json};

use super::payload::PAYLOAD_DEPTH_MAX;
use super::render::state_name;
use super::schedule_fields::{CRON_FIELDS, SERIES_FIELDS, WATCH_FIELDS};
use super::{BackoffBody, ExponentialBody, HttpBody, TargetBody, TaskBody};
pub(crate) use crate::schema::InstantText;
use crate::schema::{
    QueueText, all_absent, array, at_every, chosen_with_absent, count, documented, duration,
    integer, number, one_field, one_of, reference, with_keywords,
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
    /// The jitter of a series.
    SeriesJitter,
    "SeriesJitter",
    duration(Duration::ZERO, JITTER_MAX)
);
documented!(
    /// How many times a series fires.
    FireCount,
    "FireCount",
    integer(1, u32::MAX.into())
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
documented!(
    /// A pause between two attempts.
    Pause,
    "Pause",
    duration(Duration::ZERO, BACKOFF_MAX)
);
documented!(
    /// The pauses of a backoff list.
    PauseList,
    "PauseList",
    array(&reference::<Pause>(), 1, BACKOFF_LIST_MAX)
);
documented!(
    /// The factor of an exponential backoff.
    Factor,
    "Factor",
    {
        let mut factor = number(1.0, BACKOFF_FACTOR_MAX.into());
        factor["default"] = ExponentialBody::factor_default().into();
        factor
    }
);
documented!(
    /// Attempts of one fire.
    AttemptsMax,
    "AttemptsMax",
    count(1, ATTEMPTS_MAX.into(), ATTEMPTS_DEFAULT.into())
);
documented!(
    /// A share of a pause.
    Share,
    "Share",
    number(0.0, 1.0)
);
documented!(
    /// The method of a webhook.
    MethodName,
    "Method",
    {
        let mut method = one_of(Method::ALL.map(Method::as_str));
        method["default"] = Method::default().as_str().into();
        method
    }
);
documented!(
    impl TargetBody,
    "Target",
    {
        let (http, queue) = (reference::<HttpBody>(), reference::<QueueText>());
        let mut target = one_field(&[("http", http), ("queue", queue)]);
        target["description"] =
            "Where deliveries go: a webhook, or a queue that workers subscribe to.".into();
        target
    },
    uses HttpBody
);
documented!(
    impl BackoffBody,
    "Backoff",
    {
        let mut backoff = one_field(&[
            ("fixed", reference::<Pause>()),
            ("exponential", reference::<ExponentialBody>()),
            ("list", reference::<PauseList>()),
        ]);
        backoff["description"] = "The pauses between attempts: the same each time, growing, or one \
                                  per further attempt, of which the last is used again."
            .into();
        backoff
    },
    uses ExponentialBody,
    uses PauseList
);
documented!(
    /// Any JSON value within limits.
    PayloadJson,
    "Payload",
    json!({
        "description": "Any JSON value, as it was sent.",
        "x-max-bytes": PAYLOAD_BYTES_MAX,
        "x-max-depth": PAYLOAD_DEPTH_MAX,
    })
);
documented!(
    /// The state of a task.
    StateName,
    "State",
    one_of(
        [
            TaskState::Scheduled,
            TaskState::Firing,
            TaskState::Paused,
            TaskState::Done,
            TaskState::Dead,
            TaskState::Cancelled,
        ]
        .map(state_name)
    )
);
documented!(
    /// The fields of a task, without the rules which of them go together.
    TaskFields,
    "TaskFields",
    with_keywords(&TaskBody::schema(), &json!({"additionalProperties": true})),
    fields of TaskBody
);
documented!(
    /// A task to create.
    NewTaskBody,
    "NewTask",
    with_keywords(
        &TaskBody::schema(),
        &json!({
            "required": ["target"],
            "oneOf": schedules(),
            "anyOf": payloads(),
        }),
    ),
    fields of TaskBody
);
documented!(
    /// A task to create for a key that is given elsewhere.
    KeylessTask,
    "NewTaskWithoutKey",
    json!({"allOf": [reference::<NewTaskBody>(), all_absent(["key"].into_iter())]})
);

/// The kinds of schedules: in each, the fields that do not belong to it are absent.
fn schedules() -> Value {
    let text = json!({"type": "string"});
    let plain_cron = json!({"type": "string", "not": {"pattern": at_every()}});
    let series: Vec<&str> = SERIES_FIELDS.into();
    let kinds = [
        ("in", text.clone(), vec![]),
        ("at", json!({"type": ["string", "integer"]}), vec![]),
        ("cron", plain_cron, [&CRON_FIELDS[..], &SERIES_FIELDS].concat()),
        ("cron", json!({"type": "string", "pattern": at_every()}), series.clone()),
        ("every", text.clone(), series),
        ("within", text, WATCH_FIELDS.into()),
    ];
    let all: Vec<&str> = ["in", "at", "cron", "every", "within"]
        .into_iter()
        .chain(CRON_FIELDS)
        .chain(SERIES_FIELDS)
        .chain(WATCH_FIELDS)
        .collect();
    let alternatives = kinds.iter().map(|(kind, schema, belong)| {
        let absent = all.iter().copied().filter(|name| name != kind && !belong.contains(name));
        chosen_with_absent(kind, schema, absent)
    });
    alternatives.collect()
}

/// The kinds of payloads: JSON or none, or base64 with its content type.
fn payloads() -> Value {
    json!([
        all_absent(["payload_base64", "content_type"].into_iter()),
        chosen_with_absent("payload_base64", &json!({"type": "string"}), ["payload"].into_iter()),
    ])
}
