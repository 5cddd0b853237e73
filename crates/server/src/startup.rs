//! Starts, runs and stops a broker.
//!
//! [`run`] takes the partitions, or joins the cluster, and then listens. To stop, it hands its
//! partitions over, accepts no new work, waits for the outcomes of deliveries in flight, gives up
//! the rest, and closes the listener, all within the grace time. When it returns, nothing is in
//! flight and the store is no longer in use.
//!
//! `broker` has the state that the API shares, `api` the routes, `sole` the owners of a broker that
//! shares its store with no other, and `membership` the broker's part in a cluster.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use punctual_connectors::SinkCourier;
use punctual_core::{Clock, Partitions, Timestamp};
use punctual_engine::{Budget, OrphanReports, OwnerConfig};
use punctual_store::StoreError;
use punctual_store_any::SharedStore;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::actions::Actions;
use crate::alarms::evaluate::AlarmEvaluator;
use crate::api::live_feeds::LiveFeeds;
use crate::api::operation_list::Operations;
use crate::api::{self, limits::ApiLimits};
use crate::auth::ApiTokens;
use crate::broker::{Broker, ClusterParts};
use crate::browser::BrowserPolicy;
use crate::clock::SystemClock;
use crate::config::{Config, Sharing, read_secret};
use crate::courier::{
    Couriers, Dialler, GrpcCourier, Guard, HttpCourier, Hub, MailCourier, Signer,
};
use crate::error::BrokerError;
use crate::listen::{self, Callers, ConnectionStage};
use crate::membership::{self, BarredAddresses, Membership};
use crate::owner_runner::OwnerRunner;
use crate::peer::{Peers, Secret, Transport};
use crate::routing::Owners;
use crate::sole::{self, SoleOwners};
use crate::sources::{RunningSources, observer};
use crate::store::Store;
use crate::telemetry::Telemetry;
use crate::virtual_clock::VirtualClock;

/// How far the clock of a broker may differ from the other brokers' clocks.
const SKEW_MAX: Duration = Duration::from_millis(250);
/// How long a stopping broker waits for what its sources have taken.
const SOURCES_END_MAX: Duration = Duration::from_secs(2);
/// How often a stopping broker checks whether its couriers are idle.
const IDLE_EVERY: Duration = Duration::from_millis(10);

/// How far ahead an owner loads that follows a virtual clock: a year without fires costs a dozen
/// pages. Memory stays bounded by the budget.
const LOAD_AHEAD_VIRTUAL: Duration = Duration::from_secs(30 * 24 * 3600);

/// Runs a broker until `stop` completes or a part of the broker fails.
pub async fn run(
    listener: TcpListener,
    config: Config,
    store: Arc<Store>,
    partitions: Partitions,
    stop: impl Future<Output = ()>,
) -> Result<(), BrokerError> {
    run_on(listener, config, store, partitions, SystemClock::start(), stop).await
}

/// Runs a broker on a virtual clock, which starts at `now` and is frozen until a caller moves it.
/// The broker does not share the store with others, whatever its kind.
///
/// Only for tests: every caller can move the clock, and an advance fires everything that becomes
/// due.
pub async fn run_virtual(
    listener: TcpListener,
    config: Config,
    store: Arc<Store>,
    partitions: Partitions,
    now: Option<Timestamp>,
    stop: impl Future<Output = ()>,
) -> Result<(), BrokerError> {
    let config = Config { sharing: None, ..config };
    let now = now.unwrap_or_else(|| SystemClock::start().now());
    let clock = SystemClock::start_virtual(now);
    run_on(listener, config, store, partitions, clock, stop).await
}

