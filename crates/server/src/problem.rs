//! Problems: every response that is not a success (RFC 9457).
//!
//! [`ProblemType`] is the one table of problem types with their titles and statuses. A [`Problem`]
//! adds a detail that names the object and says what to do. HTTP sends it as
//! `application/problem+json`, gRPC as a status with the same detail. Secrets and payloads never
//! appear in a problem.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use punctual_core::{AlarmName, ConnectionName, FireId, Invalid, Namespace, format_duration};
use punctual_engine::EngineError;
use punctual_store::{Resource, StoreError};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tonic::Code;
use utoipa::ToSchema;

use crate::auth::Rights;
use crate::schema::documented;
use crate::task_form::TaskAnswer;

/// `Retry-After` of every 503 and 429, in seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// `WWW-Authenticate` of every 401.
const SCHEME: HeaderValue = HeaderValue::from_static("Bearer realm=\"punctual\"");

/// Defines the problem types: each with its URN, its title and its status.
macro_rules! problem_types {
    ($($(#[$doc:meta])* $kind:ident = ($urn:literal, $title:literal, $status:ident);)+) => {
        /// What clients distinguish problems by.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum ProblemType {
            $($(#[$doc])* $kind,)+
        }

        impl ProblemType {
            /// All types, in the order of the table.
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),+];

            /// The type, the title and the status.
            pub(crate) const fn row(self) -> (&'static str, &'static str, StatusCode) {
                match self {
                    $(Self::$kind => {
                        (concat!("urn:punctual:", $urn), $title, StatusCode::$status)
                    })+
                }
            }
        }
    };
}

problem_types! {
    NotFound = ("not-found", "Not found", NOT_FOUND);
    TaskNotFound = ("task-not-found", "Task not found", NOT_FOUND);
    DeadLetterNotFound = ("dead-letter-not-found", "Dead letter not found", NOT_FOUND);
    AlarmNotFound = ("alarm-not-found", "Alarm not found", NOT_FOUND);
    ConnectionNotFound = ("connection-not-found", "Connection not found", NOT_FOUND);
    RuleNotFound = ("rule-not-found", "Rule not found", NOT_FOUND);
    OperationNotFound = ("operation-not-found", "Operation not found", NOT_FOUND);
    Unauthenticated = ("unauthenticated", "Unauthenticated", UNAUTHORIZED);
    Forbidden = ("forbidden", "Forbidden", FORBIDDEN);
    CrossOrigin = ("cross-origin", "Cross-origin call", FORBIDDEN);
    HostNotAllowed = ("host-not-allowed", "Host not allowed", FORBIDDEN);
    MethodNotAllowed = ("method-not-allowed", "Method not allowed", METHOD_NOT_ALLOWED);
    InvalidRequest = ("invalid-request", "Invalid request", BAD_REQUEST);
    InvalidBody = ("invalid-body", "Invalid body", BAD_REQUEST);
    InvalidField = ("invalid-field", "Invalid field", UNPROCESSABLE_ENTITY);
    UnsupportedMediaType =
        ("unsupported-media-type", "Unsupported media type", UNSUPPORTED_MEDIA_TYPE);
    TooLarge = ("too-large", "Body too large", PAYLOAD_TOO_LARGE);
    TooMany = ("too-many", "Too many entries", PAYLOAD_TOO_LARGE);
    TooSlow = ("too-slow", "Body too slow", REQUEST_TIMEOUT);
    ShareUsedUp = ("share-used-up", "Share used up", TOO_MANY_REQUESTS);
    Exists = ("exists", "Task exists", CONFLICT);
    VersionMismatch = ("version-mismatch", "Version mismatch", PRECONDITION_FAILED);
    IdempotencyConflict = ("idempotency-conflict", "Idempotency key reused", CONFLICT);
    Firing = ("firing", "Task is firing", CONFLICT);
    Paused = ("paused", "Task is paused", CONFLICT);
    NotAWatch = ("not-a-watch", "Task is not a watch", UNPROCESSABLE_ENTITY);
    NotTouchable = ("not-touchable", "Task is not touchable", UNPROCESSABLE_ENTITY);
    NeverFires = ("never-fires", "Task never fires", UNPROCESSABLE_ENTITY);
    Busy = ("busy", "Busy", SERVICE_UNAVAILABLE);
    /// A full disk needs an operator, so no client is asked to retry soon.
    DiskFull = ("full", "Store full", INSUFFICIENT_STORAGE);
    /// The memory of a Redis server may be free again a moment later.
    MemoryFull = ("full", "Store full", SERVICE_UNAVAILABLE);
    StoreUnavailable = ("store", "Store unavailable", SERVICE_UNAVAILABLE);
    StoreBroken = ("store", "Store unavailable", INTERNAL_SERVER_ERROR);
    Damaged = ("damaged", "Value damaged", INTERNAL_SERVER_ERROR);
    NoOwner = ("no-owner", "No owner", SERVICE_UNAVAILABLE);
    Lost = ("lost", "Outcome unknown", SERVICE_UNAVAILABLE);
    Stopping = ("stopping", "Stopping", SERVICE_UNAVAILABLE);
    NotReady = ("not-ready", "Not ready", SERVICE_UNAVAILABLE);
}

impl ProblemType {
    const fn full(resource: Resource) -> Self {
        match resource {
            Resource::Disk => Self::DiskFull,
            Resource::Memory => Self::MemoryFull,
        }
    }

    /// The gRPC code. Some types have a code of their own that their status does not give.
    fn code(self) -> Code {
        match (self, self.row().2) {
            (Self::Lost, _) => Code::Unknown,
            (Self::Damaged, _) => Code::DataLoss,
            (Self::DiskFull | Self::MemoryFull, _) => Code::ResourceExhausted,
            (_, StatusCode::UNAUTHORIZED) => Code::Unauthenticated,
            (_, StatusCode::FORBIDDEN) => Code::PermissionDenied,
            (_, StatusCode::NOT_FOUND) => Code::NotFound,
            (_, StatusCode::CONFLICT) => Code::AlreadyExists,
            (_, StatusCode::PRECONDITION_FAILED) => Code::FailedPrecondition,
            (_, StatusCode::PAYLOAD_TOO_LARGE) => Code::OutOfRange,
            (_, StatusCode::REQUEST_TIMEOUT) => Code::DeadlineExceeded,
            (_, StatusCode::TOO_MANY_REQUESTS) => Code::ResourceExhausted,
            (_, StatusCode::SERVICE_UNAVAILABLE) => Code::Unavailable,
            (_, status) if status.is_client_error() => Code::InvalidArgument,
            _ => Code::Internal,
        }
    }
}

/// Why a call was refused or failed, as RFC 9457 defines it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// The problem type, `urn:punctual:…`. Programs compare this; titles and details may change.
    #[serde(rename = "type", serialize_with = "as_urn")]
    #[schema(value_type = ProblemUrn)]
    kind: ProblemType,
    /// The problem type in a few words, for people.
    title: &'static str,
    /// The HTTP status.
    #[serde(serialize_with = "as_number")]
    #[schema(value_type = u16, minimum = 400, maximum = 599)]
    status: StatusCode,
    /// What is wrong with this call and what to do about it, for people.
    detail: Box<str>,
    /// The field, query parameter or header that is wrong. Absent if no single one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<Box<str>>,
    /// The task that has the key already. Only with `urn:punctual:exists`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TaskAnswer>)]
    existing: Option<Box<RawValue>>,
    /// The `Allow` header of a 405.
    #[serde(skip)]
    allow: Option<Box<str>>,
    /// Why the broker is not ready, one sentence each. Only with `urn:punctual:not-ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasons: Option<Box<[String]>>,
}

