//! The list of namespaces: over partitions, after a restart, in pages, over gRPC and in the command
//! line; for admins only.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use punctual_client::{Client, CronExpression, Error, Gap, Timestamp};
use punctual_test_support::{TestBroker, eventually};
use serde_json::{Value, json};

const FLAGS: [&str; 6] = ["--partitions", "8", "--token", "shop=aaa", "--admin-token", "root"];
const ADMIN: (&str, &str) = ("authorization", "Bearer root");
const TASK: &str = r#"{"in": "1h", "target": {"queue": "q"}}"#;

fn get(broker: &TestBroker, query: &str) -> (u16, Value) {
    broker.call("GET", &format!("/v1/namespaces{query}"), &[ADMIN], "")
}

/// A broker with twelve tasks in `shop`, three in `bank` and one in `abc`, in several partitions.
fn with_three_namespaces() -> TestBroker {
    let broker = TestBroker::start(&FLAGS);
    for (namespace, tasks) in [("shop", 12), ("bank", 3), ("abc", 1)] {
        for number in 0..tasks {
            let path = format!("/v1/{namespace}/tasks/t{number}");
            assert_eq!(broker.call("PUT", &path, &[ADMIN], TASK).0, 201);
        }
    }
    // A receipt is kept in an internal namespace, which is not listed.
    let headers = [ADMIN, ("idempotency-key", "once")];
    assert_eq!(broker.call("POST", "/v1/bank/tasks", &headers, TASK).0, 201);
    assert_eq!(broker.call("POST", "/v1/shop/tasks/t0/pause", &[ADMIN], "").0, 200);
    assert_eq!(broker.call("DELETE", "/v1/abc/tasks/t0", &[ADMIN], "").0, 200);
    broker
}

fn row(name: &str, accepted: i64, scheduled: i64, paused: i64, cancelled: i64) -> Value {
    json!({
        "name": name, "accepted": accepted, "scheduled": scheduled, "paused": paused, "done": 0,
        "dead": 0, "cancelled": cancelled, "dead_letters": 0,
    })
}

fn all_three() -> Value {
    json!([row("abc", 1, 0, 0, 1), row("bank", 4, 4, 0, 0), row("shop", 12, 11, 1, 0)])
}

/// All namespaces, page by page.
fn by_pages(broker: &TestBroker, limit: usize) -> Value {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    for _ in 0..100 {
        let (status, page) = get(broker, &format!("?limit={limit}&cursor={cursor}"));
        assert_eq!(status, 200, "{page}");
        let more = page["namespaces"].as_array().unwrap();
        assert!(more.len() <= limit, "{page}");
        rows.extend(more.iter().cloned());
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return rows.into(),
        }
    }
    panic!("the pages do not end: {rows:?}");
}

#[test]
fn namespaces_are_added_up_over_partitions_and_listed_once_in_pages_of_any_size() {
    let mut broker = with_three_namespaces();
    assert_eq!(get(&broker, "").1, json!({"namespaces": all_three(), "next": null}));
    for limit in [1, 2, 3, 4] {
        assert_eq!(by_pages(&broker, limit), all_three(), "by {limit}");
    }
    for _ in 0..2 {
        let dir = Arc::clone(&broker.dir);
        broker.signal("-TERM");
        assert!(broker.end().success());
        broker = TestBroker::start_on(dir, &FLAGS);
        assert_eq!(by_pages(&broker, 1), all_three(), "after a restart");
    }
    // The namespace whose tasks have ended stays, and so does what `stats` counts.
    let (_, stats) = broker.call("GET", "/v1/abc/stats", &[ADMIN], "");
    assert_eq!((&stats["accepted"], &stats["cancelled"]), (&json!(1), &json!(1)));
}

#[test]
fn a_dead_letter_is_counted() {
    let broker = TestBroker::start(&[]);
    let task = r#"{"in": "0s", "retry": {"attempts_max": 1},
                   "target": {"http": {"url": "http://127.0.0.1:9/"}}}"#;
    assert_eq!(broker.put("a", task).0, 201);
    eventually(|| {
        let (_, answer) = broker.call("GET", "/v1/namespaces", &[], "");
        let shop = &answer["namespaces"][0];
        (shop["dead"] == 1 && shop["dead_letters"] == 1 && shop["scheduled"] == 0).then_some(())
    });
}

