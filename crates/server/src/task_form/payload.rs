//! Payloads of JSON: which ones can be read back.
//!
//! In: JSON as text. Out: nothing, or what is wrong with it.
//! Invariant: a payload that is taken can be read by whoever reads the API with a strict parser. It stands in lists and deliveries beside
//! those of others, and one that cannot be read would take the whole answer with it.
//! Not here: how long it may be (`core`), and whether it is JSON at all: whoever comes here has seen to it, or will.

use punctual_core::{Invalid, PAYLOAD_BYTES_MAX};

/// Arrays and objects within each other in a payload: common parsers stop at 128.
const PAYLOAD_DEPTH_MAX: usize = 100;

/// Digits in a row that fit a double, whatever they are.
const DIGITS_MAX: usize = 300;

/// Checks what the grammar of JSON allows and parsers do not: depth, halves of surrogate pairs, numbers beyond a double. Most payloads have
/// neither `\u` nor an exponent, and are looked through once.
pub(crate) fn check_json(json: &str) -> Result<(), Invalid> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let (mut digits, mut is_odd) = (0usize, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => {
                escaped = false;
                is_odd |= byte == b'u';
            }
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'0'..=b'9' => {
                digits += 1;
                is_odd |= digits > DIGITS_MAX;
                continue;
            }
            b'e' | b'E' => is_odd |= digits > 0,
            _ => {}
        }
        digits = 0;
        if depth > PAYLOAD_DEPTH_MAX {
            let problem = format!("must be nested at most {PAYLOAD_DEPTH_MAX} deep");
            return Err(Invalid::new("payload", problem));
        }
    }
    // What is too long is refused for that, and not worth the memory.
    if is_odd
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
    fn what_a_strict_parser_does_not_read_is_refused() {
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
