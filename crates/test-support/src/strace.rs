//! Faults at system calls of the real binary: strace makes the first sync of a thread fail with
//! EIO, or kills the process at a call.
//!
//! Needs strace and the right to trace.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::broker::punctual_binary;
use crate::wait::WAIT_MAX;

/// Every system call that makes bytes durable.
const SYNCS: &str = "fsync,fdatasync,sync_file_range,syncfs,msync";
const NEEDED: &str = "strace and the right to trace are needed \
                      (apt-get install -y strace; --cap-add SYS_PTRACE in a container)";

/// Only the first sync fails, as in the kernel: the next one succeeds, and must not be trusted.
fn inject() -> [String; 4] {
    let syncs = format!("trace={SYNCS}");
    ["-e".to_owned(), syncs, "-e".to_owned(), format!("inject={SYNCS}:error=EIO:when=1")]
}

/// Returns a command that runs the binary; in each of its threads the first sync fails.
pub fn with_failing_syncs(log: &Path) -> Command {
    assert!(Command::new("strace").arg("-V").output().is_ok(), "{NEEDED}");
    let mut command = Command::new("strace");
    command.args(["-f", "-ttt", "-o"]).arg(log).args(inject());
    command.arg(punctual_binary());
    command
}

/// Returns a command that runs the binary; it is killed when a thread makes this call for the n-th
/// time.
pub fn with_kill_at(call: &str, n: usize) -> Command {
    assert!(Command::new("strace").arg("-V").output().is_ok(), "{NEEDED}");
    let mut command = Command::new("strace");
    // -D: the broker is the child of this process, and strace its grandchild.
    command.args(["-D", "-f", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    command.args(["-e", &format!("inject={call}:signal=KILL:when={n}")]);
    command.arg(punctual_binary());
    command
}

/// strace attached to one thread of a running broker.
pub struct Tracer {
    child: Child,
    dir: TempDir,
}

impl Tracer {
    /// Makes the next sync of a thread fail.
    pub fn fail_next_sync(pid: u32, thread_name: &str) -> Self {
        let thread_id = thread_of(pid, thread_name);
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("strace")
            .args(["-ttt", "-o"])
            .arg(dir.path().join("log"))
            .args(inject())
            .args(["-p", &thread_id])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{NEEDED}: {error}"));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (attached, first_line) = channel();
        thread::spawn(move || {
            let first = lines.next().and_then(Result::ok).unwrap_or_default();
            let _ = attached.send(first);
            for _ in lines {}
        });
        let first = first_line.recv_timeout(WAIT_MAX).unwrap_or_default();
        assert!(first.contains("attached"), "{NEEDED}: {first}");
        Self { child, dir }
    }

    /// Waits for the end of the traced thread. Returns when the sync failed, in milliseconds.
    pub fn failed_at_millis(mut self) -> u128 {
        self.child.wait().unwrap();
        failed_at_millis(&self.dir.path().join("log")).expect("a sync was made to fail")
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns when the first call failed, by a log of strace.
pub fn failed_at_millis(log: &Path) -> Option<u128> {
    let text = fs::read_to_string(log).unwrap();
    let line = text.lines().find(|line| line.contains("INJECTED"))?;
    let seconds = line
        .split_whitespace()
        .find_map(|word| word.contains('.').then(|| word.parse::<f64>().ok()).flatten());
    Some(Duration::from_secs_f64(seconds.expect("-ttt prints the time")).as_millis())
}

fn thread_of(pid: u32, name: &str) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let paths = tasks.map(|entry| entry.unwrap().path());
    // The kernel keeps 15 bytes of a thread's name.
    let short = &name[..name.len().min(15)];
    let named = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == short)
    };
    let path = paths.into_iter().find(named).unwrap_or_else(|| panic!("no thread {name}"));
    path.file_name().unwrap().to_str().unwrap().to_owned()
}
