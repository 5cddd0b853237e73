//! Brokers over one Redis, in real time: they share, one falls silent, the others take over, and one leaves.

#![expect(clippy::disallowed_methods, reason = "leases in Redis go by the machine's time")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::subject::{RedisSubject, partitions};
use punctual_cluster::{Directive, MemberConfig, MemberHandle, spawn};
use punctual_core::{BrokerId, Clock, Epoch, PartitionId, Timestamp};
use punctual_store::conformance::Subject;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

const LEASE: Duration = Duration::from_secs(2);

struct MachineClock {
    began: Timestamp,
    at: Instant,
}

impl MachineClock {
    fn start() -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let began = Timestamp::EPOCH.after(since);
        Arc::new(Self { began, at: Instant::now() })
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Timestamp {
        let millis = u64::try_from(self.at.elapsed().as_millis()).expect("short");
        Timestamp::from_millis(self.began.as_millis() + millis)
    }

    fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }
}

struct Broker {
    handle: MemberHandle,
    orders: Receiver<Directive>,
    owners: BTreeMap<PartitionId, Epoch>,
}

impl Broker {
    /// A broker with a connection of its own.
    async fn start(subject: &RedisSubject, name: &str, clock: &Arc<MachineClock>) -> Self {
        let terms = MemberConfig {
            me: BrokerId::new(name),
            partitions: partitions(),
            lease: LEASE,
            // The machine that tests run on may be busy.
            skew_max: Duration::from_secs(5),
        };
        let store = Arc::new(subject.open().await);
        let (handle, orders) = spawn(terms, store, Arc::clone(clock));
        Self { handle, orders, owners: BTreeMap::new() }
    }

    /// Obeys until it has so many owners.
    async fn own(&mut self, count: usize) {
        while self.owners.len() != count {
            let order = timeout(LEASE * 5, self.orders.recv()).await.expect("in time");
            self.obey(order.expect("goes on"));
        }
    }

    fn obey(&mut self, order: Directive) {
        match order {
            Directive::Start { partition, epoch, .. } => {
                self.owners.insert(partition, epoch);
            }
            Directive::Drop { partition, .. } => {
                self.owners.remove(&partition);
            }
            Directive::HandOver { partition, epoch, .. } => {
                self.owners.remove(&partition);
                self.handle.quiet(partition, epoch);
            }
            Directive::Released { partition, epoch, .. } => {
                self.handle.handed_over(partition, epoch)
            }
            _ => {}
        }
    }
}

async fn share_fall_silent_and_leave(subject: RedisSubject) {
    let clock = MachineClock::start();
    let mut a = Broker::start(&subject, "a:1", &clock).await;
    let mut b = Broker::start(&subject, "b:1", &clock).await;
    a.own(2).await;
    b.own(2).await;
    let had = a.owners.clone();
    // Nobody takes its orders any more, so it asks for nothing more.
    drop(a);
    b.own(4).await;
    for (partition, epoch) in had {
        assert!(b.owners[&partition] > epoch, "{partition}");
    }
    let mut c = Broker::start(&subject, "c:1", &clock).await;
    let (b_has_two, c_has_two) = (b.own(2), c.own(2));
    tokio::join!(b_has_two, c_has_two);
    b.handle.leave();
    while let Some(order) = b.orders.recv().await {
        b.obey(order);
    }
    assert_eq!(b.owners.len(), 0);
    c.own(4).await;
}

#[test]
fn brokers_share_a_redis() {
    punctual_store::conformance::run(share_fall_silent_and_leave(RedisSubject::single()));
}

#[test]
fn brokers_share_a_redis_cluster() {
    punctual_store::conformance::run(share_fall_silent_and_leave(RedisSubject::cluster()));
}
