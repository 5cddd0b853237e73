//! `Prefer: return=minimal` (RFC 7240): how much of a task an answer has.
//!
//! A caller that needs no more than the id, the time and the version of what it has scheduled or
//! touched gets these only, and `Preference-Applied` says so. Other preferences are ignored.

use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};

use super::request;

const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
const MINIMAL: &str = "return=minimal";

/// How much of a task an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerDepth {
    Whole,
    /// A few fields.
    Minimal,
}

impl AnswerDepth {
    /// What the headers of a request ask for. Of several preferences for `return`, the first
    /// counts.
    pub(super) fn wanted(headers: &HeaderMap) -> Self {
        let values = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
        for preference in values.flat_map(|value| value.split(',')) {
            let preference = preference.split(';').next().unwrap_or_default();
            let Some((name, value)) = preference.split_once('=') else { continue };
            if name.trim().eq_ignore_ascii_case("return") {
                let is_minimal = value.trim().trim_matches('"').eq_ignore_ascii_case("minimal");
                return if is_minimal { Self::Minimal } else { Self::Whole };
            }
        }
        Self::Whole
    }

    /// Says in a response which preference it follows.
    pub(super) fn applied_to(self, mut response: Response) -> Response {
        if self == Self::Minimal {
            let applied = HeaderValue::from_static(MINIMAL);
            response.headers_mut().insert(PREFERENCE_APPLIED, applied);
        }
        response
    }
}

/// The header, for the OpenAPI document.
pub(super) struct PreferHeader;

impl IntoParams for PreferHeader {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description =
            "`return=minimal`: the answer about one task has only some of its fields.";
        let schema = json!({"type": "string"});
        vec![request::header_parameter(&PREFER, description, &schema)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimal_answer_is_given_only_if_it_is_asked_for_first() {
        for (values, want) in [
            (&[][..], AnswerDepth::Whole),
            (&["return=minimal"], AnswerDepth::Minimal),
            (&["Return = \"MINIMAL\""], AnswerDepth::Minimal),
            (&["respond-async, return=minimal; foo=bar"], AnswerDepth::Minimal),
            (&["wait=10", "return=minimal"], AnswerDepth::Minimal),
            (&["return=representation"], AnswerDepth::Whole),
            (&["return=representation, return=minimal"], AnswerDepth::Whole),
            (&["return"], AnswerDepth::Whole),
            (&["x=return=minimal"], AnswerDepth::Whole),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(PREFER, HeaderValue::from_static(value));
            }
            assert_eq!(AnswerDepth::wanted(&headers), want, "{values:?}");
        }
    }
}
