//! The OpenAPI document: it has every route, and every answer follows it.

use std::collections::BTreeSet;

use punctual_test_support::TestBroker;
use serde_json::{Value, json};

#[test]
fn the_document_has_exactly_the_served_routes() {
    let broker = TestBroker::start(&[]);
    let (status, document) = broker.call("GET", "/openapi.json", &[], "");
    assert_eq!(status, 200);
    let mut calls = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let url = path.replace("{namespace}", "shop").replace(['{', '}'], "");
        let known: BTreeSet<_> = methods.as_object().unwrap().keys().cloned().collect();
        for method in ["get", "put", "post", "delete"] {
            let (status, answer) = broker.call(&method.to_uppercase(), &url, &[], "");
            let served = status != 405 && answer["type"] != "urn:punctual:not-found";
            assert_eq!(served, known.contains(method), "{method} {url}: {answer}");
            calls += usize::from(served);
        }
        for operation in methods.as_object().unwrap().values() {
            assert!(operation["responses"]["default"].is_object(), "{operation}");
            let named = operation["parameters"].as_array().unwrap().iter();
            let named = named.filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(named, path.matches('{').count(), "{path}");
        }
    }
    assert_eq!(calls, 28, "if the number of calls changes, update the documentation");
}

/// A request without a token is refused exactly where the document demands one.
#[test]
fn the_document_marks_the_routes_that_need_a_token() {
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let token = [("authorization", "Bearer aaa")];
    let (_, document) = broker.call("GET", "/openapi.json", &token, "");
    let scheme = &document["components"]["securitySchemes"]["token"];
    assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!("bearer")));
    let mut open = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let url = path.replace("{namespace}", "shop").replace(['{', '}'], "");
        for (method, operation) in methods.as_object().unwrap() {
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

#[test]
fn requests_and_answers_match_the_schemas_of_the_document() {
    let broker = TestBroker::start(&[]);
    let (_, document) = broker.call("GET", "/openapi.json", &[], "");
    let schema_of = |path: &str, method: &str| {
        let body = &document["paths"][path][method]["requestBody"]["content"]["application/json"];
        body["schema"].clone()
    };
    let task = json!({
        "in": "15m",
        "target": {
            "http": {"url": "http://localhost:9000/a", "method": "POST", "headers": {"x-a": "b"}}
        },
        "payload": {"order": 1},
        "guarantee": "at_least_once",
        "retry": {
            "attempts_max": 5,
            "backoff": {"exponential": {"first": "1s", "factor": 2, "max": "5m"}},
            "jitter": 0.1
        },
        "timeout": "10s", "expires_after": "1h", "labels": {"campaign": "7"}
    });
    let (tasks, queue) = ("/v1/{namespace}/tasks/{key}", "/v1/{namespace}/queues/{queue}");
    let many = "/v1/{namespace}/tasks";
    for (path, method, body) in [
        (tasks.to_owned(), "put", task.clone()),
        (
            tasks.to_owned(),
            "put",
            json!({"at": 1, "target": {"queue": "q"}, "retry": {"backoff": {"fixed": "3s"}}}),
        ),
        (
            tasks.to_owned(),
            "put",
            json!({"at": "2035-01-01T00:00:00Z", "retry": {"backoff": {"list": ["2m"]}}}),
        ),
        (many.to_owned(), "post", task.clone()),
        (many.to_owned(), "post", json!([task, task])),
        (format!("{tasks}/touch"), "post", json!({"in": "1m"})),
        ("/v1/{namespace}/touch".to_owned(), "post", json!({"keys": ["a"], "create": task})),
        ("/v1/{namespace}/cancel".to_owned(), "post", json!({"keys": ["a"]})),
        ("/v1/{namespace}/dead/redrive".to_owned(), "post", json!({"all": true})),
        (format!("{queue}/lease"), "post", json!({"max": 10, "wait": "20s", "lease": "30s"})),
        (format!("{queue}/ack"), "post", json!({"tokens": ["x"]})),
        (format!("{queue}/fail"), "post", json!({"token": "x", "reason": "y", "retry_in": "1s"})),
        (format!("{queue}/refuse"), "post", json!({"token": "x", "reason": "y"})),
        (format!("{queue}/extend"), "post", json!({"token": "x", "lease": "30s"})),
    ] {
        let schema = schema_of(&path, method);
        assert!(!schema.is_null(), "{method} {path} has no body");
        check_schema(&document, &schema, &body)
            .unwrap_or_else(|why| panic!("{path} {body}: {why}"));
    }
    let schema = schema_of(tasks, "put");
    for wrong in
        [json!({"in": 5}), json!({"im": "1s"}), json!({"target": {"mail": "x"}}), json!([])]
    {
        assert!(check_schema(&document, &schema, &wrong).is_err(), "{wrong}");
    }
    let response_schema = |path: &str, method: &str, status: &str| {
        let content = &document["paths"][path][method]["responses"][status]["content"];
        content["application/json"]["schema"].clone()
    };
    let (_, made) = broker.put("a", task.to_string());
    check_schema(&document, &response_schema(tasks, "put", "201"), &made).unwrap();
    let results = broker.call("POST", "/v1/shop/tasks", &[], json!([task, 5]).to_string());
    let named = json!({"key": "a", "in": "1h", "target": {"queue": "q"}}).to_string();
    for (status, answer) in [results, broker.call("POST", "/v1/shop/tasks", &[], named)] {
        assert_eq!(status, 200, "{answer}");
        check_schema(&document, &response_schema(many, "post", "200"), &answer).unwrap();
    }
}

/// Checks a value against a schema. It knows as much of JSON Schema as the document uses.
fn check_schema(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).ok_or(name)?;
        return check_schema(document, schema, value);
    }
    if let Some(kinds) = schema["oneOf"].as_array() {
        let fits = kinds.iter().filter(|kind| check_schema(document, kind, value).is_ok()).count();
        return if fits == 1 { Ok(()) } else { Err(format!("{value} is {fits} of {schema}")) };
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        check_schema(document, &without_additional_properties(document, part), value)?;
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    let fits = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the document uses {other}"),
    };
    if !kinds.is_empty() && !kinds.iter().any(fits) {
        return Err(format!("{value} is not of the type {kinds:?}"));
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        return Err(format!("{value} is none of {values:?}"));
    }
    for item in value.as_array().into_iter().flatten() {
        if !schema["items"].is_null() {
            check_schema(document, &schema["items"], item)?;
        }
    }
    let Some(fields) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            return Err(format!("{name} is missing"));
        }
    }
    for (name, value) in fields {
        let known = &schema["properties"][name];
        let known = if known.is_null() { &schema["additionalProperties"] } else { known };
        match known {
            Value::Bool(false) => return Err(format!("{name} is unknown")),
            Value::Object(_) => check_schema(document, known, value)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns a part of an `allOf`, which allows the fields of the other parts.
fn without_additional_properties(document: &Value, part: &Value) -> Value {
    let name = part["$ref"].as_str();
    let mut part = name
        .and_then(|name| document.pointer(name.trim_start_matches('#')))
        .unwrap_or(part)
        .clone();
    if let Some(part) = part.as_object_mut() {
        part.remove("additionalProperties");
    }
    part
}
