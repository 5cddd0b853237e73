//! Calls about tasks: `/v1/{namespace}/tasks`.
//!
//! In: requests, as untrusted as they come. Out: commands to the owner of the task, and its answers.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use punctual_core::{Namespace, Task, TaskId, TaskKey, Version};
use punctual_engine::{Cancelled, Condition, EngineError, Handle, Order, Scheduled, Subject};
use serde_json::json;

use super::error::Problem;
use super::task::{self, TaskBody};
use crate::broker::{Broker, Owners};

type Answer = Result<Response, Problem>;
type Body = Result<Bytes, BytesRejection>;

/// `POST /v1/{namespace}/tasks`
pub(crate) async fn create(
    State(broker): State<Arc<Broker>>,
    path: Result<Path<String>, PathRejection>,
    body: Body,
) -> Answer {
    let Path(namespace) = path.map_err(bad_path)?;
    let namespace = Namespace::new(&namespace)?;
    let new_task = TaskBody::parse(&whole(body)?)?.into_new_task(namespace, None)?;
    let owner = match &new_task.key {
        Some(key) => broker.owners.of_key(&new_task.namespace, key),
        None => broker.owners.any(),
    };
    let order = Order { new_task: new_task.into(), condition: Condition::Always };
    Ok(scheduled_response(&owner.schedule(order).await?))
}

/// `PUT /v1/{namespace}/tasks/{key}`
pub(crate) async fn replace(
    State(broker): State<Arc<Broker>>,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let Path((namespace, key)) = path.map_err(bad_path)?;
    let (namespace, key) = (Namespace::new(&namespace)?, TaskKey::new(&key)?);
    let condition = condition(&headers)?;
    let owner = broker.owners.of_key(&namespace, &key);
    let new_task = TaskBody::parse(&whole(body)?)?.into_new_task(namespace, Some(key))?;
    match owner.schedule(Order { new_task: new_task.into(), condition }).await {
        Ok(scheduled) => Ok(scheduled_response(&scheduled)),
        // With `If-Match`, a task that is not there has not got that version either.
        Err(EngineError::NotFound) => Err(EngineError::OtherVersion(Version::new(0)).into()),
        Err(error) => Err(error.into()),
    }
}

/// `GET /v1/{namespace}/tasks/{key-or-id}`
pub(crate) async fn show(
    State(broker): State<Arc<Broker>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Answer {
    let Path((namespace, name)) = path.map_err(bad_path)?;
    let namespace = Namespace::new(&namespace)?;
    for (owner, subject) in candidates(&broker.owners, &namespace, &name)? {
        match owner.get(subject).await {
            Err(EngineError::NotFound) => {}
            Ok(task) => return Ok(task_response(StatusCode::OK, &task)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(EngineError::NotFound.into())
}

/// `DELETE /v1/{namespace}/tasks/{key-or-id}`
pub(crate) async fn cancel(
    State(broker): State<Arc<Broker>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Answer {
    let Path((namespace, name)) = path.map_err(bad_path)?;
    let namespace = Namespace::new(&namespace)?;
    for (owner, subject) in candidates(&broker.owners, &namespace, &name)? {
        let answer = match owner.cancel(subject).await {
            Err(EngineError::NotFound) => continue,
            Ok(Cancelled::Cancelled) => json!({ "result": "cancelled" }),
            Ok(Cancelled::Firing(attempt)) => {
                json!({ "result": "firing", "attempt": attempt.get() })
            }
            Ok(Cancelled::AlreadyFired(fired_at)) => {
                json!({ "result": "already_fired", "fired_at": fired_at.to_string() })
            }
            Err(error) => return Err(error.into()),
        };
        return Ok(json_response(StatusCode::OK, answer.to_string().into()));
    }
    Err(EngineError::NotFound.into())
}

/// Whom a name in a path may mean: a key first, because keys are the caller's own and may look like
/// anything, then an id.
fn candidates<'a>(
    owners: &'a Owners,
    namespace: &Namespace,
    name: &str,
) -> Result<Vec<(&'a Handle, Subject)>, Problem> {
    let key = TaskKey::new(name)?;
    let by_key = owners.of_key(namespace, &key);
    let mut candidates = vec![(by_key, Subject::Key(namespace.clone(), key))];
    if let Ok(id) = name.parse::<TaskId>()
        && let Some(by_id) = owners.of(id.partition())
    {
        candidates.push((by_id, Subject::Id(namespace.clone(), id)));
    }
    Ok(candidates)
}

/// `If-None-Match: *` creates only, `If-Match: "VERSION"` replaces only that version.
fn condition(headers: &HeaderMap) -> Result<Condition, Problem> {
    let none_match = header(headers, &IF_NONE_MATCH)?;
    let matches = header(headers, &IF_MATCH)?;
    match (none_match, matches) {
        (None, None) => Ok(Condition::Always),
        (Some("*"), None) => Ok(Condition::Absent),
        (None, Some(version)) => {
            let number = version.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let number = number.and_then(|number| number.parse().ok()).ok_or_else(|| {
                let detail = "If-Match must be one version in quotes, like \"3\"".to_owned();
                Problem::request(detail, Some("if-match".to_owned()))
            })?;
            Ok(Condition::Version(Version::new(number)))
        }
        (Some(_), None) => {
            let detail = "If-None-Match must be *".to_owned();
            Err(Problem::request(detail, Some("if-none-match".to_owned())))
        }
        (Some(_), Some(_)) => {
            let detail = "If-Match and If-None-Match exclude each other".to_owned();
            Err(Problem::request(detail, Some("if-match".to_owned())))
        }
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    match (value.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text.trim())),
        _ => {
            let detail = format!("{name} must be given once, in ASCII");
            Err(Problem::request(detail, Some(name.to_string())))
        }
    }
}

fn scheduled_response(scheduled: &Scheduled) -> Response {
    match scheduled {
        Scheduled::Created(task) => task_response(StatusCode::CREATED, task),
        Scheduled::Replaced(task) => task_response(StatusCode::OK, task),
    }
}

fn task_response(status: StatusCode, task: &Task) -> Response {
    let mut response = json_response(status, task::to_json(task).into());
    if let Ok(version) = HeaderValue::from_str(&format!("\"{}\"", task.version.get())) {
        response.headers_mut().insert(ETAG, version);
    }
    response
}

fn json_response(status: StatusCode, json: Bytes) -> Response {
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], json).into_response()
}

fn whole(body: Body) -> Result<Bytes, Problem> {
    body.map_err(|rejection| {
        let status = rejection.status();
        let detail = if status == StatusCode::PAYLOAD_TOO_LARGE {
            format!("a body must have at most {} bytes", super::BODY_BYTES_MAX)
        } else {
            "the body did not arrive whole".to_owned()
        };
        Problem::body(status, detail, None)
    })
}

fn bad_path(_: PathRejection) -> Problem {
    Problem::request("the path must be UTF-8, percent-encoded".to_owned(), None)
}
