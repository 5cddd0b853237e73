//! The sentence of a notice, in plain English.
//!
//! It names the alarm and the namespace, and says what was measured and where the limit is. Names
//! have a limited length, so the sentence has less than 600 bytes.

use std::time::Duration;

use punctual_core::{AlarmCondition, AlarmValue, format_duration};

use super::facts::{NoticeFacts, NoticeKind};

/// Times from here on are shown in whole seconds.
const WHOLE_SECONDS_FROM: Duration = Duration::from_secs(10);

/// Says what has happened.
pub(super) fn sentence(facts: &NoticeFacts<'_>) -> String {
    let (headline, when) = (headline(facts), &facts.alarm.rule.when);
    let detail = match facts.kind {
        NoticeKind::Test => Some(format!("it is raised when {}", condition(when))),
        NoticeKind::Raised | NoticeKind::Repeated | NoticeKind::Over => facts
            .value
            .and_then(|value| measured(when, value))
            .map(|measured| format!("{measured} (limit {})", limit(when))),
    };
    match detail {
        Some(detail) => format!("{headline}: {detail}."),
        None => format!("{headline}."),
    }
}

/// The beginning of the sentence: which alarm, and why the notice is sent.
pub(super) fn headline(facts: &NoticeFacts<'_>) -> String {
    let alarm = facts.alarm;
    let name = format!("alarm \"{}\" of namespace \"{}\"", alarm.name, alarm.namespace);
    let capitalised = name.replacen('a', "A", 1);
    match facts.kind {
        NoticeKind::Raised => format!("{capitalised} is raised"),
        NoticeKind::Repeated => {
            format!("{capitalised} is still raised, since {}", alarm.status.since)
        }
        NoticeKind::Over => match alarm.status.raised_for {
            Some(time) => format!("{capitalised} is over after {}", shown(time)),
            None => format!("{capitalised} is over"),
        },
        NoticeKind::Test => format!("Test of {name}"),
    }
}

/// What was measured; `None` if the value is not of this condition, because the rule was changed.
pub(super) fn measured(when: &AlarmCondition, value: AlarmValue) -> Option<String> {
    Some(match (when, value) {
        (AlarmCondition::Failures { window, .. }, AlarmValue::Count(failed)) => {
            format!("{} failed within {}", count(failed, "attempt"), shown(*window))
        }
        (AlarmCondition::FailureShare { window, .. }, AlarmValue::Share { failed, total }) => {
            let (attempts, window) = (count(total, "attempt"), shown(*window));
            format!("{failed} of {attempts} failed within {window}{}", share(failed, total))
        }
        (AlarmCondition::DeadLetters { .. }, AlarmValue::Count(letters)) => {
            let verb = if letters == 1 { "is" } else { "are" };
            format!("there {verb} {}", count(letters, "dead letter"))
        }
        (AlarmCondition::Lag { window, .. }, AlarmValue::Time(lag)) => {
            format!("the p99 of the lag within {} is {}", shown(*window), shown(lag))
        }
        (AlarmCondition::Overdue { .. }, AlarmValue::Time(Duration::ZERO)) => {
            "no task is overdue".to_owned()
        }
        (AlarmCondition::Overdue { .. }, AlarmValue::Time(late)) => {
            format!("the oldest task that is due and was not sent is {} late", shown(late))
        }
        (AlarmCondition::NoWorkers { queue, .. }, AlarmValue::Time(Duration::ZERO)) => {
            format!("queue \"{queue}\" has a worker")
        }
        (AlarmCondition::NoWorkers { queue, .. }, AlarmValue::Time(without)) => {
            format!("queue \"{queue}\" has had no worker for {}", shown(without))
        }
        _ => return None,
    })
}

/// The limit of a condition.
pub(super) fn limit(when: &AlarmCondition) -> String {
    match when {
        AlarmCondition::Failures { count, .. } => count.to_string(),
        AlarmCondition::FailureShare { over_thousandths, .. } => percent(*over_thousandths),
        AlarmCondition::DeadLetters { over } => over.to_string(),
        AlarmCondition::Lag { p99_over: limit, .. }
        | AlarmCondition::Overdue { over: limit }
        | AlarmCondition::NoWorkers { longest: limit, .. } => format_duration(*limit),
    }
}

/// The condition, after "it is raised when".
fn condition(when: &AlarmCondition) -> String {
    let limit = limit(when);
    match when {
        AlarmCondition::Failures { count: attempts, window } => {
            format!("{} failed within {}", count(*attempts, "attempt"), shown(*window))
        }
        AlarmCondition::FailureShare { min, window, .. } => {
            let (attempts, window) = (count(*min, "attempt"), shown(*window));
            format!("more than {limit} of at least {attempts} failed within {window}")
        }
        AlarmCondition::DeadLetters { over } => {
            let letters = if *over == 1 { "dead letter" } else { "dead letters" };
            format!("there are more than {limit} {letters}")
        }
        AlarmCondition::Lag { window, .. } => {
            format!("the p99 of the lag within {} is more than {limit}", shown(*window))
        }
        AlarmCondition::Overdue { .. } => {
            format!("a task that is due was not sent for more than {limit}")
        }
        AlarmCondition::NoWorkers { queue, .. } => {
            format!("queue \"{queue}\" has had no worker for {limit}")
        }
    }
}

fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The share as `, 12.5 %`, rounded down; empty without attempts.
fn share(failed: u64, total: u64) -> String {
    let share = (u128::from(failed) * 1000).checked_div(u128::from(total));
    match share.and_then(|thousandths| u16::try_from(thousandths).ok()) {
        Some(0) if failed > 0 => ", less than 0.1 %".to_owned(),
        Some(thousandths) => format!(", {}", percent(thousandths)),
        None => String::new(),
    }
}

