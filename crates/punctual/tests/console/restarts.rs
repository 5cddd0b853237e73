//! A broker that restarts while the page is open.

use std::sync::Arc;

use punctual_test_support::TestBroker;

use crate::browser::Browser;

/// The page says that the broker does not answer, and continues by itself when it does.
#[test]
fn the_page_continues_when_its_broker_has_restarted() {
    let broker = TestBroker::start(&[]);
    broker.put("order-1", r#"{"in": "1h", "target": {"queue": "unpaid"}}"#);
    let (address, dir) = (broker.address, Arc::clone(&broker.dir));
    let mut page = Browser::open(address, "#/shop/tasks");
    page.expect_message("net::ERR_");
    page.expect_message("503");
    page.wait_for("order-1");
    page.wait_for_element(".live.on");
    broker.signal("-TERM");
    broker.end();
    page.press(&["r"]);
    page.wait_for("The broker does not answer.");
    assert!(page.text().contains("order-1"), "what was loaded stays");
    let broker = TestBroker::start_at(&address.to_string(), dir, &[]);
    page.wait_until_gone("The broker does not answer.");
    broker.put("order-2", r#"{"in": "1h", "target": {"queue": "unpaid"}}"#);
    page.press(&["r"]);
    page.wait_for("order-2");
    page.wait_for_element(".live.on");
}
