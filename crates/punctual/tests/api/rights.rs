//! Rights of tokens: what each of them opens over HTTP and gRPC, and what a token says about
//! itself.

use std::time::Duration;

use punctual_client::{Client, Error};
use punctual_test_support::{TestBroker, eventually, refused_start};
use serde_json::{Value, json};

const TOKENS: [&str; 10] = [
    "--token",
    "shop:read=reads",
    "--token",
    "shop:produce=produces",
    "--token",
    "shop:consume=consumes",
    "--token",
    "shop:operate=operates",
    "--token",
    "shop:read+operate=both",
];

fn call(broker: &TestBroker, method: &str, path: &str, token: &str, body: &str) -> (u16, Value) {
    let bearer = format!("Bearer {token}");
    broker.call(method, path, &[("authorization", &bearer)], body)
}

/// Which of the tokens reads, produces, consumes, operates, both is not refused.
#[test]
fn each_right_opens_its_routes_and_no_others() {
    let broker = TestBroker::start(&TOKENS);
    let task = r#"{"in": "1h", "target": {"queue": "q"}}"#;
    let (read, produce) = (["reads", "both"].as_slice(), ["produces"].as_slice());
    let (consume, operate) = (["consumes"].as_slice(), ["operates", "both"].as_slice());
    let change = ["produces", "operates", "both"].as_slice();
    let any = ["reads", "produces", "consumes", "operates", "both"].as_slice();
    for (method, path, body, admitted) in [
        ("PUT", "/v1/shop/tasks/a", task, produce),
        ("POST", "/v1/shop/tasks", task, produce),
        ("GET", "/v1/shop/tasks", "", read),
        ("GET", "/v1/shop/tasks/a", "", read),
        ("GET", "/v1/shop/tasks/a/fires", "", read),
        ("GET", "/v1/shop/tasks/a/explain", "", read),
        ("GET", "/v1/shop/fires", "", read),
        ("GET", "/v1/shop/dead", "", read),
        ("GET", "/v1/shop/alarms", "", read),
        ("GET", "/v1/shop/alarms/x", "", read),
        ("GET", "/v1/shop/stats", "", read),
        ("GET", "/v1/shop/forecast", "", read),
        ("GET", "/v1/shop/queues", "", read),
        ("GET", "/v1/shop/workers", "", read),
        ("GET", "/v1/shop/lanes", "", read),
        ("POST", "/v1/shop/tasks/a/touch", r#"{"in": "2h"}"#, change),
        ("POST", "/v1/shop/touch", r#"{"keys": ["x"]}"#, change),
        ("POST", "/v1/shop/touch", r#"{"keys": [], "create": {}}"#, produce),
        ("POST", "/v1/shop/cancel", r#"{"keys": ["x"]}"#, change),
        ("POST", "/v1/shop/tasks/a/pause", "", operate),
        ("POST", "/v1/shop/tasks/a/resume", "", operate),
        ("POST", "/v1/shop/tasks/a/fire", "", operate),
        ("GET", "/v1/shop/dead/groups", "", read),
        ("GET", "/v1/shop/actions", "", read),
        ("GET", "/v1/shop/series", "", read),
        ("GET", "/v1/shop/operations", "", read),
        ("GET", "/v1/shop/operations/1", "", read),
        ("POST", "/v1/shop/operations", r#"{"do": "pause", "where": {}}"#, operate),
        ("DELETE", "/v1/shop/operations/1", "", operate),
        ("POST", "/v1/shop/dead/redrive", r#"{"all": true}"#, operate),
        ("POST", "/v1/shop/dead/delete", r#"{"all": true}"#, operate),
        ("DELETE", "/v1/shop/dead/x", "", operate),
        ("PUT", "/v1/shop/alarms/x", "{}", operate),
        ("DELETE", "/v1/shop/alarms/x", "", operate),
        ("POST", "/v1/shop/alarms/x/test", "", operate),
        ("POST", "/v1/shop/queues/q/lease", r#"{"wait": "0s"}"#, consume),
        ("POST", "/v1/shop/queues/q/ack", r#"{"tokens": []}"#, consume),
        ("POST", "/v1/shop/queues/q/fail", r#"{"token": "x", "reason": "no"}"#, consume),
        ("POST", "/v1/shop/queues/q/refuse", r#"{"token": "x", "reason": "no"}"#, consume),
        ("POST", "/v1/shop/queues/q/extend", r#"{"token": "x", "lease": "1s"}"#, consume),
        ("DELETE", "/v1/shop/tasks/a", "", change),
        ("GET", "/v1/preview?cron=@daily", "", any),
        ("GET", "/v1/topology", "", any),
        ("GET", "/v1/whoami", "", any),
        ("GET", "/openapi.json", "", any),
        ("GET", "/v1/namespaces", "", &[]),
        ("GET", "/metrics", "", &[]),
    ] {
        for token in any {
            let (status, answer) = call(&broker, method, path, token, body);
            let is_admitted = admitted.contains(token);
            assert_eq!(status != 403, is_admitted, "{method} {path} with {token}: {answer}");
        }
    }
    for (method, path, token, right) in [
        ("GET", "/v1/shop/tasks", "produces", "the right `read` in namespace \"shop\""),
        ("POST", "/v1/shop/tasks", "reads", "the right `produce` in namespace \"shop\""),
        ("POST", "/v1/shop/cancel", "reads", "the right `produce` or `operate` in"),
        ("GET", "/v1/bank/tasks", "both", "the right `read` in namespace \"bank\""),
    ] {
        let (status, problem) = call(&broker, method, path, token, "");
        assert_eq!((status, &problem["type"]), (403, &json!("urn:punctual:forbidden")));
        assert!(problem["detail"].as_str().unwrap().contains(right), "{problem}");
    }
}

fn is_forbidden<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Problem(problem)) if problem.status == 403)
}

#[tokio::test]
async fn grpc_calls_require_the_same_rights() {
    let broker = TestBroker::start(&TOKENS);
    let address = format!("http://{}", broker.address);
    for token in ["reads", "produces", "consumes", "operates"] {
        let client = Client::builder(&address).token(token).connect().unwrap();
        let shop = client.namespace("shop");
        let task = shop.task().delay(Duration::from_secs(3600)).queue("q");
        for (call, forbidden, right) in [
            ("stats", is_forbidden(&shop.stats().await), "reads"),
            ("get", is_forbidden(&shop.get("a").await), "reads"),
            ("pause", is_forbidden(&shop.pause("a").await), "operates"),
            ("fire", is_forbidden(&shop.fire("a").await), "operates"),
            ("redrive", is_forbidden(&shop.redrive_all().await), "operates"),
            ("schedule", is_forbidden(&task.schedule().await), "produces"),
        ] {
            assert_eq!(!forbidden, token == right, "{call} with {token}");
        }
        let cancelled = is_forbidden(&shop.cancel("a").await);
        assert_eq!(!cancelled, ["produces", "operates"].contains(&token), "cancel with {token}");
        let whoami = client.whoami().await.unwrap();
        let right = token.trim_end_matches('s').to_owned();
        assert_eq!(whoami.namespaces, [("shop".to_owned(), vec![right])]);
    }
}

#[test]
fn a_token_says_what_it_grants() {
    let mut flags = TOKENS.to_vec();
    flags.extend(["--token", "bank=both", "--admin-token", "root"]);
    let broker = TestBroker::start(&flags);
    let namespace = |name: &str, rights: &[&str]| json!({"name": name, "rights": rights});
    let all = ["read", "produce", "consume", "operate"];
    for (token, admin, namespaces) in [
        ("reads", false, json!([namespace("shop", &["read"])])),
        ("both", false, json!([namespace("shop", &["read", "operate"]), namespace("bank", &all)])),
        ("root", true, json!([])),
    ] {
        let (status, answer) = call(&broker, "GET", "/v1/whoami", token, "");
        assert_eq!((status, &answer["tokens"]), (200, &json!(true)), "{answer}");
        assert_eq!((&answer["admin"], &answer["namespaces"]), (&json!(admin), &namespaces));
        assert_eq!(answer["broker"], broker.address.to_string());
        assert_eq!((&answer["store"], &answer["cluster"]), (&json!("embedded"), &json!(null)));
    }
    assert_eq!(call(&broker, "GET", "/v1/whoami", "", "").0, 401);
    let open = TestBroker::start(&[]);
    let (_, answer) = open.call("GET", "/v1/whoami", &[], "");
    assert_eq!((&answer["tokens"], &answer["admin"]), (&json!(false), &json!(true)));
}

#[test]
fn an_unknown_right_is_named_at_the_start() {
    let printed = refused_start(&["--token", "shop:read+write=hush"], &[]);
    assert!(printed.contains("unknown right \"write\""), "{printed}");
    assert!(printed.contains("read, produce, consume, operate"), "{printed}");
    assert!(!printed.contains("hush"), "{printed}");
}

#[test]
fn the_new_secret_of_a_file_replaces_the_old_one_and_a_bad_one_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, admin) = (dir.path().join("shop"), dir.path().join("admin"));
    std::fs::write(&shop, "first\n").unwrap();
    std::fs::write(&admin, "root\n").unwrap();
    let token = format!("shop:read=@{}", shop.display());
    let root = format!("@{}", admin.display());
    let flags = ["--token", &token, "--admin-token", &root];
    let broker = TestBroker::start(&flags);
    let status = |secret: &str| call(&broker, "GET", "/v1/whoami", secret, "").0;
    assert_eq!((status("first"), status("second"), status("root")), (200, 401, 200));
    std::fs::write(&shop, "second\n").unwrap();
    eventually(|| (status("second") == 200).then_some(()));
    assert_eq!(status("first"), 401);
    std::fs::write(&shop, "not a secret\n").unwrap();
    let message = "token not replaced; the previous one stays valid";
    eventually(|| broker.process().logged(message));
    assert_eq!((status("second"), status("root")), (200, 200));
    std::fs::remove_file(&admin).unwrap();
    eventually(|| (broker.process().count_logged(message) == 2).then_some(()));
    assert_eq!(status("root"), 200);
}