/// Thousandths as per cent, with one decimal if there is one.
fn percent(thousandths: u16) -> String {
    match (thousandths / 10, thousandths % 10) {
        (whole, 0) => format!("{whole} %"),
        (whole, tenth) => format!("{whole}.{tenth} %"),
    }
}

fn shown(time: Duration) -> String {
    let is_long = time >= WHOLE_SECONDS_FROM;
    format_duration(if is_long { Duration::from_secs(time.as_secs()) } else { time })
}

#[cfg(test)]
mod tests {
    use punctual_core::{AlarmReceiver, Queue};

    use super::super::facts::fixtures::{NOW, alarm, failures};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn text(when: &AlarmCondition, kind: NoticeKind, value: Option<AlarmValue>) -> String {
        let to = AlarmReceiver::Mail(vec!["ops@example.org".to_owned()]);
        let alarm = alarm(when.clone(), to);
        sentence(&NoticeFacts { alarm: &alarm, kind, value, now: NOW })
    }

    #[test]
    fn each_kind_of_notice_is_a_sentence() {
        for (kind, want) in [
            (
                NoticeKind::Raised,
                "Alarm \"errors\" of namespace \"shop\" is raised: \
                 120 attempts failed within 1m (limit 100).",
            ),
            (
                NoticeKind::Repeated,
                "Alarm \"errors\" of namespace \"shop\" is still raised, since \
                 2026-11-18T10:54:40.000Z: 120 attempts failed within 1m (limit 100).",
            ),
            (
                NoticeKind::Over,
                "Alarm \"errors\" of namespace \"shop\" is over after 12m: \
                 120 attempts failed within 1m (limit 100).",
            ),
            (
                NoticeKind::Test,
                "Test of alarm \"errors\" of namespace \"shop\": \
                 it is raised when 100 attempts failed within 1m.",
            ),
        ] {
            assert_eq!(text(&failures(), kind, Some(AlarmValue::Count(120))), want);
        }
    }

    #[test]
    fn each_condition_says_what_was_measured_and_when_it_is_raised() {
        let share =
            AlarmCondition::FailureShare { over_thousandths: 125, min: 50, window: SECOND * 300 };
        let letters = AlarmCondition::DeadLetters { over: 1 };
        let lag = AlarmCondition::Lag { p99_over: SECOND / 2, window: SECOND * 90 };
        let overdue = AlarmCondition::Overdue { over: SECOND * 30 };
        let queue = Queue::new("mail").unwrap();
        let no_workers = AlarmCondition::NoWorkers { queue, longest: SECOND * 60 };
        let of = |failed, total| AlarmValue::Share { failed, total };
        let (count, time) = (AlarmValue::Count, AlarmValue::Time);
        let millis = Duration::from_millis;
        for (when, value, said, raised) in [
            (
                &AlarmCondition::Failures { count: 1, window: SECOND },
                count(1),
                "1 attempt failed within 1s (limit 1)",
                "1 attempt failed within 1s",
            ),
            (
                &share,
                of(30, 200),
                "30 of 200 attempts failed within 5m, 15 % (limit 12.5 %)",
                "more than 12.5 % of at least 50 attempts failed within 5m",
            ),
            (&share, of(1, 3), "1 of 3 attempts failed within 5m, 33.3 % (limit 12.5 %)", ""),
            (&share, of(1, 1), "1 of 1 attempt failed within 5m, 100 % (limit 12.5 %)", ""),
            (&share, of(0, 9), "0 of 9 attempts failed within 5m, 0 % (limit 12.5 %)", ""),
            (&share, of(0, 0), "0 of 0 attempts failed within 5m (limit 12.5 %)", ""),
            (
                &share,
                of(1, 1_000_000),
                "1 of 1000000 attempts failed within 5m, less than 0.1 % (limit 12.5 %)",
                "",
            ),
            (
                &letters,
                count(12),
                "there are 12 dead letters (limit 1)",
                "there are more than 1 dead letter",
            ),
            (&letters, count(1), "there is 1 dead letter (limit 1)", ""),
            (
                &lag,
                time(millis(1234)),
                "the p99 of the lag within 1m30s is 1s234ms (limit 500ms)",
                "the p99 of the lag within 1m30s is more than 500ms",
            ),
            (&lag, time(millis(0)), "the p99 of the lag within 1m30s is 0s (limit 500ms)", ""),
            (
                &overdue,
                time(millis(45_678)),
                "the oldest task that is due and was not sent is 45s late (limit 30s)",
                "a task that is due was not sent for more than 30s",
            ),
            (&overdue, time(millis(0)), "no task is overdue (limit 30s)", ""),
            (
                &no_workers,
                time(millis(61_001)),
                "queue \"mail\" has had no worker for 1m1s (limit 1m)",
                "queue \"mail\" has had no worker for 1m",
            ),
            (&no_workers, time(millis(0)), "queue \"mail\" has a worker (limit 1m)", ""),
        ] {
            let alarm = "alarm \"errors\" of namespace \"shop\"";
            let want = format!("Alarm {} is raised: {said}.", &alarm[6..]);
            assert_eq!(text(when, NoticeKind::Raised, Some(value)), want);
            if !raised.is_empty() {
                let want = format!("Test of {alarm}: it is raised when {raised}.");
                assert_eq!(text(when, NoticeKind::Test, None), want);
            }
        }
    }

    #[test]
    fn a_value_that_does_not_belong_to_the_condition_is_left_out() {
        let want = "Alarm \"errors\" of namespace \"shop\" is raised.";
        for value in [None, Some(AlarmValue::Time(SECOND))] {
            assert_eq!(text(&failures(), NoticeKind::Raised, value), want);
        }
    }
}
