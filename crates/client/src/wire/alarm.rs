//! Converts alarms between messages and the types of this crate.

use std::time::Duration;

use punctual_proto::v1;
use punctual_proto::v1::alarm_condition::When;
use punctual_proto::v1::alarm_receiver::To;

use super::non_empty;
use super::record::webhook_answer;
use crate::alarm::{
    AlarmCondition, AlarmInfo, AlarmReceiver, AlarmRule, AlarmState, AlarmValue, ChatKind,
    ChatRobot, NoticeInfo, NoticeState,
};
use crate::time::millis_up;
use crate::{Error, Target, Timestamp};

pub(crate) fn sent_rule(rule: AlarmRule) -> Result<v1::AlarmRule, Error> {
    Ok(v1::AlarmRule {
        when: Some(v1::AlarmCondition { when: Some(sent_condition(rule.when)) }),
        to: Some(v1::AlarmReceiver { to: Some(sent_receiver(rule.to)?) }),
        repeat_after_ms: rule.repeat_after.map(millis_up),
    })
}

fn sent_condition(condition: AlarmCondition) -> When {
    match condition {
        AlarmCondition::Failures { count, window } => {
            When::Failures(v1::FailuresCondition { count, window_ms: millis_up(window) })
        }
        AlarmCondition::FailureShare { over, min, window } => {
            let window_ms = millis_up(window);
            When::FailureShare(v1::FailureShareCondition { over, min, window_ms })
        }
        AlarmCondition::DeadLetters { over } => {
            When::DeadLetters(v1::DeadLettersCondition { over })
        }
        AlarmCondition::Lag { p99_over, window } => {
            let [p99_over_ms, window_ms] = [p99_over, window].map(millis_up);
            When::Lag(v1::LagCondition { p99_over_ms, window_ms })
        }
        AlarmCondition::Overdue { over } => {
            When::Overdue(v1::OverdueCondition { over_ms: millis_up(over) })
        }
        AlarmCondition::NoWorkers { queue, longest } => {
            When::NoWorkers(v1::NoWorkersCondition { queue, for_ms: millis_up(longest) })
        }
    }
}

fn sent_receiver(receiver: AlarmReceiver) -> Result<To, Error> {
    Ok(match receiver {
        AlarmReceiver::Http(target) => To::Http(target.into_webhook("to.http")?),
        AlarmReceiver::Chat(robot) => {
            let kind = match robot.kind {
                ChatKind::Slack => v1::ChatKind::Slack,
                ChatKind::DingTalk => v1::ChatKind::Dingtalk,
                ChatKind::Feishu => v1::ChatKind::Feishu,
                ChatKind::WeCom => v1::ChatKind::Wecom,
            };
            let (url, secret) = (robot.url, robot.secret.unwrap_or_default());
            To::Chat(v1::ChatRobot { kind: kind.into(), url, secret })
        }
        AlarmReceiver::Mail(to) => To::Mail(v1::MailReceiver { to }),
    })
}

pub(crate) fn alarm(alarm: v1::Alarm) -> Result<AlarmInfo, Error> {
    let state = match alarm.state() {
        v1::AlarmState::Ok => AlarmState::Ok,
        v1::AlarmState::Raised => AlarmState::Raised,
        v1::AlarmState::Unspecified => return Err(Error::Answer("an alarm has no known state")),
    };
    Ok(AlarmInfo {
        name: alarm.name,
        rule: rule(alarm.rule.ok_or(Error::Answer("an alarm has no rule"))?)?,
        state,
        since: Timestamp::from_millis(alarm.since_ms),
        value: alarm.value.and_then(|value| value.value).map(value),
        notices: alarm.notices,
        last_notice: alarm.last_notice.map(notice).transpose()?,
    })
}

fn rule(rule: v1::AlarmRule) -> Result<AlarmRule, Error> {
    let when = rule.when.and_then(|condition| condition.when);
    let to = rule.to.and_then(|receiver| receiver.to);
    Ok(AlarmRule {
        when: condition(when.ok_or(Error::Answer("an alarm has no known condition"))?),
        to: receiver(to.ok_or(Error::Answer("an alarm has no known receiver"))?)?,
        repeat_after: rule.repeat_after_ms.map(Duration::from_millis),
    })
}