documented!(
    /// The types of problems.
    ProblemUrn,
    "ProblemType",
    {
        let mut urns: Vec<_> = ProblemType::ALL.iter().map(|kind| kind.row().0).collect();
        urns.sort_unstable();
        urns.dedup();
        json!({"type": "string", "enum": urns})
    }
);

/// The task that a call names by its key or its id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskRef<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) name: &'a str,
}

impl fmt::Display for TaskRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {:?} in namespace {:?}", self.name, self.namespace.as_str())
    }
}

impl Problem {
    fn new(kind: ProblemType, detail: impl Into<Box<str>>) -> Self {
        let (_, title, status) = kind.row();
        let (detail, field, existing) = (detail.into(), None, None);
        Self { kind, title, status, detail, field, existing, allow: None, reasons: None }
    }

    fn with_field(self, field: Option<String>) -> Self {
        Self { field: field.map(Into::into), ..self }
    }

    /// No route matches the path.
    pub(crate) fn not_found() -> Self {
        let detail = "no route has this path; /openapi.json lists all of them";
        Self::new(ProblemType::NotFound, detail)
    }

    /// The console of this broker has no such file.
    pub(crate) fn no_console_file() -> Self {
        let detail = "the console of this broker has no such file; if the broker has been updated, \
                      load the page again";
        Self::new(ProblemType::NotFound, detail)
    }

