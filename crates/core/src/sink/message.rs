//! A place for messages at the other side of a connection: a topic, an exchange, a subject or a
//! stream, with what a system lets a task say about a message.
//!
//! All systems share one form, [`MessageAddress`]; which parts a system has, and what their text
//! may be, is decided in [`MessageAddress::new`].

use crate::Invalid;
use crate::limits::{
    HEADERS_BYTES_MAX, HEADERS_MAX, MESSAGE_KEY_BYTES_MAX, MESSAGE_PLACE_BYTES_MAX,
    STREAM_LENGTH_MAX,
};

/// Prefixes of headers that tasks may not set, because Punctual or the system sets them.
pub const MESSAGE_HEADERS_RESERVED_PREFIXES: [&str; 6] =
    ["webhook-", "punctual-", "ce-", "ce_", "nats-", "x-punctual-"];

/// A system that takes messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MessageSystem {
    /// Kafka: a record in a topic.
    Kafka,
    /// AMQP 0.9.1, like RabbitMQ: a message to an exchange.
    Amqp,
    /// NATS `JetStream`: a message to a subject.
    Nats,
    /// MQTT: a message to a topic.
    Mqtt,
    /// Redis: an entry of a stream.
    RedisStream,
}

impl MessageSystem {
    /// All systems.
    pub const ALL: [Self; 5] = [Self::Kafka, Self::Amqp, Self::Nats, Self::Mqtt, Self::RedisStream];

    /// The field of a task that has this kind of target.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Amqp => "amqp",
            Self::Nats => "nats",
            Self::Mqtt => "mqtt",
            Self::RedisStream => "redis_stream",
        }
    }

    /// The field of the target that has the place.
    #[must_use]
    pub const fn place_field(self) -> &'static str {
        match self {
            Self::Kafka | Self::Mqtt => "topic",
            Self::Amqp => "exchange",
            Self::Nats => "subject",
            Self::RedisStream => "stream",
        }
    }

    /// The field of the target that has the key of a message; `None` if the system has none.
    #[must_use]
    pub const fn key_field(self) -> Option<&'static str> {
        match self {
            Self::Kafka => Some("key"),
            Self::Amqp => Some("routing_key"),
            Self::Nats | Self::Mqtt | Self::RedisStream => None,
        }
    }

    /// Whether a task may add headers to its messages.
    #[must_use]
    pub const fn has_headers(self) -> bool {
        matches!(self, Self::Kafka | Self::Amqp)
    }
}

/// How an MQTT broker confirms a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MqttQos {
    /// At least once, by PUBACK.
    #[default]
    AtLeastOnce,
    /// Exactly once, by PUBCOMP.
    ExactlyOnce,
}

impl MqttQos {
    /// The level as MQTT numbers it.
    #[must_use]
    pub const fn level(self) -> u8 {
        match self {
            Self::AtLeastOnce => 1,
            Self::ExactlyOnce => 2,
        }
    }

    /// Reads a level. Level 0 is not confirmed, so no delivery can use it.
    pub fn from_level(level: u64) -> Result<Self, Invalid> {
        match level {
            1 => Ok(Self::AtLeastOnce),
            2 => Ok(Self::ExactlyOnce),
            _ => Err(Invalid::new("qos", "must be 1 or 2: level 0 is never confirmed")),
        }
    }
}

/// What a task says about its messages beside the place. Each system has some of these parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct MessageOptions {
    /// Kafka: the key of the record; default: the key of the task. AMQP: the routing key; default:
    /// none.
    pub key: Option<String>,
    /// Headers of Kafka and AMQP, in their order.
    pub headers: Vec<(String, String)>,
    /// MQTT.
    pub qos: MqttQos,
    /// MQTT: whether the broker keeps the message for later subscribers.
    pub retain: bool,
    /// Redis: about how many entries the stream keeps.
    pub stream_length: Option<u64>,
}

/// A place for messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MessageAddress {
    system: MessageSystem,
    place: String,
    options: MessageOptions,
}

impl MessageAddress {
    /// Makes an address, after checking all parts. Fields of errors are relative to the target.
    pub fn new(
        system: MessageSystem,
        place: &str,
        options: MessageOptions,
    ) -> Result<Self, Invalid> {
        check_place(system, place)
            .map_err(|problem| Invalid::new(system.place_field(), problem))?;
        check_options(system, &options)?;
        Ok(Self { system, place: place.to_owned(), options })
    }

    /// The system.
    #[must_use]
    pub const fn system(&self) -> MessageSystem {
        self.system
    }

    /// The topic, the exchange (empty for the default one), the subject or the stream.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Everything else.
    #[must_use]
    pub const fn options(&self) -> &MessageOptions {
        &self.options
    }

