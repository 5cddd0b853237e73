//! Operations on all tasks that match, groups of dead letters, the kind of a task as a filter, and
//! the long poll for a version.

use std::collections::BTreeMap;

use punctual_client::{Client, DeadGroupFilter, List};
use punctual_core::Timestamp;
use punctual_test_support::{TestBroker, WebhookReceiver, eventually, wait_for};
use serde_json::{Value, json};

use crate::requests::{URL, get, later, post};

fn count(broker: &TestBroker, state: &str) -> i64 {
    get(broker, "/stats").1[state].as_i64().unwrap()
}

/// Starts an operation and waits for its end.
fn run(broker: &TestBroker, verb: &str, filter: &Value) -> Value {
    let (status, started) = post(broker, "/operations", &json!({"do": verb, "where": filter}));
    assert_eq!(status, 202, "{started}");
    let id = started["operation"]["id"].as_str().unwrap().to_owned();
    eventually(|| {
        let (status, shown) = get(broker, &format!("/operations/{id}"));
        assert_eq!(status, 200, "{shown}");
        (shown["operation"]["state"] != "running").then(|| shown["operation"].clone())
    })
}

#[test]
fn an_operation_changes_all_tasks_that_match_and_no_others() {
    const TASKS: usize = 1000;
    let broker = TestBroker::start(&["--partitions", "2"]);
    let task = |number: usize| {
        let label = if number.is_multiple_of(2) { "even" } else { "odd" };
        let key = format!("order-{number}");
        json!({"key": key, "in": "1h", "target": {"queue": "q"}, "labels": {"parity": label}})
    };
    let tasks: Vec<Value> = (0..TASKS).map(task).collect();
    assert_eq!(post(&broker, "/tasks", &json!(tasks)).0, 200);
    broker.put("cron", r#"{"cron": "0 0 1 1 *", "target": {"queue": "q"}}"#);

    let even = json!({"label": "parity=even"});
    let (status, dry) =
        post(&broker, "/operations", &json!({"do": "pause", "where": even, "dry_run": true}));
    assert_eq!((status, &dry["matched"], &dry["exact"]), (200, &json!(500), &json!(true)));
    assert_eq!(dry["sample"].as_array().unwrap().len(), 20);
    assert_eq!(count(&broker, "paused"), 0, "a dry run changes nothing");

    let paused = run(&broker, "pause", &even);
    assert_eq!((&paused["state"], &paused["where"]), (&json!("done"), &even), "{paused}");
    assert_eq!((&paused["matched"], &paused["changed"]), (&json!(500), &json!(500)), "{paused}");
    assert_eq!((&paused["failed"], &paused["by"]), (&json!(0), &json!("admin")), "{paused}");
    assert!(paused["ended_at"].is_string(), "{paused}");
    assert_eq!((count(&broker, "paused"), count(&broker, "scheduled")), (500, 501));

    assert_eq!(run(&broker, "resume", &json!({"key_prefix": "order-1"}))["changed"], 55);
    assert_eq!(count(&broker, "paused"), 445);
    let cancelled = run(&broker, "cancel", &json!({"kind": "once", "state": "scheduled"}));
    assert_eq!(cancelled["changed"], 555, "{cancelled}");
    assert_eq!((count(&broker, "cancelled"), count(&broker, "scheduled")), (555, 1));
    let (_, list) = get(&broker, "/operations");
    let verbs: Vec<_> = list["operations"].as_array().unwrap().iter().map(|it| &it["do"]).collect();
    assert_eq!(verbs, ["cancel", "resume", "pause"], "newest first");
    let (status, other) = broker.call("GET", "/v1/bank/operations/1", &[], "");
    assert_eq!((status, &other["type"]), (404, &json!("urn:punctual:operation-not-found")));
    let (status, stopped) = broker.call("DELETE", "/v1/shop/operations/1", &[], "");
    assert_eq!((status, &stopped["operation"]["state"]), (200, &json!("done")));
}

#[test]
fn an_operation_fires_each_task_once() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let task = |number: usize| {
        let target = json!({"http": {"url": receiver.url}});
        json!({"key": format!("k{number}"), "every": "1h", "target": target})
    };
    post(&broker, "/tasks", &json!((0..300).map(task).collect::<Vec<_>>()));
    let fired = run(&broker, "fire", &json!({}));
    assert_eq!((&fired["changed"], &fired["failed"]), (&json!(300), &json!(0)), "{fired}");
    let fires = || {
        let (_, page) = get(&broker, "/fires?limit=1000");
        page["fires"].as_array().unwrap().len()
    };
    wait_for("all fires", || fires() >= 300);
    assert_eq!(fires(), 300);
}

