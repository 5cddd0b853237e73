//! Stores: where tasks are kept until they are settled.
//!
//! In: batches of [`Change`]s that the owner of a partition has already decided. Out: tasks, by time, by
//! name, by id. The contracts, [`TaskStore`], [`LeaseStore`] and [`MembershipStore`], are prose above small traits;
//! the `conformance` suite is that prose in code, and every store runs it.
//! [`MemoryStore`] is the reference: it keeps every clause, but the process's life only.
//!
//! A store does not think. It never asks the time, never decides whether a change makes sense, and
//! knows nothing of wheels, deliveries or callers. What it promises is atomicity, durability, order and
//! fencing.
//!
//! Next door: `engine` is the only caller; `store-embedded` and `store-redis` are the durable kinds.

mod change;
pub mod codec;
mod counts;
mod error;
mod lease_store;
mod membership_store;
mod memory;
mod query;
mod task_store;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use change::{Batch, BatchNo, Change};
pub use counts::{Counts, count};
pub use error::{Resource, StoreError};
pub use lease_store::LeaseStore;
pub use membership_store::{MemberInfo, Members, MembershipStore};
pub use memory::MemoryStore;
pub use query::{Filter, Head, Page, Position, Retention, Swept};
pub use task_store::TaskStore;
