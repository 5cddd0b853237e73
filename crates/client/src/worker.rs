//! Workers: deliveries of a queue come, a handler does what is due, settlements go.
//!
//! In: a handler and a signal to stop. Out: when [`Worker::run_until`] returns, nothing is under way any more.
//! Invariants: never more deliveries at once than `concurrency`, over all brokers; every delivery that a handler has seen is settled, if
//! the broker that sent it can be reached at all; a broken stream is opened again.
//! Next door: `worker/register.rs` keeps a session with each broker, `worker/session.rs` is one of them, `worker/share.rs` divides
//! `concurrency` between them, `worker/attempt.rs` runs the handler, `worker/outbox.rs` holds what is to be told to a broker.

mod attempt;
mod concurrency;
mod outbox;
mod session;
mod sessions;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::attempt::DeliveryToken;
use self::attempt::WorkFunction;
use crate::{Dedup, Error, Namespace, TaskId, Timestamp};

/// Deliveries at once when nobody says: enough to hide a round trip, few enough for a handler that calls a database.
const CONCURRENCY_DEFAULT: u32 = 64;
/// The most that a worker may ask for: at a quarter of a million a second that is a fifth of a second of work.
const CONCURRENCY_MAX: u32 = 65_536;
/// How long a handler may run on extended leases when nobody says.
const EXTEND_FOR_DEFAULT: Duration = Duration::from_secs(15 * 60);

/// One fire, the same over attempts, brokers and restarts: dedup on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FireId(String);

impl FireId {
    pub(crate) fn new(id: String) -> Self {
        Self(id)
    }

    /// As it is printed, and as webhooks carry it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for FireId {
    fn from(id: &str) -> Self {
        Self(id.to_owned())
    }
}

impl fmt::Display for FireId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is a fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Occasion {
    /// It is due by the schedule.
    #[default]
    Due,
    /// Somebody asked for it, besides the schedule.
    Manual,
    /// A watch that had fired was touched.
    Return,
}

/// What travels for one attempt of one fire.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    pub(crate) token: DeliveryToken,
    /// The same for every attempt of one fire.
    pub fire_id: FireId,
    /// Which task.
    pub task: TaskId,
    /// The caller's own name of it, if it has one.
    pub key: Option<String>,
    /// The queue on which it came.
    pub queue: String,
    /// Why there is this fire.
    pub occasion: Occasion,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The caller's bytes.
    pub payload: Bytes,
    /// What the payload is.
    pub content_type: String,
    /// When it was due.
    pub fire_at: Timestamp,
    /// When it fired.
    pub fired_at: Timestamp,
    /// The version of the task that fired.
    pub version: u64,
    /// How long it may take; extended by itself while a handler runs.
    pub lease: Duration,
}

impl Delivery {
    /// The payload as a value.
    ///
    /// # Errors
    /// What is wrong with the JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }

    /// How late it fired.
    #[must_use]
    pub fn lag(&self) -> Duration {
        self.fired_at.since(self.fire_at)
    }
}

/// Why a handler did not do what was due, and whether to try again.
///
/// Any error becomes one by `?`, and is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) reason: String,
    pub(crate) then: FailureAction,
}

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureAction {
    /// A further attempt, as the task's retry policy says.
    Retry,
    /// A further attempt after this.
    RetryIn(Duration),
    /// No further attempt.
    Refuse,
}

impl Failure {
    /// Try again, as the task's retry policy says.
    pub fn fail(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), then: FailureAction::Retry }
    }

    /// Never try again: the fire becomes a dead letter.
    pub fn refuse(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), then: FailureAction::Refuse }
    }

    /// Try again after this, whatever the policy says.
    #[must_use]
    pub fn retry_in(mut self, pause: Duration) -> Self {
        self.then = FailureAction::RetryIn(pause);
        self
    }
}

/// Not an error itself, so that every error can become one.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let sources = std::iter::successors(error.source(), |error| error.source());
        Self::fail(sources.fold(error.to_string(), |reason, source| format!("{reason}: {source}")))
    }
}

/// How a worker works.
#[derive(Debug, Clone)]
#[must_use = "a worker does nothing until it is given a handler and runs"]
pub struct WorkerBuilder {
    namespace: Namespace,
    queues: Vec<String>,
    name: String,
    concurrency: u32,
    extend_for: Duration,
    dedup: Option<Dedup>,
}

