//! Queues of AMQP 0.9.1, like those of RabbitMQ, as sources: all brokers consume from the queue.
//!
//! A session is a connection with a channel that consumes, with a bounded number of messages that
//! are not acknowledged, and a channel that publishes rejected messages with confirms. AMQP gives a
//! message no position of its own: one that comes again is known by the id of its producer only.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery as QueueMessage;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, Consumer};
use punctual_core::ConnectionName;
use tokio::time::timeout;

use super::message::{CONTENT_TYPE, MESSAGE_ID, ORIGIN, PROBLEM, SourceMessage, short_problem};
use super::session::{MessageEnd, MessageSession, MessageSource, TakeBound};
use crate::amqp::{PERSISTENT, error_text, open_channel, open_connection};
use crate::connection_settings::CONNECT_TIMEOUT;
use crate::endpoint::Endpoint;
use crate::sink::{DynFuture, SessionLost};
use crate::source_settings::MessageSourceSettings;

/// A queue as a source.
#[derive(Debug)]
pub(crate) struct AmqpQueueSource {
    endpoint: Endpoint,
    connection: ConnectionName,
    queue: ShortString,
    /// The queue of rejected messages.
    rejected: ShortString,
    /// The most messages that are not acknowledged.
    prefetch: u16,
}

struct AmqpSourceSession {
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
    publisher: Channel,
    rejected: ShortString,
    /// Tells the messages of this session from those of all others.
    nonce: u64,
    /// What is not acknowledged, by its tag.
    in_hand: BTreeMap<u64, BasicProperties>,
}

impl AmqpQueueSource {
    pub(crate) fn new(settings: &MessageSourceSettings) -> Self {
        // Names of queues were checked to have at most 255 bytes.
        let short = |text: &str| ShortString::try_new(text).unwrap_or_default();
        let rejected = settings.rejected.clone();
        let rejected = rejected.unwrap_or_else(|| format!("{}.rejected", settings.from));
        Self {
            endpoint: settings.link.endpoint.clone(),
            connection: settings.connection.clone(),
            queue: short(&settings.from),
            rejected: short(&rejected),
            prefetch: u16::try_from(settings.batch).unwrap_or(u16::MAX),
        }
    }

    async fn connect(&self) -> Result<AmqpSourceSession, String> {
        let mut problem = String::new();
        for host in &self.endpoint.hosts {
            let connecting = open_connection(&self.endpoint, host, &self.connection);
            problem = match timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(connection)) => {
                    let consuming = self.consume(connection).await;
                    return consuming.map_err(|error| format!("{host}: {}", error_text(&error)));
                }
                Ok(Err(error)) => format!("{host}: {}", error_text(&error)),
                Err(_) => format!("{host}: no answer within {CONNECT_TIMEOUT:?}"),
            };
        }
        Err(problem)
    }

    async fn consume(&self, connection: Connection) -> Result<AmqpSourceSession, lapin::Error> {
        let channel = connection.create_channel().await?;
        channel.basic_qos(self.prefetch, BasicQosOptions::default()).await?;
        let publisher = open_channel(&connection).await?;
        let nonce = RandomState::new().hash_one(self.queue.as_str());
        let tag = format!("punctual-{nonce:016x}");
        let options = BasicConsumeOptions::default();
        let queue = self.queue.clone();
        let consumer =
            channel.basic_consume(queue, tag.into(), options, FieldTable::default()).await?;
        let (rejected, in_hand) = (self.rejected.clone(), BTreeMap::new());
        Ok(AmqpSourceSession { connection, channel, consumer, publisher, rejected, nonce, in_hand })
    }
}

impl MessageSource for AmqpQueueSource {
    fn open(&self) -> DynFuture<'_, Result<Box<dyn MessageSession>, String>> {
        Box::pin(async {
            let session = self.connect().await?;
            Ok(Box::new(session) as Box<dyn MessageSession>)
        })
    }
}

impl AmqpSourceSession {
    async fn take_messages(&mut self, bound: TakeBound) -> Result<Vec<SourceMessage>, SessionLost> {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while messages.len() < bound.messages && bytes < bound.bytes {
            let next = match self.consumer.next().now_or_never() {
                Some(next) => next,
                None if messages.is_empty() && !bound.wait.is_zero() => {
                    match timeout(bound.wait, self.consumer.next()).await {
                        Ok(next) => next,
                        Err(_) => break,
                    }
                }
                None => break,
            };
            let message = match next {
                Some(Ok(message)) => self.message(message),
                Some(Err(error)) => return Err(lost(&error)),
                None => return Err(SessionLost("the server cancelled the consumer".to_owned())),
            };
            bytes += message.bytes();
            messages.push(message);
        }
        let status = self.connection.status();
        if messages.is_empty() && !(status.connected() && self.channel.status().connected()) {
            return Err(SessionLost("the connection is closed".to_owned()));
        }
        Ok(messages)
    }

