//! The forecast: how many fires are expected in each step of time.
//!
//! It counts the next fire of every task by its `fire_at`, and the later fires of cron and interval
//! tasks by their nominal times. Policies may skip some of these; missed fires count as one.
//! At most [`TASKS_MAX`] tasks, shared by all partitions, and [`CRON_TIMES_MAX`] times of cron
//! expressions are counted. Beyond that the response says up to when it is complete.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use punctual_core::{
    Clock as _, Invalid, MISFIRE_AFTER, Namespace, PartitionId, Schedule, Task, TaskState,
    Timestamp, format_duration,
};
use punctual_store::{Filter, Position, StoreError, TaskStore as _};
use serde::Serialize;
use tokio::task::JoinSet;
use utoipa::ToSchema;

use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::schema::{documented, duration};
use crate::store::Store;
use crate::task_form::{InstantText, parse_duration_field};

/// Tasks that are read for one response: about a second.
const TASKS_MAX: usize = 100_000;
/// Times of cron expressions that are computed for one response: about a second, on a blocking
/// thread.
const CRON_TIMES_MAX: usize = 1_000_000;
/// Tasks in one read.
const PAGE: usize = 1000;
/// Partitions that are read at the same time.
const READS_MAX: usize = 8;
/// Steps in one response.
const STEPS_MAX: u128 = 1000;
/// How far ahead a forecast goes at most.
const AHEAD_MAX: Duration = Duration::from_secs(366 * 86_400);
const AHEAD_DEFAULT: Duration = Duration::from_secs(86_400);
const STEP_DEFAULT: Duration = Duration::from_secs(3600);
const STEP_MIN: Duration = Duration::from_secs(1);

/// Expected fires per step.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Forecast)]
struct ForecastAnswer {
    /// When the first step begins: now.
    #[schema(value_type = InstantText)]
    from: String,
    /// The length of a step.
    #[schema(value_type = ForecastLength)]
    step: String,
    /// Whether every fire was counted.
    complete: bool,
    /// If not: up to when every fire was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<InstantText>)]
    complete_until: Option<String>,
    /// The steps in order. Overdue fires are in the first.
    steps: Vec<ForecastStep>,
}

/// One step of time.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Step)]
struct ForecastStep {
    /// When the step begins.
    #[schema(value_type = InstantText)]
    from: String,
    /// How many fires are expected in it.
    fires: u64,
}

documented!(
    /// How far ahead a forecast goes, or how long a step is.
    ForecastLength,
    "ForecastLength",
    duration(STEP_MIN, AHEAD_MAX)
);

/// Forecast fires
///
/// Counts the fires that are expected in each step of time from now on.
#[utoipa::path(
    get, path = "/v1/{namespace}/forecast", tag = "statistics",
    params(
        ("for" = inline(Option<ForecastLength>), Query, description =
            "How far ahead. Default: a day."),
        ("step" = inline(Option<ForecastLength>), Query, description =
            "The length of a step. The number of steps is limited. Default: an hour."),
    ),
    responses((status = 200, description = "The steps.", body = ForecastAnswer))
)]
pub(crate) async fn forecast(
    State(broker): State<Arc<Broker>>,
    PathNamespace(namespace): PathNamespace,
    mut params: QueryParams,
) -> ApiResult {
    let ahead = params.take("for")?.map(|text| parse_duration_field("for", &text)).transpose()?;
    let step = params.take("step")?.map(|text| parse_duration_field("step", &text)).transpose()?;
    params.end()?;
    let FireForecast { from, step, fires, until } =
        expected_fires(&broker, namespace, ahead, step).await?;
    let steps = fires.iter().zip(0u32..).map(|(fires, number)| ForecastStep {
        from: from.after(step.saturating_mul(number)).to_string(),
        fires: *fires,
    });
    response::ok(&ForecastAnswer {
        from: from.to_string(),
        step: format_duration(step),
        complete: until.is_none(),
        complete_until: until.map(|until| until.to_string()),
        steps: steps.collect(),
    })
}

/// How many fires are expected in each step.
#[derive(Debug)]
pub(crate) struct FireForecast {
    pub(crate) from: Timestamp,
    pub(crate) step: Duration,
    /// By step.
    pub(crate) fires: Vec<u64>,
    /// Up to when every fire was counted; `None` if all were.
    pub(crate) until: Option<Timestamp>,
}

