//! One redis-server, as a process that a test starts, kills, holds and starts again.
//!
//! In: settings. Out: a server on a free port, in a folder of its own. It ends with the test: a shell
//! stands beside it, whose input is a pipe from the test; when the test ends in whatever way,
//! the pipe closes, and the shell kills the server that it started.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tempfile::TempDir;

/// Rounds of waiting for something that must come, a hundredth of a second each.
const ROUNDS_MAX: u32 = 2000;

/// Kills its server when its input closes. `$1` is the folder, the rest the command.
const KEEPER: &str = r#"dir=$1; shift; "$@" >"$dir/out" 2>&1 & pid=$!; echo $pid >"$dir/pid.new"
mv "$dir/pid.new" "$dir/pid"; read -r _; kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null"#;

/// A running redis-server.
pub(crate) struct Server {
    pub(crate) port: u16,
    /// Where it speaks TLS, if it was told to.
    pub(crate) tls_port: u16,
    /// A folder that goes with it.
    pub(crate) kept: Option<PathBuf>,
    dir: TempDir,
    settings: Vec<String>,
    keeper: Option<(Child, ChildStdin)>,
}

impl Server {
    /// Starts one on a free port, with settings as on a command line.
    pub(crate) fn start(settings: &[&str]) -> Self {
        Self::start_at(free_port(), settings)
    }

    pub(crate) fn start_at(port: u16, settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let settings = settings.iter().map(|word| (*word).to_owned()).collect();
        let mut server = Self { port, tls_port: 0, kept: None, dir, settings, keeper: None };
        server.start_again();
        server
    }

    /// Starts it where it was, with what it had.
    pub(crate) fn start_again(&mut self) {
        assert!(self.keeper.is_none(), "it runs");
        let _ = std::fs::remove_file(self.dir.path().join("pid"));
        let mut child = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(self.dir.path())
            .args(command(self.port, self.dir.path(), &self.settings))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        let stdin = child.stdin.take().expect("was asked for");
        self.keeper = Some((child, stdin));
        wait_for("the server to listen", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Kills it as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some((mut child, stdin)) = self.keeper.take() {
            drop(stdin);
            let _ = child.wait();
        }
    }

    /// Stops it from running, without ending it; it goes on with `resume`.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let mut pid = String::new();
        wait_for("the server's number", || {
            pid = std::fs::read_to_string(self.dir.path().join("pid")).unwrap_or_default();
            !pid.is_empty()
        });
        let status = Command::new("kill").args([signal, pid.trim()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Asks it by redis-cli.
    pub(crate) fn cli(&self, words: &[&str]) -> String {
        cli(self.port, words)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if let Some(dir) = &self.kept {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// The command of a server: nothing is written to disk unless the settings say so.
pub(crate) fn command(port: u16, dir: &Path, settings: &[String]) -> Vec<String> {
    let mut words: Vec<String> =
        ["--bind", "127.0.0.1", "--save", "", "--port"].map(str::to_owned).into();
    words.insert(0, binary());
    words.push(port.to_string());
    words.extend(["--dir".to_owned(), dir.display().to_string()]);
    words.extend(settings.iter().cloned());
    words
}

/// Which server is tried: another than the installed one, if `PUNCTUAL_TEST_REDIS_SERVER` says so.
fn binary() -> String {
    std::env::var("PUNCTUAL_TEST_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

pub(crate) fn cli(port: u16, words: &[&str]) -> String {
    let out = Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .args(words)
        .output()
        .expect("redis-cli runs");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A port that nobody listens on, also not at the one that a Cluster's servers use besides, which is 10,000 above.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(std::process::id() % 15_000).expect("is small");
    for _ in 0..10_000 {
        let next = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(7);
        // Below the ports that the system gives to outgoing connections, as far as both are.
        let port = 10_000 + (process.wrapping_add(next)) % 12_000;
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
    unreachable!("there are free ports")
}

/// Looks until it is so.
pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..ROUNDS_MAX {
        if is_so() {
            return;
        }
        pause();
    }
    unreachable!("waited for {what} in vain")
}

#[expect(clippy::disallowed_methods, reason = "another process has nothing else to wait for")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
