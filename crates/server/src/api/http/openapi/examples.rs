//! Examples of the document: bodies and parameters that are accepted.
//!
//! Together the examples of an operation have every field that it knows, each within its limits.
//! `punctual/tests/api/openapi.rs` sends all of them, and values at the limits of each field.

use serde_json::{Value, json};

/// Adds the examples of an operation.
pub(super) fn add(operation: &mut Value) {
    let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
    for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
        if let Some(example) = of_parameter(parameter["name"].as_str().unwrap_or_default()) {
            parameter["example"] = example;
        }
    }
    let bodies: Value = bodies(&id)
        .into_iter()
        .map(|(name, body)| (name.to_owned(), json!({"value": body})))
        .collect();
    if bodies.as_object().is_some_and(|bodies| !bodies.is_empty()) {
        operation["requestBody"]["content"]["application/json"]["examples"] = bodies;
    }
}

fn of_parameter(name: &str) -> Option<Value> {
    let example = match name {
        "namespace" => "shop",
        "key" => "order-1",
        "queue" => "emails",
        "name" => "errors",
        "connection" => "orders",
        "prefix" => "lamp-",
        "fire_id" => "01q3dcbd0001r0000c0000001a-01q3dcbd00",
        "idempotency-key" => "7f3a",
        "if-match" => "\"3\"",
        "if-none-match" => "*",
        "state" => "scheduled",
        "end" => "dead",
        "key_prefix" => "order-",
        "label" => "campaign:7",
        "from" => "2030-01-01T00:00:00Z",
        "to" => "2030-02-01T00:00:00+01:00",
        "limit" | "count" => return Some(json!(50)),
        "for" => "12h",
        "step" => "1h",
        "kind" => "once",
        "id" => "1",
        "reason" => "status 503",
        "target" => "https://api.example",
        // Another version than any task has, so that no call waits.
        "after_version" => return Some(json!(1_000_000)),
        "wait" => "20s",
        "cron" => "30 2 * * *",
        "timezone" => "Europe/Berlin",
        "dst_gap" => "after",
        "dst_overlap" => "once",
        _ => return None,
    };
    Some(example.into())
}

fn bodies(operation: &str) -> Vec<(&'static str, Value)> {
    let (fire, task) = ("01q3dcbd0001r0000c0000001a-01q3dcbd00", "01q3dcbd0001r0000c0000001a");
    match operation {
        "put_task" => tasks().into(),
        "create_tasks" => {
            let mut all: Vec<_> = tasks().into();
            for (name, task) in &mut all {
                task["key"] = format!("order-{name}").into();
            }
            let many: Value = all.iter().map(|(_, task)| task.clone()).collect();
            all.push(("many", many));
            all
        }
        "touch_task" => times(json!({})),
        "touch_tasks" => {
            let mut all = times(json!({"keys": ["lamp-7", "lamp-8"]}));
            let [.., (_, watch)] = tasks();
            all.push(("create", json!({"keys": ["lamp-9"], "create": watch})));
            all
        }
        "cancel_tasks" => {
            vec![("keys", json!({"keys": ["order-1"]})), ("ids", json!({"ids": [task]}))]
        }
        "redrive_dead_letters" | "delete_dead_letters" => {
            let group = json!({"reason": "status 503", "target": "https://api.example"});
            vec![
                ("ids", json!({"ids": [fire]})),
                ("all", json!({"all": true})),
                ("where", json!({"where": group})),
            ]
        }
        "start_operation" => {
            let filter = json!({
                "state": "scheduled",
                "kind": "once",
                "key_prefix": "order-",
                "label": "campaign=7",
                "from": "2030-01-01T00:00:00Z",
                "to": "2030-02-01T00:00:00Z",
            });
            vec![
                ("dry_run", json!({"do": "cancel", "where": filter, "dry_run": true})),
                ("shift", json!({"do": "shift", "later": "2h", "where": filter})),
            ]
        }
        "lease" => {
            vec![("lease", json!({"max": 10, "wait": "0s", "lease": "30s", "worker": "mailer-1"}))]
        }
        "ack" => vec![
            ("ack", json!({"tokens": ["TOKEN"]})),
            ("results", json!({"acks": [{"token": "TOKEN", "result": {"refund": 9.5}}]})),
        ],
        "fail" => {
            vec![("fail", json!({"token": "TOKEN", "reason": "no stock", "retry_in": "5m"}))]
        }
        "refuse" => vec![("refuse", json!({"token": "TOKEN", "reason": "unknown order"}))],
        "extend" => vec![("extend", json!({"token": "TOKEN", "lease": "1m"}))],
        "put_alarm" => alarms().into(),
        "put_rule" => {
            let [.., watch] = tasks();
            vec![watch]
        }
        _ => vec![],
    }
}

