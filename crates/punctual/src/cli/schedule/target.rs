//! The target flags of `punctual schedule`: where deliveries go, which answers are a success, and
//! who receives the ends of fires.

use anyhow::bail;
use clap::ArgGroup;
use punctual_core::{
    AnswerRules, Callbacks, ConnectionName, ExpectedValue, GrpcTarget, HttpTarget, Invalid,
    MessageAddress, MessageOptions, MessageSystem, Method, MqttQos, Queue, SinkAddress, SinkTarget,
    SqlCall, SqlParam, StatementName, Target,
};
use serde_json::{Map, Value, json};

use super::pairs::{object, pair};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Target")]
#[command(group(ArgGroup::new("called").args(["to", "grpc"]).multiple(true)))]
#[command(group(ArgGroup::new("headed").args(["to", "kafka", "amqp"]).multiple(true)))]
pub(super) struct TargetArgs {
    /// URL of the webhook to call
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// HTTP method of the webhook, POST if not given; or the gRPC method
    #[arg(long, requires = "called")]
    method: Option<String>,
    /// Header of the webhook, or of the message to Kafka or AMQP; may be repeated
    #[arg(long = "header", requires = "headed", value_name = "NAME:VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// Statuses of the webhook that are a success; 200 to 299 if not given
    #[arg(long, requires = "to", value_name = "STATUS,…", value_delimiter = ',')]
    success_status: Vec<u16>,
    /// Value that a successful answer must have at a JSON pointer, like /errcode=0; may be repeated
    #[arg(long, requires = "to", value_name = "POINTER=JSON", value_parser = expected)]
    success_json: Vec<(String, Value)>,
    /// Statuses of the webhook after which no further attempt is made, in addition to 410
    #[arg(long, requires = "to", value_name = "STATUS,…", value_delimiter = ',')]
    refuse_status: Vec<u16>,
    /// Queue whose workers receive the task
    #[arg(long)]
    queue: Option<String>,
    /// Statement to run, as connection and statement of the broker's configuration
    #[arg(long, value_name = "CONNECTION/STATEMENT", value_parser = connected)]
    sql: Option<(String, String)>,
    /// Value for a parameter of the statement, like order=7; may be repeated
    #[arg(long = "param", requires = "sql", value_name = "NAME=JSON", value_parser = param)]
    params: Vec<(String, Value)>,
    /// Kafka topic, of a connection of the broker's configuration
    #[arg(long, value_name = "CONNECTION/TOPIC", value_parser = connected)]
    kafka: Option<(String, String)>,
    /// Key of the Kafka record; the key of the task if not given
    #[arg(long, requires = "kafka", value_name = "TEXT")]
    record_key: Option<String>,
    /// Exchange of AMQP, like RabbitMQ; CONNECTION/ is the default exchange
    #[arg(long, value_name = "CONNECTION/EXCHANGE", value_parser = connected)]
    amqp: Option<(String, String)>,
    /// Routing key; with the default exchange, the name of a queue
    #[arg(long, requires = "amqp", value_name = "TEXT")]
    routing_key: Option<String>,
    /// NATS subject
    #[arg(long, value_name = "CONNECTION/SUBJECT", value_parser = connected)]
    nats: Option<(String, String)>,
    /// MQTT topic
    #[arg(long, value_name = "CONNECTION/TOPIC", value_parser = connected)]
    mqtt: Option<(String, String)>,
    /// How the MQTT broker confirms the message: 1 or 2; 1 if not given
    #[arg(long, requires = "mqtt", value_name = "LEVEL")]
    qos: Option<u64>,
    /// Have the MQTT broker keep the message for later subscribers
    #[arg(long, requires = "mqtt")]
    retain: bool,
    /// Redis stream
    #[arg(long, value_name = "CONNECTION/STREAM", value_parser = connected)]
    redis_stream: Option<(String, String)>,
    /// About how many entries the stream keeps
    #[arg(long, requires = "redis_stream", value_name = "ENTRIES")]
    maxlen: Option<u64>,
    /// URL of the server whose gRPC method --method is called; the payload is the message
    #[arg(long, value_name = "URL", requires = "method")]
    grpc: Option<String>,
    /// Webhook or queue that receives the record of each fire that succeeded
    #[arg(long, value_name = "URL|queue:NAME")]
    on_done: Option<String>,
    /// Webhook or queue that receives the record of each fire that became a dead letter
    #[arg(long, value_name = "URL|queue:NAME")]
    on_dead: Option<String>,
}