/// Counts the fires that are expected from now on.
pub(crate) async fn expected_fires(
    broker: &Broker,
    namespace: Namespace,
    ahead: Option<Duration>,
    step: Option<Duration>,
) -> Result<FireForecast, Problem> {
    let ahead = check_length("for", ahead.unwrap_or(AHEAD_DEFAULT))?;
    let step = check_length("step", step.unwrap_or(STEP_DEFAULT))?;
    if ahead.as_millis().div_ceil(step.as_millis()) > STEPS_MAX {
        let problem = format!("must be long enough for at most {STEPS_MAX} steps");
        return Err(Invalid::new("step", problem).into());
    }
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let from = broker.clock.now();
    let mut filter = Filter::all(namespace);
    filter.state = Some(TaskState::Scheduled);
    filter.to = from.after(ahead);
    let due = find_all(broker, &filter, from).await?;
    let counting = move || {
        let mut counts = FireCounts::new(from, filter.to, step);
        counts.count(due);
        // Here, because counting does not end when the caller disconnects.
        drop(permit);
        counts
    };
    // A million cron times would block the thread for other requests.
    let counts = tokio::task::spawn_blocking(counting).await;
    let counts = counts.map_err(|error| StoreError::Unavailable(error.into()))?;
    let until = counts.until.map(|until| until.max(from));
    Ok(FireForecast { from, step, fires: counts.fires, until })
}

fn check_length(name: &str, length: Duration) -> Result<Duration, Invalid> {
    if (STEP_MIN..=AHEAD_MAX).contains(&length) {
        return Ok(length);
    }
    let (min, max) = (format_duration(STEP_MIN), format_duration(AHEAD_MAX));
    Err(Invalid::new(name, format!("must be from {min} to {max}")))
}

/// The fires to count.
#[derive(Default)]
struct DueFires {
    /// Fires that the store has: the next one of each task, and overlapping ones.
    times: Vec<Timestamp>,
    /// The fires after those.
    series: Vec<FutureFires>,
    /// Up to when these are all fires, if tasks were left out.
    until: Option<Timestamp>,
}

/// The fires of a cron or interval task after its next one.
struct FutureFires {
    schedule: Schedule,
    first: Timestamp,
    /// How many are left by the `count` of the series.
    left: u32,
}

/// Reads the tasks of all partitions.
async fn find_all(broker: &Broker, filter: &Filter, from: Timestamp) -> Result<DueFires, Problem> {
    let partitions = broker.owners.partitions();
    let share = (TASKS_MAX / usize::from(partitions.count())).max(1);
    let mut all = DueFires::default();
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
        let due = read.map_err(|error| StoreError::Unavailable(error.into()))??;
        all.times.extend(due.times);
        all.series.extend(due.series);
        all.until = [all.until, due.until].into_iter().flatten().min();
    }
}

/// Reads at most `share` tasks of a partition.
async fn find(
    store: &Store,
    partition: PartitionId,
    filter: &Filter,
    share: usize,
    from: Timestamp,
) -> Result<DueFires, StoreError> {
    let mut due = DueFires::default();
    let mut after = Position::START;
    let mut count = 0;
    loop {
        let limit = PAGE.min(share - count);
        let page = store.list(partition, filter, after, limit).await?;
        count += page.items.len();
        for task in &page.items {
            due.add(task, from);
        }
        match page.next {
            None => return Ok(due),
            Some(next) if count >= share => {
                due.until = Some(next.fire_at);
                return Ok(due);
            }
            Some(next) => after = next,
        }
    }
}

impl DueFires {
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
            // Missed fires count as one, the next fire.
            latest = schedule.last_until(latest, from.max(latest), 1).pop().unwrap_or(latest);
        }
        let left = series.count.map_or(u32::MAX, |count| count.saturating_sub(task.fires));
        if let Some(first) = schedule.next_at(latest).filter(|_| left > 0) {
            self.series.push(FutureFires { schedule: schedule.clone(), first, left });
        }
    }
}

/// Fires by step, and up to when they are complete.
struct FireCounts {
    from: Timestamp,
    to: Timestamp,
    step_ms: u64,
    fires: Vec<u64>,
    until: Option<Timestamp>,
}

impl FireCounts {
    fn new(from: Timestamp, to: Timestamp, step: Duration) -> Self {
        let step_ms = u64::try_from(step.as_millis()).unwrap_or(u64::MAX).max(1);
        let length = to.as_millis().saturating_sub(from.as_millis());
        let steps = usize::try_from(length.div_ceil(step_ms)).unwrap_or(1).max(1);
        Self { from, to, step_ms, fires: vec![0; steps], until: None }
    }

