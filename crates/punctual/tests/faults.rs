//! Faults on the real binary: a failing fsync, a full disk, kill -9 under load, a stop in good order.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=100 cargo test -p punctual --test faults killed`. Needs root, strace and loop devices, and
//! says so when something is missing. What was seen stands in `docs/faults.md`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]
#![allow(clippy::print_stdout, reason = "a long run says what it did")]

#[path = "faults/disk.rs"]
mod disk;
mod field;
#[path = "faults/server.rs"]
mod server;
#[path = "faults/strace.rs"]
mod strace;
#[path = "faults/witness.rs"]
mod witness;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use disk::SmallDisk;
use field::now_millis;
use serde_json::{Value, json};
use server::{Caller, PATIENCE, Server};
use strace::{Tracer, failed_at_millis, with_failing_syncs};
use witness::{Witness, pause};

/// Callers at the same time.
const CALLERS: u64 = 6;

/// Nobody listens there: for tasks that are not to be delivered in the time of a test.
const NOWHERE: &str = "http://127.0.0.1:9/";

fn far(url: &str) -> Value {
    json!({"in": "1h", "target": {"http": {"url": url}}, "payload": {"order": 1}})
}

/// A call that was acknowledged.
struct Acknowledged {
    key: String,
    /// When the call began.
    from_millis: u128,
}

/// Calls from several threads until the broker answers no more; `enough` hears when so many were acknowledged.
fn load(caller: &Caller, prefix: &str, enough: u64, on_enough: impl FnOnce()) -> Vec<Acknowledged> {
    let count = AtomicU64::new(0);
    let (news, reached) = channel();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (news, count) = (news.clone(), &count);
                scope.spawn(move || {
                    let mut acknowledged = Vec::new();
                    for n in 0.. {
                        let (key, from_millis) = (format!("{prefix}-{number}-{n}"), now_millis());
                        match caller.put(&key, &far(NOWHERE)) {
                            Some(true) => acknowledged.push(Acknowledged { key, from_millis }),
                            // Refused: it says that it is stopping, and will be gone in a moment.
                            Some(false) => {}
                            None => break,
                        }
                        if count.fetch_add(1, Ordering::Relaxed) + 1 == enough {
                            let _ = news.send(());
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        reached.recv_timeout(PATIENCE).expect("it acknowledges");
        on_enough();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    })
}

#[test]
fn a_broker_whose_fsync_fails_acknowledges_nothing_more_and_exits_with_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let (server, caller) = Server::start(dir.path());
    let mut tracer = None;
    let acknowledged = load(&caller, "a", 100, || {
        tracer = Some(Tracer::fail_next_sync(server.pid(), "journal-write"));
    });
    let (status, said) = server.end();
    assert!(!status.success(), "{status}");
    for words in ["error: the store stopped the broker", "fsync failed on", "Input/output error"] {
        assert!(said.contains(words), "it does not say {words:?}:\n{said}");
    }
    let failed_at = tracer.unwrap().failed_at_millis();
    for Acknowledged { key, from_millis } in &acknowledged {
        assert!(*from_millis <= failed_at, "{key} was acknowledged after a failed fsync");
    }
    let (server, caller) = Server::start(dir.path());
    caller.assert_has(acknowledged.iter().map(|acknowledged| &acknowledged.key));
    println!("{} acknowledged before fsync failed, all there", acknowledged.len());
    server.kill();
}

#[test]
fn a_broker_whose_fsync_fails_at_the_start_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("strace");
    let data = dir.path().join("data");
    let (server, caller) = Server::launch(with_failing_syncs(&log), &data);
    let (status, said) = server.end();
    assert!(caller.is_none(), "ready, although nothing is durable");
    assert!(!status.success(), "{status}");
    assert!(said.contains("Input/output error"), "it says what happened:\n{said}");
    assert!(failed_at_millis(&log).is_some(), "a sync was made to fail");
    let (server, caller) = Server::start(&data);
    assert_eq!(caller.put("a", &far(NOWHERE)), Some(true), "the directory is as good as new");
    server.kill();
}

#[test]
fn a_broker_whose_last_checkpoint_fails_says_so_and_has_everything_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let (server, caller) = Server::start(dir.path());
    let keys: Vec<String> = (0..50).map(|n| format!("a-{n}")).collect();
    for key in &keys {
        assert_eq!(caller.put(key, &far(NOWHERE)), Some(true));
    }
    let tracer = Tracer::fail_next_sync(server.pid(), "store-checkpoint");
    server.signal("-TERM");
    let (status, said) = server.end();
    assert!(!status.success(), "{status}\n{said}");
    assert!(said.contains("Input/output error"), "it says what happened:\n{said}");
    tracer.failed_at_millis();
    let (server, caller) = Server::start(dir.path());
    caller.assert_has(&keys);
    server.kill();
}

