//! Reads the response of a webhook, and judges whether it is a success.
//!
//! The status decides, and with the rule `success.json` also values in the body. At most
//! [`BODY_BYTES_MAX`] bytes of a body are read. A body that is not needed to judge is read for at
//! most [`BODY_WAIT_MAX`], so that the connection can be used again and its beginning can be kept;
//! a slow or endless body neither fails a success nor delays it for longer.

use std::borrow::Cow;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use punctual_core::{Answer, AnswerRules, AttemptResult, ExpectedValue, Outcome, Reason};
use serde_json::Value;
use tokio::time::timeout;

use super::retry_after::retry_after;

/// Bytes of a body that are read: enough to judge it, and to use its connection again.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024;
/// How long reading a body may take that is not needed to judge.
const BODY_WAIT_MAX: Duration = Duration::from_secs(1);
/// Bytes of a value of an answer that the reason of a failed attempt shows.
const SHOWN_BYTES_MAX: usize = 128;

/// A response whose body is being read.
#[derive(Debug)]
pub(super) struct WebhookResponse<'a> {
    head: Parts,
    body: Incoming,
    rules: Cow<'a, AnswerRules>,
    /// Bytes of the body to keep.
    answer_bytes: usize,
    read: ReadBody,
}

/// What was read of a body.
#[derive(Debug, Default)]
struct ReadBody {
    /// The first bytes.
    kept: Vec<u8>,
    /// Bytes that were received, also those that are not in `kept`.
    received: usize,
    end: BodyEnd,
}

/// How far a body was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum BodyEnd {
    Complete,
    /// It has more than [`BODY_BYTES_MAX`] bytes.
    TooLong,
    /// The connection broke.
    Broken,
    /// The time was over.
    #[default]
    TooSlow,
}

impl<'a> WebhookResponse<'a> {
    pub(super) fn new(
        response: Response<Incoming>,
        rules: Option<&'a AnswerRules>,
        answer_bytes: usize,
    ) -> Self {
        let (head, body) = response.into_parts();
        let rules = rules.map_or_else(Cow::default, Cow::Borrowed);
        Self { head, body, rules, answer_bytes, read: ReadBody::default() }
    }

    /// Reads the body as far as it is needed. What was read so far is kept if the future is dropped
    /// because the attempt may take no longer.
    pub(super) async fn read(&mut self) {
        if self.needs_body() {
            return self.read.read(&mut self.body, BODY_BYTES_MAX).await;
        }
        let read = self.read.read(&mut self.body, self.answer_bytes);
        // Too slow: the status decides.
        let _ = timeout(BODY_WAIT_MAX, read).await;
    }

    /// Returns whether the connection can be used for another request.
    pub(super) fn is_complete(&self) -> bool {
        self.read.end == BodyEnd::Complete
    }

    pub(super) fn judge(&self) -> AttemptResult {
        let outcome = match (self.needs_body(), self.read.end) {
            (true, BodyEnd::Complete) => {
                outcome_of_json(&self.read.kept, self.rules.success_json())
            }
            (true, BodyEnd::TooLong) => {
                failed(&format!("answer has more than {BODY_BYTES_MAX} bytes, expected JSON"))
            }
            (true, BodyEnd::Broken) => failed("answer is incomplete: the connection broke"),
            (true, BodyEnd::TooSlow) => Outcome::Expired,
            (false, _) => outcome_of_status(self.head.status, &self.head.headers, &self.rules),
        };
        let answer = self.read.answer(self.head.status, &self.head.headers, self.answer_bytes);
        AttemptResult { outcome, answer: Some(Box::new(answer)) }
    }

    /// Whether the status alone does not decide.
    fn needs_body(&self) -> bool {
        let status = self.head.status.as_u16();
        self.rules.is_success(status) && !self.rules.success_json().is_empty()
    }
}

impl ReadBody {
    /// Reads a body to its end or its limit.
    async fn read(&mut self, body: &mut Incoming, kept_max: usize) {
        loop {
            self.end = match body.frame().await {
                None => BodyEnd::Complete,
                Some(Err(_)) => BodyEnd::Broken,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.received += data.len();
                        let kept = data.len().min(kept_max - self.kept.len());
                        self.kept.extend_from_slice(&data[..kept]);
                    }
                    if self.received <= BODY_BYTES_MAX {
                        continue;
                    }
                    BodyEnd::TooLong
                }
            };
            return;
        }
    }

    fn answer(&self, status: StatusCode, headers: &HeaderMap, bytes_max: usize) -> Answer {
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let complete = self.end == BodyEnd::Complete && self.received == self.kept.len();
        let content_type = content_type.unwrap_or_default();
        Answer::of_response(status.as_u16(), content_type, &self.kept, complete, bytes_max)
    }
}

/// Returns the outcome for a status.
fn outcome_of_status(status: StatusCode, headers: &HeaderMap, rules: &AnswerRules) -> Outcome {
    let number = status.as_u16();
    if rules.is_success(number) {
        return Outcome::Acked;
    }
    let reason = Reason::new(&format!("HTTP {number}"));
    if rules.is_refusal(number) {
        return Outcome::Refused { reason };
    }
    let may_ask = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    let retry_in = may_ask.contains(&status).then(|| retry_after(headers)).flatten();
    Outcome::Failed { reason, retry_in }
}

