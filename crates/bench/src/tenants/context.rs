//! What a hostile load works with: the broker, the size of the run, and what the load has done.
//!
//! A load says when it does its harm, and then runs until it is stopped (`running`). It bears
//! refusals: a broker may bound what a namespace has.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use punctual_proto::v1::{NewTask, ScheduleBatch, schedule_result};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock::{BenchTimer, pause};
use crate::connection::{channel, tasks};

pub(crate) const NAMESPACE: &str = "hostile";
/// Tasks in a batch, connections that send batches, and how long they try.
const BATCH: u64 = 1000;
const SENDERS: u64 = 4;
const FILL_MAX: Duration = Duration::from_secs(60);
/// The pause before something that failed is tried again, in milliseconds.
const REPEAT_MS: u64 = 50;
/// How long an event may take that shows that a load does its harm.
const EVENT_MAX: Duration = Duration::from_secs(30);
/// What has not happened for so long does not happen any more; and how long that may take.
const STEADY: Duration = Duration::from_secs(1);
const STEADY_MAX: Duration = Duration::from_secs(60);

/// How much of everything there is in a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TenantScale {
    /// Sizes of loads are divided by this.
    pub(crate) divisor: u64,
    /// How long the quiet namespace is measured.
    pub(crate) seconds: u64,
    /// How long the load continues after the last quiet webhook was due, if some are missing.
    pub(crate) hold: Duration,
}

/// What the servers of a row count, in the rows that have them.
#[derive(Debug, Clone)]
pub(crate) struct LoadServers {
    /// Questions to the name server that were delayed.
    pub(crate) questions: Option<Arc<AtomicU64>>,
    /// Messages that a server did not confirm.
    pub(crate) messages: Option<Arc<AtomicU64>>,
}

/// What a load works with. Clones share the counts.
#[derive(Debug, Clone)]
pub(crate) struct LoadContext {
    /// `HOST:PORT` of the broker.
    pub(crate) address: String,
    pub(crate) scale: TenantScale,
    /// All tasks are in the first of so many partitions; in any if there is none.
    pub(crate) partitions: Option<u16>,
    pub(crate) servers: LoadServers,
    counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    established: Arc<Notify>,
}

impl LoadContext {
    pub(crate) fn new(
        address: &str,
        scale: TenantScale,
        partitions: Option<u16>,
        servers: LoadServers,
    ) -> Self {
        let (counts, established) = (Arc::default(), Arc::default());
        Self { address: address.to_owned(), scale, partitions, servers, counts, established }
    }

    /// Says that the load does its harm from now on.
    pub(crate) fn establish(&self) {
        self.established.notify_one();
    }

    /// Says that the load does its harm from now on, and keeps everything as it is until the load
    /// is stopped.
    pub(crate) async fn establish_for_good(&self) -> anyhow::Result<()> {
        self.establish();
        std::future::pending().await
    }

    /// Waits until the load does its harm.
    pub(crate) async fn established(&self) {
        self.established.notified().await;
    }

    pub(crate) fn add(&self, what: &'static str, count: u64) {
        if count > 0 {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            *counts.entry(what).or_default() += count;
        }
    }

    pub(crate) fn count(&self, what: &'static str) -> u64 {
        self.counts().get(what).copied().unwrap_or_default()
    }

    /// Returns what the load has done: how many of what.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this has happened so often.
    pub(crate) async fn wait_for(&self, what: &'static str, count: u64) -> anyhow::Result<()> {
        let timer = BenchTimer::start();
        while self.count(what) < count {
            let so_far = self.count(what);
            ensure!(timer.elapsed() < EVENT_MAX, "{so_far} of {count} {what} in {EVENT_MAX:?}");
            pause(10).await;
        }
        Ok(())
    }

    /// Waits until this has happened, and does not happen any more.
    pub(crate) async fn wait_until_steady(&self, what: &'static str) -> anyhow::Result<()> {
        self.wait_for(what, 1).await?;
        let (timer, mut since, mut before) = (BenchTimer::start(), BenchTimer::start(), 0);
        while since.elapsed() < STEADY && timer.elapsed() < STEADY_MAX {
            let now = self.count(what);
            if now > before {
                (before, since) = (now, BenchTimer::start());
            }
            pause(50).await;
        }
        Ok(())
    }

    /// Returns a size of this load, divided in a quick run.
    pub(crate) const fn sized(&self, full: u64) -> u64 {
        full / self.scale.divisor
    }

    /// Runs `count` copies of a loop. Each begins again after an end or an error.
    pub(crate) fn repeat<F, Fut>(&self, loops: &mut JoinSet<()>, count: u64, body: F)
    where
        F: Fn(LoadContext, u64) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = anyhow::Result<()>> + Send,
    {
        for number in 0..count {
            let (context, body) = (self.clone(), body.clone());
            loops.spawn(async move {
                loop {
                    if let Err(error) = body(context.clone(), number).await {
                        tracing::debug!(%error, "load failed");
                        context.add("errors", 1);
                    }
                    pause(REPEAT_MS).await;
                }
            });
        }
    }

    /// Schedules tasks, in batches over a few connections. Batches that are refused are repeated
    /// for a while, because a broker may bound what a namespace has.
    pub(crate) async fn schedule(
        &self,
        count: u64,
        task: impl Fn(u64) -> NewTask + Clone + Send + 'static,
    ) -> anyhow::Result<()> {
        let timer = BenchTimer::start();
        let mut senders = JoinSet::new();
        for sender in 0..SENDERS {
            let (context, task) = (self.clone(), task.clone());
            senders.spawn(async move {
                let mut first = sender * BATCH;
                while first < count {
                    let tasks = (first..(first + BATCH).min(count)).map(&task).collect::<Vec<_>>();
                    while timer.elapsed() < FILL_MAX {
                        match context.schedule_batch(tasks.clone()).await {
                            Ok(accepted) if accepted > 0 => break,
                            _ => pause(REPEAT_MS).await,
                        }
                    }
                    first += SENDERS * BATCH;
                }
            });
        }
        senders.join_all().await;
        ensure!(self.count("tasks") > 0, "no task was accepted");
        Ok(())
    }

    /// Sends one batch. Returns how many tasks were accepted.
    async fn schedule_batch(&self, tasks_of_batch: Vec<NewTask>) -> anyhow::Result<u64> {
        let mut client = tasks(channel(&self.address).await?);
        let namespace = NAMESPACE.to_owned();
        let batch = ScheduleBatch { namespace, tasks: tasks_of_batch, ..ScheduleBatch::default() };
        let calling = client.schedule_many(tokio_stream::once(batch));
        let mut answers = timeout(FILL_MAX, calling).await??.into_inner();
        let answer = answers.message().await?.context("no answer to a batch")?;
        let is_accepted = |result: &&punctual_proto::v1::ScheduleResult| {
            matches!(result.result, Some(schedule_result::Result::Scheduled(_)))
        };
        let accepted = answer.results.iter().filter(is_accepted).count() as u64;
        self.add("tasks", accepted);
        self.add("tasks refused", answer.results.len() as u64 - accepted);
        Ok(accepted)
    }
}
