//! Converts alarms between messages and the types of this crate.

use std::time::Duration;

use punctual_proto::v1;
use punctual_proto::v1::alarm_condition::When;
use punctual_proto::v1::alarm_receiver::To;

use super::non_empty;
use super::record::webhook_answer;
use crate::alarm::{
    AlarmInfo, AlarmWhen, ChatTarget, MeasuredValue, NewAlarm, NoticeInfo, NoticeProgress,
    NoticeTarget, RobotKind,
};
use crate::time::millis_up;
use crate::{Error, Target, Timestamp};

pub(crate) fn sent_rule(rule: NewAlarm) -> Result<v1::AlarmRule, Error> {
    Ok(v1::AlarmRule {
        when: Some(v1::AlarmCondition { when: Some(sent_condition(rule.when)) }),
        to: Some(v1::AlarmReceiver { to: Some(sent_receiver(rule.to)?) }),
        repeat_after_ms: rule.repeat_after.map(millis_up),
    })
}

fn sent_condition(condition: AlarmWhen) -> When {
    match condition {
        AlarmWhen::Failures { count, window } => {
            When::Failures(v1::FailuresCondition { count, window_ms: millis_up(window) })
        }
        AlarmWhen::FailureShare { over, min, window } => {
            let window_ms = millis_up(window);
            When::FailureShare(v1::FailureShareCondition { over, min, window_ms })
        }
        AlarmWhen::DeadLetters { over } => When::DeadLetters(v1::DeadLettersCondition { over }),
        AlarmWhen::Lag { p99_over, window } => {
            let [p99_over_ms, window_ms] = [p99_over, window].map(millis_up);
            When::Lag(v1::LagCondition { p99_over_ms, window_ms })
        }
        AlarmWhen::Overdue { over } => {
            When::Overdue(v1::OverdueCondition { over_ms: millis_up(over) })
        }
        AlarmWhen::NoWorkers { queue, longest } => {
            When::NoWorkers(v1::NoWorkersCondition { queue, for_ms: millis_up(longest) })
        }
    }
}

fn sent_receiver(receiver: NoticeTarget) -> Result<To, Error> {
    Ok(match receiver {
        NoticeTarget::Http(target) => To::Http(target.into_webhook("to.http")?),
        NoticeTarget::Chat(robot) => {
            let kind = match robot.kind {
                RobotKind::Slack => v1::ChatKind::Slack,
                RobotKind::DingTalk => v1::ChatKind::Dingtalk,
                RobotKind::Feishu => v1::ChatKind::Feishu,
                RobotKind::WeCom => v1::ChatKind::Wecom,
            };
            let (url, secret) = (robot.url, robot.secret.unwrap_or_default());
            To::Chat(v1::ChatRobot { kind: kind.into(), url, secret })
        }
        NoticeTarget::Mail(to) => To::Mail(v1::MailReceiver { to }),
    })
}

pub(crate) fn alarm(alarm: v1::Alarm) -> Result<AlarmInfo, Error> {
    let is_raised = match alarm.state() {
        v1::AlarmState::Ok => false,
        v1::AlarmState::Raised => true,
        v1::AlarmState::Unspecified => return Err(Error::Answer("an alarm has no known state")),
    };
    let rule = rule(alarm.rule.ok_or(Error::Answer("an alarm has no rule"))?)?;
    let NewAlarm { when, to, repeat_after } = rule;
    Ok(AlarmInfo {
        name: alarm.name,
        when,
        to,
        repeat_after,
        is_raised,
        since: Timestamp::from_millis(alarm.since_ms),
        value: alarm.value.and_then(|value| value.value).map(value),
        notices: alarm.notices,
        last_notice: alarm.last_notice.map(notice).transpose()?,
    })
}

fn rule(rule: v1::AlarmRule) -> Result<NewAlarm, Error> {
    let when = rule.when.and_then(|condition| condition.when);
    let to = rule.to.and_then(|receiver| receiver.to);
    Ok(NewAlarm {
        when: condition(when.ok_or(Error::Answer("an alarm has no known condition"))?),
        to: receiver(to.ok_or(Error::Answer("an alarm has no known receiver"))?)?,
        repeat_after: rule.repeat_after_ms.map(Duration::from_millis),
    })
}

