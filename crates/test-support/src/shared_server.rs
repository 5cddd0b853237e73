//! Servers that all tests of a run share: starting one takes seconds, and a suite has a hundred
//! tests, each of which may be a process.
//!
//! The first test starts the servers; every test holds a shared lock on a file while it runs. A
//! keeper process, started with the servers, tries to lock that file exclusively. When it succeeds
//! no test is left: it kills the servers and ends.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::broker::profile_dir;

/// Checks twice a second whether a test is left. `$1` is the folder.
const KEEPER: &str = r#"cd "$1" || exit 1; exec 8>>start 9>>users
while sleep 0.5; do
    flock -n -x 8 || continue
    if flock -n -x 9; then break; fi
    flock -u 8
done
for pid in $(cat pids); do kill -9 "$pid" 2>/dev/null; done
rm -rf ports pids server-*"#;

/// Servers that this test shares with others.
pub(crate) struct SharedServers {
    pub(crate) ports: Vec<u16>,
    /// Held until the process ends.
    _users_lock: File,
}

/// What tests share, and how it is started.
pub(crate) struct SharedKind<'a> {
    /// The name of the folder.
    pub(crate) name: &'a str,
    /// Returns whether the server on a port answers.
    pub(crate) answers: &'a dyn Fn(u16) -> bool,
    /// Starts the processes in folders `server-…` of a folder. Returns their ids and ports. They
    /// need not answer yet.
    pub(crate) start: &'a dyn Fn(&Path) -> Vec<(u32, u16)>,
    /// Completes servers that answer.
    pub(crate) finish: &'a dyn Fn(&[u16]),
}

/// Returns the shared servers, which are started if need be.
pub(crate) fn join(kind: &SharedKind<'_>) -> SharedServers {
    let dir = target_tmp_dir().join(kind.name);
    fs::create_dir_all(&dir).expect("make the folder");
    let open = |name: &str| {
        let file = OpenOptions::new().create(true).append(true).open(dir.join(name));
        file.expect("open the file")
    };
    let start = open("start");
    start.lock().expect("lock the file");
    let users = open("users");
    users.lock_shared().expect("lock the file");
    let ports = match read_numbers(&dir, "ports") {
        ports if !ports.is_empty() && ports.iter().all(|port| (kind.answers)(*port)) => ports,
        _ => start_servers(kind, &dir),
    };
    start.unlock().expect("unlock the file");
    SharedServers { ports, _users_lock: users }
}

fn read_numbers(dir: &Path, name: &str) -> Vec<u16> {
    let text = fs::read_to_string(dir.join(name)).unwrap_or_default();
    text.split_whitespace().filter_map(|port| port.parse().ok()).collect()
}

#[expect(clippy::zombie_processes, reason = "they outlive the test; the keeper ends them")]
fn start_servers(kind: &SharedKind<'_>, dir: &Path) -> Vec<u16> {
    end_old(dir);
    let started = (kind.start)(dir);
    let pids: Vec<String> = started.iter().map(|(pid, _)| pid.to_string()).collect();
    fs::write(dir.join("pids"), pids.join("\n")).expect("write the file");
    detached("sh").args(["-c", KEEPER, "keeper"]).arg(dir).spawn().expect("a shell starts");
    let ports: Vec<u16> = started.into_iter().map(|(_, port)| port).collect();
    for port in &ports {
        crate::wait::wait_for("a server to answer", || (kind.answers)(*port));
    }
    (kind.finish)(&ports);
    let text: Vec<String> = ports.iter().map(u16::to_string).collect();
    fs::write(dir.join("ports"), text.join(" ")).expect("write the file");
    ports
}

/// Ends the servers of a run that was killed with its keeper: processes whose folder is in `dir`.
fn end_old(dir: &Path) {
    let text = fs::read_to_string(dir.join("pids")).unwrap_or_default();
    for pid in text.split_whitespace() {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(&*dir.to_string_lossy()) {
            let _ = Command::new("kill").args(["-9", pid]).output();
        }
    }
    let _ = fs::remove_file(dir.join("ports"));
    for old in fs::read_dir(dir).into_iter().flatten().flatten() {
        if old.file_name().to_string_lossy().starts_with("server-") {
            let _ = fs::remove_dir_all(old.path());
        }
    }
}

/// Returns a command whose process outlives the test and holds none of its files.
pub(crate) fn detached(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command
}

/// `target/tmp`, which Cargo keeps for integration tests.
pub(crate) fn target_tmp_dir() -> PathBuf {
    profile_dir().parent().expect("target/<profile>").join("tmp")
}
