//! The store on a real MariaDB: the conformance suite, its own additions, and faults.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed helper is a failed test")]
#![allow(clippy::cloned_ref_to_slice_refs, reason = "`[task.clone()]` is a list of one")]

mod concurrency;
mod conformance;
mod damage;
mod large_batches;
mod long_walks;
mod opening;
mod outages;
mod subject;