#[test]
fn only_an_admin_may_list_namespaces_and_wrong_parameters_are_named() {
    let broker = TestBroker::start(&FLAGS);
    let shop = [("authorization", "Bearer aaa")];
    for (headers, want) in [(&[ADMIN][..], 200), (&shop, 403), (&[], 401)] {
        assert_eq!(broker.call("GET", "/v1/namespaces", headers, "").0, want);
    }
    // `namespaces` may also be the name of a namespace.
    assert_eq!(broker.call("PUT", "/v1/namespaces/tasks/a", &[ADMIN], TASK).0, 201);
    assert_eq!(by_pages(&broker, 1), json!([row("namespaces", 1, 1, 0, 0)]));
    for (query, field) in [
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?cursor=shop", "cursor"),
        ("?cursor=n:", "cursor"),
        ("?state=dead", "state"),
    ] {
        let (status, problem) = get(&broker, query);
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{query}");
    }
}

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> u16 {
    match result {
        Err(Error::Problem(problem)) => problem.status,
        other => panic!("expected a problem, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_lists_namespaces_and_refuses_the_token_of_a_namespace() {
    let broker = tokio::task::spawn_blocking(with_three_namespaces).await.unwrap();
    let address = format!("http://{}", broker.address);
    let client = |token: &str| Client::builder(address.clone()).token(token).connect().unwrap();
    let admin = client("root");
    let (mut listed, mut cursor) = (Vec::new(), None);
    loop {
        let page = admin.namespaces(1, cursor).await.unwrap();
        assert!(page.namespaces.len() <= 1);
        listed.extend(page.namespaces);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let listed: Vec<_> = listed
        .iter()
        .map(|it| (it.name.as_str(), it.accepted, it.scheduled, it.paused, it.cancelled))
        .collect();
    assert_eq!(listed, [("abc", 1, 0, 0, 1), ("bank", 4, 4, 0, 0), ("shop", 12, 11, 1, 0)]);
    assert_eq!(status(admin.namespaces(1, Some("shop".to_owned())).await), 400);
    let shop = client("aaa");
    assert_eq!(status(shop.namespaces(1, None).await), 403);
    assert!(shop.namespace("shop").stats().await.is_ok(), "other calls of the service are open");
}

#[tokio::test]
async fn grpc_previews_an_expression_like_http() {
    let broker = TestBroker::start(&["--token", "shop=aaa"]);
    let address = format!("http://{}", broker.address);
    let client = Client::builder(address.clone()).token("aaa").connect().unwrap();
    // 2027-03-27T12:00:00Z: the clocks of Berlin skip an hour in the night that follows.
    let from = Timestamp::from_millis(1_806_148_800_000);
    let cron = || CronExpression::new("30  2 * * *").timezone("Europe/Berlin").count(2).from(from);
    let preview = client.preview(cron()).await.unwrap();
    let token = [("authorization", "Bearer aaa")];
    let query = "cron=30+2+*+*+*&timezone=Europe/Berlin&count=2&from=1806148800000";
    let (_, http) = broker.call("GET", &format!("/v1/preview?{query}"), &token, "");
    assert_eq!(preview.cron, http["cron"]);
    assert_eq!(preview.timezone, http["timezone"]);
    assert_eq!(preview.timezone_data, http["timezone_data"]);
    assert_eq!(preview.fires.len(), 2);
    for (fire, http) in preview.fires.iter().zip(http["fires"].as_array().unwrap()) {
        assert_eq!((fire.local.as_str(), fire.why.as_deref()), {
            (http["local"].as_str().unwrap(), http["note"].as_str())
        });
    }
    assert!(preview.fires[0].why.is_some() && preview.fires[1].why.is_none(), "{preview:?}");
    let skipped = client.preview(cron().dst_gap(Gap::Skip)).await.unwrap();
    assert_eq!(skipped.fires[0], preview.fires[1]);
    assert_eq!(client.preview(CronExpression::new("@daily")).await.unwrap().fires.len(), 5);
    for wrong in [CronExpression::new("61 * * * *"), cron().count(101), cron().timezone("Mars")] {
        assert_eq!(status(client.preview(wrong).await), 422);
    }
    let stranger = Client::builder(address).timeout(Duration::from_secs(5)).connect().unwrap();
    assert_eq!(status(stranger.preview(cron()).await), 401);
}

#[test]
fn the_command_line_lists_namespaces() {
    let broker = with_three_namespaces();
    let run = |more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_punctual"))
            .args([&["namespaces"], more].concat())
            .env("PUNCTUAL_BROKER", format!("http://{}", broker.address))
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let (success, table, errors) = run(&["--token", "root"]);
    assert!(success, "{errors}");
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["name", "accepted", "scheduled"]);
    assert_eq!(lines[2], ["bank", "4", "4", "0", "0", "0", "0", "0"]);
    let (_, printed, _) = run(&["--token", "root", "--json"]);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed, json!({"namespaces": all_three(), "next": null}));
    let (success, _, errors) = run(&["--token", "aaa"]);
    assert!(!success && !errors.is_empty(), "{errors}");
}
