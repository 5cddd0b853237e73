//! The OpenAPI document: it has every route, its limits are those of the broker, and every example
//! in it is accepted. [`TestBroker::call`] checks that every answer follows it.

use std::collections::BTreeSet;
use std::time::Duration;

use punctual_core::{format_duration, parse_duration};
use punctual_test_support::{ApiDocument, TestBroker};
use serde_json::{Value, json};

#[test]
fn the_document_has_exactly_the_served_routes() {
    let broker = TestBroker::start(&[]);
    let document = &broker.document(&[]).unwrap().0;
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let url = path.replace("{namespace}", "shop").replace(['{', '}'], "");
        let known: BTreeSet<_> = methods.as_object().unwrap().keys().cloned().collect();
        for method in ["get", "put", "post", "delete"] {
            if is_stream(&methods[method]) {
                continue;
            }
            let (status, answer) = broker.call(&method.to_uppercase(), &url, &[], "");
            let served = status != 405 && answer["type"] != "urn:punctual:not-found";
            assert_eq!(served, known.contains(method), "{method} {url}: {answer}");
        }
        for operation in methods.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "{id} names two operations");
            assert!(operation["responses"]["403"].is_object(), "{operation}");
            let named = operation["parameters"].as_array().unwrap().iter();
            let named = named.filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(named, path.matches('{').count(), "{path}");
        }
    }
    assert_eq!(ids.len(), 55, "if the number of calls changes, update the documentation");
}

/// A stream does not end; the tests of live streams read it.
fn is_stream(operation: &Value) -> bool {
    operation["responses"]["200"]["content"]["text/event-stream"].is_object()
}

/// A request without a token is refused exactly where the document demands one.
#[test]
fn the_document_marks_the_routes_that_need_a_token() {
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let token = [("authorization", "Bearer aaa")];
    let document = &broker.document(&token).unwrap().0;
    let scheme = &document["components"]["securitySchemes"]["token"];
    assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!("bearer")));
    let mut open = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let url = path.replace("{namespace}", "shop").replace(['{', '}'], "");
        for (method, operation) in methods.as_object().unwrap() {
            if is_stream(operation) {
                continue;
            }
            let (status, answer) = broker.call(&method.to_uppercase(), &url, &[], "");
            match &operation["security"] {
                Value::Null => open.push(path.as_str()),
                wanted => assert_eq!(*wanted, json!([{"token": []}]), "{method} {path}"),
            }
            assert_eq!(
                status == 401,
                operation["security"].is_array(),
                "{method} {path}: {answer}"
            );
        }
    }
    assert_eq!(open, ["/livez", "/readyz"]);
}

/// Texts of a request without a limit of their own, and why.
const UNLIMITED: [(&str, &str); 6] = [
    ("id", "opaque; one that is not known is not found"),
    ("key_prefix", "one that is longer than a key matches nothing"),
    ("label", "one that is longer than a label matches nothing"),
    ("reason", "the history keeps its beginning"),
    ("target", "one that no group has matches nothing"),
    ("token", "opaque; one that is not known is stale"),
];

#[test]
fn every_value_of_a_request_states_its_limit() {
    let broker = TestBroker::start(&[]);
    let document = broker.document(&[]).unwrap();
    let mut walk = LimitWalk { document, seen: BTreeSet::new(), unlimited: BTreeSet::new() };
    for (id, operation) in operations(document) {
        for parameter in operation["parameters"].as_array().unwrap() {
            walk.visit(parameter["name"].as_str().unwrap(), &parameter["schema"]);
        }
        for content in operation["requestBody"]["content"].as_object().into_iter().flatten() {
            walk.visit(id, &content.1["schema"]);
        }
    }
    assert_eq!(walk.unlimited, UNLIMITED.into_iter().map(|(name, _)| name.to_owned()).collect());
    assert!(walk.seen.len() > 30, "{:?}", walk.seen);
}

