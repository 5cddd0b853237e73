//! A commit: its number, the entry that a caller appends, and the callback that gets it at opening.
//!
//! To the journal, a commit is bytes. `writer` gives out the numbers.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// The number of a commit. The first is 1; 0 is before all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitNo(pub u64);

impl fmt::Display for CommitNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "commit {}", self.0)
    }
}

/// What a commit does to the space on disk in the long run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Adds tasks. Refused as `Full` as soon as no further file can be created.
    Grow,
    /// Settles, cancels, touches: may use the reserve when the disk is full.
    Shrink,
}

/// One commit, and what the store wants back when it is durable.
#[derive(Debug)]
pub struct JournalEntry<T> {
    /// The bytes of the commit, which `open` reads back. May be empty.
    pub bytes: Bytes,
    /// Whether it is refused early on a full disk.
    pub class: Class,
    /// Passed to `on_durable`.
    pub item: T,
}

/// The error of a `replay` callback.
pub type ReplayError = Arc<dyn Error + Send + Sync>;
/// Gets one commit at opening.
pub type Replay<'a> = dyn FnMut(CommitNo, Bytes) -> Result<(), ReplayError> + 'a;
