//! Values of columns and parameters, as the store has them. Each database turns them into its own.

use std::fmt;

use punctual_core::{FireId, TaskId};

/// The id of a task in a column: sixteen bytes, which both databases order as Punctual does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SqlId(pub(crate) u128);

impl From<TaskId> for SqlId {
    fn from(id: TaskId) -> Self {
        Self(id.as_u128())
    }
}

impl fmt::LowerHex for SqlId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

/// A parameter of a statement.
#[derive(Debug, Clone, Copy)]
pub enum StatementParam<'a> {
    /// A number, time or flag, whatever the width of its column.
    Int(i64),
    /// A text of ASCII letters.
    Text(&'a str),
    /// Bytes: a name, a key, an encoded value.
    Bytes(&'a [u8]),
    /// The id of a task.
    Id(SqlId),
    /// Ids of tasks.
    Ids(&'a [SqlId]),
    /// Numbers.
    Ints(&'a [i64]),
    /// How fires ended.
    Kinds(&'a [i16]),
    /// Names or keys.
    Names(&'a [&'a [u8]]),
}

/// The columns of a row that a statement returned, by their position. A column that has another
/// type than the statement names cannot occur.
pub trait Columns {
    /// Returns a number.
    fn int(&self, column: usize) -> i64;
    /// Returns a number, or `None` for NULL.
    fn int_or_null(&self, column: usize) -> Option<i64>;
    /// Returns a flag.
    fn flag(&self, column: usize) -> bool;
    /// Returns an id.
    fn id(&self, column: usize) -> SqlId;
    /// Returns bytes.
    fn bytes(&self, column: usize) -> &[u8];
    /// Returns bytes, or `None` for NULL.
    fn bytes_or_null(&self, column: usize) -> Option<&[u8]>;
    /// Returns a text.
    fn text(&self, column: usize) -> String;
}

/// Times and numbers are `bigint`; none of them reaches 2^63.
pub(crate) fn bigint(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns the two columns of a fire.
pub(crate) fn fire_columns(fire_id: FireId) -> (SqlId, i64) {
    (fire_id.task.into(), bigint(fire_id.nominal_at.as_millis()))
}
