//! Connections and sources as an operator sees them.

use punctual_test_support::TestBroker;

use crate::browser::Browser;

/// A port of the machine on which nothing listens.
const CONFIG: &str = r#"
[connections.shop-db]
kind = "postgres"
url = "postgres://punctual@127.0.0.1:1/shop"
namespaces = ["shop"]
statements = { order-paid = "select 1" }

[[sources]]
kind = "outbox"
connection = "shop-db"
table = "punctual_outbox"
namespace = "shop"
"#;

/// A connection that is away says why, in its own view and where tasks wait for it; a test says it
/// again.
#[test]
fn a_connection_that_is_away_is_shown_where_its_tasks_wait_and_can_be_tested() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, CONFIG).unwrap();
    let broker = TestBroker::start(&["--config", file.path().to_str().unwrap()]);
    let target = r#"{"sql": {"connection": "shop-db", "statement": "order-paid"}}"#;
    let (status, answer) = broker.put("order-1", format!(r#"{{"in": "0s", "target": {target}}}"#));
    assert_eq!(status, 201, "{answer}");
    let page = Browser::open(broker.address, "#/shop");
    page.wait_for("shop-db order-paid is away: 1 due task waits.");
    page.click("section[aria-labelledby=lanes] tbody a");
    page.wait_for_fragment("#/~connections");
    page.wait_for_element("section[aria-labelledby=connections] .state.gone");
    page.wait_for("order-paid");
    page.wait_for("punctual_outbox");
    page.click_text("Test");
    page.wait_for_element(".notice.bad");
}
