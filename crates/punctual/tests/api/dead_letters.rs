//! Dead letters: listed, redriven and deleted, also after a restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use punctual_test_support::{TestBroker, WebhookReceiver, eventually, pause, task};
use serde_json::{Value, json};

use crate::requests::{get, post};

#[test]
fn dead_letters_are_listed_redriven_and_deleted() {
    let (broker, receiver) = (TestBroker::start(&["--partitions", "3"]), WebhookReceiver::start());
    let gone = format!("{}/410", receiver.url);
    for n in 0..6 {
        broker.put(&format!("k{n}"), task(r#""in": "0s""#, &gone));
    }
    let dead = || {
        let (mut ids, mut next) = (Vec::new(), String::new());
        loop {
            let (status, page) = get(&broker, &format!("/dead?limit=2&cursor={next}"));
            assert_eq!(status, 200, "{page}");
            for letter in page["dead"].as_array().unwrap() {
                assert_eq!(
                    (&letter["reason"], &letter["task"]["state"]),
                    (&json!("refused"), &json!("dead"))
                );
                ids.push(letter["fire_id"].as_str().unwrap().to_owned());
            }
            match page["next"].as_str() {
                Some(cursor) => next = cursor.to_owned(),
                None => return ids,
            }
        }
    };
    let ids = eventually(|| Some(dead()).filter(|ids| ids.len() == 6));
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 6);
    let task_id = ids[0].split('-').next().unwrap();
    assert_eq!(broker.get(task_id).1["state"], "dead");
    assert_eq!(get(&broker, "/tasks?state=dead").1["tasks"].as_array().unwrap().len(), 6);
    // Other namespaces do not see them.
    assert_eq!(broker.call("GET", "/v1/other/dead", &[], "").1["dead"], json!([]));
    let other =
        |body: Value| broker.call("POST", "/v1/other/dead/redrive", &[], body.to_string()).1;
    assert_eq!(other(json!({"all": true}))["redriven"], 0);
    assert_eq!(other(json!({"ids": [ids[0]]}))["redriven"], 0);
    assert_eq!(broker.call("DELETE", &format!("/v1/other/dead/{}", ids[0]), &[], "").0, 404);
    // One is deleted, one is redriven, and ids that do not exist are reported.
    let deleted = broker.call("DELETE", &format!("/v1/shop/dead/{}", ids[0]), &[], "");
    assert_eq!(deleted, (200, json!({"result": "deleted"})));
    assert_eq!(broker.call("DELETE", &format!("/v1/shop/dead/{}", ids[0]), &[], "").0, 404);
    assert_eq!(broker.call("DELETE", "/v1/shop/dead/x", &[], "").0, 422);
    for _ in 0..6 {
        receiver.next();
    }
    let (_, answer) = post(&broker, "/dead/redrive", &json!({"ids": [ids[1], ids[0], "x"]}));
    assert_eq!(answer["redriven"], 1, "{answer}");
    assert_eq!(answer["problems"][0]["id"], json!(ids[0]));
    assert_eq!(answer["problems"][0]["problem"]["status"], 404);
    assert_eq!(answer["problems"][1]["problem"]["status"], 422);
    assert_eq!(receiver.next().header("webhook-id"), ids[1], "with the same fire id");
    eventually(|| (dead().len() == 5).then_some(()));
    let (_, answer) = post(&broker, "/dead/redrive", &json!({"all": true}));
    assert_eq!((&answer["redriven"], &answer["more"]), (&json!(5), &json!(false)), "{answer}");
    eventually(|| (dead().len() == 5).then_some(()));
    for body in [json!({}), json!({"all": false}), json!({"all": true, "ids": []})] {
        assert_eq!(post(&broker, "/dead/redrive", &body).0, 422, "{body}");
    }
}

/// Returns the fire ids of all dead letters, read in pages.
fn dead_letters(broker: &TestBroker, limit: usize) -> BTreeSet<String> {
    let (mut found, mut cursor) = (BTreeSet::new(), String::new());
    loop {
        let path = format!("/v1/shop/dead?limit={limit}{cursor}");
        let (status, page) = broker.call("GET", &path, &[], "");
        assert_eq!(status, 200, "{page}");
        let letters = page["dead"].as_array().unwrap().iter();
        found.extend(letters.map(|letter| letter["fire_id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

#[test]
fn dead_letters_of_all_partitions_are_listed_and_redriven_after_a_restart() {
    let (flags, receiver) = (&["--partitions", "4"], WebhookReceiver::start());
    let broker = TestBroker::start(flags);
    // More than one step of a redrive.
    let count = 300;
    for number in 0..count {
        let body = task(r#""in": "0s""#, &format!("{}/410", receiver.url));
        assert_eq!(broker.put(&format!("order-{number}"), body).0, 201);
    }
    let stats = |broker: &TestBroker| broker.call("GET", "/v1/shop/stats", &[], "").1;
    let all_dead = || (stats(&broker)["dead_letters"] == count).then_some(());
    eventually(all_dead);
    let before = dead_letters(&broker, 10);
    assert_eq!(before.len(), count);
    let dir = Arc::clone(&broker.dir);
    broker.signal("-TERM");
    assert!(broker.end().success());
    let broker = TestBroker::start_on(dir, flags);
    for limit in [7, 10, 100] {
        assert_eq!(dead_letters(&broker, limit), before, "in pages of {limit}");
    }
    let (_, page) = broker.call("GET", "/v1/shop/tasks?state=dead&limit=1000", &[], "");
    assert_eq!(page["tasks"].as_array().unwrap().len(), count);
    let all = json!({"all": true}).to_string();
    let (_, redriven) = broker.call("POST", "/v1/shop/dead/redrive", &[], all);
    assert_eq!(redriven["redriven"], count, "{redriven}");
}

/// Waits for the only dead letter.
fn dead_letter(broker: &TestBroker) -> Value {
    eventually(|| {
        let (_, page) = get(broker, "/dead");
        let letters = page["dead"].as_array().unwrap();
        assert!(letters.len() < 2, "{page}");
        letters.first().cloned()
    })
}

#[test]
fn a_dead_letter_past_its_expires_after_is_redriven_and_received() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let gone = format!("{}/410", receiver.url);
    broker.put("late", task(r#""in": "0s", "expires_after": "2s""#, &gone));
    receiver.next();
    let letter = dead_letter(&broker);
    pause(Duration::from_millis(2100));
    let (_, answer) = post(&broker, "/dead/redrive", &json!({"all": true}));
    assert_eq!(answer["redriven"], 1, "{answer}");
    let received = receiver.next();
    assert_eq!(received.header("webhook-id"), letter["fire_id"].as_str().unwrap());
    assert_eq!(received.header("punctual-attempt"), "2");
    let again =
        eventually(|| Some(dead_letter(&broker)).filter(|it| it["attempts"][1].is_object()));
    assert_eq!(
        (&again["reason"], &again["attempts"][1]["attempt"]),
        (&json!("refused"), &json!(2))
    );
}

#[test]
fn a_redriven_fire_of_a_series_has_the_same_id_and_one_history() {
    let receiver = WebhookReceiver::start();
    for when in [r#""every": "100ms", "count": 1"#, r#""cron": "* * * * * *", "count": 1"#] {
        let broker = TestBroker::start(&[]);
        let (_, task) = broker.put("series", task(when, &format!("{}/410", receiver.url)));
        let fires = format!("/tasks/{}/fires", task["id"].as_str().unwrap());
        let first = receiver.next();
        let lag_count = || {
            let (_, page) = broker.call("GET", "/metrics", &[], "");
            let lines = page.as_str().unwrap().lines().filter(|line| !line.starts_with('#'));
            let counts = lines.filter(|line| line.starts_with("punctual_lag_seconds_count"));
            counts.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let letter = dead_letter(&broker);
        let lags = lag_count();
        assert!(!lags.is_empty());
        for attempt in 2..4 {
            let (_, answer) = post(&broker, "/dead/redrive", &json!({"all": true}));
            assert_eq!(answer["redriven"], 1, "{answer}");
            let received = receiver.next();
            for name in ["webhook-id", "punctual-key", "punctual-fire-at", "punctual-occasion"] {
                assert_eq!(received.header(name), first.header(name), "{name}");
            }
            assert_eq!(received.header("punctual-attempt"), attempt.to_string());
            let again = eventually(|| {
                Some(dead_letter(&broker)).filter(|it| it["attempts"][attempt - 1].is_object())
            });
            assert_eq!(again["fire_id"], letter["fire_id"]);
            assert_eq!(
                (&again["task"]["id"], &again["task"]["key"]),
                (&task["id"], &json!("series"))
            );
            let (_, history) = get(&broker, &fires);
            assert_eq!(history["fires"].as_array().unwrap().len(), 1, "{history}");
            let attempts = history["fires"][0]["attempts"].as_array().unwrap();
            assert_eq!(attempts.len(), attempt, "{history}");
        }
        assert_eq!(lag_count(), lags, "a redrive is late on purpose");
    }
}
