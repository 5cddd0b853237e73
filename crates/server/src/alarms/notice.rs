//! Notices: the tasks that report an alarm, in the form that each receiver takes.
//!
//! `facts` is what there is to say, and `sentence` says it in plain English, for all receivers.
//! `document` is the JSON document of webhooks, `chat` has the forms of chat robots, `mail` the
//! text of mails. Everything here is pure: the courier of the target sends the notice, and the
//! engine retries it.

mod chat;
mod document;
mod facts;
mod mail;
mod sentence;

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::{
    AlarmReceiver, Backoff, Due, Jitter, Labels, NewTask, Payload, RetryPolicy, Schedule, Target,
};

pub(crate) use self::facts::{NoticeFacts, NoticeKind};

/// The label of a notice that has the name of its alarm.
pub(crate) const ALARM_LABEL: &str = "alarm";

/// The label of a notice that has its kind.
pub(crate) const KIND_LABEL: &str = "notice";

/// The pauses between attempts, in seconds. The first ones bridge a restart of the receiver, the
/// last ones an outage. Together they take 49 minutes, and with the attempts less than the time
/// that a signature is valid.
const PAUSES_SECS: [u64; 9] = [5, 15, 30, 60, 120, 300, 600, 900, 900];
/// How long a signed notice is attempted. DingTalk and Feishu accept a signature for an hour, by
/// their clock; the rest is for clocks that differ.
const SIGNED_EXPIRES_AFTER: Duration = Duration::from_secs(55 * 60);

/// Returns the task that sends a notice now.
pub(crate) fn notice_task(facts: &NoticeFacts<'_>) -> NewTask {
    let (target, payload) = message(facts);
    let labels = BTreeMap::from([
        (ALARM_LABEL.to_owned(), facts.alarm.name.to_string()),
        (KIND_LABEL.to_owned(), facts.kind.label().to_owned()),
    ]);
    NewTask {
        payload,
        labels: Labels::new(labels).expect("two short labels"),
        retry: retry(),
        expires_after: is_signed(&facts.alarm.rule.to).then_some(SIGNED_EXPIRES_AFTER),
        ..NewTask::new(
            facts.alarm.namespace.of_notices(),
            Schedule::Once(Due::In(Duration::ZERO)),
            target,
        )
    }
}

fn retry() -> RetryPolicy {
    let pauses = PAUSES_SECS.map(Duration::from_secs);
    RetryPolicy {
        attempts_max: 1 + u16::try_from(pauses.len()).expect("a short list"),
        backoff: Backoff::List(pauses.to_vec()),
        jitter: Jitter::default(),
    }
}

/// Whether the notice has a signature that becomes invalid. Other notices do not expire: a late one
/// is better than none.
fn is_signed(to: &AlarmReceiver) -> bool {
    matches!(to, AlarmReceiver::Chat(robot) if robot.secret.is_some())
}

fn message(facts: &NoticeFacts<'_>) -> (Target, Payload) {
    match &facts.alarm.rule.to {
        AlarmReceiver::Http(webhook) => {
            let when = document::condition(&facts.alarm.rule);
            (Target::Http(webhook.clone()), document::payload(facts, when))
        }
        AlarmReceiver::Chat(robot) => {
            let message = chat::ChatMessage::new(robot, &sentence::sentence(facts), facts.now);
            (Target::Http(message.webhook), message.payload)
        }
        AlarmReceiver::Mail(recipients) => mail::message(facts, recipients),
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{AlarmValue, AttemptNo, ChatKind, TIMEOUT_DEFAULT};

    use super::facts::fixtures::{NOW, alarm, failures, robot};
    use super::*;

    fn task(to: AlarmReceiver) -> NewTask {
        let alarm = alarm(failures(), to);
        let value = Some(AlarmValue::Count(120));
        notice_task(&NoticeFacts { alarm: &alarm, kind: NoticeKind::Raised, value, now: NOW })
    }

    #[test]
    fn a_notice_is_a_valid_task_of_the_internal_namespace_with_the_label_of_its_alarm() {
        let mail = AlarmReceiver::Mail(vec!["ops@example.org".to_owned()]);
        let chat = AlarmReceiver::Chat(robot(ChatKind::Slack, "https://chat.example/h", None));
        for to in [mail, chat] {
            let task = task(to);
            assert_eq!(task.check(), Ok(()));
            assert_eq!(task.namespace.as_str(), "shop!");
            assert_eq!(task.labels.get(ALARM_LABEL), Some("errors"));
            assert_eq!(task.expires_after, None);
        }
    }

    #[test]
    fn all_attempts_of_a_signed_notice_begin_while_its_signature_is_valid() {
        let url = "https://chat.example/h";
        let chat = AlarmReceiver::Chat(robot(ChatKind::Feishu, url, Some("hush")));
        let NewTask { retry, timeout, expires_after, .. } = task(chat);
        let valid = Duration::from_secs(3600);
        assert!(expires_after.unwrap() < valid);
        let attempts = u32::from(retry.attempts_max);
        let pauses = (1..attempts).map(|n| retry.pause_after(AttemptNo::new(n), u64::MAX));
        let last = pauses.sum::<Duration>() + TIMEOUT_DEFAULT * (attempts - 1);
        assert_eq!(timeout, TIMEOUT_DEFAULT);
        assert!(last < expires_after.unwrap(), "{last:?}");
        assert!(last > Duration::from_secs(45 * 60), "an outage of 45 minutes is bridged");
    }
}
