//! Every state of the page is in its link.

use punctual_test_support::TestBroker;
use serde_json::{Value, json};

use crate::browser::Browser;

/// Filters that were set in the page are in its address, and the address opens the same list.
#[test]
fn a_link_opens_the_same_list_with_its_filters_and_page() {
    let broker = TestBroker::start(&[]);
    let task = |number| {
        json!({"key": format!("order-{number:03}"), "in": format!("{}m", 60 + number),
            "target": {"queue": "unpaid"}, "labels": {"region": "a/b?c#d%"}})
    };
    let tasks: Vec<Value> = (0..150).map(task).collect();
    broker.call("POST", "/v1/shop/tasks", &[], Value::Array(tasks).to_string());
    let page = Browser::open(broker.address, "#/shop/tasks");
    page.wait_for("order-000");
    page.fill("[data-filter]", "order-1\u{e007}");
    page.wait_until_gone("order-000");
    page.choose("scheduled");
    page.wait_for_fragment("state=scheduled");
    page.click(".labels a");
    page.wait_for_fragment("label=region%3Da%2Fb%3Fc%23d%25");
    page.wait_for("order-000");
    page.click_text("Next page");
    page.wait_for("order-149");
    let (fragment, shown) = (page.fragment(), page.text_of("table.list tbody"));
    page.load(&fragment);
    page.wait_for("order-149");
    let names = "return [...document.querySelectorAll('[data-row]')].map((one) => one.innerText)";
    assert_eq!(page.run(names, &[]).as_array().unwrap().len(), 50);
    let keys = |text: Option<String>| -> Vec<String> {
        let text = text.unwrap();
        text.split_whitespace().filter(|word| word.starts_with("order-")).map(Into::into).collect()
    };
    assert_eq!(keys(page.text_of("table.list tbody")), keys(shown));
}

/// Going back in the browser goes back in the page.
#[test]
fn the_buttons_of_the_browser_go_back_and_forth() {
    let broker = TestBroker::start(&[]);
    broker.put("order-1", r#"{"in": "1h", "target": {"queue": "unpaid"}}"#);
    let page = Browser::open(broker.address, "#/shop/tasks");
    page.click_text("order-1");
    page.wait_for("Waits for its time");
    page.run("history.back()", &[]);
    page.wait_for_element("table.list");
    page.run("history.forward()", &[]);
    page.wait_for("Waits for its time");
}
