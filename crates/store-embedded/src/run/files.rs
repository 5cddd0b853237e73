//! The files of runs and of their indexes, a limited number of them open.
//!
//! A process may open a limited number of files, and a large store may have more runs than that, so
//! files that were not used recently are closed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::RunNo;
use crate::fault::StorageFault;
use crate::state::layers::IdHash;

/// Open files that are left to the rest of the process.
const OTHERS_MIN: u64 = 512;

/// The directory of runs.
#[derive(Debug)]
pub(crate) struct RunFiles {
    dir: PathBuf,
    open_max: usize,
    open: Mutex<OpenFiles>,
}

#[derive(Debug, Default)]
struct OpenFiles {
    files: HashMap<(RunNo, RunPart), (Arc<File>, u64), IdHash>,
    uses: u64,
}

/// The files of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RunPart {
    Entries,
    /// The index of a run of history (`fire_index`).
    Index,
}

impl RunPart {
    const fn extension(self) -> &'static str {
        match self {
            Self::Entries => "run",
            Self::Index => "idx",
        }
    }
}

impl RunFiles {
    pub(crate) fn new(dir: PathBuf, open_max: usize) -> Self {
        Self { dir, open_max: allowed(open_max), open: Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn path(&self, no: RunNo) -> PathBuf {
        self.path_of(no, RunPart::Entries)
    }

    pub(crate) fn index_path(&self, no: RunNo) -> PathBuf {
        self.path_of(no, RunPart::Index)
    }

    fn path_of(&self, no: RunNo, part: RunPart) -> PathBuf {
        self.dir.join(format!("{:016x}.{}", no.0, part.extension()))
    }

    /// The open file of a run.
    pub(crate) fn file(&self, no: RunNo) -> Result<Arc<File>, StorageFault> {
        self.file_of(no, RunPart::Entries)
    }

    fn file_of(&self, no: RunNo, part: RunPart) -> Result<Arc<File>, StorageFault> {
        if let Some(file) = self.cached(no, part) {
            return Ok(file);
        }
        let path = self.path_of(no, part);
        let file = open_untimed(&path).map_err(|source| StorageFault::io("open", &path, source))?;
        let file = Arc::new(file);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.files.len() >= self.open_max {
            open.close_half();
        }
        let used = open.uses;
        open.files.insert((no, part), (Arc::clone(&file), used));
        Ok(file)
    }

    fn cached(&self, no: RunNo, part: RunPart) -> Option<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.uses += 1;
        let uses = open.uses;
        let (file, used) = open.files.get_mut(&(no, part))?;
        *used = uses;
        Some(Arc::clone(file))
    }

    /// Reads bytes of a run; a short read is damage.
    pub(crate) fn read(
        &self,
        no: RunNo,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, StorageFault> {
        self.read_part(no, RunPart::Entries, offset, length)
    }

    /// Reads bytes of the index of a run; a short read is damage.
    pub(crate) fn read_index(
        &self,
        no: RunNo,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, StorageFault> {
        self.read_part(no, RunPart::Index, offset, length)
    }

    fn read_part(
        &self,
        no: RunNo,
        part: RunPart,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, StorageFault> {
        let mut bytes = vec![0; length];
        let file = self.file_of(no, part)?;
        let read = file.read_exact_at(&mut bytes, offset);
        read.map_err(|source| read_fault(&self.path_of(no, part), offset, source))?;
        Ok(bytes)
    }

    /// The same from an open file, into existing memory.
    pub(crate) fn read_into(
        &self,
        file: &File,
        no: RunNo,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), StorageFault> {
        let read = file.read_exact_at(bytes, offset);
        read.map_err(|source| read_fault(&self.path(no), offset, source))
    }

    /// Writes the index of a run and syncs it. A file that is not finished is removed.
    pub(crate) fn write_index(&self, no: RunNo, bytes: &[u8]) -> Result<(), StorageFault> {
        let path = self.index_path(no);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(bytes)?;
            file.sync_data()
        };
        write().map_err(|source| {
            // A file that cannot be removed now is removed at the next opening.
            let _ = std::fs::remove_file(&path);
            StorageFault::io("write", &path, source)
        })
    }

    /// Removes the files of a run, if they exist.
    pub(crate) fn remove(&self, no: RunNo) -> Result<(), StorageFault> {
        self.remove_part(no, RunPart::Entries)?;
        self.remove_part(no, RunPart::Index)
    }

    /// Removes one file of a run, if it exists.
    pub(crate) fn remove_part(&self, no: RunNo, part: RunPart) -> Result<(), StorageFault> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.files.remove(&(no, part));
        drop(open);
        let path = self.path_of(no, part);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(StorageFault::io("remove", &path, source))
            }
            _ => Ok(()),
        }
    }

    /// Makes the names of new runs durable.
    pub(crate) fn sync_dir(&self) -> Result<(), StorageFault> {
        File::open(&self.dir)
            .and_then(|dir| dir.sync_all())
            .map_err(|source| StorageFault::io("sync", &self.dir, source))
    }
}

/// Opens a file without updating its access time; where that is not allowed, as usual.
fn open_untimed(path: &Path) -> std::io::Result<File> {
    let untimed = i32::try_from(OFlags::NOATIME.bits()).unwrap_or(0);
    let opened = OpenOptions::new().read(true).custom_flags(untimed).open(path);
    match opened {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => File::open(path),
        opened => opened,
    }
}

impl OpenFiles {
    fn close_half(&mut self) {
        let mut uses: Vec<u64> = self.files.values().map(|(_, used)| *used).collect();
        let middle = uses.len() / 2;
        let (_, middle, _) = uses.select_nth_unstable(middle);
        let middle = *middle;
        self.files.retain(|_, (_, used)| *used > middle);
    }
}

/// How many files the process may have open, at most `wanted`. Raises the soft limit of the process
/// if needed: 1,024 is a common default, and the hard limit is much higher.
fn allowed(wanted: usize) -> usize {
    let need = (wanted as u64).saturating_add(OTHERS_MIN);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means no limit.
    let current = match (current, maximum) {
        (Some(current), maximum) if current < need => {
            let more = maximum.map_or(need, |maximum| maximum.min(need));
            let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(more), maximum });
            // If it fails, fewer files stay open, which is only slower.
            if raised.is_ok() { more } else { current }
        }
        (Some(current), _) => current,
        (None, _) => need,
    };
    let left = current.saturating_sub(OTHERS_MIN).max(current / 2);
    usize::try_from(left).unwrap_or(usize::MAX).min(wanted).max(1)
}

fn read_fault(path: &Path, offset: u64, source: std::io::Error) -> StorageFault {
    if source.kind() == std::io::ErrorKind::UnexpectedEof {
        return StorageFault::damaged(path, offset, "the file is cut short");
    }
    StorageFault::io("read", path, source)
}

/// The number of a run and which of its files it is, from the name of the file.
pub(crate) fn run_part_of(name: &str) -> Option<(RunNo, RunPart)> {
    let (digits, extension) = name.split_once('.').filter(|(digits, _)| digits.len() == 16)?;
    let mut parts = [RunPart::Entries, RunPart::Index].into_iter();
    let part = parts.find(|part| part.extension() == extension)?;
    u64::from_str_radix(digits, 16).ok().map(|no| (RunNo(no), part))
}
