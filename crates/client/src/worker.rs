//! Workers: receive the deliveries of queues, run a handler for each, and settle them.
//!
//! A worker never runs more handlers at once than its `concurrency`, over all brokers. Each
//! delivery that a handler has received is settled, if the broker that sent it can be reached;
//! broken streams are opened again. When [`Worker::run_until`] returns, nothing is in flight.
//!
//! `worker/sessions.rs` keeps a session with each broker, which is in `worker/session.rs`.
//! `worker/concurrency.rs` divides the concurrency between sessions, `worker/attempt.rs` runs the
//! handler, and `worker/outbox.rs` holds settlements until they are sent.

mod attempt;
mod concurrency;
mod outbox;
mod routes;
mod session;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use self::attempt::{HandlerResult, WorkFunction};
use self::routes::KeyRoutes;
use crate::client::state::ClientState;
use crate::{BoxFuture, Dedup, Delivery, Error, Failure};

/// The default concurrency: enough to hide a round trip, few enough for a handler that uses a
/// database.
const CONCURRENCY_DEFAULT: u32 = 64;
/// The largest concurrency: a fifth of a second of work at a quarter of a million deliveries a
/// second.
const CONCURRENCY_MAX: u32 = 65_536;
/// How long a handler may run by default while its lease is extended.
const EXTEND_FOR_DEFAULT: Duration = Duration::from_secs(15 * 60);

/// Options of a worker.
#[derive(Debug, Clone)]
#[must_use = "a worker does nothing until it is given a handler and runs"]
pub struct WorkerBuilder {
    client: Arc<ClientState>,
    namespace: Arc<str>,
    queues: Vec<String>,
    name: String,
    concurrency: u32,
    extend_for: Duration,
    dedup: Option<Dedup>,
    routes: KeyRoutes,
}

impl WorkerBuilder {
    pub(crate) fn new(client: Arc<ClientState>, namespace: Arc<str>, queue: String) -> Self {
        Self {
            client,
            namespace,
            queues: vec![queue],
            name: String::new(),
            concurrency: CONCURRENCY_DEFAULT,
            extend_for: EXTEND_FOR_DEFAULT,
            dedup: None,
            routes: KeyRoutes::default(),
        }
    }

    /// Adds a queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// The name of the worker in logs and in the topology.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many deliveries may be in flight at once. The default is 64; a batch handler at a high
    /// rate needs thousands.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = concurrency.clamp(1, CONCURRENCY_MAX);
        self
    }

    /// How long a handler may run. Until then its lease is extended; afterwards the lease ends and
    /// the fire is delivered again. The default is 15 minutes.
    pub fn extend_for(mut self, extend_for: Duration) -> Self {
        self.extend_for = extend_for;
        self
    }

    /// Skips deliveries of fires that have taken effect. Not for [`WorkerBuilder::batch_handler`].
    pub fn dedup(mut self, dedup: Dedup) -> Self {
        self.dedup = Some(dedup);
        self
    }

    /// Calls `handler` for deliveries whose key begins with `prefix`, of any of the queues. Of
    /// several prefixes the longest decides. [`WorkerBuilder::handler`] takes all other deliveries;
    /// with [`WorkerBuilder::routed`] there is no handler for them.
    pub fn on<H, F, R>(mut self, prefix: impl Into<String>, handler: H) -> Self
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, Failure>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.routes.set(prefix.into(), handler);
        self
    }

    /// The worker of the handlers that [`WorkerBuilder::on`] has added. A delivery whose key begins
    /// with none of their prefixes is a failed attempt.
    pub fn routed(self) -> Worker {
        let (routes, dedup) = (self.routes.clone(), self.dedup.clone());
        let each = move |delivery| routes.call(delivery, dedup.clone());
        Worker { options: self, work: WorkFunction::Each(Arc::new(each)) }
    }

    /// Calls `handler` for each delivery, up to `concurrency` at once. `Ok` acks the delivery; a
    /// panic is a failed attempt.
    ///
    /// The value of `Ok` is the result of the fire, which the history of the task keeps as JSON;
    /// `()` is none. It may have at most 16 KiB: a longer one, or one that cannot be serialised, is
    /// a failed attempt.
    pub fn handler<H, F, R>(self, handler: H) -> Worker
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = Result<R, Failure>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        self.on("", handler).routed()
    }

    /// Calls `handler` with all deliveries that arrive together, for high rates. It returns one
    /// `Result` for each, in order, as [`WorkerBuilder::handler`] does. A delivery without one is a
    /// failed attempt; after a panic, all are.
    pub fn batch_handler<H, F, R>(self, handler: H) -> Worker
    where
        H: Fn(Vec<Delivery>) -> F + Send + Sync + 'static,
        F: Future<Output = Vec<Result<R, Failure>>> + Send + 'static,
        R: Serialize + Send + 'static,
    {
        let batch = move |deliveries| -> BoxFuture<Vec<HandlerResult>> {
            let running = handler(deliveries);
            Box::pin(async move {
                let outcomes = running.await.into_iter();
                outcomes.map(|outcome| attempt::result_of(&outcome?)).collect()
            })
        };
        Worker { options: self, work: WorkFunction::Batch(Arc::new(batch)) }
    }
}

/// A worker that is ready to run.
#[derive(Debug)]
#[must_use = "a worker does nothing until it runs"]
pub struct Worker {
    options: WorkerBuilder,
    work: WorkFunction,
}

/// The counts of a worker that has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct WorkerCounts {
    /// Deliveries that were acked.
    pub acked: u64,
    /// Deliveries that failed and are retried.
    pub failed: u64,
    /// Deliveries that were refused.
    pub refused: u64,
    /// Settlements that reached the broker too late or twice, and changed nothing.
    pub stale: u64,
    /// Deliveries whose settlement could not be sent to the broker that delivered them. They are
    /// delivered again.
    pub unsettled: u64,
}

impl WorkerCounts {
    fn add(&mut self, other: Self) {
        self.acked += other.acked;
        self.failed += other.failed;
        self.refused += other.refused;
        self.stale += other.stale;
        self.unsettled += other.unsettled;
    }
}

impl Worker {
    /// Works until `stop` is ready. Then it takes no further deliveries, finishes those that it
    /// has, settles them and returns.
    ///
    /// It has a session with each broker of the cluster and follows changes of the topology. It
    /// tries without end to connect to a broker that cannot be reached, with pauses.
    ///
    /// # Errors
    /// [`Error::Problem`] if the broker refuses the worker because of its namespace, a queue or its
    /// token.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<WorkerCounts, Error> {
        sessions::run(Arc::new(self), stop).await
    }

    /// Works in the background until it is stopped.
    pub fn spawn(self) -> RunningWorker {
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(self.run_until(async move {
            // Dropping the handle does not stop the worker.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        RunningWorker { stop, running }
    }
}

/// A worker that runs in the background. It keeps running if this is dropped.
#[derive(Debug)]
pub struct RunningWorker {
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<WorkerCounts, Error>>,
}

impl RunningWorker {
    /// Stops the worker: it takes no further deliveries, finishes those that it has, settles them
    /// and returns.
    ///
    /// # Errors
    /// Those of [`Worker::run_until`].
    pub async fn stop(self) -> Result<WorkerCounts, Error> {
        _ = self.stop.send(());
        self.running.await.unwrap_or(Err(Error::Stopped))
    }
}
