//! The rule of an alarm in JSON, parsing and writing.
//!
//! The same form is sent by callers and stored. [`AlarmRuleBody::shown`] is the form of answers,
//! which leaves out secrets. Doc comments of fields are the OpenAPI descriptions.

use std::fmt;
use std::time::Duration;

use punctual_core::{
    ALARM_COUNT_MAX, ALARM_REPEAT_MIN, ALARM_WINDOW_MAX, ALARM_WINDOW_MIN, AlarmCondition,
    AlarmReceiver, AlarmRule, CHAT_SECRET_BYTES_MAX, ChatKind, ChatRobot, DELAY_MAX, HttpTarget,
    Invalid, MAIL_ADDRESS_BYTES_MAX, MAIL_RECIPIENTS_MAX, Method, Queue, format_duration,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::schema::{
    QueueText, UrlText, array, documented, duration, integer, one_field, one_of, reference,
};
use crate::task_form::{HttpBody, WholeNumber, parse_duration_field};

/// The chat services, by the names that callers use.
const CHAT_KINDS: [(&str, ChatKind); 4] = [
    ("slack", ChatKind::Slack),
    ("dingtalk", ChatKind::DingTalk),
    ("feishu", ChatKind::Feishu),
    ("wecom", ChatKind::WeCom),
];

documented!(
    /// The time that an alarm looks back.
    AlarmWindow,
    "AlarmWindow",
    duration(ALARM_WINDOW_MIN, ALARM_WINDOW_MAX)
);
documented!(
    /// The largest lag that raises no alarm.
    AlarmLag,
    "AlarmLag",
    duration(MILLISECOND, ALARM_WINDOW_MAX)
);
documented!(
    /// The largest delay that raises no alarm.
    AlarmDelay,
    "AlarmDelay",
    duration(MILLISECOND, DELAY_MAX)
);
documented!(
    /// How long a queue may be without a worker.
    AlarmAbsence,
    "AlarmAbsence",
    duration(ALARM_WINDOW_MIN, DELAY_MAX)
);
documented!(
    /// How often a raised alarm is reported.
    AlarmRepeat,
    "AlarmRepeat",
    duration(ALARM_REPEAT_MIN, DELAY_MAX)
);
documented!(
    /// A number of attempts.
    AlarmCount,
    "AlarmCount",
    integer(1, ALARM_COUNT_MAX)
);
documented!(
    /// A number of dead letters.
    AlarmLetters,
    "AlarmLetters",
    integer(0, ALARM_COUNT_MAX)
);
documented!(
    /// A share of attempts.
    AlarmShare,
    "AlarmShare",
    json!({
        "type": "number",
        "description": "A share with at most three decimals.",
        "minimum": 0,
        "maximum": 0.999,
    })
);
documented!(
    /// The name of a chat service.
    ChatKindName,
    "ChatKind",
    one_of(CHAT_KINDS.map(|(name, _)| name))
);
documented!(
    /// The secret of a chat robot.
    ChatSecret,
    "ChatSecret",
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": CHAT_SECRET_BYTES_MAX,
        "x-max-bytes": CHAT_SECRET_BYTES_MAX,
    })
);
documented!(
    /// The addresses of a mail.
    MailAddresses,
    "MailAddresses",
    array(
        &json!({"type": "string", "maxLength": MAIL_ADDRESS_BYTES_MAX}), 1, MAIL_RECIPIENTS_MAX
    )
);

const MILLISECOND: Duration = Duration::from_millis(1);

/// The rule of an alarm: when it is raised, and where its notices go.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = AlarmRule)]
#[serde(deny_unknown_fields, expecting = "the rule of an alarm, a JSON object")]
pub(crate) struct AlarmRuleBody {
    /// When the alarm is raised.
    pub(crate) when: ConditionBody,
    /// Where its notices go.
    pub(crate) to: ReceiverBody,
    /// After how long a raised alarm is reported again. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<AlarmRepeat>)]
    pub(crate) repeat_after: Option<String>,
}