impl TargetArgs {
    /// The members of a request that have the targets.
    pub(super) fn members(&self) -> anyhow::Result<Vec<(&'static str, Value)>> {
        let callbacks = [("on_done", &self.on_done), ("on_dead", &self.on_dead)];
        let callbacks = callbacks
            .into_iter()
            .filter_map(|(name, target)| Some((name, callback_json(target.as_deref()?))));
        Ok([("target", self.body()?)].into_iter().chain(callbacks).collect())
    }

    fn body(&self) -> anyhow::Result<Value> {
        if let Some((connection, statement)) = &self.sql {
            let mut sql = json!({ "connection": connection, "statement": statement });
            if !self.params.is_empty() {
                sql["params"] = self.params_by_name()?.into();
            }
            return Ok(json!({ "sql": sql }));
        }
        if let Some((system, connection, place)) = self.message() {
            return self.message_json(system, connection, place);
        }
        if let Some(url) = &self.grpc {
            return Ok(json!({ "grpc": { "url": url, "method": self.method } }));
        }
        let Some(url) = &self.to else {
            return Ok(json!({ "queue": self.queue }));
        };
        let mut http = Map::from_iter([("url".to_owned(), json!(url))]);
        if let Some(method) = &self.method {
            http.insert("method".to_owned(), json!(method));
        }
        if !self.headers.is_empty() {
            http.insert("headers".to_owned(), object("--header", &self.headers)?);
        }
        let mut success = Map::new();
        if !self.success_status.is_empty() {
            success.insert("statuses".to_owned(), json!(self.success_status));
        }
        if !self.success_json.is_empty() {
            success.insert("json".to_owned(), self.expected_values()?.into());
        }
        if !success.is_empty() {
            http.insert("success".to_owned(), success.into());
        }
        if !self.refuse_status.is_empty() {
            http.insert("refuse".to_owned(), json!({ "statuses": self.refuse_status }));
        }
        Ok(json!({ "http": http }))
    }

    /// The system, the connection and the place of messages, if such flags are given.
    fn message(&self) -> Option<(MessageSystem, &str, &str)> {
        let given = [
            (MessageSystem::Kafka, &self.kafka),
            (MessageSystem::Amqp, &self.amqp),
            (MessageSystem::Nats, &self.nats),
            (MessageSystem::Mqtt, &self.mqtt),
            (MessageSystem::RedisStream, &self.redis_stream),
        ];
        given.into_iter().find_map(|(system, given)| {
            given.as_ref().map(|(connection, place)| (system, &**connection, &**place))
        })
    }

    fn message_json(
        &self,
        system: MessageSystem,
        connection: &str,
        place: &str,
    ) -> anyhow::Result<Value> {
        let mut target = json!({ "connection": connection, system.place_field(): place });
        let key = self.record_key.as_ref().or(self.routing_key.as_ref());
        if let Some((key, field)) = key.zip(system.key_field()) {
            target[field] = json!(key);
        }
        if !self.headers.is_empty() {
            target["headers"] = object("--header", &self.headers)?;
        }
        if let Some(level) = self.qos {
            target["qos"] = json!(level);
        }
        if self.retain {
            target["retain"] = json!(true);
        }
        if let Some(entries) = self.maxlen {
            target["maxlen"] = json!(entries);
        }
        Ok(json!({ system.field(): target }))
    }

    fn message_target(
        &self,
        system: MessageSystem,
        connection: &str,
        place: &str,
    ) -> anyhow::Result<Target> {
        object("--header", &self.headers)?;
        let options = MessageOptions {
            key: self.record_key.clone().or_else(|| self.routing_key.clone()),
            headers: self.headers.clone(),
            qos: self.qos.map_or(Ok(MqttQos::default()), MqttQos::from_level)?,
            retain: self.retain,
            stream_length: self.maxlen,
        };
        let address = SinkAddress::Message(MessageAddress::new(system, place, options)?);
        let connection = ConnectionName::new(connection)?;
        Ok(Target::Sink(Box::new(SinkTarget { connection, address })))
    }

