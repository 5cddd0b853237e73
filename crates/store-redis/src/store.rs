//! The store: the contracts of tasks and leases over connections to Redis.
//!
//! Each method is one call of one script, or several calls of pages where the result has no limit
//! of its own. Reads are in `read`, batches in `batch`, membership in `membership`, and the first
//! start and the check of the server in `open`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::{
    BrokerId, DeadLetter, Epoch, FireId, FireRecord, Lease, Namespace, PartitionId, Partitions,
    Seat, Task, TaskId, TaskKey, Timestamp,
};
use punctual_store::codec::Interner;
use punctual_store::{
    Batch, BatchNo, CountedGroup, CountedNamespace, Counts, DueCounts, DueSteps, EpochTracker,
    Filter, FireFilter, FirePosition, Head, LeaseStore, Page, Position, Retention, Rewound,
    StoreError, Swept, TaskStore, acquisition_token,
};
use redis::Value;

use crate::batch::BatchArguments;
use crate::damage::{DamageTracker, NO_NUMBER, NOT_SWEPT, UNREADABLE};
use crate::format::codec;
use crate::format::keys::{self, PartitionKeys};
use crate::transport::connection::{RedisAddress, RedisConnection, Wait, WaitedReply};
use crate::transport::reply;
use crate::transport::script::{self, ScriptCall};

/// The largest batch in bytes: several times what every store must accept. Redis reads a batch into
/// memory before it starts.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// The largest number of pieces that one sweep deletes: some milliseconds of Redis.
const SWEPT_PIECES_MAX: u32 = 10;
/// The largest number of dead letters that one sweep deletes.
const SWEPT_LETTERS_MAX: u32 = 2000;
/// The number of partitions whose size of history one sweep reads; of the others it uses the last
/// known size.
const SIZES_READ_MAX: usize = 64;
/// The longest ttl, so that sums are exact in Lua: a year.
const TTL_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Tasks, leases and members in a Redis that several brokers share.
pub struct RedisStore {
    pub(crate) cluster: String,
    pub(crate) partitions: Partitions,
    pub(crate) keys: Vec<PartitionKeys>,
    pub(crate) address: Arc<RedisAddress>,
    pub(crate) reads: RedisConnection,
    /// Several connections only where a write blocks what follows on its connection.
    pub(crate) writes: Vec<RedisConnection>,
    pub(crate) wait: Wait,
    pub(crate) epochs: EpochTracker,
    pub(crate) interner: Interner,
    pub(crate) rewinds: AtomicU64,
    pub(crate) damage: DamageTracker,
    pub(crate) sizes: Mutex<HistorySizes>,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the connections: addresses may contain passwords.
        f.debug_struct("RedisStore").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// The name of the cluster of brokers that share it.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns how often Redis lost writes that it had acknowledged. See [`Rewound`].
    #[must_use]
    pub fn rewinds(&self) -> u64 {
        self.rewinds.load(Ordering::Relaxed)
    }

    /// Passes on an epoch that another broker saw, so that the next one is larger even if Redis has
    /// lost it.
    pub fn remember_epoch(&self, seat: Seat, epoch: Epoch) {
        self.epochs.observe(seat, epoch);
    }

    /// Returns how many damaged values were found since the store was opened.
    #[must_use]
    pub fn damaged_values(&self) -> u64 {
        self.damage.count() as u64
    }

    /// Returns where one of the damaged values is, if there are any.
    #[must_use]
    pub fn damaged_place(&self) -> Option<String> {
        self.damage.first()
    }

    /// Looks for a key of another type after Redis has refused a command, and names it.
    async fn explained<T>(
        &self,
        partition: PartitionId,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let Err(StoreError::Broken(why)) = result else { return result };
        for (key, expected) in self.keys(partition)?.types() {
            let mut command = redis::cmd("TYPE");
            command.arg(key);
            let found = self.reads.command(command, key).await?;
            let found = reply::text(&found)?;
            if found != expected && found != "none" {
                let why = format!("its type is {found} instead of {expected}");
                return Err(self.damage.found("the key", key, b"", why));
            }
        }
        Err(StoreError::Broken(why))
    }

    pub(crate) fn keys(&self, partition: PartitionId) -> Result<&PartitionKeys, StoreError> {
        self.keys.get(usize::from(partition.get())).ok_or(StoreError::Outside { partition })
    }

    /// Returns the connection for the writes of a seat: always the same, so that they keep their
    /// order.
    pub(crate) fn writes(&self, seat: Seat) -> &RedisConnection {
        let number = match seat {
            Seat::Leader => 0,
            Seat::Partition(partition) => usize::from(partition.get()),
        };
        &self.writes[number % self.writes.len()]
    }

