//! What the messages of a source mean: the settings and the headers make each a command.
//!
//! A message says with headers what to do, or is a task as in the API, or says nothing and the
//! settings decide. What cannot be a command is rejected with a problem document.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use punctual_core::{Invalid, Namespace};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::identity::identity;
use super::intake::{SourceCommand, Verb};
use super::key_template::KeyTemplate;
use super::message::{CONTENT_TYPE, SourceMessage};
use super::pattern::PlacePattern;

/// The content type of a body that is a task as in the API.
const TASK_TYPE: &str = "application/vnd.punctual+json";
/// The members of a task that say when it fires. A message that has one gets no other.
const TIMES: [&str; 5] = ["in", "at", "cron", "every", "within"];

type TaskMembers = BTreeMap<String, Box<RawValue>>;

/// What the settings of a source say about its messages.
#[derive(Debug, Clone)]
pub(crate) struct SourceMapping {
    /// The name of the source, for ids.
    pub(crate) source: String,
    pub(crate) namespace: Namespace,
    /// What a message does that does not say it.
    pub(crate) verb: Verb,
    /// The places that its messages have.
    pub(crate) pattern: Option<PlacePattern>,
    /// The key of a message that does not say it.
    pub(crate) key: Option<KeyTemplate>,
    /// TaskMembers of a task that a message does not have.
    pub(crate) task: TaskMembers,
    /// The task that a touch creates for a key without one, in JSON.
    pub(crate) create: Option<String>,
}

/// A problem document of a message that is rejected.
#[derive(Serialize)]
struct MessageProblem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    field: &'a str,
}

impl SourceMapping {
    /// The command of a message, or the problem document if it can be none.
    pub(crate) fn command(&self, message: &SourceMessage) -> Result<SourceCommand, String> {
        self.read(message).map_err(|invalid| problem_document(&invalid))
    }

    fn read(&self, message: &SourceMessage) -> Result<SourceCommand, Invalid> {
        let verb = match message.header("punctual-verb") {
            None => self.verb,
            Some(text) => Verb::parse(text).ok_or_else(|| {
                let verbs = Verb::ALL.map(Verb::as_str).join(", ");
                Invalid::new("punctual-verb", format!("must be one of {verbs}, is {text:?}"))
            })?,
        };
        let mut body = MessageBody::read(message)?;
        let key = self.key(message, &mut body)?;
        let due = due(message)?;
        let task = match verb {
            Verb::Schedule => Some(self.task(due, body)?),
            Verb::Touch => touch(due, body)?,
            Verb::Cancel | Verb::Pause | Verb::Resume => None,
        };
        let create = self.create.clone().filter(|_| verb == Verb::Touch);
        let (id, digest) = identity(&self.source, verb, key.as_deref(), message);
        let namespace = self.namespace.clone();
        Ok(SourceCommand { id, digest, namespace, verb, key, task, create })
    }

