//! Reads `Retry-After` from the head of an answer.
//!
//! A date is compared with the `Date` of the same answer, so that the clocks of receiver and broker
//! need not agree; without a `Date` it is ignored.

use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName};

/// Returns how long the receiver wants the broker to wait, if the header is valid.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = text(headers, &RETRY_AFTER)?;
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit is a very long pause; `settle` limits it.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    let date = httpdate::parse_http_date(self::text(headers, &DATE)?).ok()?;
    Some(at.duration_since(date).unwrap_or_default())
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn seconds_and_dates_are_parsed() {
        const DATE_HERE: Option<&str> = Some("Wed, 21 Oct 2015 07:28:00 GMT");
        for (retry_after_text, date, want) in [
            ("0", None, Some(0)),
            ("120", None, Some(120)),
            (" 5 ", None, Some(5)),
            ("99999999999999999999999", None, Some(u64::MAX)),
            ("Wed, 21 Oct 2015 07:29:30 GMT", DATE_HERE, Some(90)),
            // The older forms of a date.
            ("Wednesday, 21-Oct-15 07:29:30 GMT", DATE_HERE, Some(90)),
            ("Wed Oct 21 07:29:30 2015", DATE_HERE, Some(90)),
            // A date in the past.
            ("Wed, 21 Oct 2015 07:27:00 GMT", DATE_HERE, Some(0)),
            // A date without a valid `Date`.
            ("Wed, 21 Oct 2015 07:29:30 GMT", None, None),
            ("Wed, 21 Oct 2015 07:29:30 GMT", Some("yesterday"), None),
            ("", None, None),
            ("-1", None, None),
            ("1.5", None, None),
            ("soon", DATE_HERE, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(retry_after_text));
            if let Some(date) = date {
                headers.insert(DATE, HeaderValue::from_static(date));
            }
            let want = want.map(Duration::from_secs);
            assert_eq!(retry_after(&headers), want, "{retry_after_text:?}, {date:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
