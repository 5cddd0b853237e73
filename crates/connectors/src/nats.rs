//! NATS `JetStream`: messages to subjects, confirmed by the stream that has them.
//!
//! All messages of a batch are published before the first confirmation is awaited. `Nats-Msg-Id` is
//! the fire id, so that a stream recognises a message that it has already, within its duplicate
//! window. A session is one connection of the client library and ends with it: the library may
//! connect again, but would not say which messages were lost.

use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use async_nats::jetstream::context::{
    Context, ContextBuilder, PublishAckFuture, PublishError, PublishErrorKind,
};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::{Error as JetStreamError, ErrorCode};
use async_nats::{
    Client, ConnectOptions, Event, HeaderMap, HeaderName, HeaderValue, ServerAddr, ServerError,
};
use futures_util::FutureExt as _;
use punctual_core::{AttemptResult, ConnectionName};
use punctual_engine::Delivery;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::connection::{MessageFormat, MessageLink};
use crate::connection_settings::CONNECT_TIMEOUT;
use crate::message::SinkMessage;
use crate::sink::{
    DynFuture, SendResult, SessionLost, Sink, SinkSession, confirmed, failed, refused,
};
use crate::window::BatchWindow;

/// How often the library asks an idle server whether it is there. The third unanswered question
/// ends the connection.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Publications that wait for their confirmation in one session: a batch, and the one before it if
/// that was given up.
const UNCONFIRMED_MAX: usize = 1024;
/// Longer than any delivery may take: the time of a batch is bounded by its window.
const ACK_TIMEOUT: Duration = Duration::from_secs(3600);
/// Subjects that the server refused during one batch, of which the text is kept.
const DENIED_MAX: usize = 64;
/// The header by which a stream recognises a message.
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// The sink of a connection.
pub(crate) fn sink(
    name: &ConnectionName,
    link: &MessageLink,
    answer_bytes: usize,
) -> Box<dyn Sink> {
    Box::new(NatsSink { name: name.clone(), link: link.clone(), answer_bytes })
}

#[derive(Debug)]
struct NatsSink {
    name: ConnectionName,
    link: MessageLink,
    /// Bytes of each answer that are kept.
    answer_bytes: usize,
}

impl Sink for NatsSink {
    fn connect(&self) -> DynFuture<'_, Result<Box<dyn SinkSession>, String>> {
        Box::pin(async {
            let session = timeout(CONNECT_TIMEOUT, NatsSession::open(self)).await;
            let silent = || format!("no answer within {} ms", CONNECT_TIMEOUT.as_millis());
            let session = session.map_err(|_| silent())??;
            let session: Box<dyn SinkSession> = Box::new(session);
            Ok(session)
        })
    }
}

/// What the server has said beside its answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct NatsState {
    /// Why the connection is of no use any more.
    pub(crate) lost: Option<String>,
    /// The last problem that the server named: often the reason of the loss that follows.
    problem: Option<String>,
    /// Subjects that the user may not publish to, and what the server said. There is no other
    /// answer to such a message.
    denied: Vec<(String, String)>,
}

impl NatsState {
    fn note(&mut self, event: &Event) {
        match event {
            Event::Connected | Event::Draining | Event::SlowConsumer(_) => {}
            Event::Disconnected | Event::Closed => {
                let gone = || "the server has closed the connection".to_owned();
                self.lost.get_or_insert(self.problem.clone().unwrap_or_else(gone));
            }
            Event::LameDuckMode => {
                self.problem = Some("the server is shutting down".to_owned());
            }
            Event::ClientError(error) => {
                self.problem = Some(error.to_string());
            }
            Event::ServerError(ServerError::Other(text)) => {
                match denied_subject(text) {
                    Some(subject) if self.denied.len() < DENIED_MAX => {
                        self.denied.push((subject.to_owned(), text.clone()));
                    }
                    _ => self.problem = Some(text.clone()),
                };
            }
            Event::ServerError(error) => self.problem = Some(error.to_string()),
        }
    }
}

