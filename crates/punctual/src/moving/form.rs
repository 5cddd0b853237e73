//! The form of a moving file: one JSON document a line, in words that a person can read and a newer version still understands.
//!
//! In: tasks, letters and records. Out: [`Line`]s, and back; what is read is untrusted, and checked like a caller's.
//! Invariant: what is written reads back the same, whatever is in it.
//! Not here: the file as a whole (`file`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use punctual_core::{
    AttemptRecord, Backoff, Cron, DeadLetter, DeadReason, Dst, Due, FireEnd, FireRecord, Gap,
    Guarantee, HttpTarget, Jitter, Labels, Method, Misfire, Namespace, NewTask, Occasion, Outcome,
    Overlap, OverlappingFire, Payload, Queue, Reason, RetryPolicy, Schedule, Series, SkipReason,
    Skipped, Target, Task, TaskKey, TaskState, Timestamp, Twice, Version, Zone, format_duration,
    parse_duration,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What one line is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// First, and once.
    Header(Header),
    /// A living task.
    Task(Box<TaskForm>),
    /// A dead letter.
    Dead(Box<DeadForm>),
    /// How a fire ended.
    Fire(Box<FireForm>),
    /// Last, and once.
    End(End),
}

/// What a file is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    /// Of the file.
    pub(super) format: u32,
    /// Of the program that wrote it, for people.
    pub(super) version: String,
    /// What it was taken from, for people.
    pub(super) from: String,
    pub(super) exported_at: At,
    pub(super) partitions: u16,
    /// The largest epoch of any partition when it was begun.
    pub(super) epoch_max: u32,
}

/// What there was, so that a file that was cut is noticed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    pub(super) tasks: u64,
    pub(super) dead: u64,
    pub(super) fires: u64,
    /// XXH3 (64 bits) of all bytes before this line, in hex.
    pub(super) checksum: String,
}

/// An instant, as RFC 3339 text with milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At(pub(super) Timestamp);

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for At {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Timestamp::parse_rfc3339(&text).map(Self).map_err(de::Error::custom)
    }
}

/// A duration, as `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(Duration);

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(de::Error::custom)
    }
}

/// Words for the values of an enum of `core`.
macro_rules! words {
    ($name:ident of $of:ident: $($value:ident),+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(clippy::enum_variant_names, reason = "the names are those of the core")]
        pub(super) enum $name { $($value),+ }

        impl From<$of> for $name {
            fn from(value: $of) -> Self {
                match value { $($of::$value => Self::$value),+ }
            }
        }

        impl From<$name> for $of {
            fn from(word: $name) -> Self {
                match word { $($name::$value => Self::$value),+ }
            }
        }
    };
}

words!(StateWord of TaskState: Scheduled, Firing, Paused, Done, Dead, Cancelled);
words!(GuaranteeWord of Guarantee: AtMostOnce, AtLeastOnce, ExactlyOnce);
words!(OccasionWord of Occasion: Due, Manual, Return);
words!(DeadWord of DeadReason: Exhausted, Refused, Expired, Unknown);
words!(SkipWord of SkipReason: Misfire, Overlap, Paused);
words!(MisfireWord of Misfire: FireOnce, FireAll, Skip);
words!(OverlapWord of Overlap: Allow, Skip, QueueOne);
words!(GapWord of Gap: After, Skip);
words!(TwiceWord of Twice: Once, Both);

