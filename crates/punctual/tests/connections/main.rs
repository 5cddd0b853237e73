//! Connections with the real binary and real databases: statements as targets, and outboxes.
//!
//! Every scenario runs on PostgreSQL and on MariaDB, each with a server of its own that it may
//! kill. The table `effects` is what a receiver would have seen.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation ends the test")]

mod database;
mod documented;
mod lease;
mod long;
mod outbox;
mod sinks;
mod sources;

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
