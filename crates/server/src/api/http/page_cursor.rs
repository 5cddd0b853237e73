//! Cursors of lists: opaque text that says after which entry the next page begins.
//!
//! The first letter is the kind of list, so that a cursor of one list is refused by another. A
//! cursor stays valid when tasks are added or removed between two pages.

use punctual_core::FireId;
use punctual_store::Position;

use crate::problem::Problem;

const TASKS: char = 't';
const DEAD_LETTERS: char = 'd';

pub(crate) fn after_task(position: Position) -> String {
    let Position { fire_at, id } = position;
    format!("{TASKS}{}", FireId { task: id, nominal_at: fire_at })
}

pub(crate) fn after_dead_letter(fire_id: FireId) -> String {
    format!("{DEAD_LETTERS}{fire_id}")
}

/// Reads a cursor of a list of tasks.
pub(crate) fn task_position(cursor: Option<&str>) -> Result<Option<Position>, Problem> {
    let after = parse(TASKS, cursor)?;
    Ok(after.map(|after| Position { fire_at: after.nominal_at, id: after.task }))
}

/// Reads a cursor of a list of dead letters.
pub(crate) fn dead_letter(cursor: Option<&str>) -> Result<Option<FireId>, Problem> {
    parse(DEAD_LETTERS, cursor)
}

fn parse(kind: char, cursor: Option<&str>) -> Result<Option<FireId>, Problem> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    let after = cursor.strip_prefix(kind).and_then(|after| after.parse().ok());
    after.map(Some).ok_or_else(|| {
        let detail = "cursor must be the `next` of an earlier page of this list";
        Problem::invalid_request(detail, Some("cursor".to_owned()))
    })
}
