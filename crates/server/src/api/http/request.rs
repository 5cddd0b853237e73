//! Requests: paths, queries and bodies, as untrusted as they come.
//!
//! In: HTTP. Out: names that keep their rules, queries without strangers, bodies within their bound, or a problem that says which
//! part is wrong and what is allowed.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use http_body_util::BodyExt as _;
use punctual_core::{Invalid, Namespace};
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::error::Problem;

/// The body of a call about one task: the largest payload, in base64, with room for the rest of it.
pub(crate) const BODY_BYTES_MAX: usize = 512 * 1024;

/// The body of a call about many tasks: some seconds of a slow line, and it must fit memory.
pub(crate) const BATCH_BYTES_MAX: usize = 64 << 20;

/// The body of a call that names many tasks: the longest keys, escaped.
pub(crate) const NAMES_BYTES_MAX: usize = 8 << 20;

/// What one call may be about: as many as owners decide in some tens of milliseconds.
pub(crate) const BATCH_MAX: usize = 10_000;

/// What is read of a body that is too large, and dropped: memory is not at stake, only the patience with it.
const PASSED_OVER_MAX: usize = 256 << 20;

/// Bodies larger than [`BODY_BYTES_MAX`] at once: with the largest, half a gibibyte. Others wait before they are read on.
static LARGE_BODIES: Semaphore = Semaphore::const_new(8);

/// The namespace in a path.
#[derive(Debug)]
pub(crate) struct In(pub(crate) Namespace);

/// The namespace in a path, and the name after it: a key, an id, a queue.
#[derive(Debug)]
pub(crate) struct Named(pub(crate) Namespace, pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for In {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = names(parts, state).await?;
        Ok(Self(Namespace::new(name(&names, 0))?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let names = names(parts, state).await?;
        Ok(Self(Namespace::new(name(&names, 0))?, name(&names, 1).to_owned()))
    }
}

async fn names<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<RawPathParams, Problem> {
    RawPathParams::from_request_parts(parts, state).await.map_err(|_| {
        let detail = "the path must be UTF-8, percent-encoded".to_owned();
        Problem::request(detail, None)
    })
}

/// The name at a place in the pattern of a route; those without have an empty one.
fn name(names: &RawPathParams, place: usize) -> &str {
    names.iter().nth(place).map_or("", |(_, name)| name)
}

/// What a query says. Every name is taken once; what nobody takes is refused by name.
#[derive(Debug)]
pub(crate) struct Asked(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let Query(pairs) = query
            .map_err(|_| Problem::request("the query must be name=value pairs".to_owned(), None))?;
        Ok(Self(pairs))
    }
}

impl Asked {
    pub(crate) fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// The value of a name, if it is given. One without a value is as good as not given.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let mut found = None;
        while let Some(index) = self.0.iter().position(|(given, _)| given == name) {
            if found.replace(self.0.swap_remove(index).1).is_some() {
                let detail = format!("{name} must be given once");
                return Err(Problem::request(detail, Some(name.to_owned())));
            }
        }
        Ok(found.filter(|value| !value.is_empty()))
    }

    /// A number from 1 to `max`.
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
            Problem::request(detail, Some(name.to_owned()))
        })
    }

    /// That nothing is left.
    pub(crate) fn end(self) -> Result<(), Problem> {
        let Some((name, _)) = self.0.into_iter().next() else {
            return Ok(());
        };
        let detail = format!("there is no query parameter {name:?} here");
        Err(Problem::request(detail, Some(name)))
    }
}

/// A body of JSON of at most `MAX` bytes.
#[derive(Debug)]
pub(crate) struct Sent<const MAX: usize>(pub(crate) Bytes);

impl<S: Send + Sync, const MAX: usize> FromRequest<S> for Sent<MAX> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        match kind(&parts.headers)? {
            Kind::Json => Ok(Self(read(&parts.headers, body, MAX).await?)),
            Kind::Lines => Err(Problem::media_type("application/json")),
        }
    }
}

/// A body of one task, or of many.
#[derive(Debug)]
pub(crate) enum Load {
    /// A JSON object.
    One(Bytes),
    /// A JSON array.
    Array(Bytes),
    /// JSON objects, one a line.
    Lines(Bytes),
}

impl<S: Send + Sync> FromRequest<S> for Load {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        refuse_conditions(&parts.headers)?;
        let kind = kind(&parts.headers)?;
        let bytes = read(&parts.headers, body, BATCH_BYTES_MAX).await?;
        match (kind, bytes.trim_ascii_start().first()) {
            (Kind::Lines, _) => Ok(Self::Lines(bytes)),
            (Kind::Json, Some(b'[')) => Ok(Self::Array(bytes)),
            (Kind::Json, _) if bytes.len() > BODY_BYTES_MAX => {
                Err(Problem::too_large(BODY_BYTES_MAX))
            }
            (Kind::Json, _) => Ok(Self::One(bytes)),
        }
    }
}

