//! The HTTP API from outside: every row of the contract, and what it says to wrong input.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

mod field;

use std::collections::BTreeSet;

use field::{Broker, Receiver, eventually, task};
use serde_json::{Value, json};

const URL: &str = "http://127.0.0.1:9/";

fn post(broker: &Broker, path: &str, body: &Value) -> (u16, Value) {
    broker.call("POST", &format!("/v1/shop{path}"), &[], body.to_string())
}

fn get(broker: &Broker, path: &str) -> (u16, Value) {
    broker.call("GET", &format!("/v1/shop{path}"), &[], "")
}

fn later(key: &str, minutes: u64) -> Value {
    json!({"key": key, "in": format!("{minutes}m"), "target": {"http": {"url": URL}}})
}

#[test]
fn a_batch_answers_each_line_in_order_and_one_bad_line_spoils_no_other() {
    let broker = Broker::start(&["--partitions", "4"]);
    let mut lines: Vec<String> =
        (0..5000).map(|n| later(&format!("k{n}"), 60 + n).to_string()).collect();
    lines[17] = "{".to_owned();
    lines[2500] = r#"{"in": "1h", "color": "red"}"#.to_owned();
    lines[4999] = later("late", 99_999_999).to_string();
    let body = lines.join("\n") + "\n\n";
    let kind = [("content-type", "application/x-ndjson")];
    let (status, answer) = broker.call("POST", "/v1/shop/tasks", &kind, body);
    assert_eq!(status, 200, "{answer}");
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 5000);
    for (n, result) in results.iter().enumerate() {
        match n {
            17 => assert_eq!(result["status"], 400, "{result}"),
            2500 => {
                assert_eq!((&result["status"], &result["field"]), (&json!(400), &json!("color")))
            }
            4999 => assert_eq!((&result["status"], &result["field"]), (&json!(422), &json!("in"))),
            _ => assert_eq!(result["key"], format!("k{n}"), "{result}"),
        }
    }
    let (_, stats) = get(&broker, "/stats");
    assert_eq!((&stats["scheduled"], &stats["accepted"]), (&json!(4997), &json!(4997)), "{stats}");
    // Pages over all partitions: in order, without gaps or doubles.
    let mut keys = Vec::new();
    let mut next = String::new();
    loop {
        let (status, page) = get(&broker, &format!("/tasks?limit=333&cursor={next}"));
        assert_eq!(status, 200, "{page}");
        let tasks = page["tasks"].as_array().unwrap();
        assert!(tasks.len() <= 333);
        keys.extend(tasks.iter().map(|task| task["key"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(cursor) => next = cursor.to_owned(),
            None => break,
        }
    }
    let want = (0..4999).filter(|n| ![17, 2500].contains(n)).map(|n| format!("k{n}"));
    assert_eq!(keys, want.collect::<Vec<_>>());
}

#[test]
fn one_task_an_array_and_lines_are_told_apart() {
    let broker = Broker::start(&[]);
    let (status, one) = post(&broker, "/tasks", &later("a", 1));
    assert_eq!((status, &one["key"]), (201, &json!("a")));
    let (status, many) =
        post(&broker, "/tasks", &json!([later("a", 2), 5, later("b", 1), later("b", 3)]));
    assert_eq!(status, 200);
    let results = many["results"].as_array().unwrap();
    assert_eq!(results[0]["version"], 2, "the same key is the same task");
    assert_eq!(results[1]["status"], 400);
    assert_eq!((&results[2]["version"], &results[3]["version"]), (&json!(1), &json!(2)));
    assert_eq!(post(&broker, "/tasks", &json!([])), (200, json!({"results": []})));
    let kind = [("content-type", "application/x-ndjson")];
    let (status, answer) = broker.call("POST", "/v1/shop/tasks", &kind, later("c", 1).to_string());
    assert_eq!((status, &answer["results"][0]["key"]), (200, &json!("c")));
    let too_many = vec!["1"; 10_001].join("\n");
    let (status, problem) = broker.call("POST", "/v1/shop/tasks", &kind, too_many);
    assert_eq!(status, 413);
    assert!(problem["detail"].as_str().unwrap().contains("10000"), "{problem}");
}

#[test]
fn a_request_sent_again_under_its_idempotency_key_creates_nothing_further() {
    let broker = Broker::start(&["--partitions", "3"]);
    let send = |key: &str, kind: &str, body: &str| {
        let headers = [("idempotency-key", key), ("content-type", kind)];
        broker.call("POST", "/v1/shop/tasks", &headers, body)
    };
    let body = json!({"in": "1h", "target": {"queue": "q"}}).to_string();
    let (_, first) = send("7", "application/json", &body);
    let (status, again) = send("7", "application/json", &body);
    assert!(status == 200 || status == 201, "{again}");
    assert_eq!(again["id"], first["id"]);
    let other = json!({"in": "2h", "target": {"queue": "q"}}).to_string();
    assert_eq!(send("7", "application/json", &other).0, 409);
    let lines = [body.as_str(), "{", body.as_str()].join("\n");
    let ids = |answer: &Value| {
        let results = answer["results"].as_array().unwrap().iter();
        results.map(|result| result["id"].clone()).collect::<Vec<_>>()
    };
    let (_, many) = send("8", "application/x-ndjson", &lines);
    let (_, again) = send("8", "application/x-ndjson", &lines);
    assert_eq!(ids(&many), ids(&again));
    assert_ne!(ids(&many)[0], ids(&many)[2], "two lines are two tasks");
    assert_eq!(get(&broker, "/stats").1["accepted"], 3);
    let (status, problem) = send(&"x".repeat(5000), "application/json", &body);
    assert_eq!((status, &problem["field"]), (422, &json!("idempotency-key")));
}

#[test]
fn an_idempotency_key_stands_for_one_task_whatever_others_are_called() {
    // Names lead to all of them, the idempotency key to one.
    let broker = Broker::start(&["--partitions", "16"]);
    let send = |key: &str, body: &Value| {
        broker.call("POST", "/v1/shop/tasks", &[("idempotency-key", key)], body.to_string())
    };
    let named = |name: &str| json!({"key": name, "in": "1h", "target": {"queue": "q"}});
    let nameless = json!({"in": "1h", "target": {"queue": "q"}});
    let (status, first) = send("7", &named("a"));
    assert_eq!(status, 201, "{first}");
    assert_eq!(send("7", &named("a")).1["id"], first["id"], "the same again");
    for name in ["b", "c", "d", "e", "f"] {
        let (status, problem) = send("7", &named(name));
        assert_eq!(status, 409, "{name}: {problem}");
        assert_eq!(broker.get(name).0, 404, "{name}");
    }
    assert_eq!(send("7", &nameless).0, 409, "one without a name");
    assert_eq!(send("8", &nameless).0, 201);
    assert_eq!(send("8", &named("g")).0, 409, "one with a name after one without");
    // Each place of a batch stands for itself.
    let batch = |names: [&str; 3]| Value::Array(names.map(named).into());
    let results = |(status, answer): (u16, Value)| {
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().unwrap().iter();
        let told = |result: &Value| match &result["key"] {
            Value::String(key) => key.clone(),
            _ => result["status"].to_string(),
        };
        results.map(told).collect::<Vec<_>>()
    };
    assert_eq!(results(send("9", &batch(["h", "i", "j"]))), ["h", "i", "j"]);
    assert_eq!(results(send("9", &batch(["h", "x", "j"]))), ["h", "409", "j"]);
    assert_eq!(broker.get("x").0, 404);
    assert_eq!(get(&broker, "/stats").1["accepted"], 5, "what keys stand for is nobody's task");
}

#[test]
fn a_task_can_be_fired_now_besides_its_schedule() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    broker.put("a", task(r#""in": "1h""#, &receiver.url));
    let (status, answer) = post(&broker, "/tasks/a/fire", &json!({}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(receiver.next().header("punctual-key"), "a");
    // When the fire is over, it waits for its time all the same.
    eventually(|| (broker.get("a").1["state"] == "scheduled").then_some(()));
    assert_eq!(post(&broker, "/tasks/none/fire", &json!({})).0, 404);
}

#[test]
fn what_may_be_received_at_most_once_is_fired_now_once_whatever_fails() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let broker = Broker::start(&[]);
    let wishes = r#""in": "1h", "timeout": "1m", "guarantee": "at_most_once""#;
    let (status, made) = broker.put("a", task(wishes, &url));
    assert_eq!(status, 201, "{made}");
    let (status, answer) = post(&broker, "/tasks/a/fire", &json!({}));
    assert_eq!(status, 200, "{answer}");
    let (_connection, _) = silent.accept().unwrap();
    let (status, problem) = post(&broker, "/tasks/a/fire", &json!({}));
    assert_eq!((status, &problem["type"]), (409, &json!("urn:punctual:firing")));
    // Its outcome is lost with the broker.
    let dir = std::sync::Arc::clone(&broker.dir);
    broker.signal("-KILL");
    broker.end();
    let broker = Broker::start_on(dir, &[]);
    let (_, dead) = get(&broker, "/dead");
    assert_eq!(dead["dead"][0]["reason"], "unknown", "{dead}");
    let (_, task) = broker.get("a");
    assert_eq!((&task["state"], &task["fire_at"]), (&json!("scheduled"), &made["fire_at"]));
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_err(), "it is not sent again");
    // And with an outcome that is known.
    let receiver = Receiver::start();
    broker.put("b", self::task(r#""in": "1h", "guarantee": "at_most_once""#, &receiver.url));
    assert_eq!(post(&broker, "/tasks/b/fire", &json!({})).0, 200);
    assert_eq!(receiver.next().header("punctual-occasion"), "manual");
    eventually(|| (get(&broker, "/dead").1["dead"].as_array()?.len() == 1).then_some(()));
    assert_eq!(broker.get("b").1["state"], "scheduled", "it waits for its time all the same");
}

#[test]
fn a_version_of_a_task_that_is_not_there_is_no_version() {
    let broker = Broker::start(&[]);
    let path = "/v1/shop/tasks/none";
    let body = later("none", 1).to_string();
    let (status, problem) = broker.call("PUT", path, &[("if-match", "\"1\"")], body);
    assert_eq!((status, &problem["type"]), (412, &json!("urn:punctual:version-mismatch")));
    assert_eq!(
        problem["detail"],
        "task \"none\" not found in namespace \"shop\", so no version matches"
    );
}

#[test]
fn counts_add_up_at_every_moment_of_a_busy_namespace() {
    const TASKS: usize = 2000;
    let broker = Broker::start(&["--partitions", "4"]);
    let one =
        |guarantee: &str| json!({"in": "0s", "target": {"queue": "q"}, "guarantee": guarantee});
    let guarantees = ["at_least_once", "at_most_once"].into_iter().cycle();
    let tasks: Vec<Value> = guarantees.take(TASKS).map(one).collect();
    assert_eq!(post(&broker, "/tasks", &json!(tasks)).0, 200);
    let adds_up = || {
        let (_, stats) = get(&broker, "/stats");
        let of = |name: &str| stats[name].as_i64().unwrap();
        let states = ["scheduled", "firing", "paused", "done", "dead", "cancelled"];
        assert_eq!(states.map(of).iter().sum::<i64>(), of("accepted"), "{stats}");
        assert_eq!(stats["accepted"], TASKS, "{stats}");
        assert!(states.map(of).iter().all(|count| *count >= 0), "{stats}");
        stats["done"] == TASKS
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut done = 0;
            while done < TASKS {
                let (_, leased) =
                    post(&broker, "/queues/q/lease", &json!({"max": 100, "wait": "1s"}));
                let tokens: Vec<&Value> = leased["deliveries"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|it| &it["token"])
                    .collect();
                done += tokens.len();
                post(&broker, "/queues/q/ack", &json!({"tokens": tokens}));
            }
        });
        eventually(|| adds_up().then_some(()));
    });
}

#[test]
fn touch_moves_a_task_and_a_once_task_needs_a_time() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    broker.put("a", task(r#""in": "1h""#, &receiver.url));
    let (status, moved) = post(&broker, "/tasks/a/touch", &json!({"at": "2035-01-01T00:00:00Z"}));
    assert_eq!(status, 200, "{moved}");
    assert_eq!(
        (&moved["fire_at"], &moved["version"]),
        (&json!("2035-01-01T00:00:00.000Z"), &json!(2))
    );
    let id = moved["id"].as_str().unwrap();
    let (status, problem) = broker.call("POST", &format!("/v1/shop/tasks/{id}/touch"), &[], "");
    assert_eq!(status, 422, "{problem}");
    assert_eq!(post(&broker, "/tasks/a/touch", &json!({"in": "1m", "at": 5})).0, 422);
    assert_eq!(post(&broker, "/tasks/a/touch", &json!({"within": "1ms"})).1["field"], "within");
    assert_eq!(post(&broker, "/tasks/none/touch", &json!({"in": "1m"})).0, 404);
    // Earlier is possible, too.
    let (status, _) = post(&broker, "/tasks/a/touch", &json!({"in": "0s"}));
    assert_eq!(status, 200);
    assert_eq!(receiver.next().header("punctual-version"), "3");
}

#[test]
fn many_are_touched_and_the_missing_are_named_or_created() {
    let broker = Broker::start(&["--partitions", "3"]);
    post(&broker, "/tasks", &json!([later("a", 1), later("b", 1), later("p", 1)]));
    assert_eq!(post(&broker, "/tasks/p/pause", &json!({})).0, 200);
    let keys = json!(["a", "x", "b", "y", "p"]);
    let (status, answer) = post(&broker, "/touch", &json!({"keys": keys, "in": "3h"}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["touched"], &answer["missing"]), (&json!(2), &json!(["x", "y"])));
    assert_eq!(answer["problems"][0]["key"], "p");
    let create = json!({"in": "5h", "target": {"queue": "q"}});
    let body = json!({"keys": keys, "in": "4h", "create": create});
    let (_, answer) = post(&broker, "/touch", &body);
    assert_eq!((&answer["touched"], &answer["created"]), (&json!(2), &json!(2)), "{answer}");
    assert_eq!(answer["missing"], json!([]));
    assert_eq!(broker.get("x").1["target"], json!({"queue": "q"}));
    let body = json!({"keys": ["z"], "create": {"in": "1h", "target": {"queue": "q q"}}});
    let (status, problem) = post(&broker, "/touch", &body);
    assert_eq!((status, &problem["field"]), (422, &json!("create.target.queue")));
    let (status, problem) = post(&broker, "/touch", &json!({"keys": ["ok", ""], "in": "1h"}));
    assert_eq!((status, &problem["field"]), (422, &json!("keys[1]")));
}

#[test]
fn many_are_cancelled_by_key_or_by_id() {
    let broker = Broker::start(&["--partitions", "3"]);
    let (_, made) = post(&broker, "/tasks", &json!([later("a", 1), later("b", 1), later("c", 1)]));
    let (status, answer) = post(&broker, "/cancel", &json!({"keys": ["b", "none", "a\n", "a"]}));
    assert_eq!(status, 200);
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results[0], json!({"key": "b", "result": "cancelled"}));
    assert_eq!(results[1], json!({"key": "none", "result": "not_found"}));
    assert_eq!(results[2]["problem"]["status"], 422);
    assert_eq!(results[3], json!({"key": "a", "result": "cancelled"}));
    let ids: Vec<_> = made["results"].as_array().unwrap().iter().map(|t| t["id"].clone()).collect();
    let (_, answer) = post(&broker, "/cancel", &json!({"ids": ids}));
    let results: Vec<_> =
        answer["results"].as_array().unwrap().iter().map(|r| r["result"].clone()).collect();
    assert_eq!(results, ["cancelled", "cancelled", "cancelled"], "by id it is known for longer");
    assert_eq!(post(&broker, "/cancel", &json!({})).0, 422);
    assert_eq!(post(&broker, "/cancel", &json!({"keys": [], "ids": []})).0, 422);
    let names = vec!["a"; 10_001];
    assert_eq!(post(&broker, "/cancel", &json!({"keys": names})).1["field"], "keys");
}

#[test]
fn a_paused_task_waits_and_a_resumed_one_fires() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    broker.put("a", task(r#""in": "1h""#, &receiver.url));
    let (status, paused) = post(&broker, "/tasks/a/pause", &json!({}));
    assert_eq!((status, &paused["state"]), (200, &json!("paused")));
    assert_eq!(get(&broker, "/tasks?state=paused").1["tasks"][0]["key"], "a");
    assert_eq!(get(&broker, "/tasks?state=scheduled").1["tasks"], json!([]));
    assert_eq!(post(&broker, "/tasks/a/touch", &json!({"in": "0s"})).0, 409);
    let (status, resumed) = post(&broker, "/tasks/a/resume", &json!({}));
    assert_eq!((status, &resumed["state"]), (200, &json!("scheduled")));
    post(&broker, "/tasks/a/touch", &json!({"in": "0s"}));
    receiver.next();
    assert_eq!(post(&broker, "/tasks/none/pause", &json!({})).0, 404);
}

#[test]
fn lists_filter_by_all_that_is_set() {
    let broker = Broker::start(&["--partitions", "2"]);
    let labelled = json!({"key": "order/1", "at": "2035-01-01T00:00:00Z", "target": {"queue": "q"},
        "labels": {"zone": "eu"}});
    post(&broker, "/tasks", &json!([labelled, later("order/2", 5), later("device/1", 9)]));
    for (query, want) in [
        ("", vec!["order/2", "device/1", "order/1"]),
        ("?key_prefix=order/", vec!["order/2", "order/1"]),
        ("?label=zone:eu", vec!["order/1"]),
        ("?label=zone:us", vec![]),
        ("?from=2034-01-01T00:00:00Z", vec!["order/1"]),
        ("?to=2051222400000", vec!["order/2", "device/1"]),
        ("?state=scheduled&limit=2", vec!["order/2", "device/1"]),
        ("?state=firing", vec![]),
        ("?state=dead", vec![]),
        ("?state=", vec!["order/2", "device/1", "order/1"]),
    ] {
        let (status, page) = get(&broker, &format!("/tasks{query}"));
        assert_eq!(status, 200, "{query}: {page}");
        let keys: Vec<_> = page["tasks"].as_array().unwrap().iter().map(|t| &t["key"]).collect();
        assert_eq!(keys, want, "{query}");
    }
    for (query, status, field) in [
        ("?colour=red", 400, "colour"),
        ("?limit=0", 400, "limit"),
        ("?limit=1001", 400, "limit"),
        ("?limit=many", 400, "limit"),
        ("?limit=1&limit=2", 400, "limit"),
        ("?state=asleep", 400, "state"),
        ("?state=cancelled", 422, "state"),
        ("?label=zone", 400, "label"),
        ("?from=yesterday", 422, "from"),
        ("?to=-1", 422, "to"),
        ("?cursor=x", 400, "cursor"),
        ("?cursor=d00000000000000000000000000-0000000000", 400, "cursor"),
        ("?state=dead&cursor=t00000000000000000000000000-0000000000", 400, "cursor"),
    ] {
        let (got, problem) = get(&broker, &format!("/tasks{query}"));
        assert_eq!((got, &problem["field"]), (status, &json!(field)), "{query}: {problem}");
    }
}

#[test]
fn history_says_what_the_target_answered() {
    let (broker, receiver) = (Broker::start(&[]), Receiver::start());
    let retry = r#""in": "0s", "retry": {"attempts_max": 2, "backoff": {"fixed": "10ms"}}"#;
    let (_, made) = broker.put("a", task(retry, &format!("{}/500", receiver.url)));
    let id = made["id"].as_str().unwrap();
    let fires = eventually(|| {
        let (status, answer) = get(&broker, &format!("/tasks/{id}/fires"));
        (status == 200 && answer["fires"][0]["end"] == "dead").then_some(answer)
    });
    let fire = &fires["fires"][0];
    assert_eq!(fires["fires"].as_array().unwrap().len(), 1);
    assert_eq!((&fire["fire_at"], &fire["reason"]), (&made["fire_at"], &json!("exhausted")));
    assert!(fire["fired_at"].is_string() && fire["lag_ms"].is_u64(), "{fire}");
    let attempts = fire["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2);
    for (attempt, number) in attempts.iter().zip(1..) {
        assert_eq!(attempt["attempt"], number);
        assert_eq!(attempt["outcome"], "failed");
        assert!(attempt["answer"].as_str().unwrap().contains("500"), "{attempt}");
    }
    let (_, done) =
        broker.call("POST", "/v1/shop/tasks", &[], task(r#""in": "0s""#, &receiver.url));
    let id = done["id"].as_str().unwrap();
    let ended = eventually(|| Some(broker.get(id).1).filter(|task| task["state"] == "done"));
    assert_eq!((&ended["attempt"], &ended["fire_at"]), (&json!(1), &done["fire_at"]));
    assert_eq!(broker.call("GET", &format!("/v1/other/tasks/{id}"), &[], "").0, 404);
    assert_eq!(broker.call("GET", &format!("/v1/other/tasks/{id}/fires"), &[], "").0, 404);
    assert_eq!(get(&broker, "/tasks/none/fires").0, 404);
}

#[test]
fn dead_letters_are_listed_redriven_and_deleted() {
    let (broker, receiver) = (Broker::start(&["--partitions", "3"]), Receiver::start());
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
    // Other namespaces have none of it.
    assert_eq!(broker.call("GET", "/v1/other/dead", &[], "").1["dead"], json!([]));
    let other =
        |body: Value| broker.call("POST", "/v1/other/dead/redrive", &[], body.to_string()).1;
    assert_eq!(other(json!({"all": true}))["redriven"], 0);
    assert_eq!(other(json!({"ids": [ids[0]]}))["redriven"], 0);
    assert_eq!(broker.call("DELETE", &format!("/v1/other/dead/{}", ids[0]), &[], "").0, 404);
    // One is deleted, one goes back, a stranger is named, and one whose key is in use stays.
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
    assert_eq!(receiver.next().header("webhook-id"), ids[1], "under the same fire id");
    eventually(|| (dead().len() == 5).then_some(()));
    let (_, answer) = post(&broker, "/dead/redrive", &json!({"all": true}));
    assert_eq!((&answer["redriven"], &answer["more"]), (&json!(5), &json!(false)), "{answer}");
    eventually(|| (dead().len() == 5).then_some(()));
    for body in [json!({}), json!({"all": false}), json!({"all": true, "ids": []})] {
        assert_eq!(post(&broker, "/dead/redrive", &body).0, 422, "{body}");
    }
}

#[test]
fn counts_add_up_and_the_forecast_says_when() {
    let (broker, receiver) = (Broker::start(&["--partitions", "2"]), Receiver::start());
    let soon = |key: &str, path: &str| {
        let url = format!("{}{path}", receiver.url);
        json!({"key": key, "in": "0s", "target": {"http": {"url": url}}})
    };
    let tasks = json!([
        later("s1", 30),
        later("s2", 90),
        later("s3", 91),
        later("p", 9),
        later("c", 9),
        soon("done", ""),
        soon("dead", "/410"),
    ]);
    post(&broker, "/tasks", &tasks);
    post(&broker, "/tasks/p/pause", &json!({}));
    broker.delete("c");
    let stats = eventually(|| {
        let (_, stats) = get(&broker, "/stats");
        (stats["done"] == 1 && stats["dead"] == 1).then_some(stats)
    });
    let number = |name: &str| stats[name].as_i64().unwrap();
    assert_eq!((number("scheduled"), number("paused"), number("cancelled")), (3, 1, 1), "{stats}");
    let states = ["scheduled", "firing", "paused", "done", "dead", "cancelled"];
    assert_eq!(number("accepted"), 7);
    assert_eq!(states.map(number).iter().sum::<i64>(), 7, "{stats}");
    assert_eq!((number("dead_letters"), number("oldest_overdue_ms")), (1, 0));
    assert_eq!(stats["oldest_overdue"], json!(null));
    assert_eq!(broker.call("GET", "/v1/other/stats", &[], "").1["accepted"], 0);
    let (status, forecast) = get(&broker, "/forecast?for=3h&step=1h");
    assert_eq!((status, &forecast["complete"]), (200, &json!(true)), "{forecast}");
    let fires: Vec<_> =
        forecast["steps"].as_array().unwrap().iter().map(|step| step["fires"].clone()).collect();
    assert_eq!(fires, [1, 2, 0]);
    assert_eq!(get(&broker, "/forecast").1["steps"].as_array().unwrap().len(), 24);
    for (query, field) in [
        ("for=1ms", "for"),
        ("for=1000d", "for"),
        ("step=0s", "step"),
        ("for=366d&step=1m", "step"),
    ] {
        let (status, problem) = get(&broker, &format!("/forecast?{query}"));
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{query}");
    }
    assert_eq!(get(&broker, "/forecast?til=1h").1["field"], "til");
    assert_eq!(get(&broker, "/stats?all=1").1["field"], "all");
}

#[test]
fn a_broker_on_its_own_leads_itself_and_says_that_it_is_ready() {
    let broker = Broker::start(&["--partitions", "3"]);
    let (status, topology) = broker.call("GET", "/v1/topology", &[], "");
    assert_eq!(status, 200);
    assert_eq!(topology["leader"], broker.address.to_string());
    assert_eq!(topology["brokers"][0]["address"], broker.address.to_string());
    assert_eq!(topology["brokers"][0]["partitions"], json!([0, 1, 2]));
    assert!(topology["brokers"][0]["last_heartbeat"].is_string());
    let ready = broker.call("GET", "/readyz", &[], "");
    assert_eq!(ready, (200, json!({"ready": true, "reasons": [], "warnings": []})));
    assert_eq!(broker.call("GET", "/livez", &[], "").0, 200);
}

#[test]
fn wrong_bodies_get_a_problem_that_names_the_limit() {
    let broker = Broker::start(&[]);
    let deep = "[".repeat(100_000);
    for (method, path, kind, body, status) in [
        ("POST", "/tasks", "text/plain", "{}".to_owned(), 415),
        ("POST", "/tasks", "multipart/form-data", "{}".to_owned(), 415),
        ("PUT", "/tasks/a", "application/x-ndjson", "{}".to_owned(), 415),
        ("POST", "/cancel", "application/xml", "{}".to_owned(), 415),
        ("POST", "/tasks", "application/json", deep.clone(), 400),
        ("POST", "/tasks", "application/json; charset=utf-8", format!("{{\"in\":{deep}"), 400),
        ("POST", "/cancel", "application/json", deep.clone(), 400),
        ("POST", "/cancel", "application/json", "[\"a\"]".to_owned(), 400),
        ("POST", "/cancel", "application/json", r#"{"keys": "a"}"#.to_owned(), 400),
        ("POST", "/cancel", "application/json", r#"{"keyz": []}"#.to_owned(), 400),
        ("POST", "/touch", "application/json", "".to_owned(), 400),
        ("POST", "/touch", "application/json", r#"{"keys": ["a"], "in": 1e400}"#.to_owned(), 400),
        (
            "POST",
            "/tasks/a/touch",
            "application/json",
            r#"{"in": "999999999999999999999d"}"#.to_owned(),
            422,
        ),
        ("POST", "/tasks/a/touch", "application/json", r#"{"in": "99999d"}"#.to_owned(), 422),
        (
            "POST",
            "/tasks/a/touch",
            "application/json",
            r#"{"at": 99999999999999999}"#.to_owned(),
            422,
        ),
        ("POST", "/dead/redrive", "application/json", "null".to_owned(), 400),
        ("POST", "/tasks", "application/json", "x".repeat(600_000), 413),
        ("PUT", "/tasks/a", "application/json", "x".repeat(600_000), 413),
        ("POST", "/cancel", "application/json", "x".repeat(9 << 20), 413),
        ("POST", "/tasks", "application/json", "\u{fffe}{}".to_owned(), 400),
    ] {
        let kind = [("content-type", kind)];
        let (got, problem) = broker.call(method, &format!("/v1/shop{path}"), &kind, &body);
        let short: String = body.chars().take(60).collect();
        assert_eq!(got, status, "{method} {path} {kind:?} {short}: {problem}");
        if status == 413 {
            assert!(problem["detail"].as_str().unwrap().contains("bytes"), "{problem}");
        }
    }
    // What curl says unasked is taken, unless a page in a browser says it.
    let form = ("content-type", "application/x-www-form-urlencoded");
    let body = later("a", 1).to_string();
    assert_eq!(broker.call("POST", "/v1/shop/tasks", &[form], &body).0, 201);
    let own = format!("http://{}", broker.address);
    for (origin, status) in [("http://evil.example", 403), (own.as_str(), 415)] {
        let headers = [form, ("origin", origin)];
        assert_eq!(broker.call("POST", "/v1/shop/tasks", &headers, &body).0, status, "{origin}");
    }
    assert_eq!(broker.call("DELETE", "/v1/shop/stats", &[], "").0, 405);
    assert_eq!(broker.call("GET", "/v1/shop", &[], "").0, 404);
    assert_eq!(broker.call("GET", "/v1/shop/nothing", &[], "").0, 404);
    assert_eq!(broker.call("GET", "/v1/sh%0d%0aop/stats", &[], "").0, 422);
    assert_eq!(broker.call("GET", "/livez", &[], "").0, 200, "it lives");
}

#[test]
fn two_namespaces_never_see_each_other() {
    let (broker, receiver) = (Broker::start(&["--partitions", "2"]), Receiver::start());
    let (_, mine) = broker.put("a", task(r#""in": "1h""#, URL));
    broker.put("gone", task(r#""in": "0s""#, &format!("{}/410", receiver.url)));
    let letter = eventually(|| get(&broker, "/dead").1["dead"].get(0).cloned());
    let (id, fire_id) = (mine["id"].as_str().unwrap(), letter["fire_id"].as_str().unwrap());
    let there = |method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        broker.call(method, &format!("/v1/other{path}"), &[], body)
    };
    for name in ["a", id] {
        let task = format!("/tasks/{name}");
        for (method, path, body) in [
            ("GET", task.clone(), Value::Null),
            ("DELETE", task.clone(), Value::Null),
            ("GET", format!("{task}/fires"), Value::Null),
            ("POST", format!("{task}/pause"), Value::Null),
            ("POST", format!("{task}/resume"), Value::Null),
            ("POST", format!("{task}/touch"), json!({"in": "0s"})),
        ] {
            assert_eq!(there(method, &path, body).0, 404, "{method} {path}");
        }
    }
    assert_eq!(
        there("POST", "/cancel", json!({"keys": ["a"]})).1["results"][0]["result"],
        "not_found"
    );
    assert_eq!(
        there("POST", "/cancel", json!({"ids": [id]})).1["results"][0]["result"],
        "not_found"
    );
    assert_eq!(
        there("POST", "/touch", json!({"keys": ["a"], "in": "0s"})).1["missing"],
        json!(["a"])
    );
    assert_eq!(there("GET", "/tasks", Value::Null).1, json!({"tasks": [], "next": null}));
    assert_eq!(there("GET", "/tasks?state=dead", Value::Null).1["tasks"], json!([]));
    assert_eq!(there("GET", "/dead", Value::Null).1["dead"], json!([]));
    assert_eq!(there("DELETE", &format!("/dead/{fire_id}"), Value::Null).0, 404);
    assert_eq!(there("POST", "/dead/redrive", json!({"ids": [fire_id]})).1["redriven"], 0);
    let steps = there("GET", "/forecast", Value::Null).1;
    assert!(steps["steps"].as_array().unwrap().iter().all(|step| step["fires"] == 0), "{steps}");
    // The same key there is another task, and all this has changed nothing here.
    let made = there("PUT", "/tasks/a", json!({"in": "2h", "target": {"queue": "q"}}));
    assert_eq!((made.0, &made.1["version"]), (201, &json!(1)));
    assert_eq!(broker.get("a"), (200, mine));
}

#[test]
fn whatever_stands_in_a_body_the_answer_is_one_of_the_contract() {
    let broker = Broker::start(&[]);
    let long = "x".repeat(5000);
    let nasty = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("\u{0}"),
        json!("\r\nx: y"),
        json!(long),
        json!("💥"),
        json!([]),
        json!([null]),
        json!([[]]),
        json!({}),
        json!({"": {}}),
        json!("P999999999Y"),
        json!("9223372036854775807d"),
        json!("+275760-09-13T00:00:00Z"),
        json!({"http": {"url": "http://[::1"}}),
        json!({"queue": ".."}),
        json!({"exponential": {"first": "0s", "factor": -0.0, "max": "0s"}}),
    ];
    let task = json!({"in": "1h", "target": {"queue": "q"}, "key": "k", "payload": 1, "labels": {},
        "retry": {"attempts_max": 1, "backoff": {"fixed": "1s"}, "jitter": 0}, "timeout": "1s",
        "expires_after": "1s", "guarantee": "at_least_once"});
    let fields = |names: &'static [&'static str]| names.iter().copied();
    let mut calls: Vec<(&str, Value)> = Vec::new();
    for value in &nasty {
        for name in fields(&[
            "in",
            "at",
            "target",
            "key",
            "payload",
            "payload_base64",
            "content_type",
            "labels",
            "retry",
            "timeout",
            "expires_after",
            "guarantee",
            "every",
            "cron",
            "x",
        ]) {
            let mut body = task.clone();
            body[name] = value.clone();
            calls.push(("/tasks", body));
        }
        for name in fields(&["attempts_max", "backoff", "jitter"]) {
            let mut body = task.clone();
            body["retry"][name] = value.clone();
            calls.push(("/tasks", json!([body])));
        }
        for (path, name) in [
            ("/tasks/k/touch", "in"),
            ("/tasks/k/touch", "at"),
            ("/touch", "keys"),
            ("/touch", "create"),
            ("/cancel", "keys"),
            ("/cancel", "ids"),
            ("/dead/redrive", "ids"),
            ("/dead/redrive", "all"),
            ("/queues/q/lease", "max"),
            ("/queues/q/lease", "lease"),
            ("/queues/q/ack", "tokens"),
            ("/queues/q/fail", "token"),
            ("/queues/q/fail", "retry_in"),
            ("/queues/q/extend", "lease"),
        ] {
            calls.push((path, json!({name: value})));
            calls.push((path, json!({name: [value, value]})));
        }
        calls.push(("/tasks", value.clone()));
        calls.push(("/cancel", value.clone()));
    }
    for (path, body) in calls {
        let (status, answer) = post(&broker, path, &body);
        assert!([200, 201, 400, 404, 409, 422].contains(&status), "{path} {body}: {answer}");
    }
    assert_eq!(broker.call("GET", "/readyz", &[], "").0, 200);
}

#[test]
fn the_document_has_every_route_that_is_served_and_no_other() {
    let broker = Broker::start(&[]);
    let (status, document) = broker.call("GET", "/openapi.json", &[], "");
    assert_eq!(status, 200);
    let mut calls = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let place = path.replace("{namespace}", "shop").replace(['{', '}'], "");
        let known: BTreeSet<_> = methods.as_object().unwrap().keys().cloned().collect();
        for method in ["get", "put", "post", "delete"] {
            let (status, answer) = broker.call(&method.to_uppercase(), &place, &[], "");
            let served = status != 405 && answer["type"] != "urn:punctual:not-found";
            assert_eq!(served, known.contains(method), "{method} {place}: {answer}");
            calls += usize::from(served);
        }
        for operation in methods.as_object().unwrap().values() {
            assert!(operation["responses"]["default"].is_object(), "{operation}");
            let named = operation["parameters"].as_array().unwrap().iter();
            let named = named.filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(named, path.matches('{').count(), "{path}");
        }
    }
    assert_eq!(calls, 28, "a call more or less: the contract should say so, too");
}

/// What the document says of tokens is what happens: whoever sends none is refused where it says so, and nowhere else.
#[test]
fn the_document_says_which_routes_want_a_token() {
    let broker = Broker::start(&["--token", "shop=aaa"]);
    let token = [("authorization", "Bearer aaa")];
    let (_, document) = broker.call("GET", "/openapi.json", &token, "");
    let scheme = &document["components"]["securitySchemes"]["token"];
    assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!("bearer")));
    let mut open = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let place = path.replace("{namespace}", "shop").replace(['{', '}'], "");
        for (method, operation) in methods.as_object().unwrap() {
            let (status, answer) = broker.call(&method.to_uppercase(), &place, &[], "");
            match &operation["security"] {
                Value::Null => open.push(path.as_str()),
                wanted => assert_eq!(*wanted, json!([{"token": []}]), "{method} {path}"),
            }
            assert_eq!(
                status == 401,
                operation["security"].is_array(),
                "{method} {path}: {answer}"
            );
        }
    }
    assert_eq!(open, ["/livez", "/readyz"]);
}

#[test]
fn the_examples_of_the_contract_keep_to_the_document() {
    let broker = Broker::start(&[]);
    let (_, document) = broker.call("GET", "/openapi.json", &[], "");
    let schema_of = |path: &str, method: &str| {
        let body = &document["paths"][path][method]["requestBody"]["content"]["application/json"];
        body["schema"].clone()
    };
    let task = json!({
        "in": "15m",
        "target": {"http": {"url": "http://localhost:9000/cancel", "method": "POST", "headers": {"x-a": "b"}}},
        "payload": {"order": 1},
        "guarantee": "at_least_once",
        "retry": {"attempts_max": 5, "backoff": {"exponential": {"first": "1s", "factor": 2, "max": "5m"}}, "jitter": 0.1},
        "timeout": "10s", "expires_after": "1h", "labels": {"campaign": "7"}
    });
    let (tasks, queue) = ("/v1/{namespace}/tasks/{key}", "/v1/{namespace}/queues/{queue}");
    let many = "/v1/{namespace}/tasks";
    for (path, method, body) in [
        (tasks.to_owned(), "put", task.clone()),
        (
            tasks.to_owned(),
            "put",
            json!({"at": 1, "target": {"queue": "q"}, "retry": {"backoff": {"fixed": "3s"}}}),
        ),
        (
            tasks.to_owned(),
            "put",
            json!({"at": "2035-01-01T00:00:00Z", "retry": {"backoff": {"list": ["2m"]}}}),
        ),
        (many.to_owned(), "post", task.clone()),
        (many.to_owned(), "post", json!([task, task])),
        (format!("{tasks}/touch"), "post", json!({"in": "1m"})),
        ("/v1/{namespace}/touch".to_owned(), "post", json!({"keys": ["a"], "create": task})),
        ("/v1/{namespace}/cancel".to_owned(), "post", json!({"keys": ["a"]})),
        ("/v1/{namespace}/dead/redrive".to_owned(), "post", json!({"all": true})),
        (format!("{queue}/lease"), "post", json!({"max": 10, "wait": "20s", "lease": "30s"})),
        (format!("{queue}/ack"), "post", json!({"tokens": ["x"]})),
        (format!("{queue}/fail"), "post", json!({"token": "x", "reason": "y", "retry_in": "1s"})),
        (format!("{queue}/refuse"), "post", json!({"token": "x", "reason": "y"})),
        (format!("{queue}/extend"), "post", json!({"token": "x", "lease": "30s"})),
    ] {
        let schema = schema_of(&path, method);
        assert!(!schema.is_null(), "{method} {path} has no body");
        keeps(&document, &schema, &body).unwrap_or_else(|why| panic!("{path} {body}: {why}"));
    }
    let schema = schema_of(tasks, "put");
    for wrong in
        [json!({"in": 5}), json!({"im": "1s"}), json!({"target": {"mail": "x"}}), json!([])]
    {
        assert!(keeps(&document, &schema, &wrong).is_err(), "{wrong}");
    }
    let answered = |path: &str, method: &str, status: &str| {
        let said = &document["paths"][path][method]["responses"][status]["content"];
        said["application/json"]["schema"].clone()
    };
    let (_, made) = broker.put("a", task.to_string());
    keeps(&document, &answered(tasks, "put", "201"), &made).unwrap();
    let results = broker.call("POST", "/v1/shop/tasks", &[], json!([task, 5]).to_string());
    let named = json!({"key": "a", "in": "1h", "target": {"queue": "q"}}).to_string();
    for (status, said) in [results, broker.call("POST", "/v1/shop/tasks", &[], named)] {
        assert_eq!(status, 200, "{said}");
        keeps(&document, &answered(many, "post", "200"), &said).unwrap();
    }
}

/// As much of JSON Schema as the document uses.
fn keeps(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).ok_or(name)?;
        return keeps(document, schema, value);
    }
    if let Some(kinds) = schema["oneOf"].as_array() {
        let fits = kinds.iter().filter(|kind| keeps(document, kind, value).is_ok()).count();
        return if fits == 1 { Ok(()) } else { Err(format!("{value} is {fits} of {schema}")) };
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        keeps(document, &open(document, part), value)?;
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    let fits = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the document uses {other}"),
    };
    if !kinds.is_empty() && !kinds.iter().any(fits) {
        return Err(format!("{value} is no {kinds:?}"));
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        return Err(format!("{value} is none of {values:?}"));
    }
    for item in value.as_array().into_iter().flatten() {
        if !schema["items"].is_null() {
            keeps(document, &schema["items"], item)?;
        }
    }
    let Some(fields) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            return Err(format!("{name} is missing"));
        }
    }
    for (name, value) in fields {
        let known = &schema["properties"][name];
        let known = if known.is_null() { &schema["additionalProperties"] } else { known };
        match known {
            Value::Bool(false) => return Err(format!("{name} is unknown")),
            Value::Object(_) => keeps(document, known, value)?,
            _ => {}
        }
    }
    Ok(())
}

/// A part of a whole: it says nothing of the fields of the others.
fn open(document: &Value, part: &Value) -> Value {
    let name = part["$ref"].as_str();
    let mut part = name
        .and_then(|name| document.pointer(name.trim_start_matches('#')))
        .unwrap_or(part)
        .clone();
    if let Some(part) = part.as_object_mut() {
        part.remove("additionalProperties");
    }
    part
}