    fn message(&mut self, message: QueueMessage) -> SourceMessage {
        let QueueMessage { delivery_tag: tag, routing_key, properties, data, .. } = message;
        let mut headers = Vec::new();
        for (name, value) in properties.headers().iter().flat_map(|table| table.inner()) {
            if let Some(value) = header_text(value) {
                headers.push((name.as_str().to_owned(), value));
            }
        }
        let of_properties =
            [(CONTENT_TYPE, properties.content_type()), (MESSAGE_ID, properties.message_id())];
        for (name, value) in of_properties {
            if let Some(value) = value {
                headers.push((name.to_owned(), value.as_str().to_owned()));
            }
        }
        self.in_hand.insert(tag, properties);
        SourceMessage {
            place: routing_key.as_str().to_owned(),
            position: format!("{:016x}-{tag}", self.nonce),
            handle: tag,
            headers,
            body: data.into(),
            sent_at: None,
        }
    }

    async fn settle_messages(
        &mut self,
        ends: &[(SourceMessage, MessageEnd)],
    ) -> Result<(), SessionLost> {
        let mut confirms = Vec::new();
        for (message, end) in ends {
            if let MessageEnd::Rejected(problem) = end {
                confirms.push((message, problem, self.publish(message, problem).await?));
            }
        }
        for (message, problem, confirm) in confirms {
            let confirmation = confirm.await.map_err(|error| lost(&error))?;
            let is_taken = confirmation.is_ack() && confirmation.take_message().is_none();
            if !is_taken {
                self.publish_to_new_queue(message, problem).await?;
            }
        }
        for (message, _) in ends {
            self.in_hand.remove(&message.handle);
        }
        let tags = ends.iter().map(|(message, _)| message.handle);
        let last = tags.clone().max().unwrap_or_default();
        let is_all = self.in_hand.keys().next().is_none_or(|first| *first > last);
        let tags: Vec<u64> = if is_all { vec![last] } else { tags.collect() };
        for tag in tags {
            let acked = self.channel.basic_ack(tag, BasicAckOptions { multiple: is_all }).await;
            acked.map_err(|error| lost(&error))?;
        }
        Ok(())
    }

    async fn publish(
        &self,
        message: &SourceMessage,
        problem: &str,
    ) -> Result<lapin::PublisherConfirm, SessionLost> {
        let properties = self.in_hand.get(&message.handle).cloned().unwrap_or_default();
        let mut headers = properties.headers().clone().unwrap_or_default();
        for (name, value) in [(PROBLEM, short_problem(problem)), (ORIGIN, &message.place)] {
            headers.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        let properties = properties.with_headers(headers).with_delivery_mode(PERSISTENT);
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let (exchange, queue) = (ShortString::default(), self.rejected.clone());
        let body = &message.body;
        let sent = self.publisher.basic_publish(exchange, queue, options, body, properties).await;
        sent.map_err(|error| lost(&error))
    }

    /// The queue of rejected messages is made when it is needed.
    async fn publish_to_new_queue(
        &self,
        message: &SourceMessage,
        problem: &str,
    ) -> Result<(), SessionLost> {
        let options = QueueDeclareOptions::durable();
        let (queue, arguments) = (self.rejected.clone(), FieldTable::default());
        let declared = self.publisher.queue_declare(queue, options, arguments).await;
        declared.map_err(|error| lost(&error))?;
        let confirm = self.publish(message, problem).await?;
        let confirmation = confirm.await.map_err(|error| lost(&error))?;
        if confirmation.is_ack() && confirmation.take_message().is_none() {
            return Ok(());
        }
        let queue = self.rejected.as_str();
        Err(SessionLost(format!("queue {queue:?} does not take rejected messages")))
    }
}

impl MessageSession for AmqpSourceSession {
    fn take(&mut self, bound: TakeBound) -> DynFuture<'_, Result<Vec<SourceMessage>, SessionLost>> {
        Box::pin(self.take_messages(bound))
    }

    fn settle<'a>(
        &'a mut self,
        ends: &'a [(SourceMessage, MessageEnd)],
    ) -> DynFuture<'a, Result<(), SessionLost>> {
        Box::pin(self.settle_messages(ends))
    }

    fn hold<'a>(&'a mut self, _: &'a [SourceMessage]) -> DynFuture<'a, Result<(), SessionLost>> {
        // The server keeps them with this consumer for half an hour, and then closes the channel.
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(self: Box<Self>) -> DynFuture<'static, ()> {
        Box::pin(async move {
            let _ = self.connection.close(200, "stopped".into()).await;
        })
    }
}

/// A header as text; `None` for tables and lists, which no header of Punctual is.
fn header_text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.as_str().to_owned(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::DecimalValue(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::ByteArray(_)
        | AMQPValue::Void => return None,
    })
}

fn lost(error: &lapin::Error) -> SessionLost {
    SessionLost(error_text(error))
}
