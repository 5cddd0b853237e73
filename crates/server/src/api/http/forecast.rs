//! The forecast: how many fires are expected in each step of time.
//!
//! It counts the next fire of every task by its `fire_at`, and the later fires of cron and interval
//! tasks by their nominal times. Policies may skip some of these; missed fires count as one.
//! With steps of whole minutes, `once` tasks and watches are taken from the counts of the store, so
//! that their number does not matter, and only series are read. Shorter steps read all tasks. At
//! most [`TASKS_MAX`] tasks, shared by all partitions, are read, and [`CRON_TIMES_MAX`] times of
//! cron expressions are computed. Beyond that the response says up to when it is complete.
//! The counts of the store know no targets: a forecast by target reads all tasks, within the same
//! bounds.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use punctual_core::{
    Clock as _, Invalid, MISFIRE_AFTER, Namespace, PartitionId, Schedule, Task, TaskState,
    Timestamp, format_duration,
};
use punctual_store::{
    DueMinute, DueSteps, Filter, KindFilter, Position, StoreError, TaskStore as _,
};
use serde::Serialize;
use tokio::task::JoinSet;
use utoipa::ToSchema;

use super::request::{PathNamespace, QueryParams};
use super::response::{self, ApiResult};
use crate::broker::Broker;
use crate::problem::Problem;
use crate::schema::{documented, duration, one_of};
use crate::store::Store;
use crate::task_form::{InstantText, TimeValue, parse_duration_field, parse_time_field};

/// Tasks that are read for one response: about a second.
const TASKS_MAX: usize = 100_000;
/// Times of cron expressions that are computed for one response: about a second, on a blocking
/// thread.
const CRON_TIMES_MAX: usize = 1_000_000;
/// Tasks in one read.
const PAGE: usize = 1000;
/// Reads for one response, shared by all partitions: a store that has no index of series returns
/// short pages.
const PAGES_MAX: usize = 256;
/// Partitions that are read at the same time.
const READS_MAX: usize = 8;
/// Steps in one response.
const STEPS_MAX: u128 = 1000;
/// How far ahead a forecast goes at most.
const AHEAD_MAX: Duration = Duration::from_secs(366 * 86_400);
const AHEAD_DEFAULT: Duration = Duration::from_secs(86_400);
const STEP_DEFAULT: Duration = Duration::from_secs(3600);
const STEP_MIN: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Targets that are distinguished while tasks are read, and in one response. Fires of others are
/// counted together.
const TARGETS_READ_MAX: usize = 256;
const TARGETS_MAX: usize = 8;

/// Expected fires per step.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Forecast)]
struct ForecastAnswer {
    /// When the first step begins: at a whole minute, if steps are that long.
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
    /// The steps in order. Overdue fires are in the first, if it begins now or earlier.
    steps: Vec<ForecastStep>,
    /// With `by=target`: the targets with most fires, at most 8. Fires of other targets are in
    /// `steps` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<Vec<TargetFires>>,
}

/// The expected fires of one target.
#[derive(Debug, Serialize, ToSchema)]
struct TargetFires {
    /// Scheme, host and port of a webhook or a gRPC method, `queue NAME`, or a connection and its
    /// place.
    target: String,
    /// How many fires are expected in each step.
    fires: Vec<u64>,
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

documented!(
    /// What a forecast is divided by.
    ForecastDivision,
    "ForecastDivision",
    one_of(["target"])
);

/// Forecast fires
///
/// Counts the fires that are expected in each step of time. Steps of a minute or longer begin at
/// whole minutes. With `by=target` tasks are read, at most 100,000, and the forecast is complete up
/// to the last of them.
#[utoipa::path(
    get, path = "/v1/{namespace}/forecast", tag = "statistics",
    params(
        ("for" = inline(Option<ForecastLength>), Query, description =
            "How far ahead. Default: a day."),
        ("step" = inline(Option<ForecastLength>), Query, description =
            "The length of a step: whole minutes, or less than one. At most 1,000. Default: 1h."),
        ("at" = inline(Option<TimeValue>), Query, description =
            "When the first step begins. Default: now."),
        ("by" = inline(Option<ForecastDivision>), Query, description =
            "Also count the fires of each target."),
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
    let at = params.take("at")?.map(|text| parse_time_field("at", &text)).transpose()?;
    let by = params.take("by")?;
    params.end()?;
    let by = parse_division(by.as_deref().unwrap_or_default())?;
    let span = ForecastSpan { at, ahead, step, by };
    let FireForecast { from, step, fires, until, targets } =
        expected_fires(&broker, namespace, span).await?;
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
        targets: (by == Division::Targets).then(|| {
            let targets = targets.into_iter();
            targets.map(|(target, fires)| TargetFires { target, fires }).collect()
        }),
    })
}

