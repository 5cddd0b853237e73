//! The model: a store and the memory store run the same random operations and must return the same.
//!
//! A seed decides everything; after a failure, `PUNCTUAL_SEED` repeats it. A run sends the batches
//! of simulated owners (`owner_model`), acquires and loses leases, sends batches twice, too late or
//! with a wrong number, sweeps, and closes, crashes and reopens a durable store. Now and then it
//! reads everything (`reads`).
//!
//! A sweep may keep records longer than it must. So there are two memory stores: `least` sweeps
//! whenever the store does, `most` never does, and the contents of the store must be between the
//! two.

mod owner_model;
mod random;
mod reads;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use punctual_core::{Epoch, Lease, PartitionId, Partitions, Seat, Timestamp};

use self::owner_model::OwnerModel;
use self::random::ModelRandom;
use super::fixtures::{NOW, TTL, broker};
use super::{PARTITIONS, StoreUnderTest};
use crate::change::{Batch, BatchNo};
use crate::error::StoreError;
use crate::query::{Retention, Swept};
use crate::{LeaseStore, MemoryStore, TaskStore};

/// Steps between two comparisons of everything.
const STEPS_BETWEEN_VIEWS: u64 = 25;

/// The seed and the length of a run.
#[derive(Debug, Clone, Copy)]
pub struct ModelRun {
    /// Decides everything; `PUNCTUAL_SEED` in the environment overrides it.
    pub seed: u64,
    /// The number of batches, lease changes, sweeps and restarts together.
    pub steps: u64,
}

/// The run of the suite. Tests call [`same_as_memory`] for longer runs and other seeds.
pub async fn a_store_returns_the_same_as_the_memory_store<S: StoreUnderTest>(under_test: &S) {
    let run = ModelRun { seed: 1, steps: S::STEPS };
    same_as_memory(under_test, run).await;
}

/// Runs an empty store and compares it with the memory store after every few steps.
///
/// # Panics
///
/// At the first difference.
pub async fn same_as_memory<S: StoreUnderTest>(under_test: &S, run: ModelRun) {
    let seed = std::env::var("PUNCTUAL_SEED").ok();
    let seed = seed.and_then(|text| text.parse().ok()).unwrap_or(run.seed);
    let mut trace = Trace { seed, step: 0 };
    let mut runner = ModelRunner::begin(under_test, seed).await;
    for step in 1..=run.steps {
        trace.step = step;
        runner.step().await;
        if step % STEPS_BETWEEN_VIEWS == 0 {
            runner.assert_same().await;
        }
    }
    runner.assert_same().await;
}

/// Prints the seed and the step of a run that failed.
struct Trace {
    seed: u64,
    step: u64,
}

impl Drop for Trace {
    #[expect(clippy::print_stderr, reason = "test support: a seed that failed is for people")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, step } = self;
            eprintln!("model run failed at step {step}; repeat it with PUNCTUAL_SEED={seed}");
        }
    }
}

/// The store under test, the memory stores that it is compared with, and its owners.
struct ModelRunner<'a, S: StoreUnderTest> {
    under_test: &'a S,
    /// `None` only while the store is being opened.
    store: Option<S::Store>,
    least: MemoryStore,
    most: MemoryStore,
    owners: Vec<OwnerModel>,
    random: ModelRandom,
    now: Timestamp,
}

impl<'a, S: StoreUnderTest> ModelRunner<'a, S> {
    async fn begin(under_test: &'a S, seed: u64) -> Self {
        let partitions = Partitions::new(PARTITIONS).expect("within the limits");
        let mut runner = Self {
            under_test,
            store: Some(under_test.open().await),
            least: MemoryStore::new(partitions),
            most: MemoryStore::new(partitions),
            owners: Vec::new(),
            random: ModelRandom::new(seed),
            now: NOW,
        };
        for partition in partitions.iter() {
            let lease = runner.acquire(Seat::Partition(partition), "a:1").await;
            let lease = lease.expect("an empty store has free seats");
            runner.owners.push(OwnerModel::new(lease, partition));
        }
        runner
    }

    fn store(&self) -> &S::Store {
        self.store.as_ref().expect("open between steps")
    }

