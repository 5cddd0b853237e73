//! A broker that is killed or stopped while workers, on streams and by long poll, hold leases.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=50 cargo test --release -p punctual --test faults -- --nocapture
//! workers::a_broker_killed`. The results are in `docs/lab/faults.md`.

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

use punctual_client::{Client, Failure};
use punctual_test_support::ports::free_address;
use punctual_test_support::workers::{POLLED, STREAMED};
use punctual_test_support::{
    BrokerClient, BrokerProcess, DeliveryLog, ReceivedDelivery, Workers, eventually, now_millis,
    pause,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// How many callers there are at the same time.
const CALLERS: u64 = 4;

/// A task and the answer to its schedule call.
#[derive(Debug, Clone)]
struct WorkerTask {
    key: String,
    due_millis: u64,
    guarantee: &'static str,
    /// `None` if there was no answer.
    acknowledged: Option<bool>,
}

#[test]
fn a_broker_killed_while_workers_hold_leases_loses_and_doubles_nothing() {
    let rounds = std::env::var("PUNCTUAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let (log, _) = DeliveryLog::new();
    let workers = Workers::start(address, &log);
    let mut tasks = Vec::new();
    for round in 0..rounds {
        let (process, client) = BrokerProcess::start_at(address, dir.path(), &[]);
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let client = client.clone();
                thread::spawn(move || schedule_until_killed(&client, round, number))
            })
            .collect();
        // Time for workers to reconnect, and for leases of a second to end.
        pause(Duration::from_millis(1200 + round * 7919 % 800));
        process.kill();
        tasks.extend(callers.into_iter().flat_map(|caller| caller.join().unwrap()));
    }
    let (process, client) = BrokerProcess::start_at(address, dir.path(), &[]);
    let stats = all_ended(&client);
    let unknown = unknown_letters(&client);
    check(&tasks, &log.deliveries(), &workers, &unknown);
    check_stats(&tasks, &stats, unknown.len());
    println!("{rounds} kills, {} tasks: {stats}", tasks.len());
    drop(workers);
    process.kill();
}

/// Waits until all tasks have ended, while there is progress. Returns the stats.
pub(crate) fn all_ended(client: &BrokerClient) -> Value {
    let stats = || client.request("GET", "/v1/shop/stats", "").expect("it answers").1;
    let mut last = stats();
    loop {
        if last["scheduled"] == 0 && last["firing"] == 0 {
            return last;
        }
        last = eventually(|| {
            let stats = stats();
            let progress = ["done", "dead"].iter().any(|state| stats[*state] != last[*state]);
            progress.then_some(stats)
        });
    }
}

/// Schedules tasks that are due within a second and a half, until there is no answer.
fn schedule_until_killed(client: &BrokerClient, round: u64, number: u64) -> Vec<WorkerTask> {
    let mut all = Vec::new();
    for n in 0..u64::MAX {
        let guarantee = ["at_least_once", "at_most_once", "exactly_once"][(n % 3) as usize];
        // Some are acked late, and some not at all in their first attempt.
        let manner = match n % 20 {
            7 => "lost",
            n if n % 8 == 1 => "slow",
            _ => "now",
        };
        let key = format!("k{round}-{number}-{n}-{manner}");
        let due_millis = u64::try_from(now_millis()).unwrap() + (n * 613 + number * 97) % 1500;
        let body = json!({
            "at": due_millis,
            "guarantee": guarantee,
            "target": {"queue": if n % 2 == 0 { STREAMED } else { POLLED }},
            "timeout": "1s",
            "retry": {"attempts_max": 50, "backoff": {"fixed": "50ms"}, "jitter": 0},
        });
        let acknowledged = client.try_put(&key, &body);
        all.push(WorkerTask { key, due_millis, guarantee, acknowledged });
        if acknowledged.is_none() {
            break;
        }
    }
    all
}

/// Returns the keys of all dead letters. All must have the reason `unknown`.
fn unknown_letters(client: &BrokerClient) -> HashSet<String> {
    let (mut keys, mut cursor) = (HashSet::new(), String::new());
    loop {
        let (status, page) =
            client.request("GET", &format!("/v1/shop/dead?limit=1000{cursor}"), "").unwrap();
        assert_eq!(status, 200, "{page}");
        for letter in page["dead"].as_array().unwrap() {
            assert_eq!(letter["reason"], "unknown", "{letter}");
            let task = &letter["task"];
            assert_eq!(task["guarantee"], "at_most_once", "{letter}");
            assert!(keys.insert(task["key"].as_str().unwrap().to_owned()), "{letter}");
        }
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return keys,
        }
    }
}

