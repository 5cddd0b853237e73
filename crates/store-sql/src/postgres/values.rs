//! Values of columns: ids as `uuid`, which PostgreSQL orders by their bytes, as Punctual does.

use std::error::Error;

use bytes::BytesMut;
use punctual_core::{FireId, TaskId};
use punctual_sql::tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The id of a task as a `uuid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SqlId(pub(crate) u128);

impl From<TaskId> for SqlId {
    fn from(id: TaskId) -> Self {
        Self(id.as_u128())
    }
}

impl ToSql for SqlId {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for SqlId {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(u128::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

/// Shows an id as `psql` reads it.
impl std::fmt::Display for SqlId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:032x}", self.0);
        let (a, rest) = text.split_at(8);
        let (b, rest) = rest.split_at(4);
        let (c, rest) = rest.split_at(4);
        let (d, e) = rest.split_at(4);
        write!(formatter, "{a}-{b}-{c}-{d}-{e}")
    }
}

/// Times and numbers are `bigint`; none of them reaches 2^63.
pub(crate) fn bigint(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns the two columns of a fire.
pub(crate) fn fire_columns(fire_id: FireId) -> (SqlId, i64) {
    (fire_id.task.into(), bigint(fire_id.nominal_at.as_millis()))
}
