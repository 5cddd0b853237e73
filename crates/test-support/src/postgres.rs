//! Real PostgreSQL servers on free ports, as an unprivileged user.
//!
//! [`PostgresServer`] is one server that a test starts, kills, suspends and starts again, with a
//! replica if need be; [`PostgresPair`] is a server and its synchronous replica. Tests that need
//! any running server share one and have a database each ([`shared_database`]). The folder of a
//! new server is copied from one that `initdb` made once.

mod pair;

pub use pair::PostgresPair;

use std::fs::{self, OpenOptions};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::ports::free_port;
use crate::server_process::{ServerProcess, as_user, children, give, run_as};
use crate::shared_server::{SharedKind, SharedServers, detached, join, target_tmp_dir};
use crate::wait::wait_for;

/// The user that servers run as if the test runs as root. Debian's package makes it.
const SYSTEM_USER: &str = "postgres";
/// The role that owns all databases.
pub const ROLE: &str = "punctual";
/// A role that needs its password.
pub const GUARDED_ROLE: &str = "guarded";
/// The password of [`GUARDED_ROLE`].
pub const GUARDED_PASSWORD: &str = "hush-hush";

/// Who may connect from where: everyone, one role by its password only.
const HBA: &str = "host all guarded all scram-sha-256\nhost all all all trust\n\
                   host replication all all trust\n";

/// Nothing is synced: a killed process loses nothing that it wrote.
const SHARED_SETTINGS: [&str; 4] =
    ["max_connections=300", "fsync=off", "shared_buffers=64MB", "max_wal_size=2GB"];

/// Returns the path of a program of the newest installed version.
///
/// The environment variable `PUNCTUAL_TEST_POSTGRES_BIN` names another folder of programs.
pub fn program(name: &str) -> String {
    if let Ok(dir) = std::env::var("PUNCTUAL_TEST_POSTGRES_BIN") {
        return format!("{dir}/{name}");
    }
    let versions = fs::read_dir("/usr/lib/postgresql").expect("package postgresql is needed");
    let numbers = versions
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    let newest = numbers.max().expect("package postgresql is needed");
    format!("/usr/lib/postgresql/{newest}/bin/{name}")
}

/// A PostgreSQL server, running or not.
pub struct PostgresServer {
    pub address: IpAddr,
    pub port: u16,
    dir: TempDir,
    settings: Vec<String>,
    process: Option<ServerProcess>,
}

impl PostgresServer {
    /// Starts a server on a free port of loopback, with settings such as `fsync=off`.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), free_port(), settings)
    }

    pub fn start_at(address: IpAddr, port: u16, settings: &[&str]) -> Self {
        let mut server = Self::prepare(address, port, settings);
        copy_template(&server.data());
        server.start_again();
        server
    }

    /// Starts a server that takes connections with and without TLS.
    pub fn start_with_tls(certificate_pem: &str, key_pem: &str) -> Self {
        let mut server = Self::prepare(Ipv4Addr::LOCALHOST.into(), free_port(), &[]);
        copy_template(&server.data());
        let files = [("server.crt", certificate_pem), ("server.key", key_pem)];
        for (name, pem) in files {
            fs::write(server.data().join(name), pem).unwrap();
        }
        run("chmod", &["600", &server.data().join("server.key").display().to_string()]);
        give(&server.data(), SYSTEM_USER);
        server.settings.push("ssl=on".to_owned());
        server.start_again();
        server
    }

    /// Starts a replica that follows this server under the name `name`.
    pub fn start_replica(&self, name: &str, settings: &[&str]) -> Self {
        let mut replica = Self::prepare(self.address, free_port(), settings);
        replica.follow(self, name);
        replica
    }

    /// Starts the server, which does not run, as a replica of another with a new copy of its data.
    pub fn follow(&mut self, primary: &Self, name: &str) {
        let _ = fs::remove_dir_all(self.data());
        let (host, port) = (primary.address.to_string(), primary.port.to_string());
        let data = self.data().display().to_string();
        let source = format!("host={host} port={port} user={ROLE} application_name={name}");
        let program = program("pg_basebackup");
        let words = [&*program, "-R", "-c", "fast", "-X", "stream", "-D", &data, "-d", &source];
        run_as(SYSTEM_USER, &words);
        self.start_again();
    }

    fn prepare(address: IpAddr, port: u16, settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        give(dir.path(), SYSTEM_USER);
        let settings = settings.iter().map(|word| (*word).to_owned()).collect();
        Self { address, port, dir, settings, process: None }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Starts the server again, with the same port, folder and settings.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server runs");
        // Left by a server that was killed; its process id may be in use by now.
        let _ = fs::remove_file(self.data().join("postmaster.pid"));
        let words = server_command(self.address, self.port, &self.data(), &self.settings);
        self.process = Some(ServerProcess::start(self.dir.path(), &words));
        wait_for("PostgreSQL to answer", || answers(self.address, self.port));
    }

    /// Returns the URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{ROLE}@{}:{}/{database}", self.address, self.port)
    }

    /// Creates a database. Returns its URL.
    pub fn database(&self, name: &str) -> String {
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(name)
    }

    /// Runs statements by psql. Returns what it prints, without headings.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        psql(self.address, self.port, database, statements)
    }

    /// Runs a script of any length by psql, one statement after the other.
    pub fn script(&self, database: &str, script: &str) {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        fs::write(&file, script).expect("write the file");
        let (host, port) = (self.address.to_string(), self.port.to_string());
        let words = ["-Xq", "-v", "ON_ERROR_STOP=1", "-h", &host, "-p", &port, "-U", ROLE];
        let file = file.path().display().to_string();
        run(&program("psql"), &[&words[..], &["-d", database, "-f", &file]].concat());
    }

    /// Makes the role that needs a password.
    pub fn make_guarded_role(&self) {
        let role = format!("CREATE ROLE {GUARDED_ROLE} LOGIN PASSWORD '{GUARDED_PASSWORD}'");
        self.sql("postgres", &role);
    }

    /// Kills the server and all its processes with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            let others = children(process.pid());
            process.kill();
            let alive = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
            wait_for("the processes of PostgreSQL to end", || {
                others.iter().filter(|pid| alive(pid)).for_each(|pid| {
                    let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
                });
                !others.iter().any(alive)
            });
        }
    }

    /// Shuts the server down as an operator does: connections end, nothing is lost.
    pub fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            let pid = process.pid();
            crate::broker::send_signal(pid, "-INT");
            wait_for("PostgreSQL to end", || !self.data().join("postmaster.pid").exists());
            process.kill();
        }
    }

    /// Stops all processes of the server with SIGSTOP, until `resume`.
    pub fn suspend(&self) {
        self.process.as_ref().expect("the server runs").signal_all("-STOP");
    }

    pub fn resume(&self) {
        self.process.as_ref().expect("the server runs").signal_all("-CONT");
    }

    /// Makes a replica accept writes.
    pub fn promote(&self) {
        self.sql("postgres", "SELECT pg_promote()");
    }

    /// Returns the process ids of the server, of which the first is the postmaster's.
    pub fn pids(&self) -> Vec<u32> {
        let pid = self.process.as_ref().expect("the server runs").pid();
        std::iter::once(pid).chain(children(pid)).collect()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Creates a database on the server that all tests share. Returns its URL.
pub fn shared_database() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let port = shared_port();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("test_{}_{number}", std::process::id());
    let address = Ipv4Addr::LOCALHOST.into();
    // A process with the same id may have run before.
    psql(address, port, "postgres", &format!("DROP DATABASE IF EXISTS {name}"));
    psql(address, port, "postgres", &format!("CREATE DATABASE {name}"));
    format!("postgres://{ROLE}@127.0.0.1:{port}/{name}")
}

