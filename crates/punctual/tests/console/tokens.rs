//! Tokens: signing in, and what a token may not do is not offered.

use punctual_test_support::TestBroker;

use crate::browser::Browser;

const FLAGS: [&str; 6] =
    ["--token", "shop:read=reader", "--token", "shop=owner", "--admin-token", "admin"];

/// Every path of the console with buttons in it.
const VIEWS: [&str; 9] = [
    "#/shop/tasks",
    "#/shop/timeline?for=24h&from=2030-01-01T00:00:00Z&to=2030-01-02T00:00:00Z",
    "#/shop/tasks/order-1",
    "#/shop/schedules",
    "#/shop/watches",
    "#/shop/dead",
    "#/shop/alarms",
    "#/shop/operations",
    "#/shop/queues",
];

const BUTTONS: [&str; 22] = [
    "Touch",
    "Pause",
    "Resume",
    "Fire now",
    "Edit",
    "Duplicate",
    "Cancel",
    "cancel",
    "pause",
    "resume",
    "fire",
    "shift",
    "spread",
    "Shift",
    "Spread",
    "New task",
    "New alarm",
    "Redrive",
    "Delete",
    "Test",
    "Stop",
    "Repeat",
];

fn broker() -> TestBroker {
    let broker = TestBroker::start(&FLAGS);
    let auth = [("authorization", "Bearer owner")];
    let put = |key: &str, body: &str| {
        let (status, answer) = broker.call("PUT", &format!("/v1/shop/{key}"), &auth, body);
        assert_eq!(status, 201, "{answer}");
    };
    put("tasks/order-1", r#"{"in": "1h", "target": {"queue": "unpaid"}}"#);
    put("tasks/report", r#"{"cron": "0 9 * * *", "target": {"queue": "unpaid"}}"#);
    put("tasks/lamp", r#"{"within": "1h", "target": {"queue": "unpaid"}}"#);
    let alarm = r#"{"when": {"dead_letters": {"over": 0}},
        "to": {"http": {"url": "http://127.0.0.1:1/"}}}"#;
    put("alarms/dead", alarm);
    broker
}

fn sign_in(page: &Browser, secret: &str) {
    page.fill("input[type=password]", secret);
    page.click_text("Sign in");
}

/// A wrong token is refused with a sentence; a right one opens the view of the link. It is gone
/// with the tab, and after signing out.
#[test]
fn the_page_asks_for_a_token_and_opens_the_view_of_the_link() {
    let broker = broker();
    let mut page = Browser::open(broker.address, "#/shop/tasks/order-1");
    page.expect_message("401");
    page.wait_for("Sign in to Punctual");
    sign_in(&page, "wrong");
    page.wait_for("The broker does not know this token.");
    sign_in(&page, "owner");
    page.wait_for("Waits for its time");
    assert!(page.has_button("Cancel"));
    let kept = "return [sessionStorage, localStorage].map((one) => Boolean(one['punctual.token']))";
    assert_eq!(page.run(kept, &[]).to_string(), "[true,false]");
    page.click_text("Sign out");
    page.wait_for("Sign in to Punctual");
    assert_eq!(page.run(kept, &[]).to_string(), "[false,false]");
}

/// A token that may read sees every view, and no button that changes anything.
#[test]
fn a_token_that_may_only_read_has_no_buttons() {
    let broker = broker();
    let mut page = Browser::open(broker.address, "#/shop/tasks");
    page.expect_message("401");
    page.wait_for("Sign in to Punctual");
    sign_in(&page, "reader");
    page.wait_for("order-1");
    for view in VIEWS {
        page.go(view);
        page.wait_for_element("main h1");
        page.wait_until_gone("Loading…");
        let found: Vec<_> = BUTTONS.into_iter().filter(|text| page.has_button(text)).collect();
        assert!(found.is_empty(), "{view} has {found:?}");
        assert_eq!(page.text_of("main input[type=checkbox]"), None, "{view}");
    }
    // Connections are not offered, and not shown to one who knows the address.
    assert_eq!(page.text_of("nav a[href='#/~connections']"), None);
    page.go("#/~connections");
    page.wait_for("An admin token is needed");
    // The same views have them for a token that may do everything: the list above is not empty.
    page.click_text("Sign out");
    sign_in(&page, "owner");
    page.go("#/shop/tasks/order-1");
    page.wait_for("Waits for its time");
    assert!(page.has_button("Pause") && page.has_button("Cancel") && page.has_button("Edit"));
}

/// An admin sees all namespaces; other tokens see their own.
#[test]
fn home_lists_the_namespaces_that_the_token_may_see() {
    let broker = broker();
    let auth = [("authorization", "Bearer admin")];
    let task = r#"{"in": "1h", "target": {"queue": "q"}}"#;
    broker.call("PUT", "/v1/garden/tasks/a", &auth, task);
    let mut page = Browser::open(broker.address, "");
    page.expect_message("401");
    page.wait_for("Sign in to Punctual");
    sign_in(&page, "reader");
    page.wait_for("shop");
    assert!(!page.text().contains("garden"));
    page.click_text("Sign out");
    sign_in(&page, "admin");
    page.wait_for("garden");
}
