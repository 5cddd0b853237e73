//! The index of a run of history: in which order its fires ended, and which key each had.
//!
//! An index is written beside its run, is read to list ended fires, and is deleted with its run. It
//! has two orders (`entry`): the fires of a namespace by how and when they ended, and by key. Both
//! name a record by its ordinal in the run, so no order repeats a record.
//! Everything in an index follows from the records (`build`). An index that is missing or damaged
//! is built again from them, and damage of an index never hides a fire.

mod build;
pub(crate) mod entry;
mod filter;
mod format;
mod reader;
#[cfg(test)]
mod tests;

pub(crate) use filter::{fire_hash, key_hash};
pub(crate) use reader::{FireIndex, IndexCursor};
