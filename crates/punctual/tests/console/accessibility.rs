//! Every view in both colour schemes, examined by axe-core.

use std::path::PathBuf;

use punctual_test_support::{TestBroker, eventually};
use serde_json::{Value, json};

use crate::browser::{Browser, keys};

/// `./test` puts it there.
fn axe() -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = root.join("target/axe/axe.min.js");
    std::fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!("{}: {error}; run ./test or tools/axe, which fetches it", file.display())
    })
}

const VIEWS: [&str; 19] = [
    "",
    "#/shop",
    "#/shop/tasks",
    "#/shop/tasks?state=scheduled&label=campaign%3D7",
    "#/shop/tasks/order-1",
    "#/shop/tasks/dead-1",
    "#/shop/tasks/report",
    "#/shop/tasks/report/edit",
    "#/shop/new",
    "#/shop/timeline?for=7d",
    "#/shop/schedules",
    "#/shop/watches",
    "#/shop/dead",
    "#/shop/queues",
    "#/shop/alarms?new=1",
    "#/shop/operations",
    "#/~cluster",
    "#/~connections",
    "#/~help",
];

fn broker() -> TestBroker {
    let broker = TestBroker::start(&[]);
    let http = json!({"http": {"url": "http://127.0.0.1:1/"}});
    let queue = json!({"queue": "reports"});
    let put = |key: &str, task: &Value| broker.put(key, task.to_string());
    put(
        "order-1",
        &json!({"in": "3h", "target": queue, "payload": {"a": 1},
        "labels": {"campaign": "7"}}),
    );
    put("paused", &json!({"in": "3h", "target": queue, "paused": true}));
    put("late", &json!({"in": "0s", "target": queue}));
    put("report", &json!({"cron": "0 9 * * *", "timezone": "Europe/Berlin", "target": queue}));
    put("dead-1", &json!({"in": "0s", "target": http, "retry": {"attempts_max": 1}}));
    put("lamp-1", &json!({"within": "48h", "target": queue}));
    put("lamp-2", &json!({"within": "100ms", "target": http, "retry": {"attempts_max": 1}}));
    let alarm = json!({"when": {"dead_letters": {"over": 0}}, "to": http});
    broker.call("PUT", "/v1/shop/alarms/dead", &[], alarm.to_string());
    let operation = json!({"do": "pause", "where": {"key_prefix": "none"}});
    broker.call("POST", "/v1/shop/operations", &[], operation.to_string());
    eventually(|| {
        let (_, stats) = broker.call("GET", "/v1/shop/stats", &[], "");
        (stats["dead_letters"] == 2).then_some(())
    });
    broker
}

fn assert_accessible(page: &Browser, axe: &str, what: &str) {
    let script = format!(
        "{axe}; const done = arguments[arguments.length - 1];
        axe.run(document, {{resultTypes: ['violations']}}).then(
            (found) => done(found.violations.map((one) => [one.id, one.help,
                one.nodes.map((at) => [at.html, at.failureSummary])])), // words: allow
            (error) => done([String(error)]))"
    );
    let violations = page.run_until_done(&script);
    assert_eq!(violations, json!([]), "{what}: {violations:#}");
}

#[test]
fn every_view_is_accessible_in_both_schemes() {
    let (broker, axe) = (broker(), axe());
    let page = Browser::open(broker.address, "");
    for scheme in ["light", "dark"] {
        page.prefer(scheme);
        for view in VIEWS {
            page.load(view);
            page.wait_for_element("main h1");
            page.wait_until_gone("Loading…");
            assert_accessible(&page, &axe, &format!("{view} in {scheme}"));
        }
        page.load("#/shop/tasks/order-1");
        page.wait_for("Waits for its time");
        page.click_text("Cancel");
        page.wait_for("A cancelled task never fires again.");
        assert_accessible(&page, &axe, &format!("a question in {scheme}"));
        page.press(&[keys::ESCAPE]);
        page.press(&[keys::CONTROL, "k"]);
        page.wait_for_element("dialog.finder input:focus");
        page.type_text("order");
        page.wait_for_element("#found-0");
        assert_accessible(&page, &axe, &format!("search in {scheme}"));
    }
}

#[test]
fn the_sign_in_is_accessible_in_both_schemes() {
    let (broker, axe) = (TestBroker::start(&["--token", "shop=aaa"]), axe());
    let mut page = Browser::open(broker.address, "");
    page.expect_message("401");
    for scheme in ["light", "dark"] {
        page.prefer(scheme);
        page.wait_for("Sign in to Punctual");
        assert_accessible(&page, &axe, scheme);
    }
}
