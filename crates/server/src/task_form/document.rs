//! The schemas of a task in the OpenAPI document: which of its fields go together.
//!
//! [`NewTaskBody`] stands for a task as it is sent: exactly one kind of schedule with the fields
//! that belong to it, and at most one kind of payload. [`TaskFields`] has the same fields without
//! these rules, for tasks in responses. A field that is `null` counts as absent.

use serde_json::{Value, json};

use super::body::TaskBody;
use super::schedule_fields::{CRON_FIELDS, SERIES_FIELDS, WATCH_FIELDS};
use crate::schema::{
    all_absent, at_every, chosen_with_absent, documented, reference, with_keywords,
};

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