    /// What the configuration allows or refuses: the place, but for the default exchange of AMQP
    /// the routing key behind a slash, because that names a queue.
    #[must_use]
    pub fn permission(&self) -> String {
        match (self.system, self.place.as_str()) {
            (MessageSystem::Amqp, "") => {
                format!("/{}", self.options.key.as_deref().unwrap_or_default())
            }
            _ => self.place.clone(),
        }
    }
}

fn check_place(system: MessageSystem, place: &str) -> Result<(), String> {
    let bytes = place.len();
    if bytes > MESSAGE_PLACE_BYTES_MAX {
        return Err(format!("must have at most {MESSAGE_PLACE_BYTES_MAX} bytes, has {bytes}"));
    }
    if place.is_empty() && system != MessageSystem::Amqp {
        return Err("must not be empty".to_owned());
    }
    if place.chars().any(char::is_control) {
        return Err("must not have control characters".to_owned());
    }
    match system {
        MessageSystem::Kafka => {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            if !place.chars().all(is_allowed) || matches!(place, "." | "..") {
                return Err("must consist of letters, digits, '.', '_' and '-'".to_owned());
            }
        }
        MessageSystem::Nats => {
            if place.contains(char::is_whitespace) || place.split('.').any(str::is_empty) {
                return Err("must be words separated by dots, without spaces".to_owned());
            }
            if place.contains(['*', '>']) {
                return Err("must not have the wildcards '*' and '>'".to_owned());
            }
        }
        MessageSystem::Mqtt => {
            if place.contains(['+', '#']) {
                return Err("must not have the wildcards '+' and '#'".to_owned());
            }
        }
        MessageSystem::Amqp | MessageSystem::RedisStream => {}
    }
    // `$SYS`, `$JS` and the like belong to the servers.
    if matches!(system, MessageSystem::Nats | MessageSystem::Mqtt) && place.starts_with('$') {
        return Err("must not begin with '$', which the server keeps for itself".to_owned());
    }
    Ok(())
}

fn check_options(system: MessageSystem, options: &MessageOptions) -> Result<(), Invalid> {
    let has_not = |field: &str| {
        let problem = format!("a target {:?} has no such field", system.field());
        Err(Invalid::new(field, problem))
    };
    match (&options.key, system.key_field()) {
        (Some(_), None) => return has_not("key"),
        (Some(key), Some(field)) if key.len() > MESSAGE_KEY_BYTES_MAX => {
            let problem =
                format!("must have at most {MESSAGE_KEY_BYTES_MAX} bytes, has {}", key.len());
            return Err(Invalid::new(field, problem));
        }
        _ => {}
    }
    if !options.headers.is_empty() && !system.has_headers() {
        return has_not("headers");
    }
    if system != MessageSystem::Mqtt && options.qos != MqttQos::default() {
        return has_not("qos");
    }
    if system != MessageSystem::Mqtt && options.retain {
        return has_not("retain");
    }
    match options.stream_length {
        Some(_) if system != MessageSystem::RedisStream => return has_not("maxlen"),
        Some(length) if !(1..=STREAM_LENGTH_MAX).contains(&length) => {
            let problem = format!("must be 1 to {STREAM_LENGTH_MAX}, is {length}");
            return Err(Invalid::new("maxlen", problem));
        }
        _ => {}
    }
    check_headers(&options.headers)
}

