//! The shell around a member: a real runtime, and time that the runtime itself moves on when nobody has anything to do.

#![expect(clippy::disallowed_methods, reason = "the runtime's own time stands for the machine's")]

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use punctual_cluster::{Directive, MemberConfig, MemberHandle, spawn};
use punctual_core::{
    Assignment, BrokerId, Clock, Epoch, Heartbeat, Lease, PartitionId, Partitions, Seat, Timestamp,
};
use punctual_store::{LeaseStore, Members, MembershipStore, MemoryStore, StoreError};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};

const LEASE: Duration = Duration::from_secs(5);
const PARTITIONS: u16 = 8;

struct RuntimeClock(Instant);

impl RuntimeClock {
    fn start() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000).after(self.0.elapsed())
    }

    fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }
}

/// A store with a clock of its own, which goes as ours does.
fn store(clock: &Arc<RuntimeClock>) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new(terms("").partitions));
    let (told, clock) = (Arc::downgrade(&store), Arc::clone(clock));
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        while let Some(store) = told.upgrade() {
            store.set_time(clock.now()).expect("the store is whole");
            drop(store);
            ticks.tick().await;
        }
    });
    store
}

fn terms(name: &str) -> MemberConfig {
    MemberConfig {
        me: BrokerId::new(name),
        partitions: Partitions::new(PARTITIONS).expect("a few"),
        lease: LEASE,
        skew_max: Duration::from_millis(250),
    }
}

/// The next order that is not about time, or about who is there.
async fn next(orders: &mut Receiver<Directive>) -> Directive {
    loop {
        let order = timeout(LEASE * 3, orders.recv()).await.expect("in time").expect("goes on");
        if !matches!(order, Directive::Extend { .. } | Directive::Publish(_)) {
            return order;
        }
    }
}

/// The owners of a broker that has got so many.
async fn started(orders: &mut Receiver<Directive>, count: usize) -> BTreeMap<PartitionId, Epoch> {
    let mut owners = BTreeMap::new();
    while owners.len() < count {
        match next(orders).await {
            Directive::Start { partition, epoch, .. } => owners.insert(partition, epoch),
            order => unreachable!("is not there yet: {order:?}"),
        };
    }
    owners
}

#[tokio::test(start_paused = true)]
async fn two_share_and_one_leaves_all_to_the_other() {
    let clock = RuntimeClock::start();
    let store = store(&clock);
    let run = |name| spawn(terms(name), Arc::clone(&store), Arc::clone(&clock));
    let (a, mut of_a): (MemberHandle, _) = run("a:1");
    let (b, mut of_b) = run("b:1");
    let had = started(&mut of_a, 4).await;
    let mut has = started(&mut of_b, 4).await;
    a.leave();
    loop {
        match next(&mut of_a).await {
            Directive::HandOver { partition, epoch, successor } => {
                assert_eq!(successor, Some(BrokerId::new("b:1")));
                a.quiet(partition, epoch);
            }
            Directive::Released { partition, epoch, .. } => {
                assert_eq!(had[&partition], epoch);
                b.offered(partition);
                a.handed_over(partition, epoch);
            }
            Directive::Left => break,
            order => unreachable!("is only to leave: {order:?}"),
        }
    }
    assert_eq!(of_a.recv().await, None, "nothing comes after it");
    for (partition, epoch) in started(&mut of_b, 4).await {
        assert!(had[&partition] < epoch);
        has.insert(partition, epoch);
    }
    assert_eq!(has.len(), usize::from(PARTITIONS));
    let holder = store.holder(Seat::Partition(PartitionId::FIRST)).await.unwrap().unwrap();
    assert_eq!(holder.broker, BrokerId::new("b:1"));
}

/// A store that is reached and never answers.
struct Silent;

impl LeaseStore for Silent {
    async fn acquire(
        &self,
        _: Seat,
        _: &BrokerId,
        _: Duration,
        _: Timestamp,
    ) -> Result<Lease, StoreError> {
        pending().await
    }

    async fn renew(&self, _: &Lease, _: Duration, _: Timestamp) -> Result<Lease, StoreError> {
        pending().await
    }

    async fn release(&self, _: &Lease) -> Result<(), StoreError> {
        pending().await
    }

    async fn holder(&self, _: Seat) -> Result<Option<Lease>, StoreError> {
        pending().await
    }
}

impl MembershipStore for Silent {
    async fn heartbeat(&self, _: &Heartbeat, _: Duration) -> Result<Members, StoreError> {
        pending().await
    }

    async fn leave(&self, _: &BrokerId) -> Result<(), StoreError> {
        pending().await
    }

    async fn propose(&self, _: &Lease, _: &Assignment) -> Result<(), StoreError> {
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_keeps_nobody_from_leaving() {
    let clock = RuntimeClock::start();
    let (a, mut of_a) = spawn(terms("a:1"), Arc::new(Silent), Arc::clone(&clock));
    assert!(timeout(LEASE * 2, of_a.recv()).await.is_err(), "there is nothing to be done");
    let asked_at = clock.now();
    a.leave();
    assert_eq!(next(&mut of_a).await, Directive::Left);
    assert!(clock.now().since(asked_at) <= LEASE * 2);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_gone_ends_its_member() {
    let clock = RuntimeClock::start();
    let store = store(&clock);
    let (_a, of_a) = spawn(terms("a:1"), Arc::clone(&store), clock);
    drop(of_a);
    // Time passes only while all else waits.
    tokio::time::advance(LEASE * 10).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(Arc::strong_count(&store), 1, "nobody asks the store any more");
}