#[test]
fn a_full_disk_refuses_new_tasks_while_the_others_fire_and_are_cancelled_until_there_is_room() {
    let (disk, witness) = (SmallDisk::mount(768), Witness::start());
    let (server, caller) = Server::start(&disk.data());
    let begun = put_ticks(&caller, &witness);
    for key in ["cancelled-1", "cancelled-2"] {
        assert_eq!(caller.put(key, &far(NOWHERE)), Some(true));
    }
    disk.fill(0);
    let mut kept = put_until_full(&caller);
    assert_cancels(&caller, "cancelled-1");
    let mut fired = vec![fires_after(&witness, &caller, begun, now_millis())];
    disk.empty();
    assert!(takes_again(&caller, "after-1"), "there is room, and it takes nothing");
    kept.push("after-1".to_owned());

    // Full again, and killed: it starts without room, and does all that needs none.
    disk.fill(0);
    server.kill();
    let (server, caller) = Server::start(&disk.data());
    assert_cancels(&caller, "cancelled-2");
    fired.push(fires_after(&witness, &caller, begun, now_millis()));
    disk.empty();
    assert!(takes_again(&caller, "after-2"), "there is room, and it takes nothing");
    kept.push("after-2".to_owned());

    server.signal("-TERM");
    let (status, said) = server.end();
    assert!(status.success(), "{status}\n{said}");
    let (server, caller) = Server::start(&disk.data());
    caller.assert_has(&kept);
    for key in fired.iter().map(String::as_str).chain(["cancelled-1", "cancelled-2"]) {
        assert_eq!(caller.call("GET", key, "").unwrap().0, 404, "{key} had ended");
    }
    println!("{} tasks until 507; {fired:?} fired on the full disk", kept.len());
    server.kill();
}

/// A task for each of the next seconds: whenever the disk is full, some are still to come. When they begin.
fn put_ticks(caller: &Caller, witness: &Witness) -> u128 {
    let begun = now_millis();
    for second in 1..=100 {
        let body = json!({
            "at": u64::try_from(begun).unwrap() + second * 1000,
            "target": {"http": {"url": format!("{}/now/tick-{second}", witness.url)}},
        });
        assert_eq!(caller.put(&format!("tick-{second}"), &body), Some(true));
    }
    begun
}

fn assert_cancels(caller: &Caller, key: &str) {
    let (status, answer) = caller.call("DELETE", key, "").unwrap();
    assert_eq!((status, &answer["result"]), (200, &json!("cancelled")), "{answer}");
}

/// Whether it takes a task before patience ends.
fn takes_again(caller: &Caller, key: &str) -> bool {
    (0..100).any(|_| {
        pause(Duration::from_millis(100));
        caller.put(key, &far(NOWHERE)) == Some(true)
    })
}

/// Files large tasks until they are refused, in the way that the API promises; those that were taken.
fn put_until_full(caller: &Caller) -> Vec<String> {
    let mut body = far(NOWHERE);
    body["payload"] = json!("x".repeat(250 << 10));
    let body = &body.to_string();
    let fill = |number: u64| {
        let mut kept = Vec::new();
        for n in 0..1000 {
            let key = format!("large-{number}-{n}");
            let (status, answer) = caller.call("PUT", &key, body).expect("it answers");
            if status == 201 {
                kept.push(key);
                continue;
            }
            assert_eq!(status, 507, "{answer}");
            assert_eq!(answer["type"], "urn:punctual:full", "{answer}");
            assert_eq!(answer["status"], 507, "{answer}");
            return kept;
        }
        panic!("a gigabyte on a full disk, and no refusal");
    };
    thread::scope(|scope| {
        let fillings: Vec<_> = (0..4).map(|number| scope.spawn(move || fill(number))).collect();
        fillings.into_iter().flat_map(|filling| filling.join().unwrap()).collect()
    })
}

/// Waits for a task that was due after `from` and for its end in the store; its key.
fn fires_after(witness: &Witness, caller: &Caller, begun: u128, from: u128) -> String {
    loop {
        let key = witness.next(PATIENCE).expect("tasks fire on a full disk");
        let second: u128 = key.strip_prefix("tick-").unwrap().parse().unwrap();
        if begun + second * 1000 <= from {
            continue;
        }
        let gone = (0..100).any(|_| {
            pause(Duration::from_millis(20));
            caller.call("GET", &key, "").is_some_and(|(status, _)| status == 404)
        });
        assert!(gone, "{key} fired and is not settled");
        return key;
    }
}

/// What was asked for, and what was answered.
#[derive(Debug, Clone)]
struct Asked {
    key: String,
    due_millis: u64,
    at_most_once: bool,
    /// `None`: there was no answer.
    acknowledged: Option<bool>,
    /// It was cancelled, and the answer said so.
    cancelled: bool,
    /// It may be cancelled: that call had no answer.
    cancelling: bool,
}

