//! The rules for the answers of a webhook in JSON: which are a success, and which are a refusal.
//!
//! The core checks the rules, and `courier/webhook/answer` applies them.

use std::fmt;

use punctual_core::{
    AnswerRules, EXPECTED_BYTES_MAX, EXPECTED_VALUES_MAX, ExpectedValue, Invalid, STATUSES_MAX,
};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::whole_number::WholeNumber;
use crate::schema::{array, documented, integer};

/// Which answers are a success. All that is given must hold.
#[derive(Debug, Default, serde::Deserialize, serde::Serialize, ToSchema)]
#[schema(as = SuccessRule)]
#[serde(deny_unknown_fields, default, expecting = "an object with `statuses` or `json`")]
pub(super) struct SuccessBody {
    /// The statuses that are a success. Default: 200 to 299.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = StatusList)]
    statuses: Vec<WholeNumber>,
    /// Values that the body must have, by JSON pointer. The body must be JSON of at most 64 KiB.
    #[serde(skip_serializing_if = "ExpectedJson::is_empty")]
    #[schema(value_type = ExpectedValueMap)]
    json: ExpectedJson,
}

/// Which answers are a refusal, after which no further attempt is made.
#[derive(Debug, Default, serde::Deserialize, serde::Serialize, ToSchema)]
#[schema(as = RefuseRule)]
#[serde(deny_unknown_fields, default, expecting = "an object with `statuses`")]
pub(super) struct RefusalBody {
    /// Statuses that refuse, in addition to 410.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = StatusList)]
    statuses: Vec<WholeNumber>,
}

documented!(
    /// Statuses of answers.
    StatusList,
    "StatusList",
    array(&integer(200, 599), 0, STATUSES_MAX)
);
documented!(
    /// Values that an answer must have.
    ExpectedValueMap,
    "ExpectedValues",
    json!({
        "type": "object",
        "description": "JSON values by JSON pointer (RFC 6901). Numbers are equal if their values \
                        are.",
        "maxProperties": EXPECTED_VALUES_MAX,
        "propertyNames": {
            "type": "string",
            "pattern": "^(?:/.*)?$",
            "maxLength": EXPECTED_BYTES_MAX,
            "x-max-bytes": EXPECTED_BYTES_MAX,
        },
        "additionalProperties": {"x-max-bytes": EXPECTED_BYTES_MAX},
    })
);

/// Expected values by pointer, in the order in which they were sent.
#[derive(Debug, Default)]
struct ExpectedJson(Vec<(String, Value)>);

impl ExpectedJson {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for ExpectedJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(pointer, value)| (pointer, value)))
    }
}

impl<'de> Deserialize<'de> for ExpectedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ExpectedJsonVisitor;

        impl<'de> Visitor<'de> for ExpectedJsonVisitor {
            type Value = ExpectedJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of JSON values by JSON pointer")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<ExpectedJson, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = object.next_entry()? {
                    values.push(value);
                }
                Ok(ExpectedJson(values))
            }
        }

        deserializer.deserialize_map(ExpectedJsonVisitor)
    }
}

/// Checks the rules of a webhook. Fields of errors are relative to the webhook.
pub(super) fn into_rules(
    success: Option<SuccessBody>,
    refuse: Option<RefusalBody>,
) -> Result<AnswerRules, Invalid> {
    let (success, refuse) = (success.unwrap_or_default(), refuse.unwrap_or_default());
    let values = success.json.0.into_iter();
    answer_rules(
        &numbers(&success.statuses),
        values.map(|(pointer, value)| (pointer, value.to_string())),
        &numbers(&refuse.statuses),
    )
}

