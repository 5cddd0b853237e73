//! The store on a real PostgreSQL: the conformance suite, its own additions, and faults.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod conformance;
mod damage;
mod long_walks;
mod opening;
mod outages;
mod subject;
