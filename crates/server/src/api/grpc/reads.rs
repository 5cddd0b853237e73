//! Calls that read: fires, explanations, dead letters, counts, queues and workers; and redrive.
//!
//! Each is the same as its HTTP route: the functions beside `grpc` do the work. A page that does
//! not fit one message ends earlier, and its cursor says where.

use prost::Message;
use punctual_core::{Clock as _, Invalid, Namespace, Queue, Timestamp};
use punctual_proto::v1;
use punctual_store::{CountedGroup, FireFilter, FirePosition, Page};
use tonic::Status;

use super::convert::{self, fires};
use super::list::{self, LIMIT_DEFAULT, LIMIT_MAX, PAGE_BYTES_MAX};
use crate::actions::ActionDetail;
use crate::api::count_tasks::count_tasks;
use crate::api::dead_letters::{
    ChangedLetters, GroupList, LetterSelection, LetterVerb, change_letters, delete_letter,
    list_groups,
};
use crate::api::explain_task::explain_task;
use crate::api::find_task::find;
use crate::api::fire_pages::{after_fire, fire_page, parse_cursor};
use crate::api::http::forecast::{FireForecast, ForecastSpan, expected_fires, parse_division};
use crate::api::http::page_cursor;
use crate::api::lane_list::{LaneSummary, kind_of, list_lanes};
use crate::api::queue_list::{QueueSummary, list_queues, list_workers};
use crate::api::task_pages::{LetterFilter, dead_letter_page};
use crate::api::task_stats::TaskStats;
use crate::broker::Broker;
use crate::courier::queue::WorkerView;
use crate::fire_form::lag_ms;
use crate::problem::{Problem, TaskRef};
use crate::shares::SharePermit;

/// A response, and the permit to keep until it was sent.
pub(super) type Read<T> = Result<(T, SharePermit), Status>;

pub(super) fn refused(problem: Problem) -> Status {
    convert::to_status(&problem)
}

async fn permit(broker: &Broker, namespace: &Namespace) -> Result<SharePermit, Status> {
    broker.limits.reads.acquire(namespace).await.map_err(refused)
}

/// The entries of a page: zero means the default.
pub(super) fn limit(limit: u32) -> usize {
    match usize::try_from(limit).unwrap_or(usize::MAX) {
        0 => LIMIT_DEFAULT,
        limit => limit.min(LIMIT_MAX),
    }
}

/// Converts entries until they fill a message. Returns how many there are, if some were left out.
fn fitting<T, M: Message>(items: &[T], convert: impl Fn(&T) -> M) -> (Vec<M>, Option<usize>) {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    for item in items {
        let message = convert(item);
        bytes += message.encoded_len();
        messages.push(message);
        if bytes > PAGE_BYTES_MAX && messages.len() < items.len() {
            let count = messages.len();
            return (messages, Some(count));
        }
    }
    (messages, None)
}

/// The fires of one task, or of all tasks.
pub(super) async fn list_fires(
    broker: &Broker,
    namespace: Namespace,
    request: v1::FiresRequest,
) -> Read<v1::FiresResponse> {
    if request.key_or_id.is_empty() {
        return all_fires(broker, namespace, request).await;
    }
    let filtered = request.end != 0
        || request.from_ms != 0
        || request.to_ms != 0
        || [&request.key_prefix, &request.label, &request.cursor].iter().any(|it| !it.is_empty());
    if filtered {
        let problem = "must not be given with filters or a cursor, which are for all tasks";
        return Err(convert::invalid(Invalid::new("key_or_id", problem)));
    }
    let permit = permit(broker, &namespace).await?;
    let task = TaskRef { namespace: &namespace, name: &request.key_or_id };
    let found = find(broker, task).await.map_err(refused)?;
    let found = found.fires(broker, &namespace, limit(request.limit)).await.map_err(refused)?;
    let (fires, _) = fitting(&fires::task_fires(&found), Clone::clone);
    Ok((v1::FiresResponse { fires, next: String::new() }, permit))
}

