//! Notices: the tasks that report an alarm, in the form that each receiver takes.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::{
    AlarmReceiver, AlarmValue, Due, HttpTarget, Labels, MailTarget, NewTask, Payload, Schedule,
    Target, Timestamp,
};

use super::stored::StoredAlarm;

/// The label of a notice that has the name of its alarm.
pub(crate) const ALARM_LABEL: &str = "alarm";

/// Why a notice is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum NoticeKind {
    Raised,
    Repeated,
    Over,
    Test,
}

/// What a notice says.
#[derive(Debug)]
pub(crate) struct NoticeFacts<'a> {
    pub(crate) alarm: &'a StoredAlarm,
    pub(crate) kind: NoticeKind,
    /// What was measured when the notice was decided.
    pub(crate) value: Option<AlarmValue>,
    pub(crate) now: Timestamp,
}

/// Returns the task that sends a notice now.
pub(crate) fn notice_task(facts: &NoticeFacts<'_>) -> NewTask {
    let (target, payload) = message(facts);
    let labels = BTreeMap::from([(ALARM_LABEL.to_owned(), facts.alarm.name.to_string())]);
    NewTask {
        payload,
        labels: Labels::new(labels).expect("one short label"),
        ..NewTask::new(
            facts.alarm.namespace.of_notices(),
            Schedule::Once(Due::In(Duration::ZERO)),
            target,
        )
    }
}

fn message(facts: &NoticeFacts<'_>) -> (Target, Payload) {
    todo!()
}
