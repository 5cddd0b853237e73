//! Runs: files of entries in order, written once, read often, dropped whole.
//!
//! In: entries in the order of their keys. Out: a file; and from it entries from any key on, or one by its key.
//! Invariant: a run never changes. What has ended in it is a bit beside it (`bits`), and when all bits are
//! set the file goes.
//! Not here: which runs there are (`timeline`, `history`) and when they are written (`checkpoint`).

mod bits;
mod cursor;
mod files;
pub(crate) mod format;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use bits::EndedBits;
pub(crate) use cursor::{RunCursor, RunEntry};
pub(crate) use files::{RunFiles, run_no_of};
pub(crate) use format::{RunNo, number_of};
pub(crate) use reader::{Generation, SortedRun};
pub(crate) use writer::{RunWriter, WrittenRun};
