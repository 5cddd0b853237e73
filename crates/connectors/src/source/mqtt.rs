//! Topics of MQTT 5 as sources: a shared subscription of all brokers, with a session that the
//! server keeps while a broker is away.
//!
//! A message of QoS 1 is acknowledged once its command is durable. MQTT wants acknowledgements in
//! the order of the messages, so one that is held holds back those behind it. Messages of QoS 0 are
//! taken as they come: if this broker is away or busy they are lost, as their publisher has chosen.
//! MQTT gives a message no position of its own: one that comes again is known by its key, or by an
//! id of its producer.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{Packet, PubAckReason, Publish, PublishProperties};
use rumqttc::{
    AckMode, AsyncClient, Event, EventLoop, ManualAck, MqttOptions, Outgoing, PersistedAckMode,
    PersistedSession, PublishOptions, PublishResult, SessionStore, SessionStoreError,
    SessionStoreKey,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::message::{CONTENT_TYPE, SourceMessage, digest_start};
use super::session::{MessageEnd, MessageSession, MessageSource, TakeBound};
use crate::connection_settings::CONNECT_TIMEOUT;
use crate::endpoint::{Endpoint, EndpointHost};
use crate::mqtt::connection_options;
use crate::sink::{DynFuture, SessionLost};
use crate::source_settings::MessageSourceSettings;

/// How long the server keeps the session of a broker that is away, and the messages for it.
const SESSION_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Messages that wait beside those of a batch: of QoS 0, and of servers that send more than they
/// may. Nothing but this bounds them.
const BEYOND_BATCH_MAX: usize = 10_000;
/// The largest packet that is taken: the largest payload with its properties.
const PACKET_BYTES_MAX: u32 = 2 << 20;
/// Acknowledgements that wait for the connection.
const QUEUE_MAX: usize = 256;
/// Messages of this session that wait for their confirm: rejected ones, one at a time. The client
/// goes through a table of as many for each acknowledgement, and without a limit it has 65,535.
const OUTGOING_MAX: u16 = 16;
/// A topic that nothing is subscribed to: see [`MqttSourceSession::reach_server`].
const NOT_SUBSCRIBED: &str = "punctual/none";
/// How long a session that ends waits for what it has sent.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Topics as a source.
#[derive(Debug)]
pub(crate) struct MqttTopicSource {
    endpoint: Endpoint,
    /// The filter of the shared subscription.
    filter: String,
    /// The topic of rejected messages; without it, their own topic behind a prefix.
    rejected: Option<String>,
    /// The name of the session, which the server keeps.
    client_id: String,
    batch: u16,
}

struct MqttSourceSession {
    client: AsyncClient,
    messages: mpsc::Receiver<Publish>,
    state: watch::Receiver<MqttLinkState>,
    driver: JoinHandle<()>,
    rejected: Option<String>,
    /// Tells the messages of this session from those of all others.
    nonce: u64,
    taken: u64,
    /// Messages of QoS 1 that are not acknowledged, in their order.
    in_hand: VecDeque<UnackedMessage>,
    /// Acknowledgements that were given to the client, and those that the server has read.
    acks: u64,
    acks_read: u64,
}

struct UnackedMessage {
    handle: u64,
    ack: ManualAck,
    is_settled: bool,
}

/// What the client's side of a session has when it is resumed: nothing. It sends only rejected
/// messages, and one that was not confirmed is rejected again.
#[derive(Debug)]
struct NothingInFlight {
    /// In seconds.
    session_kept: u32,
}

type SessionAnswer<'a, T> = DynFuture<'a, Result<T, SessionStoreError>>;

/// What the task that drives a connection has seen.
#[derive(Debug, Clone, Default)]
struct MqttLinkState {
    /// Why the connection broke, once it has.
    broken: Option<String>,
    /// Acknowledgements that were sent.
    acks: u64,
    /// Whether messages of QoS 1 were dropped, because the server sent more than it may.
    overflowed: bool,
}

impl MqttTopicSource {
    pub(crate) fn new(settings: &MessageSourceSettings, reader: &str) -> Self {
        let MessageSourceSettings { from, group, rejected, batch, .. } = settings;
        let filter = format!("$share/{group}/{from}");
        let source = digest_start(&filter);
        Self {
            endpoint: settings.link.endpoint.clone(),
            filter,
            rejected: rejected.clone(),
            client_id: format!("punctual-{reader}-{source}"),
            batch: u16::try_from(*batch).unwrap_or(u16::MAX),
        }
    }

    async fn connect(&self) -> Result<MqttSourceSession, String> {
        let mut problem = String::new();
        for host in &self.endpoint.hosts {
            problem = match timeout(CONNECT_TIMEOUT, self.open_at(host)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => format!("{host}: {error}"),
                Err(_) => format!("{host}: no answer within {CONNECT_TIMEOUT:?}"),
            };
        }
        Err(problem)
    }

    async fn open_at(&self, host: &EndpointHost) -> Result<MqttSourceSession, String> {
        let options = self.options(host)?;
        let built = AsyncClient::builder(options).capacity(QUEUE_MAX).try_build();
        let (client, mut events) = built.map_err(|error| error.to_string())?;
        loop {
            match events.poll().await {
                Ok(Event::Incoming(Packet::ConnAck(_))) => break,
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        let (publishes, messages) = mpsc::channel(usize::from(self.batch) + BEYOND_BATCH_MAX);
        let (seen, state) = watch::channel(MqttLinkState::default());
        let driver = tokio::spawn(drive(events, publishes, seen));
        let session = MqttSourceSession {
            client,
            messages,
            state,
            driver,
            rejected: self.rejected.clone(),
            nonce: RandomState::new().hash_one(&self.filter),
            taken: 0,
            in_hand: VecDeque::new(),
            acks: 0,
            acks_read: 0,
        };
        let subscribed = session.client.subscribe_tracked(&self.filter, QoS::AtLeastOnce).await;
        let notice = subscribed.map_err(|error| error.to_string())?;
        notice.wait_async().await.map_err(|error| format!("cannot subscribe: {error}"))?;
        Ok(session)
    }

    fn options(&self, host: &EndpointHost) -> Result<MqttOptions, String> {
        let mut options = connection_options(&self.endpoint, host, self.client_id.clone())?;
        options.set_clean_start(false);
        let kept = u32::try_from(SESSION_KEPT.as_secs()).unwrap_or(u32::MAX);
        options.set_session_expiry_interval(Some(kept));
        options.set_receive_maximum(Some(self.batch));
        options.set_max_packet_size(Some(PACKET_BYTES_MAX));
        options.set_request_channel_capacity(QUEUE_MAX);
        options.set_outgoing_inflight_upper_limit(OUTGOING_MAX);
        options.set_ack_mode(AckMode::Manual);
        options.set_session_store(NothingInFlight { session_kept: kept });
        Ok(options)
    }
}

impl SessionStore for NothingInFlight {
    fn load<'a>(&'a self, key: &'a SessionStoreKey) -> SessionAnswer<'a, Option<PersistedSession>> {
        let session = PersistedSession {
            format_version: 1,
            client_id: key.client_id().to_owned(),
            clean_start: false,
            session_expiry_interval: Some(self.session_kept),
            outgoing_inflight_upper_limit: Some(OUTGOING_MAX),
            ack_mode: PersistedAckMode::Manual,
            last_pkid: 0,
            last_puback: 0,
            replay: Vec::new(),
            incoming_qos2: Vec::new(),
        };
        Box::pin(std::future::ready(Ok(Some(session))))
    }

    fn save<'a>(
        &'a self,
        _: &'a SessionStoreKey,
        _: &'a PersistedSession,
    ) -> SessionAnswer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn clear<'a>(&'a self, _: &'a SessionStoreKey) -> SessionAnswer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Drives a connection until it breaks. It is not opened again here.
///
/// A server sends no more of QoS 1 than a batch that is not acknowledged. Mosquitto before 2.0.13
/// does, once messages have waited for their reader. Then all are dropped behind the first that
/// has no space: they are not acknowledged, so they come again in the next session.
async fn drive(
    mut events: EventLoop,
    messages: mpsc::Sender<Publish>,
    state: watch::Sender<MqttLinkState>,
) {
    let mut overflowed = false;
    let broken = loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::Publish(message))) if !overflowed => {
                let qos = message.qos;
                if messages.try_send(message).is_err() && qos != QoS::AtMostOnce {
                    overflowed = true;
                    state.send_modify(|state| state.overflowed = true);
                }
            }
            Ok(Event::Incoming(Packet::Disconnect(reason))) => {
                break format!("the server left: {:?}", reason.reason_code);
            }
            Ok(Event::Outgoing(Outgoing::PubAck(_))) => state.send_modify(|state| state.acks += 1),
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    state.send_modify(|state| state.broken = Some(broken));
}

impl Drop for MqttSourceSession {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl MessageSource for MqttTopicSource {
    fn open(&self) -> DynFuture<'_, Result<Box<dyn MessageSession>, String>> {
        Box::pin(async {
            let session = self.connect().await?;
            Ok(Box::new(session) as Box<dyn MessageSession>)
        })
    }
}

impl MqttSourceSession {
    fn lost(&self) -> SessionLost {
        let broken = self.state.borrow().broken.clone();
        SessionLost(broken.unwrap_or_else(|| "the connection is closed".to_owned()))
    }

    /// Whether all that came before the first dropped message is acknowledged.
    fn is_exhausted(&self) -> bool {
        self.messages.is_empty() && self.in_hand.is_empty() && self.state.borrow().overflowed
    }

    async fn take_messages(&mut self, bound: TakeBound) -> Result<Vec<SourceMessage>, SessionLost> {
        if self.is_exhausted() {
            let problem = "the server has sent more messages than it may; the rest come again";
            return Err(SessionLost(problem.to_owned()));
        }
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while messages.len() < bound.messages && bytes < bound.bytes {
            let next = match self.messages.try_recv() {
                Ok(next) => next,
                Err(mpsc::error::TryRecvError::Disconnected) if messages.is_empty() => {
                    return Err(self.lost());
                }
                Err(_) if !messages.is_empty() || bound.wait.is_zero() => break,
                Err(_) => match timeout(bound.wait, self.messages.recv()).await {
                    Ok(Some(next)) => next,
                    Ok(None) => return Err(self.lost()),
                    Err(_) => break,
                },
            };
            let message = self.message(next);
            bytes += message.bytes();
            messages.push(message);
        }
        Ok(messages)
    }

    fn message(&mut self, publish: Publish) -> SourceMessage {
        self.taken += 1;
        let handle = self.taken;
        if let Some(ack) = self.client.prepare_ack(&publish) {
            self.in_hand.push_back(UnackedMessage { handle, ack, is_settled: false });
        }
        let mut headers = Vec::new();
        if let Some(properties) = publish.properties {
            headers = properties.user_properties;
            if let Some(content_type) = properties.content_type {
                headers.push((CONTENT_TYPE.to_owned(), content_type));
            }
        }
        SourceMessage {
            place: String::from_utf8_lossy(&publish.topic).into_owned(),
            position: format!("{:016x}-{handle}", self.nonce),
            handle,
            headers,
            body: publish.payload,
            sent_at: None,
        }
    }

    async fn settle_messages(
        &mut self,
        ends: &[(SourceMessage, MessageEnd)],
    ) -> Result<(), SessionLost> {
        for (message, end) in ends {
            if let MessageEnd::Rejected(problem) = end {
                self.publish(message, problem).await?;
            }
            let position = self.in_hand.binary_search_by_key(&message.handle, |held| held.handle);
            if let Ok(position) = position {
                self.in_hand[position].is_settled = true;
            }
        }
        while self.in_hand.front().is_some_and(|first| first.is_settled) {
            let Some(first) = self.in_hand.pop_front() else { break };
            let given = self.client.manual_ack(first.ack).await;
            given.map_err(|_| self.lost())?;
            self.acks += 1;
        }
        self.reach_server().await
    }

    /// Returns when the server has read the acknowledgements that were given to the client.
    ///
    /// MQTT answers none of them, so a connection that ends now can lose them: a socket that is
    /// closed with messages in it is reset, and the server then reads nothing more. But the server
    /// reads packets in their order. So the answer to one that is sent behind them, and changes
    /// nothing, says that it has read them.
    async fn reach_server(&mut self) -> Result<(), SessionLost> {
        let acks = self.acks;
        if acks == self.acks_read {
            return Ok(());
        }
        let sent = self.state.wait_for(|state| state.broken.is_some() || state.acks >= acks).await;
        if sent.map_or(true, |state| state.acks < acks) {
            return Err(self.lost());
        }
        let asked = self.client.unsubscribe_tracked(NOT_SUBSCRIBED).await;
        asked.map_err(|_| self.lost())?.wait_async().await.map_err(|_| self.lost())?;
        self.acks_read = acks;
        Ok(())
    }

    async fn publish(&self, message: &SourceMessage, problem: &str) -> Result<(), SessionLost> {
        let mut properties = PublishProperties::default();
        for (name, value) in message.rejected_headers(problem) {
            match name {
                CONTENT_TYPE => properties.content_type = Some(value.to_owned()),
                name => properties.user_properties.push((name.to_owned(), value.to_owned())),
            }
        }
        let own = || format!("punctual/rejected/{}", message.place);
        let topic = self.rejected.clone().unwrap_or_else(own);
        let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
        let given = self.client.publish_tracked(topic, message.body.clone(), options).await;
        let answer = given.map_err(|_| self.lost())?.wait_async().await;
        match answer {
            Ok(PublishResult::Qos1(ack)) => match ack.reason {
                PubAckReason::Success | PubAckReason::NoMatchingSubscribers => Ok(()),
                reason => {
                    let problem = format!("the topic of rejected messages takes none: {reason:?}");
                    Err(SessionLost(problem))
                }
            },
            Ok(_) | Err(_) => Err(self.lost()),
        }
    }
}

impl MessageSession for MqttSourceSession {
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
        // The server waits for acknowledgements as long as the connection is there.
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(mut self: Box<Self>) -> DynFuture<'static, ()> {
        Box::pin(async move {
            let _ = self.client.disconnect_with_timeout(CLOSE_MAX).await;
            let _ = timeout(CLOSE_MAX, &mut self.driver).await;
        })
    }
}
