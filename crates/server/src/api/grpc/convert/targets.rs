//! Converts targets between gRPC messages and the types of the core.

use std::collections::{BTreeMap, HashMap};

use punctual_core::{
    AnswerRules, ConnectionName, HttpTarget, Invalid, MessageAddress, MessageOptions,
    MessageSystem, Method, SinkAddress, SqlCall, Target,
};
use punctual_proto::v1;
use serde::de::IgnoredAny;

use crate::task_form::{
    answer_rules, check_headers, grpc_target, message_target, mqtt_qos, queue_target, sql_target,
};

/// Reads a statement. Values of parameters are JSON text.
fn sent_sql(field: &str, sql: v1::SqlTarget) -> Result<Target, Invalid> {
    for (name, value) in &sql.params {
        serde_json::from_str::<IgnoredAny>(value).map_err(|error| {
            Invalid::new(format!("{field}.sql.params.{name}"), format!("must be JSON: {error}"))
        })?;
    }
    let params = sql.params.into_iter().collect();
    sql_target(field, &sql.connection, &sql.statement, params)
}

/// A target of a task, if it is set. `field` is its name in the task.
pub(super) fn target(field: &str, target: Option<v1::Target>) -> Result<Option<Target>, Invalid> {
    match target.and_then(|target| target.to) {
        None => Ok(None),
        Some(v1::target::To::Queue(queue)) => queue_target(field, &queue).map(Some),
        Some(v1::target::To::Sql(sql)) => sent_sql(field, sql).map(Some),
        Some(v1::target::To::Kafka(kafka)) => {
            let headers = headers(field, MessageSystem::Kafka, kafka.headers)?;
            let options = MessageOptions { key: kafka.key, headers, ..MessageOptions::default() };
            let system = MessageSystem::Kafka;
            message_target(field, system, &kafka.connection, &kafka.topic, options).map(Some)
        }
        Some(v1::target::To::Amqp(amqp)) => {
            let headers = headers(field, MessageSystem::Amqp, amqp.headers)?;
            let key = Some(amqp.routing_key).filter(|key| !key.is_empty());
            let options = MessageOptions { key, headers, ..MessageOptions::default() };
            let system = MessageSystem::Amqp;
            message_target(field, system, &amqp.connection, &amqp.exchange, options).map(Some)
        }
        Some(v1::target::To::Nats(nats)) => {
            let (system, options) = (MessageSystem::Nats, MessageOptions::default());
            message_target(field, system, &nats.connection, &nats.subject, options).map(Some)
        }
        Some(v1::target::To::Mqtt(mqtt)) => {
            let level = Some(mqtt.qos).filter(|level| *level != 0).map(u64::from);
            let qos = mqtt_qos(field, level)?;
            let options = MessageOptions { qos, retain: mqtt.retain, ..MessageOptions::default() };
            let system = MessageSystem::Mqtt;
            message_target(field, system, &mqtt.connection, &mqtt.topic, options).map(Some)
        }
        Some(v1::target::To::RedisStream(redis)) => {
            let stream_length = redis.maxlen;
            let options = MessageOptions { stream_length, ..MessageOptions::default() };
            let system = MessageSystem::RedisStream;
            message_target(field, system, &redis.connection, &redis.stream, options).map(Some)
        }
        Some(v1::target::To::Grpc(grpc)) => grpc_target(field, &grpc.url, &grpc.method).map(Some),
        Some(v1::target::To::Http(http)) => {
            let within = |invalid: Invalid| invalid.within(&format!("{field}.http"));
            Ok(Some(Target::Http(webhook(http).map_err(within)?)))
        }
    }
}

/// The headers of a message in the order of their names; refuses a repeated one.
fn headers(
    field: &str,
    system: MessageSystem,
    headers: HashMap<String, String>,
) -> Result<Vec<(String, String)>, Invalid> {
    let headers: BTreeMap<_, _> = headers.into_iter().collect();
    let within = |invalid: Invalid| invalid.within(&format!("{field}.{}", system.field()));
    check_headers(&headers).map_err(within)?;
    Ok(headers.into_iter().collect())
}

pub(super) fn webhook(http: v1::HttpTarget) -> Result<HttpTarget, Invalid> {
    let method = match http.method.as_str() {
        "" => Method::default(),
        method => Method::parse(method)?,
    };
    let headers: BTreeMap<_, _> = http.headers.into_iter().collect();
    check_headers(&headers)?;
    let target = HttpTarget::new(&http.url, method, headers.into_iter().collect())?;
    Ok(target.with_rules(rules(http.success, http.refuse)?))
}

