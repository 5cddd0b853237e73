//! What a message says about a delivery: its body, its content type and its headers.
//!
//! All systems carry the same headers in their own way. They are made at the moment of sending, so
//! the lag is that of the attempt.

use std::borrow::Cow;

use bytes::Bytes;
use punctual_core::{AttemptResult, MessageAddress, MessageSystem, Occasion, SinkAddress, Target};
use punctual_engine::Delivery;

use crate::connection::MessageFormat;
use crate::sink::failed;

/// The version of CloudEvents that messages have.
const CLOUDEVENTS_VERSION: &str = "1.0";
/// The type of the events.
const CLOUDEVENTS_TYPE: &str = "dev.punctual.fire";
/// Headers that Punctual itself gives a message, at most.
const OUR_HEADERS_MAX: usize = 22;

/// A header: name and value.
pub(crate) type MessageHeader<'a> = (Cow<'a, str>, Cow<'a, str>);

/// A delivery as a message.
#[derive(Debug)]
pub(crate) struct SinkMessage<'a> {
    /// The place and the options of the task.
    pub(crate) address: &'a MessageAddress,
    /// Unique to the fire, and the same for each of its attempts.
    pub(crate) id: String,
    pub(crate) body: Bytes,
    /// `None` if the body is empty. Not among the headers: some systems have a field for it.
    pub(crate) content_type: Option<&'a str>,
    /// In order; no name is there twice.
    pub(crate) headers: Vec<MessageHeader<'a>>,
}

impl<'a> SinkMessage<'a> {
    /// Makes the message of a delivery whose permit was taken. The error is the result of a
    /// delivery that does not go to a system that takes messages.
    pub(crate) fn of(delivery: &'a Delivery, format: MessageFormat) -> Result<Self, AttemptResult> {
        let task = &delivery.definition;
        let address = match &task.target {
            Target::Sink(sink) => match &sink.address {
                SinkAddress::Message(address) => address,
                SinkAddress::Sql(_) => return Err(failed("the target is no message")),
            },
            Target::Http(_) | Target::Queue(_) | Target::Mail(_) | Target::Grpc(_) => {
                return Err(failed("the target is no message"));
            }
        };
        let id = delivery.fire_id.to_string();
        let namespace = task.namespace.of_caller();
        let (fire_at, fired_at) = (delivery.fire_at.to_string(), delivery.fired_at);
        let (attempt, lag) = (delivery.attempt.get().to_string(), lag_millis(delivery).to_string());
        let key = task.key.as_ref().map(|key| key.as_str());
        let occasion = occasion_name(delivery.occasion);
        let options = address.options();
        let mut headers = Vec::with_capacity(OUR_HEADERS_MAX + options.headers.len());
        let mut add = |name: &'static str, value: Cow<'a, str>| {
            headers.push((Cow::Borrowed(name), value));
        };
        add("webhook-id", id.clone().into());
        add("webhook-timestamp", (fired_at.as_millis() / 1000).to_string().into());
        add("punctual-namespace", namespace.as_str().to_owned().into());
        if let Some(key) = key {
            add("punctual-key", key.into());
        }
        add("punctual-fire-at", fire_at.clone().into());
        add("punctual-attempt", attempt.clone().into());
        add("punctual-lag-ms", lag.clone().into());
        add("punctual-occasion", occasion.into());
        if let Some(fire_id) = task.callback_of {
            add("punctual-callback-of", fire_id.to_string().into());
        }
        for (name, value) in &options.headers {
            headers.push((name.into(), value.into()));
        }
        if format == MessageFormat::CloudEvents {
            let prefix = attribute_prefix(address.system());
            let mut add = |name: &str, value: Cow<'a, str>| {
                headers.push((format!("{prefix}{name}").into(), value));
            };
            add("specversion", CLOUDEVENTS_VERSION.into());
            add("id", id.clone().into());
            add("source", format!("/punctual/{}", namespace.as_str()).into());
            add("type", CLOUDEVENTS_TYPE.into());
            if let Some(key) = key {
                add("subject", key.into());
            }
            add("time", fire_at.into());
            add("attempt", attempt.into());
            add("lagms", lag.into());
            add("occasion", occasion.into());
            add("firedat", fired_at.to_string().into());
            add("taskid", delivery.fire_id.task.to_string().into());
        }
        let body = task.payload.bytes().clone();
        let content_type = task.payload.content_type().filter(|_| !body.is_empty());
        Ok(Self { address, id, body, content_type, headers })
    }

    /// The headers and behind them the content type, for systems that have no field for it.
    #[allow(dead_code, reason = "for systems that are not built in")]
    pub(crate) fn headers_with_content_type(self) -> Vec<MessageHeader<'a>> {
        let mut headers = self.headers;
        if let Some(content_type) = self.content_type {
            headers.push(("content-type".into(), content_type.into()));
        }
        headers
    }
}

