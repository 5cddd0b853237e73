//! An owner that writes batches as a broker does: while Redis does not answer, it sends the same
//! batch again under the same number.

use std::time::Duration;

use punctual_core::{Epoch, FireEnd, PartitionId, Seat, Task, TaskId};
use punctual_store::conformance::fixtures::{NOW, TTL, at, broker, id, settle, shop, task};
use punctual_store::{Batch, BatchNo, Change, Counts, LeaseStore, Position, StoreError, TaskStore};
use punctual_store_redis::{Options, RedisStore};
use punctual_test_support::pause;
use punctual_test_support::redis::RedisServer;

use crate::subject::{partitions, unique_name};

/// The partition of most tests.
pub(crate) const P: PartitionId = PartitionId::FIRST;
/// A bound for calls that end by their own timeout, with time for a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(3);
/// How long Redis may stay unavailable.
const UNAVAILABLE_MAX: Duration = Duration::from_secs(30);

/// The owner of one partition.
pub(crate) struct TestWriter {
    pub(crate) store: RedisStore,
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    /// The number of the next batch.
    pub(crate) number: BatchNo,
    /// The tasks that were acknowledged and not settled since.
    pub(crate) open: Vec<Task>,
    made: u64,
    /// How often a batch had to be sent again.
    pub(crate) repeated: u32,
}

/// Returns options with short timeouts and a cluster name of their own.
pub(crate) fn options(urls: Vec<String>) -> Options {
    let mut options = Options::new(urls, &unique_name(), partitions());
    options.timeout = Duration::from_millis(500);
    options.connect_timeout = Duration::from_millis(300);
    options
}

impl TestWriter {
    pub(crate) async fn open(options: Options, partition: PartitionId) -> Self {
        let (store, _) = RedisStore::open(options).await.expect("the store opens");
        let (seat, broker) = (Seat::Partition(partition), broker("a:1"));
        let acquired = async {
            loop {
                match store.acquire(seat, &broker, TTL, NOW).await {
                    Err(StoreError::Unavailable(_)) => wait_briefly().await,
                    other => return other,
                }
            }
        };
        let acquired = tokio::time::timeout(UNAVAILABLE_MAX, acquired)
            .await
            .expect("Redis is available again");
        let epoch = acquired.expect("the seat is free").epoch;
        let (number, open) = (BatchNo::FIRST, Vec::new());
        Self { store, partition, epoch, number, open, made: 0, repeated: 0 }
    }

    /// Makes tasks without sending them.
    pub(crate) fn tasks(&mut self, count: u64) -> Vec<Task> {
        let first = self.made;
        self.made += count;
        let build = |number| {
            let built = task(id(at(number), self.partition, self.epoch, number));
            built.key(&format!("order-{number}")).build()
        };
        (first..self.made).map(build).collect()
    }

    /// Sends a batch once. Its number is used up only if the batch was applied.
    pub(crate) async fn send(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let batch = Batch::new(self.number, changes);
        self.store.apply(self.partition, self.epoch, batch).await?;
        self.number = self.number.next();
        Ok(())
    }

    /// Sends a batch until it is applied.
    pub(crate) async fn apply(&mut self, changes: Vec<Change>) {
        let applied = async {
            loop {
                match self.send(changes.clone()).await {
                    Ok(()) => return,
                    Err(StoreError::Unavailable(_)) => self.repeated += 1,
                    Err(other) => unreachable!("a batch failed: {other}"),
                }
                wait_briefly().await;
            }
        };
        tokio::time::timeout(UNAVAILABLE_MAX, applied).await.expect("Redis is available again");
    }

    pub(crate) async fn put(&mut self, count: u64) {
        let tasks = self.tasks(count);
        self.apply(tasks.iter().cloned().map(Change::Put).collect()).await;
        self.open.extend(tasks);
    }

    pub(crate) async fn settle(&mut self, count: usize) {
        let ended: Vec<Task> = self.open.drain(..count).collect();
        self.apply(done(&ended)).await;
    }

    pub(crate) async fn loaded(&self) -> Result<Vec<TaskId>, StoreError> {
        let loaded = self.store.load(self.partition, Position::START, at(1_000_000), 100_000).await;
        Ok(loaded?.iter().map(|task| task.id).collect())
    }

    pub(crate) async fn counts(&self) -> Counts {
        self.store.counts(self.partition, &shop()).await.expect("Redis answers")
    }

    /// Asserts that the store has every acknowledged task, once.
    pub(crate) async fn assert_whole(&self) {
        let want: Vec<TaskId> = self.open.iter().map(|task| task.id).collect();
        let loaded = async {
            loop {
                match self.loaded().await {
                    Err(StoreError::Unavailable(_)) => wait_briefly().await,
                    other => return other,
                }
            }
        };
        let loaded =
            tokio::time::timeout(UNAVAILABLE_MAX, loaded).await.expect("Redis is available again");
        assert_eq!(loaded.expect("Redis answers"), want);
        let counts = self.counts().await;
        let made = i64::try_from(self.made).expect("a small number");
        let open = i64::try_from(want.len()).expect("a small number");
        assert_eq!((counts.accepted(), counts.scheduled), (made, open));
    }
}

pub(crate) fn done(tasks: &[Task]) -> Vec<Change> {
    tasks.iter().map(|task| settle(task, FireEnd::Done, NOW)).collect()
}

pub(crate) fn put(tasks: &[Task]) -> Vec<Change> {
    tasks.iter().cloned().map(Change::Put).collect()
}

/// Waits for some milliseconds, and lets other tasks run.
pub(crate) async fn wait_briefly() {
    let wait = || pause(Duration::from_millis(10));
    tokio::task::spawn_blocking(wait).await.expect("the pause ends");
}

pub(crate) fn is_unavailable<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unavailable(_)))
}

/// Waits for an answer that must come within a bound, whatever Redis does.
pub(crate) async fn within<T>(bound: Duration, answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(bound, answer).await.expect("an answer comes within the timeout")
}

/// Returns the cluster name of the only store on a server.
pub(crate) fn name_of(server: &RedisServer) -> String {
    let keys = server.cli(&["KEYS", "*:meta"]);
    let (_, name) = keys.trim().split_once('{').expect("a hash tag");
    name.split_once('}').expect("a hash tag").0.to_owned()
}