fn rules(
    success: Option<v1::SuccessRule>,
    refuse: Option<v1::RefuseRule>,
) -> Result<AnswerRules, Invalid> {
    let (success, refuse) = (success.unwrap_or_default(), refuse.unwrap_or_default());
    let values: BTreeMap<_, _> = success.json.into_iter().collect();
    let values = values.into_iter().map(|(pointer, json)| {
        // Compact JSON, as the other parsers make it.
        let value: serde_json::Value = serde_json::from_str(&json).map_err(|error| {
            let problem = format!("the value of {pointer} must be JSON: {error}");
            Invalid::new("success.json", problem)
        })?;
        Ok((pointer, value.to_string()))
    });
    let values = values.collect::<Result<Vec<_>, Invalid>>()?;
    let numbers = |statuses: &[u32]| statuses.iter().copied().map(i64::from).collect::<Vec<_>>();
    let (success, refuse) = (numbers(&success.statuses), numbers(&refuse.statuses));
    answer_rules(&success, values.into_iter(), &refuse)
}

/// Mail has no field: no task of a caller has it.
pub(super) fn sent_target(target: &Target) -> v1::Target {
    let to = match target {
        Target::Mail(_) => return v1::Target { to: None },
        Target::Queue(queue) => v1::target::To::Queue(queue.as_str().to_owned()),
        Target::Http(http) => v1::target::To::Http(sent_webhook(http)),
        Target::Sink(sink) => match &sink.address {
            SinkAddress::Sql(call) => v1::target::To::Sql(sql_call(&sink.connection, call)),
            SinkAddress::Message(message) => sent_message(&sink.connection, message),
        },
        Target::Grpc(grpc) => v1::target::To::Grpc(v1::GrpcTarget {
            url: grpc.url().to_owned(),
            method: grpc.method().to_owned(),
        }),
    };
    v1::Target { to: Some(to) }
}

fn sql_call(connection: &ConnectionName, call: &SqlCall) -> v1::SqlTarget {
    let params = call.params().iter().cloned();
    v1::SqlTarget {
        connection: connection.as_str().to_owned(),
        statement: call.statement().as_str().to_owned(),
        params: params.map(|param| (param.name, param.value)).collect(),
    }
}

fn sent_message(connection: &ConnectionName, message: &MessageAddress) -> v1::target::To {
    use v1::target::To;
    let (connection, place) = (connection.as_str().to_owned(), message.place().to_owned());
    let MessageOptions { key, headers, qos, retain, stream_length } = message.options().clone();
    let headers = headers.into_iter().collect();
    match message.system() {
        MessageSystem::Kafka => {
            To::Kafka(v1::KafkaTarget { connection, topic: place, key, headers })
        }
        MessageSystem::Amqp => {
            let routing_key = key.unwrap_or_default();
            To::Amqp(v1::AmqpTarget { connection, exchange: place, routing_key, headers })
        }
        MessageSystem::Nats => To::Nats(v1::NatsTarget { connection, subject: place }),
        MessageSystem::Mqtt => {
            let qos = qos.level().into();
            To::Mqtt(v1::MqttTarget { connection, topic: place, qos, retain })
        }
        MessageSystem::RedisStream => {
            let maxlen = stream_length;
            To::RedisStream(v1::RedisStreamTarget { connection, stream: place, maxlen })
        }
    }
}

pub(super) fn sent_webhook(http: &HttpTarget) -> v1::HttpTarget {
    let (success, refuse) = http.rules().map_or((None, None), sent_rules);
    v1::HttpTarget {
        url: http.url().to_owned(),
        method: http.method().as_str().to_owned(),
        headers: http.headers().iter().cloned().collect(),
        success,
        refuse,
    }
}

fn sent_rules(rules: &AnswerRules) -> (Option<v1::SuccessRule>, Option<v1::RefuseRule>) {
    let numbers = |statuses: &[u16]| statuses.iter().copied().map(u32::from).collect();
    let json = rules.success_json().iter();
    let success = v1::SuccessRule {
        statuses: numbers(rules.success_statuses()),
        json: json.map(|expected| (expected.pointer.clone(), expected.value.clone())).collect(),
    };
    let refuse = v1::RefuseRule { statuses: numbers(rules.refuse_statuses()) };
    let has_success = success != v1::SuccessRule::default();
    (has_success.then_some(success), (!refuse.statuses.is_empty()).then_some(refuse))
}
