//! Kafka: records in topics, confirmed by all in-sync replicas.
//!
//! All records of a batch are queued before the first confirmation is awaited; the client sends one
//! request to each broker that leads partitions of them. The producer is idempotent: a request that
//! the client repeats, because a broker moved or an answer was lost, has the same sequence numbers,
//! and the broker does not write its records again. The partition of a record with a key is that of
//! the Java client.

use std::time::Duration;

use futures_util::FutureExt as _;
use krafka::admin::DescribeClusterOptions;
use krafka::auth::{AuthConfig, TlsConfig};
use krafka::error::ErrorCode;
use krafka::producer::{Acks, DeliveryHandle, Producer, RecordMetadata};
use krafka::{CloseOptions, Kafka, KrafkaError, ProtocolErrorKind, Record};
use punctual_core::{AttemptResult, ConnectionName};
use punctual_engine::Delivery;
use tokio::time::timeout;

use crate::connection::{MessageFormat, MessageLink, SaslMechanism};
use crate::connection_settings::CONNECT_TIMEOUT;
use crate::message::SinkMessage;
use crate::sink::{
    DynFuture, SendResult, SessionLost, Sink, SinkSession, confirmed, failed, refused,
};
use crate::window::BatchWindow;

/// How long a broker may take for one request: until a replica that does not answer has left the
/// in-sync ones.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the client repeats requests. A delivery has less time, unless its task says so.
pub(crate) const DELIVERY_TIMEOUT: Duration = Duration::from_secs(31);
/// How long a topic that is not known yet is looked up. A session does nothing else meanwhile.
const TOPIC_MAX: Duration = Duration::from_secs(1);
/// Records of one partition that are sent at once, in bytes. Brokers take 1 MiB by default.
const BATCH_BYTES: usize = 256 * 1024;
/// Bytes of records that one session may hold before it waits for confirmations.
const BUFFER_BYTES: usize = 32 << 20;
/// How often a session that waits for confirmations asks whether the brokers are there.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long brokers may take to show that they are there.
const CHECK_MAX: Duration = Duration::from_secs(3);

/// The sink of a connection.
pub(crate) fn sink(
    name: &ConnectionName,
    link: &MessageLink,
    answer_bytes: usize,
) -> Box<dyn Sink> {
    Box::new(KafkaSink { name: name.clone(), link: link.clone(), answer_bytes })
}

#[derive(Debug)]
struct KafkaSink {
    name: ConnectionName,
    link: MessageLink,
    /// Bytes of each answer that are kept.
    answer_bytes: usize,
}

impl Sink for KafkaSink {
    fn connect(&self) -> DynFuture<'_, Result<Box<dyn SinkSession>, String>> {
        Box::pin(async {
            let session = timeout(CONNECT_TIMEOUT, KafkaSession::open(self)).await;
            let silent = || format!("no answer within {} ms", CONNECT_TIMEOUT.as_millis());
            let session = session.map_err(|_| silent())?;
            let session: Box<dyn SinkSession> =
                Box::new(session.map_err(|error| error.to_string())?);
            Ok(session)
        })
    }
}

/// What becomes of a topic that is not there when it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingTopics {
    AreErrors,
    /// The brokers make them, unless their configuration forbids it.
    AreMade,
}

/// Connects to the brokers of a link.
pub(crate) async fn connect(
    link: &MessageLink,
    client_id: String,
    missing: MissingTopics,
) -> Result<Kafka, KrafkaError> {
    let endpoint = &link.endpoint;
    let hosts: Vec<String> = endpoint.hosts.iter().map(ToString::to_string).collect();
    let tls = endpoint.tls.as_ref().map(|tls| {
        let mut config = TlsConfig::new();
        if let Some(pem) = &tls.authority_pem {
            config = config.with_ca_cert_pem(pem.clone());
        }
        if let Some((chain, key)) = &tls.client_pem {
            config = config.with_client_cert_pem(chain.clone(), key.clone());
        }
        config
    });
    let user = endpoint.user.as_ref().zip(endpoint.password.as_ref());
    let user = user.map(|(user, password)| match link.sasl {
        SaslMechanism::Plain => AuthConfig::sasl_plain(user, password.reveal()),
        SaslMechanism::ScramSha256 => AuthConfig::sasl_scram_sha256(user, password.reveal()),
        SaslMechanism::ScramSha512 => AuthConfig::sasl_scram_sha512(user, password.reveal()),
    });
    let security = match (user, tls) {
        (Some(user), Some(tls)) => user.with_tls(tls),
        (Some(user), None) => user,
        (None, Some(tls)) => AuthConfig::ssl(tls),
        (None, None) => AuthConfig::plaintext(),
    };
    Kafka::builder(hosts.join(","))
        .client_id(client_id)
        .security(security)
        .connect_timeout(CONNECT_TIMEOUT)
        .request_timeout(REQUEST_TIMEOUT)
        .allow_auto_create_topics(missing == MissingTopics::AreMade)
        .connect()
        .await
}