    fn own(&self, seat: Seat) -> Result<String, StoreError> {
        match seat {
            Seat::Leader => Ok(keys::own(&self.cluster, seat)),
            Seat::Partition(partition) => Ok(self.keys(partition)?.own.clone()),
        }
    }

    fn rewound(&self, rewound: Option<Rewound>) {
        if let Some(rewound) = rewound {
            self.rewinds.fetch_add(1, Ordering::Relaxed);
            let Rewound { partition, ours, current, acknowledged, last } = rewound;
            tracing::error!(
                %partition, %ours, %current, ?acknowledged, ?last,
                "store lost acknowledged batches"
            );
        }
    }

    /// Handles the reply to a write whose epoch is not that of the lease in Redis.
    fn fenced(
        &self,
        partition: PartitionId,
        ours: Epoch,
        current: Option<&Value>,
    ) -> Result<StoreError, StoreError> {
        let Some(current) = self.readable(partition, "epoch", current, read_epoch)? else {
            return Ok(StoreError::Fenced { partition, ours, current: Epoch::NONE });
        };
        self.rewound(self.epochs.fenced(partition, ours, current));
        self.epochs.observe(Seat::Partition(partition), current);
        Ok(StoreError::Fenced { partition, ours, current })
    }

    /// Reads a field of the lease of a partition from the reply to a write. `None` if it is
    /// damaged: then no owner can write until the partition is acquired again.
    fn readable<T>(
        &self,
        partition: PartitionId,
        field: &'static str,
        value: Option<&Value>,
        read: impl Fn(&Value) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let value = value.ok_or_else(|| reply::unexpected("a field of the lease"))?;
        let read = read(value).ok();
        if read.is_none() {
            self.damage.found("the lease", &self.keys(partition)?.own, field.as_bytes(), NO_NUMBER);
        }
        Ok(read)
    }

    async fn history_bytes_of(&self, index: usize) -> Result<u64, StoreError> {
        let counts = &self.keys[index].counts;
        let mut command = redis::cmd("HGET");
        command.arg(counts).arg(codec::HISTORY_BYTES_FIELD);
        let value = self.reads.command(command, counts).await?;
        Ok(size(&value).unwrap_or_else(|_| {
            self.damage.found("the size of history", counts, codec::HISTORY_BYTES_FIELD, NO_NUMBER);
            0
        }))
    }

    /// Returns how many bytes of history a partition has to delete: its share of the excess of all
    /// partitions.
    async fn excess(&self, partition: PartitionId, history_bytes: u64) -> Result<u64, StoreError> {
        let index = usize::from(partition.get());
        let ours = self.history_bytes_of(index).await?;
        // A partition without history has nothing to delete.
        if ours == 0 || history_bytes == u64::MAX {
            return Ok(0);
        }
        let others = self.sizes().next_to_read(SIZES_READ_MAX);
        for other in others {
            let bytes = self.history_bytes_of(other).await?;
            self.sizes().bytes[other] = bytes;
        }
        let mut sizes = self.sizes();
        sizes.bytes[index] = ours;
        let total: u64 = sizes.bytes.iter().sum();
        let excess = u128::from(total.saturating_sub(history_bytes));
        let share = (excess * u128::from(ours)).div_ceil(u128::from(total));
        Ok(u64::try_from(share).unwrap_or(u64::MAX))
    }

    /// A panic cannot leave this state half-written.
    fn sizes(&self) -> MutexGuard<'_, HistorySizes> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last known size of the history of each partition, in bytes.
#[derive(Debug)]
pub(crate) struct HistorySizes {
    bytes: Vec<u64>,
    next: usize,
}

impl HistorySizes {
    pub(crate) fn new(partitions: Partitions) -> Self {
        Self { bytes: vec![0; usize::from(partitions.count())], next: 0 }
    }

    /// Returns the partitions whose size is read next.
    fn next_to_read(&mut self, limit: usize) -> Vec<usize> {
        let count = self.bytes.len();
        let some = (self.next..).take(limit.min(count)).map(|index| index % count).collect();
        self.next = (self.next + limit) % count;
        some
    }
}

fn size(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Nil => Ok(0),
        other => Ok(u64::try_from(reply::integer(other)?).unwrap_or(0)),
    }
}

pub(crate) fn read_epoch(value: &Value) -> Result<Epoch, StoreError> {
    let number = u32::try_from(reply::integer(value)?).ok().and_then(Epoch::new);
    number.ok_or_else(|| reply::unexpected("an epoch"))
}

