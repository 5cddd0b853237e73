//! The JSON form of a fire: its attempts, what the receivers answered, and how it ended.
//!
//! History, dead letters and callbacks show fires in this form. [`record_document`] makes the
//! payload of a callback. The body of an answer is shown as text if it is UTF-8, else in base64.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use punctual_core::{
    ANSWER_BYTES_MAX, Answer, AttemptNo, AttemptRecord, CONTENT_TYPE_BYTES_MAX, DeadReason,
    FireEnd, FireId, FireRecord, Occasion, Outcome, PAYLOAD_BYTES_MAX, REASON_BYTES_MAX,
    RESULT_BYTES_MAX, SkipReason, Skipped, Task, TaskKey, Timestamp, format_duration,
};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::courier::occasion_name;
use crate::schema::{FireIdText, KeyText, TaskIdText, documented, one_of};
use crate::task_form::{EndName, InstantText, Pause, end_name};

/// One due moment of a task.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Fire)]
pub(crate) struct FireAnswer<'a> {
    /// The same for all attempts of the fire.
    #[schema(value_type = FireIdText)]
    fire_id: String,
    /// The id of the task.
    #[schema(value_type = TaskIdText)]
    task: String,
    /// The key of the task, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<KeyText>)]
    key: Option<&'a str>,
    /// Why there is a fire.
    #[schema(value_type = OccasionName)]
    occasion: &'static str,
    /// When the schedule made the fire due.
    #[schema(value_type = InstantText)]
    fire_at: String,
    /// When the first attempt was sent; `null` if none was, or if it is no longer kept.
    #[schema(value_type = Option<InstantText>)]
    fired_at: Option<String>,
    /// When the fire ended; `null` for the current fire.
    #[schema(value_type = Option<InstantText>)]
    ended_at: Option<String>,
    /// How much later than due the first attempt was sent, in milliseconds.
    lag_ms: Option<u64>,
    /// How the fire ended; `null` for the current fire.
    #[schema(value_type = Option<EndName>)]
    end: Option<&'static str>,
    /// The fires that a misfire or overlap policy, or a pause, skipped, beginning with this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<SkippedFires>,
    /// Why the fire is a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeadReasonName>)]
    reason: Option<&'static str>,
    /// The result that a worker sent with its ack.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = ResultJson)]
    result: Option<&'a RawValue>,
    /// The attempts of the fire, those before a redrive included, oldest first. The latest 200 are
    /// kept.
    attempts: Vec<AttemptAnswer<'a>>,
}

/// Fires in a row that were skipped.
#[derive(Debug, Serialize, ToSchema)]
struct SkippedFires {
    /// How many, this one included. Those of a cron expression are counted up to a limit.
    fires: u32,
    /// When the last of them was due.
    #[schema(value_type = InstantText)]
    until: String,
    /// Why they were skipped.
    #[schema(value_type = SkipReasonName)]
    reason: &'static str,
}

/// One attempt to deliver a fire.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(crate) struct AttemptAnswer<'a> {
    /// Counts from 1, and on after a redrive.
    attempt: u32,
    /// When the attempt was sent.
    #[schema(value_type = InstantText)]
    at: String,
    /// How long it took until its outcome was known, in milliseconds.
    duration_ms: u64,
    /// What came of it.
    #[schema(value_type = OutcomeName)]
    outcome: &'static str,
    /// Why it was not a success: the error, or the reason that the receiver gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ReasonText>)]
    reason: Option<&'a str>,
    /// The pause before the next attempt that the receiver asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Pause>)]
    retry_in: Option<String>,
    /// The HTTP status of the response, if the receiver of a webhook responded; the status code, if
    /// a gRPC method did.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// The response of the receiver of a webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<ResponseAnswer<'a>>,
}

