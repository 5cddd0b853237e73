//! `punctual schedule --dry-run`: checks a task by the rules of `core`, which are those of the
//! broker, and shows its next fires. No broker is called and nothing is scheduled.
//!
//! What only a broker knows is not checked: whether it allows the target, whether the key is taken,
//! and the rights of the token.

use std::sync::Arc;

use anyhow::Context as _;
use punctual_core::{
    Cron, Dst, Due, Gap, Guarantee, Invalid, Labels, Misfire, Namespace, NewTask, Overlap,
    Schedule, Series, TaskKey, Timestamp, Twice, Zone, parse_duration, parse_every,
};
use serde_json::{Value, json};

use super::ScheduleArgs;
use super::payload::PayloadInput;
use crate::cli::output;
use crate::cli::time::now;

/// How many fires of a cron or every task are shown.
const FIRES_MAX: usize = 5;

impl ScheduleArgs {
    pub(super) fn run_dry(&self, payload: PayloadInput) -> anyhow::Result<()> {
        let body = serde_json::to_value(self.body(&payload)?).context("cannot encode the task")?;
        let task = self.new_task(payload)?;
        task.check()?;
        let fires = next_fires(&task.schedule, now())?;
        let answer = json!({ "dry_run": true, "task": body, "fires": fires });
        output::print(&self.broker, &answer, |answer| {
            let table = output::rows(&answer["fires"], columns(&task.schedule));
            let note = match &task.schedule {
                Schedule::Watch { .. } => "\nthe watch fires then, unless it is touched before",
                _ => "",
            };
            format!("{table}{note}\nthe task is valid; nothing was scheduled (--dry-run)")
        })
    }

    fn new_task(&self, payload: PayloadInput) -> anyhow::Result<NewTask> {
        let namespace = Namespace::new(&self.namespace)?;
        let mut task = NewTask::new(namespace, self.schedule()?, self.target.target()?);
        task.callbacks = self.target.callbacks()?;
        task.key = self.key.as_deref().map(TaskKey::new).transpose()?;
        task.payload = payload.into_payload();
        task.retry = self.retry.policy()?;
        task.labels = Labels::new(self.labels.iter().cloned().collect())?;
        task.guarantee = match self.guarantee.as_deref() {
            Some("at_most_once") => Guarantee::AtMostOnce,
            Some("exactly_once") => Guarantee::ExactlyOnce,
            _ => Guarantee::AtLeastOnce,
        };
        if let Some(timeout) = &self.timeout {
            task.timeout = duration("timeout", timeout)?;
        }
        task.expires_after = self
            .expires_after
            .as_deref()
            .map(|text| duration("expires_after", text))
            .transpose()?;
        Ok(task)
    }

    fn schedule(&self) -> anyhow::Result<Schedule> {
        let interval = match (&self.every, self.cron.as_deref().and_then(parse_every)) {
            (Some(text), _) => Some(duration("every", text)?),
            (None, Some(interval)) => Some(interval?),
            (None, None) => None,
        };
        self.check_flags(interval.is_some())?;
        if let Some(interval) = interval {
            return Ok(Schedule::Every { interval, series: self.core_series()? });
        }
        if let Some(expression) = &self.cron {
            let zone =
                self.series.timezone.as_deref().map_or_else(|| Ok(Zone::utc()), Zone::new)?;
            let cron = Arc::new(Cron::new(expression, zone, self.core_dst())?);
            return Ok(Schedule::Cron { cron, series: self.core_series()? });
        }
        if let Some(within) = &self.within {
            let postpone_max = self.watch.postpone_max.as_deref();
            return Ok(Schedule::Watch {
                within: duration("within", within)?,
                postpone_max: postpone_max
                    .map(|text| duration("postpone_max", text))
                    .transpose()?,
                on_return: self.watch.on_return,
            });
        }
        if let Some(at) = &self.at {
            return Ok(Schedule::Once(Due::At(instant("at", at)?)));
        }
        let delay = self.r#in.as_deref().unwrap_or_default();
        Ok(Schedule::Once(Due::In(duration("in", delay)?)))
    }

