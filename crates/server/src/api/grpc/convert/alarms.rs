//! Converts alarms between messages and the types of the core.

use punctual_core::{
    AlarmCondition, AlarmReceiver, AlarmRule, AlarmState, AlarmValue, ChatKind, ChatRobot, Invalid,
};
use punctual_proto::v1;
use punctual_proto::v1::alarm_condition::When;
use punctual_proto::v1::alarm_receiver::To;

use super::{as_millis, fires, known, millis, sent_webhook, webhook};
use crate::alarms::notice::NoticeKind;
use crate::alarms::rule_form::{alarm_queue, robot_webhook, share_thousandths};
use crate::alarms::value_form::share;
use crate::api::alarms::{AlarmView, NoticeState, NoticeView};

/// Converts and checks a rule.
pub(crate) fn rule(sent: v1::AlarmRule) -> Result<AlarmRule, Invalid> {
    let missing = |field: &str| Invalid::new(field, "must be given");
    let when = sent.when.and_then(|condition| condition.when).ok_or_else(|| missing("when"))?;
    let to = sent.to.and_then(|receiver| receiver.to).ok_or_else(|| missing("to"))?;
    let rule = AlarmRule {
        when: condition(when).map_err(|invalid| invalid.within("when"))?,
        to: receiver(to).map_err(|invalid| invalid.within("to"))?,
        repeat_after: sent.repeat_after_ms.map(millis),
    };
    rule.check()?;
    Ok(rule)
}

fn condition(when: When) -> Result<AlarmCondition, Invalid> {
    Ok(match when {
        When::Failures(v1::FailuresCondition { count, window_ms }) => {
            AlarmCondition::Failures { count, window: millis(window_ms) }
        }
        When::FailureShare(v1::FailureShareCondition { over, min, window_ms }) => {
            let over_thousandths = share_thousandths(over)?;
            AlarmCondition::FailureShare { over_thousandths, min, window: millis(window_ms) }
        }
        When::DeadLetters(v1::DeadLettersCondition { over }) => {
            AlarmCondition::DeadLetters { over }
        }
        When::Lag(v1::LagCondition { p99_over_ms, window_ms }) => {
            AlarmCondition::Lag { p99_over: millis(p99_over_ms), window: millis(window_ms) }
        }
        When::Overdue(v1::OverdueCondition { over_ms }) => {
            AlarmCondition::Overdue { over: millis(over_ms) }
        }
        When::NoWorkers(v1::NoWorkersCondition { queue, for_ms }) => {
            AlarmCondition::NoWorkers { queue: alarm_queue(&queue)?, longest: millis(for_ms) }
        }
    })
}

fn receiver(to: To) -> Result<AlarmReceiver, Invalid> {
    match to {
        To::Http(http) => {
            let webhook = webhook(http).map_err(|invalid| invalid.within("http"))?;
            Ok(AlarmReceiver::Http(webhook))
        }
        To::Chat(sent) => {
            let robot = robot(sent).map_err(|invalid| invalid.within("chat"))?;
            Ok(AlarmReceiver::Chat(robot))
        }
        To::Mail(mail) => Ok(AlarmReceiver::Mail(mail.to)),
    }
}

fn robot(sent: v1::ChatRobot) -> Result<ChatRobot, Invalid> {
    let kind = match known("kind", sent.kind)? {
        v1::ChatKind::Unspecified => return Err(Invalid::new("kind", "must be given")),
        v1::ChatKind::Slack => ChatKind::Slack,
        v1::ChatKind::Dingtalk => ChatKind::DingTalk,
        v1::ChatKind::Feishu => ChatKind::Feishu,
        v1::ChatKind::Wecom => ChatKind::WeCom,
    };
    let secret = (!sent.secret.is_empty()).then_some(sent.secret);
    Ok(ChatRobot { kind, webhook: robot_webhook(&sent.url)?, secret })
}

