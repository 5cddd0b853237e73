//! Outboxes: what is committed becomes a task once, what is rolled back never.

use punctual_connectors::sql::schema::notify_schema;
use punctual_test_support::{eventually, wait_for};
use serde_json::json;

use crate::database::{ConfiguredBroker, Database, Kind};

crate::on_both!(
    a_committed_row_becomes_a_task_and_a_rolled_back_one_never,
    every_verb_is_applied_in_order,
    a_row_that_cannot_be_read_is_moved_aside_with_the_problem,
    brokers_that_share_an_outbox_take_each_row_once,
    exactly_the_committed_rows_fire_through_kills,
);

const ROW: &str = "insert into punctual_outbox (task) values";

fn a_committed_row_becomes_a_task_and_a_rolled_back_one_never(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config_with_outbox());
    database.sql(&format!(
        "begin; {ROW} ('{{\"in\":\"0s\",\"payload\":{{\"number\":1}}}}'); rollback; \
         begin; {ROW} ('{{\"in\":\"0s\",\"payload\":{{\"number\":2}}}}'); commit;"
    ));
    wait_for("the effect", || database.number("select count(*) from effects") == 1);
    assert_eq!(database.number("select number from effects"), 2);
    wait_for("an empty outbox", || database.number("select count(*) from punctual_outbox") == 0);
    let (_, connections) = broker.get().call("GET", "/v1/connections", &[], "");
    let source = &connections["sources"][0];
    assert_eq!((&source["applied"], &source["rejected"]), (&json!(1), &json!(0)), "{source}");
    // A table that was made anew counts from one again.
    database.sql("truncate table punctual_outbox");
    if kind == Kind::Postgres {
        database.sql("truncate table punctual_outbox restart identity");
    }
    for number in [3, 4] {
        let payload = format!("{{\"in\":\"0s\",\"payload\":{{\"number\":{number}}}}}");
        database.sql(&format!("{ROW} ('{payload}')"));
    }
    wait_for("the next effects", || database.number("select count(*) from effects") == 3);
}

#[test]
fn a_source_with_notify_reads_a_row_when_it_is_committed_and_polls_without_the_trigger() {
    let database = Database::start(Kind::Postgres);
    database.sql(notify_schema());
    // Longer than a test waits.
    let config = database.config_with_outbox().replace("poll = \"20ms\"", "poll = \"1m\"");
    let row = |number: u32| {
        let payload = format!("{{\"in\":\"0s\",\"payload\":{{\"number\":{number}}}}}");
        database.sql(&format!("{ROW} ('{payload}')"));
    };
    let effects = || database.number("select count(*) from effects");
    let broker = ConfiguredBroker::start(&format!("{config}notify = true\n"));
    let read = || {
        let (_, connections) = broker.get().call("GET", "/v1/connections", &[], "");
        connections["sources"][0]["read_at"].is_string().then_some(())
    };
    eventually(read);
    for number in 1..=3 {
        row(number);
        wait_for("the effect of a row", || effects() == i64::from(number));
    }
    drop(broker);
    database.sql("drop trigger punctual_outbox_notify on punctual_outbox");
    let config = database.config_with_outbox();
    let _broker = ConfiguredBroker::start(&format!("{config}notify = true\n"));
    row(4);
    wait_for("the effect of a row that was polled", || effects() == 4);
}

fn every_verb_is_applied_in_order(kind: Kind) {
    let database = Database::start(kind);
    let broker = ConfiguredBroker::start(&database.config_with_outbox());
    let key = match kind {
        Kind::Postgres => "key",
        Kind::Mariadb => "`key`",
    };
    let columns = format!("insert into punctual_outbox (verb, {key}, task) values");
    let task = "{\"in\":\"1h\",\"payload\":{\"number\":1}}";
    database.sql(&format!(
        "begin; {columns} ('schedule', 'gone', '{task}'), ('cancel', 'gone', null), \
         ('schedule', 'paused', '{task}'), ('pause', 'paused', null), \
         ('schedule', 'resumed', '{task}'), ('pause', 'resumed', null), \
         ('resume', 'resumed', null), \
         ('schedule', 'touched', '{task}'), ('touch', 'touched', '{{\"in\":\"0s\"}}'), \
         ('cancel', 'unknown', null), ('pause', 'unknown', null); commit;"
    ));
    wait_for("an empty outbox", || database.number("select count(*) from punctual_outbox") == 0);
    assert_eq!(database.number("select count(*) from punctual_outbox_rejected"), 0);
    wait_for("the effect of the touched task", || {
        database.number("select count(*) from effects") == 1
    });
    let state = |name: &str| broker.get().get(name).1["state"].clone();
    assert_eq!(state("paused"), "paused");
    assert_eq!(state("resumed"), "scheduled");
    assert_ne!(state("gone"), "scheduled");
}

fn a_row_that_cannot_be_read_is_moved_aside_with_the_problem(kind: Kind) {
    let database = Database::start(kind);
    let _broker = ConfiguredBroker::start(&database.config_with_outbox());
    database.sql(&format!(
        "begin; {ROW} ('{{\"in\":\"soon\"}}'), ('{{\"in\":\"0s\",\"payload\":{{\"number\":5}}}}'), \
         ('[1]'), (null); \
         insert into punctual_outbox (verb) values ('explode'), ('cancel'); commit;"
    ));
    wait_for("an empty outbox", || database.number("select count(*) from punctual_outbox") == 0);
    wait_for("the good row", || database.number("select count(*) from effects") == 1);
    let problems = database.sql("select problem from punctual_outbox_rejected order by id");
    for problem in ["in", "JSON object", "task", "verb: must be one of schedule", "key"] {
        assert!(problems.contains(problem), "{problem}: {problems}");
    }
    assert_eq!(database.number("select count(*) from punctual_outbox_rejected"), 5);
}

fn brokers_that_share_an_outbox_take_each_row_once(kind: Kind) {
    let database = Database::start(kind);
    let brokers: Vec<_> =
        (0..3).map(|_| ConfiguredBroker::start(&database.config_with_outbox())).collect();
    for round in 0..20 {
        let rows = (0..50).map(|n| {
            let number = round * 50 + n;
            format!("('{{\"in\":\"0s\",\"payload\":{{\"number\":{number}}}}}')")
        });
        database.sql(&format!("{ROW} {}", rows.collect::<Vec<_>>().join(",")));
    }
    wait_for("all effects", || database.number("select count(*) from effects") >= 1000);
    wait_for("an empty outbox", || database.number("select count(*) from punctual_outbox") == 0);
    assert_eq!(database.number("select count(distinct number) from effects"), 1000);
    assert_eq!(database.number("select count(*) from effects"), 1000);
    let applied = |broker: &ConfiguredBroker| {
        let (_, connections) = broker.get().call("GET", "/v1/connections", &[], "");
        connections["sources"][0]["applied"].as_u64().unwrap_or_default()
    };
    eventually(|| (brokers.iter().map(applied).sum::<u64>() == 1000).then_some(()));
}

fn exactly_the_committed_rows_fire_through_kills(kind: Kind) {
    crate::long::outbox_through_kills(kind, 300, 4);
}
