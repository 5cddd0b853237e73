//! Times and durations in requests. An [`Invalid`] names the field that is wrong.

use std::time::Duration;

use punctual_core::{Invalid, Timestamp, parse_duration};
use serde::{Deserialize, Serialize};

use super::whole_number::WholeNumber;
use crate::schema::{self, documented};

/// A time: RFC 3339 text like `2030-01-31T12:00:00Z`, or whole milliseconds since the Unix epoch.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(untagged, expecting = "a time must be RFC 3339 text or whole milliseconds since 1970")]
pub(crate) enum TimeValue {
    Millis(WholeNumber),
    Text(String),
}

documented!(impl TimeValue, "Time", schema::time());

impl TimeValue {
    /// The time, or an error that names `field`.
    pub(crate) fn to_timestamp(&self, field: &str) -> Result<Timestamp, Invalid> {
        let at = match self {
            Self::Millis(millis) => Timestamp::try_from_millis(i128::from(millis.0)),
            Self::Text(text) => Timestamp::parse_rfc3339(text),
        };
        at.map_err(|error| Invalid::new(field, error.to_string()))
    }
}

/// Parses a time in a query: RFC 3339 text or milliseconds.
pub(crate) fn parse_time_field(field: &str, text: &str) -> Result<Timestamp, Invalid> {
    let time = match text.parse() {
        Ok(millis) => TimeValue::Millis(WholeNumber(millis)),
        Err(_) => TimeValue::Text(text.to_owned()),
    };
    time.to_timestamp(field)
}

/// Parses a duration; the error names `field`.
pub(crate) fn parse_duration_field(field: &str, text: &str) -> Result<Duration, Invalid> {
    parse_duration(text).map_err(|error| Invalid::new(field, error.to_string()))
}
