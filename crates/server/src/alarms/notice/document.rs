//! The JSON document of a notice, which webhooks get.

use punctual_core::{AlarmRule, AlarmValue, Payload, format_duration};
use serde::Serialize;
use serde_json::{Value, json};

use super::facts::{NoticeFacts, NoticeKind, state_name};
use super::sentence::sentence;
use crate::alarms::rule_form::AlarmRuleBody;
use crate::alarms::value_form::share;

/// The document. Times are RFC 3339.
#[derive(Debug, Serialize)]
struct WebhookNotice<'a> {
    r#type: &'static str,
    namespace: &'a str,
    alarm: &'a str,
    state: &'static str,
    /// When the alarm came into this state.
    since: String,
    /// When the notice was made.
    at: String,
    /// Null if nothing was measured yet.
    value: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    when: Option<Value>,
    /// The number of the notice. Each change of state has one, a test has that of the last change.
    notice: u64,
    text: String,
}

/// The condition of a rule, as the API renders it.
pub(super) fn condition(rule: &AlarmRule) -> Option<Value> {
    let mut rule = serde_json::to_value(AlarmRuleBody::of(rule)).ok()?;
    rule.get_mut("when").map(Value::take)
}

pub(super) fn payload(facts: &NoticeFacts<'_>, when: Option<Value>) -> Payload {
    let (alarm, status) = (facts.alarm, &facts.alarm.status);
    let document = WebhookNotice {
        r#type: type_name(facts.kind),
        namespace: alarm.namespace.as_str(),
        alarm: alarm.name.as_str(),
        state: state_name(status.state),
        since: status.since.to_string(),
        at: facts.now.to_string(),
        value: facts.value.map_or(Value::Null, value),
        when,
        notice: status.notices,
        text: sentence(facts),
    };
    Payload::Json(serde_json::to_vec(&document).expect("text and numbers only").into())
}

const fn type_name(kind: NoticeKind) -> &'static str {
    match kind {
        NoticeKind::Raised => "alarm.raised",
        NoticeKind::Repeated => "alarm.repeated",
        NoticeKind::Over => "alarm.over",
        NoticeKind::Test => "alarm.test",
    }
}

/// What was measured, as the API shows it: a number, a share or a duration.
fn value(value: AlarmValue) -> Value {
    match value {
        AlarmValue::Count(count) => json!(count),
        AlarmValue::Share { failed, total } => json!(share(failed, total)),
        AlarmValue::Time(time) => json!(format_duration(time)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::AlarmReceiver;

    use super::super::facts::fixtures::{NOW, alarm, failures};
    use super::*;

    #[test]
    fn the_document_has_the_facts_and_the_sentence() {
        let alarm = alarm(failures(), AlarmReceiver::Mail(vec!["ops@example.org".to_owned()]));
        let facts = |kind, value| NoticeFacts { alarm: &alarm, kind, value, now: NOW };
        let value = Some(AlarmValue::Count(120));
        let when = json!({"failures": {"count": 100, "window": "1m"}});
        let raised = payload(&facts(NoticeKind::Raised, value), Some(when.clone()));
        assert_eq!(raised.content_type(), Some("application/json"));
        let got: Value = serde_json::from_slice(raised.bytes()).unwrap();
        let want = json!({
            "type": "alarm.raised",
            "namespace": "shop",
            "alarm": "errors",
            "state": "raised",
            "since": "2026-11-18T10:54:40.000Z",
            "at": "2026-11-18T11:06:40.000Z",
            "value": 120,
            "when": when,
            "notice": 3,
            "text": "Alarm \"errors\" of namespace \"shop\" is raised: \
                     120 attempts failed within 1m (limit 100).",
        });
        assert_eq!(got, want);
        let share = AlarmValue::Share { failed: 3, total: 10 };
        for (kind, value, name, shown) in [
            (NoticeKind::Repeated, Some(share), "alarm.repeated", json!(0.3)),
            (
                NoticeKind::Over,
                Some(AlarmValue::Time(Duration::from_millis(61_500))),
                "alarm.over",
                json!("1m1s500ms"),
            ),
            (NoticeKind::Test, None, "alarm.test", Value::Null),
        ] {
            let document = payload(&facts(kind, value), None);
            let document: Value = serde_json::from_slice(document.bytes()).unwrap();
            assert_eq!((&document["type"], &document["value"]), (&json!(name), &shown));
        }
    }
}
