//! Tests of the embedded store as its callers see it, in one binary.
//!
//! `conformance` and `model` compare it with the contract and with the memory store; `crash` kills
//! a process that writes; `format_v2` opens a directory of an earlier build; `damage`,
//! `disk_space`, `fire_pages`, `list_pages` and `rows_ahead` are about one subject each.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy allows these only inside test functions, not in the functions that they call"
)]

mod conformance;
mod crash;
mod damage;
mod disk_space;
mod due_counts;
mod fire_pages;
mod format_v2;
mod list_pages;
mod model;
mod rows_ahead;
mod store_dir;