/// What a forecast is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Division {
    None,
    Targets,
}

pub(crate) fn parse_division(by: &str) -> Result<Division, Invalid> {
    match by {
        "" => Ok(Division::None),
        "target" => Ok(Division::Targets),
        _ => Err(Invalid::new("by", "must be target")),
    }
}

/// The span that a caller wants, as far as it was given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForecastSpan {
    /// When the first step begins.
    pub(crate) at: Option<Timestamp>,
    /// How long all steps are together.
    pub(crate) ahead: Option<Duration>,
    pub(crate) step: Option<Duration>,
    pub(crate) by: Division,
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
    /// By target and step, the targets with most fires first. Empty unless it was asked for.
    pub(crate) targets: Vec<(String, Vec<u64>)>,
}

/// Counts the fires that are expected in a span.
pub(crate) async fn expected_fires(
    broker: &Broker,
    namespace: Namespace,
    span: ForecastSpan,
) -> Result<FireForecast, Problem> {
    let now = broker.clock.now();
    let steps = TimeSteps::new(span, now)?;
    let permit = broker.limits.reads.acquire(&namespace).await?;
    let mut filter = Filter::all(namespace);
    filter.state = Some(TaskState::Scheduled);
    filter.to = steps.to;
    let minutes = match span.by {
        Division::None => steps.minutes(),
        // The counts of the store know no targets.
        Division::Targets => None,
    };
    if minutes.is_some() {
        filter.kind = Some(KindFilter::Series);
    }
    let due = find_all(broker, &filter, minutes, span.by, now).await?;
    let counting = move || {
        let mut counts = FireCounts::new(steps);
        counts.count(due);
        // Here, because counting does not end when the caller disconnects.
        drop(permit);
        counts
    };
    // A million cron times would block the thread for other requests.
    let counts = tokio::task::spawn_blocking(counting).await;
    let mut counts = counts.map_err(|error| StoreError::Unavailable(error.into()))?;
    let until = counts.until.map(|until| until.max(steps.from));
    let targets = counts.largest_targets();
    Ok(FireForecast { from: steps.from, step: steps.step, fires: counts.fires, until, targets })
}

/// The steps of a forecast.
#[derive(Debug, Clone, Copy)]
struct TimeSteps {
    from: Timestamp,
    to: Timestamp,
    step: Duration,
    /// What becomes of fires that are due before the first step.
    earlier: EarlierFires,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EarlierFires {
    /// They are overdue, and count in the first step.
    InFirst,
    /// The first step begins in the future.
    LeftOut,
}

impl TimeSteps {
    fn new(span: ForecastSpan, now: Timestamp) -> Result<Self, Invalid> {
        let ahead = check_length("for", span.ahead.unwrap_or(AHEAD_DEFAULT))?;
        let step = check_length("step", span.step.unwrap_or(STEP_DEFAULT))?;
        if ahead.as_millis().div_ceil(step.as_millis()) > STEPS_MAX {
            let problem = format!("must be long enough for at most {STEPS_MAX} steps");
            return Err(Invalid::new("step", problem));
        }
        let at = span.at.unwrap_or(now);
        if at > now.after(AHEAD_MAX) || now > at.after(AHEAD_MAX) {
            let max = format_duration(AHEAD_MAX);
            return Err(Invalid::new("at", format!("must be within {max} of now")));
        }
        let whole_minutes = step.as_millis().is_multiple_of(MINUTE.as_millis());
        if step > MINUTE && !whole_minutes {
            let problem = "must be a whole number of minutes, or less than one minute";
            return Err(Invalid::new("step", problem));
        }
        let from = if whole_minutes { DueMinute::of(at).start() } else { at };
        let earlier = if from <= now { EarlierFires::InFirst } else { EarlierFires::LeftOut };
        Ok(Self { from, to: from.after(ahead), step, earlier })
    }