/// Makes rules of numbers and pairs of a pointer and JSON text. Refuses a repeated pointer.
pub(crate) fn answer_rules(
    success: &[i64],
    values: impl Iterator<Item = (String, String)>,
    refuse: &[i64],
) -> Result<AnswerRules, Invalid> {
    let mut expected: Vec<ExpectedValue> = Vec::new();
    for (pointer, value) in values {
        if expected.iter().any(|other| other.pointer == pointer) {
            return Err(Invalid::new("success.json", format!("{pointer} is given twice")));
        }
        expected.push(ExpectedValue { pointer, value });
    }
    let success = statuses("success.statuses", success)?;
    AnswerRules::new(success, expected, statuses("refuse.statuses", refuse)?)
}

fn numbers(numbers: &[WholeNumber]) -> Vec<i64> {
    numbers.iter().map(|number| number.0).collect()
}

fn statuses(field: &str, numbers: &[i64]) -> Result<Vec<u16>, Invalid> {
    let status = |number: &i64| {
        let problem = || Invalid::new(field, format!("must be from 200 to 599, is {number}"));
        u16::try_from(*number).map_err(|_| problem())
    };
    numbers.iter().map(status).collect()
}

/// The rules as they were sent.
pub(super) fn of_rules(rules: &AnswerRules) -> (Option<SuccessBody>, Option<RefusalBody>) {
    let statuses = |list: &[u16]| list.iter().map(|it| WholeNumber(i64::from(*it))).collect();
    let values = rules.success_json().iter().map(|ExpectedValue { pointer, value }| {
        (pointer.clone(), serde_json::from_str(value).unwrap_or_default())
    });
    let success = SuccessBody {
        statuses: statuses(rules.success_statuses()),
        json: ExpectedJson(values.collect()),
    };
    let refuse = RefusalBody { statuses: statuses(rules.refuse_statuses()) };
    let has_success = !success.statuses.is_empty() || !success.json.is_empty();
    (has_success.then_some(success), (!refuse.statuses.is_empty()).then_some(refuse))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(success: &Value, refuse: &Value) -> Result<AnswerRules, Invalid> {
        let text = json!({"success": success, "refuse": refuse}).to_string();
        #[derive(serde::Deserialize)]
        struct RuleBodies {
            success: Option<SuccessBody>,
            refuse: Option<RefusalBody>,
        }
        let RuleBodies { success, refuse } = serde_json::from_str(&text).unwrap();
        into_rules(success, refuse)
    }

    #[test]
    fn rules_are_written_as_they_were_sent() {
        for (success, refuse) in [
            (json!({"statuses": [200, 204], "json": {"/errcode": 0}}), json!({"statuses": [400]})),
            (json!({"json": {"/a/0": "x", "/b": {"c": [null, 1.5]}}}), Value::Null),
            (Value::Null, json!({"statuses": [400, 404]})),
            (Value::Null, Value::Null),
        ] {
            let rules = read(&success, &refuse).unwrap();
            let (shown_success, shown_refuse) = of_rules(&rules);
            assert_eq!(serde_json::to_value(shown_success).unwrap(), success);
            assert_eq!(serde_json::to_value(shown_refuse).unwrap(), refuse);
        }
        let default = read(&json!({"statuses": [], "json": {}}), &json!({})).unwrap();
        assert!(default.is_default());
    }

    #[test]
    fn rules_that_make_no_sense_name_the_field() {
        let long = "x".repeat(260);
        for (success, refuse, field) in [
            (json!({"statuses": [70_000]}), Value::Null, "success.statuses"),
            (json!({"statuses": [-1]}), Value::Null, "success.statuses"),
            (Value::Null, json!({"statuses": [99]}), "refuse.statuses"),
            (json!({"json": {"errcode": 0}}), Value::Null, "success.json"),
            (json!({"json": {"/a": long}}), Value::Null, "success.json"),
        ] {
            assert_eq!(read(&success, &refuse).unwrap_err().field, field, "{success} {refuse}");
        }
        let twice = r#"{"json": {"/a": 0, "/a": 1}}"#;
        let invalid = into_rules(serde_json::from_str(twice).unwrap(), None).unwrap_err();
        assert_eq!(invalid.to_string(), "success.json: /a is given twice");
    }
}