    async fn step(&mut self) {
        let passed = Duration::from_millis(self.random.below(4000));
        self.now = self.now.after(passed);
        self.under_test.pass(self.store(), passed).await;
        let index = self.random.index(self.owners.len());
        match self.random.below(100) {
            0..70 => self.make(index).await,
            70..74 => self.repeat(index).await,
            74..78 => self.write_with_wrong_epoch_or_number(index).await,
            78..88 => self.change_lease().await,
            88..92 => self.sweep(index).await,
            92..96 if S::DURABLE => self.reopen().await,
            96..100 if S::DURABLE => self.crash_in_flight(index).await,
            _ => self.make(index).await,
        }
    }

    async fn make(&mut self, index: usize) {
        let batch = self.owners[index].batch(&mut self.random, self.now);
        let answer = self.send(index, batch.clone()).await;
        answer.expect("the owner's next batch is made");
        self.remember(index, batch).await;
    }

    async fn send(&self, index: usize, batch: Batch) -> Result<(), StoreError> {
        let OwnerModel { lease, partition, .. } = &self.owners[index];
        self.store().apply(*partition, lease.epoch, batch).await
    }

    async fn remember(&self, index: usize, batch: Batch) {
        let OwnerModel { lease, partition, .. } = &self.owners[index];
        for memory in [&self.least, &self.most] {
            let made = memory.apply(*partition, lease.epoch, batch.clone()).await;
            made.expect("the memory store accepts valid batches");
        }
    }

    async fn repeat(&mut self, index: usize) {
        if let Some(last) = self.owners[index].last.clone() {
            let answer = self.send(index, last).await;
            answer.expect("the last batch is answered again");
        }
    }

    async fn write_with_wrong_epoch_or_number(&mut self, index: usize) {
        let OwnerModel { lease, partition, number, .. } = &self.owners[index];
        let (partition, current, expected) = (*partition, lease.epoch, *number);
        let changes = self.owners[index].invalid_changes(&mut self.random, self.now);
        let older = Epoch::new(current.get() - 1).expect("below one that is");
        let gap = BatchNo::new(expected.get() + 1);
        let other = if self.random.below(2) == 0 { (older, expected) } else { (current, gap) };
        let (epoch, number) = other;
        let batch = Batch::new(number, changes);
        let answer = self.store().apply(partition, epoch, batch).await;
        match answer {
            Err(StoreError::Fenced { .. }) if epoch == older => {}
            Err(StoreError::Gap { .. }) if number == gap => {}
            other => unreachable!("{epoch} {number:?} of {partition} returned {other:?}"),
        }
    }

    /// Acquires, renews or releases a seat, as its holder or as another broker.
    async fn change_lease(&mut self) {
        let index = self.random.index(self.owners.len() + 1);
        let owner_model = self.owners.get(index);
        let seat =
            owner_model.map_or(Seat::Leader, |owner_model| Seat::Partition(owner_model.partition));
        let name = ["a:1", "b:1"][self.random.index(2)];
        let held = self.least.holder(seat).await.expect("reads need no lease");
        match (self.random.below(3), held) {
            // A holder that released its seat does not renew it.
            (0, Some(lease)) if lease.until > Timestamp::EPOCH => self.renew(&lease).await,
            (1, Some(lease)) => {
                for answer in [
                    self.store().release(&lease).await,
                    self.least.release(&lease).await,
                    self.most.release(&lease).await,
                ] {
                    answer.expect("the holder may release");
                }
            }
            _ => {
                let lease = self.acquire(seat, name).await;
                if let (Some(lease), Some(owner_model)) = (lease, self.owners.get_mut(index)) {
                    owner_model.begin_epoch(lease);
                }
            }
        }
    }

    async fn renew(&self, lease: &Lease) {
        let (ttl, now) = (TTL, self.now);
        let ours = self.store().renew(lease, ttl, now).await;
        let ours = ours.expect("the lease is current");
        for memory in [&self.least, &self.most] {
            let theirs = memory.renew(lease, ttl, now).await;
            assert_eq!(ours, theirs.expect("the lease is current"));
        }
    }