/// The subject in `Permissions Violation for Publish to "orders.paid"`.
fn denied_subject(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("Violation for Publish to \"")?;
    rest.rsplit_once('"').map(|(subject, _)| subject)
}

/// Opens a connection of the client library, and notes what the server says beside its answers.
pub(crate) async fn open_client(
    name: &ConnectionName,
    link: &MessageLink,
    events: &watch::Sender<NatsState>,
) -> Result<Client, String> {
    let endpoint = &link.endpoint;
    let scheme = if endpoint.tls.is_some() { "tls" } else { "nats" };
    let hosts = endpoint.hosts.iter().map(|host| format!("{scheme}://{host}"));
    let hosts = hosts.map(|host| ServerAddr::from_str(&host).map_err(|e| e.to_string()));
    let hosts: Vec<ServerAddr> = hosts.collect::<Result<_, _>>()?;
    let noted = events.clone();
    let mut options = ConnectOptions::new()
        .name(format!("punctual {name}"))
        .connection_timeout(CONNECT_TIMEOUT)
        .ping_interval(PING_EVERY)
        .max_reconnects(1)
        .event_callback(move |event| {
            noted.send_modify(|state| state.note(&event));
            std::future::ready(())
        });
    let password = endpoint.password.as_ref().map(|password| password.reveal().to_owned());
    options = match (endpoint.user.clone(), password) {
        (Some(user), Some(password)) => options.user_and_password(user, password),
        (Some(token), None) | (None, Some(token)) => options.token(token),
        (None, None) => options,
    };
    if let Some(tls) = &endpoint.tls {
        let config = tls.client_config()?;
        options = options.require_tls(true).tls_client_config((*config).clone());
    }
    options.connect(hosts).await.map_err(|error| with_source(&error))
}

struct NatsSession {
    context: Context,
    events: watch::Sender<NatsState>,
    format: MessageFormat,
    answer_bytes: usize,
}

impl NatsSession {
    async fn open(sink: &NatsSink) -> Result<Self, String> {
        let events = watch::Sender::new(NatsState::default());
        let client = open_client(&sink.name, &sink.link, &events).await?;
        let context = ContextBuilder::new()
            .max_ack_inflight(UNCONFIRMED_MAX)
            .timeout(ACK_TIMEOUT)
            .build(client);
        let (format, answer_bytes) = (sink.link.format, sink.answer_bytes);
        Ok(Self { context, events, format, answer_bytes })
    }

    fn lost(&self) -> Option<SessionLost> {
        self.events.borrow().lost.clone().map(SessionLost)
    }