/// Runs a broker with this clock.
async fn run_on(
    listener: TcpListener,
    config: Config,
    store: Arc<Store>,
    partitions: Partitions,
    clock: SystemClock,
    stop: impl Future<Output = ()>,
) -> Result<(), BrokerError> {
    config.check()?;
    let (alive, mut dropped) = mpsc::channel(1);
    let (drain, draining) = watch::channel(false);
    let address = listener.local_addr()?;
    let parts = compose(address, &config, store, partitions, clock, draining, alive).await?;
    let BrokerParts { broker, couriers, mut mode } = parts;
    let (hub, telemetry) = (Arc::clone(&broker.hub), broker.telemetry.clone());
    let mut sources = RunningSources::start(&config.connectors, &broker)?;
    tracing::info!(listen = %address, partitions = partitions.count(), "ready");

    let evaluator = Arc::new(AlarmEvaluator::default());
    let is_virtual = broker.clock.is_virtual();
    let virtual_clock = is_virtual.then(|| VirtualClock::new(Arc::clone(&evaluator)));
    let routes = api::routes(&broker, virtual_clock);
    let (stage, stages) = watch::channel(ConnectionStage::Serve);
    let mut serving = Box::pin(async {
        let tls = config.tls.as_ref();
        let callers = match config.tokens.is_empty() {
            true => Callers::Trusted,
            false => Callers::WithToken,
        };
        let accepting = listen::accept(&listener, tls, routes, callers, stages, &telemetry);
        let renewing = async {
            if let Some(tls) = tls {
                tls.watch(&telemetry).await;
            }
        };
        let alarms = evaluator.watch(&broker);
        let tokens = broker.tokens.watch_files(read_secret);
        let clock = broker.clock.watch(&telemetry);
        tokio::join!(accepting, hub.watch(), clock, renewing, tokens, alarms);
    });
    let failed = tokio::select! {
        () = stop => None,
        error = mode.failed() => Some(error),
        () = &mut serving => None,
    };
    let budget = GraceBudget::of(config.grace, config.sharing.is_some());
    // The broker keeps serving while it hands over, so that its partitions are never unavailable.
    let leaving = timeout(budget.leave, mode.leave());
    tokio::select! {
        _ = leaving => {}
        () = &mut serving => {}
    }
    // What sources have taken is confirmed while owners still accept commands.
    let finished = timeout(budget.close.min(SOURCES_END_MAX), sources.finish());
    tokio::select! {
        _ = finished => {}
        () = &mut serving => {}
    }
    tracing::info!("broker draining");
    drain.send_replace(true);
    drop(sources);
    hub.close();
    couriers.sinks.close();
    let mut settling = Box::pin(async {
        tokio::select! {
            () = mode.finish(&couriers) => {}
            // Workers still settle, on old and new connections, and leases still expire.
            () = &mut serving => {}
        }
    });
    // A broken store accepts no outcome, so there is nothing to wait for.
    let settle_max = if failed.is_none() { budget.settle } else { Duration::ZERO };
    if timeout(settle_max, &mut settling).await.is_err() {
        let (leases, webhooks) = (hub.give_up(), couriers.http.give_up());
        let (mails, sinks) = (couriers.mail.give_up(), couriers.sinks.give_up());
        if leases + webhooks + mails + sinks > 0 {
            tracing::warn!(
                leases,
                webhooks,
                mails,
                sinks,
                "in-flight deliveries abandoned; they will be sent again"
            );
        }
        let _ = timeout(budget.close, &mut settling).await;
    }
    drop(settling);
    drop(serving);
    drop(listener);
    stage.send_replace(ConnectionStage::Finish);
    let _ = timeout(budget.close, stage.closed()).await;
    stage.send_replace(ConnectionStage::End);
    drop((broker, couriers, mode));
    // Nothing is ever sent: `recv` returns when the last sender is dropped.
    let _ = timeout(budget.close, dropped.recv()).await;
    failed.map_or(Ok(()), Err)
}

/// A broker that is ready to serve.
struct BrokerParts {
    broker: Arc<Broker>,
    couriers: Arc<Couriers>,
    mode: RunMode,
}

/// How a broker gets its partitions and gives them up.
enum RunMode {
    /// It owns all partitions from start to end.
    Sole(SoleOwners),
    /// It shares the partitions with other brokers.
    Member(Arc<Membership>, JoinSet<()>),
}

