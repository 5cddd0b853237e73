//! The recurring tasks of a round: series, and watches that are touched at random brokers for a
//! while. `recurring_checks` checks what was received.
//!
//! All tasks are scheduled before the fault, so all of them exist. Each watch has a thread of its
//! own, because a call to a suspended broker waits for its timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use punctual_test_support::cluster::SharedServer;
use punctual_test_support::workers::STREAMED;
use punctual_test_support::{
    BrokerClient, RandomNumbers, TestCluster, eventually, millis, now_millis, pause,
};
use serde_json::{Value, json};

use crate::cluster::load::{CALL_TIMEOUT, CallOutcome, LoadReceivers, outcome_of};
use crate::recurring_checks::{
    Findings, TestSeries, TestWatch, TouchCall, check_series, check_watch,
};

const WATCHES: u64 = 8;
/// The time between two touches of a watch.
const TOUCH_INTERVAL: Duration = Duration::from_millis(250);
/// How long a series may take to fire again after the fault, in milliseconds.
const FIRES_AGAIN_MAX_MS: u128 = 10_000;

/// Series and watches of a round.
pub(crate) struct RecurringLoad {
    series: Vec<TestSeries>,
    touching: Vec<JoinHandle<TestWatch>>,
    stop: Arc<AtomicBool>,
}

/// Series and watches that are touched no more.
pub(crate) struct EndedRecurringLoad {
    series: Vec<TestSeries>,
    watches: Vec<TestWatch>,
}

impl RecurringLoad {
    pub(crate) fn start(
        cluster: &TestCluster<impl SharedServer>,
        receivers: &LoadReceivers,
        round: u64,
        seed: u64,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut random = RandomNumbers::new(seed ^ (round << 16) ^ 0x5e71e5);
        let clients: Vec<BrokerClient> =
            cluster.clients().iter().map(|client| client.with_timeout(CALL_TIMEOUT)).collect();
        let numbered = schedules().into_iter().zip(0..);
        let series = numbered.map(|((body, interval), n)| {
            let manner = if n % 3 == 1 { "slow" } else { "now" };
            let key = format!("r{round}-series-{n}-{manner}");
            begin_series(cluster.client(0), &receivers.url, key, body, interval)
        });
        let series = series.collect();
        let touching = (0..WATCHES).map(|n| {
            let (key, within) = (format!("r{round}-watch-{n}"), 1_200 + random.below(2_300));
            let watch = begin_watch(cluster.client(0), &receivers.url, key, within);
            let (clients, stop) = (clients.clone(), Arc::clone(&stop));
            let last_touch_at = now_millis() + u128::from(1_000 + random.below(7_000));
            let mut random = RandomNumbers::new(seed ^ (round << 24) ^ n);
            thread::spawn(move || {
                let mut watch = watch;
                while now_millis() < last_touch_at && !stop.load(Ordering::Relaxed) {
                    let client = &clients[random.index(clients.len())];
                    if !touch(client, &mut watch) {
                        break;
                    }
                    pause(TOUCH_INTERVAL);
                }
                watch
            })
        });
        let touching = touching.collect();
        Self { series, touching, stop }
    }

    /// Stops touching the watches.
    pub(crate) fn end(self) -> EndedRecurringLoad {
        self.stop.store(true, Ordering::Relaxed);
        let watches = self.touching.into_iter().map(|thread| thread.join().unwrap()).collect();
        EndedRecurringLoad { series: self.series, watches }
    }
}

impl EndedRecurringLoad {
    /// Counts all series and watches.
    pub(crate) fn count(&self) -> usize {
        self.series.len() + self.watches.len()
    }

    /// Waits until every series has fired again, then pauses all. Returns the time since which all
    /// is well; the history must have every fire before it.
    pub(crate) fn pause(
        &self,
        receivers: &LoadReceivers,
        client: &BrokerClient,
    ) -> Result<u64, String> {
        let recovered_at = now_millis();
        let fires_again = |series: &&TestSeries| {
            let deliveries = receivers.log.of(&series.key);
            deliveries.iter().any(|delivery| u128::from(delivery.fire_at_millis) >= recovered_at)
        };
        let mut stuck = self.series.iter().find(|series| !fires_again(series));
        while stuck.is_some() && now_millis() < recovered_at + FIRES_AGAIN_MAX_MS {
            pause(Duration::from_millis(50));
            stuck = self.series.iter().find(|series| !fires_again(series));
        }
        for series in &self.series {
            call(client, "POST", &format!("/v1/shop/tasks/{}/pause", series.key));
        }
        match stuck {
            Some(series) => Err(format!("the series does not fire again: {series:?}")),
            None => Ok(u64::try_from(recovered_at).unwrap()),
        }
    }

