//! Alarms of the real binary that report by mail and to the robot of a chat.

use punctual_test_support::ports::free_port;
use punctual_test_support::{SmtpOptions, SmtpServer, TestBroker, WebhookReceiver, eventually};
use serde_json::{Value, json};

fn put(broker: &TestBroker, name: &str, alarm: &Value) -> (u16, Value) {
    broker.call("PUT", &format!("/v1/shop/alarms/{name}"), &[], alarm.to_string())
}

/// Waits until the last notice of an alarm has ended.
fn last_notice(broker: &TestBroker, name: &str) -> Value {
    eventually(|| {
        let (_, alarm) = broker.call("GET", &format!("/v1/shop/alarms/{name}"), &[], "");
        let notice = alarm["last_notice"].clone();
        matches!(notice["state"].as_str(), Some("done" | "failed")).then_some(notice)
    })
}

#[test]
fn an_alarm_is_reported_by_mail_to_all_its_recipients() {
    let port = free_port();
    let server = SmtpServer::start(port, SmtpOptions::default());
    let url = format!("smtp://127.0.0.1:{port}");
    let flags = ["--smtp-url", &url, "--smtp-from", "Punctual <punctual@example.org>"];
    let broker = TestBroker::start(&flags);
    let alarm = json!({
        "when": {"dead_letters": {"over": 0}},
        "to": {"mail": {"to": ["ops@example.org", "shop@example.org"]}},
    });
    assert_eq!(put(&broker, "dead", &alarm).0, 201);
    let task = json!({"in": "0s", "target": {"http": {"url": "http://127.0.0.1:1/"}},
        "retry": {"attempts_max": 1}});
    assert_eq!(broker.put("order-1", task.to_string()).0, 201);
    let mail = eventually(|| server.mails().pop());
    assert_eq!(mail.sender, "punctual@example.org");
    assert_eq!(mail.recipients, ["ops@example.org", "shop@example.org"]);
    let subject = mail.header("Subject").unwrap();
    assert!(subject.contains("dead") && subject.contains("shop"), "{subject}");
    assert!(mail.message.contains("1 dead letter"), "{}", mail.message);
    assert_eq!(last_notice(&broker, "dead")["kind"], "raised");
    // It is over when the dead letter is gone.
    let (_, letters) = broker.call("GET", "/v1/shop/dead", &[], "");
    let fire_id = letters["dead"][0]["fire_id"].as_str().unwrap_or_else(|| panic!("{letters}"));
    let (status, answer) = broker.call("DELETE", &format!("/v1/shop/dead/{fire_id}"), &[], "");
    assert_eq!(status, 200, "{answer}");
    eventually(|| (server.mails().len() == 2).then_some(()));
}

#[test]
fn a_broker_without_a_mail_server_refuses_alarms_by_mail() {
    let broker = TestBroker::start(&[]);
    let alarm = json!({
        "when": {"dead_letters": {"over": 0}},
        "to": {"mail": {"to": ["ops@example.org"]}},
    });
    let (status, problem) = put(&broker, "dead", &alarm);
    assert_eq!((status, &problem["field"]), (422, &json!("to.mail")), "{problem}");
}

#[test]
fn a_robot_that_answers_200_with_an_error_code_has_not_taken_the_notice() {
    // This receiver answers 200 with an empty body, in which there is no `errcode`.
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let url = format!("{}/robot", receiver.url);
    let alarm = json!({
        "when": {"overdue": {"over": "1m"}},
        "to": {"chat": {"kind": "wecom", "url": url}},
    });
    assert_eq!(put(&broker, "late", &alarm).0, 201);
    let (status, answer) = broker.call("POST", "/v1/shop/alarms/late/test", &[], "");
    assert_eq!((status, &answer["state"]), (200, &json!("failed")), "{answer}");
    let body: Value = serde_json::from_slice(&receiver.next().body).unwrap();
    assert_eq!(body["msgtype"], "text");
    assert!(body["text"]["content"].as_str().unwrap().starts_with("Test of alarm \"late\""));
}
