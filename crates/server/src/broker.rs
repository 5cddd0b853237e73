//! The broker: all parts put together, and the order in which they start and stop.
//!
//! In: a listener, a store and a signal to stop. Out: when [`run`] returns, nothing is under way any more and nobody has the store.
//! Start: take the partitions, or join the others, then listen. Stop: take nothing new, hand over, let workers and receivers say what
//! came of what they have, give up the rest, listen no more, then return; all that within the grace time.
//! Invariant: a request is answered by the owner of its partition, after the store.
//! Next door: `owners` (where owners are), `cluster` (a broker as one of many).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use punctual_core::{BrokerId, Clock, Partitions, Seat, Timestamp};
use punctual_engine::{Budget, OrphanReports, OwnerConfig, spawn, take};
use punctual_store::{LeaseStore as _, StoreError};
use punctual_store_redis::RedisStore;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::api;
use crate::auth::ApiTokens;
use crate::browser::BrowserPolicy;
use crate::clock::SystemClock;
use crate::cluster::{self, Membership, Rooms};
use crate::config::{Config, ConfigError, Sharing};
use crate::courier::{Couriers, Dialler, Guard, HttpCourier, Hub, Signer};
use crate::listen;
use crate::owners::Owners;
use crate::peer::{Peers, Secret, Transport};
use crate::store::Store;
use crate::telemetry::Telemetry;
use crate::tls::Tls;

/// The lease of a broker that shares its store with nobody: only its epoch matters.
const SOLE_LEASE: Duration = Duration::from_secs(5);
/// Whoever has the directory of an embedded store is the same broker as before, on whatever port: it need not wait for
/// its own lease to run out.
const SOLE_BROKER: &str = "sole";
/// How far the clock of a broker may be off from those of the others.
const SKEW_MAX: Duration = Duration::from_millis(250);
/// How often it is looked whether couriers still have something when the broker stops.
const IDLE_EVERY: Duration = Duration::from_millis(10);

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
    pub(crate) owners: Arc<Owners>,
    /// For reading only: whoever changes something asks an owner.
    pub(crate) store: Arc<Store>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) clock: Arc<SystemClock>,
    /// Who may come in,
    pub(crate) tokens: ApiTokens,
    pub(crate) browser_policy: BrowserPolicy,
    /// what their tasks may call,
    pub(crate) guard: Guard,
    /// what the door shows, if it speaks TLS,
    pub(crate) tls: Option<Tls>,
    /// and who counts them.
    pub(crate) telemetry: Telemetry,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// The others, if the store is shared.
    pub(crate) shared: Option<Shared>,
    /// Becomes true when the broker stops taking: streams end what they have.
    pub(crate) draining: watch::Receiver<bool>,
    /// Tells by its end that nobody has the broker any more.
    _here: mpsc::Sender<()>,
}

/// What a broker has that is one of many.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) membership: Arc<Membership>,
    /// How the others are asked,
    pub(crate) peers: Arc<Peers>,
    /// and by what they know each other.
    pub(crate) secret: Secret,
}

impl Broker {
    /// Whether it takes nothing new any more.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
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
    let Parts { broker, couriers, mut standing } = parts;
    let (hub, telemetry) = (Arc::clone(&broker.hub), broker.telemetry.clone());
    tracing::info!(listen = %address, partitions = partitions.count(), "ready");

