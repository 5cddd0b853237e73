//! AMQP 0.9.1, like RabbitMQ: messages to exchanges, with publisher confirms.
//!
//! A session is a connection with one channel. A batch is published without waiting, and then all
//! confirms are awaited. Messages are persistent and mandatory, so a message that no queue takes
//! comes back and has failed. The server closes the channel if a message names an exchange that is
//! not there, or if it refuses one; the session then opens another. What a refused message does to
//! others of its batch is unknown, so for a while messages are sent one by one.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::tcp::{AsyncTcpStream, RustlsConnector};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use punctual_core::{AttemptResult, ConnectionName, Guarantee};
use punctual_engine::Delivery;
use punctual_sql::SqlSecret;
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::connection::{MessageFormat, MessageLink};
use crate::connection_settings::CONNECT_TIMEOUT;
use crate::endpoint::{Endpoint, EndpointHost};
use crate::message::SinkMessage;
use crate::sink::{
    DynFuture, SendResult, SessionLost, Sink, SinkSession, confirmed, failed, refused, unknown,
};

/// The account and the virtual host of a server that has no others.
const USER_DEFAULT: &str = "guest";
const VHOST_DEFAULT: &str = "/";
/// The seconds after which either side takes a silent connection for lost.
const HEARTBEAT_SECONDS: u16 = 10;
/// How many messages are sent one by one after the server has closed a channel, so that what closes
/// channels harms no other message. Several batches: the retry of a refused message comes later.
const SINGLE_MESSAGES: usize = 2_000;
/// A message that survives a restart of the server, in a queue that does.
pub(crate) const PERSISTENT: u8 = 2;

/// The sink of a connection.
pub(crate) fn sink(
    name: &ConnectionName,
    link: &MessageLink,
    answer_bytes: usize,
) -> Box<dyn Sink> {
    Box::new(AmqpSink {
        name: name.clone(),
        endpoint: link.endpoint.clone(),
        format: link.format,
        answer_bytes,
        single: Arc::default(),
    })
}

#[derive(Debug)]
struct AmqpSink {
    name: ConnectionName,
    endpoint: Endpoint,
    format: MessageFormat,
    /// Bytes of each answer that are kept.
    answer_bytes: usize,
    /// How many messages are still sent one by one.
    single: Arc<AtomicUsize>,
}

/// A connection with one channel.
struct AmqpSession {
    connection: Connection,
    channel: Channel,
    format: MessageFormat,
    answer_bytes: usize,
    single: Arc<AtomicUsize>,
}

/// The messages that came back because no queue took them, by their message id.
type ReturnedById = HashMap<String, BasicReturnMessage>;

impl Sink for AmqpSink {
    fn connect(&self) -> DynFuture<'_, Result<Box<dyn SinkSession>, String>> {
        Box::pin(async {
            let mut problem = String::new();
            for host in &self.endpoint.hosts {
                problem = match timeout(CONNECT_TIMEOUT, self.open(host)).await {
                    Ok(Ok(session)) => return Ok(Box::new(session) as Box<dyn SinkSession>),
                    Ok(Err(error)) => format!("{host}: {error}"),
                    Err(_) => format!("{host}: no answer within {CONNECT_TIMEOUT:?}"),
                };
            }
            Err(problem)
        })
    }
}

impl AmqpSink {
    async fn open(&self, host: &EndpointHost) -> Result<AmqpSession, lapin::Error> {
        let connection = open_connection(&self.endpoint, host, &self.name).await?;
        let channel = open_channel(&connection).await?;
        let (format, answer_bytes) = (self.format, self.answer_bytes);
        let single = Arc::clone(&self.single);
        Ok(AmqpSession { connection, channel, format, answer_bytes, single })
    }
}

/// Opens a connection to one of the hosts of an endpoint.
pub(crate) async fn open_connection(
    endpoint: &Endpoint,
    host: &EndpointHost,
    name: &ConnectionName,
) -> Result<Connection, lapin::Error> {
    let tls = match &endpoint.tls {
        Some(tls) => Some(tls.client_config().map_err(io::Error::other)?),
        None => None,
    };
    let name = format!("punctual {name}");
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let connect = async move |uri: AMQPUri, runtime| {
        let AMQPAuthority { host, port, .. } = &uri.authority;
        let addresses: Vec<SocketAddr> = lookup_host((host.as_str(), *port)).await?.collect();
        let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
        Ok(match &tls {
            None => stream,
            Some(config) => {
                let connector = RustlsConnector::from(Arc::clone(config));
                stream.into_rustls(&connector, host).await?
            }
        })
    };
    let runtime = lapin::runtime::default_runtime()?;
    Connection::connector(uri(endpoint, host), runtime, connect, properties).await
}

