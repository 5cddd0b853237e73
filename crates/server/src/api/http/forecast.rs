//! The forecast: how many fires are expected when.
//!
//! In: how far ahead, and in what steps. Out: a number per step: the fires that stand in the store by their `fire_at`, and those that
//! follow from cron and every by their nominal times. A policy may leave some of them out; fires that were missed count as one.
//! Bound: [`LOOKED_AT_MAX`] tasks are looked at, shared by all partitions, and [`WALKS_MAX`] times of cron expressions; beyond, the
//! answer says that it is not complete and up to where it is.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use punctual_core::{
    Clock as _, Invalid, MISFIRE_AFTER, PartitionId, Schedule, Task, TaskState, Timestamp,
    format_duration,
};
use punctual_store::{Filter, Position, StoreError, TaskStore as _};
use serde::Serialize;
use tokio::task::JoinSet;
use utoipa::ToSchema;

use super::answer::{self, Answer};
use super::error::Problem;
use super::request::{Asked, In};
use super::task::duration;
use crate::broker::Broker;
use crate::store::Store;

/// Tasks looked at for one answer: about a second.
const LOOKED_AT_MAX: usize = 100_000;
/// Times of cron expressions that are walked through for one answer: about a second, on a thread of their own.
const WALKS_MAX: usize = 1_000_000;
/// Tasks read at once.
const PAGE: usize = 1000;
/// Partitions read at once.
const READS_MAX: usize = 8;
/// Steps of one answer.
const STEPS_MAX: u128 = 1000;
/// How far ahead.
const AHEAD_MAX: Duration = Duration::from_secs(366 * 86_400);
const AHEAD_DEFAULT: Duration = Duration::from_secs(86_400);
const STEP_DEFAULT: Duration = Duration::from_secs(3600);
const STEP_MIN: Duration = Duration::from_secs(1);

/// Fires expected.
#[derive(Debug, Serialize, ToSchema)]
struct Forecast {
    from: String,
    step: String,
    /// Whether everything was looked at.
    complete: bool,
    /// If not: up to when.
    #[serde(skip_serializing_if = "Option::is_none")]
    complete_until: Option<String>,
    /// What is overdue is in the first.
    steps: Vec<Step>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Step {
    from: String,
    fires: u64,
}

/// Fires expected per step. What is overdue counts in the first.
#[utoipa::path(
    get, path = "/v1/{namespace}/forecast", tag = "statistics",
    params(
        ("for" = Option<String>, Query, description = "how far ahead; 24h unless given, at most 366d"),
        ("step" = Option<String>, Query, description = "1h unless given, at least 1s; at most 1000 steps"),
    ),
    responses((status = 200, description = "a number per step", body = Forecast))
)]
pub(crate) async fn forecast(
    State(broker): State<Arc<Broker>>,
    In(namespace): In,
    mut asked: Asked,
) -> Answer {
    let ahead = length(&mut asked, "for", AHEAD_DEFAULT, AHEAD_MAX)?;
    let step = length(&mut asked, "step", STEP_DEFAULT, AHEAD_MAX)?;
    asked.end()?;
    if ahead.as_millis().div_ceil(step.as_millis()) > STEPS_MAX {
        let problem = format!("must be long enough for at most {STEPS_MAX} steps");
        return Err(Invalid::new("step", problem).into());
    }
    let from = broker.clock.now();
    let mut filter = Filter::all(namespace);
    filter.state = Some(TaskState::Scheduled);
    filter.to = from.after(ahead);
    let found = find_all(&broker, &filter, from).await?;
    let counting = move || {
        let mut counted = Counted::new(from, filter.to, step);
        counted.count(found);
        counted
    };
    // A million steps of a calendar take a while, and others want the thread.
    let counted = tokio::task::spawn_blocking(counting).await;
    let counted = counted.map_err(|error| StoreError::Unavailable(error.into()))?;
    let steps = counted.fires.iter().zip(0u32..).map(|(fires, number)| Step {
        from: from.after(step.saturating_mul(number)).to_string(),
        fires: *fires,
    });
    answer::ok(&Forecast {
        from: from.to_string(),
        step: format_duration(step),
        complete: counted.until.is_none(),
        complete_until: counted.until.map(|until| until.max(from).to_string()),
        steps: steps.collect(),
    })
}

fn length(
    asked: &mut Asked,
    name: &str,
    default: Duration,
    max: Duration,
) -> Result<Duration, Problem> {
    let Some(text) = asked.take(name)? else {
        return Ok(default);
    };
    let length = duration(name, &text)?;
    if (STEP_MIN..=max).contains(&length) {
        return Ok(length);
    }
    let problem = format!("must be from {} to {}", format_duration(STEP_MIN), format_duration(max));
    Err(Invalid::new(name, problem).into())
}

