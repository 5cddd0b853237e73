//! The embedded store: a journal, a timeline kept in sorted runs, and a catalog.
//!
//! It implements [`TaskStore`](punctual_store::TaskStore) and
//! [`LeaseStore`](punctual_store::LeaseStore) for one process on one machine. Every write that it
//! answers is durable.
//!
//! # How it works
//! A batch becomes the bytes of one commit (`write`) and is appended to the **journal**, where one
//! fsync serves all commits that wait. Once the commit is durable, `StoreState::apply` changes the
//! memory, and then the store answers. Opening replays the journal through the same function, so
//! memory is always a prefix of what is durable.
//!
//! Tasks are in the **buffer**, in the order in which they are due. When the buffer is full, a
//! **checkpoint** writes it as **runs**: sorted files, one per slice of time, that never change. A
//! task that ends in a run sets a bit in memory and in the catalog; a run whose bits are all set is
//! deleted. There is no index by id: an id contains the time at which its task was due when it was
//! made, so there is one key to search for, in the few runs of that slice whose range of sequence
//! numbers includes it (`state::timeline`, `read::fetch`).
//!
//! Postponing a task writes only a **relocation**: where the entry of the task is, and when the
//! task is really due. `read::load` files the entry again, at its new time, when it comes to it.
//! Relocations, names, paused tasks, dead letters, counts, leases and the list of runs are rows of
//! the **catalog** (fjall). Rows that changed since the last checkpoint are in memory
//! (`state::layers`).
//!
//! # What always holds
//! - A checkpoint writes and syncs run files, then commits one batch of the catalog that contains
//!   the commit number, then releases journal files, then deletes old runs. A crash leaves the old
//!   list of runs or the new one.
//! - Applying a commit never touches the disk. Lookups that it would need are noted and done by the
//!   background thread (`checkpoint::resolve`).
//! - One background thread writes, merges and sets bits, so these never overlap.
//! - Every byte that is used was checked against its checksum. Damage is reported and refused,
//!   never skipped; a damaged index is built again from the records.
//! - No thread holds the lock of the state while it reads or writes the disk.
//!
//! # Map
//! - `store`, `store/leases`: the two contracts; `store_core`: what all parts share
//! - `write/`: `encode` (batch to commit), `commit` (the bytes of a commit)
//! - the crate `journal`: makes commits durable, in groups
//! - `state/`: everything in memory: `buffer`, `relocation`, `names`, `order`, `history`,
//!   `history_chunk`, `timeline`, `endings`, `partition`, `layers`
//! - `checkpoint/`: from memory to disk: `background` (the thread), `resolve` (bits of ended
//!   tasks), `rewrite` (merge runs), `rows` (catalog rows)
//! - `run/`, `fire_index/` and `catalog/`: the kinds of files that a checkpoint writes
//! - `read/`: `load`, `list`, `fetch`, `find`, `dead_letters`, `history`, `fires`; `merge` reads
//!   several runs
//! - `open/`: `directory` (format and lock), `modes` (who may read it), `check` (verify a closed
//!   store)
//! - `options`, `stats`, `inventory`, `fault`, `key`

mod catalog;
mod checkpoint;
mod fault;
mod fire_index;
#[cfg(test)]
mod golden;
mod inventory;
mod key;
mod open;
mod options;
mod read;
mod run;
mod state;
mod stats;
mod store;
mod store_core;
mod write;

pub use open::OpenReport;
pub use open::check::{CheckReport, check};
pub use open::directory::EmbeddedOpenError;
pub use open::modes::TightenedModes;
pub use options::EmbeddedOptions;
pub use punctual_journal::{CommitNo, Dropped, DroppedWhy, JournalError, JournalStats};
pub use stats::{StoreStats, stats};
pub use store::EmbeddedStore;