    pub(crate) fn task_not_found(task: TaskRef<'_>) -> Self {
        let (name, namespace) = (task.name, task.namespace.as_str());
        let detail = format!("task {name:?} not found in namespace {namespace:?}");
        Self::new(ProblemType::TaskNotFound, detail)
    }

    /// No task has this name, and none that had it is in the history.
    pub(crate) fn task_unknown(task: TaskRef<'_>) -> Self {
        let detail = format!(
            "{}: there was none, or its history is past its retention",
            Self::task_not_found(task).detail
        );
        Self::new(ProblemType::TaskNotFound, detail)
    }

    pub(crate) fn dead_letter_not_found(namespace: &Namespace, fire_id: FireId) -> Self {
        let namespace = namespace.as_str();
        let detail = format!("dead letter \"{fire_id}\" not found in namespace {namespace:?}");
        Self::new(ProblemType::DeadLetterNotFound, detail)
    }

    pub(crate) fn alarm_not_found(namespace: &Namespace, name: &AlarmName) -> Self {
        let (namespace, name) = (namespace.as_str(), name.as_str());
        let detail = format!("alarm {name:?} not found in namespace {namespace:?}");
        Self::new(ProblemType::AlarmNotFound, detail)
    }

    pub(crate) fn rule_not_found(namespace: &Namespace, prefix: &str) -> Self {
        let namespace = namespace.as_str();
        let detail = format!("rule {prefix:?} not found in namespace {namespace:?}");
        Self::new(ProblemType::RuleNotFound, detail)
    }

    pub(crate) fn connection_not_found(name: &ConnectionName) -> Self {
        let detail = format!("connection {:?} is not in the configuration", name.as_str());
        Self::new(ProblemType::ConnectionNotFound, detail)
    }

    /// Operations are kept by the broker that took them.
    pub(crate) fn operation_not_found(namespace: &Namespace, id: &str) -> Self {
        let namespace = namespace.as_str();
        let detail = format!(
            "operation {id:?} not found in namespace {namespace:?}; an operation is known to the \
             broker that took it, until that broker stops"
        );
        Self::new(ProblemType::OperationNotFound, detail)
    }

    /// A namespace has as many operations as it may have.
    pub(crate) fn too_many_operations(namespace: &Namespace, running_max: usize) -> Self {
        let namespace = namespace.as_str();
        let detail = format!(
            "{running_max} operations of namespace {namespace:?} run on this broker already; retry \
             when one of them has ended, or stop one"
        );
        Self::new(ProblemType::ShareUsedUp, detail)
    }

    /// The call has no token, or a wrong one.
    pub(crate) fn unauthenticated() -> Self {
        let detail = "a valid token is required: send it as `Authorization: Bearer TOKEN`";
        Self::new(ProblemType::Unauthenticated, detail)
    }

    /// The token is valid, but the route needs an admin token, or a valid namespace.
    pub(crate) fn forbidden() -> Self {
        let detail = "the token does not grant this call; use an admin token";
        Self::new(ProblemType::Forbidden, detail)
    }

