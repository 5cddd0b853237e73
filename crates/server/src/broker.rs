//! The broker: all parts put together, and the order in which they start and stop.
//!
//! In: a listener, a store and a signal to stop. Out: when [`run`] returns, nothing is under way any more.
//! Start: take the partitions, then listen. Stop: listen no more, finish what is under way, then return.
//! Invariant: a request is answered by the owner of its partition, after the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use punctual_core::{BrokerId, Clock, PartitionId, Partitions, TaskKey, partition_of};
use punctual_engine::{Handle, spawn, take};
use punctual_store::{LeaseStore, StoreError, TaskStore};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::api::{self, Gate};
use crate::auth::Tokens;
use crate::config::{Config, ConfigError};
use crate::courier::{Guard, HttpCourier, Signer};
use crate::listen;
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
    let telemetry = Telemetry::new();
    let guard = Guard::new(config.reach(), listener.local_addr()?);
    let signer = Signer::new(config.signing_secrets.clone());
    let courier = Arc::new(HttpCourier::new(guard, signer, telemetry.clone()));
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
    let tokens = Tokens::new(config.tokens.clone());
    let gate = Gate { tokens, guard, telemetry: telemetry.clone() };
    let router = api::router(owners.clone(), gate);
    let failed = tokio::select! {
        () = stop => None,
        error = owner_failed(&mut ends) => Some(error),
        () = listen::accept(&listener, config.tls.as_ref(), router, &connections, &telemetry) => None,
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