/// When an alarm is raised.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ConditionBody {
    Failures(FailuresBody),
    FailureShare(FailureShareBody),
    DeadLetters(DeadLettersBody),
    Lag(LagBody),
    Overdue(OverdueBody),
    NoWorkers(NoWorkersBody),
}

/// Raised when this many attempts have failed within the window.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = FailuresCondition)]
#[serde(deny_unknown_fields, expecting = "an object with `count` and `window`")]
pub(crate) struct FailuresBody {
    /// The smallest number of failed attempts that raises the alarm.
    #[schema(value_type = AlarmCount)]
    count: WholeNumber,
    /// The time that is looked back.
    #[schema(value_type = AlarmWindow)]
    window: String,
}

/// Raised when a larger share of the attempts within the window has failed.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = FailureShareCondition)]
#[serde(deny_unknown_fields, expecting = "an object with `over`, `min` and `window`")]
pub(crate) struct FailureShareBody {
    /// The largest share that raises no alarm: 0.1 is 10 %.
    #[schema(value_type = AlarmShare)]
    over: f64,
    /// With fewer attempts within the window the alarm is not raised.
    #[schema(value_type = AlarmCount)]
    min: WholeNumber,
    /// The time that is looked back.
    #[schema(value_type = AlarmWindow)]
    window: String,
}

/// Raised when the namespace has more dead letters.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = DeadLettersCondition)]
#[serde(deny_unknown_fields, expecting = "an object with `over`")]
pub(crate) struct DeadLettersBody {
    /// The largest number of dead letters that raises no alarm.
    #[schema(value_type = AlarmLetters)]
    over: WholeNumber,
}

/// Raised when more than 1 % of the fires within the window were sent later than this.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = LagCondition)]
#[serde(deny_unknown_fields, expecting = "an object with `p99_over` and `window`")]
pub(crate) struct LagBody {
    /// The largest 99th percentile of lags that raises no alarm.
    #[schema(value_type = AlarmLag)]
    p99_over: String,
    /// The time that is looked back.
    #[schema(value_type = AlarmWindow)]
    window: String,
}

/// Raised when a task is due for longer than this and was not sent.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = OverdueCondition)]
#[serde(deny_unknown_fields, expecting = "an object with `over`")]
pub(crate) struct OverdueBody {
    /// The largest delay that raises no alarm.
    #[schema(value_type = AlarmDelay)]
    over: String,
}

/// Raised when a queue has had no worker for this long.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = NoWorkersCondition)]
#[serde(deny_unknown_fields, expecting = "an object with `queue` and `for`")]
pub(crate) struct NoWorkersBody {
    /// The queue of the namespace.
    #[schema(value_type = QueueText)]
    queue: String,
    /// How long it may be without a worker.
    #[schema(value_type = AlarmAbsence)]
    r#for: String,
}

/// Where notices go.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReceiverBody {
    Http(HttpBody),
    Chat(ChatBody),
    Mail(MailBody),
}

/// The robot of a chat.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = ChatRobot)]
#[serde(deny_unknown_fields, expecting = "an object with `kind` and `url`")]
pub(crate) struct ChatBody {
    /// The chat service.
    #[schema(value_type = ChatKindName)]
    kind: String,
    /// The webhook of the robot.
    #[schema(value_type = UrlText)]
    url: String,
    /// Signs the notices, if the robot requires that: only for `dingtalk` and `feishu`. Answers
    /// never have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ChatSecret>)]
    secret: Option<RobotSecret>,
}

/// A text that debug output does not have.
#[derive(Deserialize, Serialize)]
#[serde(transparent)]
struct RobotSecret(String);

impl fmt::Debug for RobotSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RobotSecret")
    }
}

/// Mail addresses.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = MailReceiver)]
#[serde(deny_unknown_fields, expecting = "an object with `to`")]
pub(crate) struct MailBody {
    /// The addresses. The configuration of the broker names the mail server.
    #[schema(value_type = MailAddresses)]
    to: Vec<String>,
}

