//! Tasks that go on, and a broker that is killed again and again: every, cron and watch, with webhooks as witnesses. No time may be
//! missing, none early, none twice but under the same fire id; at most once never.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=50 cargo test --release -p punctual --test faults_again -- --nocapture`.

use crate::recurring_checks::{
    Findings, TestSeries, TestWatch, TouchCall, check_series, check_watch,
};
use punctual_test_support::ports::free_address;
use punctual_test_support::{
    BrokerClient, BrokerProcess, ReceivedDelivery, RecordingReceiver, millis, now_millis, pause,
};
use std::time::Duration;

use serde_json::{Value, json};

/// Longer than a broker takes to start on a machine that is busy.
const WITHIN_MS: u64 = 8000;

#[test]
fn a_broker_that_is_killed_again_and_again_misses_and_doubles_no_time_of_tasks_that_go_on() {
    let rounds = std::env::var("PUNCTUAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let receiver = RecordingReceiver::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let (mut again, mut watched, mut silent) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds {
        let (process, client) = BrokerProcess::start_at(address, dir.path(), &[]);
        if round == 0 {
            again = series(&client, &receiver.url);
            watched = watches(&client, &receiver.url);
        }
        let lives_ms = 900 + round * 7919 % 1100;
        touch_for(&client, &mut watched[silent..], Duration::from_millis(lives_ms));
        process.kill();
        // From here on, some more are silent.
        silent = (silent + 2).min(watched.len());
    }
    let (process, client) = BrokerProcess::start_at(address, dir.path(), &[]);
    // All of the watches are silent now, and all series have come so far.
    pause(Duration::from_millis(WITHIN_MS + 1500));
    for series in &again {
        assert_eq!(
            client.request_task("POST", &format!("{}/pause", series.key), "").unwrap().0,
            200
        );
    }
    let end = u64::try_from(now_millis()).unwrap() - 1000;
    receiver.settle_down(Duration::from_millis(300));
    let deliveries = receiver.deliveries();
    let got = |key: &str| deliveries.get(key).map(Vec::as_slice).unwrap_or_default();
    let mut findings = Findings::default();
    for series in &again {
        let path = format!("/v1/shop/tasks/{}/fires?limit=1000", series.key);
        let (status, page) = client.request("GET", &path, "").unwrap();
        assert_eq!(status, 200, "{page}");
        findings = findings.and(check_series(series, got(&series.key), &page, end));
    }
    for watch in &watched {
        findings = findings.and(check_watch(watch, got(&watch.key)));
    }
    let Findings { violations, counts } = findings;
    println!("{rounds} kills, {} series, {} watches: {counts:?}", again.len(), watched.len());
    assert!(violations.is_empty(), "{violations:#?}");
    // Nothing was down for so long that a time would be missed.
    assert_eq!(counts.get("series_missed"), None);
    process.kill();
}

fn put(client: &BrokerClient, key: &str, body: &Value) -> u64 {
    let (status, task) = client.request_task("PUT", key, &body.to_string()).unwrap();
    assert_eq!(status, 201, "{task}");
    millis(task["fire_at"].as_str().unwrap())
}

fn series(client: &BrokerClient, url: &str) -> Vec<TestSeries> {
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
        let first = put(client, &key, &body);
        all.push(TestSeries { key, first, interval, at_most_once, apart });
    }
    all
}

fn watches(client: &BrokerClient, url: &str) -> Vec<TestWatch> {
    let watch = |n| {
        let key = format!("watch-{n}");
        let target = json!({"http": {"url": format!("{url}/now/{key}")}});
        let due = put(client, &key, &json!({"within": format!("{WITHIN_MS}ms"), "target": target}));
        let now = u64::try_from(now_millis()).unwrap();
        let touch = TouchCall { asked_at: now, answered_at: now, due: Some(due) };
        TestWatch { key, within: WITHIN_MS, touches: vec![touch] }
    };
    (0..30).map(watch).collect()
}

/// Touches watches, again and again.
fn touch_for(client: &BrokerClient, watched: &mut [TestWatch], time: Duration) {
    let until = now_millis() + time.as_millis();
    while now_millis() < until {
        for watch in watched.iter_mut() {
            let asked_at = u64::try_from(now_millis()).unwrap();
            let answer = client.request_task("POST", &format!("{}/touch", watch.key), "");
            let due = answer.filter(|(status, _)| *status == 200);
            let due = due.map(|(_, task)| millis(task["fire_at"].as_str().unwrap()));
            let answered_at = u64::try_from(now_millis()).unwrap();
            watch.touches.push(TouchCall { asked_at, answered_at, due });
        }
        pause(Duration::from_millis(100));
    }
}

