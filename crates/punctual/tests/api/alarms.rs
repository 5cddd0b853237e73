//! Alarms: rules are put, shown, tested and deleted, over HTTP, gRPC and the Rust client.

use std::sync::Arc;
use std::time::Duration;

use punctual_client::{
    AlarmWhen, ChatTarget, Client, Error, MeasuredValue, NewAlarm, NoticeProgress, NoticeTarget,
    RobotKind, Target,
};
use punctual_test_support::{TestBroker, WebhookReceiver, eventually, task};
use serde_json::{Value, json};

use crate::requests::{URL, get};

fn put(broker: &TestBroker, name: &str, rule: &Value) -> (u16, Value) {
    broker.call("PUT", &format!("/v1/shop/alarms/{name}"), &[], rule.to_string())
}

fn test(broker: &TestBroker, name: &str) -> (u16, Value) {
    broker.call("POST", &format!("/v1/shop/alarms/{name}/test"), &[], "")
}

fn dead_letters(url: &str) -> Value {
    json!({"when": {"dead_letters": {"over": 0}}, "to": {"http": {"url": url}}})
}

/// A task that becomes a dead letter at once.
fn dead_task(url: &str) -> String {
    task(r#""in": "0s", "retry": {"attempts_max": 1}"#, url)
}

#[test]
fn an_alarm_is_put_shown_listed_and_deleted() {
    let broker = TestBroker::start(&[]);
    let mut rule = dead_letters(URL);
    rule["repeat_after"] = json!("1h");
    let (status, made) = put(&broker, "errors", &rule);
    assert_eq!(status, 201, "{made}");
    assert_eq!((&made["name"], &made["state"]), (&json!("errors"), &json!("ok")));
    assert_eq!((&made["when"], &made["repeat_after"]), (&rule["when"], &json!("1h")));
    assert_eq!(made["to"], json!({"http": {"url": URL, "method": "POST"}}));
    assert_eq!((&made["value"], &made["notices"]), (&json!(0), &json!(0)));
    assert_eq!(made["last_notice"], Value::Null);
    let (status, same) = put(&broker, "errors", &rule);
    assert_eq!((status, &same["since"]), (200, &made["since"]), "{same}");
    put(&broker, "a", &dead_letters(URL));
    assert_eq!(get(&broker, "/alarms/errors"), (200, made.clone()));
    let (_, list) = get(&broker, "/alarms");
    let names: Vec<_> = list["alarms"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["a", "errors"]);
    assert_eq!(broker.call("GET", "/v1/bank/alarms", &[], "").1, json!({"alarms": []}));
    let delete = || broker.call("DELETE", "/v1/shop/alarms/errors", &[], "");
    assert_eq!(delete(), (200, json!({"result": "deleted"})));
    for (status, problem) in [delete(), get(&broker, "/alarms/errors"), test(&broker, "errors")] {
        assert_eq!((status, &problem["type"]), (404, &json!("urn:punctual:alarm-not-found")));
        assert_eq!(problem["detail"], "alarm \"errors\" not found in namespace \"shop\"");
    }
    let (status, again) = put(&broker, "errors", &rule);
    assert_eq!((status, &again["notices"]), (201, &json!(0)), "{again}");
}

#[test]
fn a_raised_alarm_reports_once_and_again_when_it_is_over() {
    let (broker, receiver) = (TestBroker::start(&["--partitions", "3"]), WebhookReceiver::start());
    put(&broker, "dead", &dead_letters(&receiver.url));
    broker.put("order-1", dead_task("http://127.0.0.1:9/"));
    let raised = eventually(|| {
        let (_, alarm) = get(&broker, "/alarms/dead");
        (alarm["last_notice"]["state"] == "done").then_some(alarm)
    });
    assert_eq!((&raised["state"], &raised["value"]), (&json!("raised"), &json!(1)));
    assert_eq!((&raised["notices"], &raised["last_notice"]["kind"]), (&json!(1), &json!("raised")));
    let notice = receiver.next();
    assert_eq!(notice.header("punctual-namespace"), "shop");
    let (_, dead) = get(&broker, "/dead");
    let id = dead["dead"][0]["fire_id"].as_str().unwrap();
    broker.call("DELETE", &format!("/v1/shop/dead/{id}"), &[], "");
    let over = eventually(|| {
        let (_, alarm) = get(&broker, "/alarms/dead");
        (alarm["last_notice"]["kind"] == "over").then_some(alarm)
    });
    assert_eq!((&over["state"], &over["notices"]), (&json!("ok"), &json!(2)));
    // The tasks of notices belong to no caller.
    assert_eq!(get(&broker, "/tasks").1["tasks"], json!([]));
    assert_eq!(get(&broker, "/dead").1["dead"], json!([]));
}

#[test]
fn a_test_says_what_became_of_its_notice() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    for (path, state, reason) in [("", "done", Value::Null), ("/500", "failed", json!("HTTP 500"))]
    {
        put(&broker, "errors", &dead_letters(&format!("{}{path}", receiver.url)));
        let (status, answer) = test(&broker, "errors");
        assert_eq!((status, &answer["state"]), (200, &json!(state)), "{answer}");
        assert_eq!(answer["reason"], reason);
        assert_eq!(answer["answer"]["truncated"], false, "{answer}");
        receiver.next();
        let (_, alarm) = get(&broker, "/alarms/errors");
        let shown = &alarm["last_notice"];
        assert_eq!((&shown["kind"], &shown["state"]), (&json!("test"), &json!(state)), "{alarm}");
        assert_eq!((&alarm["notices"], &alarm["state"]), (&json!(0), &json!("ok")));
    }
    put(&broker, "errors", &dead_letters("http://127.0.0.1:9/"));
    let (_, answer) = test(&broker, "errors");
    assert_eq!(answer["state"], "failed", "nothing listens: {answer}");
    assert!(answer["answer"].is_null() && answer["reason"].is_string(), "{answer}");
}