documented!(
    impl ConditionBody,
    "AlarmCondition",
    {
        let mut condition = one_field(&[
            ("failures", reference::<FailuresBody>()),
            ("failure_share", reference::<FailureShareBody>()),
            ("dead_letters", reference::<DeadLettersBody>()),
            ("lag", reference::<LagBody>()),
            ("overdue", reference::<OverdueBody>()),
            ("no_workers", reference::<NoWorkersBody>()),
        ]);
        condition["description"] = "When an alarm is raised: exactly one condition.".into();
        condition
    },
    uses FailuresBody,
    uses FailureShareBody,
    uses DeadLettersBody,
    uses LagBody,
    uses OverdueBody,
    uses NoWorkersBody
);
documented!(
    impl ReceiverBody,
    "AlarmReceiver",
    {
        let mut receiver = one_field(&[
            ("http", reference::<HttpBody>()),
            ("chat", reference::<ChatBody>()),
            ("mail", reference::<MailBody>()),
        ]);
        receiver["description"] =
            "Where notices go: a webhook, the robot of a chat, or mail addresses.".into();
        receiver
    },
    uses HttpBody,
    uses ChatBody,
    uses MailBody
);

impl AlarmRuleBody {
    /// Checks the rule. The error names the field.
    pub(crate) fn into_rule(self) -> Result<AlarmRule, Invalid> {
        let rule = AlarmRule {
            when: self.when.into_condition().map_err(|invalid| invalid.within("when"))?,
            to: self.to.into_receiver().map_err(|invalid| invalid.within("to"))?,
            repeat_after: self
                .repeat_after
                .map(|after| parse_duration_field("repeat_after", &after))
                .transpose()?,
        };
        rule.check()?;
        Ok(rule)
    }

    /// The rule as it is stored.
    pub(crate) fn of(rule: &AlarmRule) -> Self {
        Self {
            when: ConditionBody::of(&rule.when),
            to: ReceiverBody::of(&rule.to),
            repeat_after: rule.repeat_after.map(format_duration),
        }
    }

    /// The rule as callers see it, without secrets.
    pub(crate) fn shown(rule: &AlarmRule) -> Self {
        let mut body = Self::of(rule);
        if let ReceiverBody::Chat(robot) = &mut body.to {
            robot.secret = None;
        }
        body
    }
}

