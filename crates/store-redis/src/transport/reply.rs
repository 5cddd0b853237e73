//! Replies: takes replies of Redis apart as untrusted input.
//!
//! Each function returns the expected shape or [`StoreError::Broken`]. Nothing here panics.

use punctual_store::StoreError;
use redis::Value;

/// Returns the error for a reply of another shape.
pub(crate) fn unexpected(what: &str) -> StoreError {
    StoreError::Broken(format!("unexpected reply of Redis: {what} was expected"))
}

pub(crate) fn array(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(unexpected("a list")),
    }
}

/// Returns the elements of a list of exactly `N`.
pub(crate) fn tuple<const N: usize>(value: Value) -> Result<[Value; N], StoreError> {
    array(value)?.try_into().map_err(|_| unexpected("a list of that length"))
}

pub(crate) fn integer(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(number) => Ok(*number),
        other => text(other)?.parse().map_err(|_| unexpected("a number")),
    }
}

pub(crate) fn float(value: &Value) -> Result<f64, StoreError> {
    text(value)?.parse().map_err(|_| unexpected("a number"))
}

pub(crate) fn text(value: &Value) -> Result<&str, StoreError> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected("text")),
        Value::SimpleString(text) => Ok(text),
        Value::Okay => Ok("OK"),
        _ => Err(unexpected("text")),
    }
}

pub(crate) fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    optional_bytes(value)?.ok_or_else(|| unexpected("bytes"))
}

/// Returns bytes, or `None` for nil.
pub(crate) fn optional_bytes(value: Value) -> Result<Option<Vec<u8>>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::Nil => Ok(None),
        _ => Err(unexpected("bytes")),
    }
}

pub(crate) fn optional_bytes_list(value: Value) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
    array(value)?.into_iter().map(optional_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_another_shape_is_an_error() {
        let bulk = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
        assert!(array(Value::Nil).is_err());
        assert!(tuple::<2>(Value::Array(vec![Value::Nil])).is_err());
        assert!(integer(&bulk(b"12x")).is_err());
        assert!(integer(&Value::Nil).is_err());
        assert_eq!(integer(&bulk(b"-12")).unwrap(), -12);
        assert!(float(&bulk(b"x")).is_err());
        assert_eq!(float(&bulk(b"-inf")).unwrap(), f64::NEG_INFINITY);
        assert!(text(&bulk(&[0xff])).is_err());
        assert!(bytes(Value::Nil).is_err());
        assert_eq!(optional_bytes(Value::Nil).unwrap(), None);
        assert!(optional_bytes_list(Value::Array(vec![Value::Int(1)])).is_err());
    }
}
