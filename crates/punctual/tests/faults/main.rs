//! Faults of the real binary and of what it depends on: disks, clocks, workers, stores, links.
//!
//! `docs/lab/faults.md` has the results. Longer runs: `tools/crash`, `tools/clock` and
//! `tools/cluster`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]
#![allow(clippy::print_stdout, reason = "a long run prints what it did")]

mod alarms;
mod callbacks;
mod clock;
mod cluster;
mod damage;
mod disk;
mod first_start;
mod kill;
mod load;
mod memory;
mod recurring;
mod recurring_checks;
mod redis_cluster;
mod tenants;
mod workers;
