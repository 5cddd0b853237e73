//! Answers that are successes: JSON with its content type, and the version of a task as its tag.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use punctual_core::Task;
use serde::Serialize;

use super::error::Problem;
use super::task::TaskAnswer;

/// About what a task takes, with a small payload.
const ANSWER_BYTES: usize = 1024;

/// What every call comes to.
pub(crate) type Answer = Result<Response, Problem>;

/// 200 with JSON.
pub(crate) fn ok(answer: &impl Serialize) -> Answer {
    Ok(json(StatusCode::OK, answer))
}

/// A task, with its version.
pub(crate) fn task(status: StatusCode, task: &Task) -> Response {
    let mut response = json(status, &TaskAnswer::of(task));
    if let Ok(version) = HeaderValue::try_from(format!("\"{}\"", task.version.get())) {
        response.headers_mut().insert(ETAG, version);
    }
    response
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    let mut json = Vec::with_capacity(ANSWER_BYTES);
    serde_json::to_writer(&mut json, answer).expect("nothing in an answer can fail to be written");
    let mut response = Response::new(Body::from(json));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
