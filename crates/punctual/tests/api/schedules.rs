//! Cron, interval and watch schedules: every field, every refusal, and what receivers get.

use std::time::Duration;

use punctual_test_support::{TestBroker, WebhookReceiver, eventually, now_millis, pause};
use serde_json::{Value, json};

fn put(broker: &TestBroker, key: &str, when: &Value) -> (u16, Value) {
    let mut body = when.clone();
    body["target"] = json!({"queue": "q"});
    broker.put(key, body.to_string())
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_else(|| panic!("{field}: {object}"))
}

/// Schedules a task that must be accepted.
fn schedule(broker: &TestBroker, key: &str, when: &Value) -> Value {
    let (status, task) = put(broker, key, when);
    assert!(status == 201 || status == 200, "{task}");
    task
}

fn post(broker: &TestBroker, path: &str, body: &Value) -> (u16, Value) {
    broker.call("POST", &format!("/v1/shop{path}"), &[], body.to_string())
}

fn get(broker: &TestBroker, path: &str) -> Value {
    let (status, answer) = broker.call("GET", &format!("/v1/shop{path}"), &[], "");
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

fn fires(broker: &TestBroker, name: &str) -> Vec<Value> {
    get(broker, &format!("/tasks/{name}/fires?limit=1000"))["fires"].as_array().unwrap().clone()
}

/// Leases due deliveries, or waits for some.
fn lease(broker: &TestBroker, wait: &str) -> Vec<Value> {
    let body = json!({"max": 100, "wait": wait, "lease": "1m"});
    let (status, answer) = post(broker, "/queues/q/lease", &body);
    assert_eq!(status, 200, "{answer}");
    answer["deliveries"].as_array().unwrap().clone()
}

fn ack(broker: &TestBroker, deliveries: &[Value]) {
    let tokens: Vec<&Value> = deliveries.iter().map(|delivery| &delivery["token"]).collect();
    let (status, answer) = post(broker, "/queues/q/ack", &json!({ "tokens": tokens }));
    assert_eq!(status, 200, "{answer}");
    for result in answer["results"].as_array().unwrap() {
        assert_eq!(result["result"], "acked", "{answer}");
    }
}

/// Leases the next delivery and acks it.
fn lease_and_ack(broker: &TestBroker) -> Value {
    let deliveries = lease(broker, "20s");
    assert_eq!(deliveries.len(), 1, "{deliveries:?}");
    ack(broker, &deliveries);
    deliveries[0].clone()
}

fn pause_millis(millis: u64) {
    pause(Duration::from_millis(millis));
}

fn in_minutes(minutes: u64) -> u64 {
    u64::try_from(now_millis()).unwrap() + minutes * 60_000
}

#[test]
fn every_field_is_returned_as_it_was_sent_with_defaults_filled_in() {
    let broker = TestBroker::start(&[]);
    let cron = json!({
        "cron": "0  9 * * MON-FRI", "timezone": "europe/berlin",
        "dst": {"gap": "skip", "overlap": "both"},
        "starts_at": "2030-01-01T00:00:00Z", "ends_at": "2031-01-01T00:00:00.000Z",
        "count": 7, "misfire": "fire_all", "overlap": "queue_one", "jitter": "PT1M",
    });
    let task = schedule(&broker, "cron", &cron);
    let mut want = cron;
    // As it was parsed: one space, the name as the database spells it, durations in one form.
    want["cron"] = json!("0 9 * * MON-FRI");
    want["timezone"] = json!("Europe/Berlin");
    want["starts_at"] = json!("2030-01-01T00:00:00.000Z");
    want["jitter"] = json!("1m");
    for (field, value) in want.as_object().unwrap() {
        assert_eq!(task[field], *value, "{field}");
    }
    assert_eq!(task["state"], "scheduled");
    let (nominal, fire) = (task["nominal_at"].as_str(), task["fire_at"].as_str().unwrap());
    // The random jitter may be zero.
    assert_eq!(nominal.unwrap_or(fire), "2030-01-01T08:00:00.000Z");
    assert!(("2030-01-01T08:00:00.000Z"..="2030-01-01T08:01:00.000Z").contains(&fire), "{fire}");
    assert_eq!(broker.get("cron").1, task);

    let task = schedule(&broker, "plain", &json!({"cron": "@daily"}));
    assert_eq!((&task["timezone"], &task["misfire"]), (&json!("UTC"), &json!("fire_once")));
    assert_eq!((&task["overlap"], &task["dst"]), (&json!("allow"), &Value::Null));
    assert_eq!((&task["jitter"], &task["nominal_at"]), (&Value::Null, &Value::Null));

    let task = schedule(&broker, "beat", &json!({"cron": "@every 5m", "starts_at": 0, "count": 3}));
    assert_eq!((&task["every"], &task["cron"]), (&json!("5m"), &Value::Null), "an interval");
    assert_eq!(task["starts_at"], "1970-01-01T00:00:00.000Z");
    let fire_at = task["fire_at"].as_str().unwrap();
    assert!(fire_at.ends_with("0:00.000Z") || fire_at.ends_with("5:00.000Z"), "{fire_at}");

    let watch = json!({"within": "48h", "postpone_max": "30d", "on_return": true});
    let task = schedule(&broker, "watch", &watch);
    assert_eq!((&task["within"], &task["postpone_max"]), (&json!("2d"), &json!("30d")));
    assert_eq!(task["on_return"], true);
    assert_eq!(schedule(&broker, "silent", &json!({"within": "1h"}))["on_return"], false);
}

#[test]
fn an_invalid_schedule_is_refused_with_the_field() {
    let broker = TestBroker::start(&[]);
    for (when, field, words) in [
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
        (json!({"every": "1h", "count": -1}), "count", "from 1 to 4294967295"),
        (json!({"every": "1h", "dst": {}}), "dst", "goes with `cron` only"),
        (json!({"every": "1h", "jitter": "2h"}), "jitter", "at most the interval"),
        (json!({"cron": "@daily", "jitter": "25h"}), "jitter", "at most 1d"),
        (json!({"every": "1h", "starts_at": "monday"}), "starts_at", "RFC 3339"),
        (json!({"within": "1ms"}), "within", "from 100ms"),
        (json!({"within": "1h", "postpone_max": "1m"}), "postpone_max", "from 1h"),
    ] {
        let (status, problem) = put(&broker, "a", &when);
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{when}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.to_lowercase().contains(&words.to_lowercase()), "{when}: {detail}");
    }
    for (when, field) in [
        (json!({"cron": 5}), "cron"),
        (json!({"every": "1h", "count": 1.5}), "count"),
        (json!({"every": "1h", "misfire": "shrug"}), "misfire"),
        (json!({"every": "1h", "overlap": "deny"}), "overlap"),
        (json!({"cron": "@daily", "dst": {"gap": "before"}}), "dst.gap"),
        (json!({"cron": "@daily", "dst": {"spring": "skip"}}), "dst.spring"),
        (json!({"within": "1h", "on_return": "yes"}), "on_return"),
    ] {
        let (status, problem) = put(&broker, "a", &when);
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{when}: {problem}");
    }
    assert_eq!(broker.get("a").0, 404, "no task was scheduled");
    schedule(&broker, "beat", &json!({"every": "1h"}));
    let (status, problem) = post(&broker, "/tasks/beat/touch", &json!({"in": "1m"}));
    assert_eq!((status, &problem["type"]), (422, &json!("urn:punctual:not-touchable")));
    schedule(&broker, "watch", &json!({"within": "1h"}));
    let (status, problem) = post(&broker, "/tasks/watch/touch", &json!({"in": "1m", "at": 5}));
    assert_eq!((status, &problem["field"]), (422, &json!("in")));
    let (status, problem) = post(&broker, "/tasks/watch/touch", &json!({"within": "1ms"}));
    assert_eq!((status, &problem["field"]), (422, &json!("within")));
}

