//! Work on many tasks: those that were selected, and all that match a filter.

use punctual_test_support::{TestBroker, eventually};
use serde_json::{Value, json};

use crate::browser::Browser;

fn broker_with(tasks: usize) -> TestBroker {
    let broker = TestBroker::start(&[]);
    let task = |number: usize| {
        json!({"key": format!("order-{number:05}"), "in": "1h", "target": {"queue": "unpaid"},
            "labels": {"campaign": (number % 2).to_string()}})
    };
    let tasks: Vec<Value> = (0..tasks).map(task).collect();
    broker.call("POST", "/v1/shop/tasks", &[], Value::Array(tasks).to_string());
    broker
}

fn count(broker: &TestBroker, state: &str) -> i64 {
    broker.call("GET", "/v1/shop/stats", &[], "").1[state].as_i64().unwrap()
}

/// More than 1,000 tasks are cancelled only after their number was typed. The operation shows what
/// it did.
#[test]
fn cancelling_all_that_match_wants_the_number_typed() {
    let broker = broker_with(2400);
    let page = Browser::open(broker.address, "#/shop/tasks?label=campaign%3D1");
    page.wait_for_element("[data-row]");
    page.click_text("cancel");
    page.wait_for("Cancel all that match: 1,200 tasks?");
    assert_eq!(
        page.run("return document.querySelector('dialog [type=submit]').disabled", &[]),
        true
    );
    page.fill("dialog input", "1200");
    page.click("dialog button[type=submit]");
    page.wait_for_fragment("#/shop/operations?id=");
    page.wait_for_element("tr.selected .state.done");
    assert_eq!((count(&broker, "cancelled"), count(&broker, "scheduled")), (1200, 1200));
    // Who did it is below: the operation, and what is done in the console to one task.
    page.wait_for("cancel {\"label\":\"campaign=1\"}");
    page.go("#/shop/tasks/order-00000");
    page.click_text("Cancel");
    page.click_text("Cancel task");
    page.wait_for("Cancelled: it never fires.");
    page.go("#/shop/operations");
    page.wait_for("cancel task");
    page.click_text("order-00000");
    page.wait_for_element(".why.cancelled");
}

/// Selected tasks are paused and cancelled.
#[test]
fn selected_tasks_are_paused_and_cancelled() {
    let broker = broker_with(5);
    let page = Browser::open(broker.address, "#/shop/tasks");
    page.click("input[aria-label='Select order-00001']");
    page.click("input[aria-label='Select order-00003']");
    page.wait_for("2 selected:");
    page.click_text("pause");
    page.click_text("Pause 2 tasks");
    page.wait_for("2 of 2 paused.");
    eventually(|| (count(&broker, "paused") == 2).then_some(()));
    page.wait_until_gone("2 selected:");
    page.click("input[aria-label='Select all rows']");
    page.click_text("cancel");
    page.click_text("Cancel 5 tasks");
    page.wait_for("5 of 5 cancelled.");
    page.wait_for("No task matches.");
    assert_eq!(count(&broker, "cancelled"), 5);
}
