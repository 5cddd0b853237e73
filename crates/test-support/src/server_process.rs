//! A server process that ends with the test that started it.
//!
//! A shell beside the server reads from a pipe of the test. When the test ends, in whatever way,
//! the pipe closes, and the shell kills the server. A server that refuses to run as root runs as
//! another user.

use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::broker::send_signal;
use crate::wait::wait_for;

/// Kills its server when its input closes. `$1` is the folder, the rest the command.
const KEEPER: &str = r#"dir=$1; shift; "$@" >"$dir/out" 2>&1 & pid=$!; echo $pid >"$dir/pid.new"
mv "$dir/pid.new" "$dir/pid"; read -r _; kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null"#;

/// A server that runs, and the shell that ends it.
pub(crate) struct ServerProcess {
    keeper: Child,
    stdin: ChildStdin,
    pid: u32,
}

impl ServerProcess {
    /// Starts a command. `dir` gets its output and its process id.
    pub(crate) fn start(dir: &Path, words: &[String]) -> Self {
        let _ = std::fs::remove_file(dir.join("pid"));
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(dir)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        let stdin = keeper.stdin.take().expect("piped");
        let mut pid = String::new();
        wait_for("the process id of a server", || {
            pid = std::fs::read_to_string(dir.join("pid")).unwrap_or_default();
            !pid.is_empty()
        });
        Self { keeper, stdin, pid: pid.trim().parse().expect("a process id") }
    }

    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Kills the server with SIGKILL, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        drop(self.stdin);
        let _ = self.keeper.wait();
    }

    /// Sends a signal to the server and to all processes that it started.
    pub(crate) fn signal_all(&self, signal: &str) {
        send_signal(self.pid, signal);
        for child in children(self.pid) {
            let _ = Command::new("kill").args([signal, &child.to_string()]).output();
        }
        if signal == "-STOP" {
            wait_for("the server to stop", || is_stopped(self.pid));
        }
    }
}

/// Whether all threads of a process are stopped. Each stops when it runs next, not when the signal
/// is sent.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().all(|thread| {
        let text = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name of the thread, in parentheses, may have spaces.
        text.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    })
}

/// Returns the processes that a process started and that run now.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    text.unwrap_or_default().split_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// Returns a command that runs as `user` if the test runs as root.
pub(crate) fn as_user(user: &str, words: Vec<String>) -> Vec<String> {
    if !is_root() {
        return words;
    }
    let mut all = ["setpriv", "--clear-groups"].map(str::to_owned).to_vec();
    all.extend([format!("--reuid={user}"), format!("--regid={user}"), "--".to_owned()]);
    all.extend(words);
    all
}

/// Runs a command as `user` and returns what it prints. Panics if it fails.
pub(crate) fn run_as(user: &str, words: &[&str]) -> String {
    let words = as_user(user, words.iter().map(|word| (*word).to_owned()).collect());
    let out = Command::new(&words[0]).args(&words[1..]).current_dir("/").output();
    let out = out.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let shown = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(out.status.success(), "{words:?}: {shown:?}");
    let [printed, _] = shown;
    printed
}

/// Gives a folder to `user` if the test runs as root.
pub(crate) fn give(dir: &Path, user: &str) {
    if is_root() {
        let given = Command::new("chown").args(["-R", &format!("{user}:{user}")]).arg(dir).status();
        assert!(given.unwrap().success(), "chown {user}");
    }
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uid.and_then(|uid| uid.split_whitespace().next()) == Some("0")
}
