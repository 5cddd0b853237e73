//! A member over a store on a real runtime, whose time advances whenever all tasks wait.

#![expect(clippy::disallowed_methods, reason = "the runtime's clock replaces the machine's")]

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use punctual_cluster::{Directive, MemberConfig, MemberEvent, MemberHandle, spawn};
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

/// Creates a store whose clock follows the runtime's.
fn store(clock: &Arc<RuntimeClock>) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new(config("").partitions));
    let (notified, clock) = (Arc::downgrade(&store), Arc::clone(clock));
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        while let Some(store) = notified.upgrade() {
            store.set_time(clock.now()).expect("the store works");
            drop(store);
            ticks.tick().await;
        }
    });
    store
}

fn config(name: &str) -> MemberConfig {
    MemberConfig {
        me: BrokerId::new(name),
        partitions: Partitions::new(PARTITIONS).expect("a few"),
        lease: LEASE,
        skew_max: Duration::from_millis(250),
    }
}

/// Returns the next directive other than `Extend` and `Publish`.
async fn next(directives: &mut Receiver<Directive>) -> Directive {
    loop {
        let directive =
            timeout(LEASE * 3, directives.recv()).await.expect("in time").expect("not closed");
        if !matches!(directive, Directive::Extend { .. } | Directive::Publish(_)) {
            return directive;
        }
    }
}

/// Waits until a broker has started `count` owners.
async fn started(
    directives: &mut Receiver<Directive>,
    count: usize,
) -> BTreeMap<PartitionId, Epoch> {
    let mut owners = BTreeMap::new();
    while owners.len() < count {
        match next(directives).await {
            Directive::Start { partition, epoch, .. } => owners.insert(partition, epoch),
            directive => unreachable!("not expected yet: {directive:?}"),
        };
    }
    owners
}

#[tokio::test(start_paused = true)]
async fn two_brokers_share_and_one_hands_all_over_to_the_other() {
    let clock = RuntimeClock::start();
    let store = store(&clock);
    let run = |name| spawn(config(name), Arc::clone(&store), Arc::clone(&clock));
    let (a, mut of_a): (MemberHandle, _) = run("a:1");
    let (b, mut of_b) = run("b:1");
    let had = started(&mut of_a, 4).await;
    let mut has = started(&mut of_b, 4).await;
    a.report(MemberEvent::Leave);
    loop {
        match next(&mut of_a).await {
            Directive::HandOver { partition, epoch, successor } => {
                assert_eq!(successor, Some(BrokerId::new("b:1")));
                a.report(MemberEvent::Quiet { partition, epoch });
            }
            Directive::Released { partition, epoch, .. } => {
                assert_eq!(had[&partition], epoch);
                b.report(MemberEvent::Offered { partition });
                a.report(MemberEvent::HandedOver { partition, epoch });
            }
            Directive::Left => break,
            directive => unreachable!("the broker only leaves: {directive:?}"),
        }
    }
    assert_eq!(of_a.recv().await, None, "nothing follows");
    for (partition, epoch) in started(&mut of_b, 4).await {
        assert!(had[&partition] < epoch);
        has.insert(partition, epoch);
    }
    assert_eq!(has.len(), usize::from(PARTITIONS));
    let holder = store.holder(Seat::Partition(PartitionId::FIRST)).await.unwrap().unwrap();
    assert_eq!(holder.broker, BrokerId::new("b:1"));
}

/// A store that never answers.
struct SilentStore;

impl LeaseStore for SilentStore {
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

impl MembershipStore for SilentStore {
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
async fn a_member_can_leave_even_if_the_store_never_answers() {
    let clock = RuntimeClock::start();
    let (a, mut of_a) = spawn(config("a:1"), Arc::new(SilentStore), Arc::clone(&clock));
    assert!(timeout(LEASE * 2, of_a.recv()).await.is_err(), "there is no directive");
    let asked_at = clock.now();
    a.report(MemberEvent::Leave);
    assert_eq!(next(&mut of_a).await, Directive::Left);
    assert!(clock.now().since(asked_at) <= LEASE * 2);
}

#[tokio::test(start_paused = true)]
async fn a_member_ends_when_its_broker_drops_the_directives() {
    let clock = RuntimeClock::start();
    let store = store(&clock);
    let (_a, of_a) = spawn(config("a:1"), Arc::clone(&store), clock);
    drop(of_a);
    // Time advances only while all other tasks wait.
    tokio::time::advance(LEASE * 10).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(Arc::strong_count(&store), 1, "no request uses the store any more");
}
