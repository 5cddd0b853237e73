//! Callbacks and kill -9: each fire that ended as done or dead is reported, with its record and
//! under one id; no other fire is.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=50 cargo test --release -p punctual --test faults -- --nocapture
//! callbacks::`. `PUNCTUAL_CRASH_SEED` chooses the moments of the kills.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use punctual_test_support::ports::free_address;
use punctual_test_support::redis::RedisServer;
use punctual_test_support::{
    BrokerClient, BrokerProcess, RandomNumbers, RecordingReceiver, TestCluster, WebhookReceiver,
    now_millis, pause,
};
use serde_json::{Value, json};

use crate::workers::all_ended;

/// How many callers there are at the same time.
const CALLERS: u64 = 4;
/// The queue of the tasks.
const WORK: &str = "work";
/// The queue of their callbacks.
const ENDS: &str = "ends";

/// A task and the answer to its schedule call.
#[derive(Debug)]
struct ReportedTask {
    key: String,
    on_done: Value,
    on_dead: Value,
    /// `None` if there was no answer.
    acknowledged: Option<bool>,
}

/// A callback that was received.
#[derive(Debug)]
struct ReceivedCallback {
    /// The same for all deliveries of one callback.
    fire_id: String,
    /// The fire that it reports.
    callback_of: String,
    record: Value,
}

/// Where tasks and their callbacks go.
struct CallbackTargets {
    tasks: RecordingReceiver,
    callbacks: WebhookReceiver,
    queued: Arc<Mutex<Vec<ReceivedCallback>>>,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

impl CallbackTargets {
    /// Starts receivers, and workers that poll any of the brokers that answers.
    fn start(brokers: &[SocketAddr]) -> Self {
        let (queued, stop) = (Arc::default(), Arc::default());
        let poll_queue = |queue: &'static str| {
            let (queued, stop) = (Arc::clone(&queued), Arc::clone(&stop));
            let clients = brokers.iter().map(|it| BrokerClient::new(*it, Duration::from_secs(5)));
            let clients: Vec<_> = clients.collect();
            thread::spawn(move || poll(&clients, queue, &queued, &stop))
        };
        let workers = vec![poll_queue(WORK), poll_queue(ENDS), poll_queue(ENDS)];
        let (tasks, callbacks) = (RecordingReceiver::start(), WebhookReceiver::start());
        Self { tasks, callbacks, queued, stop, workers }
    }

    /// Stops the workers. Returns all callbacks that were received.
    fn stop(self) -> Vec<ReceivedCallback> {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.join().unwrap();
        }
        let mut received = std::mem::take(&mut *self.queued.lock().unwrap());
        for webhook in self.callbacks.received() {
            // A callback that did not come whole was not received.
            if webhook.header("content-length") != webhook.body.len().to_string() {
                continue;
            }
            received.push(ReceivedCallback {
                fire_id: webhook.header("webhook-id").to_owned(),
                callback_of: webhook.header("punctual-callback-of").to_owned(),
                record: serde_json::from_slice(&webhook.body).unwrap(),
            });
        }
        received
    }
}

/// Runs a worker that records callbacks, acks tasks and refuses those with a key of `…-dead`.
fn poll(
    clients: &[BrokerClient],
    queue: &str,
    received: &Mutex<Vec<ReceivedCallback>>,
    stop: &AtomicBool,
) {
    let post = |client: &BrokerClient, verb: &str, body: &Value| {
        let path = format!("/v1/shop/queues/{queue}/{verb}");
        let answer = client.request("POST", &path, &body.to_string());
        answer.filter(|(status, _)| *status == 200).map(|(_, answer)| answer)
    };
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let client = &clients[turn % clients.len()];
        let lease = json!({"max": 20, "wait": "300ms", "lease": "1s"});
        let Some(answer) = post(client, "lease", &lease) else {
            pause(Duration::from_millis(20));
            continue;
        };
        for delivery in answer["deliveries"].as_array().unwrap() {
            let text = |name: &str| delivery[name].as_str().unwrap_or_default().to_owned();
            if queue == ENDS {
                received.lock().unwrap().push(ReceivedCallback {
                    fire_id: text("fire_id"),
                    callback_of: text("callback_of"),
                    record: delivery["payload"].clone(),
                });
            }
            let token = &delivery["token"];
            let _ = match text("key").ends_with("-dead") {
                true => post(client, "refuse", &json!({"token": token, "reason": "no order"})),
                false => {
                    let acks = json!([{"token": token, "result": {"turn": turn}}]);
                    post(client, "ack", &json!({ "acks": acks }))
                }
            };
        }
    }
}