impl ConditionBody {
    fn into_condition(self) -> Result<AlarmCondition, Invalid> {
        match self {
            Self::Failures(body) => Ok(AlarmCondition::Failures {
                count: count("failures.count", 1, body.count)?,
                window: parse_duration_field("failures.window", &body.window)?,
            }),
            Self::FailureShare(body) => Ok(AlarmCondition::FailureShare {
                over_thousandths: share_thousandths(body.over)?,
                min: count("failure_share.min", 1, body.min)?,
                window: parse_duration_field("failure_share.window", &body.window)?,
            }),
            Self::DeadLetters(body) => {
                Ok(AlarmCondition::DeadLetters { over: count("dead_letters.over", 0, body.over)? })
            }
            Self::Lag(body) => Ok(AlarmCondition::Lag {
                p99_over: parse_duration_field("lag.p99_over", &body.p99_over)?,
                window: parse_duration_field("lag.window", &body.window)?,
            }),
            Self::Overdue(body) => Ok(AlarmCondition::Overdue {
                over: parse_duration_field("overdue.over", &body.over)?,
            }),
            Self::NoWorkers(body) => Ok(AlarmCondition::NoWorkers {
                queue: alarm_queue(&body.queue)?,
                longest: parse_duration_field("no_workers.for", &body.r#for)?,
            }),
        }
    }

    fn of(condition: &AlarmCondition) -> Self {
        let number = |number: u64| WholeNumber(i64::try_from(number).unwrap_or(i64::MAX));
        match condition {
            AlarmCondition::Failures { count, window } => {
                let (count, window) = (number(*count), format_duration(*window));
                Self::Failures(FailuresBody { count, window })
            }
            AlarmCondition::FailureShare { over_thousandths, min, window } => {
                let over = f64::from(*over_thousandths) / 1000.0;
                let (min, window) = (number(*min), format_duration(*window));
                Self::FailureShare(FailureShareBody { over, min, window })
            }
            AlarmCondition::DeadLetters { over } => {
                Self::DeadLetters(DeadLettersBody { over: number(*over) })
            }
            AlarmCondition::Lag { p99_over, window } => {
                let [p99_over, window] = [*p99_over, *window].map(format_duration);
                Self::Lag(LagBody { p99_over, window })
            }
            AlarmCondition::Overdue { over } => {
                Self::Overdue(OverdueBody { over: format_duration(*over) })
            }
            AlarmCondition::NoWorkers { queue, longest } => {
                let (queue, r#for) = (queue.as_str().to_owned(), format_duration(*longest));
                Self::NoWorkers(NoWorkersBody { queue, r#for })
            }
        }
    }
}

impl ReceiverBody {
    fn into_receiver(self) -> Result<AlarmReceiver, Invalid> {
        match self {
            Self::Http(http) => {
                let webhook = http.into_webhook().map_err(|invalid| invalid.within("http"))?;
                Ok(AlarmReceiver::Http(webhook))
            }
            Self::Chat(body) => {
                let robot = body.into_robot().map_err(|invalid| invalid.within("chat"))?;
                Ok(AlarmReceiver::Chat(robot))
            }
            Self::Mail(mail) => Ok(AlarmReceiver::Mail(mail.to)),
        }
    }

    fn of(receiver: &AlarmReceiver) -> Self {
        match receiver {
            AlarmReceiver::Http(http) => Self::Http(HttpBody::of(http)),
            AlarmReceiver::Chat(robot) => Self::Chat(ChatBody {
                kind: chat_kind_name(robot.kind).to_owned(),
                url: robot.webhook.url().to_owned(),
                secret: robot.secret.clone().map(RobotSecret),
            }),
            AlarmReceiver::Mail(to) => Self::Mail(MailBody { to: to.clone() }),
        }
    }
}

impl ChatBody {
    fn into_robot(self) -> Result<ChatRobot, Invalid> {
        let secret = self.secret.map(|RobotSecret(secret)| secret);
        Ok(ChatRobot { kind: chat_kind(&self.kind)?, webhook: robot_webhook(&self.url)?, secret })
    }
}

/// The webhook of the robot of a chat.
pub(crate) fn robot_webhook(url: &str) -> Result<HttpTarget, Invalid> {
    HttpTarget::new(url, Method::Post, Vec::new())
}

/// The queue of a condition.
pub(crate) fn alarm_queue(name: &str) -> Result<Queue, Invalid> {
    Queue::new(name).map_err(|invalid| Invalid::new("no_workers.queue", invalid.problem))
}

fn chat_kind(name: &str) -> Result<ChatKind, Invalid> {
    let found = CHAT_KINDS.into_iter().find(|(known, _)| *known == name);
    let names = CHAT_KINDS.map(|(name, _)| name).join(", ");
    let problem = || format!("must be one of {names}");
    found.map(|(_, kind)| kind).ok_or_else(|| Invalid::new("kind", problem()))
}

/// The name of a chat service.
pub(crate) fn chat_kind_name(kind: ChatKind) -> &'static str {
    let found = CHAT_KINDS.into_iter().find(|(_, known)| *known == kind);
    found.map_or("", |(name, _)| name)
}

fn count(field: &str, min: u64, WholeNumber(count): WholeNumber) -> Result<u64, Invalid> {
    u64::try_from(count).map_err(|_| {
        Invalid::new(field, format!("must be from {min} to {ALARM_COUNT_MAX}, is {count}"))
    })
}

/// Converts a share to thousandths.
pub(crate) fn share_thousandths(share: f64) -> Result<u16, Invalid> {
    let invalid = |problem: &str| Err(Invalid::new("failure_share.over", problem));
    if !(0.0..=0.999).contains(&share) {
        return invalid("must be from 0 to 0.999");
    }
    let thousandths = (share * 1000.0).round();
    // The product of a share with three decimals is a whole number up to the last bits.
    if (share * 1000.0 - thousandths).abs() > 1e-9 {
        return invalid("must have at most three decimals");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just checked")]
    Ok(thousandths as u16)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(rule: &Value) -> Result<AlarmRule, Invalid> {
        serde_json::from_str::<AlarmRuleBody>(&rule.to_string()).unwrap().into_rule()
    }

    fn with_condition(when: &Value) -> Value {
        json!({"when": when, "to": {"http": {"url": "http://h/x", "method": "POST"}}})
    }

    fn with_receiver(to: &Value) -> Value {
        json!({"when": {"dead_letters": {"over": 0}}, "to": to})
    }

    #[test]
    fn a_rule_is_written_as_it_was_sent() {
        for rule in [
            with_condition(&json!({"failures": {"count": 100, "window": "1m"}})),
            with_condition(&json!({"failure_share": {"over": 0.1, "min": 50, "window": "5m"}})),
            with_condition(&json!({"failure_share": {"over": 0.999, "min": 1, "window": "1s"}})),
            with_condition(&json!({"dead_letters": {"over": 7}})),
            with_condition(&json!({"lag": {"p99_over": "1s", "window": "1h"}})),
            with_condition(&json!({"overdue": {"over": "30s"}})),
            with_condition(&json!({"no_workers": {"queue": "mail", "for": "1m30s"}})),
            with_receiver(&json!({"http": {
                "url": "http://h/x", "method": "PUT", "headers": {"x-a": "b"},
                "success": {"statuses": [200], "json": {"/errcode": 0}},
                "refuse": {"statuses": [404]},
            }})),
            with_receiver(&json!({"chat": {"kind": "slack", "url": "http://h/x"}})),
            with_receiver(&json!({"chat": {"kind": "dingtalk", "url": "http://h/x"}})),
            with_receiver(&json!({
                "chat": {"kind": "feishu", "url": "http://h/x", "secret": "SEC1"},
            })),
            with_receiver(&json!({"chat": {"kind": "wecom", "url": "http://h/x?key=1"}})),
            with_receiver(&json!({"mail": {"to": ["ops@example.org", "b@example.org"]}})),
        ] {
            let mut repeated = rule.clone();
            repeated["repeat_after"] = json!("1h");
            for rule in [rule, repeated] {
                let read = read(&rule).unwrap();
                assert_eq!(serde_json::to_value(AlarmRuleBody::of(&read)).unwrap(), rule);
            }
        }
    }

    #[test]
    fn an_answer_and_debug_output_have_no_secret() {
        let rule = json!({"chat": {"kind": "dingtalk", "url": "http://h/x", "secret": "SEC1"}});
        let body: AlarmRuleBody =
            serde_json::from_value(with_receiver(&rule)).expect("a valid form");
        assert!(!format!("{body:?}").contains("SEC1"), "{body:?}");
        let rule = body.into_rule().unwrap();
        assert!(!format!("{rule:?}").contains("SEC1"), "{rule:?}");
        let shown = serde_json::to_value(AlarmRuleBody::shown(&rule)).unwrap();
        assert_eq!(shown["to"], json!({"chat": {"kind": "dingtalk", "url": "http://h/x"}}));
    }

    #[test]
    fn a_value_that_is_not_allowed_is_refused_by_the_name_of_its_field() {
        let share = |over: f64| json!({"failure_share": {"over": over, "min": 1, "window": "1m"}});
        let long = "x".repeat(257);
        for (rule, message) in [
            (
                with_condition(&json!({"failures": {"count": 0, "window": "1m"}})),
                "when.failures.count: must be from 1 to 1000000000, is 0",
            ),
            (
                with_condition(&json!({"failures": {"count": -1, "window": "1m"}})),
                "when.failures.count: must be from 1 to 1000000000, is -1",
            ),
            (
                with_condition(&json!({"failures": {"count": 1, "window": "2h"}})),
                "when.failures.window: must be from 1s to 1h, is 2h",
            ),
            (
                with_condition(&share(0.0001)),
                "when.failure_share.over: must have at most three decimals",
            ),
            (with_condition(&share(1.0)), "when.failure_share.over: must be from 0 to 0.999"),
            (with_condition(&share(-0.5)), "when.failure_share.over: must be from 0 to 0.999"),
            (
                with_condition(&json!({"dead_letters": {"over": -1}})),
                "when.dead_letters.over: must be from 0 to 1000000000, is -1",
            ),
            (
                with_condition(&json!({"lag": {"p99_over": "0s", "window": "1m"}})),
                "when.lag.p99_over: must be from 1ms to 1h, is 0s",
            ),
            (
                with_condition(&json!({"no_workers": {"queue": "mail", "for": "0s"}})),
                "when.no_workers.for: must be from 1s to 36500d, is 0s",
            ),
            (
                with_receiver(&json!({
                    "chat": {"kind": "slack", "url": "http://h/x", "secret": "s"},
                })),
                "to.chat.secret: is only for the kinds dingtalk and feishu",
            ),
            (
                with_receiver(&json!({
                    "chat": {"kind": "feishu", "url": "http://h/x", "secret": long},
                })),
                "to.chat.secret: must have 1 to 256 bytes, has 257",
            ),
            (
                with_receiver(&json!({"chat": {"kind": "irc", "url": "http://h/x"}})),
                "to.chat.kind: must be one of slack, dingtalk, feishu, wecom",
            ),
            (
                with_receiver(&json!({"mail": {"to": ["ops"]}})),
                "to.mail.to: \"ops\" is not a mail address like ops@example.org",
            ),
            (
                with_receiver(&json!({"mail": {"to": []}})),
                "to.mail.to: must have 1 to 16 addresses, has 0",
            ),
        ] {
            assert_eq!(read(&rule).unwrap_err().to_string(), message);
        }
        for (rule, field) in [
            (
                with_condition(&json!({"lag": {"p99_over": "1", "window": "1m"}})),
                "when.lag.p99_over",
            ),
            (with_condition(&json!({"overdue": {"over": "soon"}})), "when.overdue.over"),
            (
                with_condition(&json!({"no_workers": {"queue": "a b", "for": "1m"}})),
                "when.no_workers.queue",
            ),
            (with_receiver(&json!({"http": {"url": "ftp://h"}})), "to.http.url"),
            (with_receiver(&json!({"chat": {"kind": "slack", "url": "h"}})), "to.chat.url"),
        ] {
            assert_eq!(read(&rule).unwrap_err().field, field, "{rule}");
        }
        let mut often = with_receiver(&json!({"http": {"url": "http://h/x"}}));
        often["repeat_after"] = json!("1s");
        let message = "repeat_after: must be from 1m to 36500d, is 1s";
        assert_eq!(read(&often).unwrap_err().to_string(), message);
    }

    #[test]
    fn unknown_fields_and_two_conditions_are_refused() {
        for rule in [
            with_condition(&json!({"failures": {"count": 1, "window": "1m", "min": 1}})),
            with_condition(&json!({"errors": {"count": 1}})),
            with_condition(&json!({"overdue": {"over": "1s"}, "dead_letters": {"over": 0}})),
            with_condition(&json!({})),
            with_receiver(&json!({"mail": {"to": ["a@b"], "cc": []}})),
            with_receiver(&json!({"queue": "alarms"})),
            json!({"when": {"dead_letters": {"over": 0}}}),
            json!({"to": {"mail": {"to": ["a@b"]}}}),
        ] {
            let body = serde_json::from_str::<AlarmRuleBody>(&rule.to_string());
            assert!(body.is_err(), "{rule}");
        }
    }
}