/// The due times of all tasks by key, in milliseconds.
fn due_times(broker: &TestBroker) -> BTreeMap<String, i64> {
    let (_, page) = get(broker, "/tasks?limit=1000");
    let tasks = page["tasks"].as_array().unwrap().iter();
    let due = |task: &Value| Timestamp::parse_rfc3339(task["fire_at"].as_str().unwrap()).unwrap();
    let millis = |task: &Value| i64::try_from(due(task).as_millis()).unwrap();
    tasks.map(|task| (task["key"].as_str().unwrap().to_owned(), millis(task))).collect()
}

fn move_all(broker: &TestBroker, verb: &str, later: &str, filter: &Value) -> Value {
    let body = json!({"do": verb, "later": later, "where": filter});
    let (status, started) = post(broker, "/operations", &body);
    assert_eq!((status, &started["operation"]["later"]), (202, &json!(later)), "{started}");
    let id = started["operation"]["id"].as_str().unwrap().to_owned();
    eventually(|| {
        let (_, shown) = get(broker, &format!("/operations/{id}"));
        (shown["operation"]["state"] != "running").then(|| shown["operation"].clone())
    })
}

#[test]
fn an_operation_shifts_each_task_once_although_it_finds_it_again_at_its_new_time() {
    let broker = TestBroker::start(&["--partitions", "2"]);
    let task = |number: usize| {
        let key = format!("order-{number}");
        json!({"key": key, "in": format!("{}m", 60 + number), "target": {"queue": "q"}})
    };
    post(&broker, "/tasks", &json!((0..400).map(task).collect::<Vec<_>>()));
    broker.put("cron", r#"{"cron": "0 0 1 1 *", "target": {"queue": "q"}}"#);
    broker.put("paused", r#"{"in": "2h", "paused": true, "target": {"queue": "q"}}"#);
    let before = due_times(&broker);
    let shifted = move_all(&broker, "shift", "10m", &json!({}));
    let figures = [&shifted["matched"], &shifted["changed"], &shifted["failed"]];
    assert_eq!(figures, [&json!(401), &json!(400), &json!(1)], "cron is not moved: {shifted}");
    for (key, due) in due_times(&broker) {
        let later = if key.starts_with("order-") { 600_000 } else { 0 };
        assert_eq!(due - before[&key], later, "{key}");
    }
}

#[test]
fn an_operation_spreads_a_herd_evenly_over_the_time_after_it() {
    let broker = TestBroker::start(&["--partitions", "2"]);
    let at = "2040-01-01T00:00:00Z";
    let task = |number| json!({"key": format!("n{number}"), "at": at, "target": {"queue": "q"}});
    post(&broker, "/tasks", &json!((0..500).map(task).collect::<Vec<_>>()));
    let herd = *due_times(&broker).values().next().unwrap();
    let filter = json!({"from": at, "to": "2040-01-01T00:01:00Z"});
    let spread = move_all(&broker, "spread", "10m", &filter);
    assert_eq!((&spread["changed"], &spread["failed"]), (&json!(500), &json!(0)), "{spread}");
    let mut minutes = [0; 10];
    for due in due_times(&broker).into_values() {
        let later = due - herd;
        assert!((0..=600_000).contains(&later), "{later}");
        minutes[usize::try_from(later / 60_000).unwrap().min(9)] += 1;
    }
    assert!(minutes.iter().all(|count| (35..=65).contains(count)), "{minutes:?}");
}

#[test]
fn an_operation_that_makes_no_sense_names_the_field() {
    let broker = TestBroker::start(&[]);
    for (body, status, field) in [
        (json!({"do": "delete", "where": {}}), 422, "do"),
        (json!({"do": "cancel"}), 400, "where"),
        (json!({"do": "shift", "where": {}}), 422, "later"),
        (json!({"do": "spread", "where": {}, "later": "x"}), 422, "later"),
        (json!({"do": "spread", "where": {}, "later": "999ms"}), 422, "later"),
        (json!({"do": "shift", "where": {}, "later": "367d"}), 422, "later"),
        (json!({"do": "pause", "where": {}, "later": "1h"}), 422, "later"),
        (json!({"do": "cancel", "where": {"state": "dead"}}), 422, "where.state"),
        (json!({"do": "cancel", "where": {"state": "x"}}), 400, "where.state"),
        (json!({"do": "cancel", "where": {"kind": "x"}}), 422, "where.kind"),
        (json!({"do": "cancel", "where": {"label": "x"}}), 400, "where.label"),
        (json!({"do": "cancel", "where": {"from": "x"}}), 422, "where.from"),
        (json!({"do": "cancel", "where": {"key": "x"}}), 400, "where.key"),
    ] {
        let (got, problem) = post(&broker, "/operations", &body);
        assert_eq!(got, status, "{body}: {problem}");
        assert!(problem["detail"].is_string());
        if problem["field"].is_string() {
            assert_eq!(problem["field"], field, "{body}");
        }
    }
}

#[test]
fn a_list_is_filtered_by_the_kind_of_schedule() {
    let broker = TestBroker::start(&["--partitions", "2"]);
    let target = json!({"queue": "q"});
    post(
        &broker,
        "/tasks",
        &json!([
            later("once", 60),
            {"key": "cron", "cron": "0 0 1 1 *", "target": target},
            {"key": "every", "every": "1h", "target": target},
            {"key": "watch", "within": "1h", "target": target},
        ]),
    );
    for (kind, want) in [
        ("once", vec!["once"]),
        ("cron", vec!["cron"]),
        ("every", vec!["every"]),
        ("watch", vec!["watch"]),
        ("recurring", vec!["cron", "every"]),
    ] {
        let (_, page) = get(&broker, &format!("/tasks?kind={kind}"));
        let tasks = page["tasks"].as_array().unwrap().iter();
        let mut keys: Vec<_> = tasks.map(|task| task["key"].as_str().unwrap()).collect();
        keys.sort_unstable();
        assert_eq!(keys, want, "{kind}");
    }
    assert_eq!(get(&broker, "/tasks?kind=daily").1["field"], "kind");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_counted_redriven_and_deleted_by_group() {
    let (broker, receiver) = (TestBroker::start(&["--partitions", "2"]), WebhookReceiver::start());
    let task = |path: &str| {
        let url = format!("{}{path}", receiver.url);
        let retry = json!({"attempts_max": 1});
        json!({"in": "0s", "target": {"http": {"url": url}}, "retry": retry, "timeout": "1m"})
    };
    let tasks: Vec<Value> = ["/410", "/410", "/410"].map(task).into();
    let closed = json!({
        "in": "0s", "target": {"http": {"url": URL}}, "retry": {"attempts_max": 1},
    });
    let tasks = [tasks, vec![closed.clone(), closed]].concat();
    let origin = receiver.url.trim_end_matches('/').to_owned();
    let address = format!("http://{}", broker.address);
    let shop = Client::connect(address).unwrap().namespace("shop");
    tokio::task::block_in_place(|| {
        post(&broker, "/tasks", &json!(tasks));
        let groups = eventually(|| {
            let (_, answer) = get(&broker, "/dead/groups");
            let groups = answer["groups"].as_array().unwrap().clone();
            let sum: u64 = groups.iter().map(|group| group["count"].as_u64().unwrap()).sum();
            assert_eq!(answer["more"], 0);
            (sum == 5).then_some(groups)
        });
        let shown: Vec<_> = groups.iter().map(|it| (&it["reason"], &it["count"])).collect();
        assert_eq!(
            shown,
            [(&json!("status 410"), &json!(3)), (&json!("connection failed"), &json!(2))]
        );
        assert_eq!(groups[0]["target"], origin);
        assert_eq!(groups[1]["target"], "http://127.0.0.1:9");
        let example = groups[0]["example"].as_str().unwrap();
        let (_, page) = get(&broker, "/dead?reason=status%20410");
        let letters = page["dead"].as_array().unwrap();
        assert_eq!(letters.len(), 3, "{page}");
        assert!(letters.iter().any(|letter| letter["fire_id"] == example), "{page}");
        assert_eq!(get(&broker, "/dead?target=queue%20q").1["dead"], json!([]));
        for body in [
            json!({"where": {}}),
            json!({}),
            json!({"all": true, "where": {"reason": "x"}}),
            json!({"where": {"cause": "x"}}),
        ] {
            let (status, problem) = post(&broker, "/dead/delete", &body);
            assert!([400, 422].contains(&status), "{body}: {problem}");
        }
        let where_closed =
            json!({"where": {"reason": "connection failed", "target": "http://127.0.0.1:9"}});
        let (status, deleted) = post(&broker, "/dead/delete", &where_closed);
        assert_eq!(
            (status, &deleted["deleted"], &deleted["more"]),
            (200, &json!(2), &json!(false))
        );
        assert_eq!(get(&broker, "/dead").1["dead"].as_array().unwrap().len(), 3);
        let where_410 = json!({"where": {"reason": "status 410"}});
        assert_eq!(post(&broker, "/dead/redrive", &where_410).1["redriven"], 3);
        wait_for("the letters again", || get(&broker, "/dead/groups").1["groups"][0]["count"] == 3);
    });
    let groups = shop.dead_groups().await.unwrap();
    assert_eq!((groups.groups.len(), groups.groups[0].count), (1, 3));
    assert_eq!(groups.groups[0].reason, "status 410");
    let group = DeadGroupFilter::reason("status 410").and_target(&origin);
    assert_eq!(shop.delete_dead_group(group).await.unwrap(), (3, false));
    let none = shop.redrive_group(DeadGroupFilter::target(&origin)).await.unwrap();
    assert_eq!(none.redriven, 0);
    assert!(shop.dead_groups().await.unwrap().groups.is_empty());
    let page = shop.list(List::default().kind("recurring")).await.unwrap();
    assert!(page.tasks.is_empty());
}

#[test]
fn a_call_waits_for_the_next_version_of_a_task() {
    let broker = TestBroker::start(&[]);
    let task = r#"{"in": "1h", "target": {"queue": "q"}}"#;
    let (_, first) = broker.put("a", task);
    let version = first["version"].as_u64().unwrap();
    let path = |wait: &str| format!("a?after_version={version}&wait={wait}");
    let (status, same) = broker.get(&path("0s"));
    assert_eq!((status, &same["version"]), (200, &json!(version)), "the wait is over");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| broker.get(&path("30s")));
        broker.put("a", task);
        let (_, changed) = waiting.join().unwrap();
        assert!(changed["version"].as_u64().unwrap() > version, "{changed}");
    });
    let now = broker.get("a").1["version"].as_u64().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| broker.get(&format!("a?after_version={now}&wait=30s")));
        broker.delete("a");
        let (status, ended) = waiting.join().unwrap();
        assert_eq!((status, &ended["state"]), (200, &json!("cancelled")), "{ended}");
    });
    for (query, field) in [
        ("after_version=x", "after_version"),
        ("after_version=1&wait=31s", "wait"),
        ("wait=1s", "wait"),
        ("version=1", "version"),
    ] {
        assert_eq!(broker.get(&format!("a?{query}")).1["field"], field, "{query}");
    }
}
