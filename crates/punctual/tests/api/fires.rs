//! The fires of all tasks that have ended, and what a key answers after the end of its task.

use punctual_client::{Client, FireEnd, Fires};
use punctual_test_support::{TestBroker, WebhookReceiver, eventually, task};
use serde_json::{Value, json};

use crate::requests::get;

/// A broker on which some tasks have ended: `order/1` and `order/2` done, `order/3` dead,
/// `device/1` cancelled.
fn broker_with_ended_tasks() -> (TestBroker, WebhookReceiver) {
    let (broker, receiver) = (TestBroker::start(&["--partitions", "3"]), WebhookReceiver::start());
    let failing = format!("{}/500", receiver.url);
    let once = r#""in": "0s", "retry": {"attempts_max": 1}, "labels": {"zone": "eu"}"#;
    broker.put("order%2F1", task(once, &receiver.url));
    broker.put("order%2F2", task(r#""in": "0s""#, &receiver.url));
    broker.put("order%2F3", task(once, &failing));
    broker.put("device%2F1", task(r#""in": "1h""#, &receiver.url));
    broker.call("DELETE", "/v1/shop/tasks/device%2F1", &[], "");
    eventually(|| (keys(&fires(&broker, "")).len() == 4).then_some(()));
    (broker, receiver)
}

fn fires(broker: &TestBroker, query: &str) -> Value {
    let (status, page) = get(broker, &format!("/fires{query}"));
    assert_eq!(status, 200, "{query}: {page}");
    page
}

fn keys(page: &Value) -> Vec<&str> {
    let fires = page["fires"].as_array().unwrap().iter();
    let mut keys: Vec<&str> = fires.map(|fire| fire["key"].as_str().unwrap()).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn fires_are_listed_newest_first_and_by_every_given_filter() {
    let (broker, _receiver) = broker_with_ended_tasks();
    let all = fires(&broker, "");
    let ended: Vec<_> =
        all["fires"].as_array().unwrap().iter().map(|fire| fire["ended_at"].as_str()).collect();
    assert!(ended.is_sorted_by(|one, next| one >= next), "{ended:?}");
    for (query, want) in [
        ("?end=done", vec!["order/1", "order/2"]),
        ("?end=dead", vec!["order/3"]),
        ("?end=cancelled", vec!["device/1"]),
        ("?end=skipped", vec![]),
        ("?end=", vec!["device/1", "order/1", "order/2", "order/3"]),
        ("?key_prefix=order/", vec!["order/1", "order/2", "order/3"]),
        ("?label=zone:eu", vec!["order/1", "order/3"]),
        ("?label=zone:eu&end=dead", vec!["order/3"]),
        ("?to=2020-01-01T00:00:00Z", vec![]),
        ("?from=2020-01-01T00:00:00Z", vec!["device/1", "order/1", "order/2", "order/3"]),
    ] {
        assert_eq!(keys(&fires(&broker, query)), want, "{query}");
    }
    let (mut cursor, mut listed) = (String::new(), Vec::new());
    for _ in 0..9 {
        let page = fires(&broker, &format!("?limit=1&cursor={cursor}"));
        listed.extend(page["fires"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        cursor = next.to_owned();
    }
    assert_eq!(&Value::from(listed), &all["fires"], "pages have neither gaps nor repetitions");
    for (query, status, field) in [
        ("?end=firing", 422, "end"),
        ("?cursor=x", 400, "cursor"),
        ("?cursor=t00000000000000000000000000-0000000000", 400, "cursor"),
        ("?limit=0", 400, "limit"),
        ("?state=done", 400, "state"),
    ] {
        let (got, problem) = get(&broker, &format!("/fires{query}"));
        assert_eq!((got, &problem["field"]), (status, &json!(field)), "{query}: {problem}");
    }
    assert_eq!(broker.call("GET", "/v1/bank/fires", &[], "").1["fires"], json!([]));
}

#[test]
fn a_key_answers_for_its_last_task_after_the_end() {
    let (broker, receiver) = broker_with_ended_tasks();
    for (key, state, end) in
        [("order%2F1", "done", "done"), ("device%2F1", "cancelled", "cancelled")]
    {
        let (status, shown) = get(&broker, &format!("/tasks/{key}"));
        assert_eq!((status, &shown["state"], &shown["end"]), (200, &json!(state), &json!(end)));
        assert!(shown["ended_at"].is_string(), "{shown}");
        let (_, history) = get(&broker, &format!("/tasks/{key}/fires"));
        assert_eq!(history["fires"][0]["end"], end, "{history}");
        let (_, explained) = get(&broker, &format!("/tasks/{key}/explain"));
        assert_eq!(explained["waiting_for"], "nothing", "{explained}");
    }
    let (status, dead) = get(&broker, "/tasks/order%2F3");
    assert_eq!((status, &dead["state"]), (200, &json!("dead")));
    assert_eq!(dead["labels"], json!({"zone": "eu"}), "a dead letter is shown whole");
    let (_, explained) = get(&broker, "/tasks/order%2F3/explain");
    assert!(explained["summary"].as_str().unwrap().contains("is dead"), "{explained}");

    // A new task with the key hides the old one.
    let (_, made) = broker.put("order%2F1", task(r#""in": "1h""#, &receiver.url));
    let (_, shown) = get(&broker, "/tasks/order%2F1");
    assert_eq!((&shown["id"], &shown["state"]), (&made["id"], &json!("scheduled")));
    assert_eq!(get(&broker, "/tasks/order%2F1/fires").1["fires"], json!([]));
}

#[tokio::test]
async fn grpc_lists_the_same_fires_and_finds_ended_tasks() {
    let (broker, _receiver) = tokio::task::spawn_blocking(broker_with_ended_tasks).await.unwrap();
    let shop = Client::connect(format!("http://{}", broker.address)).unwrap().namespace("shop");
    let dead = shop.fires(Fires::default().end(FireEnd::Dead)).await.unwrap().fires;
    assert_eq!((dead.len(), dead[0].key.as_deref()), (1, Some("order/3")));
    assert_eq!(dead[0].reason.as_deref(), Some("exhausted"));
    assert_eq!(dead[0].attempts[0].outcome, "failed");
    let (mut filter, mut listed) = (Fires::default().limit(1), 0);
    loop {
        let page = shop.fires(filter.clone()).await.unwrap();
        listed += page.fires.len();
        let Some(next) = page.next else { break };
        filter = filter.cursor(next);
    }
    assert_eq!(listed, 4);
    let ended = shop.get("order/1").await.unwrap().unwrap();
    assert_eq!(ended.end, Some(FireEnd::Done));
    assert!(ended.ended_at.is_some());
    let explained = shop.explain("order/3").await.unwrap().unwrap();
    assert_eq!(
        (explained.waiting_for.as_str(), explained.task.end),
        ("nothing", Some(FireEnd::Dead))
    );
}
