//! Targets: where the deliveries of a task go, and where the ends of its fires are reported.

use std::sync::Arc;

use punctual_proto::v1;
use serde::Serialize;

use crate::{Error, NewTask, Problem};

/// A queue, a webhook with rules for its answers, a gRPC method, or a place of a connection: a
/// statement, a topic, an exchange, a subject or a stream.
#[derive(Debug, Clone)]
#[must_use = "a target does nothing until a task has it"]
pub struct Target {
    to: v1::target::To,
    /// The first error of a method.
    problem: Option<Error>,
}

impl Target {
    /// The workers of a queue.
    pub fn queue(queue: impl Into<String>) -> Self {
        Self { to: v1::target::To::Queue(queue.into()), problem: None }
    }

    /// A webhook, which is called by `POST`.
    pub fn http(url: impl Into<String>) -> Self {
        let http = v1::HttpTarget { url: url.into(), ..v1::HttpTarget::default() };
        Self { to: v1::target::To::Http(http), problem: None }
    }

    /// A statement that the configuration of the broker names, on a connection that it names too.
    /// Its parameters are taken from the payload; [`param`](Self::param) gives others.
    pub fn sql(connection: impl Into<String>, statement: impl Into<String>) -> Self {
        let (connection, statement) = (connection.into(), statement.into());
        let sql = v1::SqlTarget { connection, statement, ..v1::SqlTarget::default() };
        Self { to: v1::target::To::Sql(sql), problem: None }
    }

    /// A topic of Kafka, on a connection that the configuration of the broker names.
    pub fn kafka(connection: impl Into<String>, topic: impl Into<String>) -> Self {
        let (connection, topic) = (connection.into(), topic.into());
        let kafka = v1::KafkaTarget { connection, topic, ..v1::KafkaTarget::default() };
        Self { to: v1::target::To::Kafka(kafka), problem: None }
    }

    /// An exchange of AMQP 0.9.1, like RabbitMQ, with a routing key. With an empty exchange, the
    /// routing key is the name of a queue.
    pub fn amqp(
        connection: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        let amqp = v1::AmqpTarget {
            connection: connection.into(),
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            ..v1::AmqpTarget::default()
        };
        Self { to: v1::target::To::Amqp(amqp), problem: None }
    }

    /// A subject of NATS `JetStream`.
    pub fn nats(connection: impl Into<String>, subject: impl Into<String>) -> Self {
        let (connection, subject) = (connection.into(), subject.into());
        Self { to: v1::target::To::Nats(v1::NatsTarget { connection, subject }), problem: None }
    }

    /// A topic of MQTT.
    pub fn mqtt(connection: impl Into<String>, topic: impl Into<String>) -> Self {
        let (connection, topic) = (connection.into(), topic.into());
        let mqtt = v1::MqttTarget { connection, topic, ..v1::MqttTarget::default() };
        Self { to: v1::target::To::Mqtt(mqtt), problem: None }
    }

    /// A stream of Redis.
    pub fn redis_stream(connection: impl Into<String>, stream: impl Into<String>) -> Self {
        let (connection, stream) = (connection.into(), stream.into());
        let to = v1::RedisStreamTarget { connection, stream, maxlen: None };
        Self { to: v1::target::To::RedisStream(to), problem: None }
    }

    /// A unary gRPC method, like `/shop.Orders/Cancel`, of the server at a URL. The payload is the
    /// message.
    pub fn grpc(url: impl Into<String>, method: impl Into<String>) -> Self {
        let (url, method) = (url.into(), method.into());
        Self { to: v1::target::To::Grpc(v1::GrpcTarget { url, method }), problem: None }
    }

