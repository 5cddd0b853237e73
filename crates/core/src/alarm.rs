//! Alarms: rules of a namespace that are raised when something goes wrong and over when it is right
//! again.
//!
//! Every decision here is pure. Brokers measure ([`Reading`]), one of them evaluates each rule
//! ([`AlarmRule::evaluate`]) and stores the [`AlarmStatus`] before it sends the [`Notice`], so that
//! each change of state is reported once. `server/alarms` measures, stores and sends.

use std::fmt;
use std::time::Duration;

use crate::limits::{
    ALARM_COUNT_MAX, ALARM_REPEAT_MIN, ALARM_WINDOW_MAX, ALARM_WINDOW_MIN, CHAT_SECRET_BYTES_MAX,
    DELAY_MAX,
};
use crate::{HttpTarget, Invalid, MailTarget, Queue, Timestamp, format_duration};

/// When an alarm is raised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlarmCondition {
    /// This many attempts failed within the window.
    Failures {
        /// The smallest number that raises the alarm.
        count: u64,
        /// The time that is looked back.
        window: Duration,
    },
    /// A larger share of the attempts within the window failed.
    FailureShare {
        /// The share in thousandths, from 0 to 999.
        over_thousandths: u16,
        /// The smallest number of attempts for which a share means something.
        min: u64,
        /// The time that is looked back.
        window: Duration,
    },
    /// There are more dead letters.
    DeadLetters {
        /// The largest number that raises no alarm.
        over: u64,
    },
    /// 99 % of the fires within the window were sent at most this late; later raises the alarm.
    Lag {
        /// The largest lag that raises no alarm.
        p99_over: Duration,
        /// The time that is looked back.
        window: Duration,
    },
    /// The oldest task that is due and was not sent is later than this.
    Overdue {
        /// The largest delay that raises no alarm.
        over: Duration,
    },
    /// A queue has had no worker for this long.
    NoWorkers {
        /// The queue of the namespace.
        queue: Queue,
        /// How long it may be without one.
        longest: Duration,
    },
}

/// What was measured for a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The value that is compared.
    pub value: AlarmValue,
    /// Whether the measurement covers all brokers and the whole window. An incomplete reading can
    /// raise an alarm, because nothing that is missing would lower it, but cannot end one.
    pub complete: bool,
}

/// The value of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlarmValue {
    /// Failed attempts, or dead letters.
    Count(u64),
    /// Failed attempts of all attempts.
    Share {
        /// Attempts that failed.
        failed: u64,
        /// All attempts.
        total: u64,
    },
    /// A lag, a delay, or how long a queue has had no worker. Zero if there is none.
    Time(Duration),
}

/// The state of an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AlarmState {
    /// The condition does not hold.
    #[default]
    Ok,
    /// The condition holds.
    Raised,
}

/// What is stored about an alarm beside its rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlarmStatus {
    /// The state.
    pub state: AlarmState,
    /// When the alarm came into this state.
    pub since: Timestamp,
    /// How many notices were decided so far. The number of a notice identifies it, so that it is
    /// sent once.
    pub notices: u64,
    /// When the last notice was decided.
    pub noticed_at: Timestamp,
    /// The last notice, until its task is durable.
    pub pending: Option<Notice>,
    /// What was measured when the last notice was decided.
    pub value: Option<AlarmValue>,
    /// How long the alarm was raised, if the last notice says that it is over.
    pub raised_for: Option<Duration>,
}

/// Why a notice is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The alarm was raised.
    Raised,
    /// The alarm is still raised.
    Repeated,
    /// The alarm is over.
    Over,
}

/// Chat services whose robots take notices by a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChatKind {
    /// Slack.
    Slack,
    /// DingTalk.
    DingTalk,
    /// Feishu, also called Lark.
    Feishu,
    /// WeCom, also called WeChat Work.
    WeCom,
}

/// The robot of a chat.
#[derive(Clone, PartialEq, Eq)]
pub struct ChatRobot {
    /// The chat service.
    pub kind: ChatKind,
    /// The webhook of the robot.
    pub webhook: HttpTarget,
    /// Signs the notices for DingTalk and Feishu, if the robot requires that.
    pub secret: Option<String>,
}

