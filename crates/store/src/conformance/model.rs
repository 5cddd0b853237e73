//! The model: a store and the memory store do the same for a long time, and must answer alike.
//!
//! In: a seed. Out: nothing, or a panic beside the seed that finds it again (`PUNCTUAL_SEED`). A walk makes batches
//! the way owners do (`plan`), takes and loses leases, sends batches twice, too late or out of turn, sweeps,
//! and, with a durable store, closes, crashes and opens it; now and then it reads everything (`view`).
//! Two memory stores go along, because a sweep may keep things for longer than it must: `least` sweeps whenever the
//! store does, `most` never, and the store stays between the two.

mod dice;
mod plan;
mod view;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use punctual_core::{Epoch, Lease, PartitionId, Partitions, Seat, Timestamp};

use self::dice::Dice;
use self::plan::Plan;
use super::fixtures::{NOW, TTL, broker};
use super::{PARTITIONS, Subject};
use crate::change::{Batch, BatchNo};
use crate::error::StoreError;
use crate::query::{Retention, Swept};
use crate::{LeaseStore, MemoryStore, TaskStore};

/// Steps between two looks at everything.
const STEPS_BETWEEN_VIEWS: u64 = 25;

/// How far to go, and which way.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    /// Decides everything; `PUNCTUAL_SEED` in the environment overrides it.
    pub seed: u64,
    /// Batches, lease changes, sweeps and restarts, all together.
    pub steps: u64,
}

/// The walk that every store takes in the suite. Longer ones, and other seeds: [`same_as_memory`].
pub async fn a_store_answers_like_the_memory_store<S: Subject>(subject: &S) {
    let walk = Walk { seed: 1, steps: S::STEPS };
    same_as_memory(subject, walk).await;
}

/// Walks with a store that is empty, and compares it with the memory store all the way.
///
/// # Panics
///
/// At the first difference.
pub async fn same_as_memory<S: Subject>(subject: &S, walk: Walk) {
    let seed = std::env::var("PUNCTUAL_SEED").ok();
    let seed = seed.and_then(|text| text.parse().ok()).unwrap_or(walk.seed);
    let mut trace = Trace { seed, step: 0 };
    let mut walker = Walker::begin(subject, seed).await;
    for step in 1..=walk.steps {
        trace.step = step;
        walker.step().await;
        if step % STEPS_BETWEEN_VIEWS == 0 {
            walker.assert_same().await;
        }
    }
    walker.assert_same().await;
}

/// Says where a walk broke off.
struct Trace {
    seed: u64,
    step: u64,
}

impl Drop for Trace {
    #[expect(clippy::print_stderr, reason = "test support: a seed that failed is for people")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, step } = self;
            eprintln!("the walk broke off at step {step}; again with PUNCTUAL_SEED={seed}");
        }
    }
}

/// The store under test, those that it is compared with, and what its owners know.
struct Walker<'a, S: Subject> {
    subject: &'a S,
    /// Not there only while it is being opened.
    store: Option<S::Store>,
    least: MemoryStore,
    most: MemoryStore,
    plans: Vec<Plan>,
    dice: Dice,
    now: Timestamp,
}

impl<'a, S: Subject> Walker<'a, S> {
    async fn begin(subject: &'a S, seed: u64) -> Self {
        let partitions = Partitions::new(PARTITIONS).expect("within the limits");
        let mut walker = Self {
            subject,
            store: Some(subject.open().await),
            least: MemoryStore::new(partitions),
            most: MemoryStore::new(partitions),
            plans: Vec::new(),
            dice: Dice::new(seed),
            now: NOW,
        };
        for partition in partitions.iter() {
            let lease = walker.acquire(Seat::Partition(partition), "a:1").await;
            let lease = lease.expect("an empty store has free seats");
            walker.plans.push(Plan::new(lease, partition));
        }
        walker
    }

    fn store(&self) -> &S::Store {
        self.store.as_ref().expect("open between steps")
    }

    async fn step(&mut self) {
        let passed = Duration::from_millis(self.dice.below(4000));
        self.now = self.now.after(passed);
        self.subject.pass(self.store(), passed).await;
        let index = self.dice.index(self.plans.len());
        match self.dice.below(100) {
            0..70 => self.make(index).await,
            70..74 => self.repeat(index).await,
            74..78 => self.write_out_of_turn(index).await,
            78..88 => self.change_lease().await,
            88..92 => self.sweep(index).await,
            92..96 if S::DURABLE => self.reopen().await,
            96..100 if S::DURABLE => self.crash_under_way(index).await,
            _ => self.make(index).await,
        }
    }

    async fn make(&mut self, index: usize) {
        let batch = self.plans[index].batch(&mut self.dice, self.now);
        let answer = self.send(index, batch.clone()).await;
        answer.expect("the owner's next batch is made");
        self.remember(index, batch).await;
    }

    async fn send(&self, index: usize, batch: Batch) -> Result<(), StoreError> {
        let Plan { lease, partition, .. } = &self.plans[index];
        self.store().apply(*partition, lease.epoch, batch).await
    }

    async fn remember(&self, index: usize, batch: Batch) {
        let Plan { lease, partition, .. } = &self.plans[index];
        for memory in [&self.least, &self.most] {
            let made = memory.apply(*partition, lease.epoch, batch.clone()).await;
            made.expect("the memory store makes what is valid");
        }
    }

    async fn repeat(&mut self, index: usize) {
        if let Some(last) = self.plans[index].last.clone() {
            let answer = self.send(index, last).await;
            answer.expect("the last batch is answered again");
        }
    }