/// What the names of CloudEvents' attributes begin with. MQTT has none. AMQP 0.9.1 has no binding
/// of its own; its prefix is the one that AMQP 1.0 has for systems that do not take a colon.
const fn attribute_prefix(system: MessageSystem) -> &'static str {
    match system {
        MessageSystem::Kafka => "ce_",
        MessageSystem::Amqp => "cloudEvents_",
        MessageSystem::Nats | MessageSystem::RedisStream => "ce-",
        MessageSystem::Mqtt => "",
    }
}

const fn occasion_name(occasion: Occasion) -> &'static str {
    match occasion {
        Occasion::Due => "due",
        Occasion::Manual => "manual",
        Occasion::Return => "return",
    }
}

fn lag_millis(delivery: &Delivery) -> u128 {
    delivery.fired_at.since(delivery.fire_at).as_millis()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use punctual_core::{
        ConnectionName, Due, MessageOptions, Namespace, NewTask, Payload, Schedule, SinkTarget,
        Task, TaskId, TaskKey, Timestamp, Version,
    };

    use super::*;

    fn delivery(system: MessageSystem, headers: &[(&str, &str)]) -> Delivery {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = headers.iter().map(owned).collect();
        let options = MessageOptions { headers, ..MessageOptions::default() };
        let address = MessageAddress::new(system, "orders", options).unwrap();
        let connection = ConnectionName::new("mq").unwrap();
        let target = SinkTarget { connection, address: SinkAddress::Message(address) };
        let due = Timestamp::from_millis(1_700_000_000_000);
        let namespace = Namespace::new("shop").unwrap();
        let mut new =
            NewTask::new(namespace, Schedule::Once(Due::At(due)), Target::Sink(Box::new(target)));
        new.key = Some(TaskKey::new("order-42").unwrap());
        new.payload = Payload::Json(Bytes::from_static(b"{\"order\":42}"));
        let task = Task::new(TaskId::floor(due), new.into(), due, Version::FIRST);
        let mut delivery = Delivery::of(&task, due);
        delivery.send(due.after(Duration::from_millis(1500))).unwrap();
        delivery
    }

    fn names(message: &SinkMessage<'_>) -> Vec<String> {
        message.headers.iter().map(|(name, _)| name.clone().into_owned()).collect()
    }

    #[test]
    fn a_message_says_which_fire_it_is_and_how_late() {
        let delivery = delivery(MessageSystem::Amqp, &[("region", "eu")]);
        let message = SinkMessage::of(&delivery, MessageFormat::Plain).unwrap();
        let id = delivery.fire_id.to_string();
        let text: Vec<(&str, &str)> =
            message.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let expected = [
            ("webhook-id", id.as_str()),
            ("webhook-timestamp", "1700000001"),
            ("punctual-namespace", "shop"),
            ("punctual-key", "order-42"),
            ("punctual-fire-at", "2023-11-14T22:13:20.000Z"),
            ("punctual-attempt", "1"),
            ("punctual-lag-ms", "1500"),
            ("punctual-occasion", "due"),
            ("region", "eu"),
        ];
        assert_eq!(text, expected);
        assert_eq!(
            (&*message.body, message.content_type),
            (&b"{\"order\":42}"[..], Some("application/json"),)
        );
    }

    #[test]
    fn cloudevents_have_the_prefix_of_their_system() {
        for (system, prefix) in [
            (MessageSystem::Kafka, "ce_"),
            (MessageSystem::Amqp, "cloudEvents_"),
            (MessageSystem::Nats, "ce-"),
            (MessageSystem::Mqtt, ""),
            (MessageSystem::RedisStream, "ce-"),
        ] {
            let delivery = delivery(system, &[]);
            let message = SinkMessage::of(&delivery, MessageFormat::CloudEvents).unwrap();
            let found = names(&message);
            for name in [
                "specversion",
                "id",
                "source",
                "type",
                "subject",
                "time",
                "attempt",
                "lagms",
                "occasion",
                "firedat",
                "taskid",
            ] {
                assert!(found.contains(&format!("{prefix}{name}")), "{system:?} {name}: {found:?}");
            }
            let source =
                message.headers.iter().find(|(name, _)| *name == format!("{prefix}source"));
            assert_eq!(source.unwrap().1, "/punctual/shop");
        }
    }
}
