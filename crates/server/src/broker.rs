//! The broker: all parts put together, and the order in which they start and stop.
//!
//! In: a listener, a store and a signal to stop. Out: when [`run`] returns, nothing is under way any more and nobody has the store.
//! Start: take the partitions, then listen. Stop: take nothing new, let workers and receivers say what came of what they have, give
//! up the rest, listen no more, then return; all that within the grace time.
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
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api;
use crate::auth::Tokens;
use crate::browser::Strangers;
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
    pub(crate) strangers: Strangers,
    /// what their tasks may call,
    pub(crate) guard: Guard,
    /// and who counts them.
    pub(crate) telemetry: Telemetry,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Becomes true when the broker stops taking: streams end what they have.
    pub(crate) draining: watch::Receiver<bool>,
    /// Tells by its end that nobody has the broker any more.
    _here: mpsc::Sender<()>,
}

/// The owners of all partitions, by partition.
#[derive(Debug)]
pub(crate) struct Owners {
    partitions: Partitions,
    handles: Vec<Handle>,
    /// Tasks without a name go round.
    next: AtomicUsize,
}

impl Broker {
    /// Whether it takes nothing new any more.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
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
    let (here, mut gone) = mpsc::channel(1);
    let (drain, draining) = watch::channel(false);
    let address = listener.local_addr()?;
    let parts = compose(address, &config, store, partitions, draining, here).await?;
    let Parts { broker, couriers, mut ends } = parts;
    let (hub, telemetry) = (Arc::clone(&broker.hub), broker.telemetry.clone());
    tracing::info!(listen = %address, partitions = partitions.count(), "ready");

    let connections = GracefulShutdown::new();
    let router = api::router(Arc::clone(&broker));
    let (end, ended) = watch::channel(false);
    let mut serving = Box::pin(async {
        let tls = config.tls.as_ref();
        let accepting = listen::accept(&listener, tls, router, &connections, ended, &telemetry);
        tokio::join!(accepting, hub.watch(), broker.clock.watch(&telemetry));
    });
    let failed = tokio::select! {
        () = stop => None,
        error = owner_failed(&mut ends) => Some(error),
        () = &mut serving => None,
    };
    tracing::info!("draining");
    drain.send_replace(true);
    hub.close();
    for handle in broker.owners.all() {
        handle.drain();
    }
    let quiet = async { while ends.join_next().await.is_some() {} };
    let mut settling = Box::pin(async {
        tokio::select! {
            () = quiet => {}
            // Workers settle over connections old and new, and leases go on running out.
            () = &mut serving => {}
        }
    });
    let shares = Shares::of(config.grace);
    // A store that is broken takes nothing that anybody could still say.
    let settle_max = if failed.is_none() { shares.settle } else { Duration::ZERO };
    if timeout(settle_max, &mut settling).await.is_err() {
        let (leases, webhooks) = (hub.give_up(), couriers.http.give_up());
        if leases + webhooks > 0 {
            tracing::warn!(leases, webhooks, "stopping with work under way; it will be done again");
        }
        let _ = timeout(shares.rest, &mut settling).await;
    }
    drop(settling);
    drop(serving);
    drop(listener);
    let _ = timeout(shares.rest, connections.shutdown()).await;
    end.send_replace(true);
    drop(broker);
    // Nothing is ever sent: this ends when the last who had the broker is gone.
    let _ = timeout(shares.rest, gone.recv()).await;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// A broker that is ready, its owners at work.
struct Parts {
    broker: Arc<Broker>,
    couriers: Arc<Couriers>,
    ends: Ends,
}

/// Puts all parts together.
async fn compose(
    address: SocketAddr,
    config: &Config,
    store: Arc<Store>,
    partitions: Partitions,
    draining: watch::Receiver<bool>,
    here: mpsc::Sender<()>,
) -> Result<Parts, BrokerError> {
    let clock = Arc::new(SystemClock::start());
    let telemetry = Telemetry::new();
    let guard = Guard::new(config.reach(), address);
    let signer = Signer::new(config.signing_secrets.clone());
    let hub = Hub::new(Arc::clone(&clock), telemetry.clone());
    let http = Arc::new(HttpCourier::new(guard, signer, telemetry.clone()));
    let couriers = Arc::new(Couriers { http, hub: Arc::clone(&hub) });
    store.tell(telemetry.clone(), Arc::clone(&clock));
    if let Some(opened) = opened_last(partitions, &store).await? {
        clock.was_seen(opened);
    }
    let (handles, ends) = take_all(partitions, &store, &couriers, &clock, config).await?;
    hub.serve(handles.clone());
    let broker = Arc::new(Broker {
        owners: Owners { partitions, handles, next: AtomicUsize::new(0) },
        store,
        hub,
        clock,
        tokens: Tokens::new(config.tokens.clone()),
        strangers: Strangers::to(config),
        guard,
        telemetry,
        address,
        draining,
        _here: here,
    });
    Ok(Parts { broker, couriers, ends })
}

/// How the grace time is spent.
#[derive(Debug, Clone, Copy)]
struct Shares {
    /// On work under way.
    settle: Duration,
    /// On each of what follows: writing what was given up, closing connections, letting go of the store, closing it.
    rest: Duration,
}

impl Shares {
    fn of(grace: Duration) -> Self {
        let rest = grace / 10;
        Self { settle: grace - 4 * rest, rest }
    }
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
