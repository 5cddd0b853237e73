//! The directory of a store: its format and its lock.
//!
//! A [`Directory`] holds the lock until it is dropped. The file `FORMAT` says what the directory
//! contains and never changes; the file `LOCK` is locked by an open store and names the process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use punctual_core::Partitions;
use punctual_journal::{JournalError, StoreId};
use rustix::fs::{FlockOperation, flock};

use crate::fault::StorageFault;
use crate::open::modes::{TightenedModes, create_private_dir, tighten};
use crate::options::EmbeddedOptions;

/// The format that this version reads and writes. Format 1 had no order of postponed and paused
/// tasks in the catalog.
const FORMAT_VERSION: u32 = 2;
/// What belongs to a store in its directory.
const ENTRIES: [&str; 5] = ["FORMAT", "LOCK", "journal", "runs", "catalog"];

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedOpenError {
    /// Another process has the store open, or this process already has.
    #[error("{} is already open: {holder}", dir.display())]
    Held {
        /// The directory of the store.
        dir: PathBuf,
        /// The process, as the lock file names it.
        holder: String,
    },
    /// An older or newer version wrote the store.
    #[error(
        "{} has store format {found}, this version of punctual reads {FORMAT_VERSION}",
        dir.display()
    )]
    Format {
        /// The directory of the store.
        dir: PathBuf,
        /// The format of the store.
        found: u32,
    },
    /// The directory contains something else.
    #[error("{} is not a store: {what}", dir.display())]
    NotAStore {
        /// The directory.
        dir: PathBuf,
        /// What was found, or is missing.
        what: String,
    },
    /// The store has another number of partitions.
    #[error("{} has {found} partitions, not {asked}; the number cannot change", dir.display())]
    Partitions {
        /// The directory of the store.
        dir: PathBuf,
        /// The partitions of the store.
        found: u16,
        /// The partitions that the caller expected.
        asked: u16,
    },
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file is damaged or missing, or the file system returned an error.
    #[error("{0}")]
    Damaged(String),
}

impl From<StorageFault> for EmbeddedOpenError {
    fn from(fault: StorageFault) -> Self {
        Self::Damaged(fault.to_string())
    }
}

/// A directory whose lock is held.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    pub(crate) store: StoreId,
    pub(crate) partitions: Partitions,
    /// The length of a near slice when the store was created. Runs are found by it, so it never
    /// changes.
    pub(crate) slice_millis: u64,
    pub(crate) tightened: TightenedModes,
    _lock: File,
}

impl Directory {
    /// Locks the directory, and creates a store if it is empty or does not exist.
    pub(crate) fn take(path: &Path, options: &EmbeddedOptions) -> Result<Self, EmbeddedOpenError> {
        make(path)?;
        let lock = lock(path)?;
        let tightened = tighten(path, &ENTRIES);
        let format = path.join("FORMAT");
        if !format.exists() {
            check_empty(path)?;
            let text = format_text(new_id()?, options.partitions, options.slice_millis());
            write_new(path, &format, text.as_bytes())
                .map_err(|e| StorageFault::io("write", &format, e))?;
        }
        let directory = Self { tightened, ..Self::read(path, lock)? };
        let (found, asked) = (directory.partitions.count(), options.partitions.count());
        if found != asked {
            let dir = path.to_owned();
            return Err(EmbeddedOpenError::Partitions { dir, found, asked });
        }
        Ok(directory)
    }

    /// Locks the directory of an existing store.
    pub(crate) fn take_existing(path: &Path) -> Result<Self, EmbeddedOpenError> {
        if !path.join("FORMAT").exists() {
            let what = "it has no FORMAT file".to_owned();
            let dir = path.to_owned();
            return Err(EmbeddedOpenError::NotAStore { dir, what });
        }
        Self::read(path, lock(path)?)
    }