fn check(
    tasks: &[WorkerTask],
    deliveries: &HashMap<String, Vec<ReceivedDelivery>>,
    workers: &Workers,
    unknown: &HashSet<String>,
) {
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for task in tasks {
        let got = deliveries.get(&task.key).map_or([].as_slice(), Vec::as_slice);
        assert_ne!(task.acknowledged, Some(false), "refused: {task:?}");
        for delivery in got {
            assert!(delivery.at_millis >= task.due_millis.into(), "early: {task:?} {delivery:?}");
        }
        let ids: HashSet<&str> = got.iter().map(|delivery| delivery.fire_id.as_str()).collect();
        assert!(ids.len() <= 1, "several ids of one fire: {task:?} {got:?}");
        for id in ids {
            assert_eq!(workers.effects.of(id), 1, "one effect: {task:?} {got:?}");
        }
        let what = match (task.guarantee, got.len()) {
            ("at_most_once", 0) if task.acknowledged == Some(true) => {
                assert!(unknown.contains(&task.key), "never sent, and no dead letter: {task:?}");
                "at most once, never received, unknown"
            }
            ("at_most_once", 1) if unknown.contains(&task.key) => "at most once, received, unknown",
            ("at_most_once", 1) => "at most once, received, done",
            ("at_most_once", 2..) => panic!("at most once, and again: {task:?} {got:?}"),
            (_, 0) if task.acknowledged == Some(true) => {
                panic!("acknowledged and never received: {task:?}")
            }
            (_, 0) => "unanswered, never received",
            (_, 1) => "at least once, once",
            (_, 2..) => "at least once, again",
        };
        *counts.entry(what).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable();
    println!("{counts:?}");
    for wanted in ["at most once, received, done", "at least once, once", "at least once, again"] {
        assert!(counts.iter().any(|(what, _)| *what == wanted), "never {wanted}: {counts:?}");
    }
}

/// Checks that everything accepted has ended, and that every end is counted once.
fn check_stats(tasks: &[WorkerTask], stats: &Value, unknown: usize) {
    let number = |name: &str| usize::try_from(stats[name].as_u64().unwrap()).unwrap();
    let acknowledged = tasks.iter().filter(|task| task.acknowledged == Some(true)).count();
    let accepted = number("accepted");
    assert!(
        (acknowledged..=tasks.len()).contains(&accepted),
        "{acknowledged} acknowledged: {stats}"
    );
    assert_eq!(number("done") + number("dead"), accepted, "{stats}");
    assert_eq!((number("dead"), number("dead_letters")), (unknown, unknown), "{stats}");
    for none in ["scheduled", "firing", "paused", "cancelled", "queued", "oldest_overdue_ms"] {
        assert_eq!(number(none), 0, "{none}: {stats}");
    }
}

/// Returns a task for a queue that is due now.
fn due(guarantee: &str, queue: &str) -> Value {
    json!({
        "in": "0s",
        "guarantee": guarantee,
        "target": {"queue": queue},
        "timeout": "10m",
        "retry": {"attempts_max": 1},
    })
}

/// Leases one delivery by long poll, for ten minutes.
fn lease(client: &BrokerClient) -> Value {
    let body = json!({"wait": "10s", "lease": "10m"}).to_string();
    let (status, mut answer) =
        client.request("POST", &format!("/v1/shop/queues/{POLLED}/lease"), &body).unwrap();
    assert_eq!(status, 200, "{answer}");
    answer["deliveries"][0].take()
}

fn ack(client: &BrokerClient, delivery: &Value) -> Option<Value> {
    let body = json!({"tokens": [delivery["token"]]}).to_string();
    let (_, answer) = client.request("POST", &format!("/v1/shop/queues/{POLLED}/ack"), &body)?;
    Some(answer["results"][0]["result"].clone())
}

/// Waits for the end of a broker after SIGTERM: without an error, and in time. Returns how long it
/// took, in milliseconds.
fn assert_stops(process: BrokerProcess, signalled_at: u128, within: Duration) -> u128 {
    let (status, log) = process.end();
    let took = now_millis() - signalled_at;
    assert!(status.success(), "{status}\n{log}");
    assert!(took <= within.as_millis(), "it took {took} ms:\n{log}");
    took
}

/// Starts a broker whose store must have been closed.
fn start_clean(dir: &Path, address: SocketAddr) -> (BrokerProcess, BrokerClient) {
    let (process, client) = BrokerProcess::start_at(address, dir, &[]);
    let opened = process.logged("store open").expect("the log has how the store opened");
    assert_eq!((&opened["replayed"], &opened["clean"]), (&json!(0), &json!(true)), "{opened}");
    (process, client)
}

#[test]
fn a_stopping_broker_lets_workers_settle_their_deliveries() {
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let (process, client) = BrokerProcess::start_at(address, dir.path(), &["--grace", "20s"]);
    let (started, mut starts) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connect = async { Client::connect(format!("http://{address}")).unwrap() };
    let worker = runtime.block_on(connect).namespace("shop").worker(STREAMED).handler(move |_| {
        let started = started.clone();
        async move {
            let _ = started.send(());
            // The broker stops while this handler runs.
            let work = std::future::pending::<()>();
            let _ = tokio::time::timeout(Duration::from_millis(1500), work).await;
            Ok(())
        }
    });
    let worker = runtime.block_on(async { worker.spawn() });
    assert_eq!(client.try_put("streamed", &due("at_most_once", STREAMED)), Some(true));
    assert_eq!(client.try_put("polled", &due("at_least_once", POLLED)), Some(true));
    assert_eq!(client.try_put("later", &due("at_least_once", "idle")), Some(true));
    starts.blocking_recv().unwrap();
    let held = lease(&client);

    process.signal("-TERM");
    let signalled_at = now_millis();
    let (_, problem) = eventually(|| client.request("GET", "/readyz", "").filter(|it| it.0 == 503));
    assert!(problem["reasons"][0].as_str().unwrap().starts_with("draining"), "{problem}");
    let (status, problem) =
        client.request_task("PUT", "new", &due("at_least_once", POLLED).to_string()).unwrap();
    assert_eq!((status, &problem["type"]), (503, &json!("urn:punctual:stopping")), "{problem}");
    let polled = client.request("POST", &format!("/v1/shop/queues/{POLLED}/lease"), "{}").unwrap();
    assert_eq!(polled.0, 503, "a stopping broker leases nothing: {polled:?}");
    assert_eq!(ack(&client, &held), Some(json!("acked")));
    assert_eq!(ack(&client, &held), Some(json!("stale")));
    let took = assert_stops(process, signalled_at, Duration::from_secs(6));
    println!("stopped {took} ms after SIGTERM, of which a handler ran about 1500");
    let worked = runtime.block_on(worker.stop()).unwrap();
    assert_eq!((worked.acked, worked.stale, worked.unsettled), (1, 0, 0), "{worked:?}");

    let (process, client) = start_clean(dir.path(), address);
    let (_, stats) = client.request("GET", "/v1/shop/stats", "").unwrap();
    assert_eq!((&stats["done"], &stats["scheduled"]), (&json!(2), &json!(1)), "{stats}");
    process.kill();
}

#[test]
fn a_stopping_broker_gives_up_unsettled_deliveries_after_its_grace_period_and_closes_its_store() {
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let (process, client) = BrokerProcess::start_at(address, dir.path(), &["--grace", "4s"]);
    // A receiver that accepts the connection and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let mut webhook = due("at_least_once", POLLED);
    webhook["target"] = json!({"http": {"url": url}});
    assert_eq!(client.try_put("webhook", &webhook), Some(true));
    let (_connection, _) = silent.accept().unwrap();
    for (key, guarantee) in [("again", "at_least_once"), ("never", "at_most_once")] {
        assert_eq!(client.try_put(key, &due(guarantee, POLLED)), Some(true));
    }
    let held: HashMap<String, Value> = [lease(&client), lease(&client)]
        .into_iter()
        .map(|delivery| (delivery["key"].as_str().unwrap().to_owned(), delivery))
        .collect();

    process.signal("-TERM");
    let took = assert_stops(process, now_millis(), Duration::from_secs(4));
    println!("gave up and stopped {took} ms after SIGTERM");

    let (process, client) = start_clean(dir.path(), address);
    let (mut again, mut stream) = (lease(&client), silent.accept().unwrap().0);
    assert_eq!(again["key"], "again", "{again}");
    for same in ["fire_id", "attempt", "fire_at", "task"] {
        assert_eq!(again[same], held["again"][same], "{same}");
    }
    assert_eq!(
        ack(&client, &held["again"]),
        Some(json!("stale")),
        "a token of the earlier process"
    );
    assert_eq!(ack(&client, &again.take()), Some(json!("acked")));
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .unwrap();
    let stats = eventually(|| {
        let (_, stats) = client.request("GET", "/v1/shop/stats", "")?;
        (stats["done"] == 2).then_some(stats)
    });
    assert_eq!((&stats["accepted"], &stats["dead"]), (&json!(3), &json!(1)), "{stats}");
    assert_eq!(unknown_letters(&client), HashSet::from(["never".to_owned()]));
    process.kill();
}

#[test]
fn a_stopping_broker_does_not_wait_for_workers_that_are_gone() {
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let (process, client) = BrokerProcess::start_at(address, dir.path(), &["--grace", "20s"]);
    let (started, mut starts) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connect = async { Client::connect(format!("http://{address}")).unwrap() };
    let worker = runtime.block_on(connect).namespace("shop").worker(STREAMED).handler(move |_| {
        let _ = started.send(());
        std::future::pending::<Result<(), Failure>>()
    });
    runtime.block_on(async { worker.spawn() });
    assert_eq!(client.try_put("held", &due("at_least_once", STREAMED)), Some(true));
    starts.blocking_recv().unwrap();
    // The process of the worker dies; the broker stops a moment later.
    runtime.shutdown_background();
    process.signal("-TERM");
    let took = assert_stops(process, now_millis(), Duration::from_secs(5));
    println!("stopped {took} ms after SIGTERM");
    let (process, client) = start_clean(dir.path(), address);
    let (_, task) = client.request_task("GET", "held", "").unwrap();
    assert_eq!(task["state"], "scheduled", "{task}");
    process.kill();
}
