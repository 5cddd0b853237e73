//! Real MariaDB servers on free ports, as an unprivileged user.
//!
//! [`MariadbServer`] is one server that a test starts, kills, suspends and starts again. Tests that
//! need any running server share one and have a database each ([`shared_database`]). The folder of
//! a new server is copied from one that `mariadb-install-db` made once.

use std::fs::{self, OpenOptions};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::ports::free_port;
use crate::server_process::{ServerProcess, as_user, give, run_as};
use crate::shared_server::{SharedKind, SharedServers, detached, join, target_tmp_dir};
use crate::wait::wait_for;

/// The user that servers run as if the test runs as root. Debian's package makes it.
const SYSTEM_USER: &str = "mysql";
/// The account that owns all databases, with its password.
pub const ACCOUNT: &str = "punctual";
/// The password of [`ACCOUNT`].
pub const PASSWORD: &str = "hush-hush";

/// Nothing is synced: a killed process loses nothing that it wrote.
const SHARED_SETTINGS: [&str; 2] = ["--innodb-flush-log-at-trx-commit=2", "--max-connections=300"];

/// A MariaDB server, running or not.
pub struct MariadbServer {
    pub address: IpAddr,
    pub port: u16,
    dir: TempDir,
    settings: Vec<String>,
    process: Option<ServerProcess>,
}

impl MariadbServer {
    /// Starts a server on a free port of loopback, with settings as on its command line.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), free_port(), settings)
    }

    pub fn start_at(address: IpAddr, port: u16, settings: &[&str]) -> Self {
        let mut server = Self::prepare(address, port, settings);
        server.start_again();
        server
    }

    /// Starts a server that takes connections with and without TLS.
    pub fn start_with_tls(certificate_pem: &str, key_pem: &str) -> Self {
        let mut server = Self::prepare(Ipv4Addr::LOCALHOST.into(), free_port(), &[]);
        let files = [("cert", certificate_pem), ("key", key_pem)];
        for (name, pem) in files {
            let path = server.dir.path().join(format!("{name}.pem"));
            fs::write(&path, pem).expect("write the file");
            server.settings.push(format!("--ssl-{name}={}", path.display()));
        }
        give(server.dir.path(), SYSTEM_USER);
        server.start_again();
        server
    }

    fn prepare(address: IpAddr, port: u16, settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        give(dir.path(), SYSTEM_USER);
        let settings = settings.iter().map(|word| (*word).to_owned()).collect();
        let server = Self { address, port, dir, settings, process: None };
        copy_template(&server.data());
        server
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Starts the server again, with the same port, folder and settings.
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "the server runs");
        let words = server_command(self.address, self.port, &self.data(), &self.settings);
        self.process = Some(ServerProcess::start(self.dir.path(), &words));
        wait_for("MariaDB to answer", || answers(self.address, self.port));
    }

    /// Returns the URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://{ACCOUNT}:{PASSWORD}@{}:{}/{database}", self.address, self.port)
    }

    /// Creates a database. Returns its URL.
    pub fn database(&self, name: &str) -> String {
        self.sql("", &format!("CREATE DATABASE {name}"));
        self.url(name)
    }

    /// Runs statements by the command line client. Returns what it prints, without headings.
    pub fn sql(&self, database: &str, statements: &str) -> String {
        client(self.address, self.port, database, statements).expect("the statements run")
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops the server with SIGSTOP, until `resume`.
    pub fn suspend(&self) {
        self.process.as_ref().expect("the server runs").signal_all("-STOP");
    }

    pub fn resume(&self) {
        self.process.as_ref().expect("the server runs").signal_all("-CONT");
    }
}

impl Drop for MariadbServer {
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
    let statements = format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}");
    client(Ipv4Addr::LOCALHOST.into(), port, "", &statements).expect("the statements run");
    format!("mysql://{ACCOUNT}:{PASSWORD}@127.0.0.1:{port}/{name}")
}

/// Returns the port of the server that all tests share. It syncs nothing to disk.
pub fn shared_port() -> u16 {
    static SERVER: OnceLock<SharedServers> = OnceLock::new();
    let started = SERVER.get_or_init(|| {
        join(&SharedKind {
            name: "mariadb",
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
    let server = detached(&words[0]).args(&words[1..]).spawn().expect("mariadbd starts");
    (server.id(), port)
}

/// The environment variable `PUNCTUAL_TEST_MARIADB` names another program than the installed
/// `mariadbd`.
fn server_command(address: IpAddr, port: u16, data: &Path, settings: &[String]) -> Vec<String> {
    let program = std::env::var("PUNCTUAL_TEST_MARIADB");
    let mut words = vec![program.unwrap_or_else(|_| "/usr/sbin/mariadbd".to_owned())];
    let data = data.display();
    words.extend([
        "--no-defaults".to_owned(),
        format!("--datadir={data}"),
        format!("--bind-address={address}"),
        format!("--port={port}"),
        format!("--socket={data}/socket"),
        format!("--pid-file={data}/pid"),
        "--skip-name-resolve".to_owned(),
        "--character-set-server=utf8mb4".to_owned(),
    ]);
    words.extend(settings.iter().cloned());
    as_user(SYSTEM_USER, words)
}

/// Copies the folder that `mariadb-install-db` made for the first test that needs it.
fn copy_template(data: &Path) {
    let root = target_tmp_dir().join("mariadb-template");
    fs::create_dir_all(&root).expect("make the folder");
    let lock = OpenOptions::new().create(true).append(true).open(root.join("lock"));
    let lock = lock.expect("open the file");
    lock.lock().expect("lock the file");
    let template = root.join("data");
    if !root.join("made").exists() {
        let _ = fs::remove_dir_all(&template);
        give(&root, SYSTEM_USER);
        let init = root.join("init.sql");
        let account = format!(
            "FLUSH PRIVILEGES;\nCREATE USER {ACCOUNT}@'%' IDENTIFIED BY '{PASSWORD}';\n\
             GRANT ALL ON *.* TO {ACCOUNT}@'%' WITH GRANT OPTION;\n"
        );
        fs::write(&init, account).expect("write the file");
        let datadir = format!("--datadir={}", template.display());
        let extra = format!("--extra-file={}", init.display());
        let fixed = ["mariadb-install-db", "--no-defaults", "--skip-test-db"];
        let auth = "--auth-root-authentication-method=normal";
        run_as(SYSTEM_USER, &[&fixed[..], &[auth, &*datadir, &*extra]].concat());
        fs::write(root.join("made"), "").expect("write the file");
    }
    let copied = Command::new("cp").arg("-a").args([&template, data]).status();
    assert!(
        copied.expect("cp starts").success(),
        "cp -a {} {}",
        template.display(),
        data.display()
    );
}

fn answers(address: IpAddr, port: u16) -> bool {
    client(address, port, "", "SELECT 1").is_ok()
}

fn client(address: IpAddr, port: u16, database: &str, text: &str) -> Result<String, String> {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--skip-column-names", "--batch", "--connect-timeout=2"]);
    command.args([&format!("-h{address}"), &format!("-P{port}"), "-u", ACCOUNT]);
    command.args([&format!("-p{PASSWORD}"), "-e", text]);
    if !database.is_empty() {
        command.arg(database);
    }
    let out = command.output().expect("package mariadb-client is needed");
    let shown = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let [printed, error] = shown;
    if out.status.success() { Ok(printed) } else { Err(error) }
}