pub(crate) fn read_time(value: &Value) -> Result<Timestamp, StoreError> {
    let millis = i128::from(reply::integer(value)?);
    Timestamp::try_from_millis(millis).map_err(|_| reply::unexpected("a time"))
}

/// Reads a lease from its epoch, broker and end. The error is the field that is damaged.
pub(crate) fn read_lease(
    seat: Seat,
    [epoch, broker, until]: [&Value; 3],
) -> Result<Lease, &'static str> {
    let epoch = read_epoch(epoch).map_err(|_| "epoch")?;
    let broker = BrokerId::new(reply::text(broker).map_err(|_| "broker")?);
    let until = read_time(until).map_err(|_| "until")?;
    Ok(Lease { seat, broker, epoch, until })
}

/// Splits the reply of a script into its code and the values after it.
pub(crate) fn script_result(value: Value) -> Result<(i64, Vec<Value>), StoreError> {
    let mut values = reply::array(value)?;
    if values.is_empty() {
        return Err(reply::unexpected("the result of a script"));
    }
    let rest = values.split_off(1);
    Ok((reply::integer(&values[0])?, rest))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.min(TTL_MAX).as_millis()).unwrap_or(u64::MAX)
}

/// Returns the last instant that is past an age, as the scripts expect it.
fn past(now: Timestamp, age: Duration) -> String {
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    now.as_millis().checked_sub(age).map_or_else(|| "-inf".to_owned(), |at| at.to_string())
}

impl TaskStore for RedisStore {
    async fn apply(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        batch: Batch,
    ) -> Result<(), StoreError> {
        let keys = self.keys(partition)?;
        let seat = Seat::Partition(partition);
        let (number, repair) = (batch.number, batch.repair);
        let arguments = BatchArguments::of(epoch, batch);
        if arguments.bytes() > BATCH_BYTES_MAX {
            let bytes = arguments.bytes();
            let problem =
                format!("a batch of {bytes} bytes exceeds the limit of {BATCH_BYTES_MAX}");
            return Err(StoreError::Broken(problem));
        }
        let before = number.get().checked_sub(1).map_or("none".to_owned(), |last| last.to_string());
        let series = arguments.series.iter();
        let series: Vec<_> = series.map(|it| keys.series(it.namespace.as_str())).collect();
        let all = keys.all().into_iter().chain(series.iter().map(String::as_str));
        let call = ScriptCall::new(&script::APPLY, all)
            .number(epoch.get())
            .arg(self.epochs.token(seat, epoch))
            .number(number.get())
            .arg(before)
            .number(u8::from(arguments.grows))
            .number(repair.get())
            .batch(arguments);
        let sent = self.writes(seat).call_and_wait(&call, self.wait).await;
        let WaitedReply { value, waited } = self.explained(partition, sent).await?;
        let (code, rest) = script_result(value)?;
        match (code, waited) {
            (0 | 1, waited) => {
                let mut rest = rest.into_iter();
                let log_bytes = rest.next().map_or(Ok(0), |bytes| reply::integer(&bytes))?;
                for field in rest {
                    let field = reply::bytes(field)?;
                    self.damage.found("the count of tasks", &keys.counts, &field, NO_NUMBER);
                }
                // Made, but perhaps not as durable as demanded. Sent again, the batch waits again.
                waited?;
                self.epochs.acknowledge(partition, epoch, number);
                self.fold_if_long(partition, epoch, log_bytes).await;
                Ok(())
            }
            (2, _) => Err(self.fenced(partition, epoch, rest.first())?),
            (3, _) => {
                let read = |value: &Value| {
                    let number = u64::try_from(reply::integer(value)?);
                    number.map(BatchNo::new).map_err(|_| reply::unexpected("a number"))
                };
                let Some(last) = self.readable(partition, "batch", rest.first(), read)? else {
                    return Err(StoreError::Fenced { partition, ours: epoch, current: epoch });
                };
                self.rewound(self.epochs.gap(partition, epoch, last));
                Err(StoreError::Gap { partition, expected: last.next(), given: number })
            }
            // Sent before a repair, and arrived after it began.
            (4, _) => Err(StoreError::Fenced { partition, ours: epoch, current: epoch }),
            _ => Err(reply::unexpected("a result of apply")),
        }
    }