#[test]
fn the_secret_of_a_robot_is_kept_and_not_shown() {
    let broker = TestBroker::start(&[]);
    let chat = json!({"kind": "dingtalk", "url": URL, "secret": "SEC1"});
    let rule = json!({"when": {"overdue": {"over": "30s"}}, "to": {"chat": chat}});
    let (_, made) = put(&broker, "late", &rule);
    assert_eq!(made["to"], json!({"chat": {"kind": "dingtalk", "url": URL}}));
    let (_, shown) = get(&broker, "/alarms");
    assert!(!shown.to_string().contains("SEC1"), "{shown}");
}

#[test]
fn a_rule_that_is_wrong_names_the_field() {
    let broker = TestBroker::start(&[]);
    let with = |member: &str, value: Value| {
        let mut rule = dead_letters(URL);
        rule[member] = value;
        rule
    };
    let metadata = json!({"http": {"url": "http://169.254.169.254/"}});
    let robot = json!({"chat": {"kind": "slack", "url": "http://169.254.169.254/"}});
    for (rule, status, field) in [
        (
            with("when", json!({"failures": {"count": 1, "window": "2h"}})),
            422,
            "when.failures.window",
        ),
        (
            with("when", json!({"failure_share": {"over": 0.1234, "min": 1, "window": "1m"}})),
            422,
            "when.failure_share.over",
        ),
        (with("when", json!({"failures": {"count": 1}})), 400, "when.failures"),
        (with("when", json!({"dead_letters": {"above": 0}})), 400, "when.dead_letters.above"),
        (with("to", metadata), 422, "to.http.url"),
        (with("to", robot), 422, "to.chat.url"),
        (with("to", json!({"mail": {"to": ["ops@example.org"]}})), 422, "to.mail"),
        (with("repeat_after", json!("1s")), 422, "repeat_after"),
        (with("state", json!("ok")), 400, "state"),
    ] {
        let (got, problem) = put(&broker, "errors", &rule);
        assert_eq!((got, &problem["field"]), (status, &json!(field)), "{rule}: {problem}");
    }
    for name in ["-errors", "a%20b", &"x".repeat(65)] {
        let (status, problem) = put(&broker, name, &dead_letters(URL));
        assert_eq!((status, &problem["field"]), (422, &json!("name")), "{name}: {problem}");
    }
    assert_eq!(get(&broker, "/alarms").1, json!({"alarms": []}));
}

#[test]
fn a_namespace_has_a_limited_number_of_alarms() {
    let broker = TestBroker::start(&[]);
    for number in 0..32 {
        assert_eq!(put(&broker, &format!("a{number}"), &dead_letters(URL)).0, 201);
    }
    let (status, problem) = put(&broker, "a32", &dead_letters(URL));
    assert_eq!((status, &problem["field"]), (422, &json!("name")), "{problem}");
    let detail = "name: namespace \"shop\" has 32 alarms, the most it may have";
    assert_eq!(problem["detail"], detail);
    assert_eq!(put(&broker, "a31", &dead_letters(URL)).0, 200, "replacing is possible");
    let other = broker.call("PUT", "/v1/bank/alarms/a", &[], dead_letters(URL).to_string());
    assert_eq!(other.0, 201, "another namespace has its own");
    broker.call("DELETE", "/v1/shop/alarms/a0", &[], "");
    assert_eq!(put(&broker, "a32", &dead_letters(URL)).0, 201);
}