    /// Publishes all messages, and waits for their confirmations until the connection is lost.
    async fn publish(
        &self,
        batch: &[Delivery],
        acks: &mut Vec<PendingAck>,
        window: &mut BatchWindow<'_>,
    ) {
        self.events.send_modify(|state| state.denied.clear());
        let mut state = self.events.subscribe();
        for (at, delivery) in batch.iter().enumerate() {
            match publication(delivery, self.format) {
                Ok((subject, message)) => {
                    let sent = self.context.send_publish(subject.clone(), message).await;
                    match sent {
                        Ok(ack) => acks.push(PendingAck::new(at, subject, ack)),
                        Err(error) => window.set(at, self.result(window, at, Err(error))),
                    }
                }
                Err(result) => window.set(at, result),
            }
        }
        for PendingAck { at, subject, answer } in acks {
            loop {
                let denied = {
                    let state = state.borrow_and_update();
                    if state.lost.is_some() {
                        return;
                    }
                    let denied = state.denied.iter().find(|(denied, _)| denied == &*subject);
                    denied.map(|(_, text)| text.clone())
                };
                if let Some(text) = denied {
                    window.set(*at, failed(&text));
                    break;
                }
                tokio::select! {
                    biased;
                    answer = &mut *answer => {
                        window.set(*at, self.result(window, *at, answer));
                        break;
                    }
                    changed = state.changed() => {
                        if changed.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }

    /// What an answer means for a delivery.
    fn result(
        &self,
        window: &BatchWindow<'_>,
        at: usize,
        answer: Result<PublishAck, PublishError>,
    ) -> AttemptResult {
        let error = match answer {
            Ok(ack) => return confirmed(&text_of(&ack), self.answer_bytes),
            Err(error) => error,
        };
        let source = std::error::Error::source(&error);
        match (error.kind(), source.and_then(|source| source.downcast_ref::<JetStreamError>())) {
            (_, Some(error)) => of_server(error),
            (PublishErrorKind::StreamNotFound, _) => {
                failed("no stream of JetStream has the subject")
            }
            (PublishErrorKind::MaxPayloadExceeded, _) => refused(&with_source(&error)),
            (PublishErrorKind::BrokenPipe, _) => {
                let lost = self.lost().map(|lost| lost.0);
                window.unknown(at, lost.as_deref().unwrap_or("the connection was lost"))
            }
            (PublishErrorKind::MaxAckPending, _) => failed("too many messages are unconfirmed"),
            _ => window.unknown(at, &with_source(&error)),
        }
    }
}

impl SinkSession for NatsSession {
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult> {
        Box::pin(async move {
            let mut window = BatchWindow::new(batch);
            let mut acks = Vec::with_capacity(batch.len());
            BatchWindow::within(batch, self.publish(batch, &mut acks, &mut window)).await;
            // Confirmations behind one that is missing may have come.
            for PendingAck { at, answer, .. } in acks {
                if !window.has(at)
                    && let Some(answer) = answer.now_or_never()
                {
                    window.set(at, self.result(&window, at, answer));
                }
            }
            let lost = self.lost();
            window.end(lost)
        })
    }

    fn check(&mut self) -> DynFuture<'_, Result<(), SessionLost>> {
        let lost = self.lost();
        Box::pin(std::future::ready(lost.map_or(Ok(()), Err)))
    }
}

type AckAnswer = Pin<Box<dyn Future<Output = Result<PublishAck, PublishError>> + Send>>;

/// A message that was published and is not confirmed.
struct PendingAck {
    at: usize,
    subject: String,
    answer: AckAnswer,
}

impl PendingAck {
    fn new(at: usize, subject: String, ack: PublishAckFuture) -> Self {
        Self { at, subject, answer: ack.into_future() }
    }
}

/// The subject and the message of a delivery.
fn publication(
    delivery: &Delivery,
    format: MessageFormat,
) -> Result<(String, PublishMessage), AttemptResult> {
    let message = SinkMessage::of(delivery, format)?;
    let subject = message.address.place().to_owned();
    let mut headers = HeaderMap::new();
    let id = header(MESSAGE_ID, &message.id)?;
    headers.insert(id.0, id.1);
    let body = message.body.clone();
    for (name, value) in message.headers_with_content_type() {
        let (name, value) = header(&name, &value)?;
        headers.insert(name, value);
    }
    Ok((subject, PublishMessage::build().headers(headers).payload(body)))
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), AttemptResult> {
    let problem = |problem: &dyn std::fmt::Display| refused(&format!("header {name}: {problem}"));
    let key = HeaderName::from_str(name).map_err(|error| problem(&error))?;
    let value = HeaderValue::from_str(value).map_err(|error| problem(&error))?;
    Ok((key, value))
}

fn text_of(ack: &PublishAck) -> String {
    let duplicate = if ack.duplicate { ", had it before" } else { "" };
    format!("stream {}, sequence {}{duplicate}", ack.stream, ack.sequence)
}

/// What an error of `JetStream` means: a message that is too large for its stream always will be.
/// All others may have been removed by the next attempt: a full stream, missing resources.
fn of_server(error: &JetStreamError) -> AttemptResult {
    let text = error.to_string();
    match error.error_code() {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            refused(&text)
        }
        _ => failed(&text),
    }
}

/// An error with its cause, which the library does not always show.
fn with_source(error: &dyn std::error::Error) -> String {
    match error.source().map(ToString::to_string) {
        Some(source) if !error.to_string().contains(&source) => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
