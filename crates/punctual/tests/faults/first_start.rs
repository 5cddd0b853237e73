//! A kill -9 while a broker makes its store for the first time.
//!
//! Needs strace.

use std::thread;

use punctual_test_support::BrokerProcess;
use punctual_test_support::strace::with_kill_at;

use crate::load::{NOWHERE, far};

/// The calls that make a directory, give a new file its length, and give a file or a directory its
/// name.
const CALLS: [&str; 4] = ["mkdir", "ftruncate", "rename", "renameat"];
/// Several times the calls of a first start.
const CALLS_MAX: usize = 200;

#[test]
fn a_broker_that_is_killed_anywhere_in_its_first_start_starts_again() {
    thread::scope(|scope| {
        for call in CALLS {
            scope.spawn(move || {
                let kills = (1..=CALLS_MAX).take_while(|n| killed_and_started_again(call, *n));
                let kills = kills.count();
                println!("killed at each of {kills} calls of {call}");
                assert!(
                    (1..CALLS_MAX).contains(&kills),
                    "a first start makes {kills} {call} calls"
                );
            });
        }
    });
}

/// Starts a broker on a directory that does not exist, and again after it was killed at the n-th
/// call. Returns false if it makes fewer calls.
fn killed_and_started_again(call: &str, n: usize) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (process, client) = BrokerProcess::launch(with_kill_at(call, n), &data);
    if client.is_some() {
        process.kill();
        return false;
    }
    process.end();
    let (process, client) = BrokerProcess::start(&data);
    assert_eq!(client.try_put("a", &far(NOWHERE)), Some(true), "killed at call {n} of {call}");
    process.kill();
    true
}