#[test]
fn the_token_of_another_namespace_sees_and_changes_nothing() {
    let broker = TestBroker::start(&["--token", "shop=aaa", "--token", "bank=bbb"]);
    let rule = dead_letters(URL).to_string();
    let call = |method: &str, path: &str, token: &str| {
        let token = format!("Bearer {token}");
        let headers = [("authorization", token.as_str())];
        let body = if method == "PUT" { rule.clone() } else { String::new() };
        broker.call(method, &format!("/v1/shop/alarms{path}"), &headers, body).0
    };
    assert_eq!(call("PUT", "/errors", "aaa"), 201);
    for (method, path) in [
        ("GET", ""),
        ("GET", "/errors"),
        ("PUT", "/errors"),
        ("DELETE", "/errors"),
        ("POST", "/errors/test"),
    ] {
        assert_eq!(call(method, path, "bbb"), 403, "{method} {path}");
    }
    assert_eq!(call("GET", "/errors", "aaa"), 200);
}

#[test]
fn alarms_survive_a_restart() {
    let receiver = WebhookReceiver::start();
    let broker = TestBroker::start(&[]);
    let dir = Arc::clone(&broker.dir);
    put(&broker, "dead", &dead_letters(&receiver.url));
    broker.put("order-1", dead_task("http://127.0.0.1:9/"));
    let raised = || (get(&broker, "/alarms/dead").1["state"] == "raised").then_some(());
    eventually(raised);
    receiver.next();
    broker.signal("-TERM");
    broker.end();
    let broker = TestBroker::start_on(dir, &[]);
    let (_, alarm) = get(&broker, "/alarms/dead");
    assert_eq!((&alarm["state"], &alarm["notices"]), (&json!("raised"), &json!(1)), "{alarm}");
    assert_eq!(alarm["last_notice"]["kind"], "raised");
    receiver.stays_silent(Duration::from_secs(2));
}

#[tokio::test]
async fn the_rust_client_puts_shows_tests_and_deletes_alarms() {
    let (broker, receiver) = (TestBroker::start(&[]), WebhookReceiver::start());
    let client = Client::connect(format!("http://{}", broker.address)).unwrap();
    let alarms = client.namespace("shop").alarms();
    let minute = Duration::from_secs(60);
    let rule = NewAlarm::new(
        AlarmWhen::FailureShare { over: 0.1, min: 50, window: minute },
        NoticeTarget::http(Target::http(&receiver.url).header("x-a", "b")),
    );
    let made = alarms.put("errors", rule.repeat_after(60 * minute)).await.unwrap();
    assert_eq!((made.name.as_str(), made.is_raised), ("errors", false));
    assert_eq!((made.value, made.notices), (Some(MeasuredValue::Share(0.0)), 0));
    let notice = alarms.test("errors").await.unwrap();
    assert_eq!((notice.state, notice.kind.as_deref()), (NoticeProgress::Done, Some("test")));
    let shown = alarms.get("errors").await.unwrap().unwrap();
    assert_eq!(shown.repeat_after, Some(60 * minute));
    assert_eq!(shown.last_notice, Some(notice));
    let robot = ChatTarget::new(RobotKind::Feishu, &receiver.url).secret("SEC1");
    let rule = NewAlarm::new(AlarmWhen::DeadLetters { over: 5 }, NoticeTarget::Chat(robot));
    alarms.put("dead", rule).await.unwrap();
    let all = alarms.list().await.unwrap();
    assert_eq!(all.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["dead", "errors"]);
    let NoticeTarget::Chat(robot) = &all[0].to else { panic!("{:?}", all[0]) };
    assert_eq!((robot.kind, &robot.secret), (RobotKind::Feishu, &None), "secrets are not shown");
    let mail = NoticeTarget::mail(["ops@example.org"]);
    let rule = NewAlarm::new(AlarmWhen::Overdue { over: minute }, mail);
    match alarms.put("late", rule).await {
        Err(Error::Problem(problem)) => {
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some("to.mail")));
        }
        other => panic!("there is no mail server: {other:?}"),
    }
    assert!(alarms.delete("dead").await.unwrap() && !alarms.delete("dead").await.unwrap());
    assert!(alarms.get("dead").await.unwrap().is_none());
    match alarms.test("dead").await {
        Err(Error::Problem(problem)) => assert_eq!(problem.status, 404),
        other => panic!("there is no such alarm: {other:?}"),
    }
}
