//! Cron, every and watch from outside: every field, every wrong wish, and what receivers see.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod field;

use std::time::Duration;

use field::{Broker, Receiver, eventually, now_millis};
use serde_json::{Value, json};

fn put(broker: &Broker, key: &str, when: &Value) -> (u16, Value) {
    let mut body = when.clone();
    body["target"] = json!({"queue": "q"});
    broker.put(key, body.to_string())
}

/// A task that should be taken.
fn made(broker: &Broker, key: &str, when: &Value) -> Value {
    let (status, task) = put(broker, key, when);
    assert!(status == 201 || status == 200, "{task}");
    task
}

fn post(broker: &Broker, path: &str, body: &Value) -> (u16, Value) {
    broker.call("POST", &format!("/v1/shop{path}"), &[], body.to_string())
}

fn get(broker: &Broker, path: &str) -> Value {
    let (status, answer) = broker.call("GET", &format!("/v1/shop{path}"), &[], "");
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

fn fires(broker: &Broker, name: &str) -> Vec<Value> {
    get(broker, &format!("/tasks/{name}/fires?limit=1000"))["fires"].as_array().unwrap().clone()
}

/// Takes what is there, or waits so long for it.
fn lease(broker: &Broker, wait: &str) -> Vec<Value> {
    let body = json!({"max": 100, "wait": wait, "lease": "1m"});
    let (status, answer) = post(broker, "/queues/q/lease", &body);
    assert_eq!(status, 200, "{answer}");
    answer["deliveries"].as_array().unwrap().clone()
}

fn ack(broker: &Broker, deliveries: &[Value]) {
    let tokens: Vec<&Value> = deliveries.iter().map(|delivery| &delivery["token"]).collect();
    let (status, answer) = post(broker, "/queues/q/ack", &json!({ "tokens": tokens }));
    assert_eq!(status, 200, "{answer}");
    for result in answer["results"].as_array().unwrap() {
        assert_eq!(result["result"], "acked", "{answer}");
    }
}

/// The next delivery, acked.
fn taken(broker: &Broker) -> Value {
    let deliveries = lease(broker, "20s");
    assert_eq!(deliveries.len(), 1, "{deliveries:?}");
    ack(broker, &deliveries);
    deliveries[0].clone()
}

#[expect(clippy::disallowed_methods, reason = "the real binary has the real clock")]
fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

fn in_minutes(minutes: u64) -> u64 {
    u64::try_from(now_millis()).unwrap() + minutes * 60_000
}

#[test]
fn every_wish_is_answered_as_it_was_sent_with_defaults_filled_in() {
    let broker = Broker::start(&[]);
    let cron = json!({
        "cron": "0  9 * * MON-FRI", "timezone": "europe/berlin",
        "dst": {"gap": "skip", "overlap": "both"},
        "starts_at": "2030-01-01T00:00:00Z", "ends_at": "2031-01-01T00:00:00.000Z",
        "count": 7, "misfire": "fire_all", "overlap": "queue_one", "jitter": "PT1M",
    });
    let task = made(&broker, "cron", &cron);
    let mut want = cron;
    // As it was read: one blank, the name as the database spells it, our way to write durations.
    want["cron"] = json!("0 9 * * MON-FRI");
    want["timezone"] = json!("Europe/Berlin");
    want["starts_at"] = json!("2030-01-01T00:00:00.000Z");
    want["jitter"] = json!("1m");
    for (field, value) in want.as_object().unwrap() {
        assert_eq!(task[field], *value, "{field}");
    }
    assert_eq!(task["state"], "scheduled");
    let (nominal, fire) = (task["nominal_at"].as_str(), task["fire_at"].as_str().unwrap());
    // By chance it has no jitter at all.
    assert_eq!(nominal.unwrap_or(fire), "2030-01-01T08:00:00.000Z");
    assert!(("2030-01-01T08:00:00.000Z"..="2030-01-01T08:01:00.000Z").contains(&fire), "{fire}");
    assert_eq!(broker.get("cron").1, task);

    let task = made(&broker, "plain", &json!({"cron": "@daily"}));
    assert_eq!((&task["timezone"], &task["misfire"]), (&json!("UTC"), &json!("fire_once")));
    assert_eq!((&task["overlap"], &task["dst"]), (&json!("allow"), &Value::Null));
    assert_eq!((&task["jitter"], &task["nominal_at"]), (&Value::Null, &Value::Null));

    let task = made(&broker, "beat", &json!({"cron": "@every 5m", "starts_at": 0, "count": 3}));
    assert_eq!((&task["every"], &task["cron"]), (&json!("5m"), &Value::Null), "an interval");
    assert_eq!(task["starts_at"], "1970-01-01T00:00:00.000Z");
    let fire_at = task["fire_at"].as_str().unwrap();
    assert!(fire_at.ends_with("0:00.000Z") || fire_at.ends_with("5:00.000Z"), "{fire_at}");

    let watch = json!({"within": "48h", "postpone_max": "30d", "on_return": true});
    let task = made(&broker, "watch", &watch);
    assert_eq!((&task["within"], &task["postpone_max"]), (&json!("2d"), &json!("30d")));
    assert_eq!(task["on_return"], true);
    assert_eq!(made(&broker, "silent", &json!({"within": "1h"}))["on_return"], false);
}

#[test]
fn a_wish_that_cannot_be_taken_is_refused_by_name() {
    let broker = Broker::start(&[]);
    for (when, field, says) in [
        (json!({"cron": "@daily", "in": "1h"}), "cron", "exactly one of"),
        (json!({"every": "1h", "within": "1h"}), "within", "exactly one of"),
        (json!({}), "in", "exactly one of `in`, `at`, `cron`, `every` and `within`"),
        (json!({"every": "1h", "timezone": "UTC"}), "timezone", "goes with `cron` only"),
        (json!({"cron": "@every 1h", "timezone": "UTC"}), "timezone", "goes with `cron` only"),
        (json!({"in": "1h", "dst": {"gap": "skip"}}), "dst", "goes with `cron` only"),
        (json!({"in": "1h", "starts_at": 1}), "starts_at", "goes with `cron` and `every` only"),
        (json!({"within": "1h", "ends_at": 1}), "ends_at", "goes with `cron` and `every` only"),
        (json!({"within": "1h", "count": 1}), "count", "goes with `cron` and `every` only"),
        (json!({"at": 1, "misfire": "skip"}), "misfire", "goes with `cron` and `every` only"),
        (json!({"at": 1, "overlap": "skip"}), "overlap", "goes with `cron` and `every` only"),
        (json!({"in": "1s", "jitter": "1s"}), "jitter", "goes with `cron` and `every` only"),
        (json!({"every": "1s", "postpone_max": "1s"}), "postpone_max", "goes with `within` only"),
        (json!({"cron": "@daily", "on_return": false}), "on_return", "goes with `within` only"),
        (json!({"cron": "0 25 * * *"}), "cron", "hour"),
        (json!({"cron": "0 9 * *"}), "cron", "fields"),
        (json!({"cron": "0 0 30 2 *"}), "cron", "never"),
        (json!({"cron": "@every 1ms"}), "cron", "from 100ms"),
        (json!({"cron": "0 0 0 1 1 * 2020"}), "cron", "no fire time after now"),
        (json!({"cron": "@daily", "timezone": "Europe/Berlni"}), "timezone", "Europe/Berlin"),
        (json!({"cron": "@daily", "ends_at": 5}), "ends_at", "before the first fire"),
        (json!({"every": "1h", "starts_at": 9, "ends_at": 8}), "ends_at", "before starts_at"),
        (json!({"every": "1h", "ends_at": 8}), "ends_at", "before the first fire"),
        (json!({"every": "99ms"}), "every", "from 100ms"),
        (json!({"every": "soon"}), "every", "must be a duration"),
        (json!({"every": "1h", "count": 0}), "count", "at least 1"),
        (json!({"every": "1h", "jitter": "2h"}), "jitter", "at most the interval"),
        (json!({"cron": "@daily", "jitter": "25h"}), "jitter", "at most 1d"),
        (json!({"every": "1h", "starts_at": "monday"}), "starts_at", "RFC 3339"),
        (json!({"within": "1ms"}), "within", "from 100ms"),
        (json!({"within": "1h", "postpone_max": "1m"}), "postpone_max", "from 1h"),
    ] {
        let (status, problem) = put(&broker, "a", &when);
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{when}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.to_lowercase().contains(&says.to_lowercase()), "{when}: {detail}");
    }
    for (when, field) in [
        (json!({"cron": 5}), "cron"),
        (json!({"every": "1h", "count": -1}), "count"),
        (json!({"every": "1h", "misfire": "shrug"}), "misfire"),
        (json!({"every": "1h", "overlap": "deny"}), "overlap"),
        (json!({"cron": "@daily", "dst": {"gap": "before"}}), "dst.gap"),
        (json!({"cron": "@daily", "dst": {"spring": "skip"}}), "dst.spring"),
        (json!({"within": "1h", "on_return": "yes"}), "on_return"),
    ] {
        let (status, problem) = put(&broker, "a", &when);
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{when}: {problem}");
    }
    assert_eq!(broker.get("a").0, 404, "none of them was taken");
    made(&broker, "beat", &json!({"every": "1h"}));
    let (status, problem) = post(&broker, "/tasks/beat/touch", &json!({"in": "1m"}));
    assert_eq!((status, &problem["type"]), (422, &json!("urn:punctual:not-touchable")));
    made(&broker, "watch", &json!({"within": "1h"}));
    let (status, problem) = post(&broker, "/tasks/watch/touch", &json!({"in": "1m", "at": 5}));
    assert_eq!((status, &problem["field"]), (422, &json!("in")));
    let (status, problem) = post(&broker, "/tasks/watch/touch", &json!({"within": "1ms"}));
    assert_eq!((status, &problem["field"]), (422, &json!("within")));
}

