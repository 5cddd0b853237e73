//! Rules: what a touch of a key without a task creates, over HTTP, gRPC and the command line.

use std::sync::Arc;

use punctual_client::{Client, Touch};
use punctual_test_support::TestBroker;
use serde_json::{Value, json};

use crate::requests::{URL, get};

fn put(broker: &TestBroker, prefix: &str, watch: &Value) -> (u16, Value) {
    broker.call("PUT", &format!("/v1/shop/rules/{prefix}"), &[], watch.to_string())
}

fn touch(broker: &TestBroker, keys: &[&str]) -> (u16, Value) {
    broker.call("POST", "/v1/shop/touch", &[], json!({"keys": keys}).to_string())
}

fn watch(within: &str, queue: &str) -> Value {
    json!({"within": within, "target": {"queue": queue}, "on_return": true})
}

#[test]
fn a_touch_of_a_new_key_creates_the_watch_of_the_longest_prefix() {
    let broker = TestBroker::start(&["--partitions", "4"]);
    assert_eq!(put(&broker, "unit:", &watch("48h", "units")).0, 201);
    assert_eq!(put(&broker, "unit:lamp-", &watch("1h", "lamps")).0, 201);
    let (status, answer) = touch(&broker, &["unit:7", "unit:lamp-7", "other"]);
    assert_eq!((status, &answer["created"], &answer["touched"]), (200, &json!(2), &json!(0)));
    assert_eq!(answer["missing"], json!(["other"]));
    let (_, lamp) = get(&broker, "/tasks/unit:lamp-7");
    assert_eq!((&lamp["within"], &lamp["target"]), (&json!("1h"), &json!({"queue": "lamps"})));
    assert_eq!(get(&broker, "/tasks/unit:7").1["on_return"], true);
    let (_, again) = touch(&broker, &["unit:7", "unit:lamp-7"]);
    assert_eq!((&again["created"], &again["touched"]), (&json!(0), &json!(2)));
    let one = |key: &str| broker.call("POST", &format!("/v1/shop/tasks/{key}/touch"), &[], "");
    let (status, created) = one("unit:8");
    assert_eq!((status, &created["key"]), (201, &json!("unit:8")), "{created}");
    assert_eq!(one("unit:8").0, 200);
    assert_eq!(one("other").0, 404);
}

#[test]
fn what_a_touch_says_to_create_comes_before_the_rule() {
    let broker = TestBroker::start(&[]);
    put(&broker, "unit:", &watch("48h", "units"));
    let body = json!({"keys": ["unit:1"], "create": watch("5m", "own")});
    broker.call("POST", "/v1/shop/touch", &[], body.to_string());
    assert_eq!(get(&broker, "/tasks/unit:1").1["within"], "5m");
}

#[test]
fn rules_are_listed_replaced_and_deleted_and_survive_a_restart() {
    let broker = TestBroker::start(&[]);
    put(&broker, "unit:", &watch("48h", "units"));
    assert_eq!(put(&broker, "unit:", &watch("24h", "units")).0, 200);
    let rule = json!({"prefix": "unit:", "create": watch("24h", "units")});
    let dir = Arc::clone(&broker.dir);
    broker.signal("-KILL");
    broker.end();
    let broker = TestBroker::start_on(dir, &[]);
    assert_eq!(get(&broker, "/rules"), (200, json!({"rules": [rule]})));
    let delete = || broker.call("DELETE", "/v1/shop/rules/unit:", &[], "");
    assert_eq!(delete(), (200, json!({"result": "deleted"})));
    let (status, problem) = delete();
    assert_eq!((status, &problem["type"]), (404, &json!("urn:punctual:rule-not-found")));
    assert_eq!(touch(&broker, &["unit:9"]).1["missing"], json!(["unit:9"]));
    // The rules of one namespace are no other's.
    assert_eq!(broker.call("GET", "/v1/bank/rules", &[], "").1, json!({"rules": []}));
}

#[test]
fn a_rule_that_is_not_a_watch_is_refused_with_its_field() {
    let broker = TestBroker::start(&[]);
    for (rule, field) in [
        (json!({"in": "1h", "target": {"queue": "q"}}), "within"),
        (json!({"within": "1h"}), "target"),
        (json!({"within": "1h", "target": {"queue": "q"}, "key": "k"}), "key"),
        (json!({"within": "1h", "target": {"http": {"url": "ftp://h/"}}}), "target.http.url"),
    ] {
        let (status, problem) = put(&broker, "unit:", &rule);
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{problem}");
    }
    let large = json!({"within": "1h", "target": {"queue": "q"}, "payload": "x".repeat(5000)});
    assert_eq!(put(&broker, "unit:", &large).0, 413);
    for rule in 0..32 {
        assert_eq!(put(&broker, &format!("p{rule}:"), &watch("1h", "q")).0, 201);
    }
    let (status, problem) = put(&broker, "one-more:", &watch("1h", "q"));
    assert_eq!((status, &problem["field"]), (422, &json!("prefix")), "{problem}");
    assert_eq!(put(&broker, "p0:", &watch("2h", "q")).0, 200);
}

#[tokio::test]
async fn touches_of_the_rust_client_follow_rules() {
    let broker = TestBroker::start(&[]);
    put(&broker, "unit:", &json!({"within": "48h", "target": {"http": {"url": URL}}}));
    let shop = Client::connect(format!("http://{}", broker.address)).unwrap().namespace("shop");
    let touched = shop.touch_many(["unit:1", "other"], Touch::default()).await.unwrap();
    assert_eq!((touched.created, touched.missing), (1, vec!["other".to_owned()]));
}