impl RunMode {
    /// Completes when a part of the broker fails.
    async fn failed(&mut self) -> BrokerError {
        match self {
            Self::Sole(owners) => owners.failed().await,
            // An owner that fails only loses its partition to another broker.
            Self::Member(_, parts) => {
                parts.join_next().await;
                StoreError::Broken("a part of the broker ended unexpectedly".to_owned()).into()
            }
        }
    }

    /// Hands the partitions over to other brokers, if there are any.
    async fn leave(&mut self) {
        if let Self::Member(membership, _) = self {
            tracing::info!("broker leaving");
            membership.leave().await;
        }
    }

    /// Gives up all partitions and waits for deliveries in flight.
    async fn finish(&mut self, couriers: &Couriers) {
        match self {
            Self::Sole(owners) => owners.drain().await,
            Self::Member(membership, parts) => {
                membership.leave().await;
                // Outcomes that arrive now are forwarded to the new owners.
                let mut ticks = interval(IDLE_EVERY);
                while !couriers.is_idle() {
                    ticks.tick().await;
                }
                // Wait for that too: an owner that does not get an outcome sends again.
                while parts.join_next().await.is_some() {}
            }
        }
    }
}

/// Creates all parts of a broker.
async fn compose(
    address: SocketAddr,
    config: &Config,
    store: Arc<Store>,
    partitions: Partitions,
    clock: SystemClock,
    draining: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
) -> Result<BrokerParts, BrokerError> {
    let load_ahead = match clock.is_virtual() {
        true => LOAD_AHEAD_VIRTUAL,
        false => OwnerConfig::LOAD_AHEAD,
    };
    let clock = Arc::new(clock);
    let telemetry = Telemetry::new();
    let guard =
        Guard::new(config.reach(), address).with_connections(config.connectors.connections.clone());
    let signer = Signer::new(config.signing_secrets.clone());
    let hub = Hub::new(Arc::clone(&clock), telemetry.clone());
    let dialler = Dialler::new(guard.clone(), &config.webhook_authorities);
    let connections_max = config.webhook_connections_max;
    let http = HttpCourier::new(
        dialler,
        connections_max,
        signer,
        config.answer_bytes,
        Arc::clone(&clock),
        telemetry.clone(),
    );
    let grpc = Arc::new(GrpcCourier::beside(&http));
    let http = Arc::new(http);
    let mail = MailCourier::new(
        config.mail_server.clone(),
        config.answer_bytes,
        Arc::clone(&clock),
        telemetry.clone(),
    );
    let sinks = SinkCourier::start(
        config.connectors.connections.clone(),
        config.answer_bytes,
        Arc::clone(&clock) as Arc<dyn Clock>,
        observer(&telemetry, &clock),
    );
    let couriers = Arc::new(Couriers {
        http,
        grpc,
        hub: Arc::clone(&hub),
        mail: Arc::new(mail),
        sinks: Arc::clone(&sinks),
    });
    store.tell(telemetry.clone(), Arc::clone(&clock));
    let budget = Budget::shared_by(partitions.count());
    let owner_config = OwnerConfig {
        retention: config.retention,
        budget,
        retains_batches: false,
        render_record: crate::fire_form::record_document,
        load_ahead,
    };
    let (owners, cluster, mode) = match (&config.sharing, store.shared()) {
        (Some(sharing), Some(shared)) => {
            let join = ClusterJoin { address, config, sharing, shared, partitions };
            let parts = (Arc::clone(&hub), Arc::clone(&store), Arc::clone(&couriers));
            join.run(parts, &clock, &telemetry, &guard, owner_config).await?
        }
        _ => {
            if let Some(opened) = sole::last_opened(partitions, &store).await? {
                clock.saw_store_time(opened);
            }
            let owners = Arc::new(Owners::sole(partitions));
            let runner = OwnerRunner {
                owners: Arc::clone(&owners),
                hub: Arc::clone(&hub),
                store: Arc::clone(&store),
                couriers: Arc::clone(&couriers),
                clock: Arc::clone(&clock),
                telemetry: telemetry.clone(),
                config: owner_config,
                orphans: Mutex::new(OrphanReports::none()),
            };
            let sole = SoleOwners::start(runner, draining.clone()).await?;
            (owners, None, RunMode::Sole(sole))
        }
    };
    let actions = Arc::new(Actions::new(clock.now()));
    let broker = Arc::new(Broker {
        owners,
        store,
        hub,
        clock,
        tokens: ApiTokens::new(config.tokens.clone()),
        limits: Arc::new(ApiLimits::new()),
        operations: Operations::default(),
        actions,
        live: LiveFeeds::default(),
        browser_policy: BrowserPolicy::of(config),
        guard,
        tls: config.tls.clone(),
        sends_mail: config.mail_server.is_some(),
        sinks,
        sources: OnceLock::new(),
        telemetry,
        address,
        cluster,
        draining,
        _alive: alive,
    });
    Ok(BrokerParts { broker, couriers, mode })
}