fn delivery(fire_id: &str, fire_at_millis: u64, at: u64) -> ReceivedDelivery {
    ReceivedDelivery { at_millis: at.into(), fire_id: fire_id.to_owned(), fire_at_millis }
}

#[test]
fn the_judge_sees_what_must_not_be() {
    let text = |at: u64| punctual_core::Timestamp::from_millis(at).to_string();
    let done = |at: u64| json!({"fire_at": text(at), "end": "done", "ended_at": text(at + 5)});
    let unknown = |at: u64| json!({"fire_at": text(at), "end": "dead", "reason": "unknown"});
    let skipped = |at: u64, until: u64, after: u64| {
        let skipped = json!({"until": text(until), "reason": "misfire"});
        json!({"fire_at": text(at), "end": "skipped", "ended_at": text(at + after), "skipped": skipped})
    };
    let series = |at_most_once| {
        let key = "again".to_owned();
        TestSeries { key, first: 1_000, interval: 1_000, at_most_once, apart: false }
    };
    let (one, two) = (delivery("a-1", 1_000, 1_002), delivery("a-2", 2_000, 2_002));
    let both = || vec![one.clone(), two.clone()];
    let all = json!({"fires": [done(1_000), done(2_000)]});
    let sees = |most: bool, got: &[ReceivedDelivery], page: &Value| {
        check_series(&series(most), got, page, 3_000).violations.len()
    };
    assert_eq!(sees(false, &both(), &all), 0);
    let left_out = json!({"fires": [skipped(1_000, 2_000, 6_000)]});
    assert_eq!(sees(false, &[], &left_out), 0, "missed by more than five seconds");
    let nobody_knows = json!({"fires": [done(1_000), unknown(2_000)]});
    assert_eq!(sees(true, &both()[..1], &nobody_knows), 0);
    let no_attempt = json!([{"answer": "it was not sent"}]);
    let dead = json!({"fire_at": text(2_000), "end": "dead", "attempts": no_attempt});
    let not_sent = json!({"fires": [done(1_000), dead]});
    assert_eq!(sees(true, &both()[..1], &not_sent), 0);
    let again = [both(), vec![two.clone()]].concat();
    assert_eq!(sees(false, &again, &all), 0, "at least once");
    for (what, most, got, page) in [
        ("lost", false, vec![one.clone()], &all),
        ("not sent, but may be sent again", false, vec![one.clone()], &not_sent),
        ("not sent, and received", true, both(), &not_sent),
        ("at most once, and lost silently", true, vec![one.clone()], &all),
        ("at most once, and twice", true, again, &all),
        ("not in the history", false, both(), &json!({"fires": [done(1_000)]})),
        ("unknown, but may be sent again", false, vec![one.clone()], &nobody_knows),
        ("left out too soon", false, vec![], &json!({"fires": [skipped(1_000, 2_000, 4_000)]})),
        ("left out and received", false, both(), &left_out),
        ("early", false, vec![one.clone(), delivery("a-2", 2_000, 1_999)], &all),
        ("two ids", false, [both(), vec![delivery("b-2", 2_000, 2_003)]].concat(), &all),
        ("no time of it", false, [both(), vec![delivery("a-3", 2_500, 2_503)]].concat(), &all),
    ] {
        assert!(sees(most, &got, page) > 0, "{what}");
    }

    let touch = |at: u64, due| TouchCall { asked_at: at, answered_at: at + 10, due };
    let watch = |touches| TestWatch { key: "watch".to_owned(), within: 2_000, touches };
    let sees = |touches: &[TouchCall], got: &[ReceivedDelivery]| {
        check_watch(&watch(touches.to_vec()), got).violations.len()
    };
    let touches = [touch(1_000, Some(3_000)), touch(2_000, Some(4_000))];
    let at = |due: u64| delivery("w", due, due + 1);
    assert_eq!(sees(&touches, &[at(4_000)]), 0);
    let open = [touches[0], touches[1], touch(3_000, None)];
    assert_eq!(sees(&open, &[at(4_000)]), 0, "not done");
    assert_eq!(sees(&open, &[at(5_005)]), 0, "done");
    let armed_again = [touches[0], touch(3_500, Some(5_500))];
    assert_eq!(sees(&armed_again, &[at(3_000), at(5_500)]), 0);
    for (what, touches, got) in [
        ("put off", &touches[..], vec![at(3_000), at(4_000)]),
        ("never", &touches[..], vec![]),
        ("another time", &touches[..], vec![at(4_000), at(4_500)]),
        ("only before it was armed again", &armed_again[..], vec![at(3_000)]),
        ("long after any touch", &open[..], vec![at(4_000), at(30_000)]),
        ("early", &touches[..], vec![delivery("w", 4_000, 3_999)]),
    ] {
        assert!(sees(touches, &got) > 0, "{what}");
    }
}
