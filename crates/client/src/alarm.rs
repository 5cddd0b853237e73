//! Alarms: rules of a namespace that report when something goes wrong and when it is over.
//!
//! `namespace/alarms.rs` has the calls, and `wire/alarm.rs` converts messages.

use std::fmt;
use std::time::Duration;

use crate::{Target, Timestamp, WebhookAnswer};

/// When an alarm is raised.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AlarmWhen {
    /// This many attempts failed within the window.
    Failures {
        /// The smallest number that raises the alarm.
        count: u64,
        /// The time that is looked back: from a second to an hour.
        window: Duration,
    },
    /// A larger share of the attempts within the window failed.
    FailureShare {
        /// From 0 to 0.999, with at most three decimals.
        over: f64,
        /// With fewer attempts within the window the alarm is not raised.
        min: u64,
        /// The time that is looked back: from a second to an hour.
        window: Duration,
    },
    /// The namespace has more dead letters.
    DeadLetters {
        /// The largest number that raises no alarm.
        over: u64,
    },
    /// More than 1 % of the fires within the window were sent later.
    Lag {
        /// The largest lag that raises no alarm.
        p99_over: Duration,
        /// The time that is looked back: from a second to an hour.
        window: Duration,
    },
    /// A task is due for longer and was not sent.
    Overdue {
        /// The largest delay that raises no alarm.
        over: Duration,
    },
    /// A queue has had no worker for this long.
    NoWorkers {
        /// The queue of the namespace.
        queue: String,
        /// How long it may be without one.
        longest: Duration,
    },
}

/// Where the notices of an alarm go.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum NoticeTarget {
    /// A webhook ([`Target::http`]), which gets a JSON document.
    Http(Box<Target>),
    /// The robot of a chat, which gets a text.
    Chat(ChatTarget),
    /// Mail addresses. The configuration of the broker names the mail server.
    Mail(Vec<String>),
}

impl NoticeTarget {
    /// A webhook ([`Target::http`]). A queue is refused when the alarm is put.
    #[must_use]
    pub fn http(target: Target) -> Self {
        Self::Http(Box::new(target))
    }

    /// Mail addresses, at most 16.
    #[must_use]
    pub fn mail<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Self {
        Self::Mail(addresses.into_iter().map(Into::into).collect())
    }
}

/// The robot of a chat.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatTarget {
    /// The chat service.
    pub kind: RobotKind,
    /// The webhook of the robot.
    pub url: String,
    /// Signs the notices for DingTalk and Feishu, if the robot requires that. Brokers never return
    /// it.
    pub secret: Option<String>,
}

/// Chat services whose robots take notices by a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RobotKind {
    /// Slack.
    Slack,
    /// DingTalk.
    DingTalk,
    /// Feishu, also called Lark.
    Feishu,
    /// WeCom, also called WeChat Work.
    WeCom,
}

impl ChatTarget {
    /// A robot that requires no signature.
    #[must_use]
    pub fn new(kind: RobotKind, url: impl Into<String>) -> Self {
        Self { kind, url: url.into(), secret: None }
    }

    /// Signs the notices with this secret.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }
}

impl fmt::Debug for ChatTarget {
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut robot = f.debug_struct("ChatTarget");
        robot.field("kind", &self.kind).field("url", &self.url).finish_non_exhaustive()
    }
}

/// A rule to put: when an alarm is raised, and where its notices go.
#[derive(Debug, Clone)]
#[must_use = "a rule does nothing until it is passed to `put`"]
pub struct NewAlarm {
    pub(crate) when: AlarmWhen,
    pub(crate) to: NoticeTarget,
    pub(crate) repeat_after: Option<Duration>,
}

impl NewAlarm {
    /// A rule whose raised alarm is reported once.
    pub fn new(when: AlarmWhen, to: NoticeTarget) -> Self {
        Self { when, to, repeat_after: None }
    }

    /// Reports a raised alarm again after this time, at least a minute.
    pub fn repeat_after(mut self, after: Duration) -> Self {
        self.repeat_after = Some(after);
        self
    }
}

/// An alarm as a broker shows it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AlarmInfo {
    /// Unique in the namespace.
    pub name: String,
    /// When the alarm is raised.
    pub when: AlarmWhen,
    /// Where its notices go, without the secret of a chat robot.
    pub to: NoticeTarget,
    /// After how long a raised alarm is reported again; never if not set.
    pub repeat_after: Option<Duration>,
    /// Whether the alarm is raised: the condition holds.
    pub is_raised: bool,
    /// Since when it is raised, or is not.
    pub since: Timestamp,
    /// What is measured now; `None` if it cannot be measured now.
    pub value: Option<MeasuredValue>,
    /// How many notices the alarm has sent, tests not included.
    pub notices: u64,
    /// The last notice, tests included; `None` if there was none, or if it is no longer kept.
    pub last_notice: Option<NoticeInfo>,
}

/// What is measured for an alarm.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum MeasuredValue {
    /// Failed attempts, or dead letters.
    Count(u64),
    /// The share of the attempts that failed.
    Share(f64),
    /// A lag, a delay, or how long a queue has had no worker.
    Time(Duration),
}

/// A notice of an alarm, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoticeInfo {
    /// When it was sent first.
    pub at: Timestamp,
    /// `raised`, `repeated`, `over` or `test`.
    pub kind: Option<String>,
    /// What became of it.
    pub state: NoticeProgress,
    /// Why the last attempt was not a success.
    pub reason: Option<String>,
    /// What the receiver answered last, if it is a webhook or a chat.
    pub answer: Option<WebhookAnswer>,
}

/// What became of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoticeProgress {
    /// It is sent, or sent again after a failed attempt.
    Waiting,
    /// The receiver has it.
    Done,
    /// No further attempt is made.
    Failed,
}
