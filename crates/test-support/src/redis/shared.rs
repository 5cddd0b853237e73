//! Redis servers that all tests of a run share. Starting a Cluster takes seconds, and the
//! conformance suite has a hundred tests, each of which may be a process.
//!
//! The first test starts the servers; every test holds a shared lock on a file while it runs. A
//! keeper process, started with the servers, tries to lock that file exclusively. When it succeeds
//! no test is left: it kills the servers and ends.

use std::fs::{self, File, OpenOptions};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::cli;
use super::cluster::{SERVERS, SETTINGS, make};
use super::server::server_command;
use crate::broker::profile_dir;
use crate::ports::free_port;
use crate::wait::wait_for;

/// Checks twice a second whether a test is left. `$1` is the folder.
const KEEPER: &str = r#"cd "$1" || exit 1; exec 8>>start 9>>users
while sleep 0.5; do
    flock -n -x 8 || continue
    if flock -n -x 9; then break; fi
    flock -u 8
done
for pid in $(cat pids); do kill -9 "$pid" 2>/dev/null; done
rm -rf ports pids server-*"#;

/// Which of the shared installations a test uses.
#[derive(Debug, Clone, Copy)]
pub enum RedisLayout {
    Single,
    Cluster,
}

struct SharedServers {
    ports: Vec<u16>,
    /// Held until the process ends.
    _users_lock: File,
}

/// Returns the ports of the shared servers, which are started if need be.
pub fn ports(layout: RedisLayout) -> &'static [u16] {
    static SINGLE: OnceLock<SharedServers> = OnceLock::new();
    static CLUSTER: OnceLock<SharedServers> = OnceLock::new();
    let shared = match layout {
        RedisLayout::Single => &SINGLE,
        RedisLayout::Cluster => &CLUSTER,
    };
    &shared.get_or_init(|| join(layout)).ports
}

fn join(layout: RedisLayout) -> SharedServers {
    let dir = target_tmp_dir().join(format!("redis-{layout:?}"));
    fs::create_dir_all(&dir).expect("make the folder");
    let open = |name: &str| {
        let file = OpenOptions::new().create(true).append(true).open(dir.join(name));
        file.expect("open the file")
    };
    let start = open("start");
    start.lock().expect("lock the file");
    let users = open("users");
    users.lock_shared().expect("lock the file");
    let ports = match read_ports(&dir) {
        Some(ports) if ports.iter().all(|port| cli(*port, &["PING"]).starts_with("PONG")) => ports,
        _ => start_servers(layout, &dir),
    };
    start.unlock().expect("unlock the file");
    SharedServers { ports, _users_lock: users }
}

fn read_ports(dir: &Path) -> Option<Vec<u16>> {
    let text = fs::read_to_string(dir.join("ports")).ok()?;
    text.split_whitespace().map(|port| port.parse().ok()).collect()
}

#[expect(clippy::zombie_processes, reason = "they outlive the test; the keeper ends them")]
fn start_servers(layout: RedisLayout, dir: &Path) -> Vec<u16> {
    end_old(dir);
    let (count, settings) = match layout {
        RedisLayout::Single => (1, &["--appendonly", "yes"][..]),
        RedisLayout::Cluster => (SERVERS, &SETTINGS[..]),
    };
    let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
    let mut pids = String::new();
    let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
    for port in &ports {
        let own: PathBuf = dir.join(format!("server-{port}"));
        fs::create_dir_all(&own).expect("make the folder");
        let words = server_command(Ipv4Addr::LOCALHOST.into(), *port, &own, &settings);
        let server = detached(&words[0]).args(&words[1..]).spawn().expect("redis-server starts");
        pids.push_str(&format!("{}\n", server.id()));
    }
    fs::write(dir.join("pids"), pids).expect("write the file");
    detached("sh").args(["-c", KEEPER, "keeper"]).arg(dir).spawn().expect("a shell starts");
    for port in &ports {
        wait_for("a server to answer", || cli(*port, &["PING"]).starts_with("PONG"));
    }
    if matches!(layout, RedisLayout::Cluster) {
        make(&ports);
    }
    let text: Vec<String> = ports.iter().map(u16::to_string).collect();
    fs::write(dir.join("ports"), text.join(" ")).expect("write the file");
    ports
}

/// Ends the servers of a run that was killed with its keeper.
fn end_old(dir: &Path) {
    for port in read_ports(dir).unwrap_or_default() {
        let _ = cli(port, &["SHUTDOWN", "NOSAVE"]);
    }
    let _ = fs::remove_file(dir.join("ports"));
}

/// Returns a command whose process outlives the test and holds none of its files.
fn detached(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command
}

/// `target/tmp`, which Cargo keeps for integration tests.
fn target_tmp_dir() -> PathBuf {
    profile_dir().parent().expect("target/<profile>").join("tmp")
}
