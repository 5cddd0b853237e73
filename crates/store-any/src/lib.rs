//! One type for every kind of store: [`AnyStore`] is a memory, an embedded or a Redis store.
//!
//! The set is closed, so it is an enum: callers stay free of type parameters. [`open`] turns a
//! [`StoreLocation`] into an open store. The contracts are those of `punctual-store`; this crate
//! only passes calls on.

mod any_store;
mod open;

pub use any_store::AnyStore;
pub use open::{OpenStoreError, OpenedStore, PartitionCount, StoreLocation, open};