#[test]
fn a_preview_shows_local_times_and_clock_changes() {
    let broker = TestBroker::start(&["--token", "shop=secret"]);
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
                    format!("first of two 02:30, both fire: {back}"),
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
    assert_eq!(answer["fires"].as_array().unwrap().len(), 5, "from now");
    assert_eq!(answer["timezone"], "UTC");
    assert!(answer["timezone_data"].as_str().unwrap().starts_with("20"), "{answer}");
    assert_eq!(preview("cron=@hourly&count=100").1["fires"].as_array().unwrap().len(), 100);
    let (_, ended) = preview("cron=0+0+0+1+1+*+2027&from=2026-01-01T00:00:00Z");
    assert_eq!(ended["fires"].as_array().unwrap().len(), 1, "the schedule ends");
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
    assert_eq!(status, 401, "a token is needed");
}

#[test]
fn an_interval_of_a_tenth_of_a_second_fires_without_gaps_doubles_or_drift() {
    let broker = TestBroker::start(&[]);
    let task = schedule(&broker, "beat", &json!({"every": "100ms", "count": 40}));
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
        // The seconds within a minute are enough to compare neighbours.
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
    assert!(lease(&broker, "500ms").is_empty(), "no more than its count");
    eventually(|| (broker.get("beat").1["end"] == "done").then_some(()));
    let id = task["id"].as_str().unwrap();
    let fires = fires(&broker, id);
    assert_eq!(fires.len(), 40);
    assert!(fires.iter().all(|fire| fire["end"] == "done"), "{fires:?}");
    let ids: std::collections::BTreeSet<_> =
        fires.iter().map(|fire| fire["fire_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 40);
}

#[test]
fn a_replaced_series_keeps_its_id_and_never_fires_by_its_old_schedule() {
    let broker = TestBroker::start(&[]);
    let old = schedule(&broker, "report", &json!({"cron": "0 0 9 1 1 ?", "timezone": "UTC"}));
    let new = schedule(&broker, "report", &json!({"cron": "@yearly", "timezone": "Asia/Tokyo"}));
    assert_eq!((&new["id"], &new["version"]), (&old["id"], &json!(2)));
    assert_ne!(new["fire_at"], old["fire_at"]);
    assert!(new["fire_at"].as_str().unwrap().ends_with("-12-31T15:00:00.000Z"), "{new}");
    let every = schedule(&broker, "report", &json!({"every": "1h"}));
    assert_eq!((&every["id"], &every["version"]), (&old["id"], &json!(3)));
    // The replaced schedule would have fired soon, and does not; the new one does.
    schedule(&broker, "report", &json!({"every": "300ms"}));
    let quick = schedule(&broker, "report", &json!({"every": "1h", "starts_at": in_minutes(60)}));
    assert_eq!(quick["id"], old["id"]);
    assert!(lease(&broker, "700ms").is_empty());
    let before: u64 = quick["version"].as_u64().unwrap();
    schedule(&broker, "report", &json!({"every": "100ms", "count": 1}));
    let fired = lease_and_ack(&broker);
    assert_eq!((&fired["task"], &fired["version"]), (&old["id"], &json!(before + 1)));
    // A change to a one-time schedule makes another task.
    schedule(&broker, "order", &json!({"every": "1h"}));
    let beat = broker.get("order").1;
    assert_ne!(schedule(&broker, "order", &json!({"in": "1h"}))["id"], beat["id"]);
}

#[test]
fn fires_due_while_a_series_is_paused_are_skipped_and_recorded() {
    let broker = TestBroker::start(&[]);
    let task = schedule(&broker, "beat", &json!({"every": "100ms"}));
    lease_and_ack(&broker);
    let paused = post(&broker, "/tasks/beat/pause", &json!({})).1;
    assert_eq!(paused["state"], "paused", "{paused}");
    ack(&broker, &lease(&broker, "0s"));
    pause_millis(600);
    assert!(lease(&broker, "100ms").is_empty(), "the series is paused");
    let (status, resumed) = post(&broker, "/tasks/beat/resume", &json!({}));
    assert_eq!((status, &resumed["state"]), (200, &json!("scheduled")), "{resumed}");
    assert_eq!(resumed["id"], task["id"]);
    let mut sent = Vec::new();
    while sent.last().is_none_or(|fire_at: &String| fire_at.as_str() < text(&resumed, "fire_at")) {
        let deliveries = lease(&broker, "20s");
        ack(&broker, &deliveries);
        sent.extend(deliveries.iter().map(|delivery| text(delivery, "fire_at").to_owned()));
    }
    // On a busy machine some fires were due before the pause and not yet leased.
    let due_before = |fire_at: &&String| fire_at.as_str() <= text(&paused, "updated_at");
    let later: Vec<_> = sent.iter().skip_while(due_before).collect();
    assert_eq!(broker.delete("beat").0, 200);
    let fires = fires(&broker, task["id"].as_str().unwrap());
    let skipped = fires.iter().find(|fire| fire["end"] == "skipped");
    let skipped = skipped.unwrap_or_else(|| panic!("nothing was skipped: {fires:?}"));
    assert_eq!(
        (&skipped["skipped"]["reason"], &skipped["attempts"]),
        (&json!("paused"), &json!([]))
    );
    assert!(skipped["skipped"]["fires"].as_u64().unwrap() >= 4, "{skipped}");
    let until = text(&skipped["skipped"], "until");
    assert!(later.iter().all(|fire_at| until < fire_at.as_str()), "{skipped} {sent:?}");
    assert_eq!((&skipped["fired_at"], &skipped["lag_ms"]), (&Value::Null, &Value::Null));
    let (_, page) = broker.call("GET", "/metrics", &[], "");
    let count = skipped["skipped"]["fires"].as_u64().unwrap();
    let line = format!("punctual_fires_skipped_total{{reason=\"paused\"}} {count}");
    assert!(page.as_str().unwrap().lines().any(|got| got == line), "{line}\n{page}");
}

#[test]
fn an_overlapping_fire_is_allowed_skipped_or_queued() {
    let broker = TestBroker::start(&[]);
    // Both are in flight at once.
    schedule(&broker, "allow", &json!({"every": "200ms", "count": 2}));
    let first = lease(&broker, "20s");
    let second = lease(&broker, "20s");
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first[0]["fire_id"], second[0]["fire_id"]);
    ack(&broker, &second);
    ack(&broker, &first);
    // Overlapping fires are skipped.
    let task = schedule(&broker, "skip", &json!({"every": "100ms", "overlap": "skip", "count": 2}));
    let first = lease(&broker, "20s");
    assert!(lease(&broker, "500ms").is_empty(), "the previous fire is in flight");
    ack(&broker, &first);
    let second = lease_and_ack(&broker);
    let fires = fires(&broker, task["id"].as_str().unwrap());
    let skipped = fires.iter().find(|fire| fire["end"] == "skipped").unwrap();
    assert_eq!(skipped["skipped"]["reason"], "overlap", "{skipped}");
    assert!(skipped["skipped"]["until"].as_str() < second["fire_at"].as_str(), "{skipped}");
    // One overlapping fire waits.
    schedule(&broker, "queue", &json!({"every": "100ms", "overlap": "queue_one", "count": 2}));
    let first = lease(&broker, "20s");
    pause_millis(500);
    ack(&broker, &first);
    let second = lease_and_ack(&broker);
    assert!(second["lag_ms"].as_u64().unwrap() >= 300, "the fire waited: {second}");
}

#[test]
fn an_untouched_watch_fires_and_is_armed_again_by_the_next_touch() {
    let broker = TestBroker::start(&[]);
    let task = schedule(&broker, "device/7".replace('/', "%2F").as_str(), &json!({"within": "1h"}));
    let touch = |body: &Value| post(&broker, "/tasks/device%2F7/touch", body);
    let (status, touched) = touch(&json!({}));
    assert_eq!((status, &touched["id"]), (200, &task["id"]), "{touched}");
    assert_eq!(touched["version"], 2);
    // Only this time: sooner.
    assert_eq!(touch(&json!({"within": "150ms"})).0, 200);
    let fired = lease_and_ack(&broker);
    assert_eq!((&fired["key"], &fired["occasion"]), (&json!("device/7"), &json!("due")));
    let done = eventually(|| {
        let task = broker.get("device%2F7").1;
        (task["state"] == "done").then_some(task)
    });
    assert_eq!(done["id"], task["id"], "the watch stays");
    let listed = get(&broker, "/tasks?state=done");
    assert_eq!(listed["tasks"][0]["key"], "device/7", "{listed}");
    assert_eq!(get(&broker, "/tasks?state=scheduled")["tasks"], json!([]));
    let (_, armed) = touch(&json!({}));
    assert_eq!((&armed["state"], &armed["id"]), (&json!("scheduled"), &task["id"]));
    assert!(armed["fire_at"].as_str() > done["fire_at"].as_str());
    assert!(lease(&broker, "300ms").is_empty(), "there is no fire for its return");
    let fires = fires(&broker, task["id"].as_str().unwrap());
    assert_eq!((fires.len(), &fires[0]["end"]), (1, &json!("done")), "{fires:?}");
    assert_eq!(broker.delete("device%2F7").1, json!({"result": "cancelled"}));
    assert_eq!(touch(&json!({})).0, 404);
}

#[test]
fn a_watch_fires_on_return_and_cannot_be_postponed_beyond_its_limit() {
    let broker = TestBroker::start(&[]);
    schedule(&broker, "a", &json!({"within": "200ms", "on_return": true}));
    let silent = lease_and_ack(&broker);
    assert_eq!(silent["occasion"], "due");
    eventually(|| (broker.get("a").1["state"] == "done").then_some(()));
    assert_eq!(post(&broker, "/tasks/a/touch", &json!({"within": "1h"})).0, 200);
    let back = lease_and_ack(&broker);
    assert_eq!((&back["occasion"], &back["key"]), (&json!("return"), &json!("a")));
    assert_ne!(back["fire_id"], silent["fire_id"]);
    eventually(|| (broker.get("a").1["state"] == "scheduled").then_some(()));
    assert!(lease(&broker, "300ms").is_empty(), "armed for an hour");
    // Touches do not postpone it beyond `postpone_max`.
    let limited = schedule(&broker, "b", &json!({"within": "1h", "postpone_max": "1h"}));
    let (_, touched) = post(&broker, "/tasks/b/touch", &json!({}));
    assert_eq!(touched["fire_at"], limited["fire_at"], "{touched}");
    // A touch during a fire arms the watch after it.
    schedule(&broker, "c", &json!({"within": "100ms"}));
    let in_flight = lease(&broker, "20s");
    assert_eq!(post(&broker, "/tasks/c/touch", &json!({"within": "1h"})).0, 200);
    assert_eq!(broker.get("c").1["state"], "firing");
    ack(&broker, &in_flight);
    eventually(|| (broker.get("c").1["state"] == "scheduled").then_some(()));
    // A watch cancelled while it fires is gone after the fire.
    schedule(&broker, "d", &json!({"within": "100ms"}));
    let in_flight = lease(&broker, "20s");
    assert_eq!(broker.delete("d").1, json!({"result": "firing", "attempt": 1}));
    ack(&broker, &in_flight);
    eventually(|| broker.get("d").1["end"].is_string().then_some(()));
}

#[test]
fn a_batch_touch_creates_missing_watches() {
    let broker = TestBroker::start(&["--partitions", "4"]);
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
fn a_webhook_has_the_occasion_of_its_fire() {
    let (broker, receiver) =
        (TestBroker::start(&["--allow-private-targets"]), WebhookReceiver::start());
    broker.put("a", punctual_test_support::task(r#""cron": "@yearly""#, &receiver.url));
    assert_eq!(post(&broker, "/tasks/a/fire", &json!({})).0, 200);
    assert_eq!(receiver.next().header("punctual-occasion"), "manual");
    assert_eq!(broker.get("a").1["cron"], "@yearly", "the schedule is unchanged");
    broker.put("b", punctual_test_support::task(r#""every": "100ms", "count": 1"#, &receiver.url));
    assert_eq!(receiver.next().header("punctual-occasion"), "due");
}

#[test]
fn the_forecast_counts_the_fires_of_all_schedules() {
    let broker = TestBroker::start(&["--partitions", "2"]);
    let steps = |query: &str| -> Vec<u64> {
        let forecast = get(&broker, &format!("/forecast?{query}"));
        assert_eq!(forecast["complete"], true, "{forecast}");
        let steps = forecast["steps"].as_array().unwrap();
        steps.iter().map(|step| step["fires"].as_u64().unwrap()).collect()
    };
    let (five, hour) = (in_minutes(5), in_minutes(60));
    // In the middle of each step: the first begins at the present minute.
    let hourly = format!("{} * * * *", in_minutes(30) / 60_000 % 60);
    let four_hours = "for=4h&step=1h";
    let mut want = vec![0; 4];
    for (key, when, adds) in [
        ("every", json!({"every": "10m", "starts_at": five}), [6, 6, 6, 6]),
        ("counted", json!({"every": "10m", "starts_at": five, "count": 10}), [6, 4, 0, 0]),
        ("ends", json!({"every": "10m", "starts_at": five, "ends_at": hour}), [6, 0, 0, 0]),
        ("cron", json!({"cron": hourly}), [1, 1, 1, 1]),
        ("cron counted", json!({"cron": hourly, "count": 2}), [1, 1, 0, 0]),
        ("once", json!({"in": "90m"}), [0, 1, 0, 0]),
        ("watch", json!({"within": "150m"}), [0, 0, 1, 0]),
        ("later", json!({"cron": "@hourly", "starts_at": in_minutes(600)}), [0, 0, 0, 0]),
    ] {
        schedule(&broker, &key.replace(' ', "-"), &when);
        for (sum, fires) in want.iter_mut().zip(adds) {
            *sum += fires;
        }
        assert_eq!(steps(four_hours), want, "with {key}");
    }
    post(&broker, "/tasks/every/pause", &json!({}));
    post(&broker, "/tasks/cron/pause", &json!({}));
    for sum in &mut want {
        *sum -= 7;
    }
    assert_eq!(steps(four_hours), want, "paused tasks do not count");
    assert_eq!(steps("for=4h&step=4h"), [want.iter().sum::<u64>()]);
    let later = format!("for=1h&step=1h&at={}", in_minutes(60));
    assert_eq!(steps(&later).len(), 1);
    assert!(steps(&later)[0] > 0 && steps(&later)[0] < want.iter().sum::<u64>());
    // More fires than one answer counts.
    schedule(&broker, "seconds", &json!({"cron": "* * * * * *"}));
    let forecast = get(&broker, "/forecast?for=366d&step=366d");
    assert_eq!(forecast["complete"], false, "{forecast}");
    assert!(forecast["complete_until"].is_string(), "{forecast}");
}