    fn read(path: &Path, lock: File) -> Result<Self, EmbeddedOpenError> {
        let format = path.join("FORMAT");
        let text = fs::read_to_string(&format).map_err(|e| StorageFault::io("read", &format, e))?;
        let not_a_store = |what: &str| EmbeddedOpenError::NotAStore {
            dir: path.to_owned(),
            what: format!("its FORMAT file {what}"),
        };
        let field = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        };
        let version = field("punctual-store").and_then(|text| text.parse().ok());
        match version {
            Some(FORMAT_VERSION) => {}
            Some(found) => {
                let dir = path.to_owned();
                return Err(EmbeddedOpenError::Format { dir, found });
            }
            None => return Err(not_a_store("has no format version")),
        }
        let store = field("id").and_then(unhex).ok_or_else(|| not_a_store("has no id"))?;
        let partitions = field("partitions")
            .and_then(|text| Partitions::new(text.parse().ok()?).ok())
            .ok_or_else(|| not_a_store("has no number of partitions"))?;
        let slice_millis = field("slice")
            .and_then(|text| text.parse().ok())
            .filter(|millis| *millis > 0)
            .ok_or_else(|| not_a_store("has no slice length"))?;
        Ok(Self {
            path: path.to_owned(),
            store: StoreId(store),
            partitions,
            slice_millis,
            tightened: TightenedModes::default(),
            _lock: lock,
        })
    }

    /// The size of the disk that the directory is on.
    pub(crate) fn disk_bytes(&self) -> Result<u64, EmbeddedOpenError> {
        let disk = rustix::fs::statvfs(&self.path)
            .map_err(|errno| StorageFault::io("read the disk size of", &self.path, errno.into()))?;
        Ok(disk.f_blocks.saturating_mul(disk.f_frsize))
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.path.join("runs")
    }

    pub(crate) fn catalog(&self) -> PathBuf {
        self.path.join("catalog")
    }
}

/// The content of the file `FORMAT`.
fn format_text(id: [u8; 16], partitions: Partitions, slice_millis: u64) -> String {
    format!(
        "punctual-store {FORMAT_VERSION}\nid {}\npartitions {}\nslice {slice_millis}\n",
        hex(id),
        partitions.count(),
    )
}

fn make(path: &Path) -> Result<(), EmbeddedOpenError> {
    create_private_dir(path).map_err(|source| StorageFault::io("create", path, source))?;
    Ok(())
}

/// Locks a directory and writes the name of this process into the lock file. The system releases
/// the lock of a process that is killed.
fn lock(path: &Path) -> Result<File, EmbeddedOpenError> {
    let name = path.join("LOCK");
    let io = |source| StorageFault::io("open", &name, source);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&name)
        .map_err(io)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // If the name cannot be read, the error says "another process".
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => "another process".to_owned(),
                holder => holder.to_owned(),
            };
            let dir = path.to_owned();
            return Err(EmbeddedOpenError::Held { dir, holder });
        }
        Err(errno) => return Err(io(errno.into()).into()),
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let holder = format!("process {} on {}\n", std::process::id(), host.trim());
    file.set_len(0).map_err(io)?;
    file.write_all(holder.as_bytes()).map_err(io)?;
    Ok(file)
}

/// A store is created only in an empty directory, to catch a mistyped path.
fn check_empty(path: &Path) -> Result<(), EmbeddedOpenError> {
    let entries = fs::read_dir(path).map_err(|source| StorageFault::io("read", path, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| StorageFault::io("read", path, source))?;
        let name = entry.file_name();
        if name != "LOCK" && name != "FORMAT.new" && name != "lost+found" {
            let what = format!("it has no FORMAT file, but contains {}", name.display());
            let dir = path.to_owned();
            return Err(EmbeddedOpenError::NotAStore { dir, what });
        }
    }
    Ok(())
}

fn write_new(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    let mut file = File::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(dir)?.sync_all()
}

fn new_id() -> Result<[u8; 16], StorageFault> {
    let path = Path::new("/dev/urandom");
    let mut id = [0; 16];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut id))
        .map_err(|source| StorageFault::io("read", path, source))?;
    Ok(id)
}

fn hex(id: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(id))
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then_some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::assert_golden_text;

    #[test]
    fn the_format_file_has_the_text_of_format_2() {
        let id = *b"golden store id!";
        let text = format_text(id, Partitions::new(16).expect("a few"), 86_400_000);
        let golden = assert_golden_text("FORMAT", &text);
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("FORMAT"), golden).expect("written");
        let directory = Directory::take_existing(dir.path()).expect("a store");
        assert_eq!(directory.store, StoreId(id));
        assert_eq!(directory.partitions.count(), 16);
        assert_eq!(directory.slice_millis, 86_400_000);
    }
}