    /// The token is valid, but has none of these rights in the namespace.
    pub(crate) fn right_missing(one_of: Rights, namespace: &Namespace) -> Self {
        let namespace = namespace.as_str();
        let rights: Vec<String> = one_of.names().map(|name| format!("`{name}`")).collect();
        let detail = format!(
            "the token does not grant the right {} in namespace {namespace:?}; \
             use a token that does, or an admin token",
            rights.join(" or ")
        );
        Self::new(ProblemType::Forbidden, detail)
    }

    /// The route is missing in the table of rights.
    pub(crate) fn no_right_declared() -> Self {
        let detail = "this path cannot be called: the broker declares no right for it";
        Self::new(ProblemType::Forbidden, detail)
    }

    /// A web page of another origin calls a broker without tokens.
    pub(crate) fn cross_origin() -> Self {
        let detail = "a web page of another origin cannot call a broker without tokens; \
                      configure tokens, or call the broker from a program";
        Self::new(ProblemType::CrossOrigin, detail)
    }

    /// The `Host` of a call to a loopback address is not a loopback name.
    pub(crate) fn host_not_allowed() -> Self {
        let detail = "a broker without tokens that listens on loopback can be called as localhost \
                      or by a loopback address only; use one of these, or configure tokens";
        Self::new(ProblemType::HostNotAllowed, detail)
    }

    /// The path has other methods; `allow` lists them, if they are known.
    pub(crate) fn method_not_allowed(allow: Option<&str>) -> Self {
        let detail = "this path does not support this method; the Allow header lists those it does";
        let problem = Self::new(ProblemType::MethodNotAllowed, detail);
        Self { allow: allow.map(Into::into), ..problem }
    }

    /// A part of the path, the query or a header is wrong.
    pub(crate) fn invalid_request(detail: impl Into<Box<str>>, field: Option<String>) -> Self {
        Self::new(ProblemType::InvalidRequest, detail).with_field(field)
    }

    /// The body is not JSON, or not of the form that the route takes.
    pub(crate) fn invalid_body(detail: impl Into<Box<str>>, field: Option<String>) -> Self {
        Self::new(ProblemType::InvalidBody, detail).with_field(field)
    }

    /// The client stopped sending before the body was complete.
    pub(crate) fn incomplete_body() -> Self {
        Self::invalid_body("the body is incomplete", None)
    }

    /// The body, or a message of it, did not arrive in time.
    pub(crate) fn too_slow(what: &str, time_max: Duration) -> Self {
        let detail = format!("{what} must arrive within {}", format_duration(time_max));
        Self::new(ProblemType::TooSlow, detail)
    }

    /// A namespace has as much of a limited resource as it may have.
    pub(crate) fn share_used_up(namespace: &Namespace, total: usize, what: &str) -> Self {
        let namespace = namespace.as_str();
        let detail = format!(
            "namespace {namespace:?} has used up its share of the {total} {what} of this broker; \
             retry when some of its calls have ended"
        );
        Self::new(ProblemType::ShareUsedUp, detail)
    }

    /// All of a resource that callers share is in use.
    pub(crate) fn all_in_use(total: usize, what: &str) -> Self {
        let detail = format!("all of the {total} {what} of this broker are in use; retry later");
        Self::new(ProblemType::ShareUsedUp, detail)
    }

    /// The body is larger than the route takes.
    pub(crate) fn too_large(bytes_max: usize) -> Self {
        let detail = format!("the body must have at most {bytes_max} bytes");
        Self::new(ProblemType::TooLarge, detail)
    }

    /// One call has more tasks, keys or ids than it may have.
    pub(crate) fn too_many(what: &str, count_max: usize) -> Self {
        let detail = format!("one call must have at most {count_max} {what}; split it");
        Self::new(ProblemType::TooMany, detail)
    }

    /// The `Content-Type` is none of those that the route takes.
    pub(crate) fn unsupported_media_type(supported: &str) -> Self {
        let detail = format!("the content type of the body must be {supported}");
        let problem = Self::new(ProblemType::UnsupportedMediaType, detail);
        problem.with_field(Some("content-type".to_owned()))
    }

