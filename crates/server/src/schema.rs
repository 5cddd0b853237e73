//! Schemas of the OpenAPI document: texts, durations, times, numbers and lists with their limits.
//!
//! Each limit is the constant that the check of the same field uses. A schema is written as JSON,
//! and [`documented!`] gives it a type, so that a field of a body can name it. What JSON Schema
//! cannot say has a keyword of its own: `x-minimum` and `x-maximum` limit a duration or a time in
//! text, `x-max-bytes` the bytes of a text in UTF-8. `names` has the texts that several routes use,
//! `message_names` those of messages and gRPC methods.

mod message_names;
mod names;

use std::time::Duration;

use punctual_core::{Timestamp, format_duration};
use serde_json::{Value, json};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType};
use utoipa::openapi::{RefOr, Schema};

pub(crate) use message_names::{
    ExchangeText, GrpcMethodText, KafkaTopicText, MessageHeaderMap, MessageKeyText, MqttTopicText,
    NatsSubjectText, StreamKeyText,
};
pub(crate) use names::{
    AlarmNameText, Base64Text, ConnectionText, ContentTypeText, CronText, CursorText, FireIdText,
    GrpcUrlText, HeaderMap, InstantText, KeyText, LabelMap, ParamMap, QueueText, StatementText,
    TaskIdText, UrlText, ZoneText, at_every, namespace,
};

/// Defines a type that stands for a schema of the document, or, after `impl`, gives a schema to a
/// type. After `fields of` is the type whose fields the schema has, after `uses` those that it
/// refers to and that no field names.
macro_rules! documented {
    (
        $(#[$doc:meta])* $type:ident, $name:literal, $schema:expr
        $(, fields of $body:ident)? $(, uses $used:ident)*
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) enum $type {}

        $crate::schema::documented!(
            impl $type, $name, $schema $(, fields of $body)? $(, uses $used)*
        );
    };
    (
        impl $type:ident, $name:literal, $schema:expr
        $(, fields of $body:ident)? $(, uses $used:ident)*
    ) => {
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                $crate::schema::of(&$schema)
            }
        }

        impl utoipa::ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn schemas(_all: &mut $crate::schema::Schemas) {
                $(<$body as utoipa::ToSchema>::schemas(_all);)?
                $($crate::schema::add::<$used>(_all);)*
            }
        }
    };
}
pub(crate) use documented;

/// The grammar of durations; `core/duration` reads them. Only the empty text is not excluded.
const DURATION: &str = "(?:(?:[0-9]+w)?(?:[0-9]+d)?(?:[0-9]+h)?\
    (?:[0-9]+m)?(?:[0-9]+s)?(?:[0-9]+ms)?\
    |P(?:(?:[0-9]+W(?:[0-9]+D)?|[0-9]+D)(?:TCLOCK)?|TCLOCK))";
/// The part of an ISO 8601 duration after its `T`.
const DURATION_CLOCK: &str = "(?:[0-9]+H(?:[0-9]+M)?(?:SECONDS)?|[0-9]+M(?:SECONDS)?|SECONDS)";
const DURATION_SECONDS: &str = "[0-9]+(?:[.][0-9]+)?S";

/// Schemas by name.
pub(crate) type Schemas = Vec<(String, RefOr<Schema>)>;

/// Adds the schema of a type, and those that it refers to.
pub(crate) fn add<T: utoipa::ToSchema>(all: &mut Schemas) {
    all.push((T::name().into_owned(), T::schema()));
    T::schemas(all);
}

/// A schema from its JSON. The types of utoipa cannot have `oneOf` beside `properties`.
pub(crate) fn of(schema: &Value) -> RefOr<Schema> {
    let keywords = schema.as_object().into_iter().flatten();
    let keywords = keywords.map(|(name, value)| (name.clone(), value.clone())).collect();
    let object = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
    object.extensions(Some(keywords)).build().into()
}

/// A reference to another schema of the document.
pub(crate) fn reference<T: utoipa::ToSchema>() -> Value {
    json!({"$ref": format!("#/components/schemas/{}", T::name())})
}

/// A duration within limits.
pub(crate) fn duration(min: Duration, max: Duration) -> Value {
    let (min, max) = (format_duration(min), format_duration(max));
    json!({
        "type": "string",
        "description": format!("A duration from {min} to {max}."),
        "minLength": 1,
        "pattern": format!("^{}$", duration_grammar()),
        "x-minimum": min,
        "x-maximum": max,
    })
}

/// The grammar of durations as a part of a pattern.
fn duration_grammar() -> String {
    let clock = DURATION_CLOCK.replace("SECONDS", DURATION_SECONDS);
    DURATION.replace("CLOCK", &clock)
}