    /// The same steps for the counts of a store; `None` if they are shorter than a minute.
    fn minutes(self) -> Option<DueSteps> {
        let minutes = u32::try_from(self.step.as_secs() / MINUTE.as_secs()).ok()?;
        let first = DueMinute::of(self.from).get();
        let last_instant = self.to.after(MINUTE).millis_before(1);
        let end = DueMinute::of(last_instant).get().max(first.saturating_add(1));
        let step = usize::try_from(minutes).ok().filter(|step| *step > 0)?;
        let mut bounds: Vec<DueMinute> = (first..end).step_by(step).map(DueMinute::new).collect();
        bounds.push(DueMinute::new(end));
        if self.earlier == EarlierFires::InFirst {
            bounds[0] = DueMinute::FIRST;
        }
        DueSteps::new(bounds)
    }

    fn count(self) -> usize {
        let length = self.to.as_millis().saturating_sub(self.from.as_millis());
        usize::try_from(length.div_ceil(self.step_millis())).unwrap_or(1).max(1)
    }

    /// Leaves out the fires of a series before the first step, if that begins in the future. `None`
    /// if no fire is left.
    fn begun(self, fires: FutureFires) -> Option<FutureFires> {
        if self.earlier == EarlierFires::InFirst || fires.first >= self.from {
            return Some(fires);
        }
        let last = self.from.millis_before(1);
        let target = fires.target;
        let schedule = &fires.schedule;
        let first = match schedule {
            Schedule::Every { .. } => schedule.last_until(fires.first, last, 1).pop(),
            _ => Some(last),
        };
        let first = schedule.next_at(first?)?;
        let left = match fires.left {
            u32::MAX => u32::MAX,
            left => left.saturating_sub(schedule.count_until(fires.first, last)),
        };
        (left > 0).then_some(FutureFires { target, schedule: fires.schedule, first, left })
    }

    fn step_millis(self) -> u64 {
        u64::try_from(self.step.as_millis()).unwrap_or(u64::MAX).max(1)
    }
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
    /// Tasks that the store has counted, by step.
    counts: Vec<i64>,
    /// Fires of tasks that were read: the next one of each task, and overlapping ones.
    times: Vec<(Timestamp, TargetNumber)>,
    /// The fires after those.
    series: Vec<FutureFires>,
    /// Up to when these are all fires, if tasks were left out.
    until: Option<Timestamp>,
    targets: TargetNames,
}

/// The position of a target in [`TargetNames`]; `None` if it is counted with others.
type TargetNumber = Option<u16>;

/// The targets that are distinguished.
#[derive(Default)]
struct TargetNames(HashMap<String, u16>);

impl TargetNames {
    fn number(&mut self, name: String) -> TargetNumber {
        let next = self.0.len();
        match self.0.get(&name) {
            Some(known) => Some(*known),
            None if next >= TARGETS_READ_MAX => None,
            None => {
                let number = u16::try_from(next).ok()?;
                self.0.insert(name, number);
                Some(number)
            }
        }
    }
}

/// The fires of a cron or interval task after its next one.
struct FutureFires {
    target: TargetNumber,
    schedule: Schedule,
    first: Timestamp,
    /// How many are left by the `count` of the series.
    left: u32,
}

/// Reads the counts and the tasks of all partitions.
async fn find_all(
    broker: &Broker,
    filter: &Filter,
    steps: Option<DueSteps>,
    by: Division,
    now: Timestamp,
) -> Result<DueFires, Problem> {
    let partitions = broker.owners.partitions();
    let share = |all: usize| (all / usize::from(partitions.count())).max(1);
    let bounds = ReadBounds { tasks: share(TASKS_MAX), pages: share(PAGES_MAX).max(2) };
    let steps = steps.map(Arc::new);
    let mut all = DueFires::default();
    let mut waiting = partitions.iter();
    let mut reads = JoinSet::new();
    loop {
        while reads.len() < READS_MAX
            && let Some(partition) = waiting.next()
        {
            let (store, filter) = (Arc::clone(&broker.store), filter.clone());
            let steps = steps.clone();
            reads.spawn(async move {
                let mut due = find(&store, partition, &filter, bounds, by, now).await?;
                if let Some(steps) = steps {
                    let counts = store.due_counts(partition, &filter.namespace, &steps).await?;
                    due.until = earliest(due.until, counts.until.map(DueMinute::start));
                    due.counts = counts.tasks;
                }
                Ok::<_, StoreError>(due)
            });
        }
        let Some(read) = reads.join_next().await else {
            return Ok(all);
        };
        let due = read.map_err(|error| StoreError::Unavailable(error.into()))??;
        all.add_all(due);
    }
}

/// What may be read of one partition.
#[derive(Debug, Clone, Copy)]
struct ReadBounds {
    tasks: usize,
    pages: usize,
}

fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    [one, other].into_iter().flatten().min()
}

