//! The clock of a broker's machine, which a test sets while it runs: libfaketime answers in the place of the wall clock, and of that alone.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};

/// A clock that one broker at a time goes by.
pub(crate) struct Clock {
    file: PathBuf,
    library: PathBuf,
    one: PathBuf,
}

impl Clock {
    /// A clock so many seconds off the right time, kept in a folder.
    pub(crate) fn new(dir: &Path, offset: &str) -> Self {
        let arch = std::env::consts::ARCH;
        let library = format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1");
        let library = PathBuf::from(library);
        let missing = "libfaketime is needed (apt-get install -y faketime): there is no";
        assert!(library.exists(), "{missing} {}", library.display());
        let clock = Self { file: dir.join("clock"), library, one: "1".into() };
        clock.set(offset);
        clock
    }

    /// Sets it so many seconds off the right time.
    pub(crate) fn set(&self, offset: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{offset}\n")).unwrap();
        // It is read at any moment: whole, or as it was.
        fs::rename(&new, &self.file).unwrap();
    }

    /// What a broker that goes by it has in its environment.
    pub(crate) fn env(&self) -> [(&str, &Path); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME_TIMESTAMP_FILE", &self.file),
            ("FAKETIME_NO_CACHE", &self.one),
            ("FAKETIME_DONT_FAKE_MONOTONIC", &self.one),
        ]
    }

    /// A process that is killed leaves these, and the next one with its number would stumble over them.
    pub(crate) fn forget(pid: u32) {
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            let _ = fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}
