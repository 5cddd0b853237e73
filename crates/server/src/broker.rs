//! The broker: all parts put together, and the order in which they start and stop.
//!
//! In: a listener, a store and a signal to stop. Out: when [`run`] returns, nothing is under way any more.
//! Start: take the partitions, then listen. Stop: listen no more, finish what is under way, then return.
//! Invariant: a request is answered by the owner of its partition, after the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use punctual_core::{BrokerId, Clock, PartitionId, Partitions, TaskKey, partition_of};
use punctual_engine::{Handle, spawn, take};
use punctual_store::{LeaseStore, StoreError, TaskStore};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::api;
use crate::config::{Config, ConfigError};
use crate::courier::HttpCourier;

/// Connections at once. Each costs some tens of kilobytes; beyond this they wait to be accepted.
const CONNECTIONS_MAX: usize = 16_384;
/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests under way on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// The lease of a broker that shares its store with nobody: only its epoch matters.
const SOLE_LEASE: Duration = Duration::from_secs(5);
/// Whoever has the directory of an embedded store is the same broker as before, on whatever port: it need not wait for
/// its own lease to run out.
const SOLE_BROKER: &str = "sole";
/// How long a listener that cannot accept (no file descriptors left) is left alone.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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

/// The owners of all partitions, by partition.
#[derive(Debug, Clone)]
pub(crate) struct Owners {
    partitions: Partitions,
    handles: Arc<HashMap<PartitionId, Handle>>,
}

impl Owners {
    /// The owner of a task, by its name or by the partition that its id says.
    pub(crate) fn of(&self, partition: PartitionId) -> Option<&Handle> {
        self.handles.get(&partition)
    }

    /// The owner of a named task.
    pub(crate) fn of_key(
        &self,
        namespace: &punctual_core::Namespace,
        key: &TaskKey,
    ) -> Option<&Handle> {
        self.of(partition_of(namespace, key, self.partitions))
    }

    /// The owner of a task without a name: any will do, and the first is as good as another.
    pub(crate) fn any(&self) -> Option<&Handle> {
        self.of(PartitionId::FIRST)
    }
}

/// Runs a broker until `stop` says so, or until it cannot go on.
pub async fn run<S: TaskStore + LeaseStore, C: Clock>(
    listener: TcpListener,
    config: Config,
    store: Arc<S>,
    partitions: Partitions,
    clock: Arc<C>,
    stop: impl Future<Output = ()>,
) -> Result<(), BrokerError> {
    config.check()?;
    let broker = BrokerId::new(SOLE_BROKER);
    let courier = Arc::new(HttpCourier::new());
    let mut handles = HashMap::new();
    let mut ends = JoinSet::new();
    for partition in partitions.iter() {
        let possession = take(store.as_ref(), partition, &broker, SOLE_LEASE, clock.now()).await?;
        let (handle, end) = spawn(
            possession,
            Arc::clone(&store),
            Arc::clone(&courier),
            Arc::clone(&clock),
            config.retention,
        )?;
        handles.insert(partition, handle);
        ends.spawn(end);
    }
    let owners = Owners { partitions, handles: Arc::new(handles) };
    tracing::info!(listen = %listener.local_addr()?, partitions = partitions.count(), "ready");

    let connections = GracefulShutdown::new();
    let failed = tokio::select! {
        () = stop => None,
        error = owner_failed(&mut ends) => Some(error),
        () = accept(&listener, api::router(owners.clone()), &connections) => None,
    };
    drop(listener);
    tracing::info!("draining");
    for handle in owners.handles.values() {
        handle.drain();
    }
    let finish = async {
        connections.shutdown().await;
        while ends.join_next().await.is_some() {}
    };
    if tokio::time::timeout(config.grace, finish).await.is_err() {
        tracing::warn!(grace = ?config.grace, "stopping with work under way; it will be done again");
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Resolves when an owner has stopped by itself.
async fn owner_failed(
    ends: &mut JoinSet<Result<StoreError, oneshot::error::RecvError>>,
) -> StoreError {
    loop {
        match ends.join_next().await {
            Some(Ok(Ok(error))) => return error,
            Some(_) => return StoreError::Broken("an owner ended unexpectedly".to_owned()),
            None => std::future::pending().await,
        }
    }
}

async fn accept(listener: &TcpListener, router: Router, connections: &GracefulShutdown) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut pause = tokio::time::interval(ACCEPT_PAUSE);
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = serve(stream, router.clone(), connections);
                tokio::spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                pause.reset();
                pause.tick().await;
            }
        }
    }
}

fn serve(
    stream: TcpStream,
    router: Router,
    connections: &GracefulShutdown,
) -> impl Future<Output = ()> + Send + 'static {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    let watcher = connections.watcher();
    let service = TowerToHyperService::new(router);
    async move {
        let connection = server.serve_connection(TokioIo::new(stream), service).into_owned();
        // A client that breaks off is its own business.
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(error, "a connection broke");
        }
    }
}
