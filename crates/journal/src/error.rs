//! Errors of the journal, and the description of a torn tail.
//!
//! There is one variant per thing that can be done about it. `scan` decides which bytes are damage
//! and which are a torn tail.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::commit::CommitNo;
use super::options::{FILE_BYTES_MAX, FILE_BYTES_MIN};

/// Why a call of the journal failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// The file system returned an error while opening or closing.
    #[error("cannot {action} {}: {source}", file.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// The error of the file system.
        source: Arc<io::Error>,
    },
    /// Bytes that were durable have changed. Never repaired, never skipped.
    #[error(
        "{} is damaged at byte {offset}{}: {what}; restore it from a copy",
        file.display(),
        commit.map_or(String::new(), |commit| format!(" ({commit})"))
    )]
    Damaged {
        /// The damaged file.
        file: PathBuf,
        /// Where the good part ends.
        offset: u64,
        /// The first commit that cannot be read, if that is known.
        commit: Option<CommitNo>,
        /// What is wrong.
        what: String,
    },
    /// A file between two others is missing.
    #[error("{} is missing, but later files exist", file.display())]
    Missing {
        /// The missing file.
        file: PathBuf,
    },
    /// The journal begins after the end of the checkpoint.
    #[error("the checkpoint ends with {checkpoint}, but the journal begins with {first}")]
    Gap {
        /// The last commit of the checkpoint.
        checkpoint: CommitNo,
        /// The first commit of the journal.
        first: CommitNo,
    },
    /// The journal ends before a commit that was durable once.
    #[error("the journal lost commits: it ends with {last}, but {checkpoint} was durable")]
    SteppedBack {
        /// The commit that was durable, according to the checkpoint or the closing mark.
        checkpoint: CommitNo,
        /// The last commit in the journal.
        last: CommitNo,
    },
    /// A file that does not belong to this journal.
    #[error("{} does not belong here: {what}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// Why it does not belong here.
        what: String,
    },
    /// A file of a format that this version does not read.
    #[error("{} has format {found}, this version reads {supported}", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// The format of the file.
        found: u32,
        /// The format that this version reads.
        supported: u32,
    },
    /// Options out of range.
    #[error(
        "journal files of {file_bytes} bytes are not allowed: use {FILE_BYTES_MIN} to \
         {FILE_BYTES_MAX}, in steps of 8"
    )]
    Options {
        /// The size that was asked for.
        file_bytes: u64,
    },
    /// The store could not apply a commit at opening.
    #[error("{commit} cannot be replayed: {source}")]
    Replay {
        /// The commit that failed.
        commit: CommitNo,
        /// The error of the store.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The disk is full. The entry was not written; try again when there is space.
    #[error("the disk is full: {why}")]
    Full {
        /// The error of the file system.
        why: Arc<str>,
    },
    /// The entry is not durable and never will be: the process has to end and open the journal
    /// again.
    #[error("the journal is broken: {why}")]
    Broken {
        /// What happened.
        why: Arc<str>,
    },
    /// The queue is full.
    #[error("too many commits are waiting for the journal")]
    Busy,
    /// The commit is larger than allowed.
    #[error("a commit has {bytes} bytes, at most {bytes_max} are allowed")]
    TooLarge {
        /// The size of the commit.
        bytes: u64,
        /// The largest size that is allowed.
        bytes_max: u64,
    },
    /// The journal is closed, or about to be.
    #[error("the journal is closed")]
    Closed,
}

impl JournalError {
    pub(super) fn io(action: &'static str, file: &Path, source: io::Error) -> Self {
        Self::Io { action, file: file.to_owned(), source: Arc::new(source) }
    }
}

/// A torn tail: where it was and how much of it was recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// The file it was in.
    pub file: PathBuf,
    /// Where in the file it began.
    pub offset: u64,
    /// The first commit that is missing.
    pub commit: CommitNo,
    /// Bytes from the first bad one to the end of the last frame that was recognised.
    pub bytes: u64,
    /// Frames that were recognised, complete or not.
    pub commits: u64,
    /// How the tail is torn.
    pub why: DroppedWhy,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, commit, bytes, commits, why } = self;
        let file = file.display();
        write!(f, "{why}: {file} ends before {commit} at byte {offset}; ")?;
        write!(f, "{bytes} bytes with {commits} recognisable commits dropped")
    }
}

/// How a tail is torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DroppedWhy {
    /// Frames of the last group are there, but not all of them are complete.
    TornGroup,
    /// There is neither a frame nor the end marker.
    BadBytes,
    /// The file is shorter than it was made.
    FileCut {
        /// How many bytes are missing.
        bytes_missing: u64,
    },
}

impl fmt::Display for DroppedWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TornGroup => write!(f, "the last group is torn"),
            Self::BadBytes => write!(f, "bad bytes at the end"),
            Self::FileCut { bytes_missing } => write!(f, "file cut short by {bytes_missing} bytes"),
        }
    }
}