    async fn acquire(&self, seat: Seat, name: &str) -> Option<Lease> {
        let (broker, now) = (broker(name), self.now);
        let ours = self.store().acquire(seat, &broker, TTL, now).await;
        let ours = lease_or_held(ours);
        for memory in [&self.least, &self.most] {
            let theirs = memory.acquire(seat, &broker, TTL, now).await;
            assert_eq!(ours, lease_or_held(theirs), "{seat} for {broker}");
        }
        ours
    }

    async fn sweep(&mut self, index: usize) {
        let age = |random: &mut ModelRandom| Duration::from_secs(random.below(1200));
        let retention = Retention {
            history_age: age(&mut self.random),
            history_bytes: u64::MAX,
            dead_age: age(&mut self.random),
        };
        let OwnerModel { lease, partition, .. } = &self.owners[index];
        let ours = self.store().sweep(*partition, lease.epoch, retention, self.now).await;
        let _: Swept = ours.expect("the owner may sweep");
        let theirs = self.least.sweep(*partition, lease.epoch, retention, self.now).await;
        let _: Swept = theirs.expect("the owner may sweep");
        self.owners[index].forget_older(retention.dead_age, self.now);
    }

    async fn reopen(&mut self) {
        let store = self.store.take().expect("open between steps");
        if self.random.below(2) == 0 {
            self.under_test.close(store).await;
        } else {
            self.under_test.crash(store, self.random.next()).await;
        }
        self.store = Some(self.under_test.open().await);
        self.assert_same().await;
    }

    /// Crashes while a batch is in flight. Afterwards all of it is there or nothing, and the owner,
    /// which does not know, sends it again.
    async fn crash_in_flight(&mut self, index: usize) {
        let batch = self.owners[index].batch(&mut self.random, self.now);
        let polls = self.random.below(4);
        let answered = {
            let answer = pin!(self.send(index, batch.clone()));
            poll_some(answer, polls).await
        };
        let store = self.store.take().expect("open between steps");
        self.under_test.crash(store, self.random.next()).await;
        self.store = Some(self.under_test.open().await);
        let before = self.compare().await;
        self.remember(index, batch.clone()).await;
        let after = self.compare().await;
        match (answered, before, after) {
            (Some(answer), _, after) => {
                answer.expect("the owner's next batch is made");
                assert_eq!(after, Ok(()), "an acknowledged batch is there");
            }
            (None, Err(before), Err(after)) => {
                unreachable!("half a batch is there: unlike before ({before}) and after ({after})")
            }
            (None, _, _) => {}
        }
        let again = self.send(index, batch).await;
        again.expect("a batch whose answer was lost can be sent again");
        self.assert_same().await;
    }

    async fn assert_same(&mut self) {
        assert_eq!(self.compare().await, Ok(()));
    }

    async fn compare(&mut self) -> Result<(), String> {
        let store = self.store.as_ref().expect("open between steps");
        let parameters = reads::ReadParameters::new(&mut self.random, self.now);
        for owner_model in &self.owners {
            let ours = reads::read(store, owner_model, &parameters).await;
            let least = reads::read(&self.least, owner_model, &parameters).await;
            let most = reads::read(&self.most, owner_model, &parameters).await;
            let partition: PartitionId = owner_model.partition;
            reads::compare(&ours, &least, &most)
                .map_err(|difference| format!("{partition}: {difference}"))?;
        }
        let ours = store.holder(Seat::Leader).await;
        let theirs = self.least.holder(Seat::Leader).await;
        let [ours, theirs] = [ours, theirs].map(|lease| lease.expect("reads need no lease"));
        reads::alike(
            "the leader",
            &ours.map(reads::epoch_holder_until),
            &theirs.map(reads::epoch_holder_until),
        )
    }
}

fn lease_or_held(answer: Result<Lease, StoreError>) -> Option<Lease> {
    match answer {
        Ok(lease) => Some(lease),
        Err(StoreError::Held { .. }) => None,
        Err(other) => unreachable!("a seat is taken or held, not {other}"),
    }
}

/// Polls a future up to `polls` times, and returns its output if it completes. Other tasks of the
/// runtime run in between.
async fn poll_some<T>(
    mut future: std::pin::Pin<&mut impl Future<Output = T>>,
    polls: u64,
) -> Option<T> {
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}
