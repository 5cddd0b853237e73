//! Reading: tasks by time, by id and by key, dead letters and history.
//!
//! `load` returns what is due next, `list` pages through a filter, `fetch` reads tasks by id,
//! `find` answers which task a key names, and `fires` lists fires that have ended. `merge` reads
//! several runs in order. `due` has the counts of due tasks and lists series. Each read combines
//! memory with the disk, and never holds the lock of the state while it reads the disk.

pub(crate) mod dead_letters;
mod due;
pub(crate) mod fetch;
pub(crate) mod find;
pub(crate) mod fires;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod merge;
