//! One redis-server as a process that a test starts, kills, suspends and starts again.
//!
//! The server ends with the test, in whatever way the test ends (`server_process`).

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::cli_at;
use crate::certificate::make_certificate;
use crate::ports::free_port;
use crate::server_process::ServerProcess;
use crate::wait::wait_for;

/// The certificate of a server with TLS, in its extra folder.
const CERTIFICATE: &str = "cert.pem";

/// A redis-server, running or not.
pub struct RedisServer {
    pub address: IpAddr,
    pub port: u16,
    /// The port for TLS, if the settings have one.
    pub tls_port: u16,
    /// A folder that is removed with the server.
    pub extra_dir: Option<PathBuf>,
    dir: TempDir,
    settings: Vec<String>,
    process: Option<ServerProcess>,
}

impl RedisServer {
    /// Starts a server on a free port of loopback, with settings as on its command line.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), free_port(), settings)
    }

    pub fn start_at(address: IpAddr, port: u16, settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let settings = settings.iter().map(|word| (*word).to_owned()).collect();
        let (tls_port, extra_dir, process) = (0, None, None);
        let mut server = Self { address, port, tls_port, extra_dir, dir, settings, process };
        server.start_again();
        server
    }

    /// Starts a server that writes each change to disk, and that listens with TLS as well: with the
    /// certificate of [`authority_file`](Self::authority_file).
    pub fn start_secured() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory").keep();
        let (certificate, key) = make_certificate();
        let file = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("write the file");
            path.display().to_string()
        };
        let (certificate, key) = (file(CERTIFICATE, &certificate), file("key.pem", &key));
        let tls_port = free_port();
        let (port, files) = (tls_port.to_string(), ["--tls-cert-file", &*certificate]);
        let disk = ["--appendonly", "yes", "--appendfsync", "always"];
        let tls = ["--tls-port", &*port, "--tls-key-file", &*key, "--tls-auth-clients", "no"];
        let mut server = Self::start(&[&tls[..], &files, &disk].concat());
        (server.tls_port, server.extra_dir) = (tls_port, Some(dir));
        server
    }

    /// The certificate of a server with TLS.
    pub fn authority_file(&self) -> PathBuf {
        self.extra_dir.as_ref().expect("a server with TLS").join(CERTIFICATE)
    }

    /// Starts the server again, with the same port, folder and settings.
    pub fn start_again(&mut self) {
        self.start_again_with(&[]);
    }

    /// Starts the server again, with more settings.
    pub fn start_again_with(&mut self, more: &[String]) {
        assert!(self.process.is_none(), "the server runs");
        let settings = [self.settings.as_slice(), more].concat();
        let words = server_command(self.address, self.port, self.dir.path(), &settings);
        self.process = Some(ServerProcess::start(self.dir.path(), &words));
        wait_for("redis-server to listen", || {
            TcpStream::connect((self.address, self.port)).is_ok()
        });
    }

    pub fn url(&self) -> String {
        format!("redis://{}:{}", self.address, self.port)
    }

    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops the server with SIGSTOP, until `resume`.
    pub fn suspend(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        self.process.as_ref().expect("the server runs").signal_all(signal);
    }

    /// Runs redis-cli against this server. Returns what it prints.
    pub fn cli(&self, words: &[&str]) -> String {
        cli_at(&self.address.to_string(), self.port, words)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        if let Some(dir) = &self.extra_dir {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Returns the command of a server that writes nothing to disk unless the settings demand it.
///
/// The environment variable `PUNCTUAL_TEST_REDIS_SERVER` names another program than the installed
/// `redis-server`.
pub(super) fn server_command(
    address: IpAddr,
    port: u16,
    dir: &Path,
    settings: &[String],
) -> Vec<String> {
    let program = std::env::var("PUNCTUAL_TEST_REDIS_SERVER");
    let mut words = vec![program.unwrap_or_else(|_| "redis-server".to_owned())];
    words.extend(["--bind".to_owned(), address.to_string()]);
    words.extend(["--save", "", "--port"].map(str::to_owned));
    words.push(port.to_string());
    words.extend(["--dir".to_owned(), dir.display().to_string()]);
    words.extend(settings.iter().cloned());
    words
}
