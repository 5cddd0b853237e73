//! What goes wrong with a journal: why it refuses, and what it cut off.
//!
//! One variant per thing that can be done about it. Not here: which bytes are damage and which a torn tail (`scan`).

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CommitNo;
use super::options::{FILE_BYTES_MAX, FILE_BYTES_MIN};

/// Why the journal does not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// The file system said no while opening or closing.
    #[error("cannot {action} {}: {source}", file.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        file: PathBuf,
        /// What it said.
        source: Arc<io::Error>,
    },
    /// Something that was durable is not as it was. Never repaired, never skipped.
    #[error(
        "{} is damaged at byte {offset}{}: {what}; restore it from a copy",
        file.display(),
        commit.map_or(String::new(), |commit| format!(" ({commit})"))
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where the good part ends.
        offset: u64,
        /// The first commit that cannot be read, if that is known.
        commit: Option<CommitNo>,
        /// What is wrong.
        what: String,
    },
    /// A file between two others is not there.
    #[error("{} is missing, though later files are there", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
    },
    /// The journal begins after the checkpoint ends.
    #[error("the checkpoint ends with {checkpoint}, but the journal begins with {first}")]
    Gap {
        /// Where the checkpoint ends.
        checkpoint: CommitNo,
        /// Where the journal begins.
        first: CommitNo,
    },
    /// The journal ends before a commit that was durable once.
    #[error("the journal stepped back: it ends with {last}, but {checkpoint} was durable")]
    SteppedBack {
        /// What was durable, by the checkpoint or the closing mark.
        checkpoint: CommitNo,
        /// The last commit that is there.
        last: CommitNo,
    },
    /// A file that is not this journal's.
    #[error("{} does not belong here: {what}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// How that shows.
        what: String,
    },
    /// A file of a format that this version does not read.
    #[error("{} has format {found}, this version reads {supported}", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// Ours.
        supported: u32,
    },
    /// Options out of bounds.
    #[error(
        "journal files of {file_bytes} bytes: allowed is {FILE_BYTES_MIN} to {FILE_BYTES_MAX}, in steps of 8"
    )]
    Options {
        /// What was asked for.
        file_bytes: u64,
    },
    /// The store could not take a commit back.
    #[error("{commit} cannot be replayed: {source}")]
    Replay {
        /// Which.
        commit: CommitNo,
        /// Why.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// No room. Not written; try again when there is room.
    #[error("no room for the journal: {why}")]
    Full {
        /// What the file system said.
        why: Arc<str>,
    },
    /// Not durable and never will be: the process has to end and open the journal anew.
    #[error("the journal is broken: {why}")]
    Broken {
        /// What happened.
        why: Arc<str>,
    },
    /// The queue is full (only from `try_append`).
    #[error("too many commits are waiting for the journal")]
    Busy,
    /// More than a commit may have.
    #[error("a commit of {bytes} bytes: at most {bytes_max} are allowed")]
    TooLarge {
        /// What was asked for.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
    /// ClosingMark, or about to be.
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
    /// The first commit that is not there.
    pub commit: CommitNo,
    /// Bytes from the first bad one to the end of the last frame that could be recognised.
    pub bytes: u64,
    /// Frames that could be recognised, whole or not.
    pub commits: u64,
    /// How it shows.
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

/// How a torn tail shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DroppedWhy {
    /// Frames of the last group are there, but not all of them are whole.
    TornGroup,
    /// Where the end should be stands something that is no frame.
    BadBytes,
    /// The file is shorter than it was made.
    FileCut {
        /// By how much.
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