    let connections = GracefulShutdown::new();
    let router = api::router(Arc::clone(&broker));
    let (end, ended) = watch::channel(false);
    let mut serving = Box::pin(async {
        let tls = config.tls.as_ref();
        let accepting = listen::accept(&listener, tls, router, &connections, ended, &telemetry);
        let renewing = async {
            if let Some(tls) = tls {
                tls.watch(&telemetry).await;
            }
        };
        tokio::join!(accepting, hub.watch(), broker.clock.watch(&telemetry), renewing);
    });
    let failed = tokio::select! {
        () = stop => None,
        error = standing.failed() => Some(error),
        () = &mut serving => None,
    };
    let shares = Shares::of(config.grace, config.sharing.is_some());
    // Others go on where this one stops: it hands over while it still does everything.
    let leaving = timeout(shares.leave, standing.leave());
    tokio::select! {
        _ = leaving => {}
        () = &mut serving => {}
    }
    tracing::info!("draining");
    drain.send_replace(true);
    hub.close();
    let mut settling = Box::pin(async {
        tokio::select! {
            () = standing.rest(&broker, &couriers) => {}
            // Workers settle over connections old and new, and leases go on running out.
            () = &mut serving => {}
        }
    });
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
    drop((broker, couriers, standing));
    // Nothing is ever sent: this ends when the last who had the broker is gone.
    let _ = timeout(shares.rest, gone.recv()).await;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// A broker that is ready, its owners at work.
struct Parts {
    broker: Arc<Broker>,
    couriers: Arc<Couriers>,
    standing: Standing,
}

/// How a broker comes by its partitions, and lets go of them.
enum Standing {
    /// All are its own, from start to end.
    Sole(Ends),
    /// It shares them with others.
    Member(Arc<Membership>, JoinSet<()>),
}

impl Standing {
    /// Resolves when the broker cannot go on.
    async fn failed(&mut self) -> StoreError {
        match self {
            Self::Sole(ends) => owner_failed(ends).await,
            // Others can go on where one cannot: it only loses its partitions.
            Self::Member(_, parts) => {
                parts.join_next().await;
                StoreError::Broken("a part of the broker ended unexpectedly".to_owned())
            }
        }
    }

    /// Gives its partitions to others, if there are some.
    async fn leave(&mut self) {
        if let Self::Member(membership, _) = self {
            tracing::info!("leaving");
            membership.leave().await;
        }
    }

    /// Lets go of everything, and waits for what is under way.
    async fn rest(&mut self, broker: &Broker, couriers: &Couriers) {
        match self {
            Self::Sole(ends) => {
                broker.owners.handles().iter().for_each(|(_, handle)| handle.drain());
                while ends.join_next().await.is_some() {}
            }
            Self::Member(membership, parts) => {
                membership.leave().await;
                // What comes back now is told to the owners of then,
                let mut looks = interval(IDLE_EVERY);
                while !couriers.is_idle() {
                    looks.tick().await;
                }
                // and that they were told is waited for: whoever is not told sends again, or never knows.
                while parts.join_next().await.is_some() {}
            }
        }
    }
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
    let dialler = Dialler::new(guard.clone(), &config.webhook_authorities);
    let places = config.webhook_connections_max;
    let http = HttpCourier::new(dialler, places, signer, Arc::clone(&clock), telemetry.clone());
    let http = Arc::new(http);
    let couriers = Arc::new(Couriers { http, hub: Arc::clone(&hub) });
    store.tell(telemetry.clone(), Arc::clone(&clock));
    let budget = Budget::shared_by(partitions.count());
    let terms = OwnerConfig { retention: config.retention, budget, keeps_batches: false };
    let (owners, shared, standing) = match (&config.sharing, store.shared()) {
        (Some(sharing), Some(shared)) => {
            let joined = Joining { address, config, sharing, shared, partitions };
            let rooms = (Arc::clone(&hub), Arc::clone(&store), Arc::clone(&couriers));
            joined.join(rooms, &clock, &telemetry, &guard, terms).await?
        }
        _ => {
            if let Some(opened) = opened_last(partitions, &store).await? {
                clock.was_seen(opened);
            }
            let owners = Arc::new(Owners::sole(partitions));
            let ends = take_all(&owners, &store, &couriers, &clock, terms).await?;
            owners.handles().into_iter().for_each(|(partition, owner)| hub.serve(partition, owner));
            (owners, None, Standing::Sole(ends))
        }
    };
    let broker = Arc::new(Broker {
        owners,
        store,
        hub,
        clock,
        tokens: ApiTokens::new(config.tokens.clone()),
        browser_policy: BrowserPolicy::of(config),
        guard,
        tls: config.tls.clone(),
        telemetry,
        address,
        shared,
        draining,
        _here: here,
    });
    Ok(Parts { broker, couriers, standing })
}

/// What it takes to become one of many.
struct Joining<'a> {
    address: SocketAddr,
    config: &'a Config,
    sharing: &'a Sharing,
    shared: Arc<RedisStore>,
    partitions: Partitions,
}

