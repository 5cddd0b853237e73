//! Reads the answer of a call, and judges it by its status.
//!
//! The status comes after the message, so the answer is read to its end. At most
//! [`ANSWER_READ_MAX`] bytes are read, of which only the first are kept; the rest is discarded as
//! it comes.

use std::borrow::Cow;
use std::time::Duration;

use h2::RecvStream;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use punctual_core::{Answer, AttemptResult, Guarantee, Outcome};

use super::{failed, refused, unknown};

/// Bytes of an answer that are read: the size of a message that gRPC libraries take by default.
const ANSWER_READ_MAX: usize = 4 * 1024 * 1024;
/// Bytes in front of a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
const STATUS: &str = "grpc-status";
const MESSAGE: &str = "grpc-message";
const PUSHBACK: &str = "grpc-retry-pushback-ms";

const OK: u32 = 0;
const INVALID_ARGUMENT: u32 = 3;
const DEADLINE_EXCEEDED: u32 = 4;
/// The names of the status codes, from 0.
const STATUS_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// An answer that is being read.
#[derive(Debug)]
pub(super) struct CallAnswer {
    head: Parts,
    body: RecvStream,
    /// Bytes of the message to keep.
    answer_bytes: usize,
    /// The first bytes of the body, with the prefix of the message.
    kept: Vec<u8>,
    received: usize,
    trailers: Option<HeaderMap>,
    end: AnswerEnd,
}

/// How far an answer was read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AnswerEnd {
    Complete,
    /// It has more than [`ANSWER_READ_MAX`] bytes.
    TooLong,
    /// The connection broke, or the server gave the call up.
    Broken(String),
    /// The time was over.
    TooSlow,
}

impl CallAnswer {
    pub(super) fn new(response: Response<RecvStream>, answer_bytes: usize) -> Self {
        let (head, body) = response.into_parts();
        let (kept, trailers, end) = (Vec::new(), None, AnswerEnd::TooSlow);
        Self { head, body, answer_bytes, kept, received: 0, trailers, end }
    }

    /// Reads the answer to its end or its limit. What was read so far is kept if the future is
    /// dropped because the attempt may take no longer.
    pub(super) async fn read(&mut self) {
        let kept_max = PREFIX_BYTES + self.answer_bytes;
        while let Some(data) = self.body.data().await {
            let data = match data {
                Ok(data) => data,
                Err(error) => return self.end = AnswerEnd::Broken(error.to_string()),
            };
            self.received += data.len();
            let kept = data.len().min(kept_max - self.kept.len());
            self.kept.extend_from_slice(&data[..kept]);
            if self.received > ANSWER_READ_MAX {
                return self.end = AnswerEnd::TooLong;
            }
            // Lets the server send more. It fails only if the server sends no more.
            let _ = self.body.flow_control().release_capacity(data.len());
        }
        self.end = match self.body.trailers().await {
            Ok(trailers) => {
                self.trailers = trailers;
                AnswerEnd::Complete
            }
            Err(error) => AnswerEnd::Broken(error.to_string()),
        };
    }

    /// Returns whether the connection can be used for another call.
    pub(super) fn is_complete(&self) -> bool {
        self.end == AnswerEnd::Complete
    }

    pub(super) fn judge(self, guarantee: Guarantee) -> AttemptResult {
        // An answer without a message may have its status in its head.
        let ends = [self.trailers.as_ref(), Some(&self.head.headers)];
        let status = ends.into_iter().flatten().find_map(|end| Some((code_of(end)?, end)));
        if let Some((code, end)) = status {
            let answer = Some(Box::new(self.answer(code, end)));
            return AttemptResult { outcome: outcome_of(code, end), answer };
        }
        let http = self.head.status;
        let outcome = match &self.end {
            AnswerEnd::TooSlow => Outcome::Expired,
            _ if http != StatusCode::OK => {
                failed(&format!("HTTP {}, not a gRPC answer", http.as_u16()), None)
            }
            AnswerEnd::Complete => unknown(guarantee, "answer has no grpc-status"),
            AnswerEnd::TooLong => {
                unknown(guarantee, &format!("answer has more than {ANSWER_READ_MAX} bytes"))
            }
            AnswerEnd::Broken(error) => {
                unknown(guarantee, &format!("answer is incomplete: {error}"))
            }
        };
        outcome.into()
    }

    /// What is kept: the message of a success, or the text with which the server explains its
    /// status.
    fn answer(&self, code: u32, end: &HeaderMap) -> Answer {
        let status = u16::try_from(code).unwrap_or(u16::MAX);
        if code != OK {
            let text = end.get(MESSAGE).map_or(Cow::default(), |text| decoded(text.as_bytes()));
            let bytes_max = self.answer_bytes;
            return Answer::of_response(status, "text/plain", text.as_bytes(), true, bytes_max);
        }
        let content_type = self.head.headers.get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let message = self.kept.get(PREFIX_BYTES..).unwrap_or_default();
        let complete = self.received == self.kept.len();
        Answer::of_response(status, content_type, message, complete, self.answer_bytes)
    }
}

