//! The broker: all parts put together, and the order in which they start and stop.
//!
//! In: a listener, a store and a signal to stop. Out: when [`run`] returns, nothing is under way any more.
//! Start: take the partitions, then listen. Stop: listen no more, finish what is under way, then return.
//! Invariant: a request is answered by the owner of its partition, after the store.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use punctual_core::{
    BrokerId, Clock, Namespace, PartitionId, Partitions, Seat, TaskKey, Timestamp, partition_of,
};
use punctual_engine::{Budget, EngineError, Gauges, Handle, Terms, spawn, take};
use punctual_store::{LeaseStore as _, StoreError};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::api;
use crate::auth::Tokens;
use crate::clock::SystemClock;
use crate::config::{Config, ConfigError};
use crate::courier::{Couriers, Guard, HttpCourier, Hub, Signer};
use crate::listen;
use crate::store::Store;
use crate::telemetry::Telemetry;

/// The lease of a broker that shares its store with nobody: only its epoch matters.
const SOLE_LEASE: Duration = Duration::from_secs(5);
/// Whoever has the directory of an embedded store is the same broker as before, on whatever port: it need not wait for
/// its own lease to run out.
const SOLE_BROKER: &str = "sole";

/// Why a broker could not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store does not let it go on.
    #[error("the store stopped the broker")]
    Store(#[from] StoreError),
    /// The machine does not let it start.
    #[error("cannot start")]
    Io(#[from] std::io::Error),
}

/// What the API works with.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) owners: Owners,
    /// For reading only: whoever changes something asks an owner.
    pub(crate) store: Arc<Store>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) clock: Arc<SystemClock>,
    /// Who may come in,
    pub(crate) tokens: Tokens,
    /// what their tasks may call,
    pub(crate) guard: Guard,
    /// and who counts them.
    pub(crate) telemetry: Telemetry,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Becomes true when the broker stops taking: streams end what they have.
    pub(crate) draining: watch::Receiver<bool>,
}

/// The owners of all partitions, by partition.
#[derive(Debug)]
pub(crate) struct Owners {
    partitions: Partitions,
    handles: Vec<Handle>,
    /// Tasks without a name go round.
    next: AtomicUsize,
}

impl Owners {
    /// All partitions.
    pub(crate) const fn partitions(&self) -> Partitions {
        self.partitions
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Handle] {
        &self.handles
    }

    /// The owner of a partition; `None` if there is no such partition.
    pub(crate) fn of(&self, partition: PartitionId) -> Option<&Handle> {
        self.handles.get(usize::from(partition.get()))
    }

    /// The owner of a named task.
    pub(crate) fn of_key(&self, namespace: &Namespace, key: &TaskKey) -> &Handle {
        let partition = partition_of(namespace, key, self.partitions);
        &self.handles[usize::from(partition.get())]
    }

    /// How much there is in all of them, of one namespace or of all.
    pub(crate) async fn gauges(
        &self,
        namespace: Option<&Namespace>,
    ) -> Result<Gauges, EngineError> {
        let mut gauges = Gauges::default();
        for handle in &self.handles {
            gauges = gauges.and(handle.gauges(namespace.cloned()).await?);
        }
        Ok(gauges)
    }

    /// The owner of a task without a name: any will do.
    pub(crate) fn any(&self) -> &Handle {
        &self.handles[self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len()]
    }
}