/// What a broker needs to join a cluster.
struct ClusterJoin<'a> {
    address: SocketAddr,
    config: &'a Config,
    sharing: &'a Sharing,
    shared: SharedStore,
    partitions: Partitions,
}

type Joined = (Arc<Owners>, Option<ClusterParts>, RunMode);

impl ClusterJoin<'_> {
    /// Starts the member. Its directives bring the partitions later.
    async fn run(
        self,
        (hub, store, couriers): (Arc<Hub>, Arc<Store>, Arc<Couriers>),
        clock: &Arc<SystemClock>,
        telemetry: &Telemetry,
        guard: &Guard,
        owner_config: OwnerConfig,
    ) -> Result<Joined, BrokerError> {
        let Self { address, config, sharing, shared, partitions } = self;
        let me = sharing.broker(address)?;
        let mut addresses = BarredAddresses::new(guard.clone(), shared.clone());
        addresses.refresh().await;
        let secret = Secret::new(&shared.secret().await?).map_err(|_| {
            StoreError::Broken("the cluster secret in the store is invalid".to_owned())
        })?;
        let transport = match &config.tls {
            Some(_) => Transport::Tls { authority: sharing.authority.clone() },
            None => Transport::Plain,
        };
        let peers = Peers::new(me.clone(), secret.clone(), transport);
        let peers = Arc::new(peers.map_err(std::io::Error::other)?);
        let owners = Owners::shared(partitions, me.clone(), Arc::clone(&peers), telemetry.clone());
        let owners = Arc::new(owners);
        let (lease, skew_max) = (sharing.lease, SKEW_MAX);
        let member = punctual_cluster::MemberConfig { me: me.clone(), partitions, lease, skew_max };
        let (member, directives) =
            punctual_cluster::spawn(member, Arc::new(shared), Arc::clone(clock));
        let (orphans, received) = mpsc::unbounded_channel();
        let forwarding =
            membership::forward_orphan_reports(Arc::clone(&owners), Arc::clone(&store), received);
        let runner = OwnerRunner {
            owners: Arc::clone(&owners),
            hub,
            store,
            couriers,
            clock: Arc::clone(clock),
            telemetry: telemetry.clone(),
            // After a failover, the store may lack batches that it had acknowledged.
            config: OwnerConfig { retains_batches: true, ..owner_config },
            orphans: Mutex::new(OrphanReports::to(orphans)),
        };
        let (membership, events) = Membership::new(me, member, runner, Arc::clone(&peers), lease);
        let mut parts = JoinSet::new();
        parts.spawn(forwarding);
        let running = Arc::clone(&membership);
        parts.spawn(async move { running.run(directives, events).await });
        parts.spawn(addresses.watch(Arc::clone(&membership)));
        let mode = RunMode::Member(Arc::clone(&membership), parts);
        Ok((owners, Some(ClusterParts { membership, peers, secret }), mode))
    }
}

/// How the grace time is divided.
#[derive(Debug, Clone, Copy)]
struct GraceBudget {
    /// For handing over, in a cluster.
    leave: Duration,
    /// For deliveries in flight.
    settle: Duration,
    /// For each later step: writing what was given up, closing connections, releasing the store,
    /// closing the store.
    close: Duration,
}