#[test]
fn a_preview_shows_local_times_and_what_the_clocks_do() {
    let broker = Broker::start(&["--token", "shop=secret"]);
    let preview = |query: &str| {
        let token = [("authorization", "Bearer secret")];
        broker.call("GET", &format!("/v1/preview?{query}"), &token, "")
    };
    let nightly = "cron=30+2+*+*+*&timezone=Europe/Berlin";
    let spring = format!("{nightly}&from=2027-03-27T12:00:00Z&count=2");
    let autumn = format!("{nightly}&from=2027-10-30T12:00:00Z&count=2");
    let (gap, back) = (
        "02:30 does not exist on this day: the clocks go forward from 02:00 to 03:00",
        "the clocks go back from 03:00 to 02:00",
    );
    for (query, want) in [
        (
            spring.clone(),
            [
                ("2027-03-28T01:00:00.000Z", "2027-03-28T03:00:00+02:00", gap.to_owned()),
                ("2027-03-29T00:30:00.000Z", "2027-03-29T02:30:00+02:00", String::new()),
            ],
        ),
        (
            format!("{spring}&dst_gap=skip"),
            [
                ("2027-03-29T00:30:00.000Z", "2027-03-29T02:30:00+02:00", String::new()),
                ("2027-03-30T00:30:00.000Z", "2027-03-30T02:30:00+02:00", String::new()),
            ],
        ),
        (
            autumn.clone(),
            [
                (
                    "2027-10-31T00:30:00.000Z",
                    "2027-10-31T02:30:00+02:00",
                    format!("first of two 02:30, the second is left out: {back}"),
                ),
                ("2027-11-01T01:30:00.000Z", "2027-11-01T02:30:00+01:00", String::new()),
            ],
        ),
        (
            format!("{autumn}&dst_overlap=both"),
            [
                (
                    "2027-10-31T00:30:00.000Z",
                    "2027-10-31T02:30:00+02:00",
                    format!("first of two 02:30, both are meant: {back}"),
                ),
                (
                    "2027-10-31T01:30:00.000Z",
                    "2027-10-31T02:30:00+01:00",
                    format!("second of two 02:30: {back}"),
                ),
            ],
        ),
    ] {
        let (status, answer) = preview(&query);
        assert_eq!(status, 200, "{answer}");
        let got = answer["fires"].as_array().unwrap();
        assert_eq!(got.len(), 2, "{answer}");
        for (got, (fire_at, local, note)) in got.iter().zip(want) {
            assert_eq!(got["fire_at"], fire_at, "{query}");
            assert_eq!(got["local"], format!("{local}[Europe/Berlin]"), "{query}");
            assert_eq!(got["note"].as_str().unwrap_or_default(), note, "{query}");
        }
    }
    let (_, answer) = preview("cron=@hourly");
    assert_eq!(answer["fires"].as_array().unwrap().len(), 5, "from now on");
    assert_eq!(answer["timezone"], "UTC");
    assert!(answer["timezone_data"].as_str().unwrap().starts_with("20"), "{answer}");
    assert_eq!(preview("cron=@hourly&count=100").1["fires"].as_array().unwrap().len(), 100);
    let (_, ended) = preview("cron=0+0+0+1+1+*+2027&from=2026-01-01T00:00:00Z");
    assert_eq!(ended["fires"].as_array().unwrap().len(), 1, "no more are to come");
    for (query, status, field) in [
        ("", 422, "cron"),
        ("cron=@hourly&count=0", 400, "count"),
        ("cron=@hourly&count=101", 400, "count"),
        ("cron=@hourly&from=noon", 422, "from"),
        ("cron=61+*+*+*+*", 422, "cron"),
        ("cron=@every+5m", 422, "cron"),
        ("cron=@hourly&timezone=Mars", 422, "timezone"),
        ("cron=@hourly&dst_gap=before", 422, "dst_gap"),
        ("cron=@hourly&dst_overlap=never", 422, "dst_overlap"),
        ("cron=@hourly&zone=UTC", 400, "zone"),
    ] {
        let (got, problem) = preview(query);
        assert_eq!((got, &problem["field"]), (status, &json!(field)), "{query}: {problem}");
    }
    let (status, _) = broker.call("GET", "/v1/preview?cron=@hourly", &[], "");
    assert_eq!(status, 401, "any token, but one");
}