/// Runs a broker until `stop` says so, or until it cannot go on.
pub async fn run(
    listener: TcpListener,
    config: Config,
    store: Arc<Store>,
    partitions: Partitions,
    stop: impl Future<Output = ()>,
) -> Result<(), BrokerError> {
    config.check()?;
    let clock = Arc::new(SystemClock::start());
    let telemetry = Telemetry::new();
    let guard = Guard::new(config.reach(), listener.local_addr()?);
    let signer = Signer::new(config.signing_secrets.clone());
    let hub = Hub::new(Arc::clone(&clock), telemetry.clone());
    let http = Arc::new(HttpCourier::new(guard, signer, telemetry.clone()));
    let couriers = Arc::new(Couriers { http, hub: Arc::clone(&hub) });
    store.tell(telemetry.clone(), Arc::clone(&clock));
    if let Some(opened) = opened_last(partitions, &store).await? {
        clock.was_seen(opened);
    }
    let (handles, mut ends) = take_all(partitions, &store, &couriers, &clock, &config).await?;
    hub.serve(handles.clone());
    let address = listener.local_addr()?;
    let owners = Owners { partitions, handles, next: AtomicUsize::new(0) };
    let tokens = Tokens::new(config.tokens.clone());
    let (drain, draining) = watch::channel(false);
    let broker = Arc::new(Broker {
        owners,
        store,
        hub: Arc::clone(&hub),
        clock,
        tokens,
        guard,
        telemetry: telemetry.clone(),
        address,
        draining,
    });
    tracing::info!(listen = %listener.local_addr()?, partitions = partitions.count(), "ready");

    let connections = GracefulShutdown::new();
    let router = api::router(Arc::clone(&broker));
    let failed = tokio::select! {
        () = stop => None,
        error = owner_failed(&mut ends) => Some(error),
        () = listen::accept(&listener, config.tls.as_ref(), router, &connections, &telemetry) => None,
        () = hub.watch() => None,
        () = broker.clock.watch(&telemetry) => None,
    };
    drop(listener);
    tracing::info!("draining");
    drain.send_replace(true);
    hub.close();
    for handle in broker.owners.all() {
        handle.drain();
    }
    let finish = async {
        connections.shutdown().await;
        while ends.join_next().await.is_some() {}
    };
    let finished = tokio::select! {
        finished = tokio::time::timeout(config.grace, finish) => finished.is_ok(),
        () = hub.watch() => false,
    };
    if !finished {
        tracing::warn!(grace = ?config.grace, "stopping with work under way; it will be done again");
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

type Ends = JoinSet<Result<StoreError, oneshot::error::RecvError>>;

/// Takes all partitions and starts their owners.
async fn take_all(
    partitions: Partitions,
    store: &Arc<Store>,
    couriers: &Arc<Couriers>,
    clock: &Arc<SystemClock>,
    config: &Config,
) -> Result<(Vec<Handle>, Ends), BrokerError> {
    let broker = BrokerId::new(SOLE_BROKER);
    let budget = Budget::shared_by(partitions.count());
    let terms = Terms { retention: config.retention, budget };
    let mut handles = Vec::new();
    let mut ends = JoinSet::new();
    for partition in partitions.iter() {
        let possession = take(store.as_ref(), partition, &broker, SOLE_LEASE, clock.now()).await?;
        let (store, couriers, clock) = (Arc::clone(store), Arc::clone(couriers), Arc::clone(clock));
        let (handle, end) = spawn(possession, store, couriers, clock, terms)?;
        handles.push(handle);
        ends.spawn(end);
    }
    Ok((handles, ends))
}

/// When the store was opened last, by the leases of then. That the clock is before it says that one of the two was wrong.
async fn opened_last(
    partitions: Partitions,
    store: &Store,
) -> Result<Option<Timestamp>, StoreError> {
    let mut opened = None;
    for partition in partitions.iter() {
        let lease = store.holder(Seat::Partition(partition)).await?;
        let taken =
            lease.map(|lease| lease.until.since(Timestamp::EPOCH).saturating_sub(SOLE_LEASE));
        opened = opened.max(taken);
    }
    Ok(opened.map(|opened| Timestamp::EPOCH.after(opened)))
}

/// Resolves when an owner has stopped by itself.
async fn owner_failed(ends: &mut Ends) -> StoreError {
    loop {
        match ends.join_next().await {
            Some(Ok(Ok(error))) => return error,
            Some(_) => return StoreError::Broken("an owner ended unexpectedly".to_owned()),
            None => std::future::pending().await,
        }
    }
}
