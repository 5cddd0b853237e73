//! Reads HTTP requests: paths, queries, headers and bodies.
//!
//! Everything in a request is untrusted. The extractors here return names that are valid, queries
//! without unknown or repeated parameters, and bodies within their limits, or a [`Problem`] that
//! names the part that is wrong and what is allowed.

use axum::body::{Body, Bytes};
use axum::extract::{
    FromRequest, FromRequestParts, OptionalFromRequestParts, Query, RawPathParams, Request,
};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use http_body_util::BodyExt as _;
use punctual_core::Namespace;
use serde::Deserialize;
use serde_json::Value;
use utoipa::openapi::Required;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};

use crate::api::body::BodyProblem;
use crate::api::idempotency::{IDEMPOTENCY_HEADER, Idempotency};
use crate::api::limits::SMALL_BYTES_MAX;
pub(crate) use crate::api::limits::{BATCH_MAX, check_count};
use crate::problem::Problem;
use crate::schema;

/// Bytes of a body about one task: the largest payload in base64, and the other fields.
pub(crate) const BODY_BYTES_MAX: usize = SMALL_BYTES_MAX;

/// Bytes of a body with many tasks: it is read into memory, and takes seconds on a slow line.
pub(crate) const BATCH_BYTES_MAX: usize = 64 << 20;

/// Bytes of a body that lists keys, ids or tokens: [`BATCH_MAX`] of the longest keys, escaped.
pub(crate) const NAMES_BYTES_MAX: usize = 8 << 20;

/// The namespace in a path.
#[derive(Debug)]
pub(crate) struct PathNamespace(pub(crate) Namespace);

/// The namespace in a path, and the key, id, fire id or queue after it.
#[derive(Debug)]
pub(crate) struct PathName(pub(crate) Namespace, pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathNamespace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = path_params(parts, state).await?;
        Ok(Self(Namespace::new(param(&params, 0))?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = path_params(parts, state).await?;
        Ok(Self(Namespace::new(param(&params, 0))?, param(&params, 1).to_owned()))
    }
}

async fn path_params<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
) -> Result<RawPathParams, Problem> {
    RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|_| Problem::invalid_request("the path must be percent-encoded UTF-8", None))
}

/// The path parameter at a position; empty if the route has fewer.
fn param(params: &RawPathParams, position: usize) -> &str {
    params.iter().nth(position).map_or("", |(_, value)| value)
}

/// The parameters of a query. A route takes those it knows, then [`QueryParams::end`] refuses the
/// rest.
#[derive(Debug)]
pub(crate) struct QueryParams(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for QueryParams {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let Query(pairs) = query
            .map_err(|_| Problem::invalid_request("the query must be name=value pairs", None))?;
        Ok(Self(pairs))
    }
}

impl QueryParams {
    pub(crate) fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// Takes the value of a parameter. An empty value counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let mut found = None;
        while let Some(index) = self.0.iter().position(|(given, _)| given == name) {
            if found.replace(self.0.swap_remove(index).1).is_some() {
                let detail = format!("{name} must be given once");
                return Err(Problem::invalid_request(detail, Some(name.to_owned())));
            }
        }
        Ok(found.filter(|value| !value.is_empty()))
    }

    /// Takes a number from 1 to `max`.
    pub(crate) fn count(
        &mut self,
        name: &str,
        default: usize,
        max: usize,
    ) -> Result<usize, Problem> {
        let Some(text) = self.take(name)? else {
            return Ok(default);
        };
        let count = text.parse().ok().filter(|count| (1..=max).contains(count));
        count.ok_or_else(|| {
            let detail = format!("{name} must be a number from 1 to {max}");
            Problem::invalid_request(detail, Some(name.to_owned()))
        })
    }

    /// Refuses a parameter that was not taken.
    pub(crate) fn end(self) -> Result<(), Problem> {
        let Some((name, _)) = self.0.into_iter().next() else {
            return Ok(());
        };
        let detail = format!("unknown query parameter {name:?}");
        Err(Problem::invalid_request(detail, Some(name)))
    }
}

/// A JSON body of at most `MAX` bytes.
#[derive(Debug)]
pub(crate) struct JsonBody<const MAX: usize>(pub(crate) Bytes);

impl<S: Send + Sync, const MAX: usize> FromRequest<S> for JsonBody<MAX> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        check_json(&parts.headers)?;
        Ok(Self(read(&parts.headers, body, MAX).await?))
    }
}

/// Checks that a body is declared as JSON.
pub(super) fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    match body_format(headers)? {
        BodyFormat::Json => Ok(()),
        BodyFormat::Lines => Err(Problem::unsupported_media_type("application/json")),
    }
}

/// A body with one task or with many.
#[derive(Debug)]
pub(crate) enum TasksBody {
    /// A JSON object.
    One(Bytes),
    /// A JSON array.
    Array(Bytes),
    /// JSON objects, one per line.
    Lines(Bytes),
}

impl<S: Send + Sync> FromRequest<S> for TasksBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        refuse_conditions(&parts.headers)?;
        let format = body_format(&parts.headers)?;
        let bytes = read(&parts.headers, body, BATCH_BYTES_MAX).await?;
        Self::in_format(format, bytes)
    }
}

impl TasksBody {
    /// The body of a request with these headers, which was read.
    pub(super) fn of(headers: &HeaderMap, bytes: Bytes) -> Result<Self, Problem> {
        refuse_conditions(headers)?;
        Self::in_format(body_format(headers)?, bytes)
    }

