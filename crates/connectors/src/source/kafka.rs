//! Topics of Kafka as sources: all brokers are members of a consumer group, which gives each
//! partition to one of them.
//!
//! The offset of a partition is committed up to the first record whose command is not durable; a
//! reader that starts again begins there. A member is known by the name of its reader, so a broker
//! that is killed and starts again has its partitions at once. Rejected records are written to
//! another topic first.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use krafka::consumer::{
    AutoOffsetReset, Consumer, ConsumerRebalanceListener, ConsumerRecord, OffsetAndMetadata,
    PartitionAssignmentStrategy, TopicPartition,
};
use krafka::producer::{Acks, Producer};
use krafka::{CloseOptions, GroupMembershipOperation, Kafka, KrafkaError, PartitionId, Record};
use punctual_core::Timestamp;
use tokio::time::timeout;

use super::message::{SourceMessage, digest_start};
use super::session::{MessageEnd, MessageSession, MessageSource, TakeBound};
use crate::connection::MessageLink;
use crate::kafka::{DELIVERY_TIMEOUT, MissingTopics, connect, reach};
use crate::sink::{DynFuture, SessionLost};
use crate::source_settings::MessageSourceSettings;

/// The header that has the key of a record.
const RECORD_KEY: &str = "kafka-key";
/// What is appended to a topic for its rejected records, unless the source names another.
const REJECTED_SUFFIX: &str = ".rejected";
/// How long a session that begins waits for the group to give it partitions. It may get none, and
/// they may come later.
const JOIN_POLLS_MAX: u32 = 80;
/// How long one look for partitions takes.
const JOIN_POLL: Duration = Duration::from_millis(100);
/// Reads without a record, each of half a second, after which brokers are asked whether they are
/// there: the client tries again without a word.
const EMPTY_READS_MAX: u32 = 2;
/// How often members show that they are there, and learn that the group changes, which waits for
/// the slowest of them.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a member may be busy with what it has taken, before its partitions go to another.
const BUSY_MAX: Duration = Duration::from_secs(120);
/// Bytes of one answer of a broker, of all partitions and of one.
const FETCH_BYTES: i32 = 8 << 20;
const PARTITION_BYTES: i32 = 1 << 20;
/// Records that were given and whose offset is not committed: those behind one that waits. With as
/// many, no more are taken.
const UNCOMMITTED_MAX: usize = 20_000;
/// How often a commit is repeated while the group changes.
const COMMITS_MAX: u32 = 20;
const COMMIT_PAUSE: Duration = Duration::from_millis(100);
/// How long the topic of rejected records may take to confirm one.
const REJECTED_MAX: Duration = Duration::from_secs(8);
/// How long a session that ends takes to leave the group.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// A topic as a source.
#[derive(Debug)]
pub(crate) struct KafkaTopicSource {
    link: MessageLink,
    topic: String,
    group: String,
    /// The name of this broker in the group.
    member: String,
    rejected: String,
    batch: usize,
    /// How long a member that is silent keeps its partitions.
    silent_max: Duration,
}

struct KafkaSourceSession {
    link: MessageLink,
    topic: String,
    rejected: String,
    kafka: Kafka,
    consumer: Consumer,
    /// Reads without a record since the brokers gave one, or answered that they are there.
    empty_reads: u32,
    changes: Arc<Mutex<PartitionChanges>>,
    /// Records that were read and not given.
    unread: VecDeque<ConsumerRecord>,
    /// Records that were given and whose offsets are not committed, in their order.
    in_hand: VecDeque<UncommittedRecord>,
    given: u64,
    /// Made with the first rejected record.
    producer: Option<Producer>,
}

struct UncommittedRecord {
    handle: u64,
    partition: PartitionId,
    offset: i64,
    is_settled: bool,
}

/// What the group has changed since the last look.
#[derive(Debug, Default)]
struct PartitionChanges {
    /// Whether the group has said once which partitions there are for this member.
    is_member: bool,
    removed: HashSet<PartitionId>,
}

struct ChangeListener(Arc<Mutex<PartitionChanges>>);

impl ChangeListener {
    fn remove(&self, partitions: &[TopicPartition]) {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.removed.extend(partitions.iter().map(TopicPartition::partition));
    }
}

impl ConsumerRebalanceListener for ChangeListener {
    async fn on_partitions_assigned(&self, _: &[TopicPartition]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_member = true;
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) {
        self.remove(partitions);
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) {
        self.remove(partitions);
    }
}