/// Visits each schema of a request once.
struct LimitWalk<'a> {
    document: &'a ApiDocument,
    seen: BTreeSet<String>,
    unlimited: BTreeSet<String>,
}

impl LimitWalk<'_> {
    fn visit(&mut self, name: &str, schema: &Value) {
        if let Some(reference) = schema["$ref"].as_str()
            && !self.seen.insert(reference.to_owned())
        {
            return;
        }
        let schema = self.document.resolve(schema);
        let has = |keyword: &str| !schema[keyword].is_null();
        let kinds = schema["type"].as_array().cloned().unwrap_or(vec![schema["type"].clone()]);
        for kind in kinds.iter().filter_map(Value::as_str) {
            match kind {
                "integer" | "number" => assert!(has("minimum") && has("maximum"), "{name}"),
                "array" => assert!(has("maxItems"), "{name}"),
                "string" => {
                    let limits = ["enum", "maxLength", "x-maximum"];
                    // A pattern with a fixed number of characters is a limit, too.
                    let pattern = schema["pattern"].as_str().unwrap_or_default();
                    let fixed = pattern.starts_with('^') && !pattern.contains(['*', '+']);
                    if !fixed && !limits.into_iter().any(has) {
                        self.unlimited.insert(name.trim_end_matches('s').to_owned());
                    }
                }
                "object" if has("properties") => {
                    assert_eq!(schema["additionalProperties"], false, "{name}");
                }
                "object" => assert!(has("maxProperties"), "{name}"),
                _ => {}
            }
        }
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            self.visit(field, schema);
        }
        if schema["items"].is_object() {
            self.visit(name, &schema["items"]);
        }
        for group in ["oneOf", "anyOf", "allOf"] {
            for part in schema[group].as_array().into_iter().flatten() {
                // Parts beside `properties` say only which of them go together.
                if !has("properties") && !part["properties"]["key"].is_object() {
                    self.visit(name, part);
                }
            }
        }
    }
}

#[test]
fn every_example_is_accepted_and_together_they_have_every_field() {
    let broker = TestBroker::start(&[]);
    let document = broker.document(&[]).unwrap();
    for request in requests(document) {
        request.assert_accepted(&broker);
        if let Some(body) = &request.body {
            document.check(&request.schema, body).unwrap();
        }
    }
    let mut missing = BTreeSet::new();
    for (name, schema) in document.0["components"]["schemas"].as_object().unwrap() {
        let sent = requests(document).flat_map(|request| fields(document, &request));
        let sent: BTreeSet<_> =
            sent.filter(|field| field.owner == *name).map(|field| field.name).collect();
        if sent.is_empty() {
            continue;
        }
        let known = schema["properties"].as_object().unwrap().keys().cloned();
        missing.extend(known.filter(|field| !sent.contains(field)).map(|field| (name, field)));
    }
    assert_eq!(missing, BTreeSet::new());
}

/// On both sides of each limit of each field: a value inside is accepted, and the problem of one
/// outside names the field.
#[test]
fn each_documented_limit_is_the_limit_of_the_broker() {
    let broker = TestBroker::start(&[]);
    let document = broker.document(&[]).unwrap();
    let mut probed = BTreeSet::new();
    for request in requests(document) {
        for field in fields(document, &request) {
            // Each field once: examples and operations share their types.
            if !probed.insert((field.owner.clone(), field.name.clone())) {
                continue;
            }
            for (value, accepted) in probes(document, &field) {
                let request = request.with(&field, value.clone());
                // Another field may have to go with the value.
                let fits = |body| document.check(&request.schema, body).is_ok();
                if accepted && request.body.as_ref().is_none_or(fits) {
                    request.assert_accepted(&broker);
                } else if !accepted {
                    request.assert_refused(&broker, &field);
                }
            }
        }
    }
    assert!(probed.len() > 60, "{}: {probed:?}", probed.len());
}

