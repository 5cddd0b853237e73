//! Templates of keys: text with parts of a message in braces.
//!
//! `{1}` is what the first wildcard of the pattern stands for, `{name}` a header, `{/order/id}`
//! what a JSON pointer leads to in the body. `{{` and `}}` are braces.

use std::cell::OnceCell;

use punctual_core::Invalid;
use serde_json::Value;

use super::message::SourceMessage;
use super::pattern::PlacePattern;

/// Parts of one template: more than any key has use for.
const PARTS_MAX: usize = 16;

/// A template of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyTemplate(Vec<KeyPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum KeyPart {
    Text(String),
    /// Counted from zero.
    Wildcard(usize),
    Header(String),
    /// A JSON pointer.
    Body(String),
}

impl KeyTemplate {
    /// Reads a template whose wildcards are those of a pattern. The error says what is allowed.
    pub(crate) fn parse(text: &str, pattern: Option<&PlacePattern>) -> Result<Self, String> {
        let mut parts = Vec::new();
        let (mut literal, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let sign = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(sign) {
                literal.push_str(sign);
                rest = after;
                continue;
            }
            let end = if sign == "{" { rest.find('}') } else { None };
            let end =
                end.ok_or_else(|| format!("has {sign:?} alone; write {sign}{sign} for it"))?;
            if !literal.is_empty() {
                parts.push(KeyPart::Text(std::mem::take(&mut literal)));
            }
            parts.push(KeyPart::parse(&rest[..end], pattern)?);
            rest = &rest[end + 1..];
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(KeyPart::Text(literal));
        }
        match parts.len() {
            0 => Err("must not be empty".to_owned()),
            count if count > PARTS_MAX => Err(format!("must have at most {PARTS_MAX} parts")),
            _ => Ok(Self(parts)),
        }
    }

    /// The key of a message whose place matches the pattern with these captures.
    pub(crate) fn key(
        &self,
        message: &SourceMessage,
        captures: &[&str],
    ) -> Result<String, Invalid> {
        let body = OnceCell::new();
        let mut key = String::new();
        for part in &self.0 {
            match part {
                KeyPart::Text(text) => key.push_str(text),
                KeyPart::Wildcard(at) => key.push_str(captures.get(*at).copied().unwrap_or("")),
                KeyPart::Header(name) => {
                    let missing = || Invalid::new("key", format!("needs the header {name:?}"));
                    key.push_str(message.header(name).ok_or_else(missing)?);
                }
                KeyPart::Body(pointer) => {
                    let body = body.get_or_init(|| {
                        serde_json::from_slice(&message.body).unwrap_or(Value::Null)
                    });
                    match body.pointer(pointer) {
                        Some(Value::String(text)) => key.push_str(text),
                        Some(Value::Number(number)) => key.push_str(&number.to_string()),
                        Some(_) | None => {
                            let problem =
                                format!("needs a text or a number at {pointer:?} in the body");
                            return Err(Invalid::new("key", problem));
                        }
                    }
                }
            }
        }
        Ok(key)
    }
}

impl KeyPart {
    fn parse(text: &str, pattern: Option<&PlacePattern>) -> Result<Self, String> {
        if text.is_empty() {
            return Err("has empty braces".to_owned());
        }
        if text.starts_with('/') {
            return Ok(Self::Body(text.to_owned()));
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self::Header(text.to_owned()));
        }
        let wildcards = pattern.map_or(0, PlacePattern::wildcards);
        let number = text.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        match number.filter(|number| *number < wildcards) {
            Some(number) => Ok(Self::Wildcard(number)),
            None => Err(format!("has {{{text}}}, but the pattern has {wildcards} wildcards")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::pattern::WildcardStyle;

    fn pattern() -> PlacePattern {
        PlacePattern::parse(WildcardStyle::Mqtt, "+/devices/+").unwrap()
    }

    #[test]
    fn a_key_is_made_of_wildcards_headers_and_the_body() {
        let message = SourceMessage {
            place: "home/devices/7".to_owned(),
            headers: vec![("Device".to_owned(), "lamp".to_owned())],
            body: r#"{"order": {"id": 42, "name": "x", "deep": {}}}"#.into(),
            ..SourceMessage::default()
        };
        let captures = pattern().captures(&message.place).unwrap();
        for (template, expected) in [
            ("{2}", Some("7")),
            ("{1}:{2}", Some("home:7")),
            ("lamp", Some("lamp")),
            ("{{{2}}}", Some("{7}")),
            ("{device}-{2}", Some("lamp-7")),
            ("order-{/order/id}", Some("order-42")),
            ("{/order/name}", Some("x")),
            ("{/order/deep}", None),
            ("{/order/none}", None),
            ("{none}", None),
        ] {
            let parsed = KeyTemplate::parse(template, Some(&pattern())).unwrap();
            assert_eq!(parsed.key(&message, &captures).ok().as_deref(), expected, "{template}");
        }
    }

    #[test]
    fn a_template_that_no_message_can_fill_is_refused() {
        for template in ["", "{3}", "{0}", "{", "}", "a{b", "{}", "{99999999999999999999}"] {
            assert!(KeyTemplate::parse(template, Some(&pattern())).is_err(), "{template}");
        }
        assert!(KeyTemplate::parse("{1}", None).is_err());
    }
}
