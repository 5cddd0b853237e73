//! A machine clock that a test sets while a broker runs.
//!
//! libfaketime answers for the wall clock, and leaves the monotonic clock alone. The offset is in
//! a file that the library reads at every call.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::broker::{BrokerProcess, punctual_binary};
use crate::client::BrokerClient;

/// The clock of one broker at a time.
pub struct FakeClock {
    file: PathBuf,
    library: PathBuf,
    one: PathBuf,
}

impl FakeClock {
    /// Makes a clock that is `offset` seconds off the real time (`+0`, `-3600`). Its file is in
    /// `dir`.
    pub fn new(dir: &Path, offset: &str) -> Self {
        let arch = std::env::consts::ARCH;
        let library = format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1");
        let library = PathBuf::from(library);
        let missing = "libfaketime is needed (apt-get install -y faketime): there is no";
        assert!(library.exists(), "{missing} {}", library.display());
        let clock = Self { file: dir.join("clock"), library, one: "1".into() };
        clock.set(offset);
        clock
    }

    /// Sets the clock `offset` seconds off the real time.
    pub fn set(&self, offset: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{offset}\n")).unwrap();
        // The file is read at any moment, and must be complete then.
        fs::rename(&new, &self.file).unwrap();
    }

    /// The environment variables of a broker that uses this clock.
    pub fn env(&self) -> [(&str, &Path); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME_TIMESTAMP_FILE", &self.file),
            ("FAKETIME_NO_CACHE", &self.one),
            ("FAKETIME_DONT_FAKE_MONOTONIC", &self.one),
        ]
    }

    /// Removes what the library of a killed process left in shared memory. A later process with
    /// the same id would fail on it.
    pub fn forget(pid: u32) {
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            let _ = fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}

/// A broker whose machine clock the test sets.
pub struct ClockedBroker {
    pub client: BrokerClient,
    process: Option<BrokerProcess>,
    pid: u32,
    clock: FakeClock,
    dir: TempDir,
}

impl ClockedBroker {
    /// Starts a broker on an empty store, with the right time.
    pub fn start() -> Self {
        Self::start_on(tempfile::tempdir().unwrap(), "+0")
    }

    /// Starts a broker on a store that may exist already, with a clock that is `offset` seconds
    /// off.
    pub fn start_on(dir: TempDir, offset: &str) -> Self {
        let clock = FakeClock::new(dir.path(), offset);
        let mut command = Command::new(punctual_binary());
        command.envs(clock.env());
        let (process, client) = BrokerProcess::launch(command, &dir.path().join("data"));
        let pid = process.pid();
        let client = client.expect("the broker gets ready");
        Self { client, process: Some(process), pid, clock, dir }
    }

    /// Sets the clock `offset` seconds off the real time.
    pub fn set(&self, offset: &str) {
        self.clock.set(offset);
    }

    pub fn process(&self) -> &BrokerProcess {
        self.process.as_ref().expect("runs until it is stopped")
    }

    /// Stops the broker with SIGTERM. Returns its store.
    pub fn stop(mut self) -> TempDir {
        let process = self.process.take().expect("runs until it is stopped");
        process.signal("-TERM");
        let (status, log) = process.end();
        assert!(status.success(), "{status}\n{log}");
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

impl Drop for ClockedBroker {
    fn drop(&mut self) {
        drop(self.process.take());
        FakeClock::forget(self.pid);
    }
}
