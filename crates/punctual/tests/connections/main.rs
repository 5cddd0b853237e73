//! Connections with the real binary and real systems: statements as targets, outboxes, and messages
//! both ways.
//!
//! Every scenario of databases runs on PostgreSQL and on MariaDB, each with a server of its own
//! that it may kill; the table `effects` is what a receiver would have seen. `sources` and
//! `witness` have those of messages.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed expectation ends the test, and a measurement prints its figures"
)]

mod away;
mod database;
mod documented;
mod latency;
mod lease;
mod long;
mod outbox;
mod sinks;
mod sources;
mod spread;
mod witness;

/// A number from the environment, for long versions of tests.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Makes a test of each scenario for each database.
macro_rules! on_both {
    ($($scenario:ident),+ $(,)?) => {
        mod on_postgres {
            $(#[test] fn $scenario() { super::$scenario(crate::database::Kind::Postgres) })+
        }
        mod on_mariadb {
            $(#[test] fn $scenario() { super::$scenario(crate::database::Kind::Mariadb) })+
        }
    };
}
pub(crate) use on_both;