/// Everything that is to be counted.
#[derive(Default)]
struct Found {
    /// Fires that stand in the store: present ones, and those beside them.
    times: Vec<Timestamp>,
    /// What follows them.
    courses: Vec<Course>,
    /// Up to when that is all, if there are more.
    until: Option<Timestamp>,
}

/// The fires of a series that are not given out yet.
struct Course {
    schedule: Schedule,
    first: Timestamp,
    /// How many, by its count.
    left: u32,
}

/// Reads what is due, of all partitions.
async fn find_all(broker: &Broker, filter: &Filter, from: Timestamp) -> Result<Found, Problem> {
    let partitions = broker.owners.partitions();
    let share = (LOOKED_AT_MAX / usize::from(partitions.count())).max(1);
    let mut all = Found::default();
    let mut waiting = partitions.iter();
    let mut reads = JoinSet::new();
    loop {
        while reads.len() < READS_MAX
            && let Some(partition) = waiting.next()
        {
            let (store, filter) = (Arc::clone(&broker.store), filter.clone());
            reads.spawn(async move { find(&store, partition, &filter, share, from).await });
        }
        let Some(read) = reads.join_next().await else {
            return Ok(all);
        };
        let found = read.map_err(|error| StoreError::Unavailable(error.into()))??;
        all.times.extend(found.times);
        all.courses.extend(found.courses);
        all.until = [all.until, found.until].into_iter().flatten().min();
    }
}

/// Reads what is due in a partition, of at most `share` tasks.
async fn find(
    store: &Store,
    partition: PartitionId,
    filter: &Filter,
    share: usize,
    from: Timestamp,
) -> Result<Found, StoreError> {
    let mut found = Found::default();
    let mut after = Position::START;
    let mut looked_at = 0;
    loop {
        let limit = PAGE.min(share - looked_at);
        let page = store.list(partition, filter, after, limit).await?;
        looked_at += page.items.len();
        for task in &page.items {
            found.add(task, from);
        }
        match page.next {
            None => return Ok(found),
            Some(next) if looked_at >= share => {
                found.until = Some(next.fire_at);
                return Ok(found);
            }
            Some(next) => after = next,
        }
    }
}

impl Found {
    fn add(&mut self, task: &Task, from: Timestamp) {
        self.times.push(task.fire_at);
        self.times.extend(task.overlapping.iter().map(|overlapping| overlapping.fire_at));
        self.times.extend(task.resumes_at);
        let schedule = &task.definition.schedule;
        let Some(series) = schedule.series() else {
            return;
        };
        let given = [task.given_at, task.resumes_at].into_iter().flatten().max();
        let mut latest = given.unwrap_or(task.nominal_at);
        if from.since(task.fire_at) > MISFIRE_AFTER {
            // Those that were missed with the present one count as one.
            latest = schedule.last_until(latest, from.max(latest), 1).pop().unwrap_or(latest);
        }
        let left = series.count.map_or(u32::MAX, |count| count.saturating_sub(task.fires));
        if let Some(first) = schedule.next_at(latest).filter(|_| left > 0) {
            self.courses.push(Course { schedule: schedule.clone(), first, left });
        }
    }
}

/// Fires by step, and up to when that is all.
struct Counted {
    from: Timestamp,
    to: Timestamp,
    step_ms: u64,
    fires: Vec<u64>,
    until: Option<Timestamp>,
}

impl Counted {
    fn new(from: Timestamp, to: Timestamp, step: Duration) -> Self {
        let step_ms = u64::try_from(step.as_millis()).unwrap_or(u64::MAX).max(1);
        let length = to.as_millis().saturating_sub(from.as_millis());
        let steps = usize::try_from(length.div_ceil(step_ms)).unwrap_or(1).max(1);
        Self { from, to, step_ms, fires: vec![0; steps], until: None }
    }

    /// Counts everything, walking through at most [`WALKS_MAX`] times of cron expressions: in the order of time, so that up to where
    /// that ends nothing is missing.
    fn count(&mut self, found: Found) {
        self.until = found.until;
        for time in found.times {
            self.add(time, 1);
        }
        let mut walks = BinaryHeap::new();
        for course in found.courses {
            match &course.schedule {
                Schedule::Every { interval, series } => {
                    self.add_every(*interval, series.ends_at, &course);
                }
                _ => walks.push(Reverse(Walk(course))),
            }
        }
        for _ in 0..WALKS_MAX {
            let Some(Reverse(Walk(course))) = walks.pop() else { return };
            if course.first >= self.to {
                return;
            }
            self.add(course.first, 1);
            let left = course.left - 1;
            if let Some(first) = course.schedule.next_at(course.first).filter(|_| left > 0) {
                walks.push(Reverse(Walk(Course { first, left, ..course })));
            }
        }
        let reached = walks.pop().map(|Reverse(Walk(course))| course.first);
        let reached = reached.filter(|at| *at < self.to);
        self.until = [self.until, reached].into_iter().flatten().min();
    }

