//! The quiet namespace: 200 webhooks per second, scheduled a second ahead over HTTP and received in
//! this process.
//!
//! Calls that are refused or not answered are repeated until they are accepted, under the same
//! keys. A webhook that is late because its task was accepted late is late all the same: lag counts
//! from the planned time, by the clock of the receiver.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::clock::{BenchTimer, micros, millis, pause};
use crate::connection::HttpConnection;
use crate::receiver::{AnswerManner, BenchReceiver};
use crate::report::LagHistogram;

pub(crate) const NAMESPACE: &str = "quiet";
/// Webhooks per second.
const RATE: u64 = 200;
/// How often a batch of them is scheduled, in milliseconds.
const TICK_MS: u64 = 100;
const BATCH: u64 = RATE * TICK_MS / 1000;
/// How long before the first of them is due a batch is sent.
const AHEAD_MS: u64 = 1000;
/// How long a call may take before it is repeated on another connection.
const CALL_MAX: Duration = Duration::from_secs(10);
/// The pause before a refused call is repeated, in milliseconds.
const REPEAT_MS: u64 = 50;
/// How often a batch over 512 KiB is sent, in milliseconds, and what it has.
const LARGE_TICK_MS: u64 = 250;
const LARGE_TASKS: u64 = 4;
const LARGE_PAYLOAD_BYTES: usize = 200_000;

/// What the quiet namespace does in a row.
#[derive(Debug, Clone)]
pub(crate) struct QuietPlan {
    pub(crate) seconds: u64,
    /// The host of the receiver: an address, or a name that is looked up.
    pub(crate) host: &'static str,
    pub(crate) manner: AnswerManner,
    pub(crate) token: Option<&'static str>,
    /// All tasks are in the first of so many partitions; in any if there is none.
    pub(crate) partitions: Option<u16>,
    /// Whether batches over 512 KiB are sent as well.
    pub(crate) large: LargeBatches,
}

/// Whether batches over 512 KiB are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LargeBatches {
    None,
    Sent,
}

/// What became of a run so far.
#[derive(Debug)]
pub(crate) struct QuietTally {
    pub(crate) planned: u64,
    pub(crate) received: u64,
    pub(crate) doubled: u64,
    /// By the clock of the receiver.
    pub(crate) lags: LagHistogram,
    /// By the header `punctual-lag-ms`.
    pub(crate) shown: LagHistogram,
    /// How long it took until batches were accepted.
    pub(crate) calls: LagHistogram,
    pub(crate) large_sent: u64,
    /// How long it took until batches over 512 KiB were accepted.
    pub(crate) large_calls: LagHistogram,
}

/// The quiet namespace at work. It stops when dropped.
#[derive(Debug)]
pub(crate) struct QuietRun {
    log: Arc<QuietLog>,
    /// When the last webhook is due, in milliseconds.
    ends: u64,
    _receiver: BenchReceiver,
    /// Aborted when dropped.
    _senders: JoinSet<()>,
}

#[derive(Debug)]
struct QuietLog {
    arrivals: Mutex<Vec<QuietArrival>>,
    /// When the first webhook is due, in milliseconds.
    begins: u64,
    received: AtomicU64,
    calls: Mutex<LagHistogram>,
    large_sent: AtomicU64,
    large_calls: Mutex<LagHistogram>,
}

/// What was received of one task.
#[derive(Debug, Clone, Copy, Default)]
struct QuietArrival {
    times: u64,
    /// When the first was received, in microseconds.
    first: u64,
    lag_ms: u64,
}

/// How many webhooks a run of so many seconds has.
pub(crate) const fn planned(seconds: u64) -> u64 {
    seconds * RATE
}

impl QuietPlan {
    /// A plan with a receiver that is named by its address, and nothing else.
    pub(crate) const fn new(seconds: u64) -> Self {
        Self {
            seconds,
            host: "127.0.0.1",
            manner: AnswerManner::Keep,
            token: None,
            partitions: None,
            large: LargeBatches::None,
        }
    }

    /// Connects to a broker.
    pub(crate) async fn connect(&self, address: &str) -> anyhow::Result<HttpConnection> {
        let connection = HttpConnection::connect(address).await?;
        Ok(match self.token {
            Some(secret) => connection.with_token(secret),
            None => connection,
        })
    }
}

