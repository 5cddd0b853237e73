//! The contracts of Punctual's stores, the memory store, and the suite that every store runs.
//!
//! A store keeps tasks from the moment they are accepted until their last fire is settled. It
//! promises atomicity, durability, order and fencing, and decides nothing: it has no rules about
//! tasks, does not compute when a task is due, and knows nothing of wheels, deliveries or callers.
//!
//! The contracts are three traits with their rules in prose: [`TaskStore`], [`LeaseStore`] and
//! [`MembershipStore`]. The `conformance` suite checks those rules; every store runs it.
//! [`MemoryStore`] is the reference implementation. It follows every rule, but forgets everything
//! when the process ends. The durable stores are the crates `store-embedded`, `store-redis` and
//! `store-sql`; the caller is the crate `engine`.

mod change;
pub mod codec;
mod counts;
mod due;
mod epochs;
mod error;
mod lease_store;
mod letter_groups;
mod membership_store;
mod memory;
mod query;
mod task_store;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use change::{Batch, BatchNo, Change, Prior, RepairNo};
pub use counts::{CountedNamespace, Counts, count};
pub use due::{DueCounts, DueHour, DueMinute, DueMove, DueSteps, due_move, minute_of};
pub use epochs::{EpochTracker, Rewound, acquisition_token};
pub use error::{Damage, Resource, StoreError};
pub use lease_store::LeaseStore;
pub use letter_groups::{CountedGroup, GroupLetters, LetterGroups};
pub use membership_store::{MemberInfo, Members, MembershipStore};
pub use memory::MemoryStore;
pub use query::{
    Filter, FireFilter, FirePosition, HISTORY_BYTES_MAX, Head, KindFilter, Page, Position,
    Retention, Swept,
};
pub use task_store::TaskStore;
