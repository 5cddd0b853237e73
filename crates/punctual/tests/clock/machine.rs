//! A broker on a machine whose clock a test sets while it runs: libfaketime answers in the place of the wall clock, and of that alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use tempfile::TempDir;

use crate::server::{Caller, Server};

const NEEDED: &str = "libfaketime is needed (apt-get install -y faketime)";

/// The broker believes that this is the machine's clock.
pub(crate) struct Machine {
    pub(crate) caller: Caller,
    server: Option<Server>,
    pid: u32,
    clock: PathBuf,
    dir: TempDir,
}

impl Machine {
    /// A broker on an empty store, with the right time.
    pub(crate) fn start() -> Self {
        Self::start_on(tempfile::tempdir().unwrap(), "+0")
    }

    /// A broker on a store that may be there, with a clock that is so many seconds off.
    pub(crate) fn start_on(dir: TempDir, offset: &str) -> Self {
        let clock = dir.path().join("clock");
        set(&clock, offset);
        let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
        command
            .env("LD_PRELOAD", library())
            .env("FAKETIME_TIMESTAMP_FILE", &clock)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let (server, caller) = Server::launch(command, &dir.path().join("data"));
        let pid = server.pid();
        let caller = caller.expect("it gets ready");
        Self { caller, server: Some(server), pid, clock, dir }
    }

    /// Sets the clock so many seconds off the right time.
    pub(crate) fn set(&self, offset: &str) {
        set(&self.clock, offset);
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs until it is stopped")
    }

    /// Stops it in good order; its store.
    pub(crate) fn stop(mut self) -> TempDir {
        let server = self.server.take().expect("it runs until it is stopped");
        server.signal("-TERM");
        let (status, said) = server.end();
        assert!(status.success(), "{status}\n{said}");
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.server.take());
        // A process that is killed leaves these, and the next one with its number would stumble over them.
        for name in [format!("faketime_shm_{}", self.pid), format!("sem.faketime_sem_{}", self.pid)]
        {
            let _ = fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}

fn set(clock: &Path, offset: &str) {
    let new = clock.with_extension("new");
    fs::write(&new, format!("{offset}\n")).unwrap();
    // It is read at any moment: whole, or as it was.
    fs::rename(&new, clock).unwrap();
}

/// Where the library is, on whatever machine.
fn library() -> PathBuf {
    let path = format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", env::consts::ARCH);
    let path = PathBuf::from(path);
    assert!(path.exists(), "{NEEDED}: there is no {}", path.display());
    path
}