/// Schedules tasks that are due within half a second, and cancels or replaces some, until there is
/// no answer or `stop` is set.
fn schedule(
    client: &BrokerClient,
    (tasks, callbacks): (&str, &str),
    prefix: &str,
    stop: &AtomicBool,
) -> Vec<ReportedTask> {
    let mut all = Vec::new();
    for n in 0..u64::MAX {
        let end = if n % 5 < 2 { "dead" } else { "done" };
        let key = format!("{prefix}-{n}-{end}");
        let at_most_once = n % 3 == 0;
        // A claim is in flight long enough that kills meet it.
        let manner = match (at_most_once, end) {
            (true, "dead") => "slow-failing",
            (true, _) => "slow",
            (false, "dead") => "failing",
            (false, _) => "now",
        };
        let target = match n % 7 {
            6 => json!({ "queue": WORK }),
            _ => json!({"http": {"url": format!("{tasks}/{manner}/{key}")}}),
        };
        let webhook = json!({"http": {"url": format!("{callbacks}/{key}")}});
        let queue = json!({ "queue": ENDS });
        let (on_done, on_dead) = match n % 4 {
            0 => (webhook.clone(), queue),
            1 => (queue, webhook),
            2 => (Value::Null, webhook),
            _ => (queue, Value::Null),
        };
        let mut body = json!({
            "at": u64::try_from(now_millis()).unwrap() + n * 613 % 500,
            "guarantee": if at_most_once { "at_most_once" } else { "at_least_once" },
            "target": target,
            "timeout": "1s",
            "retry": {"attempts_max": 2, "backoff": {"fixed": "50ms"}, "jitter": 0},
        });
        for (name, callback) in [("on_done", &on_done), ("on_dead", &on_dead)] {
            if !callback.is_null() {
                body[name] = callback.clone();
            }
        }
        let acknowledged = client.try_put(&key, &body);
        let answered = match n % 11 {
            _ if acknowledged != Some(true) => acknowledged,
            4 => client.request_task("DELETE", &key, "").map(|_| true),
            5 => client.try_put(&key, &body),
            _ => acknowledged,
        };
        all.push(ReportedTask { key, on_done, on_dead, acknowledged });
        if answered.is_none() || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    all
}

/// Returns the records of all fires that have ended.
fn all_fires(client: &BrokerClient) -> Vec<Value> {
    let (mut fires, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = client.get(&format!("/fires?limit=1000{cursor}"));
        assert_eq!(status, 200, "{page}");
        fires.extend(page["fires"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return fires,
        }
    }
}

/// Checks the callbacks when everything has ended. Returns how many fires ended in which way.
fn check(
    client: &BrokerClient,
    tasks: &[ReportedTask],
    callbacks: &[ReceivedCallback],
) -> BTreeMap<String, u64> {
    let fires = all_fires(client);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let by_id: HashMap<String, &Value> =
        fires.iter().map(|fire| (text(&fire["fire_id"]), fire)).collect();
    assert_eq!(by_id.len(), fires.len(), "a fire is listed once");
    let mut by_fire: HashMap<&str, Vec<&ReceivedCallback>> = HashMap::new();
    for callback in callbacks {
        let reported = by_id.get(&callback.callback_of);
        let reported = reported.unwrap_or_else(|| panic!("of no fire: {callback:?}"));
        assert!(reported["key"].is_string(), "a callback has none of its own: {callback:?}");
        by_fire.entry(&callback.callback_of).or_default().push(callback);
    }
    let of_key: HashMap<&str, &ReportedTask> =
        tasks.iter().map(|task| (task.key.as_str(), task)).collect();
    let mut counts = BTreeMap::new();
    for (fire_id, fire) in &by_id {
        let Some(key) = fire["key"].as_str() else {
            // The provisional callback of a claim whose outcome became known is replaced.
            assert!(fire["end"] == "done" || fire["end"] == "replaced", "{fire}");
            continue;
        };
        let (task, got) = (of_key[key], by_fire.remove(fire_id.as_str()).unwrap_or_default());
        let target = match fire["end"].as_str() {
            Some("done") => &task.on_done,
            Some("dead") => &task.on_dead,
            _ => &Value::Null,
        };
        assert_eq!(got.is_empty(), target.is_null(), "{task:?} {fire} {got:?}");
        let ids: BTreeSet<&str> = got.iter().map(|callback| callback.fire_id.as_str()).collect();
        assert!(ids.len() <= 1, "several callbacks of one end: {fire} {got:?}");
        for id in ids {
            assert_eq!(by_id[id]["end"], "done", "{} {fire}", by_id[id]);
        }
        for callback in &got {
            assert_eq!(&callback.record, *fire, "the payload is the record");
        }
        let again = if got.len() > 1 { " and reported again" } else { "" };
        let why = fire["reason"].as_str().unwrap_or_default();
        if why == "unknown" {
            let (_, explained) = client.get(&format!("/tasks/{key}/explain"));
            let summary = explained["summary"].as_str().unwrap_or_default();
            assert!(summary.contains("the outcome is not known"), "{explained}");
        }
        *counts.entry(format!("{} {why}{again}", text(&fire["end"]))).or_default() += 1;
    }
    let ended: BTreeSet<&str> = fires.iter().filter_map(|fire| fire["key"].as_str()).collect();
    for task in tasks.iter().filter(|task| task.acknowledged == Some(true)) {
        assert!(ended.contains(task.key.as_str()), "acknowledged and never ended: {task:?}");
    }
    counts
}

#[test]
fn a_broker_killed_repeatedly_reports_each_end_with_its_record_and_under_one_id() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("PUNCTUAL_KILL_ROUNDS").unwrap_or(5);
    let mut random = RandomNumbers::new(number("PUNCTUAL_CRASH_SEED").unwrap_or(7));
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let targets = CallbackTargets::start(&[address]);
    let (mut tasks, stop) = (Vec::new(), AtomicBool::new(false));
    let start = || BrokerProcess::start_at(address, dir.path(), &["--partitions", "4"]);
    for round in 0..rounds {
        let (process, client) = start();
        let urls = (targets.tasks.url.as_str(), targets.callbacks.url.as_str());
        thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|number| {
                    let (client, stop) = (&client, &stop);
                    let prefix = format!("k{round}-{number}");
                    scope.spawn(move || schedule(client, urls, &prefix, stop))
                })
                .collect();
            pause(Duration::from_millis(150 + random.below(700)));
            process.kill();
            tasks.extend(callers.into_iter().flat_map(|caller| caller.join().unwrap()));
        });
    }
    let (process, client) = start();
    all_ended(&client);
    let counts = check(&client, &tasks, &targets.stop());
    println!("{rounds} kills, {} tasks: {counts:?}", tasks.len());
    for wanted in ["done ", "dead exhausted", "dead refused", "dead unknown", "cancelled "] {
        assert!(counts.contains_key(wanted), "never {wanted}: {counts:?}");
    }
    process.kill();
}

#[test]
fn a_broker_of_two_that_is_killed_has_its_ends_reported_by_the_other() {
    let mut cluster = TestCluster::over(RedisServer::start(&[]), 2, &["--partitions", "4"], None);
    let targets = CallbackTargets::start(&cluster.addresses());
    let (clients, stop) = (cluster.clients(), AtomicBool::new(false));
    let urls = (targets.tasks.url.as_str(), targets.callbacks.url.as_str());
    let tasks: Vec<ReportedTask> = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let client = &clients[usize::try_from(number).unwrap() % 2];
                let (prefix, stop) = (format!("k{number}"), &stop);
                scope.spawn(move || schedule(client, urls, &prefix, stop))
            })
            .collect();
        pause(Duration::from_millis(700));
        cluster.brokers[0].kill();
        stop.store(true, Ordering::Relaxed);
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    cluster.wait_until_whole();
    all_ended(&clients[1]);
    let counts = check(&clients[1], &tasks, &targets.stop());
    println!("{} tasks: {counts:?}", tasks.len());
    for wanted in ["done ", "dead exhausted"] {
        assert!(counts.contains_key(wanted), "never {wanted}: {counts:?}");
    }
}