/// Reads tasks of a partition, within bounds.
async fn find(
    store: &Store,
    partition: PartitionId,
    filter: &Filter,
    bounds: ReadBounds,
    by: Division,
    now: Timestamp,
) -> Result<DueFires, StoreError> {
    let mut due = DueFires::default();
    let mut after = Position::START;
    let mut count = 0;
    for read in 1.. {
        let limit = PAGE.min(bounds.tasks - count);
        let page = store.list(partition, filter, after, limit).await?;
        count += page.items.len();
        for task in &page.items {
            due.add(task, by, now);
        }
        match page.next {
            None => break,
            Some(next) if count >= bounds.tasks || read >= bounds.pages => {
                due.until = Some(next.fire_at);
                break;
            }
            Some(next) => after = next,
        }
    }
    Ok(due)
}

impl DueFires {
    /// Adds the fires of another partition.
    fn add_all(&mut self, others: Self) {
        self.counts.resize(self.counts.len().max(others.counts.len()), 0);
        for (sum, count) in self.counts.iter_mut().zip(others.counts) {
            *sum += count;
        }
        let mut numbers = vec![None; others.targets.0.len()];
        for (name, number) in others.targets.0 {
            numbers[usize::from(number)] = self.targets.number(name);
        }
        let renumbered = |number: TargetNumber| numbers[usize::from(number?)];
        let times = others.times.into_iter();
        self.times.extend(times.map(|(time, number)| (time, renumbered(number))));
        let series = others.series.into_iter();
        self.series
            .extend(series.map(|fires| FutureFires { target: renumbered(fires.target), ..fires }));
        self.until = earliest(self.until, others.until);
    }

    fn add(&mut self, task: &Task, by: Division, now: Timestamp) {
        let target = match by {
            Division::None => None,
            Division::Targets => self.targets.number(task.definition.target.group()),
        };
        let overlapping = task.overlapping.iter().map(|overlapping| overlapping.fire_at);
        let times = [task.fire_at].into_iter().chain(overlapping).chain(task.resumes_at);
        self.times.extend(times.map(|time| (time, target)));
        let schedule = &task.definition.schedule;
        let Some(series) = schedule.series() else {
            return;
        };
        let given = [task.given_at, task.resumes_at].into_iter().flatten().max();
        let mut latest = given.unwrap_or(task.nominal_at);
        if now.since(task.fire_at) > MISFIRE_AFTER {
            // Missed fires count as one, the next fire.
            latest = schedule.last_until(latest, now.max(latest), 1).pop().unwrap_or(latest);
        }
        let left = series.count.map_or(u32::MAX, |count| count.saturating_sub(task.fires));
        if let Some(first) = schedule.next_at(latest).filter(|_| left > 0) {
            self.series.push(FutureFires { target, schedule: schedule.clone(), first, left });
        }
    }
}

/// Fires by step, and up to when they are complete.
struct FireCounts {
    steps: TimeSteps,
    fires: Vec<u64>,
    until: Option<Timestamp>,
    /// The name and the fires of each target that is distinguished, by its number.
    targets: Vec<(String, Vec<u64>)>,
}

impl FireCounts {
    fn new(steps: TimeSteps) -> Self {
        Self { steps, fires: vec![0; steps.count()], until: None, targets: Vec::new() }
    }

