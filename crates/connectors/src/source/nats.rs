//! Subjects of NATS `JetStream` as sources: a durable pull consumer that all brokers share.
//!
//! The consumer is made at the stream that has the subject. A message is acknowledged once its
//! command is durable; one that is not acknowledged for a time goes to another reader.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::pull::{Config as PullConfig, Stream as PullStream};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy};
use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::message::{AckKind, Acker, Message as StreamMessage};
use async_nats::jetstream::stream::Config as StreamConfig;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use futures_util::{FutureExt as _, StreamExt as _};
use punctual_core::{ConnectionName, Timestamp};
use tokio::sync::watch;
use tokio::time::timeout;

use super::message::{SourceMessage, digest_start};
use super::session::{MessageEnd, MessageSession, MessageSource, TakeBound};
use crate::connection::MessageLink;
use crate::connection_settings::CONNECT_TIMEOUT;
use crate::nats::{NatsState, open_client};
use crate::sink::{DynFuture, SessionLost};
use crate::source_settings::MessageSourceSettings;

/// Messages of all readers that are not acknowledged: some batches of the largest size.
const ACK_PENDING_MAX: i64 = 100_000;
/// The subject of rejected messages, unless the source has another, and the stream that has it.
const REJECTED_SUBJECT: &str = "punctual.rejected";
const REJECTED_STREAM: &str = "PUNCTUAL_REJECTED";

/// Subjects as a source.
#[derive(Debug)]
pub(crate) struct NatsSubjectSource {
    connection: ConnectionName,
    link: MessageLink,
    subject: String,
    /// The name of the consumer.
    durable: String,
    rejected: Option<String>,
    batch: usize,
    /// How long a message stays with a reader that does not acknowledge it.
    claim_after: Duration,
}

struct NatsSourceSession {
    context: Context,
    events: watch::Sender<NatsState>,
    messages: PullStream,
    rejected: String,
    taken: u64,
    in_hand: HashMap<u64, Acker>,
}

impl NatsSubjectSource {
    pub(crate) fn new(settings: &MessageSourceSettings) -> Self {
        let MessageSourceSettings { connection, link, from, group, rejected, batch, .. } = settings;
        Self {
            connection: connection.clone(),
            link: link.clone(),
            subject: from.clone(),
            durable: format!("{group}-{}", digest_start(from)),
            rejected: rejected.clone(),
            batch: *batch,
            claim_after: settings.claim_after,
        }
    }

    async fn connect(&self) -> Result<NatsSourceSession, String> {
        let events = watch::Sender::new(NatsState::default());
        let client = open_client(&self.connection, &self.link, &events).await?;
        let context = ContextBuilder::new().timeout(CONNECT_TIMEOUT).build(client);
        let subject = &self.subject;
        let stream = context.stream_by_subject(subject).await;
        let stream = stream.map_err(|error| format!("no stream has {subject:?}: {error}"))?;
        let stream = context.get_stream(stream).await.map_err(|error| error.to_string())?;
        let config = PullConfig {
            durable_name: Some(self.durable.clone()),
            deliver_policy: DeliverPolicy::All,
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.claim_after,
            max_deliver: -1,
            filter_subject: subject.clone(),
            max_ack_pending: ACK_PENDING_MAX,
            ..PullConfig::default()
        };
        let consumer = stream.get_or_create_consumer(&self.durable, config).await;
        let consumer = consumer.map_err(|error| error.to_string())?;
        if self.rejected.is_none() {
            let config = StreamConfig {
                name: REJECTED_STREAM.to_owned(),
                subjects: vec![REJECTED_SUBJECT.to_owned()],
                ..StreamConfig::default()
            };
            let made = context.get_or_create_stream(config).await;
            made.map_err(|error| format!("stream {REJECTED_STREAM:?}: {error}"))?;
        }
        let messages = consumer.stream().max_messages_per_batch(self.batch).messages().await;
        let messages = messages.map_err(|error| error.to_string())?;
        let rejected = self.rejected.clone().unwrap_or_else(|| REJECTED_SUBJECT.to_owned());
        let (taken, in_hand) = (0, HashMap::new());
        Ok(NatsSourceSession { context, events, messages, rejected, taken, in_hand })
    }
}

impl MessageSource for NatsSubjectSource {
    fn open(&self) -> DynFuture<'_, Result<Box<dyn MessageSession>, String>> {
        Box::pin(async {
            let session = self.connect().await?;
            Ok(Box::new(session) as Box<dyn MessageSession>)
        })
    }
}

impl NatsSourceSession {
    fn check(&self) -> Result<(), SessionLost> {
        match self.events.borrow().lost.clone() {
            Some(problem) => Err(SessionLost(problem)),
            None => Ok(()),
        }
    }

