//! Tasks that go on beside the load of a round: series, and watches that are touched at random brokers until they are not.
//!
//! In: a cluster that is whole. Out: what was acknowledged, for the judge of `faults/again.rs`. All are asked for before the fault, so all
//! are there; each watch has a toucher of its own, because a broker that is held keeps one waiting.

use crate::cluster::load::{CALL_TIMEOUT, CallOutcome, LoadReceivers, outcome_of};
use crate::recurring_checks::{
    Findings, TestSeries, TestWatch, TouchCall, check_series, check_watch,
};
use punctual_test_support::cluster::SharedRedis;
use punctual_test_support::workers::STREAMED;
use punctual_test_support::{
    BrokerClient, RandomNumbers, TestCluster, eventually, millis, now_millis, pause,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

const WATCHES: u64 = 8;
/// Between two touches of a watch.
const PACE: Duration = Duration::from_millis(250);
/// How long a series may take to go on when all is well again.
const GOES_ON_MAX: u128 = 10_000;

/// Series and watches of a round.
pub(crate) struct RecurringLoad {
    series: Vec<TestSeries>,
    touching: Vec<JoinHandle<TestWatch>>,
    stop: Arc<AtomicBool>,
}

/// They are asked for no more.
pub(crate) struct EndedRecurringLoad {
    series: Vec<TestSeries>,
    watches: Vec<TestWatch>,
}

impl RecurringLoad {
    pub(crate) fn start(
        cluster: &TestCluster<impl SharedRedis>,
        receivers: &LoadReceivers,
        round: u64,
        seed: u64,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut random = RandomNumbers::new(seed ^ (round << 16) ^ 0x5e71e5);
        let clients: Vec<BrokerClient> =
            cluster.clients().iter().map(|client| client.with_timeout(CALL_TIMEOUT)).collect();
        let rules = rules();
        let numbered = rules.into_iter().zip(0..);
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
            let silent_at = now_millis() + u128::from(1_000 + random.below(7_000));
            let mut random = RandomNumbers::new(seed ^ (round << 24) ^ n);
            thread::spawn(move || {
                let mut watch = watch;
                while now_millis() < silent_at && !stop.load(Ordering::Relaxed) {
                    let index = usize::try_from(random.below(clients.len() as u64)).unwrap();
                    if !touch(&clients[index], &mut watch) {
                        break;
                    }
                    pause(PACE);
                }
                watch
            })
        });
        let touching = touching.collect();
        Self { series, touching, stop }
    }

    /// From here on all watches are silent.
    pub(crate) fn end(self) -> EndedRecurringLoad {
        self.stop.store(true, Ordering::Relaxed);
        let watches = self.touching.into_iter().map(|it| it.join().unwrap()).collect();
        EndedRecurringLoad { series: self.series, watches }
    }
}

impl EndedRecurringLoad {
    /// How many tasks they are.
    pub(crate) fn count(&self) -> usize {
        self.series.len() + self.watches.len()
    }

    /// When all is well again every series goes on, and then is paused. Out: what came before this must be known.
    pub(crate) fn pause(
        &self,
        receivers: &LoadReceivers,
        client: &BrokerClient,
    ) -> Result<u64, String> {
        let well_at = now_millis();
        let goes_on = |series: &&TestSeries| {
            let deliveries = receivers.log.of(&series.key);
            deliveries.iter().any(|delivery| u128::from(delivery.fire_at_millis) >= well_at)
        };
        let mut stand = self.series.iter().find(|series| !goes_on(series));
        while stand.is_some() && now_millis() < well_at + GOES_ON_MAX {
            pause(Duration::from_millis(50));
            stand = self.series.iter().find(|series| !goes_on(series));
        }
        for series in &self.series {
            ask(client, "POST", &format!("/v1/shop/tasks/{}/pause", series.key));
        }
        match stand {
            Some(series) => Err(format!("it does not go on: {series:?}")),
            None => Ok(u64::try_from(well_at).unwrap()),
        }
    }

    /// Judges what has come to rest, and puts the series away. `well_at` as it was answered by [`EndedRecurringLoad::pause`].
    pub(crate) fn judge(
        &self,
        receivers: &LoadReceivers,
        client: &BrokerClient,
        well_at: u64,
    ) -> Findings {
        let mut findings = Findings::default();
        for series in &self.series {
            let path = format!("/v1/shop/tasks/{}/fires?limit=1000", series.key);
            let mut of_it = Findings::default();
            // The last of them may just be settled.
            for _ in 0..10 {
                let page = ask(client, "GET", &path);
                of_it = check_series(series, &receivers.log.of(&series.key), &page, well_at);
                if of_it.violations.is_empty() {
                    break;
                }
                pause(Duration::from_millis(200));
            }
            findings = findings.and(of_it);
            ask(client, "DELETE", &format!("/v1/shop/tasks/{}", series.key));
        }
        for watch in &self.watches {
            findings = findings.and(check_watch(watch, &receivers.log.of(&watch.key)));
        }
        findings
    }
}

/// What series there are, and how far their times are apart.
fn rules() -> [(Value, u64); 8] {
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
    let apart = body.get("overlap").is_some();
    let (status, task) = client.put(&key, &body);
    assert_eq!(status, 201, "{task}");
    let first = millis(task["fire_at"].as_str().unwrap());
    TestSeries { key, first, interval, at_most_once, apart }
}

fn begin_watch(client: &BrokerClient, url: &str, key: String, within: u64) -> TestWatch {
    let target = json!({"http": {"url": format!("{url}/now/{key}")}});
    let retry = json!({"attempts_max": 50, "backoff": {"fixed": "100ms"}, "jitter": 0});
    let body =
        json!({"within": format!("{within}ms"), "target": target, "timeout": "1s", "retry": retry});
    let (status, task) = client.put(&key, &body);
    assert_eq!(status, 201, "{task}");
    let (now, due) = (now(), Some(millis(task["fire_at"].as_str().unwrap())));
    TestWatch { key, within, touches: vec![TouchCall { asked_at: now, answered_at: now, due }] }
}

/// Touches it once. Out: whether it is there to be touched.
fn touch(client: &BrokerClient, watch: &mut TestWatch) -> bool {
    let asked_at = now();
    let answer = client.request("POST", &format!("/v1/shop/tasks/{}/touch", watch.key), "");
    let due = match (outcome_of(answer.as_ref()), &answer) {
        (CallOutcome::NotDone, Some((400..=499, _))) => return false,
        (CallOutcome::NotDone, _) => return true,
        (CallOutcome::Done, Some((_, task))) => Some(millis(task["fire_at"].as_str().unwrap())),
        (CallOutcome::Done | CallOutcome::Unknown, _) => None,
    };
    watch.touches.push(TouchCall { asked_at, answered_at: now(), due });
    true
}

fn now() -> u64 {
    u64::try_from(now_millis()).unwrap()
}

/// Asks until it is answered.
fn ask(client: &BrokerClient, method: &str, path: &str) -> Value {
    let answered = || client.request(method, path, "").filter(|(status, _)| *status == 200);
    eventually(answered).1
}
