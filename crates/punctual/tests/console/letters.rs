//! Dead letters in groups: redriven and deleted, one, a group, all.

use punctual_test_support::{TestBroker, eventually};
use serde_json::Value;

use crate::browser::Browser;

/// Makes dead letters of two receivers that do not answer: three orders and two reports.
fn broker_with_letters() -> TestBroker {
    let broker = TestBroker::start(&[]);
    for number in 1..=3 {
        let task = r#"{"in": "0s", "retry": {"attempts_max": 1},
            "target": {"http": {"url": "http://127.0.0.1:1/"}}}"#;
        broker.put(&format!("order-{number}"), task);
    }
    for number in 1..=2 {
        let task = r#"{"in": "0s", "retry": {"attempts_max": 1},
            "target": {"http": {"url": "http://127.0.0.1:2/"}}}"#;
        broker.put(&format!("report-{number}"), task);
    }
    eventually(|| (letters(&broker).len() == 5).then_some(()));
    broker
}

fn letters(broker: &TestBroker) -> Vec<Value> {
    let (_, answer) = broker.call("GET", "/v1/shop/dead", &[], "");
    answer["dead"].as_array().unwrap().clone()
}

/// The group is opened by its link, redriven after a question that says how many, and comes back
/// because its receiver still does not answer. The other group is deleted.
#[test]
fn a_group_of_dead_letters_is_redriven_and_another_is_deleted() {
    let broker = broker_with_letters();
    let page = Browser::open(broker.address, "#/shop/dead");
    page.wait_for("connection failed");
    page.click_text("connection failed");
    page.wait_for_fragment("reason=connection%20failed");
    page.wait_for("order-3");
    page.wait_until_gone("report-1");
    page.click("tr.selected button");
    page.wait_for("Redrive 3 dead letters?");
    page.click("dialog button[type=submit]");
    page.wait_for("3 dead letters redriven.");
    eventually(|| {
        let attempts = |letter: &Value| letter["attempts"].as_array().unwrap().len();
        let twice = letters(&broker).iter().filter(|letter| attempts(letter) == 2).count();
        (twice == 3).then_some(())
    });

    page.load("#/shop/dead?reason=connection%20failed&target=http%3A%2F%2F127.0.0.1%3A2");
    page.wait_for("report-2");
    page.wait_until_gone("order-1");
    page.click("tr.selected button.danger");
    page.wait_for("Delete 2 dead letters?");
    page.click("dialog button[type=submit]");
    page.wait_for("2 dead letters deleted.");
    assert_eq!(letters(&broker).len(), 3);
}

/// All letters of a namespace are deleted with one question.
#[test]
fn one_dead_letter_is_deleted_and_then_all() {
    let broker = broker_with_letters();
    let page = Browser::open(broker.address, "#/shop/dead");
    page.wait_for("report-2");
    page.click("section[aria-labelledby=letters] tbody button.danger");
    page.wait_for("Delete 1 dead letter?");
    page.click("dialog button[type=submit]");
    page.wait_for("1 dead letter deleted.");
    assert_eq!(letters(&broker).len(), 4);
    page.click(".title button.danger");
    page.wait_for("Delete 4 dead letters?");
    page.click("dialog button[type=submit]");
    page.wait_for("No dead letters.");
    assert!(letters(&broker).is_empty());
}
