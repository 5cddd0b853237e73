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

/// The label of a notice that has its kind.
pub(crate) const KIND_LABEL: &str = "notice";

/// Why a notice is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum NoticeKind {
    Raised,
    Repeated,
    Over,
    Test,
}

impl NoticeKind {
    pub(crate) const ALL: [Self; 4] = [Self::Raised, Self::Repeated, Self::Over, Self::Test];

    /// The kind as the value of [`KIND_LABEL`] and in answers.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Raised => "raised",
            Self::Repeated => "repeated",
            Self::Over => "over",
            Self::Test => "test",
        }
    }

    /// Reads a label. `None` for one that a later version has written.
    pub(crate) fn from_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.label() == label)
    }
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
    let labels = BTreeMap::from([
        (ALARM_LABEL.to_owned(), facts.alarm.name.to_string()),
        (KIND_LABEL.to_owned(), facts.kind.label().to_owned()),
    ]);
    NewTask {
        payload,
        labels: Labels::new(labels).expect("two short labels"),
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