impl KafkaTopicSource {
    pub(crate) fn new(settings: &MessageSourceSettings, reader: &str) -> Self {
        let MessageSourceSettings { link, from, group, rejected, batch, claim_after, .. } =
            settings;
        let shown = reader.chars().map(|sign| match sign {
            sign if sign.is_ascii_alphanumeric() || "._-".contains(sign) => sign,
            _ => '-',
        });
        let shown: String = shown.take(64).collect();
        Self {
            link: link.clone(),
            topic: from.clone(),
            group: group.clone(),
            // Another topic in the same group is another member.
            member: format!("{shown}-{}", digest_start(&format!("{reader}\n{from}"))),
            rejected: rejected.clone().unwrap_or_else(|| format!("{from}{REJECTED_SUFFIX}")),
            batch: *batch,
            silent_max: *claim_after,
        }
    }

    async fn join(&self) -> Result<KafkaSourceSession, KrafkaError> {
        let client = format!("punctual-{}", self.member);
        let kafka = connect(&self.link, client, MissingTopics::AreErrors).await?;
        let changes = Arc::default();
        let batch = i32::try_from(self.batch).unwrap_or(i32::MAX);
        let consumer = kafka
            .consumer(&self.group)
            .group_instance_id(&self.member)
            .session_timeout(self.silent_max)
            .heartbeat_interval(HEARTBEAT)
            .max_poll_interval(BUSY_MAX)
            // One round of the group, and not several, says who has what.
            .partition_assignment_strategy(PartitionAssignmentStrategy::Range)
            .auto_offset_reset(AutoOffsetReset::Earliest)
            .enable_auto_commit(false)
            .max_poll_records(batch)
            .max_buffered_records(batch)
            .fetch_max_bytes(FETCH_BYTES)
            .max_partition_fetch_bytes(PARTITION_BYTES)
            .metrics_push(false)
            .rebalance_listener(ChangeListener(Arc::clone(&changes)))
            .build()
            .await?;
        consumer.subscribe([&self.topic]).await?;
        let mut session = KafkaSourceSession {
            link: self.link.clone(),
            topic: self.topic.clone(),
            rejected: self.rejected.clone(),
            kafka,
            consumer,
            empty_reads: 0,
            changes,
            unread: VecDeque::new(),
            in_hand: VecDeque::new(),
            given: 0,
            producer: None,
        };
        for _ in 0..JOIN_POLLS_MAX {
            if session.is_member() {
                break;
            }
            let records = session.consumer.poll(JOIN_POLL).await?;
            session.unread.extend(records);
        }
        Ok(session)
    }
}

impl MessageSource for KafkaTopicSource {
    fn open(&self) -> DynFuture<'_, Result<Box<dyn MessageSession>, String>> {
        Box::pin(async {
            let session = self.join().await.map_err(|error| error.to_string())?;
            Ok(Box::new(session) as Box<dyn MessageSession>)
        })
    }
}