/// Asks the brokers whether they are there. The client itself tries again without a word.
pub(crate) async fn reach(kafka: &Kafka) -> Result<(), SessionLost> {
    let admin = kafka.admin();
    let described = admin.describe_cluster(DescribeClusterOptions::default());
    match timeout(CHECK_MAX, described).await {
        Ok(Ok(_)) => Ok(()),
        // A broker that does not know the question is there, or does not tell.
        Ok(Err(KrafkaError::Protocol { kind: ProtocolErrorKind::UnknownApiVersion, .. })) => Ok(()),
        Ok(Err(KrafkaError::Broker { .. })) => Ok(()),
        Ok(Err(error)) => Err(SessionLost(error.to_string())),
        Err(_) => Err(SessionLost(format!("no answer within {} ms", CHECK_MAX.as_millis()))),
    }
}

struct KafkaSession {
    kafka: Kafka,
    producer: Producer,
    format: MessageFormat,
    answer_bytes: usize,
}

impl KafkaSession {
    async fn open(sink: &KafkaSink) -> Result<Self, KrafkaError> {
        let client = format!("punctual-{}", sink.name);
        // A task that misspells a topic must not create it.
        let kafka = connect(&sink.link, client, MissingTopics::AreErrors).await?;
        let producer = kafka
            .producer()
            .acks(Acks::All)
            .idempotent(true)
            // A batch is complete when it is sent.
            .linger(Duration::ZERO)
            .delivery_timeout(DELIVERY_TIMEOUT)
            .max_block(DELIVERY_TIMEOUT)
            .batch_size(BATCH_BYTES)
            .buffer_memory(BUFFER_BYTES)
            .metrics_push(false)
            .build()
            .await?;
        let (format, answer_bytes) = (sink.link.format, sink.answer_bytes);
        Ok(Self { kafka, producer, format, answer_bytes })
    }

    /// Queues all records, and waits for their confirmations.
    async fn produce(
        &self,
        batch: &[Delivery],
        pending: &mut Vec<(usize, DeliveryHandle)>,
        window: &mut BatchWindow<'_>,
        fatal: &mut Option<SessionLost>,
    ) {
        // The topic is the same for all. Without its partitions nothing can be sent, and each
        // record would look for them again.
        let mut topic_found = false;
        for (at, delivery) in batch.iter().enumerate() {
            let record = match record(delivery, self.format) {
                Ok(record) => record,
                Err(result) => {
                    window.set(at, result);
                    continue;
                }
            };
            if !topic_found {
                let found = timeout(TOPIC_MAX, self.producer.partitions_for(&record.topic)).await;
                let problem = match found {
                    Ok(Ok(_)) => None,
                    Ok(Err(error)) => Some(of_unsent(&error)),
                    Err(_) => {
                        let millis = TOPIC_MAX.as_millis();
                        let topic = &record.topic;
                        Some(failed(&format!("topic {topic:?} was not found within {millis} ms")))
                    }
                };
                if let Some(result) = problem {
                    (at..batch.len()).for_each(|at| window.set(at, result.clone()));
                    break;
                }
                topic_found = true;
            }
            match self.producer.enqueue(record).await {
                Ok(handle) => pending.push((at, handle)),
                Err(error) => {
                    window.set(at, of_unsent(&error));
                    note_fatal(fatal, &error);
                }
            }
        }
        for (at, handle) in pending {
            let ended = handle.await;
            if let Err(error) = &ended {
                note_fatal(fatal, error);
            }
            window.set(*at, self.result(window, *at, ended));
        }
    }

    /// What the end of a record means for its delivery.
    fn result(
        &self,
        window: &BatchWindow<'_>,
        at: usize,
        ended: Result<RecordMetadata, KrafkaError>,
    ) -> AttemptResult {
        match ended {
            Ok(written) => confirmed(&text_of(&written), self.answer_bytes),
            Err(error) if is_unknown(&error) => window.unknown(at, &error.to_string()),
            Err(error) => of_unsent(&error),
        }
    }