async fn all_fires(
    broker: &Broker,
    namespace: Namespace,
    request: v1::FiresRequest,
) -> Read<v1::FiresResponse> {
    let limit = limit(request.limit);
    let (filter, after) = fire_filter(namespace, request).map_err(convert::invalid)?;
    let permit = permit(broker, &filter.namespace).await?;
    let page = fire_page(broker, &filter, after, limit).await;
    let Page { items, next } = page.map_err(refused)?;
    let (fires, cut) = fitting(&items, fires::ended_fire);
    let next = cut.map_or(next, |count| items.get(count - 1).map(FirePosition::of));
    Ok((v1::FiresResponse { fires, next: next.map(after_fire).unwrap_or_default() }, permit))
}

fn fire_filter(
    namespace: Namespace,
    request: v1::FiresRequest,
) -> Result<(FireFilter, Option<FirePosition>), Invalid> {
    let after = match request.cursor.as_str() {
        "" => None,
        cursor => {
            let problem = "must be the `next` of an earlier page";
            Some(parse_cursor(cursor).ok_or_else(|| Invalid::new("cursor", problem))?)
        }
    };
    let to = match request.to_ms {
        0 => Timestamp::MAX,
        to => convert::timestamp("to", to)?,
    };
    let filter = FireFilter {
        namespace,
        end: fires::end_filter(request.end)?,
        key_prefix: request.key_prefix,
        label: list::label(&request.label)?,
        from: convert::timestamp("from", request.from_ms)?,
        to,
    };
    Ok((filter, after))
}

pub(super) async fn explain(
    broker: &Broker,
    namespace: &Namespace,
    key_or_id: &str,
) -> Read<v1::Explanation> {
    let permit = permit(broker, namespace).await?;
    let explained = explain_task(broker, TaskRef { namespace, name: key_or_id }).await;
    Ok((fires::explanation(explained.map_err(refused)?), permit))
}

pub(super) async fn dead_letters(
    broker: &Broker,
    namespace: &Namespace,
    request: v1::DeadLettersRequest,
) -> Read<v1::DeadLettersResponse> {
    let cursor = Some(request.cursor.as_str()).filter(|cursor| !cursor.is_empty());
    let after = page_cursor::dead_letter(cursor).map_err(refused)?;
    let permit = permit(broker, namespace).await?;
    let filter = letter_filter(request.group);
    let limit = limit(request.limit);
    let page = dead_letter_page(broker, namespace, &filter, after, limit).await;
    let Page { items, next } = page.map_err(refused)?;
    let (dead, cut) = fitting(&items, fires::dead_letter);
    let next = cut.map_or(next, |count| items.get(count - 1).map(|letter| letter.fire_id()));
    let next = next.map(page_cursor::after_dead_letter).unwrap_or_default();
    Ok((v1::DeadLettersResponse { dead, next }, permit))
}

pub(super) async fn dead_groups(
    broker: &Broker,
    namespace: &Namespace,
) -> Read<v1::DeadGroupsResponse> {
    let (GroupList { groups, more }, permit) =
        list_groups(broker, namespace).await.map_err(refused)?;
    let group = |CountedGroup { group, letters }| v1::DeadGroup {
        reason: group.reason,
        target: group.target,
        count: letters.count,
        first_at_ms: letters.first_at.as_millis(),
        last_at_ms: letters.last_at.as_millis(),
        example: letters.example.map(|fire_id| fire_id.to_string()).unwrap_or_default(),
    };
    let groups = groups.into_iter().map(group).collect();
    Ok((v1::DeadGroupsResponse { groups, more }, permit))
}

pub(super) async fn redrive(
    broker: &Broker,
    namespace: &Namespace,
    request: v1::RedriveRequest,
) -> Result<(v1::RedriveResponse, ActionDetail), Status> {
    let v1::RedriveRequest { ids, all, group, .. } = request;
    let verb = LetterVerb::Redrive;
    let (redriven, problems, more, did) = change(broker, namespace, verb, ids, all, group).await?;
    Ok((v1::RedriveResponse { redriven, problems, more }, did))
}