/// Where the notices of an alarm go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlarmReceiver {
    /// A webhook, which gets a JSON document.
    Http(HttpTarget),
    /// The robot of a chat, which gets a text.
    Chat(ChatRobot),
    /// Mail addresses.
    Mail(Vec<String>),
}

/// A rule of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlarmRule {
    /// When the alarm is raised.
    pub when: AlarmCondition,
    /// Where its notices go.
    pub to: AlarmReceiver,
    /// After how long a raised alarm is reported again; never if not set.
    pub repeat_after: Option<Duration>,
}

impl AlarmStatus {
    /// The status of a new alarm.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self {
            state: AlarmState::Ok,
            since: now,
            notices: 0,
            noticed_at: now,
            pending: None,
            value: None,
            raised_for: None,
        }
    }

    fn noticed(self, notice: Notice, value: AlarmValue, now: Timestamp) -> Self {
        let (state, since) = match notice {
            Notice::Raised => (AlarmState::Raised, now),
            Notice::Repeated => (self.state, self.since),
            Notice::Over => (AlarmState::Ok, now),
        };
        Self {
            state,
            since,
            notices: self.notices.saturating_add(1),
            noticed_at: now,
            pending: Some(notice),
            value: Some(value),
            raised_for: (notice == Notice::Over).then(|| now.since(self.since)),
        }
    }
}

impl AlarmRule {
    /// Checks all limits. The error names the field as the caller wrote it.
    pub fn check(&self) -> Result<(), Invalid> {
        self.when.check().map_err(|invalid| invalid.within("when"))?;
        self.to.check().map_err(|invalid| invalid.within("to"))?;
        match self.repeat_after {
            Some(after) => check_time("repeat_after", after, ALARM_REPEAT_MIN, DELAY_MAX),
            None => Ok(()),
        }
    }

    /// Returns the status after a reading if it differs. Its pending notice is sent after the
    /// status was stored; until then nothing else is decided.
    #[must_use]
    pub fn evaluate(
        &self,
        status: AlarmStatus,
        reading: Reading,
        now: Timestamp,
    ) -> Option<AlarmStatus> {
        if status.pending.is_some() {
            return None;
        }
        let repeats = |after: Duration| now.since(status.noticed_at) >= after;
        let notice = match (status.state, self.when.holds(reading.value)) {
            (AlarmState::Ok, true) => Notice::Raised,
            (AlarmState::Raised, true) if self.repeat_after.is_some_and(repeats) => {
                Notice::Repeated
            }
            (AlarmState::Raised, false) if reading.complete => Notice::Over,
            (AlarmState::Ok | AlarmState::Raised, _) => return None,
        };
        Some(status.noticed(notice, reading.value, now))
    }
}

impl AlarmReceiver {
    fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Http(_) => Ok(()),
            Self::Chat(robot) => robot.check().map_err(|invalid| invalid.within("chat")),
            Self::Mail(recipients) => MailTarget::new(recipients.clone(), "")
                .map(|_| ())
                .map_err(|invalid| invalid.within("mail")),
        }
    }
}

impl fmt::Debug for ChatRobot {
    /// Leaves out the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut robot = f.debug_struct("ChatRobot");
        robot.field("kind", &self.kind).field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

impl ChatRobot {
    fn check(&self) -> Result<(), Invalid> {
        let signs = matches!(self.kind, ChatKind::DingTalk | ChatKind::Feishu);
        match &self.secret {
            Some(_) if !signs => {
                Err(Invalid::new("secret", "is only for the kinds dingtalk and feishu"))
            }
            Some(secret) if !(1..=CHAT_SECRET_BYTES_MAX).contains(&secret.len()) => {
                let (max, len) = (CHAT_SECRET_BYTES_MAX, secret.len());
                Err(Invalid::new("secret", format!("must have 1 to {max} bytes, has {len}")))
            }
            _ => Ok(()),
        }
    }
}

impl AlarmCondition {
    /// The time that is looked back; `None` if only the present counts.
    #[must_use]
    pub const fn window(&self) -> Option<Duration> {
        match self {
            Self::Failures { window, .. }
            | Self::FailureShare { window, .. }
            | Self::Lag { window, .. } => Some(*window),
            Self::DeadLetters { .. } | Self::Overdue { .. } | Self::NoWorkers { .. } => None,
        }
    }