    /// The broker drains.
    pub(crate) fn stopping() -> Self {
        Self::new(
            ProblemType::Stopping,
            "the broker is stopping; retry later, or at another broker",
        )
    }

    pub(crate) fn not_ready(reasons: &[String]) -> Self {
        let problem = Self::new(ProblemType::NotReady, reasons.join("; "));
        Self { reasons: Some(reasons.into()), ..problem }
    }

    /// What the engine answers about a task that the call names.
    pub(crate) fn of_task(error: EngineError, task: TaskRef<'_>) -> Self {
        Self::of_engine(error, Some(task))
    }

    /// `If-Match` or `if_version` for a task that does not exist.
    pub(crate) fn no_version(task: TaskRef<'_>) -> Self {
        let detail = format!("{}, so no version matches", Self::task_not_found(task).detail);
        Self::new(ProblemType::VersionMismatch, detail)
    }

    fn of_engine(error: EngineError, task: Option<TaskRef<'_>>) -> Self {
        use ProblemType as T;
        let named = task.map_or_else(|| "the task".to_owned(), |task| task.to_string());
        match error {
            EngineError::NotFound => task
                .map_or_else(|| Self::new(T::TaskNotFound, "task not found"), Self::task_not_found),
            EngineError::DeadLetterNotFound => {
                Self::new(T::DeadLetterNotFound, "dead letter not found")
            }
            EngineError::Exists(existing) => {
                let existing = serde_json::value::to_raw_value(&TaskAnswer::of(&existing)).ok();
                Self { existing, ..Self::new(T::Exists, format!("{named} already exists")) }
            }
            EngineError::VersionMismatch(version) => {
                let version = version.get();
                let detail = format!("{named} is at version {version}; read it again and retry");
                Self::new(T::VersionMismatch, detail)
            }
            EngineError::IdempotencyConflict => Self::new(
                T::IdempotencyConflict,
                "the idempotency key was used for another task; use a new idempotency key",
            ),
            EngineError::Firing(attempt) => {
                let attempt = attempt.get();
                let detail =
                    format!("attempt {attempt} of {named} is in flight; retry when it has ended");
                Self::new(T::Firing, detail)
            }
            EngineError::Paused => {
                Self::new(T::Paused, format!("{named} is paused; resume it first"))
            }
            EngineError::NotAWatch => Self::new(
                T::NotAWatch,
                format!("{named} is not a watch; give the new time as `in` or `at`"),
            ),
            EngineError::NotTouchable => Self::new(
                T::NotTouchable,
                "cron and interval tasks cannot be touched; \
                 PUT a new schedule, or POST …/fire to run it now",
            ),
            EngineError::NeverFires => {
                Self::new(T::NeverFires, "the schedule has no fire time after now")
            }
            EngineError::Busy => Self::new(T::Busy, "too many calls are pending; retry later"),
            EngineError::Full(resource) => {
                let detail = match resource {
                    Resource::Disk => {
                        "the disk of the store is full: tasks still fire, but none can be added; \
                         free disk space"
                    }
                    Resource::Memory => {
                        "the memory of the store is full: tasks still fire, but none can be added; \
                         retry later, or give Redis more memory"
                    }
                };
                Self::new(T::full(resource), detail)
            }
            EngineError::StoreUnavailable => Self::new(
                T::StoreUnavailable,
                "the store does not answer; nothing was changed; retry later",
            ),
            EngineError::Damaged(damage) => Self::new(T::Damaged, damage),
            EngineError::Stopped => {
                Self::new(T::NoOwner, "no broker owns this partition right now; retry")
            }
            EngineError::Lost => Self::new(
                T::Lost,
                "the broker that decides did not answer, so it is not known whether the call was \
                 carried out; with an Idempotency-Key it is safe to retry",
            ),
        }
    }