    fn in_format(format: BodyFormat, bytes: Bytes) -> Result<Self, Problem> {
        match (format, bytes.trim_ascii_start().first()) {
            (BodyFormat::Lines, _) => Ok(Self::Lines(bytes)),
            (BodyFormat::Json, Some(b'[')) => Ok(Self::Array(bytes)),
            (BodyFormat::Json, _) if bytes.len() > BODY_BYTES_MAX => {
                Err(Problem::too_large(BODY_BYTES_MAX))
            }
            (BodyFormat::Json, _) => Ok(Self::One(bytes)),
        }
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Problem> {
        idempotency(&parts.headers)
    }
}

pub(super) fn idempotency(headers: &HeaderMap) -> Result<Option<Idempotency>, Problem> {
    let key = header(headers, &IDEMPOTENCY_HEADER)?;
    Ok(key.map(Idempotency::new).transpose()?)
}

/// Refuses `If-Match` and `If-None-Match`. They apply to the one task that a path names; a client
/// that sends one elsewhere must not believe that it had an effect.
fn refuse_conditions(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(name) = [IF_NONE_MATCH, IF_MATCH].into_iter().find(|name| headers.contains_key(name))
    else {
        return Ok(());
    };
    let detail =
        format!("{name} is not supported by POST; use PUT /v1/{{namespace}}/tasks/{{key}}");
    Err(Problem::invalid_request(detail, Some(name.to_string())))
}

enum BodyFormat {
    Json,
    Lines,
}

/// The format of a body by its `Content-Type`. No type means JSON. So does the form type that
/// `curl -d` sends by default, except from a web page, which could send it without a preflight.
fn body_format(headers: &HeaderMap) -> Result<BodyFormat, Problem> {
    let Some(text) = header(headers, &CONTENT_TYPE)? else {
        return Ok(BodyFormat::Json);
    };
    let media = text.split(';').next().unwrap_or_default().trim();
    let is = |name| media.eq_ignore_ascii_case(name);
    if is("application/json") {
        Ok(BodyFormat::Json)
    } else if is("application/x-ndjson") {
        Ok(BodyFormat::Lines)
    } else if is("application/x-www-form-urlencoded") && !headers.contains_key(ORIGIN) {
        Ok(BodyFormat::Json)
    } else {
        Err(Problem::unsupported_media_type("application/json or application/x-ndjson"))
    }
}

/// Reads a whole body of at most `max` bytes.
async fn read(headers: &HeaderMap, mut body: Body, max: usize) -> Result<Bytes, Problem> {
    let declared =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if declared.is_some_and(|length: usize| length > max) {
        return Err(Problem::too_large(max));
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(read_problem)?.into_data() else { continue };
        if bytes.len() + piece.len() > max {
            return Err(Problem::too_large(max));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

/// Why a body could not be read.
fn read_problem(error: axum::Error) -> Problem {
    match error.into_inner().downcast::<BodyProblem>() {
        Ok(problem) => problem.0,
        Err(_) => Problem::incomplete_body(),
    }
}

/// Parses a JSON object; the problem names the wrong field by its path. `what` names the object.
pub(crate) fn json<'a, T: Deserialize<'a>>(body: &'a [u8], what: &str) -> Result<T, Problem> {
    // Serde would read an array into a struct, field by field.
    if body.trim_ascii_start().first() == Some(&b'[') {
        let detail = format!("the body must be {what}, a JSON object");
        return Err(Problem::invalid_body(detail, None));
    }
    if body.trim_ascii().is_empty() {
        let detail = format!("the body is empty; it must be {what}, a JSON object");
        return Err(Problem::invalid_body(detail, None));
    }
    // Tracking the path takes as long as parsing, so it is done only after an error.
    serde_json::from_slice(body).map_err(|error| locate_error::<T>(body, &error))
}

/// Parses again to find the path of the field that is wrong.
fn locate_error<'a, T: Deserialize<'a>>(body: &'a [u8], error: &serde_json::Error) -> Problem {
    let mut json = serde_json::Deserializer::from_slice(body);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut json) else {
        // The object is fine, but something follows it.
        return Problem::invalid_body(error.to_string(), None);
    };
    let path = error.path().to_string();
    // A path that begins with `.` or `?` names no field.
    let field = (!path.starts_with(['.', '?'])).then_some(path);
    Problem::invalid_body(error.inner().to_string(), field)
}

/// Parses a JSON object; an empty body is the default.
pub(crate) fn json_or_default<'a, T: Deserialize<'a> + Default>(
    body: &'a [u8],
    what: &str,
) -> Result<T, Problem> {
    if body.trim_ascii().is_empty() { Ok(T::default()) } else { json(body, what) }
}

/// A header that may be given, for the OpenAPI document.
pub(crate) fn header_parameter(name: &HeaderName, description: &str, schema: &Value) -> Parameter {
    ParameterBuilder::new()
        .name(name.as_str())
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some(description))
        .schema(Some(schema::of(schema)))
        .build()
}

/// The text of a header that may be given at most once.
pub(crate) fn header<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    match (value.to_str(), values.next()) {
        (Ok(text), None) => Ok(Some(text.trim())),
        _ => {
            let detail = format!("{name} must be given once, in ASCII");
            Err(Problem::invalid_request(detail, Some(name.to_string())))
        }
    }
}