fn uri(endpoint: &Endpoint, host: &EndpointHost) -> AMQPUri {
    let Endpoint { user, password, path, tls, .. } = endpoint;
    let username = user.clone().unwrap_or_else(|| USER_DEFAULT.to_owned());
    let password = password.as_ref().map_or(USER_DEFAULT, SqlSecret::reveal).to_owned();
    let query = AMQPQueryString { heartbeat: Some(HEARTBEAT_SECONDS), ..Default::default() };
    let userinfo = AMQPUserInfo { username, password };
    AMQPUri {
        scheme: if tls.is_some() { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
        authority: AMQPAuthority { userinfo, host: host.host.clone(), port: host.port },
        vhost: path.clone().unwrap_or_else(|| VHOST_DEFAULT.to_owned()),
        query,
    }
}

/// Opens a channel whose messages are confirmed.
pub(crate) async fn open_channel(connection: &Connection) -> Result<Channel, lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

impl SinkSession for AmqpSession {
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult> {
        Box::pin(async move {
            let mut results = Vec::with_capacity(batch.len());
            while results.len() < batch.len() {
                let rest = &batch[results.len()..];
                let count = match self.single.load(Ordering::Relaxed) {
                    0 => rest.len(),
                    left => {
                        self.single.store(left - 1, Ordering::Relaxed);
                        1
                    }
                };
                if let Err(lost) = self.usable().await {
                    // Nothing of the rest was sent.
                    results.extend(rest.iter().map(|_| Some(failed(&lost.0))));
                    return SendResult { results, lost: Some(lost) };
                }
                results.extend(self.publish(&rest[..count]).await.into_iter().map(Some));
            }
            let lost = self.usable().await.err();
            SendResult { results, lost }
        })
    }

    fn check(&mut self) -> DynFuture<'_, Result<(), SessionLost>> {
        Box::pin(async {
            self.usable().await?;
            // Repeating it changes nothing, and the server answers.
            let asked = self.channel.confirm_select(ConfirmSelectOptions::default());
            match timeout(CONNECT_TIMEOUT, asked).await {
                Ok(answered) => answered.map_err(|error| SessionLost(error.to_string())),
                Err(_) => Err(SessionLost(format!("no answer within {CONNECT_TIMEOUT:?}"))),
            }
        })
    }
}

impl AmqpSession {
    /// Opens another channel if the server has closed it. The error says that the connection is of
    /// no use any more.
    async fn usable(&mut self) -> Result<(), SessionLost> {
        let status = self.connection.status();
        if !status.connected() {
            return Err(SessionLost("the connection is closed".to_owned()));
        }
        if status.blocked() {
            let problem = "the server takes no messages: it is short of memory or disk space";
            return Err(SessionLost(problem.to_owned()));
        }
        if !self.channel.status().connected() {
            let opened = open_channel(&self.connection).await;
            self.channel = opened.map_err(|error| SessionLost(error.to_string()))?;
        }
        Ok(())
    }

