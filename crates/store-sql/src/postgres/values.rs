//! Values of columns: ids are `uuid`, which PostgreSQL orders by their bytes, as Punctual does.

use std::error::Error;

use bytes::BytesMut;
use punctual_sql::tokio_postgres::Row;
use punctual_sql::tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::values::{Columns, SqlId, StatementParam};

type Written = Result<IsNull, Box<dyn Error + Sync + Send>>;

impl ToSql for SqlId {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Written {
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

impl ToSql for StatementParam<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Written {
        match self {
            Self::Int(number) if *kind == Type::INT2 => i16::try_from(*number)?.to_sql(kind, out),
            Self::Int(number) if *kind == Type::INT4 => i32::try_from(*number)?.to_sql(kind, out),
            Self::Int(number) => number.to_sql(kind, out),
            Self::Text(text) => text.to_sql(kind, out),
            Self::Bytes(bytes) => bytes.to_sql(kind, out),
            Self::Id(id) => id.to_sql(kind, out),
            Self::Ids(ids) => ids.to_sql(kind, out),
            Self::Ints(numbers) => numbers.to_sql(kind, out),
            Self::Kinds(kinds) => kinds.to_sql(kind, out),
            Self::Names(names) => names.to_sql(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl Columns for Row {
    fn int(&self, column: usize) -> i64 {
        self.get(column)
    }

    fn int_or_null(&self, column: usize) -> Option<i64> {
        self.get(column)
    }

    fn flag(&self, column: usize) -> bool {
        self.get(column)
    }

    fn id(&self, column: usize) -> SqlId {
        self.get(column)
    }

    fn bytes(&self, column: usize) -> &[u8] {
        self.get(column)
    }

    fn bytes_or_null(&self, column: usize) -> Option<&[u8]> {
        self.get(column)
    }

    fn text(&self, column: usize) -> String {
        self.get(column)
    }
}

/// Shows an id as `psql` reads it.
pub(super) fn uuid(id: SqlId) -> String {
    let text = format!("{id:x}");
    let (a, rest) = text.split_at(8);
    let (b, rest) = rest.split_at(4);
    let (c, rest) = rest.split_at(4);
    let (d, e) = rest.split_at(4);
    format!("{a}-{b}-{c}-{d}-{e}")
}
