//! The responses of each operation that are problems: one per status, with the types it may have.
//!
//! Most follow from what an operation has: a body, parameters, a token. The others are listed by
//! the id of the operation.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::super::admission::SERVED_WHILE_DRAINING;
use crate::auth;
use crate::problem::{Problem, ProblemType as P};
use crate::schema;

/// What a call of the owner of a partition can fail with.
const OWNER: [P; 5] = [P::Busy, P::StoreUnavailable, P::NoOwner, P::Lost, P::Damaged];
/// What a read of the store can fail with.
const STORE: [P; 3] = [P::StoreUnavailable, P::StoreBroken, P::Damaged];
/// What adding a task can fail with.
const GROWTH: [P; 3] = [P::NeverFires, P::DiskFull, P::MemoryFull];

/// The responses that are problems, by status.
pub(super) fn responses(method: &Method, path: &str, operation: &Value) -> Vec<(String, Value)> {
    let mut by_status: BTreeMap<StatusCode, Vec<P>> = BTreeMap::new();
    for problem in of_shape(method, path, operation).into_iter().chain(of_verb(operation)) {
        let problems = by_status.entry(problem.row().2).or_default();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    let responses = by_status.into_iter();
    responses
        .map(|(status, problems)| (status.as_str().to_owned(), response(status, &problems)))
        .collect()
}

/// The problems that follow from what an operation has.
fn of_shape(method: &Method, path: &str, operation: &Value) -> Vec<P> {
    let mut problems = vec![P::CrossOrigin, P::HostNotAllowed];
    problems.extend(auth::token_problems(method, path));
    if !SERVED_WHILE_DRAINING.contains(&path) {
        problems.push(P::Stopping);
    }
    if operation["parameters"].as_array().is_some_and(|parameters| !parameters.is_empty()) {
        problems.extend([P::InvalidRequest, P::InvalidField]);
    }
    if !operation["requestBody"].is_null() {
        problems.extend([P::InvalidRequest, P::InvalidBody, P::TooLarge, P::UnsupportedMediaType]);
        problems.push(P::TooSlow);
    }
    if path.contains("{namespace}") {
        problems.push(P::ShareUsedUp);
    }
    problems
}

/// The problems of what an operation does.
fn of_verb(operation: &Value) -> Vec<P> {
    let (parts, more): (&[&[P]], &[P]) = match operation["operationId"].as_str().unwrap_or_default()
    {
        "put_task" => (&[&OWNER, &GROWTH], &[P::Exists, P::VersionMismatch]),
        "create_tasks" => (&[&OWNER, &GROWTH], &[P::IdempotencyConflict, P::TooMany]),
        "get_task" | "list_fires" | "explain_task" => (&[&OWNER, &STORE], &[P::TaskNotFound]),
        "cancel_task" => (&[&OWNER], &[P::TaskNotFound]),
        "touch_task" => {
            let touch = &[P::TaskNotFound, P::Firing, P::Paused, P::NotAWatch, P::NotTouchable];
            (&[&OWNER, &GROWTH], touch)
        }
        "pause_task" | "resume_task" | "fire_task" => {
            (&[&OWNER], &[P::TaskNotFound, P::Firing, P::Paused])
        }
        "list_tasks" | "stats" | "list_queues" | "list_workers" | "list_lanes" => {
            (&[&OWNER, &STORE], &[])
        }
        "list_namespaces" => (&[&STORE], &[P::ShareUsedUp]),
        "list_all_fires"
        | "list_dead_letters"
        | "list_dead_groups"
        | "redrive_dead_letters"
        | "delete_dead_letters"
        | "forecast" => (&[&STORE], &[]),
        "live" => (&[], &[P::ShareUsedUp]),
        "start_operation" => (&[&OWNER, &STORE], &[]),
        "get_operation" | "stop_operation" => (&[], &[P::OperationNotFound]),
        "put_alarm" => (&[&OWNER, &STORE, &GROWTH], &[]),
        "test_connection" => (&[], &[P::ConnectionNotFound]),
        "list_rules" => (&[&OWNER], &[]),
        "put_rule" => (&[&OWNER, &GROWTH], &[]),
        "delete_rule" => (&[&OWNER, &GROWTH], &[P::RuleNotFound]),
        "list_alarms" => (&[&STORE], &[]),
        "get_alarm" => (&[&OWNER, &STORE], &[P::AlarmNotFound]),
        "delete_alarm" => (&[&OWNER], &[P::AlarmNotFound]),
        "test_alarm" => (&[&OWNER, &STORE, &GROWTH], &[P::AlarmNotFound]),
        "delete_dead_letter" => (&[&OWNER], &[P::DeadLetterNotFound]),
        "ack" | "fail" | "refuse" | "extend" => (&[], &[P::Lost]),
        "topology" | "readyz" => (&[], &[P::NotReady]),
        _ => (&[], &[]),
    };
    parts.concat().into_iter().chain(more.iter().copied()).collect()
}

fn response(status: StatusCode, problems: &[P]) -> Value {
    let urns: Vec<_> = problems.iter().map(|problem| problem.row().0).collect();
    let mut titles: Vec<_> = problems.iter().map(|problem| problem.row().1).collect();
    titles.dedup();
    let schema = json!({
        "allOf": [
            schema::reference::<Problem>(),
            {"properties": {"type": {"enum": urns}, "status": {"const": status.as_u16()}}},
        ],
    });
    let mut response = json!({
        "description": format!("{}.", titles.join(". ")),
        "content": {"application/problem+json": {"schema": schema}},
    });
    let header = match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            json!({"retry-after": {
                "description": "Seconds to wait.", "required": true, "schema": {"type": "integer"},
            }})
        }
        StatusCode::UNAUTHORIZED => {
            json!({"www-authenticate": {"required": true, "schema": {"type": "string"}}})
        }
        _ => return response,
    };
    response["headers"] = header;
    response
}
