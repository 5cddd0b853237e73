//! Live feeds: what happens in a namespace, or in all, once a second.
//!
//! A feed runs while it has listeners, and all of them share its messages: each second is counted
//! and summed over all brokers once, and rendered as text once. A listener that does not read
//! misses messages, and a feed never waits for one. Feeds end when the broker drains.
//! `api/http/live` and `api/grpc/measures` pass the messages on ([`pass_on`]) and bound the number
//! of listeners, and with it that of feeds.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use punctual_core::{Clock as _, Namespace, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::count_tasks::{count_all_tasks, count_tasks};
use super::live_feeds::Listening;
use super::measured_second::{LiveMessage, MeasuredSecond, RATES_OVER};
use super::task_stats::TaskStats;
use crate::broker::Broker;
use crate::gather_measures::sum_windows;
use crate::measures::windows::{WindowCounts, WindowSpec, WindowSum};
use crate::problem::Problem;
use crate::shares::SharePermit;

/// Messages that wait for a listener.
pub(crate) const UNREAD_MAX: usize = 2;
/// How long a listener may read nothing.
const READ_MAX: Duration = Duration::from_secs(30);
/// How often a feed has a message.
const EVERY: Duration = Duration::from_secs(1);
/// The window of lags.
const LAGS_OVER: Duration = Duration::from_secs(60);
/// Counting tasks takes at most this part of the time. With very many partitions or namespaces the
/// counts are therefore older than the rest of a message.
const COUNT_PART: u32 = 10;

/// Listens to the feed of a namespace, or of all, which is started if it has no other listener.
pub(crate) fn listen(
    broker: &Arc<Broker>,
    namespace: Option<Namespace>,
) -> watch::Receiver<LiveMessage> {
    match broker.live.listen(&namespace) {
        Listening::Joined(messages) => messages,
        Listening::First(feed, messages) => {
            tokio::spawn(run(Arc::clone(broker), namespace, feed));
            messages
        }
    }
}

/// Passes messages on until the listener leaves or does not read, or the broker drains. `convert`
/// makes what the listener gets.
pub(crate) async fn pass_on<T>(
    broker: Arc<Broker>,
    namespace: Option<Namespace>,
    listener: mpsc::Sender<T>,
    convert: impl Fn(&Broker, &MeasuredSecond, &OnceLock<Bytes>) -> T,
    _permit: SharePermit,
) {
    let mut draining = broker.draining.clone();
    let mut messages = listen(&broker, namespace);
    loop {
        tokio::select! {
            changed = messages.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = listener.closed() => return,
            _ = draining.wait_for(|draining| *draining) => return,
        }
        let Some(message) = messages.borrow_and_update().clone() else { continue };
        let sent = convert(&broker, &message.0, &message.1);
        match timeout(READ_MAX, listener.send(sent)).await {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
}

/// Runs a feed until it has no listener or the broker drains.
async fn run(broker: Arc<Broker>, namespace: Option<Namespace>, feed: watch::Sender<LiveMessage>) {
    let mut draining = broker.draining.clone();
    let messages = async {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut counter = Counter { stats: None, again_at: Timestamp::EPOCH };
        loop {
            ticks.tick().await;
            if broker.live.remove_unused(&namespace) {
                return;
            }
            if let Some(second) = counter.second(&broker, &namespace).await {
                feed.send_replace(Some(Arc::new((second, OnceLock::new()))));
            }
        }
    };
    tokio::select! {
        () = messages => {}
        _ = draining.wait_for(|draining| *draining) => {
            broker.live.remove(&namespace);
        }
    }
}

/// Counts tasks, and remembers when to count them again.
struct Counter {
    stats: Option<TaskStats>,
    again_at: Timestamp,
}

impl Counter {
    /// Measures a second. `None` if tasks could not be counted yet.
    async fn second(
        &mut self,
        broker: &Arc<Broker>,
        namespace: &Option<Namespace>,
    ) -> Option<MeasuredSecond> {
        let started = broker.clock.now();
        if started >= self.again_at {
            match count(broker, namespace.as_ref(), started).await {
                Ok(stats) => self.stats = Some(stats),
                Err(problem) => {
                    tracing::debug!(problem = problem.detail(), "tasks not counted for live feed");
                }
            }
            let now = broker.clock.now();
            self.again_at = now.after(now.since(started) * COUNT_PART);
        }
        let spec = |window| WindowSpec {
            namespace: namespace.clone(),
            window,
            counts: WindowCounts::Ends,
        };
        let sums = sum_windows(broker, &[spec(RATES_OVER), spec(LAGS_OVER)]).await.sum;
        let [rates, minute] = <[WindowSum; 2]>::try_from(sums).ok()?;
        Some(MeasuredSecond { at: broker.clock.now(), stats: self.stats?, rates, minute })
    }
}

async fn count(
    broker: &Broker,
    namespace: Option<&Namespace>,
    now: Timestamp,
) -> Result<TaskStats, Problem> {
    match namespace {
        Some(namespace) => count_tasks(broker, namespace, now).await,
        None => count_all_tasks(broker, now).await,
    }
}
