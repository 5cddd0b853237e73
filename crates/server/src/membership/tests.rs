//! A member whose owner panics, over a memory store.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use punctual_cluster::MemberConfig;
use punctual_connectors::{Connections, SinkCourier};
use punctual_core::{
    Assignment, Clock, Due, Heartbeat, Lease, Namespace, NewTask, Partitions, Queue, Schedule,
    Target,
};
use punctual_engine::{Budget, Condition, OrphanReports, OwnerConfig, ScheduleCommand, Scheduled};
use punctual_store::{Members, MembershipStore, MemoryStore, Retention, StoreError};
use punctual_store_any::AnyStore;
use tokio::time::interval;

use super::*;
use crate::clock::SystemClock;
use crate::courier::queue::WorkerLabel;
use crate::courier::{
    Couriers, Dialler, GrpcCourier, Guard, HttpCourier, Hub, MailCourier, Reach, Signer,
};
use crate::peer::{Secret, Transport};
use crate::routing::Owners;
use crate::sources::observer;
use crate::store::Store;
use crate::telemetry::Telemetry;
use crate::tls::Authorities;

/// The shortest lease, so that pauses are short.
const LEASE: Duration = Duration::from_millis(500);
/// How often a condition is checked.
const CHECK_EVERY: Duration = Duration::from_millis(5);

impl MembershipStore for Store {
    async fn heartbeat(&self, heartbeat: &Heartbeat, ttl: Duration) -> Result<Members, StoreError> {
        self.memory().heartbeat(heartbeat, ttl).await
    }

    async fn leave(&self, broker: &BrokerId) -> Result<(), StoreError> {
        self.memory().leave(broker).await
    }

    async fn propose(&self, lease: &Lease, assignment: &Assignment) -> Result<(), StoreError> {
        self.memory().propose(lease, assignment).await
    }
}

/// Starts the only member of a cluster.
fn join(store: &Arc<Store>) -> Arc<Membership> {
    let (me, partitions) = (BrokerId::new("here:1"), Partitions::ONE);
    let (clock, telemetry) = (Arc::new(SystemClock::start()), Telemetry::new());
    let hub = Hub::new(Arc::clone(&clock), telemetry.clone());
    let guard = Guard::new(Reach::Public, SocketAddr::from(([127, 0, 0, 1], 1)));
    let dialler = Dialler::new(guard, &Authorities::default());
    let signer = Signer::new(Vec::new());
    let http = HttpCourier::new(dialler, 8, signer, 0, Arc::clone(&clock), telemetry.clone());
    let mail = Arc::new(MailCourier::new(None, 0, Arc::clone(&clock), telemetry.clone()));
    let sinks = SinkCourier::start(
        Connections::default(),
        0,
        Arc::clone(&clock) as Arc<dyn Clock>,
        observer(&telemetry, &clock),
    );
    let grpc = Arc::new(GrpcCourier::beside(&http));
    let couriers = Couriers { http: Arc::new(http), grpc, hub: Arc::clone(&hub), mail, sinks };
    let couriers = Arc::new(couriers);
    let secret = Secret::new("of-the-cluster").unwrap();
    let peers = Arc::new(Peers::new(me.clone(), secret, Transport::Plain).unwrap());
    let owners = Owners::shared(partitions, me.clone(), Arc::clone(&peers), telemetry.clone());
    let member =
        MemberConfig { me: me.clone(), partitions, lease: LEASE, skew_max: Duration::from_secs(1) };
    let (member, directives) =
        punctual_cluster::spawn(member, Arc::clone(store), Arc::clone(&clock));
    let (retention, budget) = (Retention::default(), Budget::shared_by(1));
    let runner = OwnerRunner {
        owners: Arc::new(owners),
        hub,
        store: Arc::clone(store),
        couriers,
        clock,
        telemetry,
        config: OwnerConfig {
            retention,
            budget,
            retains_batches: true,
            render_record: crate::fire_form::record_document,
            load_ahead: OwnerConfig::LOAD_AHEAD,
        },
        orphans: Mutex::new(OrphanReports::none()),
    };
    let (membership, events) = Membership::new(me, member, runner, peers, LEASE);
    let running = Arc::clone(&membership);
    tokio::spawn(async move { running.run(directives, events).await });
    membership
}

async fn schedule(owners: &Arc<Owners>) -> Option<Scheduled> {
    let target = Target::Queue(Queue::new("orders").unwrap());
    let due_now = Schedule::Once(Due::In(Duration::ZERO));
    let new_task = NewTask::new(Namespace::new("shop").unwrap(), due_now, target).into();
    let command = ScheduleCommand {
        new_task,
        condition: Condition::Always,
        receipt: None,
        start: punctual_engine::StartState::Scheduled,
    };
    owners.any().schedule(command).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_takes_a_partition_again_after_its_owner_panicked() {
    let store = Arc::new(Store::new(AnyStore::Memory(MemoryStore::default())));
    let membership = join(&store);
    let OwnerRunner { owners, hub, .. } = &membership.runner;
    let mut ticks = interval(CHECK_EVERY);
    let scheduled = loop {
        match schedule(owners).await {
            Some(scheduled) => break scheduled,
            None => _ = ticks.tick().await,
        }
    };
    let first = owners.epoch(PartitionId::FIRST).unwrap();
    store.panics.store(true, Ordering::SeqCst);
    assert!(schedule(owners).await.is_none());
    while owners.epoch(PartitionId::FIRST).is_none_or(|epoch| epoch == first) {
        ticks.tick().await;
    }
    store.panics.store(false, Ordering::SeqCst);
    let shop = Namespace::new("shop").unwrap();
    let mut worker = hub.join(&shop, &[Queue::new("orders").unwrap()], 1, WorkerLabel::default());
    let leased = worker.next().await.unwrap();
    assert_eq!(leased[0].delivery.fire_id, scheduled.task().fire().id);
}
