//! The target of a task in JSON, parsing and writing: a webhook, a queue or a statement;
//! `message_target` has messages and gRPC methods.

use std::collections::BTreeMap;

use punctual_core::{
    ConnectionName, HttpTarget, Invalid, Method, Queue, SinkAddress, SinkTarget, SqlCall, SqlParam,
    StatementName, Target,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::answer_rules::{RefusalBody, SuccessBody, into_rules, of_rules};
use super::message_target::{
    self, AmqpBody, GrpcBody, KafkaBody, MqttBody, NatsBody, RedisStreamBody,
};
use super::pairs::{Pairs, check_headers};
use crate::schema::{
    ConnectionText, HeaderMap, ParamMap, QueueText, StatementText, UrlText, documented, one_field,
    one_of, reference,
};

/// Where deliveries go: a webhook, a queue that workers subscribe to, a gRPC method, or a place of a
/// connection.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TargetBody {
    /// A webhook.
    Http(HttpBody),
    /// The name of a queue.
    Queue(String),
    /// A statement of the configuration.
    Sql(SqlBody),
    /// A record of a topic of Kafka.
    Kafka(KafkaBody),
    /// A message to an exchange of AMQP.
    Amqp(AmqpBody),
    /// A message to a subject of NATS.
    Nats(NatsBody),
    /// A message to a topic of MQTT.
    Mqtt(MqttBody),
    /// An entry of a stream of Redis.
    RedisStream(RedisStreamBody),
    /// A gRPC method.
    Grpc(GrpcBody),
}

/// A statement of a database that the configuration of the broker names.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = SqlTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `connection` and a `statement`")]
pub(crate) struct SqlBody {
    /// The name of a connection of the configuration.
    #[schema(value_type = ConnectionText)]
    connection: String,
    /// The name of a statement of that connection.
    #[schema(value_type = StatementText)]
    statement: String,
    /// Values for parameters of the statement. Parameters that are not given here are taken from
    /// the payload.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = ParamMap)]
    params: BTreeMap<String, Box<RawValue>>,
}

/// A webhook.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[schema(as = HttpTarget)]
#[serde(deny_unknown_fields, expecting = "an object with a `url`")]
pub(crate) struct HttpBody {
    /// Where the request is sent.
    #[schema(value_type = UrlText)]
    url: String,
    /// The method of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MethodName>)]
    method: Option<String>,
    /// Headers to send.
    #[serde(default, skip_serializing_if = "Pairs::is_empty")]
    #[schema(value_type = HeaderMap)]
    headers: Pairs,
    /// Which answers are a success. Default: every status from 200 to 299.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    success: Option<SuccessBody>,
    /// Which answers are a refusal: no further attempt is made. 410 is one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refuse: Option<RefusalBody>,
}

documented!(
    impl TargetBody,
    "Target",
    {
        let mut target = one_field(&[
            ("http", reference::<HttpBody>()),
            ("queue", reference::<QueueText>()),
            ("sql", reference::<SqlBody>()),
            ("kafka", reference::<KafkaBody>()),
            ("amqp", reference::<AmqpBody>()),
            ("nats", reference::<NatsBody>()),
            ("mqtt", reference::<MqttBody>()),
            ("redis_stream", reference::<RedisStreamBody>()),
            ("grpc", reference::<GrpcBody>()),
        ]);
        target["description"] = "Where deliveries go: a webhook, a queue that workers subscribe \
                                 to, a gRPC method, or a statement, topic, exchange, subject or \
                                 stream of a connection."
            .into();
        target
    },
    uses HttpBody, uses SqlBody, uses KafkaBody, uses AmqpBody, uses NatsBody, uses MqttBody,
    uses RedisStreamBody, uses GrpcBody
);
documented!(
    /// The method of a webhook.
    MethodName,
    "Method",
    {
        let mut method = one_of(Method::ALL.map(Method::as_str));
        method["default"] = Method::default().as_str().into();
        method
    }
);

