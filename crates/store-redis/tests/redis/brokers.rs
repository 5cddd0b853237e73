//! Brokers on one Redis, in real time: they share partitions, one vanishes, the others take over,
//! and one leaves.

#![expect(clippy::disallowed_methods, reason = "Redis measures leases by its machine's clock")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use punctual_cluster::{Directive, MemberConfig, MemberEvent, MemberHandle, spawn};
use punctual_core::{BrokerId, Clock, Epoch, PartitionId, Timestamp};
use punctual_store::conformance::StoreUnderTest;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::subject::{RedisSubject, partitions};

const LEASE: Duration = Duration::from_secs(2);

struct MachineClock {
    began: Timestamp,
    at: Instant,
}

impl MachineClock {
    fn start() -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970");
        let began = Timestamp::EPOCH.after(since);
        Arc::new(Self { began, at: Instant::now() })
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Timestamp {
        let millis = u64::try_from(self.at.elapsed().as_millis()).expect("a short time");
        Timestamp::from_millis(self.began.as_millis() + millis)
    }

    fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }
}

struct LeaseHolder {
    handle: MemberHandle,
    directives: Receiver<Directive>,
    owners: BTreeMap<PartitionId, Epoch>,
}

impl LeaseHolder {
    /// Starts the membership of a broker with a connection of its own.
    async fn start(subject: &RedisSubject, name: &str, clock: &Arc<MachineClock>) -> Self {
        let config = MemberConfig {
            me: BrokerId::new(name),
            partitions: partitions(),
            lease: LEASE,
            // The machine of the tests may be busy.
            skew_max: Duration::from_secs(5),
        };
        let store = Arc::new(subject.open().await);
        let (handle, directives) = spawn(config, store, Arc::clone(clock));
        Self { handle, directives, owners: BTreeMap::new() }
    }

    /// Follows directives until it owns `count` partitions.
    async fn run_until_owning(&mut self, count: usize) {
        while self.owners.len() != count {
            let directive = timeout(LEASE * 5, self.directives.recv()).await.expect("in time");
            self.follow(directive.expect("the membership still runs"));
        }
    }

    fn follow(&mut self, directive: Directive) {
        match directive {
            Directive::Start { partition, epoch, .. } => {
                self.owners.insert(partition, epoch);
            }
            Directive::Drop { partition, .. } => {
                self.owners.remove(&partition);
            }
            Directive::HandOver { partition, epoch, .. } => {
                self.owners.remove(&partition);
                self.handle.report(MemberEvent::Quiet { partition, epoch });
            }
            Directive::Released { partition, epoch, .. } => {
                self.handle.report(MemberEvent::HandedOver { partition, epoch });
            }
            _ => {}
        }
    }
}

async fn brokers_share_vanish_and_leave(subject: RedisSubject) {
    let clock = MachineClock::start();
    let mut a = LeaseHolder::start(&subject, "a:1", &clock).await;
    let mut b = LeaseHolder::start(&subject, "b:1", &clock).await;
    a.run_until_owning(2).await;
    b.run_until_owning(2).await;
    let owned = a.owners.clone();
    // Without a receiver of its directives the membership ends and renews no lease.
    drop(a);
    b.run_until_owning(4).await;
    for (partition, epoch) in owned {
        assert!(b.owners[&partition] > epoch, "{partition}");
    }
    let mut c = LeaseHolder::start(&subject, "c:1", &clock).await;
    let (b_has_two, c_has_two) = (b.run_until_owning(2), c.run_until_owning(2));
    tokio::join!(b_has_two, c_has_two);
    b.handle.report(MemberEvent::Leave);
    while let Some(directive) = b.directives.recv().await {
        b.follow(directive);
    }
    assert_eq!(b.owners.len(), 0);
    c.run_until_owning(4).await;
}

#[test]
fn brokers_share_a_single_redis() {
    punctual_store::conformance::run(brokers_share_vanish_and_leave(RedisSubject::single()));
}

#[test]
fn brokers_share_a_redis_cluster() {
    punctual_store::conformance::run(brokers_share_vanish_and_leave(RedisSubject::cluster()));
}
