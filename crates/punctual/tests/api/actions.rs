//! What operators did: over HTTP and gRPC, from the console, and what programs do by themselves.

use std::time::Duration;

use punctual_client::{Client, OperationFilter, OperationVerb};
use punctual_test_support::{TestBroker, TestCluster, eventually};
use serde_json::{Value, json};

const TOKENS: [&str; 6] = [
    "--token",
    "shop:produce=produces",
    "--token",
    "shop:read+operate=operates",
    "--token",
    "shop=all",
];

fn call(broker: &TestBroker, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let bearer = format!("Bearer {token}");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    broker.call(method, &format!("/v1/shop{path}"), &[("authorization", &bearer)], body)
}

/// The actions, newest first: call, name, detail, changed and by.
fn actions(broker: &TestBroker) -> Vec<Value> {
    let (status, answer) = call(broker, "operates", "GET", "/actions", &Value::Null);
    assert_eq!((status, &answer["complete"]), (200, &json!(true)), "{answer}");
    assert!(answer["since"].is_string(), "{answer}");
    let action = |it: &Value| {
        assert!(it["at"].is_string(), "{it}");
        json!([it["call"], it["name"], it["detail"], it["changed"], it["by"]])
    };
    answer["actions"].as_array().unwrap().iter().map(action).collect()
}

fn task() -> Value {
    json!({"in": "1h", "target": {"queue": "q"}})
}

#[test]
fn what_an_operator_changes_is_listed_and_what_programs_do_is_not() {
    let broker = TestBroker::start(&TOKENS);
    for key in ["a", "b", "c/d"] {
        let path = format!("/tasks/{}", key.replace('/', "%2F"));
        assert_eq!(call(&broker, "produces", "PUT", &path, &task()).0, 201);
    }
    call(&broker, "produces", "POST", "/tasks/a/touch", &json!({"in": "2h"}));
    call(&broker, "all", "DELETE", "/tasks/a", &Value::Null);
    assert_eq!(actions(&broker), Vec::<Value>::new());

    let operate = |method: &str, path: &str, body: Value| {
        let (status, answer) = call(&broker, "operates", method, path, &body);
        assert!((200..300).contains(&status), "{method} {path}: {answer}");
    };
    operate("POST", "/tasks/c%2Fd/pause", Value::Null);
    operate("POST", "/cancel", json!({"keys": ["b", "none"]}));
    operate("POST", "/dead/redrive", json!({"where": {"reason": "timeout"}}));
    operate("POST", "/operations", json!({"do": "resume", "where": {}, "dry_run": true}));
    operate(
        "POST",
        "/operations",
        json!({"do": "spread", "later": "10m", "where": {"kind": "once"}}),
    );
    operate("DELETE", "/operations/1", Value::Null);
    let by = "shop:read+operate";
    let want = [
        json!(["stop_operation", "1", null, null, by]),
        json!(["start_operation", "1", "spread 10m {\"kind\":\"once\"}", null, by]),
        json!(["redrive_dead_letters", null, "reason=\"timeout\"", 0, by]),
        json!(["cancel_tasks", null, "2 tasks", 1, by]),
        json!(["pause_task", "c/d", null, null, by]),
    ];
    assert_eq!(actions(&broker), want);

    // What is refused, or fails, is no action.
    assert_eq!(call(&broker, "produces", "POST", "/tasks/c%2Fd/resume", &Value::Null).0, 403);
    assert_eq!(call(&broker, "operates", "POST", "/tasks/none/fire", &Value::Null).0, 404);
    assert_eq!(actions(&broker), want);
    let (_, first) = call(&broker, "operates", "GET", "/actions?limit=1", &Value::Null);
    assert_eq!(first["actions"].as_array().unwrap().len(), 1, "{first}");
    assert_eq!(call(&broker, "produces", "GET", "/actions", &Value::Null).0, 403);
}

/// A browser sends its origin, so what is done in the console is an action whatever its token may.
#[test]
fn every_change_from_the_console_is_listed() {
    let broker = TestBroker::start(&TOKENS);
    let origin = format!("http://{}", broker.address);
    let headers = [("authorization", "Bearer all"), ("origin", origin.as_str())];
    let task = task().to_string();
    for (method, path, body) in [
        ("PUT", "/v1/shop/tasks/a", task.as_str()),
        ("POST", "/v1/shop/tasks/a/touch", r#"{"in": "2h"}"#),
        ("DELETE", "/v1/shop/tasks/a", ""),
    ] {
        let (status, answer) = broker.call(method, path, &headers, body);
        assert!([200, 201].contains(&status), "{method} {path}: {answer}");
    }
    let calls = ["cancel_task", "touch_task", "put_task"];
    let want = calls.map(|call| json!([call, "a", null, null, "shop"]));
    assert_eq!(actions(&broker), want);
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_over_grpc_have_the_same_names() {
    let broker = TestBroker::start(&TOKENS);
    let address = format!("http://{}", broker.address);
    let client = |token: &str| {
        Client::builder(address.clone()).token(token).connect().unwrap().namespace("shop")
    };
    let (programs, operator) = (client("produces"), client("operates"));
    for key in ["a", "b", "c"] {
        programs
            .task()
            .key(key)
            .delay(Duration::from_secs(3600))
            .queue("q")
            .schedule()
            .await
            .unwrap();
    }
    programs.cancel("a").await.unwrap();
    operator.pause("b").await.unwrap();
    operator.cancel("c").await.unwrap();
    operator.redrive_all().await.unwrap();
    let filter = OperationFilter { key_prefix: Some("b".to_owned()), ..Default::default() };
    operator.count_operation(OperationVerb::Resume, filter.clone()).await.unwrap();
    let started = operator.start_operation(OperationVerb::Resume, filter).await.unwrap();
    let page = operator.actions(0).await.unwrap();
    assert!(page.complete, "{page:?}");
    let listed: Vec<_> = page.actions.iter().map(|it| (it.call.as_str(), it.changed)).collect();
    let want = [
        ("start_operation", None),
        ("redrive_dead_letters", Some(0)),
        ("cancel_tasks", Some(1)),
        ("pause_task", None),
    ];
    assert_eq!(listed, want);
    assert_eq!(page.actions[0].name, Some(started.id));
    assert_eq!(page.actions[0].detail.as_deref(), Some(r#"resume {"key_prefix":"b"}"#));
    assert_eq!(page.actions[3].name.as_deref(), Some("b"));
    assert_eq!(page.actions[3].by, "shop:read+operate");
}

#[test]
fn each_broker_of_a_cluster_lists_what_was_done_through_all() {
    let cluster: TestCluster = TestCluster::on_loopback(2, &[]);
    cluster.wait_until_whole();
    for (number, key) in ["a", "b"].into_iter().enumerate() {
        let broker = cluster.client(number);
        broker.put(key, &task());
        let path = format!("/v1/shop/tasks/{key}/pause");
        assert_eq!(broker.request("POST", &path, "").unwrap().0, 200);
    }
    for number in 0..2 {
        let names = eventually(|| {
            let (_, answer) = cluster.client(number).request("GET", "/v1/shop/actions", "")?;
            let actions = answer["actions"].as_array()?.iter();
            let names: Vec<_> = actions.map(|it| it["name"].as_str().unwrap().to_owned()).collect();
            (answer["complete"] == true).then_some(names)
        });
        assert_eq!(names, ["b", "a"]);
    }
}