impl TargetBody {
    /// `field` is the name of the target in the task.
    pub(super) fn into_target(self, field: &str) -> Result<Target, Invalid> {
        match self {
            Self::Http(http) => {
                let named = |invalid: Invalid| invalid.within(&format!("{field}.http"));
                Ok(Target::Http(http.into_webhook().map_err(named)?))
            }
            Self::Queue(queue) => queue_target(field, &queue),
            Self::Sql(sql) => {
                let params = sql.params.into_iter();
                let params = params.map(|(name, value)| (name, value.get().to_owned())).collect();
                sql_target(field, &sql.connection, &sql.statement, params)
            }
            Self::Kafka(kafka) => kafka.into_target(field),
            Self::Amqp(amqp) => amqp.into_target(field),
            Self::Nats(nats) => nats.into_target(field),
            Self::Mqtt(mqtt) => mqtt.into_target(field),
            Self::RedisStream(stream) => stream.into_target(field),
            Self::Grpc(grpc) => grpc.into_target(field),
        }
    }

    /// `None` for mail, which no task of a caller has.
    pub(super) fn of(target: &Target) -> Option<Self> {
        match target {
            Target::Queue(queue) => Some(Self::Queue(queue.as_str().to_owned())),
            Target::Http(http) => Some(Self::Http(HttpBody::of(http))),
            Target::Mail(_) => None,
            Target::Sink(sink) => Some(match &sink.address {
                SinkAddress::Sql(call) => Self::Sql(SqlBody::of(&sink.connection, call)),
                SinkAddress::Message(message) => message_target::body_of(&sink.connection, message),
            }),
            Target::Grpc(grpc) => Some(Self::Grpc(GrpcBody::of(grpc))),
        }
    }
}

impl SqlBody {
    fn of(connection: &ConnectionName, call: &SqlCall) -> Self {
        let params = call.params().iter().filter_map(|param| {
            let value = RawValue::from_string(param.value.clone()).ok()?;
            Some((param.name.clone(), value))
        });
        Self {
            connection: connection.as_str().to_owned(),
            statement: call.statement().as_str().to_owned(),
            params: params.collect(),
        }
    }
}

impl HttpBody {
    /// Checks the webhook. The error names the field within it.
    pub(crate) fn into_webhook(self) -> Result<HttpTarget, Invalid> {
        let method = self.method.as_deref().map(Method::parse).transpose()?;
        let headers = self.headers.by_name("headers")?;
        check_headers(&headers)?;
        let headers = headers.into_iter().collect();
        let target = HttpTarget::new(&self.url, method.unwrap_or_default(), headers)?;
        Ok(target.with_rules(into_rules(self.success, self.refuse)?))
    }

    pub(crate) fn of(http: &HttpTarget) -> Self {
        let (success, refuse) = http.rules().map_or((None, None), of_rules);
        Self {
            url: http.url().to_owned(),
            method: Some(http.method().as_str().to_owned()),
            headers: http.headers().iter().cloned().collect(),
            success,
            refuse,
        }
    }
}

/// A statement as the target `field` of a task. The values of parameters are JSON text.
pub(crate) fn sql_target(
    field: &str,
    connection: &str,
    statement: &str,
    params: BTreeMap<String, String>,
) -> Result<Target, Invalid> {
    let sink = || {
        let connection = ConnectionName::new(connection)?;
        let params = params.into_iter().map(|(name, value)| SqlParam { name, value });
        let call = SqlCall::new(StatementName::new(statement)?, params.collect())?;
        Ok(SinkTarget { connection, address: SinkAddress::Sql(call) })
    };
    let sink = sink().map_err(|invalid: Invalid| invalid.within(&format!("{field}.sql")))?;
    Ok(Target::Sink(Box::new(sink)))
}

/// A queue as the target `field` of a task.
pub(crate) fn queue_target(field: &str, name: &str) -> Result<Target, Invalid> {
    let named = |invalid: Invalid| Invalid::new(format!("{field}.queue"), invalid.problem);
    Ok(Target::Queue(Queue::new(name).map_err(named)?))
}
