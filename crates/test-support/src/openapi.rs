//! The OpenAPI document of a broker, and whether values and answers follow it.
//!
//! [`ApiDocument::check`] knows as much of JSON Schema as the document uses, and panics at a
//! keyword that it does not know.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

/// Keywords that describe and do not restrict.
const DESCRIBING: [&str; 11] = [
    "$ref",
    "additionalProperties",
    "contentEncoding",
    "default",
    "description",
    "format",
    "x-max-bytes",
    "x-max-depth",
    "x-maximum",
    "x-minimum",
    "example",
];

/// The document that a broker serves at `/openapi.json`.
pub struct ApiDocument(pub Value);

impl ApiDocument {
    /// Finds an operation by its method and the path of a request.
    pub fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let path = path.split('?').next()?;
        let paths = self.0["paths"].as_object()?;
        // A path without parameters is preferred to one with them.
        let fits = |template: &str| {
            let is_parameter = |part: &str| part.starts_with('{');
            template.split('/').count() == path.split('/').count()
                && template
                    .split('/')
                    .zip(path.split('/'))
                    .all(|(want, got)| (is_parameter(want) && !got.is_empty()) || want == got)
        };
        let found = paths.iter().filter(|(template, _)| fits(template));
        let (_, operations) = found.min_by_key(|(template, _)| template.matches('{').count())?;
        operations.get(method.to_lowercase())
    }

    /// Asserts that an answer has a status that the document lists, and the form that it gives it.
    /// Calls that the document does not have are not checked.
    pub fn assert_answer(&self, method: &str, path: &str, status: u16, body: &Value) {
        let Some(operation) = self.operation(method, path) else {
            return;
        };
        let response = &operation["responses"][status.to_string()];
        assert!(!response.is_null(), "{method} {path}: {status} is not documented: {body}");
        let kind = if status >= 400 { "application/problem+json" } else { "application/json" };
        let schema = &response["content"][kind]["schema"];
        if let Err(why) = self.check(schema, body) {
            panic!("{method} {path}: {status} {body} is not as documented: {why}");
        }
    }

    /// Returns a schema itself if it refers to another one.
    pub fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let Some(name) = schema["$ref"].as_str() else {
            return schema;
        };
        let found = self.0.pointer(name.trim_start_matches('#'));
        self.resolve(found.unwrap_or_else(|| panic!("{name} is missing")))
    }

    /// Checks a value against a schema.
    pub fn check(&self, schema: &Value, value: &Value) -> Result<(), String> {
        let schema = self.resolve(schema);
        let Some(keywords) = schema.as_object() else {
            return Ok(());
        };
        for (keyword, rule) in keywords {
            if !self.fits(schema, keyword, rule, value) {
                return Err(format!("{value} does not fit {keyword}: {rule}"));
            }
        }
        Ok(())
    }

    fn fits(&self, schema: &Value, keyword: &str, rule: &Value, value: &Value) -> bool {
        let fits = |schema: &Value, value: &Value| self.check(schema, value).is_ok();
        let number = || value.as_f64();
        let limit = || rule.as_f64().unwrap();
        #[expect(clippy::cast_precision_loss, reason = "lengths are small")]
        let length = |length: Option<usize>| length.map(|length| length as f64);
        let chars = || length(value.as_str().map(|text| text.chars().count()));
        let items = || length(value.as_array().map(Vec::len));
        let fields = || length(value.as_object().map(serde_json::Map::len));
        let alternatives = || rule.as_array().unwrap().iter();
        match keyword {
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is_of_type(kind, value)),
                kind => is_of_type(kind, value),
            },
            "required" => value.as_object().is_none_or(|fields| {
                alternatives().all(|name| fields.contains_key(name.as_str().unwrap()))
            }),
            "enum" => alternatives().any(|one| one == value),
            "const" => rule == value,
            "oneOf" => alternatives().filter(|one| fits(one, value)).count() == 1,
            "anyOf" => alternatives().any(|one| fits(one, value)),
            "allOf" => alternatives().all(|one| fits(one, value)),
            "not" => !fits(rule, value),
            "minimum" => number().is_none_or(|number| number >= limit()),
            "maximum" => number().is_none_or(|number| number <= limit()),
            "minLength" => chars().is_none_or(|chars| chars >= limit()),
            "maxLength" => chars().is_none_or(|chars| chars <= limit()),
            "minItems" => items().is_none_or(|items| items >= limit()),
            "maxItems" => items().is_none_or(|items| items <= limit()),
            "maxProperties" => fields().is_none_or(|fields| fields <= limit()),
            "pattern" => value.as_str().is_none_or(|text| is_match(rule.as_str().unwrap(), text)),
            "items" => value.as_array().is_none_or(|items| items.iter().all(|it| fits(rule, it))),
            "propertyNames" => value.as_object().is_none_or(|fields| {
                fields.keys().all(|name| fits(rule, &Value::String(name.clone())))
            }),
            "properties" => value.as_object().is_none_or(|fields| {
                let known =
                    |name: &String| rule.get(name).unwrap_or(&schema["additionalProperties"]);
                fields.iter().all(|(name, field)| match known(name) {
                    Value::Bool(allowed) => *allowed,
                    schema => fits(schema, field),
                })
            }),
            "additionalProperties" if schema["properties"].is_null() => {
                value.as_object().is_none_or(|fields| fields.values().all(|it| fits(rule, it)))
            }
            known => {
                assert!(DESCRIBING.contains(&known), "the document uses {known}");
                true
            }
        }
    }
}

fn is_of_type(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the document uses the type {other}"),
    }
}

fn is_match(pattern: &str, text: &str) -> bool {
    thread_local! {
        static COMPILED: RefCell<HashMap<String, Regex>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|compiled| {
        let compile = || Regex::new(pattern).unwrap();
        compiled.entry(pattern.to_owned()).or_insert_with(compile).is_match(text)
    })
}
