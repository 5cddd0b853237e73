//! MQTT 5: messages to topics, confirmed by PUBACK or PUBCOMP.
//!
//! A session is a connection with a clean start, so nothing of an earlier one is sent again. A task
//! drives the connection until it breaks; then no message that waits for its confirm is sent again,
//! and its outcome is unknown. The client keeps to the window that the server sets.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use punctual_core::{AttemptResult, ConnectionName, Guarantee, MqttQos};
use punctual_engine::Delivery;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{
    ConnAckProperties, Packet, PubAckReason, PubCompReason, PubRecReason, PublishProperties,
};
use rumqttc::{
    AsyncClient, Broker, Event, EventLoop, MqttOptions, PublishNotice, PublishNoticeError,
    PublishOptions, PublishResult, TlsConfiguration, Transport,
};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::connection::{MessageFormat, MessageLink, MqttSubscribers};
use crate::connection_settings::CONNECT_TIMEOUT;
use crate::endpoint::{Endpoint, EndpointHost};
use crate::message::SinkMessage;
use crate::sink::{
    DynFuture, SendResult, SessionLost, Sink, SinkSession, confirmed, failed, refused, unknown,
};

/// The seconds after which a silent server is asked whether it is there, and has that long again.
const KEEP_ALIVE_SECONDS: u16 = 5;
/// Messages that wait for the connection, and those that wait for their confirm: a batch. The
/// client keeps a table of as many, which it goes through now and then.
const QUEUE_MAX: u16 = 256;
/// Bytes of a packet beside topic, body and properties, at most: its head, lengths and its number.
const PACKET_HEAD_BYTES: usize = 16;
/// Bytes of a user property beside its name and value.
const PROPERTY_HEAD_BYTES: usize = 5;

/// The sink of a connection.
pub(crate) fn sink(
    name: &ConnectionName,
    link: &MessageLink,
    answer_bytes: usize,
) -> Box<dyn Sink> {
    let (endpoint, format, subscribers) = (link.endpoint.clone(), link.format, link.subscribers);
    Box::new(MqttSink { name: name.clone(), endpoint, format, subscribers, answer_bytes })
}

#[derive(Debug)]
struct MqttSink {
    name: ConnectionName,
    endpoint: Endpoint,
    format: MessageFormat,
    subscribers: MqttSubscribers,
    /// Bytes of each answer that are kept.
    answer_bytes: usize,
}

/// A connection, driven by a task of its own.
struct MqttSession {
    client: AsyncClient,
    /// Why the connection broke, once it has.
    broken: watch::Receiver<Option<String>>,
    limits: MqttLimits,
    format: MessageFormat,
    subscribers: MqttSubscribers,
    answer_bytes: usize,
}

/// What the server said that it takes.
#[derive(Debug, Clone, Copy)]
struct MqttLimits {
    packet_bytes: Option<u32>,
    /// The highest level of confirmation; `None` for all.
    qos: Option<u8>,
    retain: bool,
}

impl MqttLimits {
    fn of(properties: Option<&ConnAckProperties>) -> Self {
        Self {
            packet_bytes: properties.and_then(|found| found.max_packet_size),
            qos: properties.and_then(|found| found.max_qos),
            retain: properties.and_then(|found| found.retain_available) != Some(0),
        }
    }
}

impl Sink for MqttSink {
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

impl MqttSink {
    async fn open(&self, host: &EndpointHost) -> Result<MqttSession, String> {
        let options = self.options(host)?;
        let built = AsyncClient::builder(options).capacity(usize::from(QUEUE_MAX)).try_build();
        let (client, mut events) = built.map_err(|error| error.to_string())?;
        let limits = loop {
            match events.poll().await {
                Ok(Event::Incoming(Packet::ConnAck(answer))) => {
                    break MqttLimits::of(answer.properties.as_ref());
                }
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        };
        let (broke, broken) = watch::channel(None);
        tokio::spawn(drive(events, broke));
        let Self { format, subscribers, answer_bytes, .. } = *self;
        Ok(MqttSession { client, broken, limits, format, subscribers, answer_bytes })
    }

    fn options(&self, host: &EndpointHost) -> Result<MqttOptions, String> {
        // A server has one session by each name, and ends the older one.
        let unique = RandomState::new().build_hasher().finish();
        let id = format!("punctual-{}-{unique:016x}", self.name);
        let mut options = connection_options(&self.endpoint, host, id)?;
        options.set_clean_start(true);
        options.set_request_channel_capacity(usize::from(QUEUE_MAX));
        options.set_outgoing_inflight_upper_limit(QUEUE_MAX);
        Ok(options)
    }
}

/// What every connection to one of the hosts of an endpoint has.
pub(crate) fn connection_options(
    endpoint: &Endpoint,
    host: &EndpointHost,
    client_id: String,
) -> Result<MqttOptions, String> {
    let Endpoint { user, password, tls, .. } = endpoint;
    let mut options = MqttOptions::new(client_id, Broker::tcp(host.host.clone(), host.port));
    options.set_keep_alive(KEEP_ALIVE_SECONDS);
    options.set_connect_timeout(CONNECT_TIMEOUT);
    if let Some(tls) = tls {
        let config = TlsConfiguration::Rustls(tls.client_config()?);
        options.set_transport(Transport::tls_with_config(config));
    }
    match (user, password) {
        (Some(user), Some(password)) => {
            options.set_credentials(user.clone(), password.reveal().to_owned());
        }
        (Some(user), None) => {
            options.set_username(user.clone());
        }
        (None, Some(password)) => {
            options.set_password(password.reveal().to_owned());
        }
        (None, None) => {}
    }
    Ok(options)
}

/// Drives a connection until it breaks or its session is dropped. It is not opened again here.
async fn drive(mut events: EventLoop, broke: watch::Sender<Option<String>>) {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::Disconnect(reason))) => {
                broke.send_replace(Some(format!("the server left: {:?}", reason.reason_code)));
                return;
            }
            Ok(_) => {}
            Err(error) => {
                broke.send_replace(Some(error.to_string()));
                return;
            }
        }
    }
}