    /// Checks what was received, and deletes the series. [`EndedRecurringLoad::pause`] returns
    /// `recovered_at`.
    pub(crate) fn check(
        &self,
        receivers: &LoadReceivers,
        client: &BrokerClient,
        recovered_at: u64,
    ) -> Findings {
        let mut findings = Findings::default();
        for series in &self.series {
            let path = format!("/v1/shop/tasks/{}/fires?limit=1000", series.key);
            let mut of_series = Findings::default();
            // The last fire may not be settled yet.
            for _ in 0..10 {
                let page = call(client, "GET", &path);
                of_series =
                    check_series(series, &receivers.log.of(&series.key), &page, recovered_at);
                if of_series.violations.is_empty() {
                    break;
                }
                pause(Duration::from_millis(200));
            }
            findings = findings.and(of_series);
            call(client, "DELETE", &format!("/v1/shop/tasks/{}", series.key));
        }
        for watch in &self.watches {
            findings = findings.and(check_watch(watch, &receivers.log.of(&watch.key)));
        }
        findings
    }
}

/// Returns the schedules of the series, and their intervals in milliseconds.
fn schedules() -> [(Value, u64); 8] {
    let most = "at_most_once";
    let queue = json!({"queue": STREAMED});
    [
        (json!({"every": "300ms"}), 300),
        (json!({"every": "700ms", "overlap": "skip"}), 700),
        (json!({"every": "400ms", "guarantee": most}), 400),
        (json!({"cron": "* * * * * *", "timezone": "Europe/Berlin"}), 1_000),
        (json!({"cron": "* * * * * *", "guarantee": most}), 1_000),
        (json!({"cron": "*/2 * * * * *", "misfire": "fire_all"}), 2_000),
        (json!({"every": "500ms", "target": queue}), 500),
        (json!({"every": "1s", "overlap": "queue_one"}), 1_000),
    ]
}

fn begin_series(
    client: &BrokerClient,
    url: &str,
    key: String,
    mut body: Value,
    interval: u64,
) -> TestSeries {
    if body.get("target").is_none() {
        let manner = if key.ends_with("slow") { "slow" } else { "now" };
        body["target"] = json!({"http": {"url": format!("{url}/{manner}/{key}")}});
    }
    body["timeout"] = json!("1s");
    body["retry"] = json!({"attempts_max": 50, "backoff": {"fixed": "100ms"}, "jitter": 0});
    let at_most_once = body["guarantee"] == "at_most_once";
    let may_overlap = body.get("overlap").is_some();
    let (status, task) = client.put(&key, &body);
    assert_eq!(status, 201, "{task}");
    let first = millis(task["fire_at"].as_str().unwrap());
    TestSeries { key, first, interval, at_most_once, may_overlap }
}

fn begin_watch(client: &BrokerClient, url: &str, key: String, within: u64) -> TestWatch {
    let target = json!({"http": {"url": format!("{url}/now/{key}")}});
    let retry = json!({"attempts_max": 50, "backoff": {"fixed": "100ms"}, "jitter": 0});
    let body =
        json!({"within": format!("{within}ms"), "target": target, "timeout": "1s", "retry": retry});
    let (status, task) = client.put(&key, &body);
    assert_eq!(status, 201, "{task}");
    let (now, due) = (now(), Some(millis(task["fire_at"].as_str().unwrap())));
    TestWatch { key, within, touches: vec![TouchCall { sent_at: now, answered_at: now, due }] }
}

/// Touches a watch once. Returns false if the watch does not exist.
fn touch(client: &BrokerClient, watch: &mut TestWatch) -> bool {
    let sent_at = now();
    let answer = client.request("POST", &format!("/v1/shop/tasks/{}/touch", watch.key), "");
    let due = match (outcome_of(answer.as_ref()), &answer) {
        (CallOutcome::NotDone, Some((400..=499, _))) => return false,
        (CallOutcome::NotDone, _) => return true,
        (CallOutcome::Done, Some((_, task))) => Some(millis(task["fire_at"].as_str().unwrap())),
        (CallOutcome::Done | CallOutcome::Unknown, _) => None,
    };
    watch.touches.push(TouchCall { sent_at, answered_at: now(), due });
    true
}

fn now() -> u64 {
    u64::try_from(now_millis()).unwrap()
}

/// Sends a request until it is answered with 200.
fn call(client: &BrokerClient, method: &str, path: &str) -> Value {
    let answered = || client.request(method, path, "").filter(|(status, _)| *status == 200);
    eventually(answered).1
}
