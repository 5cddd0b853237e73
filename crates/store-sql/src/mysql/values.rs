//! Values of columns: names and ids are bytes, numbers are `BIGINT`.

use punctual_sql::mysql_async::{Row, Value};

use crate::values::{Columns, SqlId, bigint};

const NULL: &Value = &Value::NULL;

fn column(row: &Row, index: usize) -> &Value {
    row.as_ref(index).unwrap_or(NULL)
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::UInt(number) => Some(bigint(*number)),
        Value::Bytes(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

fn raw(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// A value of another type reads as 0 or empty: no statement has one.
impl Columns for Row {
    fn int(&self, index: usize) -> i64 {
        number(column(self, index)).unwrap_or(0)
    }

    fn int_or_null(&self, index: usize) -> Option<i64> {
        number(column(self, index))
    }

    fn flag(&self, index: usize) -> bool {
        self.int(index) != 0
    }

    fn id(&self, index: usize) -> SqlId {
        let bytes = raw(column(self, index)).and_then(|bytes| bytes.try_into().ok());
        SqlId(bytes.map_or(0, u128::from_be_bytes))
    }

    fn bytes(&self, index: usize) -> &[u8] {
        raw(column(self, index)).unwrap_or_default()
    }

    fn bytes_or_null(&self, index: usize) -> Option<&[u8]> {
        raw(column(self, index))
    }

    fn text(&self, index: usize) -> String {
        String::from_utf8_lossy(self.bytes(index)).into_owned()
    }
}
