//! The identity of a command that came as a message: the same whenever the message is given again.
//!
//! It is the id of the producer if there is one, else the position of the message in its system;
//! and always a digest of what the message says. A producer that uses an id for two messages has
//! two commands, unless they say the same (ADR 0046).

use blake3::Hasher;

use super::intake::Verb;
use super::message::{CONTENT_TYPE, MESSAGE_ID, SourceMessage};

/// Headers with the id of a producer, the first first. Those of CloudEvents are unique only
/// together with the `source`.
const IDS: [&str; 3] = ["webhook-id", "nats-msg-id", MESSAGE_ID];
/// The names that CloudEvents have for `id` and `source` in the systems.
const EVENT_IDS: [(&str, &str); 4] = [
    ("ce-id", "ce-source"),
    ("ce_id", "ce_source"),
    ("cloudEvents:id", "cloudEvents:source"),
    ("cloudEvents_id", "cloudEvents_source"),
];
/// Headers that change what a message means.
const MEANING: [&str; 4] = ["punctual-in", "punctual-at", "x-delay", CONTENT_TYPE];

/// The id of a command, and the digest of what its message says.
pub(crate) fn identity(
    source: &str,
    verb: Verb,
    key: Option<&str>,
    message: &SourceMessage,
) -> (String, String) {
    let mut hasher = Hasher::new();
    add(&mut hasher, Some(verb.as_str().as_bytes()));
    add(&mut hasher, key.map(str::as_bytes));
    for name in MEANING {
        add(&mut hasher, message.header(name).map(str::as_bytes));
    }
    add(&mut hasher, Some(&message.body));
    let digest = hasher.finalize().to_hex().to_string();
    let (kind, id) = producer_id(message).unwrap_or(("position", message.position.clone()));
    (format!("{source}\n{kind}\n{id}\n{digest}"), digest)
}

/// The digest of a text, as commands have it.
pub(crate) fn digest(text: &[u8]) -> String {
    blake3::hash(text).to_hex().to_string()
}

fn producer_id(message: &SourceMessage) -> Option<(&'static str, String)> {
    let given = |name: &str| message.header(name).filter(|value| !value.is_empty());
    for name in IDS {
        if let Some(id) = given(name) {
            return Some((name, id.to_owned()));
        }
    }
    // In MQTT 5 the attributes are user properties without a prefix.
    let plain = given("specversion").map(|_| ("id", "source"));
    for (id, source) in EVENT_IDS.into_iter().chain(plain) {
        if let (Some(id), Some(source)) = (given(id), given(source)) {
            return Some(("event", format!("{source}\n{id}")));
        }
    }
    None
}

/// With its length, so that two parts are never taken for one.
fn add(hasher: &mut Hasher, part: Option<&[u8]>) {
    let length = part.map_or(u64::MAX, |part| part.len() as u64);
    hasher.update(&length.to_le_bytes());
    hasher.update(part.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(position: &str, headers: &[(&str, &str)], body: &str) -> SourceMessage {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        SourceMessage {
            position: position.to_owned(),
            headers: headers.collect(),
            body: body.to_owned().into(),
            ..SourceMessage::default()
        }
    }

    fn id(message: &SourceMessage) -> String {
        identity("mq/orders", Verb::Schedule, Some("k"), message).0
    }

    #[test]
    fn a_message_that_is_given_again_has_the_same_id() {
        for (headers, first, again) in [
            (&[][..], "7", "7"),
            (&[("webhook-id", "a")], "7", "8"),
            (&[("message-id", "a")], "7", "8"),
            (&[("Nats-Msg-Id", "a")], "7", "8"),
            (&[("ce_id", "a"), ("ce_source", "/s")], "7", "8"),
            (&[("id", "a"), ("source", "/s"), ("specversion", "1.0")], "7", "8"),
        ] {
            let (first, again) = (message(first, headers, "x"), message(again, headers, "x"));
            assert_eq!(id(&first), id(&again), "{headers:?}");
        }
        // What a system adds to a message that it gives again changes nothing.
        let (first, again) =
            (message("7", &[], "x"), message("7", &[("x-delivery-count", "1")], "x"));
        assert_eq!(id(&first), id(&again));
    }

    #[test]
    fn another_message_is_never_taken_for_the_same() {
        let one = message("7", &[("message-id", "a"), ("punctual-in", "1s")], "x");
        for other in [
            message("7", &[("message-id", "b"), ("punctual-in", "1s")], "x"),
            message("7", &[("message-id", "a"), ("punctual-in", "2s")], "x"),
            message("7", &[("message-id", "a"), ("punctual-in", "1s")], "y"),
            message("7", &[("webhook-id", "a"), ("punctual-in", "1s")], "x"),
            message("7", &[("punctual-in", "1s")], "x"),
        ] {
            assert_ne!(id(&one), id(&other), "{other:?}");
        }
        let plain = |position, body| id(&message(position, &[], body));
        assert_ne!(plain("7", "x"), plain("8", "x"));
        assert_ne!(plain("7", "x"), plain("7", "y"));
        // An id without its source says nothing.
        let events = |position| id(&message(position, &[("ce_id", "a")], "x"));
        assert_ne!(events("7"), events("8"));
        let of = |verb, key| identity("mq/orders", verb, key, &one).0;
        assert_ne!(of(Verb::Touch, None), of(Verb::Schedule, None));
        assert_ne!(of(Verb::Schedule, Some("a")), of(Verb::Schedule, Some("b")));
        assert_ne!(of(Verb::Schedule, None), of(Verb::Schedule, Some("")));
        let other_source = identity("mq/other", Verb::Schedule, Some("k"), &one).0;
        assert_ne!(id(&one), other_source);
    }
}