impl Drop for MqttSession {
    fn drop(&mut self) {
        // Ends the task that drives the connection. It has ended if the connection broke.
        let _ = self.client.try_disconnect_now();
    }
}

impl SinkSession for MqttSession {
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult> {
        Box::pin(async move {
            let mut notices = Vec::with_capacity(batch.len());
            for delivery in batch {
                notices.push(self.publish(delivery).await);
            }
            let mut results = Vec::with_capacity(batch.len());
            for (delivery, notice) in batch.iter().zip(notices) {
                results.push(Some(match notice {
                    Ok(notice) => {
                        let answer = notice.wait_async().await;
                        self.result(answer, delivery.definition.guarantee)
                    }
                    Err(result) => result,
                }));
            }
            SendResult { results, lost: self.lost().err() }
        })
    }

    fn check(&mut self) -> DynFuture<'_, Result<(), SessionLost>> {
        Box::pin(std::future::ready(self.lost()))
    }
}

impl MqttSession {
    fn lost(&self) -> Result<(), SessionLost> {
        match &*self.broken.borrow() {
            Some(problem) => Err(SessionLost(problem.clone())),
            None => Ok(()),
        }
    }

    /// Gives a message to the connection. The error is the result of one that was not given.
    async fn publish(&self, delivery: &Delivery) -> Result<PublishNotice, AttemptResult> {
        let message = SinkMessage::of(delivery, self.format)?;
        let SinkMessage { address, body, content_type, headers, .. } = message;
        let options = address.options();
        let size = packet_bytes(address.place(), &body, content_type, &headers);
        if let Some(max) = self.limits.packet_bytes
            && size > usize::try_from(max).unwrap_or(usize::MAX)
        {
            let problem = format!("too large: {size} bytes, and the server takes {max}");
            return Err(refused(&problem));
        }
        if self.limits.qos.is_some_and(|max| options.qos.level() > max) {
            let level = options.qos.level();
            return Err(failed(&format!("the server has no QoS {level}")));
        }
        if options.retain && !self.limits.retain {
            return Err(failed("the server does not retain messages"));
        }
        // The client does not show the reason of a PUBREC that is no error.
        if self.subscribers == MqttSubscribers::Required && options.qos != MqttQos::AtLeastOnce {
            let problem = "the connection requires subscribers, which only QoS 1 tells: use it";
            return Err(failed(problem));
        }
        let qos = match options.qos {
            MqttQos::AtLeastOnce => QoS::AtLeastOnce,
            MqttQos::ExactlyOnce => QoS::ExactlyOnce,
        };
        let owned =
            headers.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned()));
        let properties = PublishProperties {
            user_properties: owned.collect(),
            content_type: content_type.map(str::to_owned),
            ..PublishProperties::default()
        };
        let publish = PublishOptions::new(qos).retain(options.retain).properties(properties);
        let given = self.client.publish_tracked(address.place(), body, publish).await;
        given.map_err(|error| match self.lost() {
            Err(lost) => failed(&lost.0),
            Ok(()) => failed(&error.to_string()),
        })
    }

    fn result(
        &self,
        answer: Result<PublishResult, PublishNoticeError>,
        guarantee: Guarantee,
    ) -> AttemptResult {
        let not_taken = |reason: String| failed(&format!("the server did not take it: {reason}"));
        match answer {
            Ok(PublishResult::Qos1(ack)) => match ack.reason {
                PubAckReason::Success => confirmed("PUBACK", self.answer_bytes),
                // Taken all the same: a subscriber may come later, or read what is retained.
                PubAckReason::NoMatchingSubscribers => match self.subscribers {
                    MqttSubscribers::Optional => {
                        confirmed("PUBACK: no subscribers", self.answer_bytes)
                    }
                    MqttSubscribers::Required => failed("the topic has no subscribers"),
                },
                reason => not_taken(format!("{reason:?}")),
            },
            Ok(PublishResult::Qos2Completed(done)) => match done.reason {
                PubCompReason::Success => confirmed("PUBCOMP", self.answer_bytes),
                // It was released before, so the server has it.
                PubCompReason::PacketIdentifierNotFound => {
                    confirmed("PUBCOMP: known", self.answer_bytes)
                }
            },
            Ok(PublishResult::Qos2PubRecRejected(answer)) => match answer.reason {
                PubRecReason::Success | PubRecReason::NoMatchingSubscribers => {
                    confirmed("PUBREC", self.answer_bytes)
                }
                reason => not_taken(format!("{reason:?}")),
            },
            Ok(PublishResult::Qos0Flushed) => failed("the client sent it without a confirm"),
            Err(PublishNoticeError::RetainNotSupported) => {
                failed("the server does not retain messages")
            }
            Err(error) => {
                let broken = self.broken.borrow().clone();
                unknown(guarantee, &broken.unwrap_or_else(|| error.to_string()))
            }
        }
    }
}

/// Bytes of a packet, at most.
fn packet_bytes(
    topic: &str,
    body: &[u8],
    content_type: Option<&str>,
    headers: &[crate::message::MessageHeader<'_>],
) -> usize {
    let headers =
        headers.iter().map(|(name, value)| PROPERTY_HEAD_BYTES + name.len() + value.len());
    let content_type = content_type.map_or(0, str::len) + PROPERTY_HEAD_BYTES;
    PACKET_HEAD_BYTES + topic.len() + body.len() + content_type + headers.sum::<usize>()
}
