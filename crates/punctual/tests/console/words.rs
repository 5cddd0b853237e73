//! Schedules in words, and JSON as it was sent: the modules of the page, called in the browser.

use punctual_test_support::TestBroker;
use serde_json::{Value, json};

use crate::browser::Browser;

/// Calls a function of a module of the page with each of the inputs.
fn call_each(module: &str, function: &str, inputs: &[Value]) -> Vec<Value> {
    let broker = TestBroker::start(&[]);
    let page = Browser::open(broker.address, "");
    page.wait_for_element("main h1");
    let script = format!(
        "const done = arguments[arguments.length - 1];
        const base = document.querySelector('script[type=module]').src;
        import(new URL('parts/{module}.js', base)).then(
            (found) => done({}.map((input) => found.{function}(...input) ?? null)),
            (error) => done([String(error)]))",
        json!(inputs)
    );
    page.run_until_done(&script).as_array().unwrap().clone()
}

/// Words only where they are right; otherwise the expression itself.
#[test]
fn cron_expressions_have_the_right_words() {
    let table = [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("0 * * * *", "every hour"),
        ("5 * * * *", "every hour at 5 minutes past"),
        ("0 */2 * * *", "every 2 hours on the hour"),
        ("0 9 * * *", "at 09:00 every day"),
        ("30 2 * * *", "at 02:30 every day"),
        ("0 9,17 * * *", "at 09:00, 17:00 every day"),
        ("0 9 * * MON-FRI", "at 09:00 on Monday to Friday"),
        ("0 9 * * 1,3", "at 09:00 on Monday and Wednesday"),
        ("0 9 * * 7", "at 09:00 on Sunday"),
        ("0 0 1 * *", "at 00:00 on day 1 of the month"),
        ("0 0 1,15 * *", "at 00:00 on day 1 and 15 of the month"),
        ("0 6 L * *", "at 06:00 on the last day of the month"),
        ("0 0 1 1 *", "at 00:00 on day 1 of the month in January"),
        ("0 0 * JAN-MAR *", "at 00:00 every day in January to March"),
        ("@daily", "at 00:00 every day"),
        ("@hourly", "every hour"),
        ("15 30 9 * * *", "at 09:30:15 every day"),
        ("*/10 * * * * *", "every 10 seconds"),
        // Day and weekday together, special days, odd steps and years have no short words.
        ("0 0 1,15 * MON", "cron 0 0 1,15 * MON"),
        ("0 0 15W * *", "cron 0 0 15W * *"),
        ("0 0 * * FRI#2", "cron 0 0 * * FRI#2"),
        ("10/15 * * * *", "cron 10/15 * * * *"),
        ("*/7 * * * *", "cron */7 * * * *"),
        ("0 0 9 * * * 2027", "cron 0 0 9 * * * 2027"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00"),
    ];
    let inputs: Vec<Value> = table.iter().map(|(cron, _)| json!([cron])).collect();
    let found = call_each("schedule_words", "cronWords", &inputs);
    let expected: Vec<Value> = table.iter().map(|(_, words)| json!(words)).collect();
    assert_eq!(found, expected);
}

/// The text of a value is cut out as it was sent: digits, spaces and escapes.
#[test]
fn values_are_cut_out_of_an_answer_as_they_were_sent() {
    let answer = r#"{"task": {"key":"a\"]}","payload": {"n":12345678901234567890, "r":1.0e2 },
        "tail": [ ]}, "fires": [{"result":null}, {"result": [1.50,"\u0041"]}]}"#;
    let table = [
        (json!(["task", "payload"]), json!(r#"{"n":12345678901234567890, "r":1.0e2 }"#)),
        (json!(["task", "payload", "n"]), json!("12345678901234567890")),
        (json!(["task", "tail"]), json!("[ ]")),
        (json!(["fires", 0, "result"]), json!("null")),
        (json!(["fires", 1, "result"]), json!(r#"[1.50,"\u0041"]"#)),
        (json!(["task", "missing", "deeper"]), json!(null)),
    ];
    let inputs: Vec<Value> = table.iter().map(|(path, _)| json!([answer, path])).collect();
    let expected: Vec<Value> = table.into_iter().map(|(_, text)| text).collect();
    assert_eq!(call_each("json", "rawAt", &inputs), expected);
}
