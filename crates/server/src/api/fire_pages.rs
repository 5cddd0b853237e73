//! Reads pages of ended fires from all partitions, for HTTP and gRPC.
//!
//! Pages come from the store, newest first. The cursor of a page is opaque text; both protocols
//! use the same.

use std::cmp::Reverse;
use std::sync::Arc;

use punctual_core::{AttemptRecord, EndKind, FireRecord, Invalid, Timestamp};
use punctual_store::{FireFilter, FirePosition, Page, TaskStore as _};

use super::merge_pages::{SortBy, merge};
use crate::broker::Broker;
use crate::problem::Problem;

/// The first letter of cursors, which tells them from those of other lists.
const FIRES: char = 'f';

/// How fires can have ended, by the names that callers use.
pub(crate) const ENDS: [(&str, EndKind); 5] = [
    ("done", EndKind::Done),
    ("dead", EndKind::Dead),
    ("cancelled", EndKind::Cancelled),
    ("replaced", EndKind::Replaced),
    ("skipped", EndKind::Skipped),
];

/// Returns a page of ended fires, newest first.
pub(crate) async fn fire_page(
    broker: &Broker,
    filter: &FireFilter,
    after: Option<FirePosition>,
    limit: usize,
) -> Result<Page<FireRecord, FirePosition>, Problem> {
    let sort_by = SortBy {
        position: |record| Reverse(FirePosition::of(record)),
        weight: record_weight,
        join: None,
    };
    let fetch = |partition, after: Option<Reverse<FirePosition>>, limit| {
        let (store, filter) = (Arc::clone(&broker.store), filter.clone());
        async move {
            let after = after.map(|Reverse(after)| after);
            let Page { items, next } = store.fires(partition, &filter, after, limit).await?;
            Ok(Page { items, next: next.map(Reverse) })
        }
    };
    let after = after.map(Reverse);
    let page = merge(broker.owners.partitions(), after, limit, &sort_by, fetch).await?;
    Ok(Page { items: page.items, next: page.next.map(|Reverse(next)| next) })
}

/// About how many bytes a record takes in a response.
fn record_weight(record: &FireRecord) -> usize {
    let answer = |attempt: &AttemptRecord| {
        let body = attempt.answer.as_ref().map_or(0, |answer| answer.body().len());
        // Base64 adds a third, and JSON may escape.
        body + body / 2 + 256
    };
    record.attempts.iter().map(answer).sum::<usize>() + 512
}

/// Parses how a fire ended.
pub(crate) fn parse_end(text: &str) -> Result<EndKind, Invalid> {
    let found = ENDS.into_iter().find(|(name, _)| *name == text);
    let problem = "must be done, dead, cancelled, replaced or skipped";
    found.map(|(_, end)| end).ok_or_else(|| Invalid::new("end", problem))
}

/// Returns the cursor of the page after this position.
pub(crate) fn after_fire(FirePosition { ended_at, fire_id }: FirePosition) -> String {
    format!("{FIRES}{}.{fire_id}", ended_at.as_millis())
}

/// Parses a cursor of a list of fires.
pub(crate) fn parse_cursor(cursor: &str) -> Option<FirePosition> {
    let (ended_at, fire_id) = cursor.strip_prefix(FIRES)?.split_once('.')?;
    let ended_at = Timestamp::try_from_millis(ended_at.parse().ok()?).ok()?;
    Some(FirePosition { ended_at, fire_id: fire_id.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use punctual_core::{FireId, TaskId};

    use super::*;

    #[test]
    fn a_cursor_is_read_back_and_anything_else_is_refused() {
        let ended_at = Timestamp::from_millis(1_700_000_000_123);
        let fire_id = FireId { task: TaskId::floor(ended_at), nominal_at: ended_at };
        let position = FirePosition { ended_at, fire_id };
        assert_eq!(parse_cursor(&after_fire(position)), Some(position));
        let cursor = after_fire(position);
        for text in ["", "f", "f1", "f1.", "x", &cursor[1..], &format!("f-1.{fire_id}")] {
            assert_eq!(parse_cursor(text), None, "{text:?}");
        }
    }

    #[test]
    fn every_end_has_a_name() {
        for end in EndKind::ALL {
            let (name, _) = ENDS.into_iter().find(|(_, kind)| *kind == end).unwrap();
            assert_eq!(parse_end(name), Ok(end));
        }
        assert!(parse_end("firing").is_err());
    }
}