    async fn load(
        &self,
        partition: PartitionId,
        after: Position,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<Task>, StoreError> {
        let read = self.read_due(self.keys(partition)?, after, until, limit).await;
        self.explained(partition, read).await
    }

    async fn find(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<Head>>, StoreError> {
        let read = self.read_heads(self.keys(partition)?, namespace, keys).await;
        self.explained(partition, read).await
    }

    async fn get(
        &self,
        partition: PartitionId,
        ids: &[TaskId],
    ) -> Result<Vec<Option<Task>>, StoreError> {
        let read = self.read_tasks(self.keys(partition)?, ids).await;
        self.explained(partition, read).await
    }

    async fn list(
        &self,
        partition: PartitionId,
        filter: &Filter,
        after: Position,
        limit: usize,
    ) -> Result<Page<Task, Position>, StoreError> {
        let read = self.read_list(self.keys(partition)?, filter, after, limit).await;
        self.explained(partition, read).await
    }

    async fn dead(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        after: Option<FireId>,
        limit: usize,
    ) -> Result<Page<DeadLetter, FireId>, StoreError> {
        let read = self.read_dead(self.keys(partition)?, namespace, after, limit).await;
        self.explained(partition, read).await
    }

    async fn dead_letters(
        &self,
        partition: PartitionId,
        fire_ids: &[FireId],
    ) -> Result<Vec<Option<DeadLetter>>, StoreError> {
        let read = self.read_letters(self.keys(partition)?, fire_ids).await;
        self.explained(partition, read).await
    }

    async fn history(
        &self,
        partition: PartitionId,
        id: TaskId,
        limit: usize,
    ) -> Result<Vec<FireRecord>, StoreError> {
        let read = self.read_history(self.keys(partition)?, id, limit).await;
        self.explained(partition, read).await
    }

    async fn fires(
        &self,
        partition: PartitionId,
        filter: &FireFilter,
        after: Option<FirePosition>,
        limit: usize,
    ) -> Result<Page<FireRecord, FirePosition>, StoreError> {
        let read = self.read_fires(self.keys(partition)?, filter, after, limit).await;
        self.explained(partition, read).await
    }

    async fn last_fires(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        keys: &[TaskKey],
    ) -> Result<Vec<Option<FireRecord>>, StoreError> {
        let read = self.read_last_fires(self.keys(partition)?, namespace, keys).await;
        self.explained(partition, read).await
    }

    async fn counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Counts, StoreError> {
        let read = self.read_counts(self.keys(partition)?, namespace).await;
        self.explained(partition, read).await
    }

    async fn due_counts(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
        steps: &DueSteps,
    ) -> Result<DueCounts, StoreError> {
        let read = self.read_due_counts(self.keys(partition)?, namespace, steps).await;
        self.explained(partition, read).await
    }

    async fn letter_groups(
        &self,
        partition: PartitionId,
        namespace: &Namespace,
    ) -> Result<Vec<CountedGroup>, StoreError> {
        let read = self.read_letter_groups(self.keys(partition)?, namespace).await;
        self.explained(partition, read).await
    }

    async fn namespaces(
        &self,
        partition: PartitionId,
        after: Option<&Namespace>,
        limit: usize,
    ) -> Result<Page<CountedNamespace, Namespace>, StoreError> {
        let read = self.read_namespaces(self.keys(partition)?, after, limit).await;
        self.explained(partition, read).await
    }

    async fn sweep(
        &self,
        partition: PartitionId,
        epoch: Epoch,
        retention: Retention,
        now: Timestamp,
    ) -> Result<Swept, StoreError> {
        let keys = self.keys(partition)?;
        let seat = Seat::Partition(partition);
        let excess = self.excess(partition, retention.history_bytes).await?;
        let PartitionKeys { own, tasks, history, fires, ages, ends, keyed, .. } = keys;
        let PartitionKeys { letters, dead, dead_ages, counts, groups, grouped, .. } = keys;
        let all = [own, history, fires, ages, letters, dead, dead_ages, counts, tasks, ends, keyed];
        let all = all.into_iter().chain([groups, grouped]);
        let call = ScriptCall::new(&script::SWEEP, all.map(String::as_str))
            .number(epoch.get())
            .arg(self.epochs.token(seat, epoch))
            .arg(past(now, retention.history_age))
            .arg(past(now, retention.dead_age))
            .number(excess)
            .number(SWEPT_PIECES_MAX)
            .number(SWEPT_LETTERS_MAX)
            .arg(codec::HISTORY_BYTES_FIELD);
        let swept = self.writes(seat).call(&call).await;
        let (code, rest) = script_result(self.explained(partition, swept).await?)?;
        match (code, rest.as_slice()) {
            (0, [history, dead, Value::Array(damaged)]) => {
                for pair in damaged.chunks_exact(2) {
                    let field = reply::bytes(pair[0].clone())?;
                    self.damage.found(
                        "what the sweep needs",
                        reply::text(&pair[1])?,
                        &field,
                        NOT_SWEPT,
                    );
                }
                Ok(Swept { history: size(history)?, dead: size(dead)? })
            }
            (2, [current]) => Err(self.fenced(partition, epoch, Some(current))?),
            _ => Err(reply::unexpected("a result of sweep")),
        }
    }
}

impl LeaseStore for RedisStore {
    async fn acquire(
        &self,
        seat: Seat,
        broker: &BrokerId,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let own = self.own(seat)?;
        let until = now.after(ttl);
        let token = acquisition_token();
        let partition = match seat {
            Seat::Leader => None,
            Seat::Partition(partition) => Some((partition, self.keys(partition)?)),
        };
        let counted = partition.map(|(_, keys)| {
            let PartitionKeys { counts, namespaces, counted, due_hours, due_log, .. } = keys;
            let PartitionKeys { groups, grouped, due, paused, dead, .. } = keys;
            [counts, namespaces, counted, due_hours, due_log, groups, grouped, due, paused, dead]
        });
        let counted = counted.into_iter().flatten().map(String::as_str);
        let series = partition.map_or("", |(_, keys)| &keys.series_prefix);
        let call = ScriptCall::new(&script::ACQUIRE, std::iter::once(own.as_str()).chain(counted))
            .arg(broker.as_str())
            .number(millis(ttl))
            .number(until.as_millis())
            .arg(&token)
            .number(self.epochs.next_epoch(seat))
            .number(Epoch::MAX.get())
            .number(u8::from(seat != Seat::Leader))
            .arg(series);
        // The wait is the same as for batches: an epoch that is lost would be granted twice.
        let WaitedReply { value, waited } =
            self.writes(seat).call_and_wait(&call, self.wait).await?;
        let (code, rest) = script_result(value)?;
        let epoch = rest.first().map_or(Ok(Epoch::NONE), read_epoch)?;
        self.epochs.observe(seat, epoch);
        match code {
            0 => {
                if !matches!(rest.get(1), Some(Value::Int(0))) {
                    self.damage.found("the lease", &own, b"epoch", NO_NUMBER);
                }
                self.epochs.acquire(seat, epoch, token);
                waited?;
                if let Some((partition, _)) = partition {
                    let at = rest.into_iter().nth(2).map_or(Ok(Vec::new()), reply::bytes)?;
                    self.fill(partition, epoch, ttl, &at).await?;
                }
                Ok(Lease { seat, broker: broker.clone(), epoch, until })
            }
            1 => Err(StoreError::Held { seat }),
            2 => Err(StoreError::Broken(format!("no epoch is left for {seat}"))),
            3 => Err(self.damage.found("the lease", &own, b"epoch", NO_NUMBER)),
            _ => Err(reply::unexpected("a result of acquire")),
        }
    }

    async fn renew(
        &self,
        lease: &Lease,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<Lease, StoreError> {
        let seat = lease.seat;
        let own = self.own(seat)?;
        let until = now.after(ttl);
        let call = ScriptCall::new(&script::RENEW, [own.as_str()])
            .number(lease.epoch.get())
            .arg(self.epochs.token(seat, lease.epoch))
            .number(millis(ttl))
            .number(until.as_millis());
        match script_result(self.writes(seat).call(&call).await?)?.0 {
            0 => Ok(Lease { until, ..lease.clone() }),
            1 => Err(StoreError::Held { seat }),
            _ => Err(reply::unexpected("a result of renew")),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), StoreError> {
        let own = self.own(lease.seat)?;
        let call = ScriptCall::new(&script::RELEASE, [own.as_str()])
            .number(lease.epoch.get())
            .arg(self.epochs.token(lease.seat, lease.epoch));
        match script_result(self.writes(lease.seat).call(&call).await?)?.0 {
            0 | 1 => Ok(()),
            _ => Err(reply::unexpected("a result of release")),
        }
    }

    async fn holder(&self, seat: Seat) -> Result<Option<Lease>, StoreError> {
        let own = self.own(seat)?;
        let mut command = redis::cmd("HMGET");
        command.arg(&own).arg(&["epoch", "broker", "until"]);
        let [epoch, broker, until] = reply::tuple(self.reads.command(command, &own).await?)?;
        if epoch == Value::Nil {
            return Ok(None);
        }
        let lease = read_lease(seat, [&epoch, &broker, &until]);
        let lease = lease
            .map_err(|field| self.damage.found("the lease", &own, field.as_bytes(), UNREADABLE))?;
        self.epochs.observe(seat, lease.epoch);
        Ok(Some(lease))
    }
}
