//! What a notice says.

use punctual_core::{AlarmState, AlarmValue, Timestamp};

use crate::alarms::stored::StoredAlarm;

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

    /// The kind as the value of the label of a notice and in answers.
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

/// Returns the name of a state in JSON and in mails.
pub(super) const fn state_name(state: AlarmState) -> &'static str {
    match state {
        AlarmState::Ok => "ok",
        AlarmState::Raised => "raised",
    }
}

/// Facts of tests.
#[cfg(test)]
pub(super) mod fixtures {
    use std::time::Duration;

    use punctual_core::{
        AlarmCondition, AlarmName, AlarmReceiver, AlarmRule, AlarmStatus, ChatKind, ChatRobot,
        HttpTarget, Method, Namespace,
    };

    use super::*;

    pub(in crate::alarms::notice) const NOW: Timestamp = Timestamp::from_millis(1_795_000_000_000);

    /// The alarm `errors` of the namespace `shop`, raised for twelve minutes.
    pub(in crate::alarms::notice) fn alarm(when: AlarmCondition, to: AlarmReceiver) -> StoredAlarm {
        let (namespace, name) = ("shop", "errors");
        let (namespace, name) = (Namespace::new(namespace).unwrap(), AlarmName::new(name).unwrap());
        let rule = AlarmRule { when, to, repeat_after: None };
        let since = Timestamp::from_millis(NOW.as_millis() - 720_000);
        let status = AlarmStatus {
            state: AlarmState::Raised,
            notices: 3,
            raised_for: Some(Duration::from_millis(720_123)),
            ..AlarmStatus::new(since)
        };
        let mut alarm = StoredAlarm::new(&namespace, &name, &rule, since);
        alarm.status = status;
        alarm
    }

    pub(in crate::alarms::notice) fn failures() -> AlarmCondition {
        AlarmCondition::Failures { count: 100, window: Duration::from_secs(60) }
    }

    pub(in crate::alarms::notice) fn robot(
        kind: ChatKind,
        url: &str,
        secret: Option<&str>,
    ) -> ChatRobot {
        let webhook = HttpTarget::new(url, Method::Post, vec![]).unwrap();
        ChatRobot { kind, webhook, secret: secret.map(str::to_owned) }
    }
}
