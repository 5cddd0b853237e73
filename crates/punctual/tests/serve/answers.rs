//! What webhooks answer: it is kept in the history, and rules decide whether it is a success.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use punctual_test_support::{FinishedCommand, TestBroker, eventually};
use serde_json::{Value, json};

/// A receiver that answers each request with the next bytes, and at the end with the last ones.
/// Connections stay open.
fn answering(answers: Vec<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let answers = Arc::new(Mutex::new(answers));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answers) = (stream.unwrap(), Arc::clone(&answers));
            thread::spawn(move || answer_all(stream, &answers));
        }
    });
    url
}

fn answer_all(mut stream: TcpStream, answers: &Mutex<Vec<Vec<u8>>>) {
    let mut request = vec![0; 65_536];
    while stream.read(&mut request).is_ok_and(|bytes| bytes > 0) {
        let answer = {
            let mut answers = answers.lock().unwrap();
            if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() }
        };
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

fn response(status: u16, content_type: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Schedules a task that is due at once. Returns its last fire when it has ended.
fn fire(broker: &TestBroker, http: &Value, more: &Value) -> Value {
    let mut task = json!({
        "in": "0s", "target": {"http": http},
        "retry": {"attempts_max": 2, "backoff": {"fixed": "10ms"}},
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        task[name] = value.clone();
    }
    let (status, made) = broker.call("POST", "/v1/shop/tasks", &[], task.to_string());
    assert_eq!(status, 201, "{made}");
    let path = format!("/v1/shop/tasks/{}/fires", made["id"].as_str().unwrap());
    eventually(|| {
        let (_, page) = broker.call("GET", &path, &[], "");
        page["fires"].get(0).filter(|fire| fire["end"].is_string()).cloned()
    })
}

#[test]
fn the_message_of_a_failing_receiver_is_found_by_key_by_end_and_in_the_command_line() {
    const MESSAGE: &str = "boom: db locked";
    let broker = TestBroker::start(&["--partitions", "2"]);
    let url = answering(vec![response(500, "text/plain", MESSAGE.as_bytes())]);
    let dead = fire(&broker, &json!({"url": url}), &json!({"key": "dead"}));
    assert_eq!((&dead["end"], &dead["occasion"]), (&json!("dead"), &json!("due")), "{dead}");
    // A task that waits for its next attempt.
    let retry = json!({"backoff": {"fixed": "1h"}});
    let retried = json!({"in": "0s", "target": {"http": {"url": url}}, "retry": retry});
    broker.put("retried", retried.to_string());
    let get = |path: &str| {
        let (status, answer) = broker.call("GET", &format!("/v1/shop{path}"), &[], "");
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    eventually(|| (get("/tasks/retried")["attempt"] == 1).then_some(()));

    let attempts = dead["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{dead}");
    let answer = json!({"content_type": "text/plain", "text": MESSAGE, "truncated": false});
    for attempt in attempts {
        assert_eq!((&attempt["status"], &attempt["answer"]), (&json!(500), &answer), "{attempt}");
        assert_eq!(
            (&attempt["outcome"], &attempt["reason"]),
            (&json!("failed"), &json!("HTTP 500"))
        );
        assert!(attempt["at"].is_string() && attempt["duration_ms"].is_u64(), "{attempt}");
    }
    let shown = get("/tasks/dead");
    assert_eq!((&shown["state"], &shown["key"]), (&json!("dead"), &json!("dead")), "{shown}");
    assert_eq!(shown["id"], dead["task"], "the key answers for the task that had it last");
    for (path, pointer) in [
        ("/tasks/dead/fires", "/fires/0/attempts/1/answer"),
        ("/tasks/dead/explain", "/fires/0/attempts/1/answer"),
        ("/fires?end=dead", "/fires/0/attempts/1/answer"),
        ("/fires?end=dead&key_prefix=de", "/fires/0/attempts/1/answer"),
        ("/dead", "/dead/0/attempts/1/answer"),
        ("/tasks/retried/fires", "/fires/0/attempts/0/answer"),
        ("/tasks/retried/explain", "/fires/0/attempts/0/answer"),
    ] {
        let page = get(path);
        assert_eq!(page.pointer(pointer), Some(&answer), "{path}: {page}");
    }
    for (key, says) in [
        ("dead", "after 2 attempts (failed: HTTP 500: boom: db locked)."),
        ("retried", "because attempt 1 failed: HTTP 500: boom: db locked."),
    ] {
        let explained = get(&format!("/tasks/{key}/explain"));
        assert!(explained["summary"].as_str().unwrap().ends_with(says), "{explained}");
        for (command, says) in [
            (["explain", "shop", key], says),
            (["history", "shop", key], MESSAGE),
            (["show", "shop", key], key),
        ] {
            let printed = FinishedCommand::text(broker.address, &command);
            assert!(printed.contains(says), "{command:?}: {printed}");
        }
    }
    let listed = FinishedCommand::text(broker.address, &["fires", "shop", "--end", "dead"]);
    assert!(listed.contains("failed: HTTP 500: boom: db locked"), "{listed}");
}

#[test]
fn answers_of_successes_are_kept_up_to_the_limit() {
    let long = "ä".repeat(1000);
    let binary = [0xff, 0, 1, 2];
    let esc = "\u{1b}[31mred\n";
    for (flags, body, want) in [
        (&[][..], "ok".as_bytes(), json!({"text": "ok", "truncated": false})),
        (&[], b"", json!({"text": "", "truncated": false})),
        (&[], esc.as_bytes(), json!({"text": esc, "truncated": false})),
        (&[], &binary, json!({"base64": "/wABAg==", "truncated": false})),
        (&[], long.as_bytes(), json!({"text": "ä".repeat(512), "truncated": true})),
        (&["--answer-bytes", "3"], long.as_bytes(), json!({"text": "ä", "truncated": true})),
        (&["--answer-bytes", "0"], b"ok", json!({"text": "", "truncated": true})),
    ] {
        let broker = TestBroker::start(flags);
        let url = answering(vec![response(200, "text/plain", body)]);
        let fire = fire(&broker, &json!({"url": url}), &json!({}));
        let attempt = &fire["attempts"][0];
        let mut want = want;
        want["content_type"] = json!("text/plain");
        assert_eq!((&fire["end"], &attempt["answer"]), (&json!("done"), &want), "{attempt}");
        assert_eq!((&attempt["status"], &attempt["outcome"]), (&json!(200), &json!("acked")));
    }
}

#[test]
fn a_body_that_does_not_end_does_not_fail_a_success() {
    let broker = TestBroker::start(&[]);
    let head = b"HTTP/1.1 200 x\r\ncontent-length: 1000\r\n\r\nthe beginning".to_vec();
    let fire = fire(&broker, &json!({"url": answering(vec![head])}), &json!({}));
    let answer = json!({"text": "the beginning", "truncated": true});
    assert_eq!((&fire["end"], &fire["attempts"][0]["answer"]), (&json!("done"), &answer), "{fire}");
}

/// Robots of chat services answer 200 and say in the body whether they took the message.
#[test]
fn a_chat_robot_that_reports_an_error_with_status_200_is_a_failed_attempt() {
    let broker = TestBroker::start(&[]);
    let json_of = |body: &[u8]| response(200, "application/json", body);
    let refused = json_of(br#"{"errcode":310000,"errmsg":"keywords not in content"}"#);
    let url = answering(vec![refused.clone(), json_of(br#"{"errcode":0.0,"errmsg":"ok"}"#)]);
    let success = json!({"statuses": [200], "json": {"/errcode": 0}});
    let http = json!({"url": url, "success": success});
    let taken = fire(&broker, &http, &json!({}));
    let [first, second] = [0, 1].map(|number| &taken["attempts"][number]);
    assert_eq!(first["outcome"], "failed", "{taken}");
    assert_eq!(first["reason"], "answer /errcode is 310000, expected 0");
    let text = r#"{"errcode":310000,"errmsg":"keywords not in content"}"#;
    assert_eq!((&first["status"], &first["answer"]["text"]), (&json!(200), &json!(text)));
    assert_eq!((&taken["end"], &second["outcome"]), (&json!("done"), &json!("acked")));

    let http = json!({"url": answering(vec![refused]), "success": success});
    let dead = fire(&broker, &http, &json!({"key": "robot"}));
    assert_eq!((&dead["end"], &dead["reason"]), (&json!("dead"), &json!("exhausted")));
    for (body, reason) in [
        (&b"<html>"[..], "answer is not JSON".to_owned()),
        (br#"{"ok":true}"#, "answer has no /errcode, expected 0".to_owned()),
        (&[b' '; 65_537], "answer has more than 65536 bytes, expected JSON".to_owned()),
    ] {
        let http = json!({"url": answering(vec![json_of(body)]), "success": success});
        let fire = fire(&broker, &http, &json!({}));
        assert_eq!(fire["attempts"][0]["reason"], reason, "{fire}");
    }
    // Whether the robot took it is not known if its answer does not end in time.
    let slow = b"HTTP/1.1 200 x\r\ncontent-length: 1000\r\n\r\n{\"errcode\":".to_vec();
    let http = json!({"url": answering(vec![slow]), "success": success});
    let fire = fire(&broker, &http, &json!({"timeout": "200ms"}));
    let attempt = &fire["attempts"][0];
    assert_eq!(
        (&attempt["outcome"], &attempt["status"]),
        (&json!("expired"), &json!(200)),
        "{fire}"
    );
}

#[test]
fn statuses_of_a_webhook_are_a_success_or_a_refusal_as_its_rules_say() {
    let broker = TestBroker::start(&[]);
    for (status, rules, end, reason, attempts) in [
        (400, json!({"refuse": {"statuses": [400, 404]}}), "dead", "refused", 1),
        (404, json!({"refuse": {"statuses": [400, 404]}}), "dead", "refused", 1),
        (410, json!({"refuse": {"statuses": [400, 404]}}), "dead", "refused", 1),
        (500, json!({"refuse": {"statuses": [400, 404]}}), "dead", "exhausted", 2),
        (404, json!({"success": {"statuses": [200, 404]}}), "done", "", 1),
        (204, json!({"success": {"statuses": [200, 404]}}), "dead", "exhausted", 2),
        (410, json!({"success": {"statuses": [410]}}), "done", "", 1),
    ] {
        let mut http = rules.clone();
        http["url"] = json!(answering(vec![response(status, "text/plain", b"no")]));
        let fire = fire(&broker, &http, &json!({}));
        assert_eq!(fire["end"], end, "{status} {rules}: {fire}");
        assert_eq!(fire["reason"].as_str().unwrap_or_default(), reason, "{status} {rules}");
        assert_eq!(fire["attempts"].as_array().unwrap().len(), attempts, "{status} {rules}");
    }
}