fn condition(when: When) -> AlarmWhen {
    let time = Duration::from_millis;
    match when {
        When::Failures(v1::FailuresCondition { count, window_ms }) => {
            AlarmWhen::Failures { count, window: time(window_ms) }
        }
        When::FailureShare(v1::FailureShareCondition { over, min, window_ms }) => {
            AlarmWhen::FailureShare { over, min, window: time(window_ms) }
        }
        When::DeadLetters(v1::DeadLettersCondition { over }) => AlarmWhen::DeadLetters { over },
        When::Lag(v1::LagCondition { p99_over_ms, window_ms }) => {
            AlarmWhen::Lag { p99_over: time(p99_over_ms), window: time(window_ms) }
        }
        When::Overdue(v1::OverdueCondition { over_ms }) => {
            AlarmWhen::Overdue { over: time(over_ms) }
        }
        When::NoWorkers(v1::NoWorkersCondition { queue, for_ms }) => {
            AlarmWhen::NoWorkers { queue, longest: time(for_ms) }
        }
    }
}

fn receiver(to: To) -> Result<NoticeTarget, Error> {
    Ok(match to {
        To::Http(http) => NoticeTarget::http(Target::of_webhook(http)),
        To::Chat(robot) => {
            let kind = match robot.kind() {
                v1::ChatKind::Slack => RobotKind::Slack,
                v1::ChatKind::Dingtalk => RobotKind::DingTalk,
                v1::ChatKind::Feishu => RobotKind::Feishu,
                v1::ChatKind::Wecom => RobotKind::WeCom,
                v1::ChatKind::Unspecified => {
                    return Err(Error::Answer("a chat robot has no known kind"));
                }
            };
            let (url, secret) = (robot.url, non_empty(robot.secret));
            NoticeTarget::Chat(ChatTarget { kind, url, secret })
        }
        To::Mail(mail) => NoticeTarget::Mail(mail.to),
    })
}

fn value(value: v1::alarm_value::Value) -> MeasuredValue {
    use v1::alarm_value::Value;
    match value {
        Value::Count(count) => MeasuredValue::Count(count),
        Value::Share(share) => MeasuredValue::Share(share),
        Value::TimeMs(millis) => MeasuredValue::Time(Duration::from_millis(millis)),
    }
}

pub(crate) fn notice(notice: v1::AlarmNotice) -> Result<NoticeInfo, Error> {
    let state = match notice.state() {
        v1::NoticeState::Waiting => NoticeProgress::Waiting,
        v1::NoticeState::Done => NoticeProgress::Done,
        v1::NoticeState::Failed => NoticeProgress::Failed,
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
        let robot = ChatTarget::new(RobotKind::Feishu, "http://h/robot").secret("s");
        for (when, to) in [
            (
                AlarmWhen::Failures { count: 3, window: second },
                NoticeTarget::http(Target::http("http://h/x").header("a", "b")),
            ),
            (
                AlarmWhen::FailureShare { over: 0.1, min: 2, window: second },
                NoticeTarget::Chat(robot),
            ),
            (AlarmWhen::DeadLetters { over: 0 }, NoticeTarget::mail(["ops@example.org"])),
            (
                AlarmWhen::Lag { p99_over: second, window: second * 2 },
                NoticeTarget::Chat(ChatTarget::new(RobotKind::Slack, "http://h/robot")),
            ),
            (
                AlarmWhen::Overdue { over: second },
                NoticeTarget::Chat(ChatTarget::new(RobotKind::DingTalk, "http://h/robot")),
            ),
            (
                AlarmWhen::NoWorkers { queue, longest: second },
                NoticeTarget::Chat(ChatTarget::new(RobotKind::WeCom, "http://h/robot")),
            ),
        ] {
            let sent = NewAlarm::new(when, to).repeat_after(second * 60);
            let message = sent_rule(sent.clone()).unwrap();
            let read = rule(message.clone()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{sent:?}"));
            assert_eq!(sent_rule(read).unwrap(), message, "the secret, too");
        }
    }

    #[test]
    fn a_queue_is_no_receiver_of_notices() {
        let condition = AlarmWhen::DeadLetters { over: 0 };
        let rule = NewAlarm::new(condition, NoticeTarget::http(Target::queue("q")));
        let error = sent_rule(rule).unwrap_err();
        let expected = "to.http: must be a webhook; notices go to no other target";
        assert_eq!(error.to_string(), expected);
    }
}