pub(super) async fn delete_letters(
    broker: &Broker,
    namespace: &Namespace,
    request: v1::DeleteDeadLettersRequest,
) -> Result<(v1::DeleteDeadLettersResponse, ActionDetail), Status> {
    let v1::DeleteDeadLettersRequest { ids, all, group, .. } = request;
    let verb = LetterVerb::Delete;
    let (deleted, problems, more, did) = change(broker, namespace, verb, ids, all, group).await?;
    Ok((v1::DeleteDeadLettersResponse { deleted, problems, more }, did))
}

/// Changes dead letters. Returns how many were changed, why others were not, whether letters are
/// left, and what is noted of it.
async fn change(
    broker: &Broker,
    namespace: &Namespace,
    verb: LetterVerb,
    ids: Vec<String>,
    all: bool,
    group: Option<v1::DeadGroupFilter>,
) -> Result<(u64, Vec<v1::RedriveProblem>, bool, ActionDetail), Status> {
    let selection = selection(ids, all, group).map_err(convert::invalid)?;
    let detail = selection.to_string();
    let changed = change_letters(broker, namespace, verb, selection).await.map_err(refused)?;
    let ChangedLetters { changed, problems, more } = changed;
    let changed = changed as u64;
    let did = ActionDetail { name: None, detail, changed: Some(changed) };
    Ok((changed, letter_problems(problems), more, did))
}

/// The dead letters that a call selects.
fn selection(
    ids: Vec<String>,
    all: bool,
    group: Option<v1::DeadGroupFilter>,
) -> Result<LetterSelection, Invalid> {
    match (ids.is_empty(), all, group) {
        (false, false, None) => Ok(LetterSelection::Ids(ids)),
        (true, true, None) => Ok(LetterSelection::Matching(LetterFilter::default())),
        // An empty condition would be all letters, which a caller must ask for.
        (true, false, Some(group)) if group != v1::DeadGroupFilter::default() => {
            Ok(LetterSelection::Matching(letter_filter(Some(group))))
        }
        _ => Err(Invalid::new("ids", "exactly one of `ids`, `all` and `group` must be given")),
    }
}

fn letter_filter(group: Option<v1::DeadGroupFilter>) -> LetterFilter {
    let v1::DeadGroupFilter { reason, target } = group.unwrap_or_default();
    let set = |text: String| Some(text).filter(|text| !text.is_empty());
    LetterFilter { reason: set(reason), target: set(target) }
}

fn letter_problems(problems: Vec<(String, Problem)>) -> Vec<v1::RedriveProblem> {
    let problem = |(id, problem)| {
        let problem = Some(convert::to_problem(&problem));
        v1::RedriveProblem { id, problem }
    };
    problems.into_iter().map(problem).collect()
}

pub(super) async fn delete_dead_letter(
    broker: &Broker,
    namespace: &Namespace,
    fire_id: &str,
) -> Result<v1::DeleteDeadLetterResponse, Status> {
    delete_letter(broker, namespace, fire_id).await.map_err(refused)?;
    Ok(v1::DeleteDeadLetterResponse {})
}

