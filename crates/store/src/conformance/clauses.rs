//! The clauses of the contracts, one function each, grouped by subject.
//!
//! A clause takes a [`StoreUnderTest`](super::StoreUnderTest), opens an empty store and panics if
//! the store breaks the rule. `conformance.rs` lists every clause for the macros.

pub mod due_counts;
pub mod durability;
pub mod fires;
pub mod leases;
pub mod lists;
pub mod membership;
pub mod namespaces;
pub mod order;
pub mod ownership;
pub mod redrive;
pub mod retention;
pub mod settlement;
pub mod values;
pub mod writes;
