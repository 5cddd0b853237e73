//! The embedded store: a journal, a timeline kept in sorted runs, and a catalog.
//!
//! In: the calls of the two contracts, [`TaskStore`](punctual_store::TaskStore) and
//! [`LeaseStore`](punctual_store::LeaseStore). Out: their answers, durable on one machine.
//!
//! # How it works
//! A batch becomes one frame (`admit`, `frame`) and goes into the **journal**, where one fsync answers all who waited. Once
//! durable, `StoreState::apply` takes it in, and only then is the caller answered. Replay at opening is the same
//! function over the same bytes, so memory is always a prefix of what is durable.
//!
//! Tasks stand in the **buffer**, in the order in which they are due. When it is full, a **checkpoint** writes it as **runs**: sorted files, one per
//! slice of time, that never change. What ends in a run is a bit beside it; a run whose bits are all set is unlinked. There is no key per task and no
//! index by id: an id says when its task was due, so there is one key to look for, in the few runs of that slice whose range of
//! sequence numbers has it (`timeline`, `fetch`).
//!
//! Moving a task later writes only a **relocation**: where its entry is, and when it is really due. The entry itself is filed
//! anew when loading comes to it (`load`). Relocations, names, paused tasks, dead letters, counts, leases and the list of runs are rows of the
//! **catalog** (fjall); between checkpoints what changed of them is in memory, in `layers`.
//!
//! # What always holds
//! - A checkpoint is: run files, synced; one batch of the catalog with the commit number; then the journal may go, then old files.
//!   A crash leaves the old list or the new one.
//! - Applying a commit touches no disk. What it would have to look up is noted and found by the background (`resolve`).
//! - One background thread writes, merges and sets bits, so none of these sees another half-way.
//! - Every byte that is used was checked against its sum; damage is named and refused, never passed over.
//! - Nobody holds the lock of the state while reading or writing the disk.
//!
//! # Map
//! writing: `store` → `admit` → `frame` → `journal` → `state` (`buffer`, `relocation`, `names`, `order`, `history`) · to disk: `background` → `checkpoint`, `resolve`,
//! `rewrite` → `run`, `catalog` · reading: `load`, `list` (over `merge`), `fetch`, `find`, `letters` · around it: `directory`, `open`, `check`, `stats`.

mod catalog;
mod checkpoint;
mod fault;
mod inventory;
mod journal;
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

pub use journal::{CommitNo, Dropped, DroppedWhy, JournalError, JournalStats};
pub use open::OpenReport;
pub use open::check::{CheckReport, check};
pub use open::directory::EmbeddedOpenError;
pub use options::EmbeddedOptions;
pub use stats::{StoreStats, stats};
pub use store::EmbeddedStore;