fn check_headers(headers: &[(String, String)]) -> Result<(), Invalid> {
    if headers.len() > HEADERS_MAX {
        let problem = format!("must have at most {HEADERS_MAX} headers, has {}", headers.len());
        return Err(Invalid::new("headers", problem));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > HEADERS_BYTES_MAX {
        let problem = format!("must have at most {HEADERS_BYTES_MAX} bytes, has {bytes}");
        return Err(Invalid::new("headers", problem));
    }
    for (at, (name, value)) in headers.iter().enumerate() {
        // 255 bytes are what AMQP allows.
        let is_name = !name.is_empty() && name.len() <= 255;
        if !is_name || !name.chars().all(|c| c.is_ascii_graphic()) {
            return Err(Invalid::new("headers", format!("{name:?} is not a header name")));
        }
        let lower = name.to_ascii_lowercase();
        if MESSAGE_HEADERS_RESERVED_PREFIXES.iter().any(|prefix| lower.starts_with(prefix)) {
            return Err(Invalid::new("headers", format!("{name:?} is set by Punctual itself")));
        }
        if headers[..at].iter().any(|(before, _)| before.eq_ignore_ascii_case(name)) {
            return Err(Invalid::new("headers", format!("{name:?} is given twice")));
        }
        if value.chars().any(char::is_control) {
            let problem = "must not have control characters";
            return Err(Invalid::new(format!("headers.{name}"), problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::MessageSystem::{Amqp, Kafka, Mqtt, Nats, RedisStream};
    use super::*;

    #[test]
    fn each_system_has_its_own_places() {
        for (system, place, problem) in [
            (Kafka, "orders.paid_1-x", None),
            (Kafka, "", Some("topic: must not be empty")),
            (Kafka, "..", Some("topic: must consist of")),
            (Kafka, "orders/paid", Some("topic: must consist of")),
            (Amqp, "", None),
            (Amqp, "orders", None),
            (Amqp, "a\nb", Some("exchange: must not have control characters")),
            (Nats, "orders.paid", None),
            (Nats, "orders..paid", Some("subject: must be words")),
            (Nats, "orders.", Some("subject: must be words")),
            (Nats, "orders paid", Some("subject: must be words")),
            (Nats, "orders.*", Some("subject: must not have the wildcards")),
            (Nats, "orders.>", Some("subject: must not have the wildcards")),
            (Nats, "$JS.API.INFO", Some("subject: must not begin with '$'")),
            (Mqtt, "devices/7/down", None),
            (Mqtt, "devices/+/down", Some("topic: must not have the wildcards")),
            (Mqtt, "devices/#", Some("topic: must not have the wildcards")),
            (Mqtt, "$SYS/broker", Some("topic: must not begin with '$'")),
            (RedisStream, "orders:{shop}", None),
            (RedisStream, "", Some("stream: must not be empty")),
        ] {
            let address = MessageAddress::new(system, place, MessageOptions::default());
            match problem {
                None => assert_eq!(address.unwrap().place(), place),
                Some(problem) => {
                    let error = address.unwrap_err().to_string();
                    assert!(error.starts_with(problem), "{system:?} {place:?}: {error}");
                }
            }
        }
        let long = MessageAddress::new(Mqtt, &"x".repeat(256), MessageOptions::default());
        assert_eq!(long.unwrap_err().problem, "must have at most 255 bytes, has 256");
    }

    #[test]
    fn each_system_has_its_own_options() {
        let none = MessageOptions::default;
        let key = || MessageOptions { key: Some("k".to_owned()), ..none() };
        let headers = |names: &[&str]| {
            let headers = names.iter().map(|name| ((*name).to_owned(), "v".to_owned())).collect();
            MessageOptions { headers, ..none() }
        };
        let qos = || MessageOptions { qos: MqttQos::ExactlyOnce, ..none() };
        let length = |length| MessageOptions { stream_length: Some(length), ..none() };
        for (system, options, field) in [
            (Kafka, key(), None),
            (Amqp, key(), None),
            (Nats, key(), Some("key")),
            (Mqtt, key(), Some("key")),
            (RedisStream, key(), Some("key")),
            (Kafka, headers(&["a", "b"]), None),
            (Amqp, headers(&["a", "A"]), Some("headers")),
            (Amqp, headers(&["punctual-key"]), Some("headers")),
            (Kafka, headers(&["ce_id"]), Some("headers")),
            (Kafka, headers(&[""]), Some("headers")),
            (Kafka, headers(&["a b"]), Some("headers")),
            (Nats, headers(&["a"]), Some("headers")),
            (Mqtt, qos(), None),
            (Mqtt, MessageOptions { retain: true, ..none() }, None),
            (Kafka, qos(), Some("qos")),
            (Nats, MessageOptions { retain: true, ..none() }, Some("retain")),
            (RedisStream, length(1), None),
            (RedisStream, length(0), Some("maxlen")),
            (Kafka, length(1), Some("maxlen")),
        ] {
            let address = MessageAddress::new(system, "p", options.clone());
            let found = address.as_ref().err().map(|error| error.field.as_str());
            assert_eq!(found, field, "{system:?} {options:?}");
        }
    }

    #[test]
    fn the_default_exchange_is_allowed_by_the_queue_that_it_names() {
        let options = MessageOptions { key: Some("mail".to_owned()), ..MessageOptions::default() };
        let to = |exchange| MessageAddress::new(Amqp, exchange, options.clone()).unwrap();
        assert_eq!(to("").permission(), "/mail");
        assert_eq!(to("orders").permission(), "orders");
    }

    #[test]
    fn a_level_of_mqtt_is_one_that_is_confirmed() {
        for (level, expected) in [(1, Some(1)), (2, Some(2)), (0, None), (3, None)] {
            assert_eq!(MqttQos::from_level(level).ok().map(MqttQos::level), expected);
        }
    }
}