    /// Counts all fires. At most [`CRON_TIMES_MAX`] cron times are computed, in the order of time,
    /// so that nothing is missing before the last of them.
    fn count(&mut self, due: DueFires) {
        self.until = due.until.filter(|until| *until < self.steps.to);
        self.targets = vec![(String::new(), vec![0; self.fires.len()]); due.targets.0.len()];
        for (name, number) in due.targets.0 {
            self.targets[usize::from(number)].0 = name;
        }
        for (fires, count) in self.fires.iter_mut().zip(due.counts) {
            *fires += u64::try_from(count).unwrap_or(0);
        }
        for (time, target) in due.times {
            self.add(time, target);
        }
        let mut heap = BinaryHeap::new();
        let (steps, series) = (self.steps, due.series.into_iter());
        for fires in series.filter_map(|fires| steps.begun(fires)) {
            match &fires.schedule {
                Schedule::Every { interval, series } => {
                    self.add_every(*interval, series.ends_at, &fires);
                }
                _ => heap.push(Reverse(ByNextFire(fires))),
            }
        }
        for _ in 0..CRON_TIMES_MAX {
            let Some(Reverse(ByNextFire(fires))) = heap.pop() else { return };
            if fires.first >= self.steps.to {
                return;
            }
            self.add(fires.first, fires.target);
            let left = fires.left - 1;
            if let Some(first) = fires.schedule.next_at(fires.first).filter(|_| left > 0) {
                heap.push(Reverse(ByNextFire(FutureFires { first, left, ..fires })));
            }
        }
        let reached = heap.pop().map(|Reverse(ByNextFire(fires))| fires.first);
        let reached = reached.filter(|at| *at < self.steps.to);
        self.until = earliest(self.until, reached);
    }

    /// Counts the fires of an interval by division.
    fn add_every(&mut self, interval: Duration, ends_at: Option<Timestamp>, series: &FutureFires) {
        let interval_ms = u64::try_from(interval.as_nanos().div_ceil(1_000_000));
        let interval_ms = interval_ms.unwrap_or(u64::MAX).max(1);
        // `ends_at` is inclusive.
        let ends_at = ends_at.map_or(u64::MAX, |at| at.as_millis().saturating_add(1));
        let end = self.steps.to.as_millis().min(ends_at);
        let (mut at, mut left) = (series.first.as_millis(), u64::from(series.left));
        while at < end && left > 0 {
            let index = self.index(Timestamp::from_millis(at));
            let step_end = match u64::try_from(index + 1) {
                Ok(number) => {
                    let past = number.saturating_mul(self.steps.step_millis());
                    self.steps.from.as_millis() + past
                }
                Err(_) => end,
            };
            let fires = (step_end.min(end) - at).div_ceil(interval_ms).min(left);
            self.count_in(index, series.target, fires);
            left -= fires;
            at = at.saturating_add(fires.saturating_mul(interval_ms));
        }
    }

    /// The targets with most fires.
    fn largest_targets(&mut self) -> Vec<(String, Vec<u64>)> {
        let mut targets = std::mem::take(&mut self.targets);
        targets
            .sort_by_cached_key(|(name, fires)| (Reverse(fires.iter().sum::<u64>()), name.clone()));
        targets.retain(|(_, fires)| fires.iter().any(|count| *count > 0));
        targets.truncate(TARGETS_MAX);
        targets
    }

    fn count_in(&mut self, step: usize, target: TargetNumber, fires: u64) {
        self.fires[step] += fires;
        if let Some(number) = target {
            self.targets[usize::from(number)].1[step] += fires;
        }
    }

    fn add(&mut self, time: Timestamp, target: TargetNumber) {
        let TimeSteps { from, to, earlier, .. } = self.steps;
        if time < to && (time >= from || earlier == EarlierFires::InFirst) {
            let index = self.index(time);
            self.count_in(index, target, 1);
        }
    }

    /// The step of a time; earlier times are in the first.
    fn index(&self, time: Timestamp) -> usize {
        let past = time.as_millis().saturating_sub(self.steps.from.as_millis());
        let index = past / self.steps.step_millis();
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
        let mut counts = FireCounts::new(steps(seconds, step, EarlierFires::InFirst));
        counts.count(DueFires { series, ..DueFires::default() });
        counts
    }

    fn steps(seconds: u64, step: u64, earlier: EarlierFires) -> TimeSteps {
        let step = Duration::from_secs(step);
        TimeSteps { from: at(1000), to: at(1000 + seconds), step, earlier }
    }

    fn every(interval_ms: u64, first: u64, left: u32, series: Series) -> FutureFires {
        let interval = Duration::from_millis(interval_ms);
        FutureFires {
            target: None,
            schedule: Schedule::Every { interval, series: series.into() },
            first: at(first),
            left,
        }
    }