impl GraceBudget {
    fn of(grace: Duration, is_shared: bool) -> Self {
        let close = grace / 10;
        let leave = if is_shared { 3 * close } else { Duration::ZERO };
        Self { leave, settle: grace - 4 * close - leave, close }
    }
}

#[cfg(test)]
mod mail_tests;

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use axum::extract::State;
    use punctual_core::{
        Clock as _, Due, Namespace, NewTask, PartitionId, Queue, Schedule, Target,
    };
    use punctual_engine::{Condition, EngineError, ScheduleCommand};
    use punctual_store::{MemoryStore, Retention};
    use punctual_store_any::AnyStore;

    use super::*;
    use crate::api::http::health::readyz;
    use crate::courier::queue::WorkerLabel;

    /// How often a condition is checked.
    const CHECK_EVERY: Duration = Duration::from_millis(5);

    pub(super) fn config() -> Config {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            insecure: false,
            tokens: Vec::new(),
            signing_secrets: Vec::new(),
            allow_private_targets: false,
            webhook_authorities: crate::tls::Authorities::default(),
            webhook_connections_max: 8,
            answer_bytes: 0,
            mail_server: None,
            connectors: punctual_connectors::ConnectorConfig::default(),
            tls: None,
            retention: Retention::default(),
            grace: Duration::from_secs(1),
            sharing: None,
        }
    }

    fn due_now() -> ScheduleCommand {
        let target = Target::Queue(Queue::new("orders").unwrap());
        let schedule = Schedule::Once(Due::In(Duration::ZERO));
        let new_task = NewTask::new(Namespace::new("shop").unwrap(), schedule, target);
        ScheduleCommand {
            new_task: new_task.into(),
            condition: Condition::Always,
            receipt: None,
            start: punctual_engine::StartState::Scheduled,
        }
    }

    async fn is_ready(broker: &Arc<Broker>) -> bool {
        readyz(State(Arc::clone(broker))).await.is_ok()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_partition_whose_owner_panics_gets_a_new_owner_that_fires_its_tasks() {
        let store = Arc::new(Store::new(AnyStore::Memory(MemoryStore::default())));
        let (alive, _dropped) = mpsc::channel(1);
        let (_drain, draining) = watch::channel(false);
        let config = config();
        let parts = compose(
            config.listen,
            &config,
            Arc::clone(&store),
            Partitions::ONE,
            SystemClock::start(),
            draining,
            alive,
        )
        .await
        .unwrap();
        let broker = &parts.broker;
        let first = broker.owners.epoch(PartitionId::FIRST).unwrap();
        let scheduled = broker.owners.any().schedule(due_now()).await.unwrap();
        assert!(is_ready(broker).await);

        store.panics.store(true, Ordering::SeqCst);
        let given_to_the_store = broker.owners.any().schedule(due_now()).await.unwrap_err();
        let may_be_written = [EngineError::Lost, EngineError::Stopped];
        assert!(may_be_written.contains(&given_to_the_store), "{given_to_the_store}");
        let mut ticks = interval(CHECK_EVERY);
        while is_ready(broker).await {
            ticks.tick().await;
        }
        while broker.owners.any().schedule(due_now()).await != Err(EngineError::Stopped) {
            ticks.tick().await;
        }

        store.panics.store(false, Ordering::SeqCst);
        let shop = Namespace::new("shop").unwrap();
        let (orders, label) = (Queue::new("orders").unwrap(), WorkerLabel::default());
        let mut worker = broker.hub.join(&shop, &[orders], 1, label);
        let leased = worker.next().await.unwrap();
        assert_eq!(leased[0].delivery.fire_id, scheduled.task().fire().id);
        assert!(broker.owners.epoch(PartitionId::FIRST).unwrap() > first);
        assert!(is_ready(broker).await);
        let page = broker.telemetry.page(None, broker.clock.now());
        assert!(!page.contains("punctual_owner_panics_total 0"), "{page}");
    }
}