    /// Whether the condition holds for a value. A value of another kind never does.
    #[must_use]
    pub fn holds(&self, value: AlarmValue) -> bool {
        match (self, value) {
            (Self::Failures { count, .. }, AlarmValue::Count(failed)) => failed >= *count,
            (
                Self::FailureShare { over_thousandths, min, .. },
                AlarmValue::Share { failed, total },
            ) => {
                let over = u128::from(failed) * 1000;
                total >= *min && over > u128::from(*over_thousandths) * u128::from(total)
            }
            (Self::DeadLetters { over }, AlarmValue::Count(letters)) => letters > *over,
            (Self::Lag { p99_over: limit, .. } | Self::Overdue { over: limit }, value) => {
                matches!(value, AlarmValue::Time(late) if late > *limit)
            }
            (Self::NoWorkers { longest, .. }, AlarmValue::Time(without)) => without >= *longest,
            _ => false,
        }
    }

    fn check(&self) -> Result<(), Invalid> {
        let window = |field: &str, window: Duration| {
            check_time(field, window, ALARM_WINDOW_MIN, ALARM_WINDOW_MAX)
        };
        let millisecond = Duration::from_millis(1);
        match self {
            Self::Failures { count, window: back } => {
                check_count("failures.count", 1, *count)?;
                window("failures.window", *back)
            }
            Self::FailureShare { over_thousandths, min, window: back } => {
                if *over_thousandths >= 1000 {
                    let problem = "must be from 0 to 0.999";
                    return Err(Invalid::new("failure_share.over", problem));
                }
                check_count("failure_share.min", 1, *min)?;
                window("failure_share.window", *back)
            }
            Self::DeadLetters { over } => check_count("dead_letters.over", 0, *over),
            Self::Lag { p99_over, window: back } => {
                check_time("lag.p99_over", *p99_over, millisecond, ALARM_WINDOW_MAX)?;
                window("lag.window", *back)
            }
            Self::Overdue { over } => check_time("overdue.over", *over, millisecond, DELAY_MAX),
            Self::NoWorkers { longest, .. } => {
                check_time("no_workers.for", *longest, ALARM_WINDOW_MIN, DELAY_MAX)
            }
        }
    }
}

fn check_count(field: &str, min: u64, count: u64) -> Result<(), Invalid> {
    if (min..=ALARM_COUNT_MAX).contains(&count) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("must be from {min} to {ALARM_COUNT_MAX}, is {count}")))
}