    /// Publishes deliveries and waits for all confirms.
    async fn publish(&self, batch: &[Delivery]) -> Vec<AttemptResult> {
        let mut published = Vec::with_capacity(batch.len());
        for delivery in batch {
            let message = match SinkMessage::of(delivery, self.format) {
                Ok(message) => message,
                Err(result) => {
                    published.push(Err(result));
                    continue;
                }
            };
            published.push(match PublishArguments::of(message, delivery) {
                Ok(arguments) => {
                    let PublishArguments { id, exchange, routing_key, body, properties } =
                        arguments;
                    let options = BasicPublishOptions { mandatory: true, immediate: false };
                    let sent = self.channel.basic_publish(
                        exchange,
                        routing_key,
                        options,
                        &body,
                        properties,
                    );
                    Ok((id, sent.await))
                }
                Err(problem) => Err(refused(&problem)),
            });
        }
        let mut returned = ReturnedById::new();
        let mut answers = Vec::with_capacity(batch.len());
        for sent in published {
            answers.push(match sent {
                Ok((id, Ok(confirm))) => {
                    let answer = confirm.await.map(|confirmation| {
                        let is_ack = confirmation.is_ack();
                        note_return(confirmation, &mut returned);
                        is_ack
                    });
                    Ok((id, answer))
                }
                Ok((id, Err(error))) => Ok((id, Err(error))),
                Err(result) => Err(result),
            });
        }
        let closes = |answer: &Result<(String, Result<bool, lapin::Error>), _>| match answer {
            Ok((_, Err(error))) => closes_channel(error),
            _ => false,
        };
        if batch.len() > 1 && answers.iter().any(closes) {
            self.single.store(SINGLE_MESSAGES, Ordering::Relaxed);
        }
        let answers = answers.into_iter().zip(batch);
        let results = answers.map(|(answer, delivery)| match answer {
            Ok((id, answer)) => {
                self.result(returned.get(&id), answer, delivery.definition.guarantee)
            }
            Err(result) => result,
        });
        results.collect()
    }

    fn result(
        &self,
        returned: Option<&BasicReturnMessage>,
        answer: Result<bool, lapin::Error>,
        guarantee: Guarantee,
    ) -> AttemptResult {
        match (returned, answer) {
            (Some(message), _) => {
                failed(&format!("no queue took it: {} {}", message.reply_code, message.reply_text))
            }
            (None, Ok(true)) => confirmed("ack", self.answer_bytes),
            (None, Ok(false)) => failed("the server did not take it: nack"),
            // The exchange is that of the whole batch, so nothing of it had an effect.
            (None, Err(error)) if soft_error(&error) == Some(&AMQPSoftError::NOTFOUND) => {
                failed(&error_text(&error))
            }
            (None, Err(error)) => unknown(guarantee, &error_text(&error)),
        }
    }
}

/// Keeps a message that came back. It may come with the confirm of another message, if the server
/// confirmed several at once.
fn note_return(confirmation: Confirmation, returned: &mut ReturnedById) {
    if let Some(message) = confirmation.take_message()
        && let Some(id) = message.delivery.properties.message_id()
    {
        returned.insert(id.as_str().to_owned(), message);
    }
}

/// A message as AMQP has it.
struct PublishArguments {
    id: String,
    exchange: ShortString,
    routing_key: ShortString,
    body: Bytes,
    properties: BasicProperties,
}

impl PublishArguments {
    /// The error says what AMQP cannot carry.
    fn of(message: SinkMessage<'_>, delivery: &Delivery) -> Result<Self, String> {
        let SinkMessage { address, id, body, content_type, headers } = message;
        let short = |text: &str| {
            let checked = ShortString::try_new(text);
            checked.map_err(|_| format!("{text:?} has more than 255 bytes"))
        };
        let mut table = FieldTable::default();
        for (name, value) in headers {
            let value = AMQPValue::LongString(value.into_owned().into());
            table.insert(short(&name)?, value);
        }
        let mut properties = BasicProperties::default()
            .with_message_id(short(&id)?)
            .with_delivery_mode(PERSISTENT)
            .with_timestamp(delivery.fired_at.as_millis() / 1000)
            .with_headers(table);
        if let Some(content_type) = content_type {
            properties = properties.with_content_type(short(content_type)?);
        }
        let exchange = short(address.place())?;
        let routing_key = short(address.options().key.as_deref().unwrap_or_default())?;
        Ok(Self { id, exchange, routing_key, body, properties })
    }
}

fn soft_error(error: &lapin::Error) -> Option<&AMQPSoftError> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// Whether one message of a batch made the server close the channel, and not their exchange.
fn closes_channel(error: &lapin::Error) -> bool {
    soft_error(error).is_some_and(|soft| *soft != AMQPSoftError::NOTFOUND)
}

/// The text of the server, if it is one of its errors.
pub(crate) fn error_text(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => {
            format!("{} {}", error.get_id(), error.get_message())
        }
        _ => error.to_string(),
    }
}