#[test]
fn every_tenth_of_a_second_fires_without_a_gap_a_double_or_drift() {
    let broker = Broker::start(&[]);
    let task = made(&broker, "beat", &json!({"every": "100ms", "count": 40}));
    let mut fire_ats: Vec<Value> = Vec::new();
    while fire_ats.len() < 40 {
        let deliveries = lease(&broker, "20s");
        assert!(!deliveries.is_empty(), "{fire_ats:?}");
        ack(&broker, &deliveries);
        for delivery in deliveries {
            assert_eq!((&delivery["occasion"], &delivery["attempt"]), (&json!("due"), &json!(1)));
            fire_ats.push(delivery["fire_at"].clone());
        }
    }
    let ms = |at: &Value| -> i64 {
        // The seconds of a minute are enough to tell neighbours apart.
        let seconds: f64 = at.as_str().unwrap()[17..23].parse().unwrap();
        #[expect(clippy::cast_possible_truncation, reason = "less than a minute")]
        let millis = (seconds * 1000.0).round() as i64;
        millis
    };
    fire_ats.sort_by_key(|at| at.as_str().unwrap().to_owned());
    for pair in fire_ats.windows(2) {
        assert_eq!((ms(&pair[1]) - ms(&pair[0])).rem_euclid(60_000), 100, "{pair:?}");
    }
    assert_eq!(fire_ats[0], task["fire_at"]);
    assert!(lease(&broker, "500ms").is_empty(), "so many and no more");
    eventually(|| (broker.get("beat").0 == 404).then_some(()));
    let id = task["id"].as_str().unwrap();
    let fires = fires(&broker, id);
    assert_eq!(fires.len(), 40);
    assert!(fires.iter().all(|fire| fire["end"] == "done"), "{fires:?}");
    let ids: std::collections::BTreeSet<_> =
        fires.iter().map(|fire| fire["fire_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 40);
}

#[test]
fn a_series_is_edited_in_place_and_never_fires_by_its_old_definition() {
    let broker = Broker::start(&[]);
    let old = made(&broker, "report", &json!({"cron": "0 0 9 1 1 ?", "timezone": "UTC"}));
    let new = made(&broker, "report", &json!({"cron": "@yearly", "timezone": "Asia/Tokyo"}));
    assert_eq!((&new["id"], &new["version"]), (&old["id"], &json!(2)));
    assert_ne!(new["fire_at"], old["fire_at"]);
    assert!(new["fire_at"].as_str().unwrap().ends_with("-12-31T15:00:00.000Z"), "{new}");
    let every = made(&broker, "report", &json!({"every": "1h"}));
    assert_eq!((&every["id"], &every["version"]), (&old["id"], &json!(3)));
    // It would have fired in a moment, and does not; the new one does.
    made(&broker, "report", &json!({"every": "300ms"}));
    let quick = made(&broker, "report", &json!({"every": "1h", "starts_at": in_minutes(60)}));
    assert_eq!(quick["id"], old["id"]);
    assert!(lease(&broker, "700ms").is_empty());
    let before: u64 = quick["version"].as_u64().unwrap();
    made(&broker, "report", &json!({"every": "100ms", "count": 1}));
    let fired = taken(&broker);
    assert_eq!((&fired["task"], &fired["version"]), (&old["id"], &json!(before + 1)));
    // Another kind of schedule is another task.
    made(&broker, "order", &json!({"every": "1h"}));
    let beat = broker.get("order").1;
    assert_ne!(made(&broker, "order", &json!({"in": "1h"}))["id"], beat["id"]);
}

#[test]
fn what_is_due_while_a_series_is_paused_is_left_out_and_said_to_be() {
    let broker = Broker::start(&[]);
    let task = made(&broker, "beat", &json!({"every": "100ms"}));
    taken(&broker);
    let paused = post(&broker, "/tasks/beat/pause", &json!({})).1;
    assert_eq!(paused["state"], "paused", "{paused}");
    ack(&broker, &lease(&broker, "0s"));
    pause(600);
    assert!(lease(&broker, "100ms").is_empty(), "it is paused");
    let (status, resumed) = post(&broker, "/tasks/beat/resume", &json!({}));
    assert_eq!((status, &resumed["state"]), (200, &json!("scheduled")), "{resumed}");
    assert_eq!(resumed["id"], task["id"]);
    let next = taken(&broker);
    assert_eq!(broker.delete("beat").0, 200);
    let fires = fires(&broker, task["id"].as_str().unwrap());
    let skipped = fires.iter().find(|fire| fire["end"] == "skipped").unwrap();
    assert_eq!(
        (&skipped["skipped"]["reason"], &skipped["attempts"]),
        (&json!("paused"), &json!([]))
    );
    assert!(skipped["skipped"]["fires"].as_u64().unwrap() >= 4, "{skipped}");
    assert!(skipped["skipped"]["until"].as_str() < next["fire_at"].as_str(), "{skipped}");
    assert_eq!((&skipped["fired_at"], &skipped["lag_ms"]), (&Value::Null, &Value::Null));
    let (_, page) = broker.call("GET", "/metrics", &[], "");
    let count = skipped["skipped"]["fires"].as_u64().unwrap();
    let line = format!("punctual_fires_skipped_total{{reason=\"paused\"}} {count}");
    assert!(page.as_str().unwrap().lines().any(|got| got == line), "{line}\n{page}");
}

#[test]
fn a_fire_beside_one_that_is_not_over_is_fired_skipped_or_queued() {
    let broker = Broker::start(&[]);
    // Two come beside each other.
    made(&broker, "allow", &json!({"every": "200ms", "count": 2}));
    let first = lease(&broker, "20s");
    let second = lease(&broker, "20s");
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first[0]["fire_id"], second[0]["fire_id"]);
    ack(&broker, &second);
    ack(&broker, &first);
    // The others are left out.
    let task = made(&broker, "skip", &json!({"every": "100ms", "overlap": "skip", "count": 2}));
    let first = lease(&broker, "20s");
    assert!(lease(&broker, "500ms").is_empty(), "the one before is not over");
    ack(&broker, &first);
    let second = taken(&broker);
    let fires = fires(&broker, task["id"].as_str().unwrap());
    let skipped = fires.iter().find(|fire| fire["end"] == "skipped").unwrap();
    assert_eq!(skipped["skipped"]["reason"], "overlap", "{skipped}");
    assert!(skipped["skipped"]["until"].as_str() < second["fire_at"].as_str(), "{skipped}");
    // One waits.
    made(&broker, "queue", &json!({"every": "100ms", "overlap": "queue_one", "count": 2}));
    let first = lease(&broker, "20s");
    pause(500);
    ack(&broker, &first);
    let second = taken(&broker);
    assert!(second["lag_ms"].as_u64().unwrap() >= 300, "it waited: {second}");
}

#[test]
fn a_watch_fires_in_silence_and_is_armed_again_by_the_next_touch() {
    let broker = Broker::start(&[]);
    let task = made(&broker, "device/7".replace('/', "%2F").as_str(), &json!({"within": "1h"}));
    let touch = |body: &Value| post(&broker, "/tasks/device%2F7/touch", body);
    let (status, touched) = touch(&json!({}));
    assert_eq!((status, &touched["id"]), (200, &task["id"]), "{touched}");
    assert_eq!(touched["version"], 2);
    // For this once: sooner.
    assert_eq!(touch(&json!({"within": "150ms"})).0, 200);
    let fired = taken(&broker);
    assert_eq!((&fired["key"], &fired["occasion"]), (&json!("device/7"), &json!("due")));
    let done = eventually(|| {
        let task = broker.get("device%2F7").1;
        (task["state"] == "done").then_some(task)
    });
    assert_eq!(done["id"], task["id"], "it stays");
    let listed = get(&broker, "/tasks?state=done");
    assert_eq!(listed["tasks"][0]["key"], "device/7", "{listed}");
    assert_eq!(get(&broker, "/tasks?state=scheduled")["tasks"], json!([]));
    let (_, armed) = touch(&json!({}));
    assert_eq!((&armed["state"], &armed["id"]), (&json!("scheduled"), &task["id"]));
    assert!(armed["fire_at"].as_str() > done["fire_at"].as_str());
    assert!(lease(&broker, "300ms").is_empty(), "nobody asked to be told of its return");
    let fires = fires(&broker, task["id"].as_str().unwrap());
    assert_eq!((fires.len(), &fires[0]["end"]), (1, &json!("done")), "{fires:?}");
    assert_eq!(broker.delete("device%2F7").1, json!({"result": "cancelled"}));
    assert_eq!(touch(&json!({})).0, 404);
}

#[test]
fn a_watch_tells_of_the_return_and_does_not_wait_for_ever() {
    let broker = Broker::start(&[]);
    made(&broker, "a", &json!({"within": "200ms", "on_return": true}));
    let silent = taken(&broker);
    assert_eq!(silent["occasion"], "due");
    eventually(|| (broker.get("a").1["state"] == "done").then_some(()));
    assert_eq!(post(&broker, "/tasks/a/touch", &json!({"within": "1h"})).0, 200);
    let back = taken(&broker);
    assert_eq!((&back["occasion"], &back["key"]), (&json!("return"), &json!("a")));
    assert_ne!(back["fire_id"], silent["fire_id"]);
    eventually(|| (broker.get("a").1["state"] == "scheduled").then_some(()));
    assert!(lease(&broker, "300ms").is_empty(), "armed for an hour");
    // Touches put it off no longer than that.
    let limited = made(&broker, "b", &json!({"within": "1h", "postpone_max": "1h"}));
    let (_, touched) = post(&broker, "/tasks/b/touch", &json!({}));
    assert_eq!(touched["fire_at"], limited["fire_at"], "{touched}");
    // What is under way goes on, and the watch is armed after it.
    made(&broker, "c", &json!({"within": "100ms"}));
    let under_way = lease(&broker, "20s");
    assert_eq!(post(&broker, "/tasks/c/touch", &json!({"within": "1h"})).0, 200);
    assert_eq!(broker.get("c").1["state"], "firing");
    ack(&broker, &under_way);
    eventually(|| (broker.get("c").1["state"] == "scheduled").then_some(()));
    // Cancelled while it fires: it says so, and is gone after that.
    made(&broker, "d", &json!({"within": "100ms"}));
    let under_way = lease(&broker, "20s");
    assert_eq!(broker.delete("d").1, json!({"result": "firing", "attempt": 1}));
    ack(&broker, &under_way);
    eventually(|| (broker.get("d").0 == 404).then_some(()));
}

#[test]
fn many_touches_create_the_watches_that_are_missing() {
    let broker = Broker::start(&["--partitions", "4"]);
    let keys: Vec<String> = (0..500).map(|n| format!("device/{n}")).collect();
    let watch = json!({"within": "1h", "on_return": true, "target": {"queue": "q"}});
    let body = json!({"keys": keys, "create": watch});
    let (_, answer) = post(&broker, "/touch", &body);
    assert_eq!((&answer["touched"], &answer["created"]), (&json!(0), &json!(500)), "{answer}");
    let (_, answer) = post(&broker, "/touch", &body);
    assert_eq!((&answer["touched"], &answer["created"]), (&json!(500), &json!(0)), "{answer}");
    let (_, answer) = post(&broker, "/touch", &json!({"keys": ["device/1", "x"], "within": "2h"}));
    assert_eq!((&answer["touched"], &answer["missing"]), (&json!(1), &json!(["x"])));
    let task = broker.get("device%2F1").1;
    assert_eq!((&task["within"], &task["version"]), (&json!("1h"), &json!(3)), "{task}");
    let bad = json!({"keys": ["y"], "create": {"within": "1ms", "target": {"queue": "q"}}});
    let (status, problem) = post(&broker, "/touch", &bad);
    assert_eq!((status, &problem["field"]), (422, &json!("create.within")), "{problem}");
}

#[test]
fn a_webhook_says_why_it_is_called() {
    let (broker, receiver) = (Broker::start(&["--allow-private-targets"]), Receiver::start());
    broker.put("a", field::task(r#""cron": "@yearly""#, &receiver.url));
    assert_eq!(post(&broker, "/tasks/a/fire", &json!({})).0, 200);
    assert_eq!(receiver.next().header("punctual-occasion"), "manual");
    assert_eq!(broker.get("a").1["cron"], "@yearly", "its schedule goes on");
    broker.put("b", field::task(r#""every": "100ms", "count": 1"#, &receiver.url));
    assert_eq!(receiver.next().header("punctual-occasion"), "due");
}

#[test]
fn the_forecast_counts_what_follows_from_the_schedules() {
    let broker = Broker::start(&["--partitions", "2"]);
    let steps = |query: &str| -> Vec<u64> {
        let forecast = get(&broker, &format!("/forecast?{query}"));
        assert_eq!(forecast["complete"], true, "{forecast}");
        let steps = forecast["steps"].as_array().unwrap();
        steps.iter().map(|step| step["fires"].as_u64().unwrap()).collect()
    };
    let (five, hour) = (in_minutes(5), in_minutes(60));
    let four_hours = "for=4h&step=1h";
    let mut want = vec![0; 4];
    for (key, when, adds) in [
        ("every", json!({"every": "10m", "starts_at": five}), [6, 6, 6, 6]),
        ("counted", json!({"every": "10m", "starts_at": five, "count": 10}), [6, 4, 0, 0]),
        ("ends", json!({"every": "10m", "starts_at": five, "ends_at": hour}), [6, 0, 0, 0]),
        ("cron", json!({"cron": "30 * * * * *"}), [60, 60, 60, 60]),
        ("cron counted", json!({"cron": "30 * * * * *", "count": 70}), [60, 10, 0, 0]),
        ("once", json!({"in": "90m"}), [0, 1, 0, 0]),
        ("watch", json!({"within": "150m"}), [0, 0, 1, 0]),
        ("later", json!({"cron": "@hourly", "starts_at": in_minutes(600)}), [0, 0, 0, 0]),
    ] {
        made(&broker, &key.replace(' ', "-"), &when);
        for (sum, fires) in want.iter_mut().zip(adds) {
            *sum += fires;
        }
        assert_eq!(steps(four_hours), want, "with {key}");
    }
    post(&broker, "/tasks/every/pause", &json!({}));
    post(&broker, "/tasks/cron/pause", &json!({}));
    for sum in &mut want {
        *sum -= 66;
    }
    assert_eq!(steps(four_hours), want, "paused ones wait");
    assert_eq!(steps("for=4h&step=4h"), [want.iter().sum::<u64>()]);
    // More than is walked through for one answer.
    made(&broker, "seconds", &json!({"cron": "* * * * * *"}));
    let forecast = get(&broker, "/forecast?for=366d&step=366d");
    assert_eq!(forecast["complete"], false, "{forecast}");
    assert!(forecast["complete_until"].is_string(), "{forecast}");
}