/// A time as callers send it: RFC 3339 text, or milliseconds.
pub(crate) fn time() -> Value {
    let (min, max) = (Timestamp::EPOCH, Timestamp::MAX);
    let description = "A time: RFC 3339 text like `2030-01-31T12:00:00Z`, or whole milliseconds \
                       since the Unix epoch.";
    json!({
        "description": format!("{description} From {min} to {max}."),
        "oneOf": [
            {
                "type": "integer", "format": "int64",
                "minimum": min.as_millis(), "maximum": max.as_millis(),
            },
            {
                "type": "string", "format": "date-time",
                "x-minimum": min.to_string(), "x-maximum": max.to_string(),
            },
        ],
    })
}

/// A whole number within limits.
pub(crate) fn integer(min: u64, max: u64) -> Value {
    json!({"type": "integer", "format": "int64", "minimum": min, "maximum": max})
}

/// A whole number within limits that may be left out.
pub(crate) fn count(min: usize, max: usize, default: usize) -> Value {
    json!({"type": "integer", "minimum": min, "maximum": max, "default": default})
}

/// A number within limits.
pub(crate) fn number(min: f64, max: f64) -> Value {
    json!({"type": "number", "minimum": min, "maximum": max})
}

/// One of some texts.
pub(crate) fn one_of<const COUNT: usize>(names: [&str; COUNT]) -> Value {
    json!({"type": "string", "enum": names.as_slice()})
}

/// A list of `min` to `max` entries.
pub(crate) fn array(entry: &Value, min: usize, max: usize) -> Value {
    json!({"type": "array", "items": entry, "minItems": min, "maxItems": max})
}

/// An object with exactly one field, which is one of some.
pub(crate) fn one_field(fields: &[(&str, Value)]) -> Value {
    let alternatives = fields.iter().map(|(name, schema)| {
        json!({
            "type": "object",
            "required": [name],
            "properties": {*name: schema},
            "additionalProperties": false,
        })
    });
    json!({"oneOf": alternatives.collect::<Value>()})
}

/// Some fields of an object, of which exactly one is given: one alternative per field. In each, the
/// others are absent or `null`.
pub(crate) fn exactly_one(fields: &[(&str, Value)]) -> Value {
    let alternatives = fields.iter().map(|(chosen, schema)| {
        let others = fields.iter().map(|(name, _)| *name).filter(|name| name != chosen);
        chosen_with_absent(chosen, schema, others)
    });
    alternatives.collect()
}

/// An object that has one field, and of some others none.
pub(crate) fn chosen_with_absent<'a>(
    chosen: &str,
    schema: &Value,
    absent: impl Iterator<Item = &'a str>,
) -> Value {
    let mut object = all_absent(absent);
    object["required"] = json!([chosen]);
    object["properties"][chosen] = schema.clone();
    object
}

/// An object that has none of some fields; `null` counts as absent.
pub(crate) fn all_absent<'a>(names: impl Iterator<Item = &'a str>) -> Value {
    let properties: Value = names.map(|name| (name.to_owned(), json!({"type": "null"}))).collect();
    json!({"properties": properties})
}

/// Adds keywords to a schema. Those of an object that the schema has already are replaced.
pub(crate) fn with_keywords(schema: &RefOr<Schema>, keywords: &Value) -> Value {
    let mut schema = serde_json::to_value(schema).unwrap_or_default();
    for (name, value) in keywords.as_object().into_iter().flatten() {
        schema[name] = value.clone();
    }
    schema
}

#[cfg(test)]
pub(crate) mod tests {
    use punctual_core::parse_duration;
    use regex::Regex;

    use super::*;

    /// Returns a check of a text against the pattern and the lengths of a schema.
    pub(crate) fn check_of(schema: &Value) -> impl Fn(&str) -> bool + use<> {
        let pattern = Regex::new(schema["pattern"].as_str().unwrap()).unwrap();
        let [min, max] = ["minLength", "maxLength"].map(|name| schema[name].as_u64());
        move |text| {
            let chars = text.chars().count() as u64;
            let fits = min.is_none_or(|min| chars >= min) && max.is_none_or(|max| chars <= max);
            fits && pattern.is_match(text)
        }
    }

    #[test]
    fn the_pattern_of_durations_is_their_grammar() {
        let is_documented = check_of(&duration(Duration::ZERO, Duration::MAX));
        let parts = ["", "P", "T", "1w", "2d", "3h", "4m", "5s", "6ms", "1W", "2D", "3H", "4M"];
        let more = ["5S", "0.5S", "1.S", "1Y", "-1s", " ", "0s", "s", "1"];
        let parts: Vec<&str> = parts.into_iter().chain(more).collect();
        let mut texts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        for _ in 0..3 {
            let longer = texts
                .iter()
                .flat_map(|text| parts.iter().skip(1).map(move |part| format!("{text}{part}")));
            texts = longer.collect();
            for text in &texts {
                assert_eq!(is_documented(text), parse_duration(text).is_ok(), "{text:?}");
            }
        }
        assert!(!is_documented(""));
    }
}