impl KafkaSourceSession {
    fn is_member(&self) -> bool {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).is_member
    }

    /// Forgets the partitions that this member has no longer. Records of them that were given
    /// belong to another reader now, so what was given is given back: the session ends.
    fn follow_changes(&mut self) -> Result<(), SessionLost> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = std::mem::take(&mut changes.removed);
        drop(changes);
        if removed.is_empty() {
            return Ok(());
        }
        self.unread.retain(|record| !removed.contains(&record.partition));
        match self.in_hand.iter().find(|record| removed.contains(&record.partition)) {
            None => Ok(()),
            Some(record) => {
                let UncommittedRecord { partition, offset, .. } = record;
                let problem = format!(
                    "partition {partition} was given to another reader at offset {offset}, before \
                     its records were applied"
                );
                Err(SessionLost(problem))
            }
        }
    }

    /// Reads records that are there or come within a time, and follows the group.
    async fn read(&mut self, wait: Duration) -> Result<(), SessionLost> {
        let records = self.consumer.poll(wait).await.map_err(lost)?;
        self.follow_changes()?;
        self.empty_reads = if records.is_empty() { self.empty_reads + 1 } else { 0 };
        if self.empty_reads > EMPTY_READS_MAX {
            reach(&self.kafka).await?;
            self.empty_reads = 0;
        }
        self.unread.extend(records);
        Ok(())
    }

    async fn take_messages(&mut self, bound: TakeBound) -> Result<Vec<SourceMessage>, SessionLost> {
        if self.in_hand.len() >= UNCOMMITTED_MAX {
            self.stay_member().await?;
            return Ok(Vec::new());
        }
        if self.unread.is_empty() {
            self.read(bound.wait).await?;
        }
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while messages.len() < bound.messages && bytes < bound.bytes {
            let Some(record) = self.unread.pop_front() else { break };
            let message = self.message(record);
            bytes += message.bytes();
            messages.push(message);
        }
        Ok(messages)
    }

    fn message(&mut self, record: ConsumerRecord) -> SourceMessage {
        self.given += 1;
        let ConsumerRecord { partition, offset, timestamp, key, value, headers, .. } = record;
        let handle = self.given;
        self.in_hand.push_back(UncommittedRecord { handle, partition, offset, is_settled: false });
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let headers = headers.into_iter();
        let headers =
            headers.map(|(name, value)| (name, value.as_ref().map(text).unwrap_or_default()));
        SourceMessage {
            place: self.topic.clone(),
            // With its time, because a topic that is made anew counts from zero.
            position: format!("{partition}/{offset}/{timestamp}"),
            handle,
            headers: headers
                .chain(key.as_ref().map(|k| (RECORD_KEY.to_owned(), text(k))))
                .collect(),
            body: value.unwrap_or_default(),
            // -1 stands for none.
            sent_at: u64::try_from(timestamp).ok().map(Timestamp::from_millis),
        }
    }

    async fn settle_messages(
        &mut self,
        ends: &[(SourceMessage, MessageEnd)],
    ) -> Result<(), SessionLost> {
        for (message, end) in ends {
            if let MessageEnd::Rejected(problem) = end {
                let written = timeout(REJECTED_MAX, self.write_rejected(message, problem)).await;
                let problem = match written {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_) => Some(format!("no confirm within {} s", REJECTED_MAX.as_secs())),
                };
                if let Some(problem) = problem {
                    let problem = format!("topic {:?} takes no record: {problem}", self.rejected);
                    return Err(SessionLost(problem));
                }
            }
            let found = self.in_hand.binary_search_by_key(&message.handle, |held| held.handle);
            if let Ok(position) = found {
                self.in_hand[position].is_settled = true;
            }
        }
        let mut waiting: HashSet<PartitionId> = HashSet::new();
        let mut next: HashMap<PartitionId, i64> = HashMap::new();
        self.in_hand.retain(|record| {
            if !record.is_settled || waiting.contains(&record.partition) {
                waiting.insert(record.partition);
                return true;
            }
            next.insert(record.partition, record.offset + 1);
            false
        });
        self.commit(next).await
    }

    async fn commit(&mut self, next: HashMap<PartitionId, i64>) -> Result<(), SessionLost> {
        let offsets: Vec<_> = next
            .into_iter()
            .map(|(partition, offset)| {
                let partition = TopicPartition::new(self.topic.clone(), partition);
                (partition, OffsetAndMetadata::new(offset))
            })
            .collect();
        let mut commits = 0;
        loop {
            match self.consumer.commit_offsets(offsets.iter().cloned()).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_retriable() && commits < COMMITS_MAX => {
                    commits += 1;
                    // An await that never completes, bounded by the pause.
                    let _ = timeout(COMMIT_PAUSE, std::future::pending::<()>()).await;
                }
                Err(error) => return Err(lost(error)),
            }
        }
    }

    /// Keeps the membership without reading more.
    async fn stay_member(&mut self) -> Result<(), SessionLost> {
        let partitions = self.consumer.assignment().await.remove(&self.topic).unwrap_or_default();
        self.consumer.pause(&self.topic, &partitions).await;
        let read = self.read(Duration::ZERO).await;
        self.consumer.resume(&self.topic, &partitions).await;
        read
    }

    async fn write_rejected(
        &mut self,
        message: &SourceMessage,
        problem: &str,
    ) -> Result<(), KrafkaError> {
        let producer = match self.producer.take() {
            Some(producer) => producer,
            None => self.rejected_producer().await?,
        };
        let mut record = Record::new(self.rejected.clone(), message.body.clone());
        for (name, value) in message.rejected_headers(problem) {
            match name {
                RECORD_KEY => record = record.key(value.to_owned()),
                name => record = record.header(name, value.to_owned()),
            }
        }
        let written = producer.enqueue(record).await?.await;
        self.producer = Some(producer);
        written.map(drop)
    }

    async fn rejected_producer(&self) -> Result<Producer, KrafkaError> {
        let client = "punctual-rejected".to_owned();
        let kafka: Kafka = connect(&self.link, client, MissingTopics::AreMade).await?;
        let producer = kafka.producer().acks(Acks::All).idempotent(true).linger(Duration::ZERO);
        let producer = producer.delivery_timeout(DELIVERY_TIMEOUT).max_block(DELIVERY_TIMEOUT);
        producer.metrics_push(false).build().await
    }
}

fn lost(error: KrafkaError) -> SessionLost {
    SessionLost(error.to_string())
}

impl MessageSession for KafkaSourceSession {
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
        Box::pin(self.stay_member())
    }

    fn close(self: Box<Self>) -> DynFuture<'static, ()> {
        Box::pin(async move {
            let leave = CloseOptions::new()
                .timeout(CLOSE_MAX)
                .group_membership_operation(GroupMembershipOperation::LeaveGroup);
            // A member that could not leave loses its partitions when its session has passed.
            let _ = self.consumer.close_with(leave).await;
        })
    }
}
