//! Problems: every answer that is not a success, as RFC 9457 says, and the only place that spells their status.
//!
//! In: an error of any part. Out: `application/problem+json` with `type`, `title`, `status`, `detail` and, where one
//! field is to blame, `field`.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use punctual_core::Invalid;
use punctual_engine::EngineError;
use serde::Serialize;
use serde_json::value::RawValue;

use super::task;

/// When to try again after an answer that says so, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// What went wrong, for the caller.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The task that stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    existing: Option<Box<RawValue>>,
}

impl Problem {
    fn new(kind: &'static str, title: &'static str, status: StatusCode, detail: String) -> Self {
        Self { kind, title, status, detail, field: None, existing: None }
    }

    pub(crate) fn no_such_route() -> Self {
        let detail = "there is nothing at this path; see /v1/{namespace}/tasks".to_owned();
        Self::new("urn:punctual:no-such-path", "No such path", StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let detail = "this path does not know this method; see the Allow header".to_owned();
        Self::new("urn:punctual:method-not-allowed", "Method not allowed", status, detail)
    }

    /// The body is not JSON, or not what was asked for, or too large: the status says which.
    pub(crate) fn body(status: StatusCode, detail: String, field: Option<String>) -> Self {
        let problem = Self::new("urn:punctual:invalid-body", "Invalid body", status, detail);
        Self { field, ..problem }
    }

    /// A part of the path or a header is not what it must be.
    pub(crate) fn request(detail: String, field: Option<String>) -> Self {
        let status = StatusCode::BAD_REQUEST;
        let problem = Self::new("urn:punctual:invalid-request", "Invalid request", status, detail);
        Self { field, ..problem }
    }
}

impl Problem {
    /// What another form of the API tells: type, status, detail and field.
    pub(crate) fn parts(&self) -> (&'static str, StatusCode, &str, Option<&str>) {
        (self.kind, self.status, &self.detail, self.field.as_deref())
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let detail = invalid.to_string();
        let problem = Self::new("urn:punctual:invalid-field", "Invalid field", status, detail);
        Self { field: Some(invalid.field), ..problem }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        let detail = error.to_string();
        let (kind, title, status) = match &error {
            EngineError::NotFound => {
                ("urn:punctual:no-such-task", "No such task", StatusCode::NOT_FOUND)
            }
            EngineError::Exists(_) => {
                ("urn:punctual:exists", "The task exists", StatusCode::CONFLICT)
            }
            EngineError::OtherVersion(_) => (
                "urn:punctual:other-version",
                "The task has another version",
                StatusCode::PRECONDITION_FAILED,
            ),
            EngineError::NoLetter => {
                ("urn:punctual:no-such-dead-letter", "No such dead letter", StatusCode::NOT_FOUND)
            }
            EngineError::Firing(_) => {
                ("urn:punctual:firing", "The task is firing", StatusCode::CONFLICT)
            }
            EngineError::Paused => {
                ("urn:punctual:paused", "The task is paused", StatusCode::CONFLICT)
            }
            EngineError::NoWatch => {
                ("urn:punctual:no-watch", "Not a watch", StatusCode::UNPROCESSABLE_ENTITY)
            }
            EngineError::Busy => ("urn:punctual:busy", "Busy", StatusCode::SERVICE_UNAVAILABLE),
            EngineError::Full => {
                ("urn:punctual:full", "No room left", StatusCode::INSUFFICIENT_STORAGE)
            }
            EngineError::Stopped => {
                ("urn:punctual:stopping", "Stopping", StatusCode::SERVICE_UNAVAILABLE)
            }
        };
        let existing = match &error {
            EngineError::Exists(task) => task::to_raw_json(task),
            _ => None,
        };
        Self { existing, ..Self::new(kind, title, status, detail) }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let json = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}
