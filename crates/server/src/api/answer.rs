//! Answers that are successes: JSON with its content type, and the version of a task as its tag.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use punctual_core::Task;
use serde::Serialize;

use super::error::Problem;
use super::task::TaskAnswer;

/// What every call comes to.
pub(crate) type Answer = Result<Response, Problem>;

/// 200 with JSON.
pub(crate) fn ok(answer: &impl Serialize) -> Answer {
    Ok(json(StatusCode::OK, answer))
}

/// A task, with its version.
pub(crate) fn task(status: StatusCode, task: &Task) -> Response {
    let mut response = json(status, &TaskAnswer::of(task));
    if let Ok(version) = HeaderValue::from_str(&format!("\"{}\"", task.version.get())) {
        response.headers_mut().insert(ETAG, version);
    }
    response
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    let json = serde_json::to_vec(answer).expect("nothing in an answer can fail to be written");
    let kind = HeaderValue::from_static("application/json");
    (status, [(CONTENT_TYPE, kind)], Bytes::from(json)).into_response()
}