/// A task as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskForm {
    pub(super) id: String,
    pub(super) namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    state: StateWord,
    created_at: At,
    fire_at: At,
    nominal_at: At,
    version: u64,
    schedule: ScheduleForm,
    target: TargetForm,
    payload: PayloadForm,
    guarantee: GuaranteeWord,
    retry: RetryForm,
    timeout: Span,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_after: Option<Span>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attempts: Vec<AttemptForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resumes_at: Option<At>,
    occasion: OccasionWord,
    fires: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given_at: Option<At>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    armed_at: Option<At>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    overlapping: Vec<OverlappingForm>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ScheduleForm {
    At(At),
    In(Span),
    Every {
        interval: Span,
        series: SeriesForm,
    },
    Cron {
        expression: String,
        timezone: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dst_gap: Option<GapWord>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dst_overlap: Option<TwiceWord>,
        series: SeriesForm,
    },
    Watch {
        within: Span,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        postpone_max: Option<Span>,
        on_return: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    starts_at: Option<At>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ends_at: Option<At>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    misfire: MisfireWord,
    overlap: OverlapWord,
    jitter: Span,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum TargetForm {
    Queue(String),
    Http { url: String, method: String, headers: Vec<(String, String)> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum PayloadForm {
    Empty,
    Json { base64: String },
    Binary { base64: String, content_type: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryForm {
    attempts_max: u16,
    backoff: BackoffForm,
    jitter_thousandths: u16,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum BackoffForm {
    Fixed(Span),
    Exponential { first: Span, factor_thousandths: u32, max: Span },
    List(Vec<Span>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttemptForm {
    fired_at: At,
    ended_at: At,
    outcome: OutcomeForm,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum OutcomeForm {
    Acked,
    Failed {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_in: Option<Span>,
    },
    Refused {
        reason: String,
    },
    Expired,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverlappingForm {
    nominal_at: At,
    fire_at: At,
    occasion: OccasionWord,
    attempts: Vec<AttemptForm>,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadForm {
    died_at: At,
    reason: DeadWord,
    task: TaskForm,
}

/// How a fire ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FireForm {
    fire_id: String,
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    due_at: At,
    ended_at: At,
    end: EndForm,
    attempts: Vec<AttemptForm>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum EndForm {
    Done,
    Dead(DeadWord),
    Cancelled,
    Replaced,
    Skipped { fires: u32, until: At, why: SkipWord },
}

pub(super) fn task_form(task: &Task) -> TaskForm {
    let definition = &*task.definition;
    TaskForm {
        id: task.id.to_string(),
        namespace: definition.namespace.as_str().to_owned(),
        key: definition.key.as_ref().map(|key| key.as_str().to_owned()),
        state: task.state.into(),
        created_at: At(task.created_at),
        fire_at: At(task.fire_at),
        nominal_at: At(task.nominal_at),
        version: task.version.get(),
        schedule: schedule_form(&definition.schedule),
        target: match &definition.target {
            Target::Queue(queue) => TargetForm::Queue(queue.as_str().to_owned()),
            Target::Http(http) => TargetForm::Http {
                url: http.url().to_owned(),
                method: http.method().as_str().to_owned(),
                headers: http.headers().to_vec(),
            },
        },
        payload: match &definition.payload {
            Payload::Empty => PayloadForm::Empty,
            Payload::Json(bytes) => PayloadForm::Json { base64: STANDARD.encode(bytes) },
            Payload::Binary { bytes, content_type } => PayloadForm::Binary {
                base64: STANDARD.encode(bytes),
                content_type: content_type.to_string(),
            },
        },
        guarantee: definition.guarantee.into(),
        retry: retry_form(&definition.retry),
        timeout: Span(definition.timeout),
        expires_after: definition.expires_after.map(Span),
        labels: definition
            .labels
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        attempts: attempt_forms(&task.attempts),
        resumes_at: task.resumes_at.map(At),
        occasion: task.occasion.into(),
        fires: task.fires,
        given_at: task.given_at.map(At),
        armed_at: task.armed_at.map(At),
        overlapping: task
            .overlapping
            .iter()
            .map(|overlapping| OverlappingForm {
                nominal_at: At(overlapping.nominal_at),
                fire_at: At(overlapping.fire_at),
                occasion: overlapping.occasion.into(),
                attempts: attempt_forms(&overlapping.attempts),
            })
            .collect(),
    }
}

pub(super) fn task_of(form: TaskForm) -> anyhow::Result<Task> {
    let definition = NewTask {
        namespace: Namespace::from_stored(&form.namespace)?,
        key: form.key.as_deref().map(TaskKey::new).transpose()?,
        schedule: schedule_of(form.schedule)?,
        target: match form.target {
            TargetForm::Queue(queue) => Target::Queue(Queue::new(&queue)?),
            TargetForm::Http { url, method, headers } => {
                Target::Http(HttpTarget::new(&url, Method::parse(&method)?, headers)?)
            }
        },
        payload: match form.payload {
            PayloadForm::Empty => Payload::Empty,
            PayloadForm::Json { base64 } => Payload::Json(bytes_of(&base64)?),
            PayloadForm::Binary { base64, content_type } => {
                Payload::Binary { bytes: bytes_of(&base64)?, content_type: content_type.into() }
            }
        },
        guarantee: form.guarantee.into(),
        retry: retry_of(form.retry)?,
        timeout: form.timeout.0,
        expires_after: form.expires_after.map(|span| span.0),
        labels: Labels::new(form.labels)?,
    };
    definition.check()?;
    let id = form.id.parse().map_err(|error| anyhow!("id: {error}"))?;
    let version = Version::new(form.version);
    Ok(Task {
        state: form.state.into(),
        fire_at: form.fire_at.0,
        nominal_at: form.nominal_at.0,
        attempts: attempts_of(form.attempts),
        resumes_at: form.resumes_at.map(|at| at.0),
        occasion: form.occasion.into(),
        fires: form.fires,
        given_at: form.given_at.map(|at| at.0),
        armed_at: form.armed_at.map(|at| at.0),
        overlapping: form
            .overlapping
            .into_iter()
            .map(|overlapping| OverlappingFire {
                nominal_at: overlapping.nominal_at.0,
                fire_at: overlapping.fire_at.0,
                occasion: overlapping.occasion.into(),
                attempts: attempts_of(overlapping.attempts),
            })
            .collect(),
        ..Task::new(id, Arc::new(definition), form.created_at.0, version)
    })
}

pub(super) fn dead_form(letter: &DeadLetter) -> DeadForm {
    DeadForm {
        died_at: At(letter.died_at),
        reason: letter.reason.into(),
        task: task_form(&letter.task),
    }
}

pub(super) fn letter_of(form: DeadForm) -> anyhow::Result<DeadLetter> {
    Ok(DeadLetter {
        died_at: form.died_at.0,
        reason: form.reason.into(),
        task: task_of(form.task)?,
    })
}

pub(super) fn fire_form(record: &FireRecord) -> FireForm {
    FireForm {
        fire_id: record.fire_id.to_string(),
        namespace: record.namespace.as_str().to_owned(),
        key: record.key.as_ref().map(|key| key.as_str().to_owned()),
        due_at: At(record.due_at),
        ended_at: At(record.ended_at),
        end: match record.end {
            FireEnd::Done => EndForm::Done,
            FireEnd::Dead(reason) => EndForm::Dead(reason.into()),
            FireEnd::Cancelled => EndForm::Cancelled,
            FireEnd::Replaced => EndForm::Replaced,
            FireEnd::Skipped(Skipped { fires, until, why }) => {
                EndForm::Skipped { fires, until: At(until), why: why.into() }
            }
        },
        attempts: attempt_forms(&record.attempts),
    }
}

pub(super) fn record_of(form: FireForm) -> anyhow::Result<FireRecord> {
    Ok(FireRecord {
        fire_id: form.fire_id.parse().map_err(|error| anyhow!("fire_id: {error}"))?,
        namespace: Namespace::from_stored(&form.namespace)?,
        key: form.key.as_deref().map(TaskKey::new).transpose()?,
        due_at: form.due_at.0,
        ended_at: form.ended_at.0,
        end: match form.end {
            EndForm::Done => FireEnd::Done,
            EndForm::Dead(reason) => FireEnd::Dead(reason.into()),
            EndForm::Cancelled => FireEnd::Cancelled,
            EndForm::Replaced => FireEnd::Replaced,
            EndForm::Skipped { fires, until, why } => {
                FireEnd::Skipped(Skipped { fires, until: until.0, why: why.into() })
            }
        },
        attempts: attempts_of(form.attempts),
    })
}

fn schedule_form(schedule: &Schedule) -> ScheduleForm {
    match schedule {
        Schedule::Once(Due::At(at)) => ScheduleForm::At(At(*at)),
        Schedule::Once(Due::In(delay)) => ScheduleForm::In(Span(*delay)),
        Schedule::Every { interval, series } => {
            ScheduleForm::Every { interval: Span(*interval), series: series_form(series) }
        }
        Schedule::Cron { cron, series } => ScheduleForm::Cron {
            expression: cron.expression().to_owned(),
            timezone: cron.zone().name().to_owned(),
            dst_gap: cron.dst().gap.map(GapWord::from),
            dst_overlap: cron.dst().overlap.map(TwiceWord::from),
            series: series_form(series),
        },
        Schedule::Watch { within, postpone_max, on_return } => ScheduleForm::Watch {
            within: Span(*within),
            postpone_max: postpone_max.map(Span),
            on_return: *on_return,
        },
    }
}

fn schedule_of(form: ScheduleForm) -> anyhow::Result<Schedule> {
    Ok(match form {
        ScheduleForm::At(at) => Schedule::Once(Due::At(at.0)),
        ScheduleForm::In(delay) => Schedule::Once(Due::In(delay.0)),
        ScheduleForm::Every { interval, series } => {
            Schedule::Every { interval: interval.0, series: series_of(series) }
        }
        ScheduleForm::Cron { expression, timezone, dst_gap, dst_overlap, series } => {
            let dst = Dst { gap: dst_gap.map(Gap::from), overlap: dst_overlap.map(Twice::from) };
            let cron = Cron::new(&expression, Zone::new(&timezone)?, dst)?;
            Schedule::Cron { cron: Arc::new(cron), series: series_of(series) }
        }
        ScheduleForm::Watch { within, postpone_max, on_return } => Schedule::Watch {
            within: within.0,
            postpone_max: postpone_max.map(|span| span.0),
            on_return,
        },
    })
}

fn series_form(series: &Series) -> SeriesForm {
    SeriesForm {
        starts_at: series.starts_at.map(At),
        ends_at: series.ends_at.map(At),
        count: series.count,
        misfire: series.misfire.into(),
        overlap: series.overlap.into(),
        jitter: Span(series.jitter),
    }
}

fn series_of(form: SeriesForm) -> Arc<Series> {
    Arc::new(Series {
        starts_at: form.starts_at.map(|at| at.0),
        ends_at: form.ends_at.map(|at| at.0),
        count: form.count,
        misfire: form.misfire.into(),
        overlap: form.overlap.into(),
        jitter: form.jitter.0,
    })
}

fn retry_form(retry: &RetryPolicy) -> RetryForm {
    RetryForm {
        attempts_max: retry.attempts_max,
        backoff: match &retry.backoff {
            Backoff::Fixed(pause) => BackoffForm::Fixed(Span(*pause)),
            Backoff::Exponential { first, factor_thousandths, max } => BackoffForm::Exponential {
                first: Span(*first),
                factor_thousandths: *factor_thousandths,
                max: Span(*max),
            },
            Backoff::List(pauses) => BackoffForm::List(pauses.iter().copied().map(Span).collect()),
        },
        jitter_thousandths: retry.jitter.thousandths(),
    }
}

fn retry_of(form: RetryForm) -> anyhow::Result<RetryPolicy> {
    Ok(RetryPolicy {
        attempts_max: form.attempts_max,
        backoff: match form.backoff {
            BackoffForm::Fixed(pause) => Backoff::Fixed(pause.0),
            BackoffForm::Exponential { first, factor_thousandths, max } => {
                Backoff::Exponential { first: first.0, factor_thousandths, max: max.0 }
            }
            BackoffForm::List(pauses) => {
                Backoff::List(pauses.into_iter().map(|pause| pause.0).collect())
            }
        },
        jitter: Jitter::from_thousandths(form.jitter_thousandths)?,
    })
}

fn attempt_forms(attempts: &[AttemptRecord]) -> Vec<AttemptForm> {
    let form = |attempt: &AttemptRecord| AttemptForm {
        fired_at: At(attempt.fired_at),
        ended_at: At(attempt.ended_at),
        outcome: match &attempt.outcome {
            Outcome::Acked => OutcomeForm::Acked,
            Outcome::Failed { reason, retry_in } => OutcomeForm::Failed {
                reason: reason.as_str().to_owned(),
                retry_in: retry_in.map(Span),
            },
            Outcome::Refused { reason } => {
                OutcomeForm::Refused { reason: reason.as_str().to_owned() }
            }
            Outcome::Expired => OutcomeForm::Expired,
        },
    };
    attempts.iter().map(form).collect()
}

fn attempts_of(forms: Vec<AttemptForm>) -> Vec<AttemptRecord> {
    let attempt = |form: AttemptForm| AttemptRecord {
        fired_at: form.fired_at.0,
        ended_at: form.ended_at.0,
        outcome: match form.outcome {
            OutcomeForm::Acked => Outcome::Acked,
            OutcomeForm::Failed { reason, retry_in } => Outcome::Failed {
                reason: Reason::new(&reason),
                retry_in: retry_in.map(|span| span.0),
            },
            OutcomeForm::Refused { reason } => Outcome::Refused { reason: Reason::new(&reason) },
            OutcomeForm::Expired => Outcome::Expired,
        },
    };
    forms.into_iter().map(attempt).collect()
}

fn bytes_of(base64: &str) -> anyhow::Result<Bytes> {
    Ok(STANDARD.decode(base64).context("payload: must be base64")?.into())
}

#[cfg(test)]
mod tests {
    use punctual_store::conformance::fixtures::{
        NOW, at, attempts, epoch, id, letter, partition, rich_task, task,
    };

    use super::*;

    fn there_and_back(line: &Line) -> Line {
        let text = serde_json::to_string(line).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn tasks() -> Vec<Task> {
        let id = |number| id(at(number), partition(3), epoch(2), number);
        let series = Arc::new(Series {
            starts_at: Some(at(1)),
            ends_at: Some(at(9_999_999)),
            count: Some(7),
            misfire: Misfire::FireAll,
            overlap: Overlap::QueueOne,
            jitter: Duration::from_millis(1_001),
        });
        let dst = Dst { gap: Some(Gap::Skip), overlap: Some(Twice::Both) };
        let zone = Zone::new("Europe/Berlin").unwrap();
        let cron = Arc::new(Cron::new("0 9 * * MON-FRI", zone, dst).unwrap());
        let plain = task(id(1)).schedule(Schedule::Once(Due::In(Duration::from_millis(5)))).build();
        let json = Payload::Json(br#"{"a": [1, "\u00e4"]}"#.as_slice().into());
        let cron = task(id(2))
            .key("a b/c")
            .payload(json)
            .schedule(Schedule::Cron { cron, series: Arc::clone(&series) })
            .build();
        let watch = Schedule::Watch {
            within: Duration::from_secs(48 * 3600),
            postpone_max: Some(Duration::from_secs(99 * 86_400)),
            on_return: true,
        };
        let watch = task(id(3)).key("w").schedule(watch).build();
        let interval = Duration::from_secs(60);
        let every = task(id(4)).schedule(Schedule::Every { interval, series }).paused().build();
        let overlapping = OverlappingFire {
            nominal_at: at(3),
            fire_at: at(4),
            attempts: attempts(),
            occasion: Occasion::Return,
        };
        vec![
            plain,
            Task { fires: 9, given_at: Some(at(5)), overlapping: vec![overlapping], ..cron },
            Task {
                state: TaskState::Done,
                fire_at: Timestamp::MAX,
                armed_at: Some(at(8)),
                occasion: Occasion::Manual,
                ..watch
            },
            every,
            rich_task(id(5)),
        ]
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        for task in tasks() {
            let line = Line::Task(Box::new(task_form(&task)));
            let Line::Task(form) = there_and_back(&line) else { panic!("another line") };
            assert_eq!(task_of(*form).unwrap(), task);
            let letter = letter(&task, NOW);
            let Line::Dead(form) = there_and_back(&Line::Dead(Box::new(dead_form(&letter)))) else {
                panic!("another line")
            };
            assert_eq!(letter_of(*form).unwrap(), letter);
            let skipped = Skipped { fires: 3, until: at(99), why: SkipReason::Overlap };
            for end in [
                FireEnd::Done,
                FireEnd::Dead(DeadReason::Unknown),
                FireEnd::Cancelled,
                FireEnd::Replaced,
                FireEnd::Skipped(skipped),
            ] {
                let record = FireRecord::of(&task, end, at(11));
                let line = Line::Fire(Box::new(fire_form(&record)));
                let Line::Fire(form) = there_and_back(&line) else { panic!("another line") };
                assert_eq!(record_of(*form).unwrap(), record);
            }
        }
    }

    #[test]
    fn what_no_broker_would_take_is_refused() {
        let good = serde_json::to_value(task_form(&tasks()[1])).unwrap();
        for (field, value) in [
            ("id", "x".into()),
            ("namespace", "sh op".into()),
            ("timeout", "0s".into()),
            ("fire_at", "soon".into()),
            ("state", "asleep".into()),
            ("payload", serde_json::json!({"json": {"base64": "?"}})),
            ("unheard_of", 1.into()),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let read = serde_json::from_value::<TaskForm>(bad).map_err(anyhow::Error::from);
            assert!(read.and_then(task_of).is_err(), "{field}");
        }
    }
}