    /// The times of an interval need no walk.
    fn add_every(&mut self, interval: Duration, ends_at: Option<Timestamp>, course: &Course) {
        let interval_ms = u64::try_from(interval.as_nanos().div_ceil(1_000_000));
        let interval_ms = interval_ms.unwrap_or(u64::MAX).max(1);
        // The first time that is not meant any more.
        let ends_at = ends_at.map_or(u64::MAX, |at| at.as_millis().saturating_add(1));
        let end = self.to.as_millis().min(ends_at);
        let (mut at, mut left) = (course.first.as_millis(), u64::from(course.left));
        while at < end && left > 0 {
            let index = self.index(Timestamp::from_millis(at));
            let step_end = match u64::try_from(index + 1) {
                Ok(number) => self.from.as_millis() + number.saturating_mul(self.step_ms),
                Err(_) => end,
            };
            let fires = (step_end.min(end) - at).div_ceil(interval_ms).min(left);
            self.fires[index] += fires;
            left -= fires;
            at = at.saturating_add(fires.saturating_mul(interval_ms));
        }
    }

    fn add(&mut self, time: Timestamp, fires: u64) {
        if time < self.to {
            let index = self.index(time);
            self.fires[index] += fires;
        }
    }

    /// What is overdue is in the first.
    fn index(&self, time: Timestamp) -> usize {
        let index = time.as_millis().saturating_sub(self.from.as_millis()) / self.step_ms;
        usize::try_from(index).unwrap_or(usize::MAX).min(self.fires.len() - 1)
    }
}

/// A course in the order of its next time.
struct Walk(Course);

impl PartialEq for Walk {
    fn eq(&self, other: &Self) -> bool {
        self.0.first == other.0.first
    }
}

impl Eq for Walk {}

impl PartialOrd for Walk {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Walk {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.first.cmp(&other.0.first)
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::{Cron, Dst, Series, Zone};

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis(seconds * 1000)
    }

    fn counted(courses: Vec<Course>, seconds: u64, step: u64) -> Counted {
        let mut counted = Counted::new(at(1000), at(1000 + seconds), Duration::from_secs(step));
        counted.count(Found { courses, ..Found::default() });
        counted
    }

    fn every(interval_ms: u64, first: u64, left: u32, series: Series) -> Course {
        let interval = Duration::from_millis(interval_ms);
        Course {
            schedule: Schedule::Every { interval, series: series.into() },
            first: at(first),
            left,
        }
    }

    fn seconds(first: u64, left: u32) -> Course {
        let cron = Cron::new("* * * * * *", Zone::utc(), Dst::default()).unwrap();
        let series = Arc::new(Series::default());
        Course { schedule: Schedule::Cron { cron: cron.into(), series }, first: at(first), left }
    }

    #[test]
    fn intervals_are_counted_by_step_and_end_where_they_end() {
        let plain = Series::default;
        let ends = |seconds| Series { ends_at: Some(at(seconds)), ..Series::default() };
        for (course, want) in [
            (every(1000, 1000, u32::MAX, plain()), [10, 10, 5]),
            (every(1000, 1001, u32::MAX, plain()), [9, 10, 5]),
            (every(300, 1000, u32::MAX, plain()), [34, 33, 17]),
            (every(7000, 1003, u32::MAX, plain()), [1, 2, 1]),
            (every(1000, 1000, 12, plain()), [10, 2, 0]),
            (every(1000, 1000, u32::MAX, ends(1012)), [10, 3, 0]),
            (every(1000, 1024, u32::MAX, plain()), [0, 0, 1]),
            (every(1000, 1025, u32::MAX, plain()), [0, 0, 0]),
            (every(60_000, 998, u32::MAX, plain()), [1, 0, 0]),
            (seconds(1000, u32::MAX), [10, 10, 5]),
            (seconds(1001, 3), [3, 0, 0]),
        ] {
            assert_eq!(counted(vec![course], 25, 10).fires, want);
        }
    }

    #[test]
    fn what_was_walked_is_complete_up_to_where_the_walk_ends() {
        let ahead = 2 * WALKS_MAX as u64;
        let courses = (0..4).map(|_| seconds(1000, u32::MAX)).collect();
        let counted = counted(courses, ahead, ahead);
        assert_eq!(counted.fires, [WALKS_MAX as u64]);
        assert_eq!(counted.until, Some(at(1000 + WALKS_MAX as u64 / 4)));
    }
}
