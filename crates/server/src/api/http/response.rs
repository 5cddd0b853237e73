//! Successful responses: JSON with its content type, and the version of a task as its `ETag`.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use punctual_core::Task;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::held_answer;
use crate::problem::Problem;
use crate::schema::{documented, one_of};
use crate::shares::SharePermit;
use crate::task_form::TaskAnswer;

/// Bytes to reserve for a response: about one task with a small payload.
const RESPONSE_BYTES: usize = 1024;

/// The result of a delete.
pub(crate) const DELETED: &str = "deleted";

/// The result of a delete.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deleted {
    #[schema(value_type = DeletedResult)]
    pub(crate) result: &'static str,
}

documented!(
    /// The only result of a delete.
    DeletedResult,
    "DeletedResult",
    one_of([DELETED])
);

/// What every route returns.
pub(crate) type ApiResult = Result<Response, Problem>;

/// 200 with a JSON body.
pub(crate) fn ok(body: &impl Serialize) -> ApiResult {
    Ok(json(StatusCode::OK, body))
}

/// 201 with a JSON body.
pub(crate) fn created(body: &impl Serialize) -> ApiResult {
    Ok(json(StatusCode::CREATED, body))
}

/// 202 with a JSON body.
pub(crate) fn accepted(body: &impl Serialize) -> ApiResult {
    Ok(json(StatusCode::ACCEPTED, body))
}

/// 200 with a page of a list. A large one keeps the permit of the list until it was sent.
pub(crate) fn page(body: &impl Serialize, permit: SharePermit) -> ApiResult {
    Ok(with_type(StatusCode::OK, held_answer::body_of(to_json(body), permit)))
}

/// A task as JSON, with its version as `ETag`.
pub(crate) fn task(status: StatusCode, task: &Task) -> Response {
    task_as(status, task, &TaskAnswer::of(task))
}

/// The same with another body.
pub(crate) fn task_as(status: StatusCode, task: &Task, body: &impl Serialize) -> Response {
    let mut response = json(status, body);
    if let Ok(version) = HeaderValue::try_from(format!("\"{}\"", task.version.get())) {
        response.headers_mut().insert(ETAG, version);
    }
    response
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    with_type(status, Body::from(to_json(body)))
}

fn to_json(body: &impl Serialize) -> Vec<u8> {
    let mut json = Vec::with_capacity(RESPONSE_BYTES);
    serde_json::to_writer(&mut json, body).expect("response types always serialize");
    json
}

fn with_type(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
