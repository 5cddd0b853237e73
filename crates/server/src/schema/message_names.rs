//! Schemas of the texts of messages and gRPC methods: places, keys, headers and methods.
//!
//! A test compares each pattern with the check in the core.

use punctual_core::{
    GRPC_METHOD_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, MESSAGE_HEADERS_RESERVED_PREFIXES,
    MESSAGE_KEY_BYTES_MAX, MESSAGE_PLACE_BYTES_MAX,
};
use serde_json::{Value, json};

use super::documented;
use super::names::{any_case, text};

const CONTROL: &str = "\\u0000-\\u001f\\u007f-\\u009f";
/// Blanks of Unicode that are no control characters.
const BLANKS: &str = "\\u0020\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

documented!(
    /// A topic of Kafka.
    KafkaTopicText,
    "KafkaTopic",
    {
        let mut topic = place(1, "^[0-9A-Za-z._-]+$");
        topic["not"] = json!({"enum": [".", ".."]});
        topic
    }
);
documented!(
    /// An exchange of AMQP.
    ExchangeText,
    "AmqpExchange",
    text(0, MESSAGE_PLACE_BYTES_MAX)
);
documented!(
    /// A subject of NATS.
    NatsSubjectText,
    "NatsSubject",
    {
        let refused = format!("{CONTROL}{BLANKS}.*>");
        place(1, &format!("^[^{refused}$][^{refused}]*(?:[.][^{refused}]+)*$"))
    }
);
documented!(
    /// A topic of MQTT.
    MqttTopicText,
    "MqttTopic",
    place(1, &format!("^[^{CONTROL}+#$][^{CONTROL}+#]*$"))
);
documented!(
    /// The key of a stream of Redis.
    StreamKeyText,
    "StreamKey",
    text(1, MESSAGE_PLACE_BYTES_MAX)
);
documented!(
    /// The key of a record, or a routing key.
    MessageKeyText,
    "MessageKey",
    json!({
        "type": "string",
        "maxLength": MESSAGE_KEY_BYTES_MAX,
        "x-max-bytes": MESSAGE_KEY_BYTES_MAX,
    })
);
documented!(
    /// The headers of a message.
    MessageHeaderMap,
    "MessageHeaders",
    {
        let reserved = MESSAGE_HEADERS_RESERVED_PREFIXES.map(any_case).join("|");
        json!({
            "type": "object",
            "description": "A name must not be given twice, whatever its case.",
            "maxProperties": HEADERS_MAX,
            "x-max-bytes": HEADERS_BYTES_MAX,
            "propertyNames": {
                "type": "string",
                "minLength": 1,
                "maxLength": 255,
                "pattern": "^[!-~]+$",
                "not": {"pattern": format!("^(?:{reserved})")},
            },
            "additionalProperties": {"type": "string", "pattern": format!("^[^{CONTROL}]*$")},
        })
    }
);
documented!(
    /// The name of a gRPC method.
    GrpcMethodText,
    "GrpcMethod",
    json!({
        "type": "string",
        "description": "`/package.Service/Method`",
        "maxLength": GRPC_METHOD_BYTES_MAX,
        "pattern": "^/[0-9A-Za-z_]+(?:[.][0-9A-Za-z_]+)*/[0-9A-Za-z_]+$",
    })
);

fn place(bytes_min: usize, pattern: &str) -> Value {
    json!({
        "type": "string",
        "minLength": bytes_min,
        "maxLength": MESSAGE_PLACE_BYTES_MAX,
        "pattern": pattern,
        "x-max-bytes": MESSAGE_PLACE_BYTES_MAX,
    })
}

#[cfg(test)]
mod tests {
    use punctual_core::{GrpcTarget, MessageAddress, MessageOptions, MessageSystem};
    use regex::Regex;
    use utoipa::PartialSchema;

    use super::super::tests::check_of;
    use super::*;

    fn schema<T: PartialSchema>() -> Value {
        serde_json::to_value(T::schema()).unwrap()
    }

    /// Texts with each of these characters alone, at the beginning, in the middle and at the end.
    fn texts(more: &[&str]) -> Vec<String> {
        let characters = (0..0x3010).filter_map(char::from_u32);
        let texts = characters.flat_map(|character| {
            ["X", "Xa", "aXb", "aX", "a.Xb"].map(|form| form.replace('X', &character.to_string()))
        });
        texts.chain(more.iter().map(|text| (*text).to_owned())).collect()
    }

    #[test]
    fn patterns_of_places_are_the_checks_of_places() {
        for (system, schema) in [
            (MessageSystem::Kafka, schema::<KafkaTopicText>()),
            (MessageSystem::Amqp, schema::<ExchangeText>()),
            (MessageSystem::Nats, schema::<NatsSubjectText>()),
            (MessageSystem::Mqtt, schema::<MqttTopicText>()),
            (MessageSystem::RedisStream, schema::<StreamKeyText>()),
        ] {
            let is_place = check_of(&schema);
            for text in texts(&["", ".", "..", "...", "a..b", ".a", "a.", "$SYS/a", "a$", "a/b"]) {
                let address = MessageAddress::new(system, &text, MessageOptions::default());
                let excluded = schema["not"]["enum"].as_array();
                let excluded = excluded.is_some_and(|all| all.iter().any(|one| *one == *text));
                let documented = is_place(&text) && !excluded;
                assert_eq!(documented, address.is_ok(), "{system:?} {text:?}");
            }
        }
    }

    #[test]
    fn patterns_of_headers_of_messages_accept_exactly_those_that_may_be_set() {
        let map = schema::<MessageHeaderMap>();
        let is_name = check_of(&map["propertyNames"]);
        let reserved = Regex::new(map["propertyNames"]["not"]["pattern"].as_str().unwrap());
        let (reserved, is_value) = (reserved.unwrap(), check_of(&map["additionalProperties"]));
        let accepts = |name: &str, value: &str| {
            let headers = vec![(name.to_owned(), value.to_owned())];
            let options = MessageOptions { headers, ..MessageOptions::default() };
            MessageAddress::new(MessageSystem::Kafka, "a", options).is_ok()
        };
        let long = "x".repeat(256);
        for name in texts(&["", "webhook-id", "Punctual-Key", "ce_id", "ce", "NATS-x", &long]) {
            let documented = is_name(&name) && !reserved.is_match(&name);
            assert_eq!(documented, accepts(&name, ""), "{name:?}");
        }
        for value in texts(&[""]) {
            assert_eq!(is_value(&value), accepts("a", &value), "{value:?}");
        }
    }

    #[test]
    fn the_pattern_of_methods_is_the_check_of_methods() {
        let is_method = check_of(&schema::<GrpcMethodText>());
        let more = ["/a/b", "a/b", "/a.b.c/D_1", "/a..b/c", "/.a/b", "/a./b", "/a/b/c", "/a/b.c"];
        let named = texts(&[""]).into_iter().map(|text| format!("/a.{text}/b"));
        for text in named.chain(more.map(str::to_owned)) {
            let accepted = GrpcTarget::new("http://a", &text).is_ok();
            assert_eq!(is_method(&text), accepted, "{text:?}");
        }
    }
}
