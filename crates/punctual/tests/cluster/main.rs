//! Brokers that share a Redis, called from outside. What happens when something fails is in
//! `tests/faults`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]
#![allow(clippy::print_stdout, reason = "a run prints what it measured")]

mod explain;
mod formation;
mod hand_over;
mod keys;
mod same_answer;
mod store_servers;
mod timing;
mod workers;
