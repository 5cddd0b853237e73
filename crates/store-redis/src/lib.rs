//! The Redis store: tasks, leases and membership in a Redis that several brokers share, a single
//! server or a Redis Cluster.
//!
//! All keys of a partition share a hash tag, so that a Redis Cluster keeps the partition on one
//! server. Each atomic step is one Lua script in `scripts/`, with its keys, arguments and results
//! at its top. `apply` is one step: it checks the epoch, the token and the number of the batch, and
//! makes all changes with one command for many tasks.
//!
//! What always holds:
//! - A write returns `Ok` only after Redis confirmed it, as durably as [`Durability`] demands. If
//!   the result is not known within [`RedisOptions::timeout`], it returns `Unavailable`; sent again
//!   under its number, the batch is made once.
//! - Scripts do not decode tasks, dead letters or records. The broker passes what they need.
//! - Replies of Redis are parsed as untrusted input. A value that cannot be read is named and
//!   affects no other.
//!
//! Redis replicates after it has answered. So after a failover it can have less than it
//! acknowledged, unless [`Durability::Replica`] is set. The store notices the loss ([`Rewound`]) as
//! soon as the owner writes.
//!
//! Counts of due tasks, an index of series and groups of dead letters are kept by the same batches.
//! A partition of an earlier version is counted when it is acquired (`fill`).
//!
//! The contracts and the conformance suite are in the crate `store`; the crate `cluster` decides
//! which broker owns which partition.

mod batch;
mod damage;
mod error;
mod fill;
mod format;
mod inspect;
mod membership;
mod open;
mod options;
mod read;
mod servers;
mod store;
mod transport;

pub use error::RedisOpenError;
pub use format::keys;
pub use options::{Durability, RedisOptions};
pub use punctual_store::Rewound;
pub use store::RedisStore;
