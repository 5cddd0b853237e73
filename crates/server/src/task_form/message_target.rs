//! Messages and gRPC methods as targets in JSON: one object per system, parsing and writing.
//!
//! The core has one form for all systems and knows which parts each has.

use std::collections::BTreeMap;

use punctual_core::{
    ConnectionName, GrpcTarget, Invalid, MessageAddress, MessageOptions, MessageSystem, MqttQos,
    STREAM_LENGTH_MAX, SinkAddress, SinkTarget, Target,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::pairs::Pairs;
use super::target::TargetBody;
use super::whole_number::WholeNumber;
use crate::schema::{
    ConnectionText, ExchangeText, GrpcMethodText, GrpcUrlText, KafkaTopicText, MessageHeaderMap,
    MessageKeyText, MqttTopicText, NatsSubjectText, StreamKeyText, documented, integer,
};

/// A record of a topic of Kafka. The payload is its value.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = KafkaTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `connection` and a `topic`")]
pub(super) struct KafkaBody {
    /// The name of a connection of the configuration.
    #[schema(value_type = ConnectionText)]
    connection: String,
    /// The topic.
    #[schema(value_type = KafkaTopicText)]
    topic: String,
    /// The key of the record. Default: the key of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MessageKeyText>)]
    key: Option<String>,
    /// Headers to send.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = MessageHeaderMap)]
    headers: Pairs,
}

/// A message to an exchange of AMQP 0.9.1, like RabbitMQ. The payload is its body.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = AmqpTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `connection` and an `exchange`")]
pub(super) struct AmqpBody {
    /// The name of a connection of the configuration.
    #[schema(value_type = ConnectionText)]
    connection: String,
    /// The exchange. Empty: the default one, for which the routing key is the name of a queue.
    #[schema(value_type = ExchangeText)]
    exchange: String,
    /// The routing key. Default: an empty one.
    #[serde(default)]
    #[schema(value_type = MessageKeyText)]
    routing_key: String,
    /// Headers to send.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = MessageHeaderMap)]
    headers: Pairs,
}

/// A message to a subject of NATS JetStream. The payload is its data.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = NatsTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `connection` and a `subject`")]
pub(super) struct NatsBody {
    /// The name of a connection of the configuration.
    #[schema(value_type = ConnectionText)]
    connection: String,
    /// The subject, without wildcards.
    #[schema(value_type = NatsSubjectText)]
    subject: String,
}

/// A message to a topic of MQTT.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = MqttTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `connection` and a `topic`")]
pub(super) struct MqttBody {
    /// The name of a connection of the configuration.
    #[schema(value_type = ConnectionText)]
    connection: String,
    /// The topic, without wildcards.
    #[schema(value_type = MqttTopicText)]
    topic: String,
    /// How the broker of MQTT confirms the message: 1 by PUBACK, 2 by PUBCOMP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<QosLevel>)]
    qos: Option<WholeNumber>,
    /// Whether the broker of MQTT keeps the message for later subscribers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retain: Option<bool>,
}

/// An entry of a stream of Redis. The payload is its field `payload`.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = RedisStreamTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `connection` and a `stream`")]
pub(super) struct RedisStreamBody {
    /// The name of a connection of the configuration.
    #[schema(value_type = ConnectionText)]
    connection: String,
    /// The key of the stream.
    #[schema(value_type = StreamKeyText)]
    stream: String,
    /// About how many entries the stream keeps. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StreamLength>)]
    maxlen: Option<WholeNumber>,
}

/// A unary gRPC method. The payload is the message.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = GrpcTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `url` and a `method`")]
pub(super) struct GrpcBody {
    /// The server.
    #[schema(value_type = GrpcUrlText)]
    url: String,
    /// The full name of the method.
    #[schema(value_type = GrpcMethodText)]
    method: String,
}

documented!(
    /// The levels of MQTT that are confirmed.
    QosLevel,
    "MqttQos",
    {
        let mut level = integer(1, 2);
        level["default"] = MqttQos::default().level().into();
        level
    }
);
documented!(
    /// Entries that a stream keeps.
    StreamLength,
    "StreamLength",
    integer(1, STREAM_LENGTH_MAX)
);

impl KafkaBody {
    /// `field` is the name of the target in the task.
    pub(super) fn into_target(self, field: &str) -> Result<Target, Invalid> {
        let headers = named_headers(field, MessageSystem::Kafka, self.headers)?;
        let options = MessageOptions { key: self.key, headers, ..MessageOptions::default() };
        message_target(field, MessageSystem::Kafka, &self.connection, &self.topic, options)
    }
}

impl AmqpBody {
    /// `field` is the name of the target in the task.
    pub(super) fn into_target(self, field: &str) -> Result<Target, Invalid> {
        let headers = named_headers(field, MessageSystem::Amqp, self.headers)?;
        let key = Some(self.routing_key).filter(|key| !key.is_empty());
        let options = MessageOptions { key, headers, ..MessageOptions::default() };
        message_target(field, MessageSystem::Amqp, &self.connection, &self.exchange, options)
    }
}

impl NatsBody {
    /// `field` is the name of the target in the task.
    pub(super) fn into_target(self, field: &str) -> Result<Target, Invalid> {
        let options = MessageOptions::default();
        message_target(field, MessageSystem::Nats, &self.connection, &self.subject, options)
    }
}

impl MqttBody {
    /// `field` is the name of the target in the task.
    pub(super) fn into_target(self, field: &str) -> Result<Target, Invalid> {
        let level = self.qos.map(|WholeNumber(level)| u64::try_from(level).unwrap_or_default());
        let qos = mqtt_qos(field, level)?;
        let retain = self.retain.unwrap_or_default();
        let options = MessageOptions { qos, retain, ..MessageOptions::default() };
        message_target(field, MessageSystem::Mqtt, &self.connection, &self.topic, options)
    }
}

impl RedisStreamBody {
    /// `field` is the name of the target in the task.
    pub(super) fn into_target(self, field: &str) -> Result<Target, Invalid> {
        let stream_length =
            self.maxlen.map(|WholeNumber(length)| u64::try_from(length).unwrap_or_default());
        let options = MessageOptions { stream_length, ..MessageOptions::default() };
        let system = MessageSystem::RedisStream;
        message_target(field, system, &self.connection, &self.stream, options)
    }
}

impl GrpcBody {
    /// `field` is the name of the target in the task.
    pub(super) fn into_target(self, field: &str) -> Result<Target, Invalid> {
        grpc_target(field, &self.url, &self.method)
    }

    pub(super) fn of(grpc: &GrpcTarget) -> Self {
        Self { url: grpc.url().to_owned(), method: grpc.method().to_owned() }
    }
}

/// Messages as a target of an answer.
pub(super) fn body_of(connection: &ConnectionName, message: &MessageAddress) -> TargetBody {
    let (connection, place) = (connection.as_str().to_owned(), message.place().to_owned());
    let MessageOptions { key, headers, qos, retain, stream_length } = message.options().clone();
    let headers = headers.into_iter().collect();
    match message.system() {
        MessageSystem::Kafka => {
            TargetBody::Kafka(KafkaBody { connection, topic: place, key, headers })
        }
        MessageSystem::Amqp => {
            let routing_key = key.unwrap_or_default();
            TargetBody::Amqp(AmqpBody { connection, exchange: place, routing_key, headers })
        }
        MessageSystem::Nats => TargetBody::Nats(NatsBody { connection, subject: place }),
        MessageSystem::Mqtt => TargetBody::Mqtt(MqttBody {
            connection,
            topic: place,
            qos: Some(WholeNumber(i64::from(qos.level()))),
            retain: Some(retain),
        }),
        MessageSystem::RedisStream => TargetBody::RedisStream(RedisStreamBody {
            connection,
            stream: place,
            maxlen: stream_length.and_then(|length| i64::try_from(length).ok()).map(WholeNumber),
        }),
    }
}

/// Messages as the target `field` of a task.
pub(crate) fn message_target(
    field: &str,
    system: MessageSystem,
    connection: &str,
    place: &str,
    options: MessageOptions,
) -> Result<Target, Invalid> {
    let sink = || {
        let connection = ConnectionName::new(connection)?;
        let address = MessageAddress::new(system, place, options)?;
        Ok(SinkTarget { connection, address: SinkAddress::Message(address) })
    };
    let within = |invalid: Invalid| invalid.within(&format!("{field}.{}", system.field()));
    Ok(Target::Sink(Box::new(sink().map_err(within)?)))
}

/// The level of the target `field` of a task; the default if it is not given.
pub(crate) fn mqtt_qos(field: &str, level: Option<u64>) -> Result<MqttQos, Invalid> {
    let within = |invalid: Invalid| invalid.within(&format!("{field}.mqtt"));
    level.map_or(Ok(MqttQos::default()), MqttQos::from_level).map_err(within)
}

/// A gRPC method as the target `field` of a task.
pub(crate) fn grpc_target(field: &str, url: &str, method: &str) -> Result<Target, Invalid> {
    let within = |invalid: Invalid| invalid.within(&format!("{field}.grpc"));
    Ok(Target::Grpc(Box::new(GrpcTarget::new(url, method).map_err(within)?)))
}

/// The headers of a message in the order of their names; refuses a repeated one.
fn named_headers(
    field: &str,
    system: MessageSystem,
    headers: Pairs,
) -> Result<Vec<(String, String)>, Invalid> {
    let headers: BTreeMap<_, _> =
        headers.by_name(&format!("{field}.{}.headers", system.field()))?;
    Ok(headers.into_iter().collect())
}