/// Returns the outcome for a body that must have some values.
fn outcome_of_json(body: &[u8], expected: &[ExpectedValue]) -> Outcome {
    match check_values(body, expected) {
        Ok(()) => Outcome::Acked,
        Err(reason) => failed(&reason),
    }
}

/// Checks that a body has all expected values, or says which one it has not.
fn check_values(body: &[u8], expected: &[ExpectedValue]) -> Result<(), String> {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        return Err("answer is not JSON".to_owned());
    };
    for ExpectedValue { pointer, value } in expected {
        let at = if pointer.is_empty() { String::new() } else { format!(" {pointer}") };
        let Some(found) = answer.pointer(pointer) else {
            return Err(format!("answer has no{at}, expected {value}"));
        };
        let expected: Value = serde_json::from_str(value).map_err(|error| error.to_string())?;
        if !are_equal(found, &expected) {
            return Err(format!("answer{at} is {}, expected {value}", shown(found)));
        }
    }
    Ok(())
}

/// Compares values; numbers by their value, so that `0` and `0.0` are equal.
fn are_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            a.as_f64() == b.as_f64()
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let is_in_b =
                |(name, a): (&String, &Value)| b.get(name).is_some_and(|b| are_equal(a, b));
            a.len() == b.len() && a.iter().all(is_in_b)
        }
        (a, b) => a == b,
    }
}

/// The beginning of a value as JSON.
fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > SHOWN_BYTES_MAX {
        text.truncate(text.floor_char_boundary(SHOWN_BYTES_MAX));
        text.push('…');
    }
    text
}

fn failed(reason: &str) -> Outcome {
    Outcome::Failed { reason: Reason::new(reason), retry_in: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(success: &[u16], refuse: &[u16]) -> AnswerRules {
        AnswerRules::new(success.to_vec(), vec![], refuse.to_vec()).unwrap()
    }

    #[test]
    fn the_status_decides_by_the_rules() {
        let (plain, strict) = (rules(&[], &[]), rules(&[200, 404], &[400, 503]));
        let pause = Some(Duration::from_secs(7));
        for (rules, status, want, retry_in) in [
            (&plain, 200, "acked", None),
            (&plain, 204, "acked", None),
            (&plain, 301, "failed", None),
            (&plain, 410, "refused", None),
            (&plain, 429, "failed", pause),
            (&plain, 500, "failed", None),
            (&plain, 503, "failed", pause),
            (&strict, 200, "acked", None),
            (&strict, 204, "failed", None),
            (&strict, 404, "acked", None),
            (&strict, 400, "refused", None),
            (&strict, 410, "refused", None),
            (&strict, 429, "failed", pause),
            (&strict, 503, "refused", None),
        ] {
            let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, "7".parse().unwrap())]);
            let status = StatusCode::from_u16(status).unwrap();
            let got = match outcome_of_status(status, &headers, rules) {
                Outcome::Acked => ("acked", None),
                Outcome::Failed { retry_in, .. } => ("failed", retry_in),
                Outcome::Refused { .. } => ("refused", None),
                Outcome::Expired => ("expired", None),
            };
            assert_eq!(got, (want, retry_in), "{status}");
        }
    }

    #[test]
    fn a_body_must_have_all_expected_values() {
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(200));
        let long_reason = format!("answer /a is \"{}…, expected 0", "x".repeat(127));
        for (body, expected, reason) in [
            (r#"{"errcode": 0}"#, &[("/errcode", "0")][..], None),
            (r#"{"errcode": 0.0}"#, &[("/errcode", "0")], None),
            (r#"{"errcode": 1e2}"#, &[("/errcode", "100")], None),
            (
                r#"{"errcode": 310000, "errmsg": "no"}"#,
                &[("/errcode", "0")],
                Some("answer /errcode is 310000, expected 0"),
            ),
            (
                r#"{"ok": true, "code": "7"}"#,
                &[("/ok", "true"), ("/code", "7")],
                Some("answer /code is \"7\", expected 7"),
            ),
            (r#"{"ok": true}"#, &[("/errcode", "0")], Some("answer has no /errcode, expected 0")),
            (r#"{"a": [{"b/c": null}]}"#, &[("/a/0/b~1c", "null")], None),
            (r#"{"m~n": 1}"#, &[("/m~0n", "1")], None),
            (r#"[1, {"a": 2.0}]"#, &[("", r#"[1.0,{"a":2}]"#)], None),
            ("[1, 2]", &[("", "[1]")], Some("answer is [1,2], expected [1]")),
            (
                r#"{"a": {"b": 1}}"#,
                &[("/a", r#"{"c":1}"#)],
                Some(r#"answer /a is {"b":1}, expected {"c":1}"#),
            ),
            ("9007199254740993", &[("", "9007199254740993")], None),
            (
                "9007199254740993",
                &[("", "9007199254740992")],
                Some("answer is 9007199254740993, expected 9007199254740992"),
            ),
            ("ok", &[("/errcode", "0")], Some("answer is not JSON")),
            ("", &[("/errcode", "0")], Some("answer is not JSON")),
            (&long, &[("/a", "0")], Some(&long_reason)),
        ] {
            let value = |&(pointer, value): &(&str, &str)| ExpectedValue {
                pointer: pointer.to_owned(),
                value: value.to_owned(),
            };
            let expected: Vec<_> = expected.iter().map(value).collect();
            let got = check_values(body.as_bytes(), &expected);
            assert_eq!(got.err().as_deref(), reason, "{body}");
        }
    }
}