    /// Refuses a flag that does not apply to the chosen schedule, as the broker does.
    fn check_flags(&self, is_interval: bool) -> anyhow::Result<()> {
        let (series, watch) = (&self.series, &self.watch);
        let is_cron = self.cron.is_some() && !is_interval;
        let (is_series, is_watch) = (is_cron || is_interval, self.within.is_some());
        let flags = [
            ("timezone", series.timezone.is_some(), is_cron, "--cron"),
            ("dst-gap", series.dst_gap.is_some(), is_cron, "--cron"),
            ("dst-overlap", series.dst_overlap.is_some(), is_cron, "--cron"),
            ("starts-at", series.starts_at.is_some(), is_series, "--cron and --every"),
            ("ends-at", series.ends_at.is_some(), is_series, "--cron and --every"),
            ("count", series.count.is_some(), is_series, "--cron and --every"),
            ("misfire", series.misfire.is_some(), is_series, "--cron and --every"),
            ("overlap", series.overlap.is_some(), is_series, "--cron and --every"),
            ("jitter", series.jitter.is_some(), is_series, "--cron and --every"),
            ("postpone-max", watch.postpone_max.is_some(), is_watch, "--within"),
            ("on-return", watch.on_return, is_watch, "--within"),
        ];
        match flags.into_iter().find(|(_, given, applies, _)| *given && !applies) {
            Some((flag, _, _, with)) => anyhow::bail!("--{flag} goes with {with} only"),
            None => Ok(()),
        }
    }

    fn core_dst(&self) -> Dst {
        let gap = self.series.dst_gap.as_deref().map(|gap| match gap {
            "skip" => Gap::Skip,
            _ => Gap::After,
        });
        let overlap = self.series.dst_overlap.as_deref().map(|overlap| match overlap {
            "both" => Twice::Both,
            _ => Twice::Once,
        });
        Dst { gap, overlap }
    }

    fn core_series(&self) -> anyhow::Result<Arc<Series>> {
        let series = &self.series;
        let time = |field, text: &Option<String>| {
            text.as_deref().map(|text| instant(field, text)).transpose()
        };
        Ok(Arc::new(Series {
            starts_at: time("starts_at", &series.starts_at)?,
            ends_at: time("ends_at", &series.ends_at)?,
            count: series.count,
            misfire: match series.misfire.as_deref() {
                Some("fire_all") => Misfire::FireAll,
                Some("skip") => Misfire::Skip,
                _ => Misfire::default(),
            },
            overlap: match series.overlap.as_deref() {
                Some("skip") => Overlap::Skip,
                Some("queue_one") => Overlap::QueueOne,
                _ => Overlap::default(),
            },
            jitter: series
                .jitter
                .as_deref()
                .map_or_else(|| Ok(std::time::Duration::ZERO), |text| duration("jitter", text))?,
        }))
    }
}

fn columns(schedule: &Schedule) -> &'static [&'static str] {
    match schedule {
        Schedule::Cron { .. } => &["fire_at", "local", "note"],
        _ => &["fire_at"],
    }
}

/// The next fires of a schedule, before jitter. A schedule without any is refused.
fn next_fires(schedule: &Schedule, now: Timestamp) -> Result<Vec<Value>, Invalid> {
    let Some(first) = schedule.first_at(now) else {
        return Err(Invalid::new("schedule", "has no fire time after now"));
    };
    let count = match schedule.series() {
        Some(series) => series.count.and_then(|count| usize::try_from(count).ok()),
        None => Some(1),
    };
    let fires = std::iter::successors(Some(first), |at| schedule.next_at(*at));
    let fires = fires.take(count.unwrap_or(FIRES_MAX).min(FIRES_MAX));
    Ok(fires
        .map(|at| match schedule {
            Schedule::Cron { cron, .. } => json!({
                "fire_at": at.to_string(), "local": cron.zone().local(at), "note": cron.note(at),
            }),
            _ => json!({ "fire_at": at.to_string() }),
        })
        .collect())
}

fn duration(field: &str, text: &str) -> Result<std::time::Duration, Invalid> {
    parse_duration(text).map_err(|error| Invalid::new(field, error.to_string()))
}

/// RFC 3339 text, or milliseconds since the Unix epoch.
fn instant(field: &str, text: &str) -> Result<Timestamp, Invalid> {
    let at = match text.parse::<i64>() {
        Ok(millis) => Timestamp::try_from_millis(i128::from(millis)),
        Err(_) => Timestamp::parse_rfc3339(text),
    };
    at.map_err(|error| Invalid::new(field, error.to_string()))
}
