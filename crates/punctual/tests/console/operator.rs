//! What an operator does to tasks: find one, read why it has not fired, pause it, move a schedule,
//! look ahead.

use std::collections::BTreeSet;

use punctual_test_support::{TestBroker, eventually};
use serde_json::{Value, json};

use crate::browser::{Browser, keys};

fn state_of(broker: &TestBroker, key: &str) -> String {
    broker.get(key).1["state"].as_str().unwrap().to_owned()
}

/// Searches for an order by its key, reads why it has not fired, pauses and resumes it, moves it,
/// fires it, and cancels it. The page says what the broker answered.
#[test]
fn an_order_is_found_by_key_explained_paused_touched_and_cancelled() {
    let broker = TestBroker::start(&[]);
    for number in 1..=30 {
        broker.put(&format!("order-{number}"), r#"{"in": "15m", "target": {"queue": "unpaid"}}"#);
    }
    let page = Browser::open(broker.address, "#/shop");
    page.wait_for_element("[data-count=accepted]");
    page.press(&[keys::CONTROL, "k"]);
    page.wait_for_element("dialog.finder input:focus");
    page.type_text("order-17");
    page.wait_for_element("#found-0");
    page.press(&[keys::ENTER]);
    page.wait_for_fragment("#/shop/tasks/order-17");
    let why = page.wait_for_element(".why");
    assert!(why.contains("Waits for its time"), "{why}");

    page.click_text("Pause");
    page.wait_for_element(".why.paused");
    eventually(|| (state_of(&broker, "order-17") == "paused").then_some(()));
    page.click_text("Resume");
    eventually(|| (state_of(&broker, "order-17") == "scheduled").then_some(()));

    let before = broker.get("order-17").1["fire_at"].clone();
    page.click_text("Touch");
    page.fill("dialog input", "soon");
    page.click("dialog button[type=submit]");
    // The broker names the field, and the dialog shows it there.
    page.wait_for_element("dialog .field.bad");
    page.fill("dialog input", "2h");
    page.click("dialog button[type=submit]");
    page.wait_for("Touched: due at");
    assert_ne!(broker.get("order-17").1["fire_at"], before);

    page.click_text("Cancel");
    page.wait_for("A cancelled task never fires again.");
    page.click_text("Cancel task");
    page.wait_for("Cancelled: it never fires.");
    // What the page said is true.
    eventually(|| (broker.get("order-17").1["state"] == "cancelled").then_some(()));
    let mut page = page;
    page.expect_message("/v1/shop/tasks/order-17");
}

/// A wrong expression is refused with the reason while it is typed; a right one shows its next
/// fires before it is saved.
#[test]
fn a_cron_expression_is_moved_with_a_preview() {
    let broker = TestBroker::start(&[]);
    let task = r#"{"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin",
        "target": {"queue": "reports"}, "payload": {"id": 12345678901234567890, "rate": 1.0}}"#;
    broker.put("report", task);
    let mut page = Browser::open(broker.address, "#/shop/schedules");
    page.expect_message("/v1/preview");
    page.wait_for("at 09:00 on Monday to Friday");
    page.click("a[aria-label='Edit report']");
    page.wait_for_element("[data-preview='0 9 * * MON-FRI']");
    page.fill("input[name=value]", "0 25 * * *");
    page.wait_for_element("[data-preview=bad]");
    page.fill("input[name=value]", "30 10 * * MON-FRI");
    page.wait_for_element("[data-preview='30 10 * * MON-FRI']");
    page.wait_for("T10:30:00+");
    page.click("button[type=submit]");
    page.wait_for("Saved.");
    let (_, saved) = broker.get("report");
    assert_eq!(saved["cron"], "30 10 * * MON-FRI");
    assert_eq!(saved["timezone"], "Europe/Berlin");
    assert_eq!(saved["version"], 2);
    // Numbers that a script cannot hold stay as they were sent.
    page.wait_for("12345678901234567890");
    page.wait_for("\"rate\": 1.0");
}