impl QuietRun {
    /// Starts to schedule and to receive. `name` begins the keys of the tasks.
    pub(crate) async fn start(address: &str, plan: &QuietPlan, name: &str) -> anyhow::Result<Self> {
        let count = planned(plan.seconds);
        let keys = match plan.partitions {
            Some(partitions) => keys_of_first(NAMESPACE, name, partitions, count)?,
            None => (0..count).map(|number| format!("{name}-{number}")).collect(),
        };
        let begins = millis() + 3 * AHEAD_MS / 2;
        let log = Arc::new(QuietLog::new(begins, usize::try_from(count)?));
        let arrivals = Arc::clone(&log);
        let receiver = BenchReceiver::start(Ipv4Addr::LOCALHOST, plan.manner, move |head| {
            arrivals.note(&head.path, head.lag_ms);
        })
        .await?;
        let url = format!("http://{}:{}", plan.host, receiver.address.port());
        let connections = Arc::new(QuietConnections::new(address, plan.clone()));
        let mut senders = JoinSet::new();
        senders.spawn(send_all(Arc::clone(&connections), Arc::clone(&log), keys, url));
        if plan.large == LargeBatches::Sent {
            senders.spawn(send_large(connections, Arc::clone(&log), name.to_owned()));
        }
        Ok(Self { log, ends: begins + plan.seconds * 1000, _receiver: receiver, _senders: senders })
    }

    /// Returns how long it takes until the last webhook is due.
    pub(crate) fn left(&self) -> Duration {
        Duration::from_millis(self.ends.saturating_sub(millis()))
    }

    pub(crate) fn received(&self) -> u64 {
        self.log.received.load(Ordering::Relaxed)
    }

    /// Returns whether all webhooks were received and all large batches were answered.
    pub(crate) fn is_complete(&self) -> bool {
        let log = &self.log;
        let planned = lock(&log.arrivals).len() as u64;
        self.left().is_zero()
            && self.received() == planned
            && lock(&log.large_calls).count() == log.large_sent.load(Ordering::Relaxed)
    }

    /// Returns what became of the run so far.
    pub(crate) fn tally(&self) -> QuietTally {
        self.log.tally()
    }
}

impl QuietLog {
    fn new(begins: u64, count: usize) -> Self {
        Self {
            begins,
            arrivals: Mutex::new(vec![QuietArrival::default(); count]),
            received: AtomicU64::new(0),
            calls: Mutex::new(LagHistogram::new()),
            large_sent: AtomicU64::new(0),
            large_calls: Mutex::new(LagHistogram::new()),
        }
    }

    /// Records a webhook. The last part of its path is its number.
    fn note(&self, path: &str, lag_ms: u64) {
        let now = micros();
        let number = path.rsplit('/').next().and_then(|part| part.parse::<usize>().ok());
        let mut arrivals = lock(&self.arrivals);
        let Some(arrival) = number.and_then(|number| arrivals.get_mut(number)) else {
            return;
        };
        if arrival.times == 0 {
            (arrival.first, arrival.lag_ms) = (now, lag_ms);
            self.received.fetch_add(1, Ordering::Relaxed);
        }
        arrival.times += 1;
    }

    /// When a webhook is due, in milliseconds.
    const fn due(&self, number: u64) -> u64 {
        self.begins + number * 1000 / RATE
    }

    fn tally(&self) -> QuietTally {
        let (mut lags, mut shown) = (LagHistogram::new(), LagHistogram::new());
        let arrivals = lock(&self.arrivals);
        let mut doubled = 0;
        for (arrival, number) in arrivals.iter().zip(0..).filter(|(arrival, _)| arrival.times > 0) {
            lags.note(self.due(number) * 1000, arrival.first);
            shown.note(0, arrival.lag_ms * 1000);
            doubled += arrival.times - 1;
        }
        let large_calls = lock(&self.large_calls).clone();
        QuietTally {
            planned: arrivals.len() as u64,
            received: lags.count(),
            doubled,
            lags,
            shown,
            calls: lock(&self.calls).clone(),
            large_sent: self.large_sent.load(Ordering::Relaxed),
            large_calls,
        }
    }
}

/// Connections of the quiet namespace to the broker. A call takes one that is free.
#[derive(Debug)]
struct QuietConnections {
    address: String,
    plan: QuietPlan,
    free: Mutex<Vec<HttpConnection>>,
}