/// Returns the status code of the end of an answer.
fn code_of(end: &HeaderMap) -> Option<u32> {
    end.get(STATUS)?.to_str().ok()?.parse().ok()
}

/// Returns the outcome for a status.
///
/// Refused is what no later attempt can change: a message that is wrong whatever the state of the
/// server, and the explicit wish of a server that it is not called again, which is a negative
/// pushback. A method that is not implemented or not permitted may be so at the next attempt.
fn outcome_of(code: u32, end: &HeaderMap) -> Outcome {
    let name = usize::try_from(code).ok().and_then(|code| STATUS_NAMES.get(code));
    let reason = match name {
        Some(name) => format!("gRPC {name}"),
        None => format!("gRPC status {code}"),
    };
    match (code, pushback(end)) {
        (OK, _) => Outcome::Acked,
        // The server may have done its work by then.
        (DEADLINE_EXCEEDED, _) => Outcome::Expired,
        (INVALID_ARGUMENT, _) | (_, Pushback::Never) => refused(&reason),
        (_, Pushback::In(pause)) => failed(&reason, Some(pause)),
        (_, Pushback::None) => failed(&reason, None),
    }
}

/// When the server wants to be called again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pushback {
    /// It does not say.
    None,
    In(Duration),
    Never,
}

fn pushback(end: &HeaderMap) -> Pushback {
    let text = end.get(PUSHBACK).and_then(|text| text.to_str().ok());
    match text.and_then(|text| text.trim().parse::<i32>().ok()) {
        None => Pushback::None,
        Some(millis) => u64::try_from(millis)
            .map_or(Pushback::Never, |it| Pushback::In(Duration::from_millis(it))),
    }
}

/// Decodes a text in which `%` and two digits stand for a byte.
fn decoded(text: &[u8]) -> Cow<'_, str> {
    if !text.contains(&b'%') {
        return String::from_utf8_lossy(text);
    }
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        let escaped = (*byte == b'%').then(|| Some(digit(at + 1)? * 16 + digit(at + 2)?)).flatten();
        match escaped.and_then(|byte| u8::try_from(byte).ok()) {
            Some(byte) => {
                bytes.push(byte);
                at += 3;
            }
            None => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn end(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn the_status_and_the_pushback_decide() {
        for (status, pushback, want, retry_in) in [
            ("0", None, "acked", None),
            ("0", Some("-1"), "acked", None),
            ("1", None, "failed gRPC CANCELLED", None),
            ("2", None, "failed gRPC UNKNOWN", None),
            ("3", None, "refused gRPC INVALID_ARGUMENT", None),
            ("3", Some("5"), "refused gRPC INVALID_ARGUMENT", None),
            ("4", None, "expired", None),
            ("5", None, "failed gRPC NOT_FOUND", None),
            ("7", None, "failed gRPC PERMISSION_DENIED", None),
            ("8", Some("1500"), "failed gRPC RESOURCE_EXHAUSTED", Some(1500)),
            ("12", None, "failed gRPC UNIMPLEMENTED", None),
            ("13", Some("-1"), "refused gRPC INTERNAL", None),
            ("14", Some("0"), "failed gRPC UNAVAILABLE", Some(0)),
            ("14", Some("soon"), "failed gRPC UNAVAILABLE", None),
            ("14", Some("99999999999"), "failed gRPC UNAVAILABLE", None),
            ("16", None, "failed gRPC UNAUTHENTICATED", None),
            ("17", None, "failed gRPC status 17", None),
        ] {
            let mut end = end(&[]);
            end.insert(STATUS, HeaderValue::from_static(status));
            if let Some(pushback) = pushback {
                end.insert(PUSHBACK, HeaderValue::from_static(pushback));
            }
            let got = match outcome_of(code_of(&end).unwrap(), &end) {
                Outcome::Acked => ("acked".to_owned(), None),
                Outcome::Failed { reason, retry_in } => {
                    (format!("failed {}", reason.as_str()), retry_in)
                }
                Outcome::Refused { reason } => (format!("refused {}", reason.as_str()), None),
                Outcome::Expired => ("expired".to_owned(), None),
            };
            let want = (want.to_owned(), retry_in.map(Duration::from_millis));
            assert_eq!(got, want, "{status} {pushback:?}");
        }
        for status in ["", "-1", "ok", "99999999999"] {
            let mut end = end(&[]);
            end.insert(STATUS, HeaderValue::from_static(status));
            assert_eq!(code_of(&end), None, "{status:?}");
        }
    }

    #[test]
    fn the_text_of_a_status_is_decoded_and_what_is_no_escape_is_kept() {
        for (text, expected) in [
            ("db locked", "db locked"),
            ("K%C3%B6ln", "Köln"),
            ("100%", "100%"),
            ("%4", "%4"),
            ("%zz%41", "%zzA"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(decoded(text.as_bytes()), expected, "{text}");
        }
    }
}