/// An alarm of each kind. None has a mail receiver, because not every broker has a mail server.
fn alarms() -> [(&'static str, Value); 6] {
    let http = json!({"http": {"url": "http://localhost:9000/alarm"}});
    let chat = |kind: &str| json!({"chat": {"kind": kind, "url": "http://localhost:9000/robot"}});
    let mut signed = chat("dingtalk");
    signed["chat"]["secret"] = json!("SEC000a1b2c3");
    let failures = json!({"failures": {"count": 100, "window": "1m"}});
    let share = json!({"failure_share": {"over": 0.1, "min": 50, "window": "5m"}});
    let lag = json!({"lag": {"p99_over": "1s", "window": "1m"}});
    let no_workers = json!({"no_workers": {"queue": "emails", "for": "1m"}});
    [
        ("failures", json!({"when": failures, "to": http, "repeat_after": "1h"})),
        ("failure_share", json!({"when": share, "to": signed})),
        ("dead_letters", json!({"when": {"dead_letters": {"over": 0}}, "to": chat("slack")})),
        ("lag", json!({"when": lag, "to": chat("feishu")})),
        ("overdue", json!({"when": {"overdue": {"over": "30s"}}, "to": chat("wecom")})),
        ("no_workers", json!({"when": no_workers, "to": http})),
    ]
}

/// The ways to say when a touched task is due.
fn times(base: Value) -> Vec<(&'static str, Value)> {
    let with = |name: &str, value: Value| {
        let mut body = base.clone();
        body[name] = value;
        body
    };
    vec![
        ("watch", base.clone()),
        ("in", with("in", json!("30m"))),
        ("at", with("at", json!("2030-01-31T12:00:00Z"))),
        ("within", with("within", json!("1h"))),
    ]
}

/// A task of each kind.
fn tasks() -> [(&'static str, Value); 5] {
    let once = json!({
        "in": "15m",
        "target": {"http": {
            "url": "http://localhost:9000/cancel-order",
            "method": "POST",
            "headers": {"x-shop": "7"},
            "success": {"statuses": [200, 204], "json": {"/errcode": 0}},
            "refuse": {"statuses": [400, 404]},
        }},
        "payload": {"order": 1},
        "guarantee": "at_least_once",
        "retry": {
            "attempts_max": 5,
            "backoff": {"exponential": {"first": "1s", "factor": 2, "max": "5m"}},
            "jitter": 0.1,
        },
        "timeout": "10s",
        "expires_after": "1h",
        "labels": {"campaign": "7"},
        "on_done": {"queue": "done"},
        "on_dead": {"http": {"url": "http://localhost:9000/dead"}},
    });
    let at = json!({
        "at": "2035-01-01T09:00:00+01:00",
        "target": {"queue": "emails"},
        "payload_base64": "aGVsbG8=",
        "content_type": "text/plain",
        "retry": {"backoff": {"fixed": "3s"}},
        "paused": true,
    });
    let cron = json!({
        "cron": "0 9 * * MON-FRI",
        "timezone": "Europe/Berlin",
        "dst": {"gap": "after", "overlap": "once"},
        "starts_at": "2030-01-01T00:00:00Z",
        "ends_at": "2040-01-01T00:00:00Z",
        "count": 100,
        "misfire": "skip",
        "overlap": "queue_one",
        "jitter": "1m",
        "target": {"queue": "reports"},
        "guarantee": "exactly_once",
        "retry": {"backoff": {"list": ["2m", "10m", "1h"]}},
    });
    let every = json!({
        "every": "1d",
        "jitter": "1h",
        "target": {"queue": "reports"},
        "guarantee": "at_most_once",
    });
    let watch = json!({
        "within": "48h",
        "postpone_max": "30d",
        "on_return": true,
        "target": {"queue": "offline"},
    });
    [("once", once), ("at", at), ("cron", cron), ("every", every), ("watch", watch)]
}
