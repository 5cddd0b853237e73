//! The Redis store: tasks and leases in a Redis, single or Cluster, that several brokers share.
//!
//! In: batches of changes, reads, leases, heartbeats. Out: what the contracts of `punctual-store` promise. All keys of a partition
//! share a hash tag, so that a Redis Cluster keeps it whole on one server; each atomic step is one Lua script
//! in `scripts/`, with its keys, arguments and results at the top. `apply` is one step: it checks the fence (epoch
//! and token) and the number of the batch, and makes all changes with one command for many.
//!
//! What always holds:
//! - A write is answered `Ok` only when Redis has said so, and as durably as [`Durability`] asks. Whatever is not
//!   known within [`RedisOptions::timeout`] is `Unavailable`; sent again under its number, nothing doubles.
//! - Scripts do not look into tasks, letters or records: what they need is told to them.
//! - What comes out of Redis is parsed as untrusted.
//!
//! Redis replicates after it has answered, so after a failover it can have less than it answered, unless
//! [`Durability::Replica`] was asked for. That is noticed ([`Rewound`]) as soon as the owner writes.
//!
//! Next door: `store` has the contracts and the suite that this store runs as well; `cluster` decides who owns what.

mod options;
mod store;

mod batch;
mod inspect;
mod membership;
mod read;

mod open;

mod codec;
mod connection;
mod epochs;
mod error;
#[cfg(test)]
mod golden;
pub mod keys;
mod reply;
mod script;

pub use epochs::Rewound;
pub use error::RedisOpenError;
pub use options::{Durability, RedisOptions};
pub use store::RedisStore;
