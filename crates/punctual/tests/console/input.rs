//! Values of users are text everywhere, whatever they have in them.

use punctual_test_support::{TestBroker, eventually};
use serde_json::json;

use crate::browser::Browser;

const HOSTILE: &str = "<img src=x onerror=document.title='broken'>";

/// Keys and labels with characters that mean something in links, and a payload, a label and an
/// answer that would run as a script if they were HTML.
#[test]
fn hostile_keys_payloads_labels_and_answers_are_shown_as_text() {
    let broker = TestBroker::start(&[]);
    let key = format!("a/b?c#d%e&f {HOSTILE}");
    let task = json!({"key": key, "in": "1h", "target": {"queue": "unpaid"}, "payload": HOSTILE,
        "labels": {"note": HOSTILE}});
    let (_, created) = broker.call("POST", "/v1/shop/tasks", &[], task.to_string());
    assert_eq!(created["key"], key.as_str());
    let page = Browser::open(broker.address, "#/shop/tasks");
    page.click("[data-row]");
    page.wait_for("Waits for its time");
    page.wait_for(&format!("\"{HOSTILE}\""));
    page.wait_for(&format!("note={HOSTILE}"));
    page.click_text("Pause");
    eventually(|| {
        let (_, task) = broker.get(created["id"].as_str().unwrap());
        (task["state"] == "paused").then_some(())
    });
    page.wait_for_element(".why.paused");
    // The same key in the editor, in the list of its label, and in a dead letter.
    page.click_text("Edit");
    page.wait_for_fragment("/edit");
    page.wait_for("Target, payload, retry");
    page.click_text("Save");
    page.wait_for("Saved.");
    page.click(".chip");
    page.wait_for_fragment("?label=note%3D");
    page.wait_for(&key);
    let dead = json!({"key": format!("dead {key}"), "in": "0s", "retry": {"attempts_max": 1},
        "target": {"http": {"url": "http://127.0.0.1:1/"}}});
    broker.call("POST", "/v1/shop/tasks", &[], dead.to_string());
    page.go("#/shop/dead");
    page.wait_for(&format!("dead {key}"));
    page.click("section[aria-labelledby=letters] [data-row]");
    page.wait_for_element(".why.dead");
    assert!(page.run("return document.title", &[]).as_str().unwrap().starts_with("dead "));
    let images = page.run("return document.querySelectorAll('img').length", &[]);
    assert_eq!(images, 0);
}

/// A payload of 200 KB is cut at 64 KB, and says so.
#[test]
fn a_large_payload_is_cut() {
    let broker = TestBroker::start(&[]);
    let task = json!({"in": "1h", "target": {"queue": "unpaid"}, "payload": "x".repeat(200_000)});
    broker.put("large", task.to_string());
    let page = Browser::open(broker.address, "#/shop/tasks/large");
    page.wait_for("the first 64 KB of 196 KB");
    assert!(page.has_button("Download"));
    let shown = page.run("return document.querySelector('.value pre').innerText.length", &[]);
    assert_eq!(shown, 65_536);
}

/// The keys `.` and `..` cannot be in the path of a URL; such tasks are opened by their ids.
#[test]
fn tasks_whose_keys_are_dots_are_opened_by_id() {
    let broker = TestBroker::start(&[]);
    let task = json!({"key": "..", "in": "1h", "target": {"queue": "unpaid"}, "payload": "dots"});
    let (_, created) = broker.call("POST", "/v1/shop/tasks", &[], task.to_string());
    let page = Browser::open(broker.address, "#/shop/tasks");
    page.click("[data-row]");
    page.wait_for_fragment(created["id"].as_str().unwrap());
    page.wait_for("\"dots\"");
}

/// An answer that a view cannot draw stops that view only, which offers a way on.
#[test]
fn a_view_that_stops_says_so_and_can_be_tried_again() {
    let broker = TestBroker::start(&[]);
    broker.put("order-1", r#"{"in": "1h", "target": {"queue": "unpaid"}}"#);
    let page = Browser::open(broker.address, "#/shop/tasks");
    page.wait_for("order-1");
    let other_answer = "globalThis.realFetch = fetch;
        globalThis.fetch = (url, ...rest) => String(url).includes('/queues')
            ? Promise.resolve(Response.json({ queues: [null] })) : realFetch(url, ...rest);
        location.hash = '#/shop/queues'";
    page.run(other_answer, &[]);
    page.wait_for("This view has stopped");
    page.run("globalThis.fetch = realFetch", &[]);
    page.click_text("Try again");
    page.wait_until_gone("This view has stopped");
    page.wait_for("No queue has due tasks");
    page.go("#/shop/tasks");
    page.wait_for("order-1");
}