/// Returns the port of the server that all tests share. It syncs nothing to disk.
pub fn shared_port() -> u16 {
    static SERVER: OnceLock<SharedServers> = OnceLock::new();
    let started = SERVER.get_or_init(|| {
        join(&SharedKind {
            name: "postgres",
            answers: &|port| answers(Ipv4Addr::LOCALHOST.into(), port),
            start: &|dir| vec![start_shared(dir)],
            finish: &|_| (),
        })
    });
    started.ports[0]
}

#[expect(clippy::zombie_processes, reason = "it outlives the test; the keeper ends it")]
fn start_shared(dir: &Path) -> (u32, u16) {
    let port = free_port();
    let own = dir.join(format!("server-{port}"));
    copy_template(&own);
    let settings = SHARED_SETTINGS.map(str::to_owned);
    let words = server_command(Ipv4Addr::LOCALHOST.into(), port, &own, &settings);
    let server = detached(&words[0]).args(&words[1..]).spawn().expect("postgres starts");
    (server.id(), port)
}

fn server_command(address: IpAddr, port: u16, data: &Path, settings: &[String]) -> Vec<String> {
    let mut words = vec![program("postgres"), "-D".to_owned(), data.display().to_string()];
    let fixed = [
        format!("listen_addresses={address}"),
        format!("port={port}"),
        "unix_socket_directories=".to_owned(),
    ];
    for setting in fixed.iter().chain(settings) {
        words.extend(["-c".to_owned(), setting.clone()]);
    }
    as_user(SYSTEM_USER, words)
}

/// Copies the folder that `initdb` made, which is made by the first test that needs it.
fn copy_template(data: &Path) {
    let root = target_tmp_dir().join("postgres-template");
    fs::create_dir_all(&root).expect("make the folder");
    let lock = OpenOptions::new().create(true).append(true).open(root.join("lock"));
    let lock = lock.expect("open the file");
    lock.lock().expect("lock the file");
    let template = root.join("data");
    if !root.join("made").exists() {
        let _ = fs::remove_dir_all(&template);
        give(&root, SYSTEM_USER);
        let (initdb, shown) = (program("initdb"), template.display().to_string());
        let words = [&*initdb, "-A", "trust", "-U", ROLE, "-E", "UTF8", "--locale=C", "-N", "-D"];
        run_as(SYSTEM_USER, &[&words[..], &[&*shown]].concat());
        fs::write(template.join("pg_hba.conf"), HBA).expect("write the file");
        fs::write(root.join("made"), "").expect("write the file");
    }
    run("cp", &["-a", &template.display().to_string(), &data.display().to_string()]);
}

fn answers(address: IpAddr, port: u16) -> bool {
    let (host, port) = (address.to_string(), port.to_string());
    let words = ["-q", "-h", &host, "-p", &port, "-t", "1"];
    Command::new(program("pg_isready")).args(words).status().is_ok_and(|status| status.success())
}

fn psql(address: IpAddr, port: u16, database: &str, statements: &str) -> String {
    let (host, port) = (address.to_string(), port.to_string());
    let words = ["-XqAt", "-v", "ON_ERROR_STOP=1", "-h", &host, "-p", &port, "-U", ROLE];
    run(&program("psql"), &[&words[..], &["-d", database, "-c", statements]].concat())
}

fn run(program: &str, words: &[&str]) -> String {
    let out = Command::new(program).args(words).output().expect("the program starts");
    let shown = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(out.status.success(), "{program} {words:?}: {shown:?}");
    let [printed, _] = shown;
    printed
}
