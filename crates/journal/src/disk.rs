//! The system calls of the journal. Nothing is decided here.
//!
//! Tests inject faults here, under `cfg(test)`: a unit test has no other way to get a full disk or
//! a failing fsync.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Zeros are written and synced in steps of this size, so that filling a file in the background
/// delays a commit by one step at most.
const ZERO_STEP_BYTES: usize = 1 << 20;
/// IOV_MAX on Linux.
const SLICES_MAX: usize = 1024;

/// The disk as one journal sees it.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    pub(super) faults: std::sync::Arc<faults::DiskFaults>,
}

impl Disk {
    /// Writes all slices at `offset`. After an error any part of them may be in the file.
    pub(super) fn write_at(
        &self,
        file: &File,
        mut slices: &mut [IoSlice<'_>],
        mut offset: u64,
    ) -> io::Result<()> {
        // Empty slices would make a complete write look like no progress.
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let some = &slices[..slices.len().min(SLICES_MAX)];
            #[cfg(test)]
            self.faults.write(file, some, offset)?;
            match rustix::io::pwritev(file, some, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut slices, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Makes the bytes durable, and the length if it changed.
    pub(super) fn sync_data(&self, file: &File) -> io::Result<()> {
        #[cfg(test)]
        self.faults.sync()?;
        file.sync_data()
    }

    /// Makes file names durable.
    pub(super) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        #[cfg(test)]
        self.faults.sync()?;
        File::open(dir)?.sync_all()
    }

    pub(super) fn create(&self, path: &Path) -> io::Result<File> {
        File::options().read(true).write(true).create(true).truncate(true).open(path)
    }

    pub(super) fn open_for_reading(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        File::options().read(true).write(true).open(path)
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Removes a file, if it exists.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Bytes that this process may still write in the file system of `dir`.
    pub(super) fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        #[cfg(test)]
        if self.faults.no_new_files() {
            return Ok(0);
        }
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Writes zeros in `from..to` and makes them durable. Written, not just reserved: a reserved
    /// block is turned into a written one at its first use, which costs that commit a second write.
    pub(super) fn fill(&self, file: &File, from: u64, to: u64) -> io::Result<()> {
        let zeros = vec![0; ZERO_STEP_BYTES];
        let mut at = from;
        while at < to {
            let step = (to - at).min(zeros.len() as u64);
            let zeros = &zeros[..usize::try_from(step).expect("at most one step")];
            self.write_at(file, &mut [IoSlice::new(zeros)], at)?;
            self.sync_data(file)?;
            at += step;
        }
        self.sync_data(file)
    }

    /// Reserves the blocks of a new file and makes its length durable. The file reads as zeros.
    pub(super) fn preallocate(&self, file: &File, length: u64) -> io::Result<()> {
        #[cfg(test)]
        self.faults.write(file, &[], 0)?;
        match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length) {
            Ok(()) => self.sync_data(file),
            // Not every file system can reserve blocks.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                self.fill(file, 0, length)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads at most `length` bytes at `offset`.
    pub(super) fn read_at(&self, file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

/// Whether an error means that the disk is full, and not that it is failing.
pub(super) fn means_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
pub(super) mod faults {
    use std::fs::File;
    use std::io::{self, IoSlice};
    use std::os::unix::fs::FileExt;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

    /// What fails next. Counts are in calls; a negative count means never.
    #[derive(Debug)]
    pub(crate) struct DiskFaults {
        /// Writes until the disk is full. It stays full until reset.
        pub(crate) writes_until_full: AtomicI64,
        /// How many bytes of the failing write still reach the file.
        pub(crate) bytes_before_full: AtomicI64,
        /// Whether only one write fails.
        pub(crate) full_once: AtomicBool,
        /// The file system reports that it has no free block.
        pub(crate) no_new_files: AtomicBool,
        /// While a test holds this lock, the file system does not report its free space.
        pub(crate) asking: Mutex<()>,
        /// Syncs until one fails.
        pub(crate) syncs_until_failure: AtomicI64,
    }

    impl Default for DiskFaults {
        fn default() -> Self {
            Self {
                writes_until_full: AtomicI64::new(-1),
                bytes_before_full: AtomicI64::new(0),
                full_once: AtomicBool::new(false),
                no_new_files: AtomicBool::new(false),
                asking: Mutex::new(()),
                syncs_until_failure: AtomicI64::new(-1),
            }
        }
    }

    impl DiskFaults {
        pub(super) fn no_new_files(&self) -> bool {
            let _asked = self.asking.lock().expect("no test panics with it");
            self.no_new_files.load(Ordering::SeqCst)
        }

        pub(super) fn write(&self, file: &File, s: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
            match self.writes_until_full.load(Ordering::SeqCst) {
                n if n < 0 => Ok(()),
                0 => {
                    let bytes: Vec<u8> = s.iter().flat_map(|s| s.iter().copied()).collect();
                    let some = self.bytes_before_full.load(Ordering::SeqCst);
                    let some = usize::try_from(some).unwrap_or(0).min(bytes.len());
                    file.write_all_at(&bytes[..some], offset)?;
                    if self.full_once.load(Ordering::SeqCst) {
                        self.writes_until_full.store(-1, Ordering::SeqCst);
                    }
                    Err(rustix::io::Errno::NOSPC.into())
                }
                n => {
                    self.writes_until_full.store(n - 1, Ordering::SeqCst);
                    Ok(())
                }
            }
        }

        pub(super) fn sync(&self) -> io::Result<()> {
            match self.syncs_until_failure.load(Ordering::SeqCst) {
                n if n < 0 => Ok(()),
                0 => {
                    // The kernel reports a failure once; the next fsync would succeed.
                    self.syncs_until_failure.store(-1, Ordering::SeqCst);
                    Err(rustix::io::Errno::IO.into())
                }
                n => {
                    self.syncs_until_failure.store(n - 1, Ordering::SeqCst);
                    Ok(())
                }
            }
        }
    }
}