/// What is kept of the response of a webhook: exactly one of `text` and `base64`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Answer)]
pub(crate) struct ResponseAnswer<'a> {
    /// The media type, if the receiver sent one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnswerType>)]
    content_type: Option<&'a str>,
    /// The first bytes of the body, if they are text in UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnswerText>)]
    text: Option<&'a str>,
    /// The first bytes of the body, if they are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AnswerBase64>)]
    base64: Option<String>,
    /// Whether the receiver sent more than is kept.
    truncated: bool,
}

documented!(
    /// Why there is a fire.
    OccasionName,
    "Occasion",
    one_of([Occasion::Due, Occasion::Manual, Occasion::Return].map(occasion_name))
);
documented!(
    /// Why a fire is a dead letter.
    DeadReasonName,
    "DeadReason",
    one_of(
        [DeadReason::Exhausted, DeadReason::Refused, DeadReason::Expired, DeadReason::Unknown]
            .map(reason_name)
    )
);
documented!(
    /// Why fires were skipped.
    SkipReasonName,
    "SkipReason",
    one_of([SkipReason::Misfire, SkipReason::Overlap, SkipReason::Paused].map(skip_name))
);
documented!(
    /// What came of an attempt.
    OutcomeName,
    "Outcome",
    one_of(["acked", "failed", "refused", "expired"])
);
documented!(
    /// Why an attempt was not a success.
    ReasonText,
    "Reason",
    json!({"type": "string", "maxLength": REASON_BYTES_MAX, "x-max-bytes": REASON_BYTES_MAX})
);
documented!(
    /// The result of a worker.
    ResultJson,
    "Result",
    json!({
        "description": "Any JSON value, as the worker sent it.",
        "x-max-bytes": RESULT_BYTES_MAX,
    })
);
documented!(
    /// The media type of a response.
    AnswerType,
    "AnswerContentType",
    json!({"type": "string", "maxLength": CONTENT_TYPE_BYTES_MAX})
);
documented!(
    /// The text of a response.
    AnswerText,
    "AnswerText",
    json!({"type": "string", "maxLength": ANSWER_BYTES_MAX, "x-max-bytes": ANSWER_BYTES_MAX})
);
documented!(
    /// The bytes of a response.
    AnswerBase64,
    "AnswerBase64",
    json!({
        "type": "string",
        "contentEncoding": "base64",
        "maxLength": ANSWER_BYTES_MAX.div_ceil(3) * 4,
    })
);

/// The record of a fire that has ended, as the payload of a callback: compact JSON of at most
/// [`PAYLOAD_BYTES_MAX`] bytes. If it is longer, the oldest attempts are left out.
pub(crate) fn record_document(record: &FireRecord) -> Bytes {
    document_within(record, PAYLOAD_BYTES_MAX)
}

fn document_within(record: &FireRecord, bytes_max: usize) -> Bytes {
    let mut fire = FireAnswer::ended(record);
    loop {
        let document = serde_json::to_vec(&fire).unwrap_or_default();
        if document.len() <= bytes_max || fire.attempts.is_empty() {
            return document.into();
        }
        let dropped = fire.attempts.len().div_ceil(2);
        fire.attempts.drain(..dropped);
    }
}

impl<'a> FireAnswer<'a> {
    /// The current fire of a task.
    pub(crate) fn current(task: &'a Task) -> Self {
        let origin = task.origin();
        let key = origin.map_or(&task.definition.key, |origin| &origin.key);
        let occasion = occasion_name(task.occasion);
        Self::of(task.fire().id, key.as_ref(), occasion, &task.attempts, task.due_at())
    }

    /// A fire that has ended.
    pub(crate) fn ended(record: &'a FireRecord) -> Self {
        let (reason, skipped) = match record.end {
            FireEnd::Dead(reason) => (Some(reason_name(reason)), None),
            FireEnd::Skipped(skipped) => (None, Some(SkippedFires::of(skipped))),
            FireEnd::Done | FireEnd::Cancelled | FireEnd::Replaced => (None, None),
        };
        let occasion = occasion_name(record.occasion);
        let key = record.key.as_ref();
        Self {
            end: Some(end_name(record.end)),
            skipped,
            reason,
            ended_at: Some(record.ended_at.to_string()),
            result: record.result().and_then(|result| serde_json::from_slice(result).ok()),
            ..Self::of(record.fire_id, key, occasion, &record.attempts, record.due_at)
        }
    }

