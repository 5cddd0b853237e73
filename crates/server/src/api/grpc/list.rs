//! Listing: the pages of all partitions, as one page in the order in which tasks are due.
//!
//! In: a filter and a cursor. Out: a page, and where the next one begins.
//! Invariant: nothing is left out. A store may end a page early, so the common page ends where the first of them does.

use prost::Message;
use punctual_core::{Invalid, Namespace, TaskId, TaskState, Timestamp};
use punctual_proto::v1;
use punctual_store::{Filter, Position, TaskStore};
use tonic::Status;

use super::convert;
use crate::broker::Broker;

/// Tasks on a page.
const LIMIT_MAX: usize = 1_000;
/// Tasks on a page when nobody says.
const LIMIT_DEFAULT: usize = 100;
/// Bytes at which a page ends early: what clients take, with room for the largest task.
const PAGE_BYTES_MAX: usize = 3 * 1024 * 1024;

pub(super) async fn list(
    broker: &Broker,
    namespace: Namespace,
    request: v1::ListRequest,
) -> Result<v1::ListResponse, Status> {
    let after = cursor(&request.cursor).map_err(convert::invalid)?;
    let limit = match usize::try_from(request.limit).unwrap_or(usize::MAX) {
        0 => LIMIT_DEFAULT,
        limit => limit.min(LIMIT_MAX),
    };
    let filter = filter(namespace, request).map_err(convert::invalid)?;
    let after = after.unwrap_or(Position::before(filter.from));
    let mut tasks = Vec::new();
    let mut end: Option<Position> = None;
    for partition in broker.owners.partitions().iter() {
        let page = broker.store.list(partition, &filter, after, limit).await;
        let page = page.map_err(|error| Status::unavailable(error.to_string()))?;
        tasks.extend(page.items);
        if let Some(next) = page.next {
            end = Some(end.map_or(next, |end| first(end, next)));
        }
    }
    tasks.sort_by_key(|task| task.position());
    if let Some(end) = end {
        tasks.retain(|task| task.position() <= (end.fire_at, end.id));
    }
    let mut answer = v1::ListResponse::default();
    let mut bytes = 0;
    for task in &tasks {
        if answer.tasks.len() == limit || bytes > PAGE_BYTES_MAX {
            end = answer.tasks.len().checked_sub(1).map(|last| Position::of(&tasks[last]));
            break;
        }
        let told = convert::task(task);
        bytes += told.encoded_len();
        answer.tasks.push(told);
    }
    answer.next =
        end.map_or_else(String::new, |end| format!("{}.{}", end.fire_at.as_millis(), end.id));
    Ok(answer)
}

fn first(one: Position, other: Position) -> Position {
    if (one.fire_at, one.id) <= (other.fire_at, other.id) { one } else { other }
}

fn cursor(text: &str) -> Result<Option<Position>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    let position = || {
        let (fire_at, id) = text.split_once('.')?;
        let fire_at = Timestamp::try_from_millis(fire_at.parse().ok()?).ok()?;
        Some(Position { fire_at, id: id.parse::<TaskId>().ok()? })
    };
    let problem = "must be the `next` of another page";
    position().map(Some).ok_or_else(|| Invalid::new("cursor", problem))
}

fn filter(namespace: Namespace, request: v1::ListRequest) -> Result<Filter, Invalid> {
    // Not `request.state()`: it takes a number that it does not know for none, and all tasks would be listed.
    let state = match convert::known("state", request.state)? {
        v1::TaskState::Unspecified => None,
        v1::TaskState::Scheduled => Some(TaskState::Scheduled),
        v1::TaskState::Paused => Some(TaskState::Paused),
        // Watches that have fired and were not touched since.
        v1::TaskState::Done => Some(TaskState::Done),
        v1::TaskState::Dead => Some(TaskState::Dead),
        _ => return Err(Invalid::new("state", "must be scheduled, paused, done or dead")),
    };
    let label = match request.label.split_once('=') {
        Some((name, value)) => Some((name.to_owned(), value.to_owned())),
        None if request.label.is_empty() => None,
        None => return Err(Invalid::new("label", "must be `name=value`")),
    };
    let to = match request.to_ms {
        0 => Timestamp::MAX,
        to => convert::timestamp("to", to)?,
    };
    let from = convert::timestamp("from", request.from_ms)?;
    Ok(Filter { namespace, state, key_prefix: request.key_prefix, label, from, to })
}
