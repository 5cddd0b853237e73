//! Checks that every strict parser can read a JSON payload back.
//!
//! A payload appears in lists and deliveries next to others. One that a parser rejects would make
//! the whole response unreadable. The core checks the length; callers check that it is JSON.

use punctual_core::{Invalid, PAYLOAD_BYTES_MAX};
use serde_json::json;

use crate::schema::documented;

/// Nesting of arrays and objects: common parsers stop at 128.
pub(super) const PAYLOAD_DEPTH_MAX: usize = 100;

/// Digits in a row that always fit a double.
const DIGITS_MAX: usize = 300;

documented!(
    /// Any JSON value within limits.
    PayloadJson,
    "Payload",
    json!({
        "description": "Any JSON value, as it was sent.",
        "x-max-bytes": PAYLOAD_BYTES_MAX,
        "x-max-depth": PAYLOAD_DEPTH_MAX,
    })
);

/// Refuses what the JSON grammar allows and parsers reject: deep nesting, unpaired surrogates, and
/// numbers beyond a double. Most payloads have neither `\u` nor an exponent and are scanned once.
pub(crate) fn check_json(json: &str) -> Result<(), Invalid> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let (mut digits, mut needs_parse) = (0usize, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => {
                escaped = false;
                needs_parse |= byte == b'u';
            }
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'0'..=b'9' => {
                digits += 1;
                needs_parse |= digits > DIGITS_MAX;
                continue;
            }
            b'e' | b'E' => needs_parse |= digits > 0,
            _ => {}
        }
        digits = 0;
        if depth > PAYLOAD_DEPTH_MAX {
            let problem = format!("must be nested at most {PAYLOAD_DEPTH_MAX} deep");
            return Err(Invalid::new("payload", problem));
        }
    }
    // A payload that is too long is refused by the core; parsing it would cost memory.
    if needs_parse
        && json.len() <= PAYLOAD_BYTES_MAX
        && let Err(error) = serde_json::from_str::<serde_json::Value>(json)
    {
        let problem = format!("must be JSON that every parser reads: {error}");
        return Err(Invalid::new("payload", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_outside_strings() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        for (json, taken) in [
            (nested(100), true),
            (nested(101), false),
            (format!("[{}]", vec!["[]"; 200].join(",")), true),
            (format!("\"{}\"", "[".repeat(200)), true),
            (format!("\"\\\"{}\"", "[".repeat(200)), true),
            (format!("[\"\\\\\",{}]", nested(100)), false),
        ] {
            assert_eq!(check_json(&json).is_ok(), taken, "{json}");
        }
    }

    #[test]
    fn a_payload_that_a_strict_parser_rejects_is_refused() {
        let long = "9".repeat(400);
        for (json, taken) in [
            (r#""\ud83d\ude00""#, true),
            (r#""\ud83d""#, false),
            (r#""\ude00\ud83d""#, false),
            (r#"{"a":{"\ud83d":1}}"#, false),
            (r#""\\ud83d""#, true),
            (r#""1e400""#, true),
            ("[true, false, null]", true),
            ("1e308", true),
            ("[1.5E+400]", false),
            ("-1e400", false),
            ("1e-400", true),
            (&long, false),
            (&format!("0.{long}"), true),
            (&format!("\"{long}\""), true),
        ] {
            assert_eq!(check_json(json).is_ok(), taken, "{json}");
        }
    }
}