    /// Keeps the bodies of answers as long as there are bytes left for them, and drops the others.
    pub(crate) fn limit_bodies(mut self, bytes_left: &mut usize) -> Self {
        for answer in self.attempts.iter_mut().filter_map(|attempt| attempt.answer.as_mut()) {
            match bytes_left.checked_sub(answer.body_length()) {
                Some(left) => *bytes_left = left,
                None => answer.drop_body(),
            }
        }
        self
    }

    fn of(
        fire_id: FireId,
        key: Option<&'a TaskKey>,
        occasion: &'static str,
        attempts: &'a [AttemptRecord],
        due_at: Timestamp,
    ) -> Self {
        let first = attempts.first().filter(|first| first.number == AttemptNo::FIRST);
        Self {
            fire_id: fire_id.to_string(),
            task: fire_id.task.to_string(),
            key: key.map(TaskKey::as_str),
            occasion,
            fire_at: fire_id.nominal_at.to_string(),
            fired_at: first.map(|first| first.fired_at.to_string()),
            ended_at: None,
            lag_ms: first.map(|first| lag_ms(first.fired_at, due_at)),
            end: None,
            skipped: None,
            reason: None,
            result: None,
            attempts: attempts_of(attempts),
        }
    }
}

impl SkippedFires {
    fn of(skipped: Skipped) -> Self {
        let reason = skip_name(skipped.why);
        Self { fires: skipped.fires, until: skipped.until.to_string(), reason }
    }
}

/// Attempts, oldest first.
pub(crate) fn attempts_of(attempts: &[AttemptRecord]) -> Vec<AttemptAnswer<'_>> {
    attempts.iter().map(AttemptAnswer::of).collect()
}

impl<'a> AttemptAnswer<'a> {
    fn of(record: &'a AttemptRecord) -> Self {
        let (outcome, reason, retry_in) = match &record.outcome {
            Outcome::Acked => ("acked", None, None),
            Outcome::Failed { reason, retry_in } => ("failed", Some(reason), *retry_in),
            Outcome::Refused { reason } => ("refused", Some(reason), None),
            Outcome::Expired => ("expired", None, None),
        };
        // The result of a worker is shown as the result of the fire.
        let response = record.answer.as_deref().filter(|answer| !answer.is_result());
        Self {
            attempt: record.number.get(),
            at: record.fired_at.to_string(),
            duration_ms: millis(record.ended_at.since(record.fired_at)),
            outcome,
            reason: reason.map(|reason| reason.as_str()),
            retry_in: retry_in.map(format_duration),
            status: response.and_then(Answer::status),
            answer: response.map(ResponseAnswer::of),
        }
    }
}

impl<'a> ResponseAnswer<'a> {
    pub(crate) fn of(answer: &'a Answer) -> Self {
        let text = text_of(answer.body(), answer.is_truncated());
        Self {
            content_type: Some(answer.content_type()).filter(|media_type| !media_type.is_empty()),
            text,
            base64: text.is_none().then(|| STANDARD.encode(answer.body())),
            truncated: answer.is_truncated(),
        }
    }

    fn body_length(&self) -> usize {
        self.text.map_or(0, str::len) + self.base64.as_ref().map_or(0, String::len)
    }

    fn drop_body(&mut self) {
        (self.text, self.base64, self.truncated) = (Some(""), None, true);
    }
}