    fn params_by_name(&self) -> anyhow::Result<Map<String, Value>> {
        by_name("--param", &self.params)
    }

    fn expected_values(&self) -> anyhow::Result<Map<String, Value>> {
        by_name("--success-json", &self.success_json)
    }

    /// The target, checked by the rules of `core`.
    pub(super) fn target(&self) -> anyhow::Result<Target> {
        if let Some((connection, statement)) = &self.sql {
            let params = self.params_by_name()?.into_iter();
            let params = params.map(|(name, value)| SqlParam { name, value: value.to_string() });
            let call = SqlCall::new(StatementName::new(statement)?, params.collect())?;
            let connection = ConnectionName::new(connection)?;
            let sink = SinkTarget { connection, address: SinkAddress::Sql(call) };
            return Ok(Target::Sink(Box::new(sink)));
        }
        if let Some((system, connection, place)) = self.message() {
            return self.message_target(system, connection, place);
        }
        if let Some(url) = &self.grpc {
            let method = self.method.as_deref().unwrap_or_default();
            return Ok(Target::Grpc(Box::new(GrpcTarget::new(url, method)?)));
        }
        let Some(url) = &self.to else {
            let queue = self.queue.as_deref().unwrap_or_default();
            return Ok(Target::Queue(Queue::new(queue)?));
        };
        object("--header", &self.headers)?;
        let method = self.method.as_deref().map(Method::parse).transpose()?.unwrap_or_default();
        let expected = self.expected_values()?.into_iter();
        let expected = expected
            .map(|(pointer, value)| ExpectedValue { pointer, value: value.to_string() })
            .collect();
        let (success, refuse) = (self.success_status.clone(), self.refuse_status.clone());
        let rules = AnswerRules::new(success, expected, refuse)?;
        Ok(Target::Http(HttpTarget::new(url, method, self.headers.clone())?.with_rules(rules)))
    }

    /// The callbacks, checked by the rules of `core`.
    pub(super) fn callbacks(&self) -> Result<Option<std::sync::Arc<Callbacks>>, Invalid> {
        let target = |name: &str, text: &Option<String>| {
            text.as_deref().map(|text| callback(name, text)).transpose()
        };
        let on_done = target("on_done", &self.on_done)?;
        Ok(Callbacks::new(on_done, target("on_dead", &self.on_dead)?))
    }
}

/// The values of a flag that may be repeated, each name once.
fn by_name(flag: &str, given: &[(String, Value)]) -> anyhow::Result<Map<String, Value>> {
    let mut values = Map::new();
    for (name, value) in given {
        if values.insert(name.clone(), value.clone()).is_some() {
            bail!("{flag} {name} is given twice");
        }
    }
    Ok(values)
}

/// The name of a connection, and what is behind its slash.
fn connected(text: &str) -> Result<(String, String), String> {
    let (connection, place) = text
        .split_once('/')
        .ok_or("must begin with the name of a connection and a slash, like shop/order-paid")?;
    Ok((connection.to_owned(), place.to_owned()))
}

/// The name of a parameter and its value. What is not JSON is text.
fn param(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=JSON, like order=7")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
    Ok((name.to_owned(), value))
}

fn callback_json(text: &str) -> Value {
    match text.strip_prefix("queue:") {
        Some(queue) => json!({ "queue": queue }),
        None => json!({ "http": { "url": text } }),
    }
}

fn callback(name: &str, text: &str) -> Result<Target, Invalid> {
    let named = |invalid: Invalid| Invalid::new(name, invalid.problem);
    match text.strip_prefix("queue:") {
        Some(queue) => Ok(Target::Queue(Queue::new(queue).map_err(named)?)),
        None => {
            let webhook = HttpTarget::new(text, Method::default(), Vec::new());
            Ok(Target::Http(webhook.map_err(named)?))
        }
    }
}

/// A JSON pointer and a JSON value.
fn expected(text: &str) -> Result<(String, Value), String> {
    let (pointer, json) = text.split_once('=').ok_or("must be POINTER=JSON, like /errcode=0")?;
    let value = serde_json::from_str(json).map_err(|error| {
        format!("the value must be JSON ({error}); text needs quotes, like '/status=\"ok\"'")
    })?;
    Ok((pointer.to_owned(), value))
}