impl WorkerBuilder {
    pub(crate) fn new(namespace: Namespace, queue: String) -> Self {
        Self {
            namespace,
            queues: vec![queue],
            name: String::new(),
            concurrency: CONCURRENCY_DEFAULT,
            extend_for: EXTEND_FOR_DEFAULT,
            dedup: None,
        }
    }

    /// Works on this queue as well.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// What it calls itself, for logs and topology.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many deliveries may be under way at once; 64 unless said. A handler over batches at a high rate wants
    /// thousands.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.concurrency = concurrency.clamp(1, CONCURRENCY_MAX);
        self
    }

    /// How long a handler may run: until then its lease is extended by itself, afterwards it ends and the fire is
    /// delivered again. 15 minutes unless said.
    pub fn extend_for(mut self, extend_for: Duration) -> Self {
        self.extend_for = extend_for;
        self
    }

    /// Skips deliveries whose effect this worker has had already. Only for [`WorkerBuilder::handler`].
    pub fn dedup(mut self, dedup: Dedup) -> Self {
        self.dedup = Some(dedup);
        self
    }

    /// Calls this with each delivery, as many at once as `concurrency` says. `Ok` acks; a panic is a failed attempt.
    pub fn handler<H, F>(self, handler: H) -> Worker
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let dedup = self.dedup.clone();
        let handler = Arc::new(handler);
        let each = move |delivery: Delivery| -> Pin<Box<dyn Future<Output = _> + Send>> {
            match dedup.clone() {
                None => Box::pin(handler(delivery)),
                Some(dedup) => {
                    let (handler, fire_id) = (Arc::clone(&handler), delivery.fire_id.clone());
                    Box::pin(async move { dedup.once(&fire_id, || handler(delivery)).await })
                }
            }
        };
        Worker { options: self, work: WorkFunction::Each(Arc::new(each)) }
    }

    /// Calls this with all deliveries that came together: for high rates. It answers one result each, in order; a
    /// delivery without one is a failed attempt, and so are all of them after a panic.
    pub fn batch_handler<H, F>(self, handler: H) -> Worker
    where
        H: Fn(Vec<Delivery>) -> F + Send + Sync + 'static,
        F: Future<Output = Vec<Result<(), Failure>>> + Send + 'static,
    {
        let batch = move |deliveries| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(handler(deliveries))
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

/// What a worker did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Worked {
    /// Deliveries that are done.
    pub acked: u64,
    /// Deliveries that are to be tried again.
    pub failed: u64,
    /// Deliveries that are never to be tried again.
    pub refused: u64,
    /// Settlements that came too late, or twice: the broker changed nothing.
    pub stale: u64,
    /// Deliveries whose settlement could not be told to the broker that sent them; they are delivered again.
    pub untold: u64,
}

impl Worked {
    fn add(&mut self, other: Self) {
        self.acked += other.acked;
        self.failed += other.failed;
        self.refused += other.refused;
        self.stale += other.stale;
        self.untold += other.untold;
    }
}

impl Worker {
    /// Works until `stop` is ready. Then it asks for no more, finishes what it has, tells the broker and returns.
    ///
    /// It has a session with each broker of the cluster, which come and go with the topology. A broker that cannot be reached is
    /// tried again for ever, with pauses.
    ///
    /// # Errors
    /// [`Error::Problem`] when the broker refuses the worker: a namespace, a queue or a token that is none.
    pub async fn run_until(self, stop: impl Future<Output = ()>) -> Result<Worked, Error> {
        sessions::run(Arc::new(self), stop).await
    }

    /// Works in the background until stopped.
    pub fn spawn(self) -> RunningWorker {
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(self.run_until(async move {
            // Letting go of the handle without a word is not a wish to stop.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        RunningWorker { stop, running }
    }
}

/// A worker that runs in the background. Dropping this lets it run on.
#[derive(Debug)]
pub struct RunningWorker {
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<Worked, Error>>,
}

impl RunningWorker {
    /// Asks for no more, finishes what it has, tells the broker and returns.
    ///
    /// # Errors
    /// As [`Worker::run_until`].
    pub async fn stop(self) -> Result<Worked, Error> {
        _ = self.stop.send(());
        self.running.await.unwrap_or(Err(Error::Stopped))
    }
}
