//! Recurring tasks and a broker that is killed repeatedly: interval, cron and watch. No fire may be
//! missing or early, or doubled except under the same fire id; at-most-once fires never double.
//!
//! Longer: `PUNCTUAL_KILL_ROUNDS=50 cargo test --release -p punctual --test faults -- --nocapture
//! recurring::`.

use std::time::Duration;

use punctual_test_support::ports::free_address;
use punctual_test_support::{
    BrokerClient, BrokerProcess, ReceivedDelivery, RecordingReceiver, millis, now_millis, pause,
};
use serde_json::{Value, json};

use crate::recurring_checks::{
    Findings, TestSeries, TestWatch, TouchCall, check_series, check_watch,
};

/// Longer than a broker takes to start on a busy machine.
const WITHIN_MS: u64 = 8000;

#[test]
fn a_broker_killed_repeatedly_misses_and_doubles_no_fire_of_recurring_tasks() {
    let rounds = std::env::var("PUNCTUAL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let receiver = RecordingReceiver::start();
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let (mut all_series, mut all_watches, mut untouched) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds {
        let (process, client) = BrokerProcess::start_at(address, dir.path(), &[]);
        if round == 0 {
            all_series = series(&client, &receiver.url);
            all_watches = watches(&client, &receiver.url);
        }
        let uptime_ms = 900 + round * 7919 % 1100;
        touch_for(&client, &mut all_watches[untouched..], Duration::from_millis(uptime_ms));
        process.kill();
        // From now on two more watches are not touched.
        untouched = (untouched + 2).min(all_watches.len());
    }
    let (process, client) = BrokerProcess::start_at(address, dir.path(), &[]);
    // All watches have fired by the end of this, and all series are up to date.
    pause(Duration::from_millis(WITHIN_MS + 1500));
    for series in &all_series {
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
    for series in &all_series {
        let path = format!("/v1/shop/tasks/{}/fires?limit=1000", series.key);
        let (status, page) = client.request("GET", &path, "").unwrap();
        assert_eq!(status, 200, "{page}");
        findings = findings.and(check_series(series, got(&series.key), &page, end));
    }
    for watch in &all_watches {
        findings = findings.and(check_watch(watch, got(&watch.key)));
    }
    let Findings { violations, counts } = findings;
    println!(
        "{rounds} kills, {} series, {} watches: {counts:?}",
        all_series.len(),
        all_watches.len()
    );
    assert!(violations.is_empty(), "{violations:#?}");
    // The broker was never down for so long that a fire counts as missed.
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
        let key = format!("series-{n}");
        let mut body = rule;
        body["target"] = json!({"http": {"url": format!("{url}/{manner}/{key}")}});
        body["retry"] = json!({"attempts_max": 50, "backoff": {"fixed": "50ms"}, "jitter": 0});
        if at_most_once {
            body["guarantee"] = json!("at_most_once");
        }
        let may_overlap = body.get("overlap").is_some();
        let first = put(client, &key, &body);
        all.push(TestSeries { key, first, interval, at_most_once, may_overlap });
    }
    all
}

fn watches(client: &BrokerClient, url: &str) -> Vec<TestWatch> {
    let watch = |n| {
        let key = format!("watch-{n}");
        let target = json!({"http": {"url": format!("{url}/now/{key}")}});
        let due = put(client, &key, &json!({"within": format!("{WITHIN_MS}ms"), "target": target}));
        let now = u64::try_from(now_millis()).unwrap();
        let touch = TouchCall { sent_at: now, answered_at: now, due: Some(due) };
        TestWatch { key, within: WITHIN_MS, touches: vec![touch] }
    };
    (0..30).map(watch).collect()
}

/// Touches watches repeatedly for `time`.
fn touch_for(client: &BrokerClient, watches: &mut [TestWatch], time: Duration) {
    let until = now_millis() + time.as_millis();
    while now_millis() < until {
        for watch in watches.iter_mut() {
            let sent_at = u64::try_from(now_millis()).unwrap();
            let answer = client.request_task("POST", &format!("{}/touch", watch.key), "");
            let due = answer.filter(|(status, _)| *status == 200);
            let due = due.map(|(_, task)| millis(task["fire_at"].as_str().unwrap()));
            let answered_at = u64::try_from(now_millis()).unwrap();
            watch.touches.push(TouchCall { sent_at, answered_at, due });
        }
        pause(Duration::from_millis(100));
    }
}

fn delivery(fire_id: &str, fire_at_millis: u64, at: u64) -> ReceivedDelivery {
    let fire_id = fire_id.to_owned();
    ReceivedDelivery { at_millis: at.into(), fire_id, fire_at_millis, sent_at_millis: at }
}

#[test]
fn the_checks_find_every_kind_of_violation() {
    let text = |at: u64| punctual_core::Timestamp::from_millis(at).to_string();
    let done = |at: u64| json!({"fire_at": text(at), "end": "done", "ended_at": text(at + 5)});
    let unknown = |at: u64| json!({"fire_at": text(at), "end": "dead", "reason": "unknown"});
    let skipped = |at: u64, until: u64, after: u64| {
        let skipped = json!({"until": text(until), "reason": "misfire"});
        let ended_at = text(at + after);
        json!({"fire_at": text(at), "end": "skipped", "ended_at": ended_at, "skipped": skipped})
    };
    let series = |at_most_once| {
        let key = "series".to_owned();
        TestSeries { key, first: 1_000, interval: 1_000, at_most_once, may_overlap: false }
    };
    let (one, two) = (delivery("a-1", 1_000, 1_002), delivery("a-2", 2_000, 2_002));
    let both = || vec![one.clone(), two.clone()];
    let all = json!({"fires": [done(1_000), done(2_000)]});
    let violations = |most: bool, got: &[ReceivedDelivery], page: &Value| {
        check_series(&series(most), got, page, 3_000).violations.len()
    };
    assert_eq!(violations(false, &both(), &all), 0);
    let with_skipped = json!({"fires": [skipped(1_000, 2_000, 6_000)]});
    assert_eq!(violations(false, &[], &with_skipped), 0, "missed by more than five seconds");
    assert_eq!(violations(false, &both(), &with_skipped), 0, "sent before it was decided");
    let with_unknown = json!({"fires": [done(1_000), unknown(2_000)]});
    assert_eq!(violations(true, &both()[..1], &with_unknown), 0);
    let no_attempt = json!([{"reason": "it was not sent"}]);
    let dead = json!({"fire_at": text(2_000), "end": "dead", "attempts": no_attempt});
    let not_sent = json!({"fires": [done(1_000), dead]});
    assert_eq!(violations(true, &both()[..1], &not_sent), 0);
    let again = [both(), vec![two.clone()]].concat();
    assert_eq!(violations(false, &again, &all), 0, "at least once");
    for (what, most, got, page) in [
        ("lost", false, vec![one.clone()], &all),
        ("not sent, but may be sent again", false, vec![one.clone()], &not_sent),
        ("not sent, and received", true, both(), &not_sent),
        ("at most once, and lost without a trace", true, vec![one.clone()], &all),
        ("at most once, and twice", true, again, &all),
        ("not in the history", false, both(), &json!({"fires": [done(1_000)]})),
        ("unknown, but may be sent again", false, vec![one.clone()], &with_unknown),
        ("skipped too soon", false, vec![], &json!({"fires": [skipped(1_000, 2_000, 4_000)]})),
        ("at most once, skipped and received", true, both(), &with_skipped),
        (
            "received after it was skipped",
            false,
            vec![one.clone(), delivery("a-2", 2_000, 7_100)],
            &with_skipped,
        ),
        ("early", false, vec![one.clone(), delivery("a-2", 2_000, 1_999)], &all),
        ("two ids", false, [both(), vec![delivery("b-2", 2_000, 2_003)]].concat(), &all),
        (
            "not one of its times",
            false,
            [both(), vec![delivery("a-3", 2_500, 2_503)]].concat(),
            &all,
        ),
    ] {
        assert!(violations(most, &got, page) > 0, "{what}");
    }

    let touch = |at: u64, due| TouchCall { sent_at: at, answered_at: at + 10, due };
    let watch = |touches| TestWatch { key: "watch".to_owned(), within: 2_000, touches };
    let violations = |touches: &[TouchCall], got: &[ReceivedDelivery]| {
        check_watch(&watch(touches.to_vec()), got).violations.len()
    };
    let touches = [touch(1_000, Some(3_000)), touch(2_000, Some(4_000))];
    let at = |due: u64| delivery("w", due, due + 1);
    assert_eq!(violations(&touches, &[at(4_000)]), 0);
    let open = [touches[0], touches[1], touch(3_000, None)];
    assert_eq!(violations(&open, &[at(4_000)]), 0, "not done");
    assert_eq!(violations(&open, &[at(5_005)]), 0, "done");
    let armed_again = [touches[0], touch(3_500, Some(5_500))];
    assert_eq!(violations(&armed_again, &[at(3_000), at(5_500)]), 0);
    for (what, touches, got) in [
        ("postponed", &touches[..], vec![at(3_000), at(4_000)]),
        ("never fired", &touches[..], vec![]),
        ("another time", &touches[..], vec![at(4_000), at(4_500)]),
        ("only before it was armed again", &armed_again[..], vec![at(3_000)]),
        ("long after any touch", &open[..], vec![at(4_000), at(30_000)]),
        ("early", &touches[..], vec![delivery("w", 4_000, 3_999)]),
    ] {
        assert!(violations(touches, &got) > 0, "{what}");
    }
}
