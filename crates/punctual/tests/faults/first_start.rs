//! A kill -9 while a broker makes its store for the first time.
//!
//! Needs strace.

use punctual_test_support::BrokerProcess;
use punctual_test_support::strace::with_kill_at;

use crate::load::{NOWHERE, far};

/// The calls that make a directory, or give a file or a directory its name.
const CALLS: &str = "mkdir,mkdirat,rename,renameat,renameat2";
/// Several times the calls of a first start.
const CALLS_MAX: usize = 400;

#[test]
fn a_broker_that_is_killed_anywhere_in_its_first_start_starts_again() {
    let mut kills = 0;
    for n in 1..=CALLS_MAX {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let (process, client) = BrokerProcess::launch(with_kill_at(CALLS, n), &data);
        if client.is_some() {
            process.kill();
            println!("killed at each of {kills} calls");
            assert!(kills > 20, "a first start makes more than {kills} files and directories");
            return;
        }
        process.end();
        kills += 1;
        let (process, client) = BrokerProcess::start(&data);
        assert_eq!(client.try_put("a", &far(NOWHERE)), Some(true), "killed at call {n}");
        process.kill();
    }
    panic!("a first start makes more than {CALLS_MAX} of these calls: {CALLS}");
}