    async fn write_out_of_turn(&mut self, index: usize) {
        let Plan { lease, partition, number, .. } = &self.plans[index];
        let (partition, current, expected) = (*partition, lease.epoch, *number);
        let changes = self.plans[index].stray(&mut self.dice, self.now);
        let older = Epoch::new(current.get() - 1).expect("below one that is");
        let gap = BatchNo::new(expected.get() + 1);
        let other = if self.dice.below(2) == 0 { (older, expected) } else { (current, gap) };
        let (epoch, number) = other;
        let batch = Batch::new(number, changes);
        let answer = self.store().apply(partition, epoch, batch).await;
        match answer {
            Err(StoreError::Fenced { .. }) if epoch == older => {}
            Err(StoreError::Gap { .. }) if number == gap => {}
            other => unreachable!("{epoch} {number:?} of {partition} was answered {other:?}"),
        }
    }

    /// Somebody takes, renews or gives back a seat, be it theirs or not.
    async fn change_lease(&mut self) {
        let index = self.dice.index(self.plans.len() + 1);
        let plan = self.plans.get(index);
        let seat = plan.map_or(Seat::Leader, |plan| Seat::Partition(plan.partition));
        let name = ["a:1", "b:1"][self.dice.index(2)];
        let held = self.least.holder(seat).await.expect("anybody may ask");
        match (self.dice.below(3), held) {
            // Whoever gave a seat back does not renew it.
            (0, Some(lease)) if lease.until > Timestamp::EPOCH => self.renew(&lease).await,
            (1, Some(lease)) => {
                for answer in [
                    self.store().release(&lease).await,
                    self.least.release(&lease).await,
                    self.most.release(&lease).await,
                ] {
                    answer.expect("a lease may be given back");
                }
            }
            _ => {
                let lease = self.acquire(seat, name).await;
                if let (Some(lease), Some(plan)) = (lease, self.plans.get_mut(index)) {
                    plan.begin_epoch(lease);
                }
            }
        }
    }

    async fn renew(&self, lease: &Lease) {
        let (ttl, now) = (TTL, self.now);
        let ours = self.store().renew(lease, ttl, now).await;
        let ours = ours.expect("its epoch is the seat's");
        for memory in [&self.least, &self.most] {
            let theirs = memory.renew(lease, ttl, now).await;
            assert_eq!(ours, theirs.expect("its epoch is the seat's"));
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
        let age = |dice: &mut Dice| Duration::from_secs(dice.below(1200));
        let retention = Retention {
            history_age: age(&mut self.dice),
            history_bytes: u64::MAX,
            dead_age: age(&mut self.dice),
        };
        let Plan { lease, partition, .. } = &self.plans[index];
        let ours = self.store().sweep(*partition, lease.epoch, retention, self.now).await;
        let _: Swept = ours.expect("the owner may sweep");
        let theirs = self.least.sweep(*partition, lease.epoch, retention, self.now).await;
        let _: Swept = theirs.expect("the owner may sweep");
        self.plans[index].forget_older(retention.dead_age, self.now);
    }

    async fn reopen(&mut self) {
        let store = self.store.take().expect("open between steps");
        if self.dice.below(2) == 0 {
            self.subject.close(store).await;
        } else {
            self.subject.crash(store, self.dice.roll()).await;
        }
        self.store = Some(self.subject.open().await);
        self.assert_same().await;
    }

    /// The process ends while a batch is on its way. All of it is there afterwards or nothing, and the owner,
    /// who does not know, sends it again.
    async fn crash_under_way(&mut self, index: usize) {
        let batch = self.plans[index].batch(&mut self.dice, self.now);
        let polls = self.dice.below(4);
        let answered = {
            let answer = pin!(self.send(index, batch.clone()));
            poll_some(answer, polls).await
        };
        let store = self.store.take().expect("open between steps");
        self.subject.crash(store, self.dice.roll()).await;
        self.store = Some(self.subject.open().await);
        let before = self.compare().await;
        self.remember(index, batch.clone()).await;
        let after = self.compare().await;
        match (answered, before, after) {
            (Some(answer), _, after) => {
                answer.expect("the owner's next batch is made");
                assert_eq!(after, Ok(()), "what was answered is there");
            }
            (None, Err(before), Err(after)) => {
                unreachable!(
                    "half a batch is there: not as before ({before}), nor as after ({after})"
                )
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
        let ways = view::Ways::new(&mut self.dice, self.now);
        for plan in &self.plans {
            let ours = view::read(store, plan, &ways).await;
            let least = view::read(&self.least, plan, &ways).await;
            let most = view::read(&self.most, plan, &ways).await;
            let partition: PartitionId = plan.partition;
            view::compare(&ours, &least, &most)
                .map_err(|difference| format!("{partition}: {difference}"))?;
        }
        let ours = store.holder(Seat::Leader).await;
        let theirs = self.least.holder(Seat::Leader).await;
        let [ours, theirs] = [ours, theirs].map(|lease| lease.expect("anybody may ask"));
        view::alike("the leader", &ours.map(view::standing), &theirs.map(view::standing))
    }
}

fn lease_or_held(answer: Result<Lease, StoreError>) -> Option<Lease> {
    match answer {
        Ok(lease) => Some(lease),
        Err(StoreError::Held { .. }) => None,
        Err(other) => unreachable!("a seat is taken or held, not {other}"),
    }
}

/// Polls a future a few times; its output if it came to one. The rest of the runtime has its turn in between.
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
