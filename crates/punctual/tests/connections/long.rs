//! Scenarios with kills: a few in the tests, many by the commands of docs/lab/sql.md.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use punctual_test_support::wait::wait_long_for;
use punctual_test_support::{pause, wait_for};
use serde_json::{Value, json};

use crate::database::{ConfiguredBroker, Database, Kind, task};
use crate::setting;

/// Checks without progress, of 50 ms each, after which a scenario has failed.
const STUCK_CHECKS_MAX: u32 = 500;

/// Kills broker and database in turn while tasks with `exactly_once` fire. Each has one effect.
pub(crate) fn exactly_once(kind: Kind, kills: u64) {
    let mut database = Database::start(kind);
    let mut broker = ConfiguredBroker::start(&database.config());
    let mut count = 0;
    for kill in 0..kills {
        broker.wait_for_connection("ready");
        let line = |number: u64| {
            let mut task = task("note", &json!({"number": number}));
            task["guarantee"] = json!("exactly_once");
            task["in"] = json!(format!("{}ms", number % 100));
            task["retry"] = json!({"attempts_max": 50, "backoff": {"fixed": "100ms"}});
            task["timeout"] = json!("2s");
            task
        };
        let tasks: Vec<Value> = (count..count + 200).map(line).collect();
        let body = json!(tasks).to_string();
        assert_eq!(broker.get().call("POST", "/v1/shop/tasks", &[], body).0, 200);
        count += 200;
        pause(Duration::from_millis(20 + kill % 7 * 15));
        match kill % 2 {
            0 => {
                broker.kill();
                broker.start_again();
            }
            _ => {
                database.kill();
                database.start_again();
            }
        }
    }
    let counted = || database.number("select count(*) from effects");
    let expected = i64::try_from(count).unwrap();
    wait_for("all effects", || counted() >= expected);
    wait_for("the end of all fires", || {
        let (_, stats) = broker.get().call("GET", "/v1/shop/stats", &[], "");
        stats["done"].as_u64() == Some(count)
    });
    assert_eq!(counted(), expected, "each fire has one effect");
    assert_eq!(database.number("select count(distinct number) from effects"), expected);
}

/// Writes rows in transactions of ten of which a third roll back, while broker and database are
/// killed in turn. Exactly the rows that were committed have an effect, each one.
pub(crate) fn outbox_through_kills(kind: Kind, transactions: u64, kills: u64) {
    let mut database = Database::start(kind);
    let mut broker = ConfiguredBroker::start(&database.config_with_outbox());
    let chunk = transactions.div_ceil(kills + 1);
    for (round, first) in (0..transactions).step_by(usize::try_from(chunk).unwrap()).enumerate() {
        let script = script(first, (first + chunk).min(transactions));
        let written = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (database, written) = (&database, &written);
            scope.spawn(move || {
                database.script(&script);
                written.store(true, Ordering::Release);
            });
            // The broker dies while rows are written and taken.
            if round % 2 == 0 {
                pause(Duration::from_millis(100));
                broker.kill();
                broker.start_again();
            }
            wait_long_for("the rows of a round", || written.load(Ordering::Acquire));
        });
        // The database dies while rows are taken.
        if round % 2 == 1 {
            database.kill();
            database.start_again();
        }
    }
    let committed: i64 =
        (0..transactions).filter(|number| number % 3 != 2).count().try_into().unwrap();
    let expected = committed * 10;
    let counted = || database.number("select count(*) from effects");
    let mut seen = (counted(), 0);
    while seen.0 < expected {
        pause(Duration::from_millis(50));
        let now = counted();
        seen = (now, if now > seen.0 { 0 } else { seen.1 + 1 });
        if seen.1 > STUCK_CHECKS_MAX {
            let (_, connections) = broker.get().call("GET", "/v1/connections", &[], "");
            let (_, stats) = broker.get().call("GET", "/v1/shop/stats", &[], "");
            let rows = database.number("select count(*) from punctual_outbox");
            panic!("no progress at {now} of {expected}: {rows} rows, {connections}, {stats}");
        }
    }
    wait_for("an empty outbox", || database.number("select count(*) from punctual_outbox") == 0);
    assert_eq!(counted(), expected);
    assert_eq!(database.number("select count(distinct number) from effects"), expected);
    assert_eq!(database.number("select count(*) from punctual_outbox_rejected"), 0);
}

/// Transactions of ten rows, of which every third rolls back.
fn script(first: u64, end: u64) -> String {
    let mut text = String::new();
    for transaction in first..end {
        let row = |n: u64| {
            let number = transaction * 10 + n;
            format!(
                "('{{\"in\":\"0s\",\"guarantee\":\"exactly_once\",\
                 \"payload\":{{\"number\":{number}}},\
                 \"retry\":{{\"attempts_max\":50,\"backoff\":{{\"fixed\":\"100ms\"}}}}}}')"
            )
        };
        let rows: Vec<String> = (0..10).map(row).collect();
        let end = if transaction % 3 == 2 { "rollback" } else { "commit" };
        let rows = rows.join(",");
        text.push_str(&format!(
            "begin; insert into punctual_outbox (task) values {rows}; {end};\n"
        ));
    }
    text
}

#[test]
#[ignore = "minutes; see docs/lab/sql.md"]
fn long_exactly_once() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        exactly_once(kind, setting("PUNCTUAL_KILLS", 100));
    }
}

#[test]
#[ignore = "minutes; see docs/lab/sql.md"]
fn long_outbox() {
    let transactions = setting("PUNCTUAL_ROWS", 1_000_000) / 10;
    outbox_through_kills(Kind::Postgres, transactions, setting("PUNCTUAL_KILLS", 20));
}