type Joined = (Arc<Owners>, Option<Shared>, Standing);

impl Joining<'_> {
    /// Joins the others. Partitions come later, by orders.
    async fn join(
        self,
        (hub, store, couriers): (Arc<Hub>, Arc<Store>, Arc<Couriers>),
        clock: &Arc<SystemClock>,
        telemetry: &Telemetry,
        guard: &Guard,
        terms: OwnerConfig,
    ) -> Result<Joined, BrokerError> {
        let Self { address, config, sharing, shared, partitions } = self;
        let me = sharing.broker(address)?;
        guard.bar_stores(cluster::addresses(&sharing.stores).await);
        let secret = Secret::new(&shared.secret().await?)
            .map_err(|_| StoreError::Broken("the secret of the cluster is none".to_owned()))?;
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
        let (member, orders) = punctual_cluster::spawn(member, shared, Arc::clone(clock));
        let (strays, straying) = mpsc::unbounded_channel();
        let carrying = (Arc::clone(&owners), Arc::clone(&store));
        let rooms = Rooms {
            owners: Arc::clone(&owners),
            hub,
            store,
            couriers,
            clock: Arc::clone(clock),
            telemetry: telemetry.clone(),
            guard: guard.clone(),
            // Redis may fail over to a server that has less than was answered.
            terms: OwnerConfig { keeps_batches: true, ..terms },
            strays: Mutex::new(OrphanReports::to(strays)),
        };
        let membership = Membership::new(me, member, rooms, Arc::clone(&peers), lease);
        let mut parts = JoinSet::new();
        parts.spawn(cluster::carry_strays(carrying.0, carrying.1, straying));
        let obeying = Arc::clone(&membership);
        parts.spawn(async move { obeying.obey(orders).await });
        let standing = Standing::Member(Arc::clone(&membership), parts);
        Ok((owners, Some(Shared { membership, peers, secret }), standing))
    }
}

/// How the grace time is spent.
#[derive(Debug, Clone, Copy)]
struct Shares {
    /// On handing over, if there are others.
    leave: Duration,
    /// On work under way.
    settle: Duration,
    /// On each of what follows: writing what was given up, closing connections, letting go of the store, closing it.
    rest: Duration,
}

impl Shares {
    fn of(grace: Duration, is_shared: bool) -> Self {
        let rest = grace / 10;
        let leave = if is_shared { 3 * rest } else { Duration::ZERO };
        Self { leave, settle: grace - 4 * rest - leave, rest }
    }
}

type Ends = JoinSet<Result<StoreError, oneshot::error::RecvError>>;

/// Takes all partitions and starts their owners.
async fn take_all(
    owners: &Owners,
    store: &Arc<Store>,
    couriers: &Arc<Couriers>,
    clock: &Arc<SystemClock>,
    terms: OwnerConfig,
) -> Result<Ends, BrokerError> {
    let broker = BrokerId::new(SOLE_BROKER);
    let mut ends = JoinSet::new();
    for partition in owners.partitions().iter() {
        let ownership = take(store.as_ref(), partition, &broker, SOLE_LEASE, clock.now()).await?;
        let (store, couriers, clock) = (Arc::clone(store), Arc::clone(couriers), Arc::clone(clock));
        let (handle, end) =
            spawn(ownership, Vec::new(), store, couriers, clock, terms, OrphanReports::none())?;
        owners.start(partition, ownership.epoch, handle);
        ends.spawn(end);
    }
    Ok(ends)
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