    /// The key of the record of a topic of Kafka; the key of the task if not given. Other targets
    /// ignore it.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        if let v1::target::To::Kafka(kafka) = &mut self.to {
            kafka.key = Some(key.into());
        }
        self
    }

    /// How a broker of MQTT confirms the message: 1 (the default) or 2. Other targets ignore it.
    pub fn qos(mut self, level: u8) -> Self {
        if let v1::target::To::Mqtt(mqtt) = &mut self.to {
            mqtt.qos = level.into();
        }
        self
    }

    /// Has the broker of MQTT keep the message for later subscribers. Other targets ignore it.
    pub fn retain(mut self) -> Self {
        if let v1::target::To::Mqtt(mqtt) = &mut self.to {
            mqtt.retain = true;
        }
        self
    }

    /// About how many entries a stream of Redis keeps. Other targets ignore it.
    pub fn maxlen(mut self, entries: u64) -> Self {
        if let v1::target::To::RedisStream(stream) = &mut self.to {
            stream.maxlen = Some(entries);
        }
        self
    }

    /// A value for a parameter of a statement. Other targets ignore it.
    pub fn param(mut self, name: impl Into<String>, value: &(impl Serialize + ?Sized)) -> Self {
        match (serde_json::to_string(value), &mut self.to) {
            (Ok(json), v1::target::To::Sql(sql)) => _ = sql.params.insert(name.into(), json),
            (Ok(_), _) => {}
            (Err(error), _) => _ = self.problem.get_or_insert(Error::Payload(Arc::new(error))),
        }
        self
    }

    /// The method of a webhook.
    pub fn method(self, method: impl Into<String>) -> Self {
        self.change(|http| http.method = method.into())
    }

    /// Adds a header of a webhook, or of a message of Kafka or AMQP.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let headers = match &mut self.to {
            v1::target::To::Http(http) => &mut http.headers,
            v1::target::To::Kafka(kafka) => &mut kafka.headers,
            v1::target::To::Amqp(amqp) => &mut amqp.headers,
            _ => return self,
        };
        headers.insert(name.into(), value.into());
        self
    }

    /// The statuses of a webhook that are a success. The default is 200 to 299.
    pub fn success_statuses(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        let statuses = statuses.into_iter().map(u32::from).collect();
        self.change(|http| http.success.get_or_insert_default().statuses = statuses)
    }

    /// A JSON value that a successful answer of a webhook must have, by JSON pointer (RFC 6901):
    /// `success_json("/errcode", &0)`.
    pub fn success_json(
        mut self,
        pointer: impl Into<String>,
        value: &(impl Serialize + ?Sized),
    ) -> Self {
        match serde_json::to_string(value) {
            Ok(json) => {
                let pointer = pointer.into();
                self.change(|http| {
                    http.success.get_or_insert_default().json.insert(pointer, json);
                })
            }
            Err(error) => {
                self.problem.get_or_insert(Error::Payload(Arc::new(error)));
                self
            }
        }
    }

    /// The statuses of a webhook after which no further attempt is made, in addition to 410.
    pub fn refuse_statuses(self, statuses: impl IntoIterator<Item = u16>) -> Self {
        let statuses = statuses.into_iter().map(u32::from).collect();
        self.change(|http| http.refuse = Some(v1::RefuseRule { statuses }))
    }

    /// A webhook that a broker has answered.
    pub(crate) fn of_webhook(http: v1::HttpTarget) -> Self {
        Self { to: v1::target::To::Http(http), problem: None }
    }

    /// The webhook of a field that takes no queue.
    pub(crate) fn into_webhook(self, field: &str) -> Result<v1::HttpTarget, Error> {
        match (self.problem, self.to) {
            (Some(problem), _) => Err(problem),
            (None, v1::target::To::Http(http)) => Ok(http),
            (None, _) => {
                let detail = format!("{field}: must be a webhook; notices go to no other target");
                Err(Error::Problem(Problem::of_field(field, detail)))
            }
        }
    }

    /// Changes a webhook. Other targets have none of these options, and ignore them.
    fn change(mut self, change: impl FnOnce(&mut v1::HttpTarget)) -> Self {
        if let v1::target::To::Http(http) = &mut self.to {
            change(http);
        }
        self
    }
}

impl<To> NewTask<To> {
    /// Delivers to a target, like a webhook with rules for its answers.
    pub fn target(mut self, target: Target) -> Self {
        self.message.target = self.message_of(target);
        self
    }

    /// Creates the task paused: it does not fire until it is resumed.
    pub fn paused(mut self) -> Self {
        self.message.paused = true;
        self
    }

    /// Where the record of each fire that succeeded is delivered.
    pub fn on_done(mut self, target: Target) -> Self {
        self.message.on_done = self.message_of(target);
        self
    }

    /// Where the record of each fire that became a dead letter is delivered.
    pub fn on_dead(mut self, target: Target) -> Self {
        self.message.on_dead = self.message_of(target);
        self
    }

    fn message_of(&mut self, Target { to, problem }: Target) -> Option<v1::Target> {
        if let Some(problem) = problem {
            self.problem.get_or_insert(problem);
        }
        Some(v1::Target { to: Some(to) })
    }
}
