//! Problems: every answer that is not a success, as RFC 9457 says, and the only place that spells their status.
//!
//! In: an error of any part. Out: `application/problem+json` with `type`, `title`, `status`, `detail` and, where one
//! field is to blame, `field`.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use punctual_core::{Invalid, Version};
use punctual_engine::EngineError;
use punctual_store::{Resource, StoreError};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::task::TaskAnswer;

/// When to try again after an answer that says so, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Whether it was done is not known: gRPC has a code of its own for that.
pub(crate) const LOST: &str = "urn:punctual:lost";

/// There is no room, whichever broker is asked: gRPC has a code of its own for that, too.
pub(crate) const FULL: &str = "urn:punctual:full";

/// How to say who one is.
const SCHEME: HeaderValue = HeaderValue::from_static("Bearer realm=\"punctual\"");

/// What went wrong, for the caller.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    #[schema(value_type = u16)]
    status: StatusCode,
    detail: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<Box<str>>,
    /// The task that stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TaskAnswer>)]
    existing: Option<Box<RawValue>>,
    /// Methods that would have been right.
    #[serde(skip)]
    allow: Option<Box<str>>,
    /// Why the broker is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasons: Option<Box<[String]>>,
}

impl Problem {
    fn new(kind: &'static str, title: &'static str, status: StatusCode, detail: String) -> Self {
        let (detail, field, existing) = (detail.into(), None, None);
        Self { kind, title, status, detail, field, existing, allow: None, reasons: None }
    }

    pub(crate) fn no_such_route() -> Self {
        let detail = "there is nothing at this path; see /v1/{namespace}/tasks".to_owned();
        Self::new("urn:punctual:no-such-path", "No such path", StatusCode::NOT_FOUND, detail)
    }

    /// Nobody that is known: no token, or a wrong one.
    pub(crate) fn unknown_caller() -> Self {
        let detail = "say who you are: Authorization: Bearer TOKEN".to_owned();
        Self::new("urn:punctual:unknown-caller", "Unknown caller", StatusCode::UNAUTHORIZED, detail)
    }

    /// Somebody that is known, but not for this.
    pub(crate) fn not_permitted() -> Self {
        let detail = "this token is not for this namespace, or not for this call".to_owned();
        Self::new("urn:punctual:not-permitted", "Not permitted", StatusCode::FORBIDDEN, detail)
    }

    /// Nobody has decided who may call this, so nobody may.
    pub(crate) fn no_right_declared() -> Self {
        let detail = "nobody may call this path: it declares no right".to_owned();
        Self::new("urn:punctual:not-permitted", "Not permitted", StatusCode::FORBIDDEN, detail)
    }

    /// A page in somebody's browser, and not one of this broker.
    pub(crate) fn strange_origin() -> Self {
        let detail = "a page of another origin may not call a broker that asks for no tokens; \
                      give it tokens, or call it from somewhere else than a browser"
            .to_owned();
        Self::new("urn:punctual:strange-origin", "Strange origin", StatusCode::FORBIDDEN, detail)
    }

    /// A name that leads to loopback and does not say so.
    pub(crate) fn strange_host() -> Self {
        let detail = "call a broker that listens on loopback and asks for no tokens by a loopback \
                      address or localhost, not by another name; or give it tokens"
            .to_owned();
        Self::new("urn:punctual:strange-host", "Strange host", StatusCode::FORBIDDEN, detail)
    }

    /// The path knows other methods.
    pub(crate) fn method_not_allowed_but(allow: &str) -> Self {
        Self { allow: Some(allow.into()), ..Self::method_not_allowed() }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let detail = "this path does not know this method; see the Allow header".to_owned();
        Self::new("urn:punctual:method-not-allowed", "Method not allowed", status, detail)
    }

    /// The body is not JSON, or not what was asked for.
    pub(crate) fn body(detail: String, field: Option<String>) -> Self {
        let status = StatusCode::BAD_REQUEST;
        let problem = Self::new("urn:punctual:invalid-body", "Invalid body", status, detail);
        Self { field: field.map(Into::into), ..problem }
    }