pub(super) async fn stats(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<v1::StatsResponse, Status> {
    let stats = count_tasks(broker, namespace, broker.clock.now()).await.map_err(refused)?;
    Ok(counts(&stats))
}

pub(super) fn counts(stats: &TaskStats) -> v1::StatsResponse {
    v1::StatsResponse {
        accepted: stats.accepted(),
        scheduled: stats.counts.scheduled,
        firing: stats.firing,
        paused: stats.counts.paused,
        done: stats.counts.done,
        dead: stats.counts.dead,
        cancelled: stats.counts.cancelled,
        dead_letters: stats.counts.dead_letters,
        queued: stats.queued as u64,
        parked_lanes: stats.parked_lanes as u64,
        oldest_overdue_at_ms: stats.oldest_overdue.map(Timestamp::as_millis),
    }
}

pub(super) async fn forecast(
    broker: &Broker,
    namespace: Namespace,
    request: v1::ForecastRequest,
) -> Result<v1::ForecastResponse, Status> {
    let (ahead, step) = (convert::given(request.for_ms), convert::given(request.step_ms));
    let at = request.at_ms.map(Timestamp::from_millis);
    let by = parse_division(&request.by).map_err(convert::invalid)?;
    let span = ForecastSpan { at, ahead, step, by };
    let forecast = expected_fires(broker, namespace, span).await.map_err(refused)?;
    let FireForecast { from, step, fires, until, targets } = forecast;
    let targets = targets.into_iter();
    let targets = targets.map(|(target, fires)| v1::TargetForecast { target, fires }).collect();
    Ok(v1::ForecastResponse {
        from_ms: from.as_millis(),
        step_ms: convert::as_millis(step),
        fires,
        complete_until_ms: until.map(Timestamp::as_millis),
        targets,
    })
}

pub(super) async fn queues(broker: &Broker, namespace: &Namespace) -> Read<v1::QueuesResponse> {
    let permit = permit(broker, namespace).await?;
    let queues = list_queues(broker, namespace).await.map_err(refused)?;
    let now = broker.clock.now();
    let queues = queues.iter().map(|(name, queue)| queue_info(name, queue, now));
    Ok((v1::QueuesResponse { queues: queues.collect() }, permit))
}

fn queue_info(name: &Queue, queue: &QueueSummary, now: Timestamp) -> v1::QueueInfo {
    v1::QueueInfo {
        name: name.as_str().to_owned(),
        waiting: queue.waiting as u64,
        more: queue.more,
        in_flight: queue.in_flight as u64,
        workers: queue.workers as u64,
        oldest_overdue_ms: queue.oldest_overdue.map_or(0, |oldest| lag_ms(now, oldest)),
    }
}

pub(super) async fn workers(broker: &Broker, namespace: &Namespace) -> Read<v1::WorkersResponse> {
    let permit = permit(broker, namespace).await?;
    let workers = list_workers(broker, namespace).await.map_err(refused)?;
    let workers = workers.into_iter().map(|(broker, worker)| worker_info(broker, &worker));
    Ok((v1::WorkersResponse { workers: workers.collect() }, permit))
}

pub(super) async fn lanes(broker: &Broker, namespace: &Namespace) -> Read<v1::LanesResponse> {
    let permit = permit(broker, namespace).await?;
    let list = list_lanes(broker, namespace).await.map_err(refused)?;
    let now = broker.clock.now();
    let lanes = list.lanes.iter().map(|lane| lane_info(lane, now)).collect();
    Ok((v1::LanesResponse { lanes, complete: list.complete }, permit))
}

fn lane_info(lane: &LaneSummary, now: Timestamp) -> v1::LaneInfo {
    v1::LaneInfo {
        kind: kind_of(&lane.target).to_owned(),
        target: lane.target.group(),
        connection: lane.connection().unwrap_or_default().to_owned(),
        state: lane.state.name().to_owned(),
        since_ms: lane.since.map(Timestamp::as_millis),
        waiting: lane.waiting as u64,
        more: lane.more,
        in_flight: lane.in_flight as u64,
        capacity: lane.capacity as u64,
        oldest_overdue_ms: lane.oldest_overdue.map_or(0, |oldest| lag_ms(now, oldest)),
        failed: lane.failed,
        last_failure: lane.last_failure.as_ref().map(|failure| v1::LaneFailure {
            at_ms: failure.at.as_millis(),
            reason: failure.reason.as_str().to_owned(),
            retry_at_ms: failure.retry_at.map(Timestamp::as_millis),
        }),
    }
}

fn worker_info(broker: String, worker: &WorkerView) -> v1::WorkerInfo {
    v1::WorkerInfo {
        name: worker.label.name.to_string(),
        address: worker.label.address.to_string(),
        broker,
        queues: worker.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
        in_flight: worker.in_flight as u64,
        credit: worker.credit as u64,
        since_ms: worker.since.as_millis(),
    }
}