impl QuietConnections {
    fn new(address: &str, plan: QuietPlan) -> Self {
        Self { address: address.to_owned(), plan, free: Mutex::default() }
    }

    /// Schedules tasks until all are accepted. Returns how long it took, in microseconds.
    async fn schedule(&self, lines: String) -> u64 {
        let timer = BenchTimer::start();
        while !matches!(timeout(CALL_MAX, self.try_schedule(&lines)).await, Ok(Ok(()))) {
            pause(REPEAT_MS).await;
        }
        u64::try_from(timer.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    async fn try_schedule(&self, lines: &str) -> anyhow::Result<()> {
        let free = lock(&self.free).pop();
        let mut connection = match free {
            Some(connection) => connection,
            None => self.plan.connect(&self.address).await?,
        };
        let path = format!("/v1/{NAMESPACE}/tasks");
        let (status, body) =
            connection.request("POST", &path, "application/x-ndjson", lines.as_bytes()).await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(body));
        let answer: Value = serde_json::from_slice(body)?;
        let results = answer["results"].as_array().context("no results")?;
        let refused = results.iter().find(|result| !result["id"].is_string());
        lock(&self.free).push(connection);
        ensure!(refused.is_none(), "a task was refused: {refused:?}");
        Ok(())
    }
}

/// Schedules all webhooks, each batch [`AHEAD_MS`] before it is due, whether or not the batches
/// before it are accepted.
async fn send_all(
    connections: Arc<QuietConnections>,
    log: Arc<QuietLog>,
    keys: Vec<String>,
    url: String,
) {
    let mut calls = JoinSet::new();
    let mut numbers = 0..;
    for keys in keys.chunks(usize::try_from(BATCH).unwrap_or(1)) {
        let tasks = keys.iter().zip(&mut numbers).map(|(key, number)| {
            let due = log.due(number);
            let target = format!(r#"{{"http":{{"url":"{url}/{number}"}}}}"#);
            format!(r#"{{"key":"{key}","at":{due},"target":{target},"payload":{{"n":{number}}}}}"#)
        });
        let lines = tasks.collect::<Vec<_>>().join("\n");
        let first = log.due(numbers.start - keys.len() as u64);
        pause(first.saturating_sub(AHEAD_MS).saturating_sub(millis())).await;
        let (connections, log) = (Arc::clone(&connections), Arc::clone(&log));
        calls.spawn(async move {
            let took = connections.schedule(lines).await;
            lock(&log.calls).note(0, took);
        });
    }
    calls.join_all().await;
}

/// Sends batches over 512 KiB while webhooks are due. Their tasks are due in an hour.
async fn send_large(connections: Arc<QuietConnections>, log: Arc<QuietLog>, name: String) {
    let payload = "x".repeat(LARGE_PAYLOAD_BYTES);
    let mut calls = JoinSet::new();
    pause(log.begins.saturating_sub(millis())).await;
    for batch in 0..connections.plan.seconds * 1000 / LARGE_TICK_MS {
        let tasks = (0..LARGE_TASKS).map(|task| {
            let key = format!("{name}-large-{batch}-{task}");
            format!(
                r#"{{"key":"{key}","in":"1h","target":{{"queue":"large"}},"payload":"{payload}"}}"#
            )
        });
        let lines = tasks.collect::<Vec<_>>().join("\n");
        log.large_sent.fetch_add(1, Ordering::Relaxed);
        let (connections, log) = (Arc::clone(&connections), Arc::clone(&log));
        calls.spawn(async move {
            let took = connections.schedule(lines).await;
            lock(&log.large_calls).note(0, took);
        });
        pause(LARGE_TICK_MS).await;
    }
    calls.join_all().await;
}

/// Returns keys whose tasks are in the first of so many partitions.
pub(crate) fn keys_of_first(
    namespace: &str,
    name: &str,
    partitions: u16,
    count: u64,
) -> anyhow::Result<Vec<String>> {
    let (namespace, partitions) = (Namespace::new(namespace)?, Partitions::new(partitions)?);
    let mut keys = Vec::new();
    let mut number = 0u64;
    while (keys.len() as u64) < count {
        let key = format!("{name}-{number}");
        if partition_of(&namespace, &TaskKey::new(&key)?, partitions).get() == 0 {
            keys.push(key);
        }
        number += 1;
    }
    Ok(keys)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