    fn seconds(first: u64, left: u32) -> FutureFires {
        let cron = Cron::new("* * * * * *", Zone::utc(), Dst::default()).unwrap();
        let series = Arc::new(Series::default());
        let schedule = Schedule::Cron { cron: cron.into(), series };
        FutureFires { target: None, schedule, first: at(first), left }
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
    fn fires_before_a_first_step_in_the_future_are_left_out() {
        for (series, want) in [
            (every(7000, 990, u32::MAX, Series::default()), [1, 2, 0]),
            (every(1000, 990, 25, Series::default()), [10, 5, 0]),
            (seconds(990, u32::MAX), [10, 10, 5]),
            (seconds(990, 12), [2, 0, 0]),
            (seconds(990, 10), [0, 0, 0]),
        ] {
            let mut counts = FireCounts::new(steps(25, 10, EarlierFires::LeftOut));
            let times = vec![(at(999), None), (at(1000), None)];
            counts.count(DueFires { series: vec![series], times, ..DueFires::default() });
            assert_eq!(counts.fires, [want[0] + 1, want[1], want[2]]);
        }
    }

    #[test]
    fn steps_begin_at_whole_minutes_unless_they_are_shorter() {
        let minutes = |count| Some(MINUTE * count);
        let now = at(6030);
        let span = |at, ahead, step| ForecastSpan { at, ahead, step, by: Division::None };
        let steps = |span| TimeSteps::new(span, now).unwrap();
        let hour = steps(span(None, minutes(90), minutes(60)));
        assert_eq!((hour.from, hour.to, hour.count()), (at(6000), at(6000 + 5400), 2));
        let bounds = hour.minutes().unwrap();
        assert_eq!((bounds.first(), bounds.count()), (DueMinute::FIRST, 2));
        assert_eq!(bounds.end(), DueMinute::of(at(6000 + 5400)));
        let later = steps(span(Some(at(9061)), minutes(1), minutes(1)));
        assert_eq!((later.from, later.earlier), (at(9060), EarlierFires::LeftOut));
        assert_eq!(later.minutes().unwrap().first(), DueMinute::of(at(9060)));
        let short = steps(span(None, minutes(1), Some(MINUTE / 6)));
        assert_eq!((short.from, short.count(), short.minutes()), (now, 6, None));
        for (span, field) in [
            (span(None, minutes(10), Some(MINUTE * 3 / 2)), "step"),
            (span(Some(now.after(AHEAD_MAX * 2)), None, None), "at"),
        ] {
            let error = TimeSteps::new(span, now).unwrap_err();
            assert!(error.to_string().starts_with(field), "{error}");
        }
    }

    #[test]
    fn fires_are_divided_by_target_over_all_partitions() {
        let due = |first: &str, other: &str| {
            let mut due = DueFires::default();
            let numbers = [first, other].map(|name| due.targets.number(name.to_owned()));
            due.times = vec![(at(1000), numbers[0]), (at(1015), numbers[1]), (at(1001), None)];
            due.series =
                vec![FutureFires { target: numbers[1], ..every(5000, 1004, 2, Series::default()) }];
            due
        };
        let mut all = due("a", "b");
        all.add_all(due("b", "c"));
        let mut counts = FireCounts::new(steps(20, 10, EarlierFires::InFirst));
        counts.count(all);
        assert_eq!(counts.fires, [8, 2]);
        let want = [("b", vec![3, 1]), ("c", vec![2, 1]), ("a", vec![1, 0])];
        let want: Vec<_> = want.into_iter().map(|(name, it)| (name.to_owned(), it)).collect();
        assert_eq!(counts.largest_targets(), want);
    }

    #[test]
    fn few_targets_are_told_apart() {
        let mut names = TargetNames::default();
        let number = |names: &mut TargetNames, of: usize| names.number(of.to_string());
        let last = TARGETS_READ_MAX - 1;
        assert_eq!((0..=last).filter_map(|of| number(&mut names, of)).count(), TARGETS_READ_MAX);
        assert_eq!(number(&mut names, last), u16::try_from(last).ok());
        assert_eq!(number(&mut names, TARGETS_READ_MAX), None);
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