    async fn take_messages(&mut self, bound: TakeBound) -> Result<Vec<SourceMessage>, SessionLost> {
        self.check()?;
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while messages.len() < bound.messages && bytes < bound.bytes {
            let next = match self.messages.next().now_or_never() {
                Some(next) => next,
                None if messages.is_empty() && !bound.wait.is_zero() => {
                    match timeout(bound.wait, self.messages.next()).await {
                        Ok(next) => next,
                        Err(_) => break,
                    }
                }
                None => break,
            };
            let message = match next {
                Some(Ok(message)) => self.message(message)?,
                Some(Err(error)) => return Err(SessionLost(error.to_string())),
                None => return Err(SessionLost("the server ended the consumer".to_owned())),
            };
            bytes += message.bytes();
            messages.push(message);
        }
        Ok(messages)
    }

    fn message(&mut self, message: StreamMessage) -> Result<SourceMessage, SessionLost> {
        let info = message.info().map_err(|error| SessionLost(error.to_string()))?;
        // A stream that was made anew counts from one again.
        let nanos = info.published.unix_timestamp_nanos();
        let position = format!("{}/{}/{nanos}", info.stream, info.stream_sequence);
        let millis = u64::try_from(nanos / 1_000_000).unwrap_or_default();
        let (message, acker) = message.split();
        self.taken += 1;
        self.in_hand.insert(self.taken, acker);
        let headers = message.headers.iter().flat_map(HeaderMap::iter);
        let headers = headers.filter_map(|(name, values)| {
            Some((name.to_string(), values.first()?.as_str().to_owned()))
        });
        Ok(SourceMessage {
            place: message.subject.to_string(),
            position,
            handle: self.taken,
            headers: headers.collect(),
            sent_at: Some(Timestamp::from_millis(millis)),
            body: message.payload,
        })
    }

    async fn settle_messages(
        &mut self,
        ends: &[(SourceMessage, MessageEnd)],
    ) -> Result<(), SessionLost> {
        for (message, end) in ends {
            if let MessageEnd::Rejected(problem) = end {
                self.publish(message, problem).await?;
            }
        }
        for (message, _) in ends {
            if let Some(acker) = self.in_hand.remove(&message.handle) {
                acker.ack().await.map_err(|error| SessionLost(error.to_string()))?;
            }
        }
        let flushed = self.context.client().flush().await;
        flushed.map_err(|error| SessionLost(error.to_string()))?;
        self.check()
    }

    async fn publish(&self, message: &SourceMessage, problem: &str) -> Result<(), SessionLost> {
        let mut headers = HeaderMap::new();
        for (name, value) in message.rejected_headers(problem) {
            // The stream would take a message with the id of another for the same.
            let is_id = name.eq_ignore_ascii_case("nats-msg-id");
            let name = name.parse::<HeaderName>().ok().filter(|_| !is_id);
            if let (Some(name), Ok(value)) = (name, value.parse::<HeaderValue>()) {
                headers.insert(name, value);
            }
        }
        let (subject, body) = (self.rejected.clone(), message.body.clone());
        let lost = |error: &dyn std::fmt::Display| {
            SessionLost(format!(
                "subject {:?} does not take rejected messages: {error}",
                self.rejected
            ))
        };
        let sent = self.context.publish_with_headers(subject, headers, body).await;
        sent.map_err(|error| lost(&error))?.await.map_err(|error| lost(&error))?;
        Ok(())
    }

    async fn hold_messages(&self, messages: &[SourceMessage]) -> Result<(), SessionLost> {
        for message in messages {
            if let Some(acker) = self.in_hand.get(&message.handle) {
                let held = acker.ack_with(AckKind::Progress).await;
                held.map_err(|error| SessionLost(error.to_string()))?;
            }
        }
        Ok(())
    }
}

impl MessageSession for NatsSourceSession {
    fn take(&mut self, bound: TakeBound) -> DynFuture<'_, Result<Vec<SourceMessage>, SessionLost>> {
        Box::pin(self.take_messages(bound))
    }

    fn settle<'a>(
        &'a mut self,
        ends: &'a [(SourceMessage, MessageEnd)],
    ) -> DynFuture<'a, Result<(), SessionLost>> {
        Box::pin(self.settle_messages(ends))
    }

    fn hold<'a>(
        &'a mut self,
        messages: &'a [SourceMessage],
    ) -> DynFuture<'a, Result<(), SessionLost>> {
        Box::pin(self.hold_messages(messages))
    }

    fn close(self: Box<Self>) -> DynFuture<'static, ()> {
        let Self { context, mut messages, in_hand, .. } = *self;
        Box::pin(async move {
            let mut waiting = Vec::new();
            while let Some(Some(Ok(message))) = messages.next().now_or_never() {
                waiting.push(message.split().1);
            }
            // Otherwise the server would give them to this session again.
            drop(messages);
            let _ = context.client().flush().await;
            for acker in in_hand.values().chain(&waiting) {
                let _ = acker.ack_with(AckKind::Nak(None)).await;
            }
            let _ = context.client().flush().await;
        })
    }
}
