//! Runs: files of sorted entries, written once and deleted as a whole.
//!
//! A run is read from a key on, or by key. It never changes: which of its entries have ended is a
//! bit per entry in memory and in the catalog (`bits`), and the file is deleted when all bits are
//! set.
//! `state::timeline` and `state::history` list the runs; `checkpoint` writes them.

mod bits;
mod cursor;
mod files;
pub(crate) mod format;
mod keys_cache;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use bits::EndedBits;
pub(crate) use cursor::{RunCursor, RunEntry};
pub(crate) use files::{RunFiles, RunPart, run_part_of};
pub(crate) use format::{RunNo, number_of};
pub(crate) use keys_cache::{BlockKeys, KeysCache};
pub(crate) use reader::{Generation, OpenRun, RunBlock, SortedRun};
pub(crate) use writer::{RunWriter, WrittenRun};
