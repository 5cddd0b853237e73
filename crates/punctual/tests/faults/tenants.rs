//! A quiet namespace beside a hostile one: all its webhooks are received while the hostile load
//! lasts, and none is a dead letter.
//!
//! Each test is a quick run of one row of `punctual bench tenants`, which starts the broker and has
//! the load. The lags are printed and not judged: figures come from a release build
//! (`docs/lab/tenants.md`).

use std::process::Command;

use clap::ValueEnum as _;
use punctual_bench::TenantLoad;
use punctual_test_support::punctual_binary;
use serde_json::{Value, json};

/// Makes a test of each load, and a list of all of them.
macro_rules! quiet_namespace {
    ($($name:ident beside $load:ident;)*) => {
        const LOADS: &[TenantLoad] = &[$(TenantLoad::$load),*];
        $(#[test]
        fn $name() {
            check(TenantLoad::$load);
        })*
    };
}

quiet_namespace! {
    hanging_origins_do_not_hold_up_another_namespace beside HangingOrigins;
    many_hanging_origins_do_not_hold_up_another_namespace beside HangingOriginsMany;
    more_hanging_origins_than_connections_do_not_hold_up_another_namespace
        beside HangingOriginsMost;
    hanging_origins_leave_one_of_few_connections beside HangingOriginsFewConnections;
    a_connection_that_hangs_does_not_hold_up_another_namespace beside HangingConnection;
    slow_lookups_do_not_hold_up_another_namespace beside SlowNames;
    stalled_uploads_do_not_hold_up_large_batches_of_another_namespace beside StalledUploads;
    endless_bodies_do_not_hold_up_another_namespace beside EndlessBodies;
    a_crowd_of_cron_tasks_without_workers_does_not_hold_up_another_namespace beside CronToQueue;
    a_crowd_of_cron_webhooks_does_not_hold_up_another_namespace beside CronToWebhooks;
    an_overdue_queue_does_not_hold_up_another_namespace beside OverdueQueue;
    thousands_of_overdue_queues_do_not_hold_up_another_namespace beside OverdueQueues;
    deliveries_that_workers_hold_leave_memory_for_another_namespace beside HeldDeliveries;
    dead_letters_redriven_in_a_loop_do_not_hold_up_another_namespace beside DeadLetters;
    idle_streams_do_not_hold_up_another_namespace beside IdleStreams;
    large_messages_do_not_hold_up_another_namespace beside LargeMessages;
    reads_in_a_loop_do_not_hold_up_another_namespace beside TightReads;
    callers_without_a_token_cost_neither_time_nor_memory beside Strangers;
}

#[test]
fn every_load_has_a_test() {
    assert_eq!(LOADS, TenantLoad::value_variants());
}

fn check(load: TenantLoad) {
    let row = run(load);
    let figures = &row["figures"];
    for column in ["load", "alone", "beside", "ratio", "result", "notes"] {
        println!("{column}: {}", row[column].as_str().unwrap_or_default());
    }
    assert_eq!(figures["error"], Value::Null);
    // What was not received, or not accepted, while the load lasted.
    for count in ["missing", "after_load", "dead", "large_unanswered"] {
        assert_eq!(figures[count], json!(0), "{count}");
    }
    assert_eq!(figures["beside"]["lag"]["early"], json!(0), "early");
    if let Some(limit) = figures["memory_above_bytes_max"].as_u64() {
        let above = figures["memory_above_bytes"].as_u64().unwrap();
        assert!(above <= limit, "{above} bytes more than idle; the limit is {limit}");
    }
}

/// Runs one row. Returns it.
fn run(load: TenantLoad) -> Value {
    let mut command = Command::new(punctual_binary());
    command.args(["bench", "tenants", "--quick", "--json", "--only", &load.name()]);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["rows"][0].clone()
}
