//! The forecast: how many fires are expected when.
//!
//! In: how far ahead, and in what steps. Out: a number per step. Bound: [`LOOKED_AT_MAX`] tasks are looked at, shared by all
//! partitions; beyond, the answer says that it is not complete and up to where it is.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use punctual_core::{Clock as _, Invalid, PartitionId, TaskState, Timestamp, format_duration};
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
    let counted = count_all(&broker, &filter, from, step).await?;
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

/// Fires by step, and up to when that is all.
struct Counted {
    fires: Vec<u64>,
    until: Option<Timestamp>,
}

async fn count_all(
    broker: &Broker,
    filter: &Filter,
    from: Timestamp,
    step: Duration,
) -> Result<Counted, Problem> {
    let partitions = broker.owners.partitions();
    let share = (LOOKED_AT_MAX / usize::from(partitions.count())).max(1);
    let steps = filter.to.since(from).as_millis().div_ceil(step.as_millis()).max(1);
    let steps = usize::try_from(steps).unwrap_or(1);
    let mut all = Counted { fires: vec![0; steps], until: None };
    let mut waiting = partitions.iter();
    let mut reads = JoinSet::new();
    loop {
        while reads.len() < READS_MAX
            && let Some(partition) = waiting.next()
        {
            let (store, filter) = (Arc::clone(&broker.store), filter.clone());
            reads.spawn(async move { due_times(&store, partition, &filter, share).await });
        }
        let Some(read) = reads.join_next().await else {
            return Ok(all);
        };
        let (times, until) = read.map_err(|error| StoreError::Unavailable(error.into()))??;
        for time in times {
            let index = time.since(from).as_millis() / step.as_millis();
            let index = usize::try_from(index).unwrap_or(usize::MAX).min(steps - 1);
            all.fires[index] += 1;
        }
        all.until = [all.until, until].into_iter().flatten().min();
    }
}

/// When the tasks of a partition are due, at most `share` of them; and up to when that is all, if there are more.
async fn due_times(
    store: &Store,
    partition: PartitionId,
    filter: &Filter,
    share: usize,
) -> Result<(Vec<Timestamp>, Option<Timestamp>), StoreError> {
    let mut times = Vec::new();
    let mut after = Position::START;
    loop {
        let limit = PAGE.min(share - times.len());
        let page = store.list(partition, filter, after, limit).await?;
        times.extend(page.items.iter().map(|task| task.fire_at));
        match page.next {
            None => return Ok((times, None)),
            Some(next) if times.len() >= share => return Ok((times, Some(next.fire_at))),
            Some(next) => after = next,
        }
    }
}