    /// The type, status, detail and field, for the gRPC message.
    pub(crate) fn parts(&self) -> (&'static str, StatusCode, &str, Option<&str>) {
        (self.kind.row().0, self.status, &self.detail, self.field.as_deref())
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn code(&self) -> Code {
        self.kind.code()
    }

    /// Puts the field of this problem under another one: `key` becomes `create.key`.
    pub(crate) fn within(mut self, outer: &str) -> Self {
        self.field = Some(match self.field {
            Some(field) => format!("{outer}.{field}").into(),
            None => outer.into(),
        });
        self
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::new(ProblemType::InvalidField, invalid.to_string()).with_field(Some(invalid.field))
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        Self::of_engine(error, None)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if let StoreError::Damaged(damage) = error {
            return Self::new(ProblemType::Damaged, damage.to_string());
        }
        let kind = match error {
            StoreError::Full { resource, .. } => ProblemType::full(resource),
            StoreError::Broken(_) => ProblemType::StoreBroken,
            _ => ProblemType::StoreUnavailable,
        };
        // The cause is for the operator, not for the client.
        tracing::warn!(%error, "store read failed");
        Self::new(kind, "the store could not be read; retry later")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let json = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
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
fn as_urn<S: serde::Serializer>(kind: &ProblemType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.row().0)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

#[cfg(test)]
mod tests {
    use punctual_core::{AttemptNo, TaskId, Timestamp, Version};

    use super::*;

    fn shop() -> Namespace {
        Namespace::new("shop").unwrap()
    }

    #[test]
    fn a_problem_names_its_task_and_says_what_to_do() {
        let namespace = shop();
        let task = TaskRef { namespace: &namespace, name: "order-42" };
        let named = "task \"order-42\" in namespace \"shop\"";
        for (error, kind, status, code, detail) in [
            (
                EngineError::NotFound,
                "task-not-found",
                404,
                Code::NotFound,
                "task \"order-42\" not found in namespace \"shop\"".to_owned(),
            ),
            (
                EngineError::VersionMismatch(Version::new(3)),
                "version-mismatch",
                412,
                Code::FailedPrecondition,
                format!("{named} is at version 3; read it again and retry"),
            ),
            (
                EngineError::Firing(AttemptNo::new(2)),
                "firing",
                409,
                Code::AlreadyExists,
                format!("attempt 2 of {named} is in flight; retry when it has ended"),
            ),
            (
                EngineError::Paused,
                "paused",
                409,
                Code::AlreadyExists,
                format!("{named} is paused; resume it first"),
            ),
            (
                EngineError::NotAWatch,
                "not-a-watch",
                422,
                Code::InvalidArgument,
                format!("{named} is not a watch; give the new time as `in` or `at`"),
            ),
            (
                EngineError::Stopped,
                "no-owner",
                503,
                Code::Unavailable,
                "no broker owns this partition right now; retry".to_owned(),
            ),
        ] {
            let problem = Problem::of_task(error, task);
            let kind = format!("urn:punctual:{kind}");
            assert_eq!(
                problem.parts(),
                (kind.as_str(), status.try_into().unwrap(), &*detail, None)
            );
            assert_eq!(problem.code(), code);
        }
    }

    #[test]
    fn a_missing_dead_letter_is_named() {
        let nominal_at = Timestamp::EPOCH;
        let fire_id = FireId { task: TaskId::floor(nominal_at), nominal_at };
        let problem = Problem::dead_letter_not_found(&shop(), fire_id);
        let detail = format!("dead letter \"{fire_id}\" not found in namespace \"shop\"");
        let (kind, status, found, _) = problem.parts();
        assert_eq!((kind, status.as_u16()), ("urn:punctual:dead-letter-not-found", 404));
        assert_eq!(found, detail);
    }

    #[test]
    fn some_problems_have_grpc_codes_that_their_status_does_not_give() {
        for (error, status, code) in [
            (EngineError::Lost, 503, Code::Unknown),
            (EngineError::Full(Resource::Memory), 503, Code::ResourceExhausted),
            (EngineError::Full(Resource::Disk), 507, Code::ResourceExhausted),
            (EngineError::Busy, 503, Code::Unavailable),
            (EngineError::Damaged("the task is damaged".into()), 500, Code::DataLoss),
        ] {
            let problem = Problem::from(error);
            assert_eq!((problem.parts().1.as_u16(), problem.code()), (status, code));
        }
    }
}
