//! The files of runs, a limited number of them open.
//!
//! A process may open a limited number of files, and a large store may have more runs than that, so
//! files that were not used recently are closed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
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
    files: HashMap<RunNo, (Arc<File>, u64), IdHash>,
    uses: u64,
}

impl RunFiles {
    pub(crate) fn new(dir: PathBuf, open_max: usize) -> Self {
        Self { dir, open_max: allowed(open_max), open: Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn path(&self, no: RunNo) -> PathBuf {
        self.dir.join(run_name(no))
    }

    /// The open file of a run.
    pub(crate) fn file(&self, no: RunNo) -> Result<Arc<File>, StorageFault> {
        if let Some(file) = self.cached(no) {
            return Ok(file);
        }
        let path = self.path(no);
        let file = open_untimed(&path).map_err(|source| StorageFault::io("open", &path, source))?;
        let file = Arc::new(file);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.files.len() >= self.open_max {
            open.close_half();
        }
        let used = open.uses;
        open.files.insert(no, (Arc::clone(&file), used));
        Ok(file)
    }

    fn cached(&self, no: RunNo) -> Option<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.uses += 1;
        let uses = open.uses;
        let (file, used) = open.files.get_mut(&no)?;
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
        let mut bytes = vec![0; length];
        let file = self.file(no)?;
        self.read_into(&file, no, offset, &mut bytes)?;
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
        file.read_exact_at(bytes, offset).map_err(|source| {
            let path = self.path(no);
            if source.kind() == std::io::ErrorKind::UnexpectedEof {
                StorageFault::damaged(&path, offset, "the file is cut short")
            } else {
                StorageFault::io("read", &path, source)
            }
        })
    }

    /// Removes the file of a run, if it exists.
    pub(crate) fn remove(&self, no: RunNo) -> Result<(), StorageFault> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.files.remove(&no);
        drop(open);
        let path = self.path(no);
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

/// The name of a run's file.
fn run_name(no: RunNo) -> String {
    format!("{:016x}.run", no.0)
}

/// The number of a run, from the name of its file.
pub(crate) fn run_no_of(name: &str) -> Option<RunNo> {
    let digits = name.strip_suffix(".run").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(RunNo)
}
