//! Many tasks in one request: as an array and as lines.

use punctual_test_support::TestBroker;
use serde_json::json;

use crate::requests::{get, later, post};

#[test]
fn a_batch_answers_each_line_in_order_and_bad_lines_fail_alone() {
    let broker = TestBroker::start(&["--partitions", "4"]);
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
    // Pages over all partitions are in order, without gaps or doubles.
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
fn a_body_may_be_one_task_an_array_or_lines() {
    let broker = TestBroker::start(&[]);
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
