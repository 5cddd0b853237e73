//! The console without a mouse.

use punctual_test_support::{TestBroker, eventually};

use crate::browser::{Browser, keys};

fn focused(page: &Browser) -> String {
    let script = "const one = document.activeElement;
        return one.getAttribute('aria-label') ?? one.innerText ?? ''";
    page.run(script, &[]).as_str().unwrap().trim().to_owned()
}

/// Presses Tab until an element has the focus.
fn tab_to(page: &Browser, name: &str) {
    for _ in 0..60 {
        if focused(page) == name {
            return;
        }
        page.press(&[keys::TAB]);
    }
    panic!("Tab does not reach {name:?}");
}

/// Filters a list, moves in it, selects rows, opens a task and pauses it, all by keys.
#[test]
fn a_task_is_found_selected_opened_and_paused_by_keys() {
    let broker = TestBroker::start(&[]);
    for number in 1..=4 {
        let task = format!(r#"{{"in": "{number}h", "target": {{"queue": "unpaid"}}}}"#);
        broker.put(&format!("order-{number}"), task);
    }
    let page = Browser::open(broker.address, "#/shop/tasks");
    page.wait_for("order-4");
    page.press(&["?"]);
    page.wait_for("Next and previous row");
    page.press(&[keys::ESCAPE]);
    page.wait_until_gone("Next and previous row");
    page.press(&["/"]);
    page.type_text("order-");
    page.press(&[keys::ENTER]);
    page.wait_for_fragment("key_prefix=order-");
    page.wait_for("order-4");
    page.run("document.activeElement.blur()", &[]);
    page.press(&["j"]);
    page.press(&["j"]);
    assert_eq!(focused(&page), "order-2");
    page.press(&["x"]);
    page.press(&["j"]);
    page.press(&["x"]);
    page.wait_for("2 selected:");
    page.press(&["k"]);
    page.press(&[keys::ENTER]);
    page.wait_for_fragment("#/shop/tasks/order-2");
    page.wait_for("Waits for its time");
    tab_to(&page, "Pause");
    page.press(&[keys::SPACE]);
    eventually(|| (broker.get("order-2").1["state"] == "paused").then_some(()));
    page.wait_for_element(".why.paused");
    // Another caller changes it; `r` shows that.
    broker.call("POST", "/v1/shop/tasks/order-2/resume", &[], "");
    page.press(&["r"]);
    page.wait_for("Waits for its time");
}

/// The heat map is one tab stop; arrow keys move in it, and Enter opens the hour.
#[test]
fn the_heat_map_is_one_tab_stop_with_arrow_keys() {
    let broker = TestBroker::start(&[]);
    broker.put("order-1", r#"{"in": "30h", "target": {"queue": "unpaid"}}"#);
    let page = Browser::open(broker.address, "#/shop");
    page.wait_for_element("table.heat");
    let stops = "return document.querySelectorAll('table.heat [tabindex=\"0\"]').length";
    assert_eq!(page.run(stops, &[]), 1);
    page.run("document.querySelector('table.heat [tabindex=\"0\"]').focus()", &[]);
    let first = focused(&page);
    page.press(&[keys::DOWN]);
    let below = focused(&page);
    assert_ne!(first, below);
    assert_eq!(page.run(stops, &[]), 1);
    page.press(&[keys::ENTER]);
    page.wait_for_fragment("#/shop/tasks?from=");
}

/// Shift and an arrow key select a range of the timeline.
#[test]
fn a_range_of_the_timeline_is_selected_by_keys() {
    let broker = TestBroker::start(&[]);
    broker.put("order-1", r#"{"in": "30h", "target": {"queue": "unpaid"}}"#);
    let page = Browser::open(broker.address, "#/shop/timeline?for=7d");
    page.wait_for_element(".timeline button");
    page.run("document.querySelector('.timeline [tabindex=\"0\"]').focus()", &[]);
    page.press(&[keys::SHIFT, keys::RIGHT]);
    page.press(&[keys::SHIFT, keys::RIGHT]);
    page.wait_for("Selected:");
    page.click_text("Open its tasks");
    page.wait_for_fragment("#/shop/tasks?from=");
}