fn check_time(field: &str, time: Duration, min: Duration, max: Duration) -> Result<(), Invalid> {
    if (min..=max).contains(&time) {
        return Ok(());
    }
    let [min, max, time] = [min, max, time].map(format_duration);
    Err(Invalid::new(field, format!("must be from {min} to {max}, is {time}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn webhook() -> HttpTarget {
        HttpTarget::new("http://localhost:1/alarm", Method::Post, vec![]).unwrap()
    }

    fn rule(when: AlarmCondition, repeat_after: Option<Duration>) -> AlarmRule {
        AlarmRule { when, to: AlarmReceiver::Http(webhook()), repeat_after }
    }

    fn failures(count: u64) -> AlarmCondition {
        AlarmCondition::Failures { count, window: SECOND * 60 }
    }

    #[test]
    fn a_condition_holds_from_its_limit_on() {
        let share = |over_thousandths, min| AlarmCondition::FailureShare {
            over_thousandths,
            min,
            window: SECOND,
        };
        let lag = AlarmCondition::Lag { p99_over: SECOND, window: SECOND };
        let overdue = AlarmCondition::Overdue { over: SECOND * 30 };
        let queue = Queue::new("mail").unwrap();
        let no_workers = AlarmCondition::NoWorkers { queue, longest: SECOND * 60 };
        let of = |failed, total| AlarmValue::Share { failed, total };
        for (condition, value, holds) in [
            (failures(100), AlarmValue::Count(99), false),
            (failures(100), AlarmValue::Count(100), true),
            (share(100, 50), of(5, 50), false),
            (share(100, 50), of(6, 50), true),
            (share(100, 50), of(49, 49), false),
            (share(0, 1), of(1, 1_000_000), true),
            (share(999, 1), of(u64::MAX, u64::MAX), true),
            (AlarmCondition::DeadLetters { over: 0 }, AlarmValue::Count(0), false),
            (AlarmCondition::DeadLetters { over: 0 }, AlarmValue::Count(1), true),
            (lag.clone(), AlarmValue::Time(SECOND), false),
            (lag.clone(), AlarmValue::Time(SECOND * 2), true),
            (overdue.clone(), AlarmValue::Time(Duration::ZERO), false),
            (overdue, AlarmValue::Time(SECOND * 31), true),
            (no_workers.clone(), AlarmValue::Time(SECOND * 59), false),
            (no_workers, AlarmValue::Time(SECOND * 60), true),
            (lag, AlarmValue::Count(1_000_000), false),
        ] {
            assert_eq!(condition.holds(value), holds, "{condition:?} {value:?}");
        }
    }

    #[test]
    fn each_change_of_state_gives_one_notice() {
        let rule = rule(failures(10), Some(SECOND * 60));
        let mut status = AlarmStatus::new(at(0));
        let mut notices = Vec::new();
        for (second, failed, complete) in [
            (1, 9, true),
            (2, 10, true),
            (3, 500, true),
            // After a restart the window is not covered: too few are no proof that it is over.
            (4, 0, false),
            (5, 11, true),
            (61, 11, true),
            (62, 11, true),
            (100, 2, true),
            (101, 2, true),
            (130, 10, false),
        ] {
            let reading = Reading { value: AlarmValue::Count(failed), complete };
            if let Some(next) = rule.evaluate(status, reading, at(second)) {
                assert_eq!(rule.evaluate(next, reading, at(second + 1000)), None, "pending");
                notices.push((second, next.pending.unwrap(), next.notices, next.raised_for));
                status = AlarmStatus { pending: None, ..next };
            }
        }
        let want = [
            (2, Notice::Raised, 1, None),
            (62, Notice::Repeated, 2, None),
            (100, Notice::Over, 3, Some(SECOND * 98)),
            (130, Notice::Raised, 4, None),
        ];
        assert_eq!(notices, want);
        assert_eq!((status.state, status.since), (AlarmState::Raised, at(130)));
    }

    #[test]
    fn without_repeat_after_a_raised_alarm_is_reported_once() {
        let rule = rule(failures(1), None);
        let reading = Reading { value: AlarmValue::Count(1), complete: true };
        let status = rule.evaluate(AlarmStatus::new(at(0)), reading, at(1)).unwrap();
        assert_eq!(status.pending, Some(Notice::Raised));
        let sent = AlarmStatus { pending: None, ..status };
        assert_eq!(rule.evaluate(sent, reading, at(1_000_000)), None);
    }

    #[test]
    fn an_error_names_the_field_and_its_limit() {
        let robot = |kind, secret: &str| {
            let secret = Some(secret.to_owned());
            let to = AlarmReceiver::Chat(ChatRobot { kind, webhook: webhook(), secret });
            AlarmRule { to, ..rule(failures(1), None) }
        };
        let mail = AlarmReceiver::Mail(vec!["ops".to_owned()]);
        for (rule, want) in [
            (rule(failures(0), None), "when.failures.count: must be from 1 to 1000000000, is 0"),
            (
                rule(AlarmCondition::Failures { count: 1, window: SECOND * 7200 }, None),
                "when.failures.window: must be from 1s to 1h, is 2h",
            ),
            (rule(failures(1), Some(SECOND)), "repeat_after: must be from 1m to 36500d, is 1s"),
            (
                AlarmRule { to: mail, ..rule(failures(1), None) },
                "to.mail.to: \"ops\" is not a mail address like ops@example.org",
            ),
            (
                robot(ChatKind::Slack, "s"),
                "to.chat.secret: is only for the kinds dingtalk and feishu",
            ),
            (robot(ChatKind::Feishu, ""), "to.chat.secret: must have 1 to 256 bytes, has 0"),
        ] {
            assert_eq!(rule.check().unwrap_err().to_string(), want);
        }
    }
}
