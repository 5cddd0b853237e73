//! One type for every kind of store: [`AnyStore`] is a memory, an embedded, a Redis, a PostgreSQL
//! or a MySQL store. [`SharedStore`] is one of those that several brokers share.
//!
//! The set is closed, so it is an enum: callers stay free of type parameters. [`open`] turns a
//! [`StoreLocation`] into an open store. The contracts are those of `punctual-store`; this crate
//! only passes calls on.

mod any_store;
mod open;
mod shared_store;

pub use any_store::AnyStore;
pub use open::{OpenStoreError, OpenedStore, PartitionCount, StoreLocation, open};
pub use shared_store::SharedStore;