    /// Counts all fires. At most [`CRON_TIMES_MAX`] cron times are computed, in the order of time,
    /// so that nothing is missing before the last of them.
    fn count(&mut self, due: DueFires) {
        self.until = due.until;
        for time in due.times {
            self.add(time, 1);
        }
        let mut heap = BinaryHeap::new();
        for fires in due.series {
            match &fires.schedule {
                Schedule::Every { interval, series } => {
                    self.add_every(*interval, series.ends_at, &fires);
                }
                _ => heap.push(Reverse(ByNextFire(fires))),
            }
        }
        for _ in 0..CRON_TIMES_MAX {
            let Some(Reverse(ByNextFire(fires))) = heap.pop() else { return };
            if fires.first >= self.to {
                return;
            }
            self.add(fires.first, 1);
            let left = fires.left - 1;
            if let Some(first) = fires.schedule.next_at(fires.first).filter(|_| left > 0) {
                heap.push(Reverse(ByNextFire(FutureFires { first, left, ..fires })));
            }
        }
        let reached = heap.pop().map(|Reverse(ByNextFire(fires))| fires.first);
        let reached = reached.filter(|at| *at < self.to);
        self.until = [self.until, reached].into_iter().flatten().min();
    }

    /// Counts the fires of an interval by division.
    fn add_every(&mut self, interval: Duration, ends_at: Option<Timestamp>, series: &FutureFires) {
        let interval_ms = u64::try_from(interval.as_nanos().div_ceil(1_000_000));
        let interval_ms = interval_ms.unwrap_or(u64::MAX).max(1);
        // `ends_at` is inclusive.
        let ends_at = ends_at.map_or(u64::MAX, |at| at.as_millis().saturating_add(1));
        let end = self.to.as_millis().min(ends_at);
        let (mut at, mut left) = (series.first.as_millis(), u64::from(series.left));
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

    /// The step of a time; overdue times are in the first.
    fn index(&self, time: Timestamp) -> usize {
        let index = time.as_millis().saturating_sub(self.from.as_millis()) / self.step_ms;
        usize::try_from(index).unwrap_or(usize::MAX).min(self.fires.len() - 1)
    }
}

/// Orders series by their next fire.
struct ByNextFire(FutureFires);

impl PartialEq for ByNextFire {
    fn eq(&self, other: &Self) -> bool {
        self.0.first == other.0.first
    }
}

impl Eq for ByNextFire {}

impl PartialOrd for ByNextFire {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByNextFire {
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

    fn counts(series: Vec<FutureFires>, seconds: u64, step: u64) -> FireCounts {
        let mut counts = FireCounts::new(at(1000), at(1000 + seconds), Duration::from_secs(step));
        counts.count(DueFires { series, ..DueFires::default() });
        counts
    }

    fn every(interval_ms: u64, first: u64, left: u32, series: Series) -> FutureFires {
        let interval = Duration::from_millis(interval_ms);
        FutureFires {
            schedule: Schedule::Every { interval, series: series.into() },
            first: at(first),
            left,
        }
    }

    fn seconds(first: u64, left: u32) -> FutureFires {
        let cron = Cron::new("* * * * * *", Zone::utc(), Dst::default()).unwrap();
        let series = Arc::new(Series::default());
        let schedule = Schedule::Cron { cron: cron.into(), series };
        FutureFires { schedule, first: at(first), left }
    }

    #[test]
    fn fires_of_intervals_are_counted_per_step_until_the_series_ends() {
        let plain = Series::default;
        let ends = |seconds| Series { ends_at: Some(at(seconds)), ..Series::default() };
        for (series, want) in [
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
            assert_eq!(counts(vec![series], 25, 10).fires, want);
        }
    }

    #[test]
    fn the_forecast_is_complete_up_to_the_last_cron_time_that_was_computed() {
        let ahead = 2 * CRON_TIMES_MAX as u64;
        let series = (0..4).map(|_| seconds(1000, u32::MAX)).collect();
        let counts = counts(series, ahead, ahead);
        assert_eq!(counts.fires, [CRON_TIMES_MAX as u64]);
        assert_eq!(counts.until, Some(at(1000 + CRON_TIMES_MAX as u64 / 4)));
    }
}
