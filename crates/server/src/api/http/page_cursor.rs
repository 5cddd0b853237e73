//! Cursors: where a list goes on, as text that only we read.
//!
//! A place among tasks or among dead letters, with a letter in front that says which. It stays good whatever happens in between.

use punctual_core::FireId;
use punctual_store::Position;

use super::error::Problem;

const TASKS: char = 't';
const DEAD: char = 'd';

/// Of a place among tasks.
pub(crate) fn of_position(position: Position) -> String {
    let Position { fire_at, id } = position;
    format!("{TASKS}{}", FireId { task: id, nominal_at: fire_at })
}

/// Of a place among dead letters.
pub(crate) fn of_letter(fire_id: FireId) -> String {
    format!("{DEAD}{fire_id}")
}

/// A place among tasks.
pub(crate) fn position(cursor: Option<&str>) -> Result<Option<Position>, Problem> {
    let place = read(TASKS, cursor)?;
    Ok(place.map(|place| Position { fire_at: place.nominal_at, id: place.task }))
}

/// A place among dead letters.
pub(crate) fn letter(cursor: Option<&str>) -> Result<Option<FireId>, Problem> {
    read(DEAD, cursor)
}

fn read(kind: char, cursor: Option<&str>) -> Result<Option<FireId>, Problem> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    let place = cursor.strip_prefix(kind).and_then(|place| place.parse().ok());
    place.map(Some).ok_or_else(|| {
        let detail = "cursor must be the `next` of an earlier answer of this list".to_owned();
        Problem::request(detail, Some("cursor".to_owned()))
    })
}
