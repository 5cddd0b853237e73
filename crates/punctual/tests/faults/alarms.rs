//! Alarms through kill -9: each change of an alarm is reported once.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=100 cargo test -p punctual --test faults -- alarms::`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use punctual_test_support::{
    BrokerClient, BrokerProcess, TestCluster, WebhookReceiver, eventually, now_millis, pause,
};
use serde_json::{Value, json};

/// Tasks of the run on a cluster. Of 100, three fail.
const FIRES: u64 = 10_000;
/// Tasks in one request.
const BATCH: u64 = 1_000;

/// What a receiver got of one alarm: the ids of the deliveries of each notice, by its number.
#[derive(Debug, Default)]
struct Notices {
    by_number: BTreeMap<u64, (String, BTreeSet<String>)>,
}

impl Notices {
    /// Reads what has come until nothing comes for `quiet`.
    fn read(&mut self, receiver: &WebhookReceiver, quiet: Duration) {
        while let Some(received) = receiver.next_within(quiet) {
            let notice: Value = serde_json::from_slice(&received.body).unwrap();
            let number = notice["notice"].as_u64().expect("a number");
            let kind = notice["type"].as_str().expect("a type").to_owned();
            let ids =
                self.by_number.entry(number).or_insert_with(|| (kind.clone(), BTreeSet::new()));
            assert_eq!(ids.0, kind, "one notice, two types: {notice}");
            ids.1.insert(received.header("webhook-id").to_owned());
        }
    }

    fn kinds(&self) -> Vec<&str> {
        self.by_number.values().map(|(kind, _)| kind.as_str()).collect()
    }

    /// Each notice came under one id, none is missing, and raised and over take turns.
    fn check(&self) {
        let numbers: Vec<_> = self.by_number.keys().copied().collect();
        let want: Vec<_> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, want, "{self:?}");
        for (number, (kind, ids)) in &self.by_number {
            let want = if number % 2 == 1 { "alarm.raised" } else { "alarm.over" };
            assert_eq!((kind.as_str(), ids.len()), (want, 1), "notice {number}: {self:?}");
        }
    }
}

fn put_alarm(client: &BrokerClient, window: &str, count: u64, url: &str) {
    let alarm = json!({
        "when": {"failures": {"count": count, "window": window}},
        "to": {"http": {"url": url}},
    });
    let (status, answer) = client.shop("PUT", "/alarms/errors", &alarm);
    assert_eq!(status, 201, "{answer}");
}

fn state(client: &BrokerClient) -> Option<String> {
    let (status, answer) = client.request("GET", "/v1/shop/alarms/errors", "")?;
    (status == 200).then(|| answer["state"].as_str().unwrap().to_owned())
}

#[test]
fn three_of_a_hundred_failures_raise_one_alarm_and_one_recovery_through_kills_of_the_evaluator() {
    let mut cluster = TestCluster::on_loopback(3, &[]);
    let (receiver, notices) = (WebhookReceiver::start(), WebhookReceiver::start());
    let client = cluster.client(0).clone();
    put_alarm(&client, "10s", 100, &notices.url);
    // All brokers measure from now on; without that, the first failures would not be counted.
    pause(Duration::from_millis(1_200));
    let from = u64::try_from(now_millis()).unwrap() + 1_500;
    for batch in 0..FIRES / BATCH {
        let tasks = (batch * BATCH..(batch + 1) * BATCH).map(|n| {
            let path = if n % 100 < 3 { "500" } else { "200" };
            json!({"at": from + n * 6_000 / FIRES, "retry": {"attempts_max": 1},
                "target": {"http": {"url": format!("{}/{path}/{n}", receiver.url)}}})
        });
        let (status, answer) = client.post("/tasks", &tasks.collect());
        assert_eq!(status, 200, "{answer}");
    }
    let drain =
        std::thread::spawn(
            move || while receiver.next_within(Duration::from_secs(20)).is_some() {},
        );
    eventually(|| state(&client).filter(|state| state == "raised"));
    println!("raised {} ms after the first task was due", now_millis() - u128::from(from));
    for _ in 0..2 {
        let first = eventually(|| evaluator(&cluster));
        cluster.brokers[first].kill();
        let other = (first + 1) % 3;
        eventually(|| state(cluster.client(other)).filter(|state| state == "raised"));
        cluster.start_again(first);
        cluster.wait_until_whole();
    }
    eventually(|| state(&client).filter(|state| state == "ok"));
    let mut received = Notices::default();
    received.read(&notices, Duration::from_secs(3));
    received.check();
    assert_eq!(received.kinds(), ["alarm.raised", "alarm.over"]);
    drain.join().unwrap();
    let (_, stats) = client.get("/stats");
    assert_eq!(stats["dead_letters"], FIRES * 3 / 100, "{stats}");
}

/// The broker that owns the first partition.
fn evaluator(cluster: &TestCluster) -> Option<usize> {
    let running = (0..3).find(|index| cluster.brokers[*index].is_running())?;
    let owned = cluster.owned(running)?;
    let owner = owned.by_broker.iter().find(|(_, partitions)| partitions.contains(&0))?.0;
    cluster.brokers.iter().position(|broker| broker.client.address == *owner)
}

#[test]
fn a_broker_killed_at_any_moment_reports_each_change_of_an_alarm_once() {
    let rounds = std::env::var("PUNCTUAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let (dir, notices) = (tempfile::tempdir().unwrap(), WebhookReceiver::start());
    let failing = WebhookReceiver::start();
    let (mut received, mut process) = (Notices::default(), None);
    for round in 0..rounds {
        let (started, client) = BrokerProcess::start(dir.path());
        if round == 0 {
            put_alarm(&client, "1s", 1, &notices.url);
        }
        pause(Duration::from_millis(600));
        let task = json!({"in": "0s", "retry": {"attempts_max": 1},
            "target": {"http": {"url": format!("{}/500/{round}", failing.url)}}});
        let (status, answer) = client.post("/tasks", &task);
        assert_eq!(status, 201, "{answer}");
        // Raised after up to half a second, over after a second and a half.
        received.read(&notices, Duration::from_millis(round * 7919 % 700));
        pause(Duration::from_millis(round * 104_729 % 900));
        match round + 1 == rounds {
            true => process = Some((started, client)),
            false => started.kill(),
        }
    }
    let (process, client) = process.expect("at least one round");
    eventually(|| state(&client).filter(|state| state == "ok"));
    received.read(&notices, Duration::from_secs(3));
    println!("{} notices in {rounds} rounds", received.by_number.len());
    received.check();
    assert!(!received.by_number.is_empty());
    process.kill();
}
