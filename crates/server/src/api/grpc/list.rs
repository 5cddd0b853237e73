//! The `List` call: a page of tasks in the order of `fire_at`.
//!
//! `api/task_pages` reads the page. If the tasks do not fit one message, the rest is on the next
//! page; no task is left out. The permit of the list lasts until the page was sent.

use prost::Message;
use punctual_core::{Invalid, Namespace, TaskId, Timestamp};
use punctual_proto::v1;
use punctual_store::{Filter, Page, Position};
use tonic::Status;

use super::convert;
use crate::api::task_pages::{StateFilter, kind_filter, task_page};
use crate::broker::Broker;
use crate::shares::SharePermit;

/// Tasks on a page at most.
pub(super) const LIMIT_MAX: usize = 1_000;
/// Tasks on a page by default.
pub(super) const LIMIT_DEFAULT: usize = 100;
/// A page ends at this size: with one more task of the largest size it is still below the 4 MiB
/// that gRPC clients accept by default.
pub(super) const PAGE_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Returns a page, and the permit to keep until it was sent.
pub(super) async fn list(
    broker: &Broker,
    namespace: Namespace,
    request: v1::ListRequest,
) -> Result<(v1::ListResponse, SharePermit), Status> {
    let after = cursor(&request.cursor).map_err(convert::invalid)?;
    let limit = match usize::try_from(request.limit).unwrap_or(usize::MAX) {
        0 => LIMIT_DEFAULT,
        limit => limit.min(LIMIT_MAX),
    };
    let state = state_filter(request.state).map_err(convert::invalid)?;
    let filter = filter(namespace, request).map_err(convert::invalid)?;
    let after = after.unwrap_or(Position::before(filter.from));
    let permit = broker.limits.reads.acquire(&filter.namespace).await;
    let permit = permit.map_err(|problem| convert::to_status(&problem))?;
    let page = task_page(broker, state, filter, Some(after), limit).await;
    let Page { items, next } = page.map_err(|problem| convert::to_status(&problem))?;
    let (mut tasks, mut bytes, mut end) = (Vec::new(), 0, next);
    for (index, task) in items.iter().enumerate() {
        let message = convert::task(task);
        bytes += message.encoded_len();
        tasks.push(message);
        if bytes > PAGE_BYTES_MAX && index + 1 < items.len() {
            end = Some(Position::of(task));
            break;
        }
    }
    let next = end.map(|end| format!("{}.{}", end.fire_at.as_millis(), end.id));
    Ok((v1::ListResponse { tasks, next: next.unwrap_or_default() }, permit))
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
    let problem = "must be the `next` of an earlier page";
    position().map(Some).ok_or_else(|| Invalid::new("cursor", problem))
}

fn state_filter(state: i32) -> Result<StateFilter, Invalid> {
    // `request.state()` would treat an unknown number as unspecified, and list all tasks.
    match convert::known("state", state)? {
        v1::TaskState::Unspecified => Ok(StateFilter::Living),
        v1::TaskState::Scheduled => Ok(StateFilter::Scheduled),
        v1::TaskState::Firing => Ok(StateFilter::Firing),
        v1::TaskState::Paused => Ok(StateFilter::Paused),
        // Watches that have fired and were not touched since; other tasks that are done have ended.
        v1::TaskState::Done => Ok(StateFilter::Done),
        v1::TaskState::Dead => Ok(StateFilter::Dead),
        v1::TaskState::Cancelled => {
            Err(Invalid::new("state", "must be scheduled, firing, paused, done or dead"))
        }
    }
}

/// The name and the value of a label; `None` if it is empty.
pub(super) fn label(text: &str) -> Result<Option<(String, String)>, Invalid> {
    match text.split_once('=') {
        Some((name, value)) => Ok(Some((name.to_owned(), value.to_owned()))),
        None if text.is_empty() => Ok(None),
        None => Err(Invalid::new("label", "must be `name=value`")),
    }
}

fn filter(namespace: Namespace, request: v1::ListRequest) -> Result<Filter, Invalid> {
    let label = label(&request.label)?;
    let kind = Some(request.kind.as_str()).filter(|kind| !kind.is_empty());
    let kind = kind.map(kind_filter).transpose()?;
    let to = match request.to_ms {
        0 => Timestamp::MAX,
        to => convert::timestamp("to", to)?,
    };
    let from = convert::timestamp("from", request.from_ms)?;
    Ok(Filter { namespace, state: None, kind, key_prefix: request.key_prefix, label, from, to })
}