    /// The same complaint about a field one level further out.
    pub(crate) fn within(mut self, outer: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("{outer}.{field}").into(),
            None => outer.into(),
        });
        self
    }

    /// The body is larger than it may be.
    pub(crate) fn too_large(bytes_max: usize) -> Self {
        let detail = format!("a body must have at most {bytes_max} bytes here");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new("urn:punctual:too-large", "Too large", status, detail)
    }

    /// More in one call than there may be.
    pub(crate) fn too_many(what: &str, count_max: usize) -> Self {
        let detail = format!("one call must have at most {count_max} {what}");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new("urn:punctual:too-many", "Too many", status, detail)
    }

    /// The body is of a kind that is not read here.
    pub(crate) fn media_type(taken: &str) -> Self {
        let detail = format!("the body must be {taken}");
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        let title = "Unsupported media type";
        let problem = Self::new("urn:punctual:unsupported-media-type", title, status, detail);
        Self { field: Some("content-type".into()), ..problem }
    }

    /// The client stopped in the middle of the body, or took too long.
    pub(crate) fn broken_off() -> Self {
        Self::body("the body did not arrive whole".to_owned(), None)
    }

    /// The broker takes nothing new any more.
    pub(crate) fn stopping() -> Self {
        let detail = "the broker is stopping".to_owned();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new("urn:punctual:stopping", "Stopping", status, detail)
    }

    /// The broker cannot do its work.
    pub(crate) fn not_ready(reasons: &[String]) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let problem = Self::new("urn:punctual:not-ready", "Not ready", status, reasons.join("; "));
        Self { reasons: Some(reasons.into()), ..problem }
    }

    /// A part of the path or a header is not what it must be.
    pub(crate) fn request(detail: String, field: Option<String>) -> Self {
        let status = StatusCode::BAD_REQUEST;
        let problem = Self::new("urn:punctual:invalid-request", "Invalid request", status, detail);
        Self { field: field.map(Into::into), ..problem }
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
        Self { field: Some(invalid.field.into()), ..problem }
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
            EngineError::OtherOrder => (
                "urn:punctual:idempotency-conflict",
                "The idempotency key was used for another task",
                StatusCode::CONFLICT,
            ),
            EngineError::Firing(_) => {
                ("urn:punctual:firing", "The task is firing", StatusCode::CONFLICT)
            }
            EngineError::Paused => {
                ("urn:punctual:paused", "The task is paused", StatusCode::CONFLICT)
            }
            EngineError::NoWatch => {
                ("urn:punctual:no-watch", "Not a watch", StatusCode::UNPROCESSABLE_ENTITY)
            }
            EngineError::NoTouch => {
                ("urn:punctual:no-touch", "Not to be touched", StatusCode::UNPROCESSABLE_ENTITY)
            }
            EngineError::Never => {
                ("urn:punctual:never", "It would never fire", StatusCode::UNPROCESSABLE_ENTITY)
            }
            EngineError::Busy => ("urn:punctual:busy", "Busy", StatusCode::SERVICE_UNAVAILABLE),
            EngineError::Full(room) => (FULL, "No room left", full(*room)),
            EngineError::Away => {
                ("urn:punctual:store", "Store unavailable", StatusCode::SERVICE_UNAVAILABLE)
            }
            EngineError::Stopped => {
                ("urn:punctual:no-owner", "Nobody decides", StatusCode::SERVICE_UNAVAILABLE)
            }
            EngineError::Lost => {
                (LOST, "Not known whether it was done", StatusCode::SERVICE_UNAVAILABLE)
            }
        };
        let detail = match &error {
            EngineError::Lost => {
                format!("{detail}; with an Idempotency-Key it is safe to ask again")
            }
            EngineError::Full(Resource::Disk) => {
                format!("{detail}; what is there goes on, make room for more")
            }
            EngineError::Full(Resource::Memory) => {
                format!(
                    "{detail}; what is there goes on, try again later or give Redis more memory"
                )
            }
            EngineError::OtherVersion(version) if *version == Version::new(0) => {
                "there is no such task, so it has no version".to_owned()
            }
            _ => detail,
        };
        let existing = match &error {
            EngineError::Exists(task) => {
                serde_json::value::to_raw_value(&TaskAnswer::of(task)).ok()
            }
            _ => None,
        };
        Self { existing, ..Self::new(kind, title, status, detail) }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let status = match error {
            StoreError::Full { room, .. } => full(room),
            StoreError::Broken(_) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        // What it says in detail is for the operator.
        tracing::warn!(%error, "the store did not answer a read");
        let detail = "the store could not be read; try again later".to_owned();
        Self::new("urn:punctual:store", "Store unavailable", status, detail)
    }
}

/// A full disk waits for somebody, and no caller is told to come back soon; memory of a server comes and goes.
const fn full(room: Resource) -> StatusCode {
    match room {
        Resource::Disk => StatusCode::INSUFFICIENT_STORAGE,
        Resource::Memory => StatusCode::SERVICE_UNAVAILABLE,
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
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, SCHEME);
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            headers.insert(ALLOW, allow);
        }
        response
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}