    fn key(
        &self,
        message: &SourceMessage,
        body: &mut MessageBody,
    ) -> Result<Option<String>, Invalid> {
        let captures = match &self.pattern {
            None => Vec::new(),
            Some(pattern) => pattern.captures(&message.place).ok_or_else(|| {
                let place = &message.place;
                Invalid::new("match", format!("{place:?} does not match the pattern of the source"))
            })?,
        };
        let in_body = match body {
            MessageBody::Task(members) => members.remove("key"),
            MessageBody::Json(_) | MessageBody::Binary { .. } | MessageBody::Empty => None,
        };
        if let Some(key) = message.header("punctual-key") {
            return Ok(Some(key.to_owned()));
        }
        match (&self.key, in_body) {
            (_, Some(key)) => {
                let key: Option<String> = serde_json::from_str(key.get())
                    .map_err(|_| Invalid::new("key", "must be a text"))?;
                Ok(key)
            }
            (Some(template), None) => template.key(message, &captures).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The task of a schedule.
    fn task(
        &self,
        due: Option<(&'static str, String)>,
        body: MessageBody,
    ) -> Result<String, Invalid> {
        let mut members = match body {
            MessageBody::Task(members) => members,
            MessageBody::Empty => TaskMembers::new(),
            MessageBody::Json(json) => TaskMembers::from([("payload".to_owned(), json)]),
            MessageBody::Binary { base64, content_type } => TaskMembers::from([
                ("payload_base64".to_owned(), raw(&base64)?),
                ("content_type".to_owned(), raw(&content_type)?),
            ]),
        };
        add_due(&mut members, due)?;
        let has_time = TIMES.iter().any(|time| members.contains_key(*time));
        let has_payload = members.keys().any(|name| name.starts_with("payload"));
        for (name, value) in &self.task {
            let of_payload = name.starts_with("payload") || name == "content_type";
            let taken = (has_time && TIMES.contains(&name.as_str())) || (has_payload && of_payload);
            if !taken && !members.contains_key(name) {
                members.insert(name.clone(), value.clone());
            }
        }
        text(&members)
    }
}

/// The body of a touch, if it has one.
fn touch(
    due: Option<(&'static str, String)>,
    body: MessageBody,
) -> Result<Option<String>, Invalid> {
    let mut members = match body {
        MessageBody::Task(members) => members,
        // What a device sends with its sign of life.
        MessageBody::Json(_) | MessageBody::Binary { .. } | MessageBody::Empty => {
            TaskMembers::new()
        }
    };
    add_due(&mut members, due)?;
    if members.is_empty() {
        return Ok(None);
    }
    text(&members).map(Some)
}

/// Adds the time that the headers of a message say.
fn add_due(members: &mut TaskMembers, due: Option<(&'static str, String)>) -> Result<(), Invalid> {
    let Some((name, value)) = due else { return Ok(()) };
    if let Some(other) = TIMES.iter().find(|time| members.contains_key(**time)) {
        let problem = format!("must not be given together with `{other}` in the body");
        return Err(Invalid::new(format!("punctual-{name}"), problem));
    }
    members.insert(name.to_owned(), raw(&value)?);
    Ok(())
}

/// The time that the headers of a message say: the member of the task, and its text.
fn due(message: &SourceMessage) -> Result<Option<(&'static str, String)>, Invalid> {
    let delay = message.header("punctual-in").map(str::to_owned);
    let at = message.header("punctual-at").map(str::to_owned);
    match (delay, at) {
        (Some(_), Some(_)) => {
            Err(Invalid::new("punctual-in", "must not be given together with punctual-at"))
        }
        (Some(delay), None) => Ok(Some(("in", delay))),
        (None, Some(at)) => Ok(Some(("at", at))),
        (None, None) => {
            let Some(text) = message.header("x-delay") else { return Ok(None) };
            let millis: i64 = text.trim().parse().map_err(|_| {
                Invalid::new("x-delay", format!("must be whole milliseconds, is {text:?}"))
            })?;
            // A delayed-message exchange negates the delay once it has passed.
            Ok(Some(("in", format!("{}ms", millis.max(0)))))
        }
    }
}

/// The body of a message.
enum MessageBody {
    Empty,
    Json(Box<RawValue>),
    Binary { base64: String, content_type: String },
    Task(TaskMembers),
}

impl MessageBody {
    fn read(message: &SourceMessage) -> Result<Self, Invalid> {
        let content_type = message.header(CONTENT_TYPE).map(str::trim).filter(|t| !t.is_empty());
        let essence = content_type.map(|t| t.split(';').next().unwrap_or(t).trim());
        let is = |name: &str| essence.is_some_and(|essence| essence.eq_ignore_ascii_case(name));
        if is(TASK_TYPE) {
            let members = serde_json::from_slice(&message.body).map_err(|error| {
                Invalid::new("body", format!("must be a JSON object with a task: {error}"))
            })?;
            return Ok(Self::Task(members));
        }
        if message.body.is_empty() {
            return Ok(Self::Empty);
        }
        let is_json = is("application/json");
        if is_json || essence.is_none() {
            match serde_json::from_slice::<Box<RawValue>>(&message.body) {
                Ok(json) => return Ok(Self::Json(json)),
                Err(error) if is_json => {
                    let problem = format!("is not JSON, as its content type says: {error}");
                    return Err(Invalid::new("body", problem));
                }
                Err(_) => {}
            }
        }
        let content_type = content_type.unwrap_or("application/octet-stream").to_owned();
        Ok(Self::Binary { base64: STANDARD.encode(&message.body), content_type })
    }
}

fn raw(value: &str) -> Result<Box<RawValue>, Invalid> {
    to_raw_value(value).map_err(|error| Invalid::new("body", error.to_string()))
}

fn text(members: &TaskMembers) -> Result<String, Invalid> {
    serde_json::to_string(members).map_err(|error| Invalid::new("body", error.to_string()))
}

/// The problem document of a message that can be no command.
pub(crate) fn problem_document(invalid: &Invalid) -> String {
    let problem = MessageProblem {
        r#type: "urn:punctual:invalid-field",
        title: "Invalid field",
        status: 422,
        detail: invalid.to_string(),
        field: &invalid.field,
    };
    serde_json::to_string(&problem).unwrap_or_else(|_| invalid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::pattern::WildcardStyle;

    const BYTES: &str =
        r#"{"content_type":"application/octet-stream","in":"1s","payload_base64":"bm8="}"#;
    const TEXT: &str = r#"{"content_type":"text/plain","in":"15m","payload_base64":"bm8=","retry":{"attempts_max":3}}"#; // words: allow

    fn mapping() -> SourceMapping {
        SourceMapping {
            source: "mq/orders".to_owned(),
            namespace: Namespace::new("shop").unwrap(),
            verb: Verb::Schedule,
            pattern: None,
            key: None,
            task: TaskMembers::new(),
            create: None,
        }
    }

    fn message(headers: &[(&str, &str)], body: &str) -> SourceMessage {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        SourceMessage {
            position: "1".to_owned(),
            headers: headers.collect(),
            body: body.to_owned().into(),
            ..SourceMessage::default()
        }
    }

    fn members(text: &str) -> TaskMembers {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn headers_say_what_to_do_and_the_body_is_the_payload() {
        const VND: (&str, &str) = ("content-type", TASK_TYPE);
        for (headers, body, verb, key, task) in [
            (
                &[("punctual-in", "15m")][..],
                "{\"a\":1}",
                Verb::Schedule,
                None,
                Some(r#"{"in":"15m","payload":{"a":1}}"#),
            ),
            (
                &[("Punctual-At", "2030-01-01T00:00:00Z"), ("punctual-key", "k")],
                "",
                Verb::Schedule,
                Some("k"),
                Some(r#"{"at":"2030-01-01T00:00:00Z"}"#),
            ),
            (
                &[("x-delay", "5000")],
                "7",
                Verb::Schedule,
                None,
                Some(r#"{"in":"5000ms","payload":7}"#),
            ),
            (
                &[("x-delay", "-5000")],
                "7",
                Verb::Schedule,
                None,
                Some(r#"{"in":"0ms","payload":7}"#),
            ),
            (
                &[("x-delay", "1"), ("punctual-in", "2s")],
                "7",
                Verb::Schedule,
                None,
                Some(r#"{"in":"2s","payload":7}"#),
            ),
            (&[("punctual-in", "1s")], "no", Verb::Schedule, None, Some(BYTES)),
            (
                &[("punctual-in", "1s"), ("Content-Type", "text/plain")],
                "7",
                Verb::Schedule,
                None,
                Some(r#"{"content_type":"text/plain","in":"1s","payload_base64":"Nw=="}"#),
            ),
            (
                &[("punctual-in", "1s"), ("content-type", "application/json; charset=utf-8")],
                "[1]",
                Verb::Schedule,
                None,
                Some(r#"{"in":"1s","payload":[1]}"#),
            ),
            (
                &[VND],
                r#"{"key":"k","every":"1h","payload":1}"#,
                Verb::Schedule,
                Some("k"),
                Some(r#"{"every":"1h","payload":1}"#),
            ),
            (
                &[VND, ("punctual-key", "h")],
                r#"{"in":"1h"}"#,
                Verb::Schedule,
                Some("h"),
                Some(r#"{"in":"1h"}"#),
            ),
            (
                &[("punctual-verb", "touch"), ("punctual-key", "k")],
                "{\"up\":true}",
                Verb::Touch,
                Some("k"),
                None,
            ),
            (
                &[("punctual-verb", "touch"), ("punctual-key", "k"), ("punctual-in", "1h")],
                "",
                Verb::Touch,
                Some("k"),
                Some(r#"{"in":"1h"}"#),
            ),
            (
                &[VND, ("punctual-verb", "touch")],
                r#"{"key":"k","within":"1h"}"#,
                Verb::Touch,
                Some("k"),
                Some(r#"{"within":"1h"}"#),
            ),
            (
                &[("punctual-verb", "cancel"), ("punctual-key", "k")],
                "x",
                Verb::Cancel,
                Some("k"),
                None,
            ),
            (
                &[("punctual-verb", "pause"), ("punctual-key", "k")],
                "",
                Verb::Pause,
                Some("k"),
                None,
            ),
            (
                &[("punctual-verb", "resume"), ("punctual-key", "k")],
                "",
                Verb::Resume,
                Some("k"),
                None,
            ),
        ] {
            let command = mapping().command(&message(headers, body)).unwrap();
            let found = (command.verb, command.key.as_deref(), command.task.as_deref());
            assert_eq!(found, (verb, key, task), "{headers:?} {body}");
        }
    }

    #[test]
    fn a_message_that_can_be_no_command_is_rejected_with_the_field() {
        for (headers, body, field) in [
            (&[("punctual-verb", "explode")][..], "", "punctual-verb"),
            (&[("punctual-in", "1s"), ("punctual-at", "2030-01-01T00:00:00Z")], "", "punctual-in"),
            (&[("x-delay", "soon")], "", "x-delay"),
            (&[("content-type", "application/json")], "{", "body"),
            (&[("content-type", TASK_TYPE)], "[1]", "body"),
            (&[("content-type", TASK_TYPE)], "", "body"),
            (&[("content-type", TASK_TYPE)], "{\"key\":7}", "key"),
            (
                &[("content-type", TASK_TYPE), ("punctual-in", "1s")],
                "{\"cron\":\"@daily\"}",
                "punctual-in",
            ),
        ] {
            let problem = mapping().command(&message(headers, body)).unwrap_err();
            let problem: serde_json::Value = serde_json::from_str(&problem).unwrap();
            assert_eq!(problem["field"], field, "{problem}");
            assert_eq!(problem["type"], "urn:punctual:invalid-field");
        }
    }

    #[test]
    fn the_settings_decide_what_a_message_does_not_say() {
        let pattern = PlacePattern::parse(WildcardStyle::Mqtt, "devices/+/up").unwrap();
        let key = KeyTemplate::parse("{1}", Some(&pattern)).unwrap();
        let create = r#"{"within":"48h"}"#;
        let rules = SourceMapping {
            verb: Verb::Touch,
            pattern: Some(pattern),
            key: Some(key),
            create: Some(create.to_owned()),
            ..mapping()
        };
        let place = "devices/lamp-7/up".to_owned();
        let up = SourceMessage { place, ..message(&[], "{\"battery\":80}") };
        let command = rules.command(&up).unwrap();
        assert_eq!((command.verb, command.key.as_deref()), (Verb::Touch, Some("lamp-7")));
        assert_eq!((command.task, command.create.as_deref()), (None, Some(create)));
        let gone =
            SourceMessage { headers: message(&[("punctual-verb", "cancel")], "").headers, ..up };
        let command = rules.command(&gone).unwrap();
        assert_eq!((command.verb, command.create), (Verb::Cancel, None));
        let other = SourceMessage { place: "devices/lamp-7".to_owned(), ..message(&[], "") };
        assert!(rules.command(&other).unwrap_err().contains("match"));
    }

    #[test]
    fn members_of_a_task_in_the_settings_give_way_to_those_of_the_message() {
        let rules = SourceMapping {
            task: members(r#"{"in":"15m","retry":{"attempts_max":3},"payload":"default"}"#),
            ..mapping()
        };
        for (headers, body, expected) in [
            (&[][..], "", r#"{"in":"15m","payload":"default","retry":{"attempts_max":3}}"#),
            (&[], "1", r#"{"in":"15m","payload":1,"retry":{"attempts_max":3}}"#),
            (
                &[("punctual-in", "1s")],
                "1",
                r#"{"in":"1s","payload":1,"retry":{"attempts_max":3}}"#,
            ),
            (
                &[("content-type", TASK_TYPE)],
                r#"{"cron":"@daily","retry":{"attempts_max":1}}"#,
                r#"{"cron":"@daily","payload":"default","retry":{"attempts_max":1}}"#,
            ),
            (&[("content-type", "text/plain")], "no", TEXT),
        ] {
            let command = rules.command(&message(headers, body)).unwrap();
            assert_eq!(command.task.as_deref(), Some(expected), "{headers:?} {body}");
        }
    }
}