pub(crate) fn alarm(view: &AlarmView) -> v1::Alarm {
    let AlarmView { alarm, value, last_notice } = view;
    v1::Alarm {
        name: alarm.name.as_str().to_owned(),
        rule: Some(sent_rule(&alarm.rule)),
        state: match alarm.status.state {
            AlarmState::Ok => v1::AlarmState::Ok,
            AlarmState::Raised => v1::AlarmState::Raised,
        }
        .into(),
        since_ms: alarm.status.since.as_millis(),
        value: value.map(alarm_value),
        notices: alarm.status.notices,
        last_notice: last_notice.as_ref().map(notice),
    }
}

/// A rule without secrets.
fn sent_rule(rule: &AlarmRule) -> v1::AlarmRule {
    let when = match &rule.when {
        AlarmCondition::Failures { count, window } => {
            When::Failures(v1::FailuresCondition { count: *count, window_ms: as_millis(*window) })
        }
        AlarmCondition::FailureShare { over_thousandths, min, window } => {
            When::FailureShare(v1::FailureShareCondition {
                over: f64::from(*over_thousandths) / 1000.0,
                min: *min,
                window_ms: as_millis(*window),
            })
        }
        AlarmCondition::DeadLetters { over } => {
            When::DeadLetters(v1::DeadLettersCondition { over: *over })
        }
        AlarmCondition::Lag { p99_over, window } => When::Lag(v1::LagCondition {
            p99_over_ms: as_millis(*p99_over),
            window_ms: as_millis(*window),
        }),
        AlarmCondition::Overdue { over } => {
            When::Overdue(v1::OverdueCondition { over_ms: as_millis(*over) })
        }
        AlarmCondition::NoWorkers { queue, longest } => When::NoWorkers(v1::NoWorkersCondition {
            queue: queue.as_str().to_owned(),
            for_ms: as_millis(*longest),
        }),
    };
    v1::AlarmRule {
        when: Some(v1::AlarmCondition { when: Some(when) }),
        to: Some(v1::AlarmReceiver { to: Some(sent_receiver(&rule.to)) }),
        repeat_after_ms: rule.repeat_after.map(as_millis),
    }
}

fn sent_receiver(receiver: &AlarmReceiver) -> To {
    match receiver {
        AlarmReceiver::Http(http) => To::Http(sent_webhook(http)),
        AlarmReceiver::Chat(robot) => {
            let kind = match robot.kind {
                ChatKind::Slack => v1::ChatKind::Slack,
                ChatKind::DingTalk => v1::ChatKind::Dingtalk,
                ChatKind::Feishu => v1::ChatKind::Feishu,
                ChatKind::WeCom => v1::ChatKind::Wecom,
            };
            let (url, secret) = (robot.webhook.url().to_owned(), String::new());
            To::Chat(v1::ChatRobot { kind: kind.into(), url, secret })
        }
        AlarmReceiver::Mail(to) => To::Mail(v1::MailReceiver { to: to.clone() }),
    }
}

fn alarm_value(value: AlarmValue) -> v1::AlarmValue {
    use v1::alarm_value::Value;
    let value = match value {
        AlarmValue::Count(count) => Value::Count(count),
        AlarmValue::Share { failed, total } => Value::Share(share(failed, total)),
        AlarmValue::Time(time) => Value::TimeMs(as_millis(time)),
    };
    v1::AlarmValue { value: Some(value) }
}

pub(crate) fn notice(notice: &NoticeView) -> v1::AlarmNotice {
    let state = match notice.state {
        NoticeState::Waiting => v1::NoticeState::Waiting,
        NoticeState::Done => v1::NoticeState::Done,
        NoticeState::Failed => v1::NoticeState::Failed,
    };
    v1::AlarmNotice {
        at_ms: notice.at.as_millis(),
        kind: notice.kind.map_or("", NoticeKind::label).to_owned(),
        state: state.into(),
        reason: notice.reason().unwrap_or_default().to_owned(),
        answer: notice.answer().map(fires::answer),
    }
}