/// Fields of which exactly one is given, or that belong to one of them.
#[test]
fn fields_that_the_document_excludes_are_refused_by_name() {
    let broker = TestBroker::start(&[]);
    let document = broker.document(&[]).unwrap();
    let mut refused = 0;
    let is_object = |request: &Request| request.body.as_ref().is_some_and(Value::is_object);
    for request in requests(document).filter(is_object) {
        let others = requests(document).filter(|other| other.id == request.id);
        for (name, value) in others.filter_map(|other| other.body).flat_map(fields_of) {
            let mut both = request.clone();
            both.body.as_mut().unwrap()[&name] = value;
            let fits = document.check(&both.schema, both.body.as_ref().unwrap());
            if fits.is_ok() {
                both.assert_accepted(&broker);
            } else {
                both.assert_refused_with(&broker, 422, None);
                refused += 1;
            }
        }
        // `null` is the same as absent, unless the field must be given.
        for name in fields_of(request.body.clone().unwrap()).map(|(name, _)| name) {
            let mut null = request.clone();
            null.body.as_mut().unwrap()[&name] = Value::Null;
            match document.check(&null.schema, null.body.as_ref().unwrap()) {
                Ok(()) => null.assert_accepted(&broker),
                Err(_) => null.assert_refused_with(&broker, 400, None),
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

/// Problems of requests that are right in themselves, but not now.
const BY_STATE: [&str; 9] = [
    "connection-not-found",
    "alarm-not-found",
    "rule-not-found",
    "operation-not-found",
    "task-not-found",
    "dead-letter-not-found",
    "version-mismatch",
    "not-a-watch",
    "idempotency-conflict",
];

/// A request of an example.
#[derive(Clone)]
struct Request {
    id: String,
    method: String,
    path: String,
    parameters: Vec<(Value, Value)>,
    schema: Value,
    body: Option<Value>,
}

/// A field of a request, or a parameter.
struct Field {
    /// The schema that has the field, or the operation that has the parameter.
    owner: String,
    name: String,
    /// Where it is in the body; `None` for a parameter.
    pointer: Option<String>,
    schema: Value,
    example: Value,
}

fn operations(document: &ApiDocument) -> impl Iterator<Item = (&str, &Value)> {
    let paths = document.0["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|methods| methods.as_object().unwrap().values());
    operations.map(|operation| (operation["operationId"].as_str().unwrap(), operation))
}

/// All examples of all operations.
fn requests(document: &ApiDocument) -> impl Iterator<Item = Request> {
    let paths = document.0["paths"].as_object().unwrap().iter();
    let operations = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (path, method, operation))
    });
    let operations = operations.filter(|(_, _, operation)| !is_stream(operation));
    operations.flat_map(|(path, method, operation)| {
        let parameters = operation["parameters"].as_array().unwrap().iter();
        let parameters = parameters
            .filter(|parameter| !parameter["example"].is_null())
            // It excludes `if-match`.
            .filter(|parameter| parameter["name"] != "if-none-match")
            .map(|parameter| (parameter.clone(), parameter["example"].clone()));
        let content = &operation["requestBody"]["content"]["application/json"];
        let request = Request {
            id: operation["operationId"].as_str().unwrap().to_owned(),
            method: method.to_uppercase(),
            path: path.clone(),
            parameters: parameters.collect(),
            schema: content["schema"].clone(),
            body: None,
        };
        let bodies = content["examples"].as_object().into_iter().flatten();
        let bodies: Vec<_> = bodies.map(|(_, example)| Some(example["value"].clone())).collect();
        let bodies = if bodies.is_empty() { vec![None] } else { bodies };
        bodies.into_iter().map(move |body| Request { body, ..request.clone() })
    })
}

impl Request {
    fn send(&self, broker: &TestBroker) -> (u16, Value) {
        let (mut path, mut query, mut headers) = (self.path.clone(), vec![], vec![]);
        for (parameter, value) in &self.parameters {
            let name = parameter["name"].as_str().unwrap();
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match parameter["in"].as_str().unwrap() {
                "path" => path = path.replace(&format!("{{{name}}}"), &encode(&text)),
                "query" => query.push(format!("{name}={}", encode(&text))),
                _ => headers.push((name.to_owned(), text)),
            }
        }
        let url = format!("{path}?{}", query.join("&"));
        let headers: Vec<_> =
            headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let body = self.body.as_ref().map(Value::to_string).unwrap_or_default();
        broker.call(&self.method, &url, &headers, body)
    }

    fn assert_accepted(&self, broker: &TestBroker) {
        let (status, answer) = self.send(broker);
        let kind = answer["type"].as_str().unwrap_or_default();
        let by_state = BY_STATE.iter().any(|it| kind == format!("urn:punctual:{it}"));
        assert!(status < 300 || by_state, "{}: {status} {answer}", self.shown());
        let results = answer["results"].as_array().into_iter().flatten();
        for result in results.chain(answer["problems"].as_array().into_iter().flatten()) {
            let kind = result["problem"]["type"].as_str().or(result["type"].as_str());
            let fine = kind.is_none_or(|kind| BY_STATE.iter().any(|it| kind.ends_with(it)));
            assert!(fine, "{}: {result}", self.shown());
        }
    }

    fn assert_refused(&self, broker: &TestBroker, field: &Field) {
        self.assert_refused_with(broker, 400, Some(&field.name));
    }

    fn assert_refused_with(&self, broker: &TestBroker, status_min: u16, field: Option<&str>) {
        let (status, answer) = self.send(broker);
        let refused = [400, 413, 422].contains(&status) && status >= status_min;
        assert!(refused, "{}: {status} {answer}", self.shown());
        let named = answer["field"].as_str().unwrap_or_default();
        let names = named.split(['.', '[']).any(|part| field.is_none_or(|field| part == field));
        assert!(names && !named.is_empty(), "{}: {answer} names {named:?}", self.shown());
    }

    fn shown(&self) -> String {
        let body = self.body.as_ref().map(Value::to_string).unwrap_or_default();
        let values: Vec<_> = self.parameters.iter().map(|(_, value)| value).collect();
        let body: String = body.chars().take(300).collect();
        format!("{} {} {values:?} {body}", self.method, self.path)
    }

    /// The request with another value of a field.
    fn with(&self, field: &Field, value: Value) -> Self {
        let mut request = self.clone();
        match &field.pointer {
            None => {
                for (parameter, sent) in &mut request.parameters {
                    if parameter["name"] == field.name.as_str() {
                        *sent = value.clone();
                    }
                }
            }
            Some(pointer) => {
                *request.body.as_mut().unwrap().pointer_mut(pointer).unwrap() = value;
            }
        }
        request.make_room(&field.name);
        request
    }

    /// Changes what would exclude values within the limits of a field.
    fn make_room(&mut self, field: &str) {
        let is_forecast = self.path.ends_with("/forecast");
        let parameters = self.parameters.iter_mut();
        for (parameter, value) in parameters {
            match (field, parameter["name"].as_str().unwrap()) {
                ("for", "step") if is_forecast => *value = json!("366d"),
                ("step", "for") if is_forecast => *value = json!("1000s"),
                _ => {}
            }
        }
        let Some(body) = self.body.as_mut().and_then(Value::as_object_mut) else { return };
        match field {
            "every" => drop(body.remove("jitter")),
            "within" => drop(body.remove("postpone_max")),
            "postpone_max" => drop(body.insert("within".to_owned(), json!("100ms"))),
            "starts_at" => drop(body.remove("ends_at")),
            "ends_at" => drop(body.remove("starts_at")),
            _ => {}
        }
    }
}

/// The parameters of a request, and all fields of its body.
fn fields(document: &ApiDocument, request: &Request) -> Vec<Field> {
    let mut fields = Vec::new();
    for (parameter, example) in &request.parameters {
        fields.push(Field {
            owner: request.id.clone(),
            name: parameter["name"].as_str().unwrap().to_owned(),
            pointer: None,
            schema: parameter["schema"].clone(),
            example: example.clone(),
        });
    }
    if let Some(body) = &request.body {
        add_fields(document, &request.schema, body, "", &mut fields);
    }
    fields
}

fn add_fields(
    document: &ApiDocument,
    schema: &Value,
    value: &Value,
    pointer: &str,
    fields: &mut Vec<Field>,
) {
    let owner = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next());
    let schema = document.resolve(schema);
    for (name, value) in value.as_object().into_iter().flatten() {
        let known = &schema["properties"][name];
        if known.is_null() {
            continue;
        }
        let pointer = format!("{pointer}/{name}");
        if let Some(owner) = owner {
            fields.push(Field {
                owner: owner.to_owned(),
                name: name.clone(),
                pointer: Some(pointer.clone()),
                schema: known.clone(),
                example: value.clone(),
            });
        }
        add_fields(document, known, value, &pointer, fields);
    }
    if schema["properties"].is_null() || owner.is_none() {
        for part in ["oneOf", "allOf"].iter().flat_map(|group| schema[*group].as_array()).flatten()
        {
            if document.check(part, value).is_ok() {
                add_fields(document, part, value, pointer, fields);
            }
        }
    }
}

fn fields_of(body: Value) -> impl Iterator<Item = (String, Value)> {
    body.as_object().cloned().unwrap_or_default().into_iter()
}

/// Values on both sides of each limit of a field, and whether they are accepted.
fn probes(document: &ApiDocument, field: &Field) -> Vec<(Value, bool)> {
    let schema = document.resolve(&field.schema);
    let mut all = Vec::new();
    for group in ["oneOf", "allOf"] {
        for part in schema[group].as_array().into_iter().flatten() {
            let part = Field {
                owner: field.owner.clone(),
                name: field.name.clone(),
                pointer: field.pointer.clone(),
                schema: part.clone(),
                example: field.example.clone(),
            };
            all.extend(probes(document, &part));
        }
    }
    if schema["properties"].is_object() || field.name == "wait" {
        // Its own fields are probed; a long wait would make the test wait.
        return all;
    }
    all.extend(limit_probes(schema, field));
    // A value outside may be inside another alternative of the same field.
    all.retain(|(value, accepted)| {
        *accepted || document.check(&field.schema, value).is_err() || schema["oneOf"].is_null()
    });
    all
}

fn limit_probes(schema: &Value, field: &Field) -> Vec<(Value, bool)> {
    let mut all = Vec::new();
    let is_text = schema["type"] == "string";
    for value in schema["enum"].as_array().into_iter().flatten() {
        all.push((value.clone(), true));
    }
    if schema["enum"].is_array() {
        all.push((json!("something else"), false));
    }
    for (keyword, beyond) in [("minimum", -1.0), ("maximum", 1.0)] {
        let Some(limit) = schema[keyword].as_f64() else { continue };
        all.push((schema[keyword].clone(), true));
        if schema["type"] == "number" {
            all.push((json!(limit + beyond / 10_000.0), false));
        } else {
            let whole = schema[keyword].as_i64().unwrap();
            all.push((json!(whole + if beyond > 0.0 { 1 } else { -1 }), false));
        }
    }
    for (keyword, beyond) in [("x-minimum", -1), ("x-maximum", 1)] {
        let Some(limit) = schema[keyword].as_str() else { continue };
        let is_bound_of_series = ["starts_at", "ends_at"].contains(&field.name.as_str());
        all.push((limit.into(), !is_bound_of_series));
        if let Some(beyond) = beyond_limit(limit, beyond) {
            all.push((beyond.into(), false));
        }
    }
    // A series that begins at the end of time, or ends at its beginning, does not fire.
    if ["starts_at", "ends_at"].contains(&field.name.as_str()) {
        all.retain(|(_, accepted)| !accepted);
    }
    if let Some(max) = schema["maxLength"].as_u64() {
        let max = usize::try_from(max).unwrap();
        all.extend(longest(field, max).map(|text| (text.into(), true)));
        all.push((too_long(field, max).into(), false));
    }
    if let (Some(max), true) = (schema["x-max-bytes"].as_u64(), is_text) {
        let max = usize::try_from(max).unwrap();
        let start = if field.name == "url" { "http://a/é" } else { "" };
        let fill = |bytes: usize| format!("{start}{}", "é".repeat((bytes - start.len()) / 2));
        all.extend([(fill(max).into(), true), (fill(max + 2).into(), false)]);
    }
    if is_text && !schema["pattern"].is_null() {
        match field.name.as_str() {
            // Headers have no control characters, and any other text is an idempotency key.
            "idempotency-key" => {}
            "if-match" => all.push((json!("3"), false)),
            _ => all.push((json!("\u{7f} no such thing"), false)),
        }
    }
    if is_text && schema["minLength"].as_u64().is_some_and(|min| min > 0) && field.pointer.is_some()
    {
        all.push((json!(""), false));
    }
    if let Some(max) = schema["maxItems"].as_u64() {
        let list = |count: u64| -> Value { (0..count).map(|n| entry(field, n)).collect() };
        all.extend([(list(max), true), (list(max + 1), false)]);
        if schema["minItems"] == 1 {
            all.push((json!([]), false));
        }
    }
    if let Some(max) = schema["maxProperties"].as_u64() {
        // Values that an answer must have are named by JSON pointers.
        let start = if field.name == "json" { "/" } else { "x" };
        let name = |n| format!("{start}{n}");
        let map = |count| -> Value { (0..count).map(|n| (name(n), json!("y"))).collect() };
        all.extend([(map(max), true), (map(max + 1), false)]);
        let longest = schema["propertyNames"]["maxLength"].as_u64().unwrap_or_default();
        for (length, accepted) in [(longest, true), (longest + 1, false)] {
            if longest > 0 {
                let name = format!("{start}{}", "x".repeat(usize::try_from(length).unwrap() - 1));
                all.push((json!({name: "y"}), accepted));
            }
        }
        all.push((json!({"no name": "y"}), false));
    }
    if ["string", "object", "array", "boolean"].iter().any(|kind| schema["type"] == **kind)
        && field.pointer.is_some()
    {
        all.push((json!(5), false));
    }
    all
}

/// A duration or a time one millisecond beyond a limit; `None` below zero.
fn beyond_limit(limit: &str, by: i64) -> Option<String> {
    if let Ok(duration) = parse_duration(limit) {
        let millis = i64::try_from(duration.as_millis()).unwrap() + by;
        return Some(format_duration(Duration::from_millis(u64::try_from(millis).ok()?)));
    }
    let beyond = if by > 0 { limit.replace(".000Z", ".001Z") } else { before_epoch(limit) };
    assert_ne!(beyond, limit);
    Some(beyond)
}

fn before_epoch(limit: &str) -> String {
    limit.replace("1970-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z")
}

/// The longest value of a text field; `None` if there is no simple one.
fn longest(field: &Field, max: usize) -> Option<String> {
    let pad = |begin: &str, with: &str| format!("{begin}{}", with.repeat(max - begin.len()));
    match field.name.as_str() {
        "url" => Some(pad("http://a/", "x")),
        "cron" => Some(pad("0 9 * * *", " ")),
        "payload_base64" => Some(format!("{}==", "A".repeat(max - 2))),
        "timezone" => None,
        _ => Some("x".repeat(max)),
    }
}

fn too_long(field: &Field, max: usize) -> String {
    match field.name.as_str() {
        "payload_base64" => "A".repeat(max + 4),
        _ => longest(field, max + 1).unwrap_or_else(|| "x".repeat(max + 1)),
    }
}

/// One of many entries of a list.
fn entry(field: &Field, number: u64) -> Value {
    match (field.name.as_str(), &field.example[0]) {
        ("keys", _) => format!("k{number}").into(),
        (_, Value::Null) => json!("1s"),
        (_, example) => example.clone(),
    }
}

fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded = text.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}