fn condition(when: When) -> AlarmCondition {
    let time = Duration::from_millis;
    match when {
        When::Failures(v1::FailuresCondition { count, window_ms }) => {
            AlarmCondition::Failures { count, window: time(window_ms) }
        }
        When::FailureShare(v1::FailureShareCondition { over, min, window_ms }) => {
            AlarmCondition::FailureShare { over, min, window: time(window_ms) }
        }
        When::DeadLetters(v1::DeadLettersCondition { over }) => {
            AlarmCondition::DeadLetters { over }
        }
        When::Lag(v1::LagCondition { p99_over_ms, window_ms }) => {
            AlarmCondition::Lag { p99_over: time(p99_over_ms), window: time(window_ms) }
        }
        When::Overdue(v1::OverdueCondition { over_ms }) => {
            AlarmCondition::Overdue { over: time(over_ms) }
        }
        When::NoWorkers(v1::NoWorkersCondition { queue, for_ms }) => {
            AlarmCondition::NoWorkers { queue, longest: time(for_ms) }
        }
    }
}

fn receiver(to: To) -> Result<AlarmReceiver, Error> {
    Ok(match to {
        To::Http(http) => AlarmReceiver::Http(Target::of_webhook(http)),
        To::Chat(robot) => {
            let kind = match robot.kind() {
                v1::ChatKind::Slack => ChatKind::Slack,
                v1::ChatKind::Dingtalk => ChatKind::DingTalk,
                v1::ChatKind::Feishu => ChatKind::Feishu,
                v1::ChatKind::Wecom => ChatKind::WeCom,
                v1::ChatKind::Unspecified => {
                    return Err(Error::Answer("a chat robot has no known kind"));
                }
            };
            let (url, secret) = (robot.url, non_empty(robot.secret));
            AlarmReceiver::Chat(ChatRobot { kind, url, secret })
        }
        To::Mail(mail) => AlarmReceiver::Mail(mail.to),
    })
}

fn value(value: v1::alarm_value::Value) -> AlarmValue {
    use v1::alarm_value::Value;
    match value {
        Value::Count(count) => AlarmValue::Count(count),
        Value::Share(share) => AlarmValue::Share(share),
        Value::TimeMs(millis) => AlarmValue::Time(Duration::from_millis(millis)),
    }
}

pub(crate) fn notice(notice: v1::AlarmNotice) -> Result<NoticeInfo, Error> {
    let state = match notice.state() {
        v1::NoticeState::Waiting => NoticeState::Waiting,
        v1::NoticeState::Done => NoticeState::Done,
        v1::NoticeState::Failed => NoticeState::Failed,
        v1::NoticeState::Unspecified => return Err(Error::Answer("a notice has no known state")),
    };
    Ok(NoticeInfo {
        at: Timestamp::from_millis(notice.at_ms),
        kind: non_empty(notice.kind),
        state,
        reason: non_empty(notice.reason),
        answer: notice.answer.map(webhook_answer),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_back_as_it_was_sent() {
        let second = Duration::from_secs(1);
        let queue = "mail".to_owned();
        let robot = ChatRobot::new(ChatKind::Feishu, "http://h/robot").secret("s");
        for (when, to) in [
            (
                AlarmCondition::Failures { count: 3, window: second },
                AlarmReceiver::Http(Target::http("http://h/x").header("a", "b")),
            ),
            (
                AlarmCondition::FailureShare { over: 0.1, min: 2, window: second },
                AlarmReceiver::Chat(robot),
            ),
            (
                AlarmCondition::DeadLetters { over: 0 },
                AlarmReceiver::Mail(vec!["ops@example.org".to_owned()]),
            ),
            (
                AlarmCondition::Lag { p99_over: second, window: second * 2 },
                AlarmReceiver::Chat(ChatRobot::new(ChatKind::Slack, "http://h/robot")),
            ),
            (
                AlarmCondition::Overdue { over: second },
                AlarmReceiver::Chat(ChatRobot::new(ChatKind::DingTalk, "http://h/robot")),
            ),
            (
                AlarmCondition::NoWorkers { queue, longest: second },
                AlarmReceiver::Chat(ChatRobot::new(ChatKind::WeCom, "http://h/robot")),
            ),
        ] {
            let sent = AlarmRule::new(when, to).repeat_after(second * 60);
            let message = sent_rule(sent.clone()).unwrap();
            let read = rule(message.clone()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{sent:?}"));
            assert_eq!(sent_rule(read).unwrap(), message, "the secret, too");
        }
    }

    #[test]
    fn a_queue_is_no_receiver_of_notices() {
        let condition = AlarmCondition::DeadLetters { over: 0 };
        let rule = AlarmRule::new(condition, AlarmReceiver::Http(Target::queue("q")));
        let error = sent_rule(rule).unwrap_err();
        assert_eq!(error.to_string(), "to.http: must be a webhook; notices cannot go to a queue");
    }
}