#[test]
fn a_broker_that_is_killed_under_load_loses_nothing_and_delivers_nothing_early_or_cancelled() {
    let rounds = std::env::var("PUNCTUAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let (dir, witness) = (tempfile::tempdir().unwrap(), Witness::start());
    let (mut asked, mut kills) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let (server, caller) = Server::start(dir.path());
        let asking: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (caller, url) = (caller.clone(), witness.url.clone());
                thread::spawn(move || ask_until_killed(&caller, &url, round, number))
            })
            .collect();
        pause(Duration::from_millis(400 + round * 7919 % 800));
        server.kill();
        kills.push(now_millis());
        asked.extend(asking.into_iter().flat_map(|asking| asking.join().unwrap()));
    }
    let (server, _) = Server::start(dir.path());
    // The last task is due within two seconds of the last kill; silence for longer means that all is done.
    witness.settle_down(Duration::from_secs(3));
    judge(&asked, &kills, &witness);
    server.kill();
}

/// Files tasks that are due within two seconds, and cancels some, until there is no answer.
fn ask_until_killed(caller: &Caller, url: &str, round: u64, number: u64) -> Vec<Asked> {
    let mut all = Vec::new();
    for n in 0..u64::MAX {
        let key = format!("k{round}-{number}-{n}");
        let due_millis = u64::try_from(now_millis()).unwrap() + (n * 613 + number * 97) % 2000;
        let at_most_once = n % 3 == 0;
        let guarantee = if at_most_once { "at_most_once" } else { "at_least_once" };
        let path = if n % 4 == 1 { "slow" } else { "now" };
        let body = json!({
            "at": due_millis,
            "guarantee": guarantee,
            "target": {"http": {"url": format!("{url}/{path}/{key}")}},
            "retry": {"attempts_max": 20, "backoff": {"fixed": "100ms"}, "jitter": 0},
        });
        let acknowledged = caller.put(&key, &body);
        let mut asked = Asked {
            key,
            due_millis,
            at_most_once,
            acknowledged,
            cancelled: false,
            cancelling: false,
        };
        if acknowledged == Some(true) && n % 7 == 2 {
            match caller.call("DELETE", &asked.key, "") {
                Some((200, answer)) => asked.cancelled = answer["result"] == "cancelled",
                Some(_) => {}
                None => asked.cancelling = true,
            }
        }
        let ended = acknowledged.is_none() || asked.cancelling;
        all.push(asked);
        if ended {
            break;
        }
    }
    all
}

fn judge(asked: &[Asked], kills: &[u128], witness: &Witness) {
    let receipts = witness.receipts();
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for asked in asked {
        let got = receipts.get(&asked.key).map_or([].as_slice(), Vec::as_slice);
        for receipt in got {
            assert!(receipt.at_millis >= asked.due_millis.into(), "early: {asked:?} {receipt:?}");
        }
        let ids: HashSet<&str> = got.iter().map(|receipt| receipt.fire_id.as_str()).collect();
        assert!(ids.len() <= 1, "one fire has one id: {asked:?} {got:?}");
        assert_ne!(asked.acknowledged, Some(false), "refused: {asked:?}");
        let mut count = |what| *counts.entry(what).or_default() += 1;
        if asked.cancelled {
            assert!(got.is_empty(), "cancelled and received: {asked:?} {got:?}");
            count("cancelled, never received");
            continue;
        }
        if asked.at_most_once {
            assert!(got.len() <= 1, "at most once, and twice: {asked:?} {got:?}");
        }
        if asked.acknowledged != Some(true) || asked.cancelling {
            count("unanswered");
        } else if asked.at_most_once && got.is_empty() {
            // Claimed when a kill came, so what became of it is not known; it is not sent again.
            let last_kill = kills.last().copied().unwrap_or_default();
            assert!(u128::from(asked.due_millis) <= last_kill, "never sent: {asked:?}");
            count("at most once, unknown");
        } else if asked.at_most_once {
            count("at most once, received once");
        } else {
            assert!(!got.is_empty(), "acknowledged and never received: {asked:?}");
            count(if got.len() == 1 { "at least once, once" } else { "at least once, again" });
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable();
    println!("{} kills, {} tasks: {counts:?}", kills.len(), asked.len());
    let deliveries = counts.iter().any(|(what, _)| *what == "at least once, once");
    assert!(deliveries, "nothing happened: {counts:?}");
}

#[test]
fn a_broker_that_is_stopped_under_load_opens_with_nothing_to_replay_and_nothing_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (server, caller) = Server::start(dir.path());
    let acknowledged = load(&caller, "a", 200, || server.signal("-TERM"));
    let (status, said) = server.end();
    assert!(status.success(), "{status}\n{said}");
    let (server, caller) = Server::start(dir.path());
    let opened = server.logged("store open").expect("it says how it opened");
    assert_eq!((&opened["replayed"], &opened["clean"]), (&json!(0), &json!(true)), "{opened}");
    caller.assert_has(acknowledged.iter().map(|acknowledged| &acknowledged.key));
    println!("{} acknowledged before and during the stop, all there", acknowledged.len());
    server.kill();
}
