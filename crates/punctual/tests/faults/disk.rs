//! A failing fsync and a full disk, on the real binary.
//!
//! Needs root, strace and loop devices.

use std::thread;
use std::time::Duration;

use punctual_test_support::strace::{Tracer, failed_at_millis, with_failing_syncs};
use punctual_test_support::{
    BrokerClient, BrokerProcess, RecordingReceiver, SmallDisk, WAIT_MAX, now_millis, pause,
};
use serde_json::{Value, json};

use crate::load::{AcknowledgedCall, NOWHERE, far, load};

#[test]
fn a_broker_acknowledges_nothing_after_a_failed_fsync_and_exits_with_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let (process, client) = BrokerProcess::start(dir.path());
    let mut tracer = None;
    let acknowledged = load(&client, "a", 100, || {
        tracer = Some(Tracer::fail_next_sync(process.pid(), "journal-write"));
    });
    let (status, log) = process.end();
    assert!(!status.success(), "{status}");
    for words in ["error: the store stopped the broker", "fsync failed on", "Input/output error"] {
        assert!(log.contains(words), "{words:?} is missing:\n{log}");
    }
    let failed_at = tracer.unwrap().failed_at_millis();
    for AcknowledgedCall { key, from_millis } in &acknowledged {
        assert!(*from_millis <= failed_at, "{key} was acknowledged after a failed fsync");
    }
    let (process, client) = BrokerProcess::start(dir.path());
    client.assert_has(acknowledged.iter().map(|acknowledged| &acknowledged.key));
    println!("{} acknowledged before fsync failed, all there", acknowledged.len());
    process.kill();
}

#[test]
fn a_broker_whose_fsync_fails_at_the_start_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("strace");
    let data = dir.path().join("data");
    let (process, client) = BrokerProcess::launch(with_failing_syncs(&trace), &data);
    let (status, log) = process.end();
    assert!(client.is_none(), "ready although nothing is durable");
    assert!(!status.success(), "{status}");
    assert!(log.contains("Input/output error"), "the log has the error:\n{log}");
    assert!(failed_at_millis(&trace).is_some(), "a sync was made to fail");
    let (process, client) = BrokerProcess::start(&data);
    assert_eq!(client.try_put("a", &far(NOWHERE)), Some(true), "the directory is usable");
    process.kill();
}

#[test]
fn a_broker_whose_last_checkpoint_fails_reports_it_and_has_everything_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (process, client) = BrokerProcess::start(dir.path());
    let keys: Vec<String> = (0..50).map(|n| format!("a-{n}")).collect();
    for key in &keys {
        assert_eq!(client.try_put(key, &far(NOWHERE)), Some(true));
    }
    let tracer = Tracer::fail_next_sync(process.pid(), "store-checkpoint");
    process.signal("-TERM");
    let (status, log) = process.end();
    assert!(!status.success(), "{status}\n{log}");
    assert!(log.contains("Input/output error"), "the log has the error:\n{log}");
    tracer.failed_at_millis();
    let (process, client) = BrokerProcess::start(dir.path());
    client.assert_has(&keys);
    process.kill();
}

#[test]
fn a_broker_with_a_full_disk_refuses_new_tasks_while_others_fire_and_are_cancelled() {
    let (disk, receiver) = (SmallDisk::mount(768), RecordingReceiver::start());
    let (process, client) = BrokerProcess::start(&disk.data());
    let begun = put_ticks(&client, &receiver);
    for key in ["cancelled-1", "cancelled-2"] {
        assert_eq!(client.try_put(key, &far(NOWHERE)), Some(true));
    }
    disk.fill(0);
    let mut kept = put_until_full(&client);
    assert_cancels(&client, "cancelled-1");
    let mut fired = vec![fires_after(&receiver, &client, begun, now_millis())];
    disk.empty();
    assert!(accepts_again(&client, "after-1"), "the disk has space, and tasks are still refused");
    kept.push("after-1".to_owned());

    // Full again, and killed: the broker starts without space, and does all that needs none.
    disk.fill(0);
    process.kill();
    let (process, client) = BrokerProcess::start(&disk.data());
    assert_cancels(&client, "cancelled-2");
    fired.push(fires_after(&receiver, &client, begun, now_millis()));
    disk.empty();
    assert!(accepts_again(&client, "after-2"), "the disk has space, and tasks are still refused");
    kept.push("after-2".to_owned());

    process.signal("-TERM");
    let (status, log) = process.end();
    assert!(status.success(), "{status}\n{log}");
    let (process, client) = BrokerProcess::start(&disk.data());
    client.assert_has(&kept);
    for key in fired.iter().map(String::as_str).chain(["cancelled-1", "cancelled-2"]) {
        let (status, task) = client.request_task("GET", key, "").unwrap();
        assert!(has_ended(status, &task), "{key} has ended: {task}");
    }
    println!("{} tasks until 507; {fired:?} fired on the full disk", kept.len());
    process.kill();
}

/// Schedules a task for each of the next seconds, so that some are due whenever the disk is full.
/// Returns when they begin.
fn put_ticks(client: &BrokerClient, receiver: &RecordingReceiver) -> u128 {
    let begun = now_millis();
    for second in 1..=100 {
        let body = json!({
            "at": u64::try_from(begun).unwrap() + second * 1000,
            "target": {"http": {"url": format!("{}/now/tick-{second}", receiver.url)}},
        });
        assert_eq!(client.try_put(&format!("tick-{second}"), &body), Some(true));
    }
    begun
}

fn assert_cancels(client: &BrokerClient, key: &str) {
    let (status, answer) = client.request_task("DELETE", key, "").unwrap();
    assert_eq!((status, &answer["result"]), (200, &json!("cancelled")), "{answer}");
}

/// Returns whether the broker accepts a task within ten seconds.
fn accepts_again(client: &BrokerClient, key: &str) -> bool {
    (0..100).any(|_| {
        pause(Duration::from_millis(100));
        client.try_put(key, &far(NOWHERE)) == Some(true)
    })
}

/// Schedules large tasks until they are refused as the API documents it. Returns the accepted ones.
fn put_until_full(client: &BrokerClient) -> Vec<String> {
    let mut body = far(NOWHERE);
    body["payload"] = json!("x".repeat(250 << 10));
    let body = &body.to_string();
    let fill = |number: u64| {
        let mut kept = Vec::new();
        for n in 0..1000 {
            let key = format!("large-{number}-{n}");
            let (status, answer) =
                client.request_task("PUT", &key, body).expect("the broker answers");
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

/// Waits for a task that was due after `from`, and until it is settled. Returns its key.
fn fires_after(
    receiver: &RecordingReceiver,
    client: &BrokerClient,
    begun: u128,
    from: u128,
) -> String {
    loop {
        let key = receiver.next(WAIT_MAX).expect("tasks fire on a full disk");
        let second: u128 = key.strip_prefix("tick-").unwrap().parse().unwrap();
        if begun + second * 1000 <= from {
            continue;
        }
        let gone = (0..100).any(|_| {
            pause(Duration::from_millis(20));
            let answer = client.request_task("GET", &key, "");
            answer.is_some_and(|(status, task)| has_ended(status, &task))
        });
        assert!(gone, "{key} fired and is not settled");
        return key;
    }
}

/// Whether a key names no living task. On a full disk its history may be missing.
fn has_ended(status: u16, task: &Value) -> bool {
    status == 404 || task["end"].is_string()
}