    /// Returns when the brokers cannot be reached any more. The client itself would try until the
    /// time of the records has passed.
    async fn until_away(&self) -> SessionLost {
        loop {
            // An await that never completes, bounded by the pause.
            let _ = timeout(CHECK_EVERY, std::future::pending::<()>()).await;
            if let Err(lost) = reach(&self.kafka).await {
                return lost;
            }
        }
    }
}

impl SinkSession for KafkaSession {
    fn send<'a>(&'a mut self, batch: &'a [Delivery]) -> DynFuture<'a, SendResult> {
        Box::pin(async move {
            let mut window = BatchWindow::new(batch);
            let mut pending = Vec::with_capacity(batch.len());
            let mut fatal = None;
            let produced = BatchWindow::within(batch, async {
                tokio::select! {
                    () = self.produce(batch, &mut pending, &mut window, &mut fatal) => None,
                    lost = self.until_away() => Some(lost),
                }
            });
            let lost = match produced.await {
                Some(lost) => lost,
                // What the client has not sent yet must not be sent after its attempt has ended.
                None => Some(SessionLost("no confirmation in time".to_owned())),
            };
            // Confirmations behind one that is missing may have come.
            for (at, handle) in pending {
                if !window.has(at)
                    && let Some(ended) = handle.now_or_never()
                {
                    window.set(at, self.result(&window, at, ended));
                }
            }
            let lost = lost.or(fatal);
            if lost.is_some() {
                let at_once = CloseOptions::new().timeout(Duration::ZERO);
                // Nothing waits any more, so there is nothing to learn from how it closes.
                let _ = self.producer.close_with(at_once).await;
            }
            window.end(lost)
        })
    }

    fn check(&mut self) -> DynFuture<'_, Result<(), SessionLost>> {
        Box::pin(reach(&self.kafka))
    }
}

/// The record of a delivery.
fn record(delivery: &Delivery, format: MessageFormat) -> Result<Record, AttemptResult> {
    let message = SinkMessage::of(delivery, format)?;
    let mut record = Record::new(message.address.place(), message.body.clone());
    let key = message.address.options().key.as_deref();
    let key = key.or_else(|| delivery.definition.key.as_ref().map(|key| key.as_str()));
    if let Some(key) = key {
        record = record.key(key.to_owned());
    }
    for (name, value) in message.headers_with_content_type() {
        record = record.header(name, value.into_owned());
    }
    Ok(record)
}

/// Notes that the producer can send nothing more: another one has its identity, or it may not.
fn note_fatal(fatal: &mut Option<SessionLost>, error: &KrafkaError) {
    if error.is_fatal() && fatal.is_none() {
        *fatal = Some(SessionLost(error.to_string()));
    }
}

/// Whether a record that ended with this error may have been written.
fn is_unknown(error: &KrafkaError) -> bool {
    match error {
        KrafkaError::DeliveryTimeout { possibly_written, .. } => *possibly_written,
        // The broker has refused the record: those that it may have written end in a timeout.
        KrafkaError::Broker { .. } | KrafkaError::OutOfOrderSequence { .. } => false,
        _ => true,
    }
}

/// The result of a record that was certainly not written. A record that is too large, or that the
/// broker does not understand, never will be. All others may be: rights, topics that are missing,
/// a policy.
fn of_unsent(error: &KrafkaError) -> AttemptResult {
    let text = error.to_string();
    let refuses = match error {
        KrafkaError::Broker { code, .. } => matches!(
            code,
            ErrorCode::MessageTooLarge
                | ErrorCode::RecordListTooLarge
                | ErrorCode::InvalidRecord
                | ErrorCode::InvalidTimestamp
        ),
        KrafkaError::Config { .. } | KrafkaError::Serialization { .. } => true,
        KrafkaError::Protocol { kind, .. } => *kind == ProtocolErrorKind::InvalidLength,
        _ => false,
    };
    if refuses { refused(&text) } else { failed(&text) }
}

fn text_of(written: &RecordMetadata) -> String {
    let RecordMetadata { topic, partition, offset, .. } = written;
    match written.is_deduplicated() {
        false => format!("topic {topic}, partition {partition}, offset {offset}"),
        true => format!("topic {topic}, partition {partition}, had it before"),
    }
}

#[cfg(test)]
mod tests;
