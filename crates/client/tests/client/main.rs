//! The client over real sockets, against a fake broker whose connections a test can cut.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod cluster;
mod fake_broker;
mod schedule;
mod work;
