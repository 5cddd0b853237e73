//! Servers that all tests of a run share: starting a Cluster takes seconds, and the suite has a hundred tests, each
//! perhaps a process of its own.
//!
//! In: a kind. Out: the ports of a running one. Whoever comes first starts it; every test holds a shared lock on a file
//! for as long as it lives. A keeper, started with the servers, tries for the whole of that lock, and when it gets
//! it nobody is left: it kills the servers and goes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::cluster::{MEMBERS, SETTINGS, make};
use super::{cli, command, free_port, wait_for};

/// Looks twice a second whether anybody is left. `$1` is the folder.
const KEEPER: &str = r#"cd "$1" || exit 1; exec 8>>start 9>>users
while sleep 0.5; do
    flock -n -x 8 || continue
    if flock -n -x 9; then break; fi
    flock -u 8
done
for pid in $(cat pids); do kill -9 "$pid" 2>/dev/null; done
rm -rf ports pids server-*"#;

/// What there is one of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Single,
    Cluster,
}

struct Shared {
    ports: Vec<u16>,
    /// Held until the process ends.
    _user: File,
}

/// The ports of the shared servers of a kind.
pub(crate) fn ports(kind: Kind) -> &'static [u16] {
    static SINGLE: OnceLock<Shared> = OnceLock::new();
    static CLUSTER: OnceLock<Shared> = OnceLock::new();
    let shared = match kind {
        Kind::Single => &SINGLE,
        Kind::Cluster => &CLUSTER,
    };
    &shared.get_or_init(|| join(kind)).ports
}

fn join(kind: Kind) -> Shared {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{kind:?}"));
    fs::create_dir_all(&dir).expect("a folder can be made");
    let open = |name: &str| {
        let file = OpenOptions::new().create(true).append(true).open(dir.join(name));
        file.expect("a file can be opened")
    };
    let start = open("start");
    start.lock().expect("a lock can be waited for");
    let user = open("users");
    user.lock_shared().expect("a lock can be waited for");
    let ports = match read_ports(&dir) {
        Some(ports) if ports.iter().all(|port| cli(*port, &["PING"]).starts_with("PONG")) => ports,
        _ => begin(kind, &dir),
    };
    start.unlock().expect("is ours");
    Shared { ports, _user: user }
}

fn read_ports(dir: &Path) -> Option<Vec<u16>> {
    let text = fs::read_to_string(dir.join("ports")).ok()?;
    text.split_whitespace().map(|port| port.parse().ok()).collect()
}

#[expect(clippy::zombie_processes, reason = "they outlive the test; the keeper ends them")]
fn begin(kind: Kind, dir: &Path) -> Vec<u16> {
    end_old(dir);
    let (count, settings) = match kind {
        Kind::Single => (1, &["--appendonly", "yes"][..]),
        Kind::Cluster => (MEMBERS, &SETTINGS[..]),
    };
    let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
    let mut pids = String::new();
    let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
    for port in &ports {
        let own: PathBuf = dir.join(format!("server-{port}"));
        fs::create_dir_all(&own).expect("a folder can be made");
        let words = command(*port, &own, &settings);
        let server = apart(&words[0]).args(&words[1..]).spawn().expect("redis-server starts");
        pids.push_str(&format!("{}\n", server.id()));
    }
    fs::write(dir.join("pids"), pids).expect("a file can be written");
    apart("sh").args(["-c", KEEPER, "keeper"]).arg(dir).spawn().expect("a shell starts");
    for port in &ports {
        wait_for("a server to answer", || cli(*port, &["PING"]).starts_with("PONG"));
    }
    if matches!(kind, Kind::Cluster) {
        make(&ports);
    }
    let text: Vec<String> = ports.iter().map(u16::to_string).collect();
    fs::write(dir.join("ports"), text.join(" ")).expect("a file can be written");
    ports
}

/// What a run that was killed with its keeper has left.
fn end_old(dir: &Path) {
    for port in read_ports(dir).unwrap_or_default() {
        let _ = cli(port, &["SHUTDOWN", "NOSAVE"]);
    }
    let _ = fs::remove_file(dir.join("ports"));
}

/// A command whose process outlives the test that starts it, and holds none of its files.
fn apart(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command
}
