//! Tasks that go on, and a broker that is killed again and again: every, cron and watch, with webhooks as witnesses. No time may be
//! missing, none early, none twice but under the same fire id; at most once never.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=50 cargo test --release -p punctual --test faults_again -- --nocapture`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]
#![allow(clippy::print_stdout, reason = "a long run says what it did")]

mod field;
#[path = "faults/server.rs"]
mod server;
#[path = "faults/witness.rs"]
mod witness;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use field::now_millis;
use serde_json::{Value, json};
use server::{Caller, Server};
use witness::{Receipt, Witness, millis, pause};

/// One that fires again and again.
struct Again {
    key: String,
    first: u64,
    interval: u64,
    at_most_once: bool,
    /// What comes while the one before is not over may be left out.
    apart: bool,
}

/// One that is touched, or is not any more.
struct Watched {
    key: String,
    /// What was acknowledged last, and touches after it of which nothing is known.
    due: u64,
    in_doubt: bool,
    silent: bool,
}

/// Longer than a broker takes to start on a machine that is busy.
const WITHIN_MS: u64 = 8000;

#[test]
fn a_broker_that_is_killed_again_and_again_misses_and_doubles_no_time_of_tasks_that_go_on() {
    let rounds = std::env::var("PUNCTUAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let witness = Witness::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let (mut again, mut watched) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let (server, caller) = Server::start_at(address, dir.path(), &[]);
        if round == 0 {
            again = series(&caller, &witness.url);
            watched = watches(&caller, &witness.url);
        }
        let lives_ms = 900 + round * 7919 % 1100;
        touch_for(&caller, &mut watched, Duration::from_millis(lives_ms));
        server.kill();
        // From here on, some more are silent.
        let silent = watched.iter_mut().filter(|watch| !watch.silent).take(2);
        silent.for_each(|watch| watch.silent = true);
    }
    let (server, caller) = Server::start_at(address, dir.path(), &[]);
    watched.iter_mut().for_each(|watch| watch.silent = true);
    // All of the watches are silent now, and all series have come so far.
    pause(Duration::from_millis(WITHIN_MS + 1500));
    for series in &again {
        assert_eq!(caller.call("POST", &format!("{}/pause", series.key), "").unwrap().0, 200);
    }
    let end = u64::try_from(now_millis()).unwrap() - 1000;
    witness.settle_down(Duration::from_millis(300));
    let receipts = witness.receipts();
    let mut fires = 0;
    for series in &again {
        fires += judge_series(series, &receipts, &caller, end);
    }
    for watch in &watched {
        judge_watch(watch, &receipts);
    }
    println!(
        "{rounds} kills, {} series with {fires} fires, {} watches",
        again.len(),
        watched.len()
    );
    server.kill();
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn put(caller: &Caller, key: &str, body: &Value) -> u64 {
    let (status, task) = caller.call("PUT", key, &body.to_string()).unwrap();
    assert_eq!(status, 201, "{task}");
    millis(task["fire_at"].as_str().unwrap())
}

fn series(caller: &Caller, url: &str) -> Vec<Again> {
    let mut all = Vec::new();
    for n in 0..30 {
        let (rule, interval) = match n % 5 {
            0 => (json!({"every": "200ms"}), 200),
            1 => (json!({"every": "700ms", "overlap": "skip"}), 700),
            2 => (json!({"every": "1s", "overlap": "queue_one"}), 1000),
            3 => (json!({"cron": "* * * * * *", "timezone": "Europe/Berlin"}), 1000),
            _ => (json!({"cron": "*/2 * * * * *", "misfire": "fire_all"}), 2000),
        };
        let at_most_once = n % 3 == 2;
        let manner = if n % 4 == 3 { "slow" } else { "now" };
        let key = format!("again-{n}");
        let mut body = rule;
        body["target"] = json!({"http": {"url": format!("{url}/{manner}/{key}")}});
        body["retry"] = json!({"attempts_max": 50, "backoff": {"fixed": "50ms"}, "jitter": 0});
        if at_most_once {
            body["guarantee"] = json!("at_most_once");
        }
        let apart = body.get("overlap").is_some();
        let first = put(caller, &key, &body);
        all.push(Again { key, first, interval, at_most_once, apart });
    }
    all
}

fn watches(caller: &Caller, url: &str) -> Vec<Watched> {
    let watch = |n| {
        let key = format!("watch-{n}");
        let target = json!({"http": {"url": format!("{url}/now/{key}")}});
        let due = put(caller, &key, &json!({"within": format!("{WITHIN_MS}ms"), "target": target}));
        Watched { key, due, in_doubt: false, silent: false }
    };
    (0..30).map(watch).collect()
}

/// Touches those that are not silent, again and again.
fn touch_for(caller: &Caller, watched: &mut [Watched], time: Duration) {
    let until = now_millis() + time.as_millis();
    while now_millis() < until {
        for watch in watched.iter_mut().filter(|watch| !watch.silent) {
            watch.in_doubt = true;
            let answer = caller.call("POST", &format!("{}/touch", watch.key), "");
            if let Some((200, task)) = answer {
                watch.due = millis(task["fire_at"].as_str().unwrap());
                watch.in_doubt = false;
            }
        }
        pause(Duration::from_millis(100));
    }
}

/// Out: how many fires there were.
fn judge_series(
    series: &Again,
    receipts: &HashMap<String, Vec<Receipt>>,
    caller: &Caller,
    end: u64,
) -> usize {
    let Again { key, first, interval, at_most_once, apart } = series;
    let mut by_time: BTreeMap<u64, Vec<&Receipt>> = BTreeMap::new();
    for receipt in receipts.get(key).map(Vec::as_slice).unwrap_or_default() {
        by_time.entry(receipt.fire_at_millis).or_default().push(receipt);
    }
    let accounted = accounted(key, caller, *interval);
    let wanted = (0..).map(|beat| first + beat * interval).take_while(|at| *at < end);
    for at in wanted.clone() {
        assert!(accounted.contains(&at), "{key}: nobody knows what became of {at}");
        let got = by_time.get(&at).map(Vec::as_slice).unwrap_or_default();
        if *at_most_once {
            assert!(got.len() <= 1, "{key}: at most once, and {got:?}");
        }
        let ids: HashSet<_> = got.iter().map(|receipt| &receipt.fire_id).collect();
        assert!(ids.len() <= 1, "{key}: one fire, one id: {got:?}");
        for receipt in got {
            assert!(receipt.at_millis >= u128::from(at), "{key} is early: {receipt:?}");
        }
        // Nothing was down for so long that a time would be missed.
        assert!(!got.is_empty() || *at_most_once || *apart, "{key}: {at} was never received");
    }
    for at in by_time.keys() {
        assert_eq!((at - first) % interval, 0, "{key}: {at} is none of its times");
    }
    wanted.count()
}

/// Every time that the history knows of, be it skipped.
fn accounted(key: &str, caller: &Caller, interval: u64) -> HashSet<u64> {
    let mut times = HashSet::new();
    let (status, page) =
        caller.ask("GET", &format!("/v1/shop/tasks/{key}/fires?limit=1000"), "").unwrap();
    assert_eq!(status, 200, "{page}");
    for fire in page["fires"].as_array().unwrap() {
        let at = millis(fire["fire_at"].as_str().unwrap());
        let last = fire["skipped"]["until"].as_str().map_or(at, millis);
        times.extend((at..=last).step_by(usize::try_from(interval).unwrap()));
    }
    times
}

fn judge_watch(watch: &Watched, receipts: &HashMap<String, Vec<Receipt>>) {
    let Watched { key, due, in_doubt, .. } = watch;
    let got = receipts.get(key).map(Vec::as_slice).unwrap_or_default();
    let ids: HashSet<_> = got.iter().map(|receipt| &receipt.fire_id).collect();
    assert_eq!(ids.len(), 1, "{key} fell silent once: {got:?}");
    for receipt in got {
        let at = receipt.fire_at_millis;
        assert!(at == *due || (*in_doubt && at > *due), "{key}: due {due}, {receipt:?}");
        assert!(receipt.at_millis >= u128::from(at), "{key} is early: {receipt:?}");
    }
}