/// An edit of a task that has changed meanwhile is refused, and nothing is lost.
#[test]
fn an_edit_of_a_task_that_has_changed_meanwhile_is_refused() {
    let broker = TestBroker::start(&[]);
    broker.put("report", r#"{"cron": "0 9 * * *", "target": {"queue": "reports"}}"#);
    let mut page = Browser::open(broker.address, "#/shop/tasks/report/edit");
    page.expect_message("412");
    page.wait_for_element("[data-preview='0 9 * * *']");
    broker.put("report", r#"{"cron": "0 7 * * *", "target": {"queue": "reports"}}"#);
    page.fill("input[name=value]", "0 8 * * *");
    page.click("button[type=submit]");
    page.wait_for_element(".problem");
    assert_eq!(broker.get("report").1["cron"], "0 7 * * *");
}

/// A problem of a field in the JSON is shown at the JSON.
#[test]
fn a_new_task_is_created_and_a_wrong_field_is_shown_where_it_is() {
    let broker = TestBroker::start(&[]);
    let mut page = Browser::open(broker.address, "#/shop/new");
    page.expect_message("422");
    page.fill("form.edit input", "a/b?c#d%");
    page.fill("textarea", r#"{"target": {"queue": "no such queue!"}}"#);
    page.click_text("Create");
    page.wait_for_element(".field.bad textarea");
    page.fill("textarea", r#"{"target": {"queue": "mails"}, "payload": [1.50]}"#);
    page.click_text("Create");
    page.wait_for_fragment("#/shop/tasks/a%2Fb%3Fc%23d%25");
    page.wait_for("1.50");
    assert_eq!(broker.get("a%2Fb%3Fc%23d%25").1["target"], json!({"queue": "mails"}));
}

/// The heat map and the sentence above it name the busiest hour of the week; it opens its tasks.
#[test]
fn the_busiest_hour_of_tomorrow_opens_its_tasks() {
    let broker = TestBroker::start(&[]);
    let tasks: Vec<Value> = (0..40)
        .map(|number| {
            let hours = if number < 30 { 26 } else { 20 + number };
            json!({"key": format!("mail-{number}"), "in": format!("{hours}h"),
                "target": {"queue": "mails"}})
        })
        .collect();
    broker.call("POST", "/v1/shop/tasks", &[], Value::Array(tasks).to_string());
    let page = Browser::open(broker.address, "#/shop");
    page.wait_for("Busiest hour:");
    page.wait_for_element("table.heat [data-fires='30']");
    page.click("table.heat [data-fires='30']");
    page.wait_for_fragment("#/shop/tasks?from=");
    page.wait_for("mail-29");
    let rows = page.run("return document.querySelectorAll('[data-row]').length", &[]);
    assert_eq!(rows, 30, "the other tasks are due in other hours");
}

/// The timeline zooms from a week into the hour of a herd, and opens its tasks.
#[test]
fn the_timeline_zooms_in_and_opens_the_tasks_of_a_range() {
    let broker = TestBroker::start(&[]);
    let herd =
        |number| json!({"key": format!("n-{number}"), "in": "50h", "target": {"queue": "q"}});
    let tasks: Vec<Value> = (0..25).map(herd).collect();
    broker.call("POST", "/v1/shop/tasks", &[], Value::Array(tasks).to_string());
    let page = Browser::open(broker.address, "#/shop/timeline?for=7d");
    page.wait_for("25 fires expected");
    assert_eq!(page.wait_for_element(".legend .key").split_whitespace().last(), Some("25"));
    page.wait_for("25 at ");
    page.click(".timeline button[aria-label$=', 25 fires']");
    page.wait_for_fragment("for=24h");
    page.wait_for("25 fires expected");
    page.click(".timeline button[aria-label$=', 25 fires']");
    page.wait_for_fragment("for=6h");
    page.wait_for_element(".timeline button[aria-label$=', 25 fires']");
    page.click("p a.chip");
    page.wait_for_fragment("#/shop/tasks?from=");
    page.wait_for("n-24");
}

/// A herd is selected in the timeline and spread over half an hour, after a question that says how
/// many tasks that are.
#[test]
fn a_herd_is_spread_from_the_timeline() {
    let broker = TestBroker::start(&[]);
    let herd =
        |number| json!({"key": format!("n-{number}"), "in": "50h", "target": {"queue": "q"}});
    let tasks: Vec<Value> = (0..25).map(herd).collect();
    broker.call("POST", "/v1/shop/tasks", &[], Value::Array(tasks).to_string());
    let times = || {
        let (_, page) = broker.call("GET", "/v1/shop/tasks", &[], "");
        let tasks = page["tasks"].as_array().unwrap().clone();
        let times: Vec<_> = tasks.iter().map(|it| it["fire_at"].as_str().unwrap()).collect();
        times.into_iter().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let first = times().pop_last().unwrap();
    let page = Browser::open(broker.address, "#/shop/timeline?for=7d");
    page.wait_for("25 fires expected");
    let herd = "document.querySelector(\".timeline button[aria-label$=', 25 fires']\").focus()";
    page.run(herd, &[]);
    page.press(&[keys::SHIFT, keys::RIGHT]);
    page.wait_for("Selected:");
    page.click_text("Spread");
    page.wait_for("Spread all that match: 25 tasks?");
    page.fill("dialog input", "a while");
    page.click("dialog button[type=submit]");
    page.wait_for_element("dialog .field.bad");
    page.fill("dialog input", "30m");
    page.click("dialog button[type=submit]");
    page.wait_for_fragment("#/shop/operations");
    page.wait_for("spread 30m");
    eventually(|| (times().len() > 20).then_some(()));
    let mut page = page;
    page.expect_message("422");
    assert!(*times().first().unwrap() >= first, "no task is due earlier: {:?}", times());
}

/// Counts are those of the broker, and the states add up to what was accepted.
#[test]
fn the_counts_of_a_namespace_add_up_and_follow_the_live_stream() {
    let broker = TestBroker::start(&[]);
    for number in 1..=5 {
        broker.put(&format!("order-{number}"), r#"{"in": "1h", "target": {"queue": "unpaid"}}"#);
    }
    broker.call("POST", "/v1/shop/tasks/order-1/pause", &[], "");
    broker.delete("order-2");
    let page = Browser::open(broker.address, "#/shop");
    let counts = |state: &str| page.text_of(&format!("[data-count={state}]"));
    page.wait_for_element("[data-count=accepted]");
    let found =
        ["scheduled", "paused", "cancelled", "accepted"].map(|state| counts(state).unwrap());
    assert_eq!(found, ["3", "1", "1", "5"]);
    page.wait_for_element(".live.on");
    broker.put("order-6", r#"{"in": "1h", "target": {"queue": "unpaid"}}"#);
    eventually(|| (counts("accepted")? == "6").then_some(()));
}

/// An alarm is created, raised by failed attempts, and seen as raised with its value.
#[test]
fn an_alarm_is_created_and_seen_when_it_is_raised() {
    let broker = TestBroker::start(&[]);
    let page = Browser::open(broker.address, "#/shop/alarms");
    page.click_text("New alarm");
    page.fill("form input", "errors");
    page.fill("label.field:nth-of-type(3) input", "2");
    page.fill("label.field:nth-of-type(6) input", "http://127.0.0.1:1/alarm");
    page.click_text("Save");
    page.wait_for("failed attempts: count 2, window 1m");
    page.wait_for_element(".state.ok");
    for number in 1..=3 {
        let task = r#"{"in": "0s", "retry": {"attempts_max": 1},
            "target": {"http": {"url": "http://127.0.0.1:1/"}}}"#;
        broker.put(&format!("order-{number}"), task);
    }
    page.wait_for_element(".state.raised");
    page.click_text("Delete");
    page.click_text("Delete alarm");
    page.wait_for("No alarm.");
}

/// A watch that was not touched is silent; touching it arms it again.
#[test]
fn a_silent_watch_is_listed_and_touched() {
    let broker = TestBroker::start(&[]);
    let watch = |within: &str| {
        format!(
            r#"{{"within": "{within}", "target": {{"http": {{"url": "http://127.0.0.1:1/"}}}},
            "retry": {{"attempts_max": 1}}}}"#
        )
    };
    broker.put("lamp-1", watch("100ms"));
    broker.put("lamp-2", watch("48h"));
    eventually(|| (broker.get("lamp-1").1["state"] == "dead").then_some(()));
    let page = Browser::open(broker.address, "#/shop/watches");
    page.wait_for_element(".state.silent");
    page.wait_for_element(".state.alive");
    page.click("button[aria-label='Touch lamp-1']");
    page.fill("dialog input", "24h");
    page.click("dialog button[type=submit]");
    page.wait_for("Touched: due at");
    page.wait_for("No watch is silent.");
    assert_eq!(broker.get("lamp-1").1["state"], "scheduled");
}

/// A broker without tasks shows first steps that work for it.
#[test]
fn an_empty_broker_shows_first_steps_for_its_address() {
    let broker = TestBroker::start(&[]);
    let page = Browser::open(broker.address, "");
    page.wait_for("No task yet: first steps");
    page.wait_for(&format!("curl -X PUT http://{}/v1/shop/tasks/order-1", broker.address));
}