/// Conditions are about the one task that a path names. Whoever sends one elsewhere must not think that it was heeded.
fn refuse_conditions(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(name) = [IF_NONE_MATCH, IF_MATCH].into_iter().find(|name| headers.contains_key(name))
    else {
        return Ok(());
    };
    let detail = format!("{name} is for PUT /v1/{{namespace}}/tasks/{{key}}, not for POST");
    Err(Problem::request(detail, Some(name.to_string())))
}

enum Kind {
    Json,
    Lines,
}

/// What a body is said to be. Nothing said is JSON, and so is what `curl -d` says unasked, unless a page in a browser says it: it
/// would need nobody's leave.
fn kind(headers: &HeaderMap) -> Result<Kind, Problem> {
    let Some(text) = header(headers, &CONTENT_TYPE)? else {
        return Ok(Kind::Json);
    };
    let media = text.split(';').next().unwrap_or_default().trim();
    let is = |name| media.eq_ignore_ascii_case(name);
    if is("application/json") {
        Ok(Kind::Json)
    } else if is("application/x-ndjson") {
        Ok(Kind::Lines)
    } else if is("application/x-www-form-urlencoded") && !headers.contains_key(ORIGIN) {
        Ok(Kind::Json)
    } else {
        Err(Problem::media_type("application/json or application/x-ndjson"))
    }
}

/// The whole body, if it is within its bound.
async fn read(headers: &HeaderMap, mut body: Body, max: usize) -> Result<Bytes, Problem> {
    let said = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let mut left = max;
    if said.is_some_and(|length: usize| length > max) {
        return Err(refuse(body, max).await);
    }
    let mut bytes = Vec::new();
    let mut place = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::broken_off())?;
        let Ok(piece) = frame.into_data() else { continue };
        let Some(rest) = left.checked_sub(piece.len()) else {
            return Err(refuse(body, max).await);
        };
        left = rest;
        if place.is_none() && bytes.len() + piece.len() > BODY_BYTES_MAX {
            place = LARGE_BODIES.acquire().await.ok();
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

/// Reads on for a while and keeps nothing: a client that is still sending when the connection ends never sees the answer.
async fn refuse(mut body: Body, max: usize) -> Problem {
    let mut passed = 0;
    while passed < PASSED_OVER_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        passed += frame.data_ref().map_or(0, Bytes::len);
    }
    Problem::too_large(max)
}

/// Reads JSON into a type; the problem names the field by its path.
pub(crate) fn json<'a, T: Deserialize<'a>>(body: &'a [u8], what: &str) -> Result<T, Problem> {
    // Serde would take an array for an object, field by field.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::body(format!("the body must be {what}, a JSON object"), None));
    }
    if body.trim_ascii().is_empty() {
        let detail = format!("there is no body; it must be {what}, a JSON object");
        return Err(Problem::body(detail, None));
    }
    // Keeping track of the path costs as much as reading, so that is left to those who need it.
    serde_json::from_slice(body).map_err(|error| problem::<T>(body, &error))
}

/// What is wrong with JSON that could not be read, and where.
fn problem<'a, T: Deserialize<'a>>(body: &'a [u8], error: &serde_json::Error) -> Problem {
    let mut json = serde_json::Deserializer::from_slice(body);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut json) else {
        // Something follows that does not belong to it.
        return Problem::body(error.to_string(), None);
    };
    let path = error.path().to_string();
    // A dot stands for the body as a whole, a question mark for a place that has no name.
    let field = (!path.starts_with(['.', '?'])).then_some(path);
    Problem::body(error.inner().to_string(), field)
}

/// Reads JSON into a type; no body at all is one that says nothing.
pub(crate) fn json_or_default<'a, T: Deserialize<'a> + Default>(
    body: &'a [u8],
    what: &str,
) -> Result<T, Problem> {
    if body.trim_ascii().is_empty() { Ok(T::default()) } else { json(body, what) }
}

/// That a list is not longer than what one call may be about.
pub(crate) fn check_count(field: &str, count: usize) -> Result<(), Invalid> {
    if count <= BATCH_MAX {
        return Ok(());
    }
    let problem = format!("must have at most {BATCH_MAX} entries, has {count}");
    Err(Invalid::new(field, problem))
}

/// A header that is given at most once.
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
            Err(Problem::request(detail, Some(name.to_string())))
        }
    }
}