/// About how many bytes attempts take in a response.
pub(crate) fn attempts_weight(attempts: &[AttemptRecord]) -> usize {
    let weight = |attempt: &AttemptRecord| {
        let body = attempt.answer.as_ref().map_or(0, |answer| answer.body().len());
        // Base64 adds a third, and JSON may escape.
        body + body / 2 + 256
    };
    attempts.iter().map(weight).sum()
}

/// The body of an answer as text; `None` if it is not UTF-8.
pub(crate) fn answer_text(answer: &Answer) -> Option<&str> {
    text_of(answer.body(), answer.is_truncated())
}

/// The bytes as text; `None` if they are not UTF-8. The last character of a truncated body may be
/// incomplete; it is left out.
fn text_of(body: &[u8], truncated: bool) -> Option<&str> {
    match std::str::from_utf8(body) {
        Ok(text) => Some(text),
        Err(error) if truncated && error.error_len().is_none() => {
            std::str::from_utf8(&body[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

/// The wire name of why fires were skipped.
pub(crate) const fn skip_name(reason: SkipReason) -> &'static str {
    match reason {
        SkipReason::Misfire => "misfire",
        SkipReason::Overlap => "overlap",
        SkipReason::Paused => "paused",
    }
}

/// The wire name of why a fire is a dead letter.
pub(crate) const fn reason_name(reason: DeadReason) -> &'static str {
    match reason {
        DeadReason::Exhausted => "exhausted",
        DeadReason::Refused => "refused",
        DeadReason::Expired => "expired",
        DeadReason::Unknown => "unknown",
    }
}

/// How much later than due, in whole milliseconds.
pub(crate) fn lag_ms(fired_at: Timestamp, fire_at: Timestamp) -> u64 {
    millis(fired_at.since(fire_at))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use punctual_core::{Labels, Namespace, Reason, TaskId};
    use serde_json::Value;

    use super::*;

    fn attempt(number: u32, outcome: Outcome, answer: Option<Answer>) -> AttemptRecord {
        AttemptRecord {
            number: AttemptNo::new(number),
            fired_at: Timestamp::from_millis(1005),
            ended_at: Timestamp::from_millis(1025),
            outcome,
            answer: answer.map(Box::new),
        }
    }

    fn record(end: FireEnd, attempts: Vec<AttemptRecord>) -> FireRecord {
        let at = Timestamp::from_millis(1000);
        FireRecord {
            fire_id: FireId { task: TaskId::floor(at), nominal_at: at },
            redriven_as: None,
            namespace: Namespace::new("shop").unwrap(),
            key: Some(TaskKey::new("order-1").unwrap()),
            ended_at: Timestamp::from_millis(1030),
            end,
            attempts,
            due_at: at,
            occasion: Occasion::Due,
            labels: Labels::default(),
        }
    }

    fn failed() -> Outcome {
        Outcome::Failed { reason: Reason::new("status 500"), retry_in: None }
    }

    fn document(record: &FireRecord) -> Value {
        serde_json::from_slice(&document_within(record, PAYLOAD_BYTES_MAX)).unwrap()
    }

    #[test]
    fn a_document_has_the_attempts_and_what_was_answered() {
        let answer = Answer::of_response(500, "text/plain", b"boom: db locked", true, 1024);
        let attempts = vec![attempt(1, failed(), Some(answer)), attempt(2, Outcome::Expired, None)];
        let document = document(&record(FireEnd::Dead(DeadReason::Exhausted), attempts));
        let task = TaskId::floor(Timestamp::from_millis(1000)).to_string();
        let want = json!({
            "fire_id": document["fire_id"], "task": task, "key": "order-1", "occasion": "due",
            "fire_at": "1970-01-01T00:00:01.000Z", "fired_at": "1970-01-01T00:00:01.005Z",
            "ended_at": "1970-01-01T00:00:01.030Z", "lag_ms": 5,
            "end": "dead", "reason": "exhausted",
            "attempts": [
                {
                    "attempt": 1, "at": "1970-01-01T00:00:01.005Z", "duration_ms": 20,
                    "outcome": "failed", "reason": "status 500", "status": 500,
                    "answer": {
                        "content_type": "text/plain", "text": "boom: db locked", "truncated": false,
                    },
                },
                {
                    "attempt": 2, "at": "1970-01-01T00:00:01.005Z", "duration_ms": 20,
                    "outcome": "expired",
                },
            ],
        });
        assert_eq!(document, want);
    }

    #[test]
    fn the_result_of_a_worker_is_the_result_of_its_fire() {
        let result = Answer::of_worker(Bytes::from_static(b"{\"paid\": 1.50}"));
        let record = record(FireEnd::Done, vec![attempt(1, Outcome::Acked, Some(result))]);
        let bytes = document_within(&record, PAYLOAD_BYTES_MAX);
        let text = std::str::from_utf8(&bytes).unwrap();
        assert!(text.contains(r#""result":{"paid": 1.50}"#), "{text}");
        assert_eq!(document(&record)["attempts"][0]["answer"], Value::Null);
    }

    #[test]
    fn a_body_is_text_if_it_is_utf8_and_base64_otherwise() {
        for (body, complete, text, base64) in [
            (&b"boom\x1b[31m\n"[..], true, Some("boom\u{1b}[31m\n"), None),
            (b"", true, Some(""), None),
            ("für".as_bytes(), true, Some("für"), None),
            (b"f\xc3", false, Some("f"), None),
            (b"f\xc3", true, None, Some("ZsM=")),
            (b"\xff\x00f", false, None, Some("/wBm")),
        ] {
            let answer = Answer::of_response(200, "", body, complete, 1024);
            let shown = ResponseAnswer::of(&answer);
            assert_eq!((shown.text, shown.base64.as_deref()), (text, base64), "{body:?}");
            assert_eq!((shown.content_type, shown.truncated), (None, !complete));
        }
    }

    #[test]
    fn bodies_are_dropped_when_no_bytes_are_left_for_them() {
        let answer = |body: &[u8]| Some(Answer::of_response(500, "", body, true, 1024));
        let attempts = vec![
            attempt(1, failed(), answer(b"four")),
            attempt(2, failed(), answer(b"long body")),
            attempt(3, failed(), answer(b"\xff")),
            attempt(4, failed(), answer(b"")),
        ];
        let record = record(FireEnd::Dead(DeadReason::Exhausted), attempts);
        let mut left = 8;
        let fire = FireAnswer::ended(&record).limit_bodies(&mut left);
        let shown = serde_json::to_value(&fire).unwrap();
        let answers = [0, 1, 2, 3].map(|number| shown["attempts"][number]["answer"].clone());
        assert_eq!(answers[0], json!({"text": "four", "truncated": false}));
        assert_eq!(answers[1], json!({"text": "", "truncated": true}));
        assert_eq!(answers[2], json!({"base64": "/w==", "truncated": false}));
        assert_eq!((&answers[3], left), (&json!({"text": "", "truncated": false}), 0));
    }

    #[test]
    fn a_document_that_is_too_long_has_only_the_latest_attempts() {
        let answer = || Answer::of_response(500, "", &[1; 1024], true, 1024);
        let attempts = (1..=8).map(|number| attempt(number, failed(), Some(answer())));
        let record = record(FireEnd::Dead(DeadReason::Exhausted), attempts.collect());
        for (bytes_max, numbers) in
            [(PAYLOAD_BYTES_MAX, 1..9), (40_000, 5..9), (14_000, 7..9), (100, 9..9)]
        {
            let bytes = document_within(&record, bytes_max);
            let document: Value = serde_json::from_slice(&bytes).unwrap();
            let attempts = document["attempts"].as_array().unwrap();
            let got: Vec<_> = attempts.iter().map(|it| it["attempt"].as_u64().unwrap()).collect();
            assert_eq!(got, numbers.collect::<Vec<_>>(), "{bytes_max}");
        }
    }
}
