//! An owner that does what a broker does when Redis is away: it sends the same batch again under its number.

use std::time::Duration;

use punctual_core::{Epoch, FireEnd, PartitionId, Seat, Task, TaskId};
use punctual_store::conformance::fixtures::{NOW, TTL, at, broker, id, settle, shop, task};
use punctual_store::{Batch, BatchNo, Change, Counts, LeaseStore, Position, StoreError, TaskStore};
use punctual_store_redis::{Options, RedisStore};

use punctual_test_support::pause;

use crate::subject::{partitions, unique_name};

/// How long Redis may stay away.
const AWAY_MAX: Duration = Duration::from_secs(30);

pub(crate) struct TestWriter {
    pub(crate) store: RedisStore,
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    pub(crate) number: BatchNo,
    /// All that was answered `Ok` and not settled since.
    pub(crate) living: Vec<Task>,
    made: u64,
    /// How often a batch had to be sent again.
    pub(crate) repeated: u32,
}

/// Options for tests: short waits, a name of their own.
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
        let taken = async {
            loop {
                match store.acquire(seat, &broker, TTL, NOW).await {
                    Err(StoreError::Unavailable(_)) => wait_briefly().await,
                    other => return other,
                }
            }
        };
        let taken = tokio::time::timeout(AWAY_MAX, taken).await.expect("Redis comes back");
        let epoch = taken.expect("the seat is free").epoch;
        let (number, living) = (BatchNo::FIRST, Vec::new());
        Self { store, partition, epoch, number, living, made: 0, repeated: 0 }
    }

    pub(crate) fn tasks(&mut self, count: u64) -> Vec<Task> {
        let first = self.made;
        self.made += count;
        let build = |number| {
            let built = task(id(at(number), self.partition, self.epoch, number));
            built.key(&format!("order-{number}")).build()
        };
        (first..self.made).map(build).collect()
    }

    /// Sends a batch once, under the next number, which is used up only if it was made.
    pub(crate) async fn send(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let batch = Batch::new(self.number, changes);
        self.store.apply(self.partition, self.epoch, batch).await?;
        self.number = self.number.next();
        Ok(())
    }

    /// Sends a batch until it is answered.
    pub(crate) async fn make(&mut self, changes: Vec<Change>) {
        let made = async {
            loop {
                match self.send(changes.clone()).await {
                    Ok(()) => return,
                    Err(StoreError::Unavailable(_)) => self.repeated += 1,
                    Err(other) => unreachable!("a batch was answered {other}"),
                }
                wait_briefly().await;
            }
        };
        tokio::time::timeout(AWAY_MAX, made).await.expect("Redis comes back");
    }

    pub(crate) async fn put(&mut self, count: u64) {
        let tasks = self.tasks(count);
        self.make(tasks.iter().cloned().map(Change::Put).collect()).await;
        self.living.extend(tasks);
    }

    pub(crate) async fn settle(&mut self, count: usize) {
        let ended: Vec<Task> = self.living.drain(..count).collect();
        self.make(done(&ended)).await;
    }

    pub(crate) async fn loaded(&self) -> Result<Vec<TaskId>, StoreError> {
        let loaded = self.store.load(self.partition, Position::START, at(1_000_000), 100_000).await;
        Ok(loaded?.iter().map(|task| task.id).collect())
    }

    pub(crate) async fn counts(&self) -> Counts {
        self.store.counts(self.partition, &shop()).await.expect("Redis answers")
    }

    /// Everything that was answered is there, once.
    pub(crate) async fn assert_whole(&self) {
        let want: Vec<TaskId> = self.living.iter().map(|task| task.id).collect();
        let loaded = async {
            loop {
                match self.loaded().await {
                    Err(StoreError::Unavailable(_)) => wait_briefly().await,
                    other => return other,
                }
            }
        };
        let loaded = tokio::time::timeout(AWAY_MAX, loaded).await.expect("Redis comes back");
        assert_eq!(loaded.expect("Redis answers"), want);
        let counts = self.counts().await;
        let made = i64::try_from(self.made).expect("few");
        let living = i64::try_from(want.len()).expect("few");
        assert_eq!((counts.accepted(), counts.scheduled), (made, living));
    }
}

pub(crate) fn done(tasks: &[Task]) -> Vec<Change> {
    tasks.iter().map(|task| settle(task, FireEnd::Done, NOW)).collect()
}

pub(crate) fn put(tasks: &[Task]) -> Vec<Change> {
    tasks.iter().cloned().map(Change::Put).collect()
}

/// Lets others have their turn for a moment.
pub(crate) async fn wait_briefly() {
    let wait = || pause(Duration::from_millis(10));
    tokio::task::spawn_blocking(wait).await.expect("the pause ends");
}

pub(crate) fn is_unavailable<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unavailable(_)))
}
