//! A Redis that is killed, held, filled and failed over: one that takes writes and one that follows it.
//!
//! In: where to listen. Out: processes that end with the test, by themselves. A server that is started again has what it had.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::{IpAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::field::eventually;
use crate::witness::pause;

/// One server.
pub(crate) struct Redis {
    at: IpAddr,
    pub(crate) port: u16,
    dir: TempDir,
    child: Option<Child>,
}

/// One that takes writes and one that follows.
pub(crate) struct Pair {
    servers: [Redis; 2],
    /// Which of them takes writes.
    first: usize,
}

impl Redis {
    fn start(at: IpAddr, port: u16) -> Self {
        let mut redis = Self { at, port, dir: tempfile::tempdir().unwrap(), child: None };
        redis.start_again(None);
        redis
    }

    /// Starts it where it was, with what it had; as one that follows, if it is told whom.
    fn start_again(&mut self, follows: Option<u16>) {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "redis-server", "--port", &self.port.to_string()])
            .args(["--bind", &self.at.to_string(), "--protected-mode", "no"])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"])
            .args(["--repl-diskless-sync-delay", "0", "--repl-timeout", "5"])
            .args(["--dir", &self.dir.path().display().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(port) = follows {
            command.args(["--replicaof", &format!("{} {port}", self.at)]);
        }
        self.child = Some(command.spawn().expect("redis-server and setpriv are needed"));
        eventually(|| TcpStream::connect((self.at, self.port)).ok());
        eventually(|| self.cli(&["PING"]).starts_with("PONG").then_some(()));
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn cli(&self, words: &[&str]) -> String {
        let (at, port) = (self.at.to_string(), self.port.to_string());
        let out = Command::new("redis-cli").args(["-h", &at, "-p", &port]).args(words).output();
        String::from_utf8_lossy(&out.expect("redis-cli is needed").stdout).into_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Pair {
    pub(crate) fn start(at: IpAddr, ports: [u16; 2]) -> Self {
        let servers = ports.map(|port| Redis::start(at, port));
        let pair = Self { servers, first: 0 };
        pair.follow();
        pair
    }

    /// As the flag takes them.
    pub(crate) fn urls(&self) -> String {
        self.servers.each_ref().map(|it| format!("redis://{}:{}", it.at, it.port)).join(",")
    }

    pub(crate) fn ports(&self) -> [u16; 2] {
        self.servers.each_ref().map(|server| server.port)
    }

    /// Asks the one that takes writes.
    pub(crate) fn cli(&self, words: &[&str]) -> String {
        self.servers[self.first].cli(words)
    }

    /// Kills the one that takes writes, and starts it again after a while.
    pub(crate) fn crash(&mut self, away: Duration) {
        self.servers[self.first].kill();
        pause(away);
        self.servers[self.first].start_again(None);
        self.follow();
    }

    /// Holds the one that takes writes for a while.
    pub(crate) fn hold(&self, time: Duration) {
        self.servers[self.first].signal("-STOP");
        pause(time);
        self.servers[self.first].signal("-CONT");
    }

    /// The one that takes writes has no memory left, until it is told otherwise.
    pub(crate) fn fill(&self) {
        assert_eq!(self.cli(&["CONFIG", "SET", "maxmemory", "1"]).trim(), "OK");
    }

    /// It has memory again.
    pub(crate) fn make_room(&self) {
        assert_eq!(self.cli(&["CONFIG", "SET", "maxmemory", "0"]).trim(), "OK");
    }

    /// The one that follows loses its link, then the one that takes writes is gone, with something else, and the other takes its place.
    pub(crate) fn fail_over(&mut self, cut: Duration, with: impl FnOnce()) {
        let second = 1 - self.first;
        // Nobody is there: it keeps what it has, and hears nothing more.
        self.servers[second].cli(&["REPLICAOF", &self.servers[second].at.to_string(), "1"]);
        pause(cut);
        self.servers[self.first].kill();
        with();
        self.servers[second].cli(&["REPLICAOF", "NO", "ONE"]);
        pause(cut);
        let port = self.servers[second].port;
        self.servers[self.first].start_again(Some(port));
        self.first = second;
        self.follow();
    }

    /// The other follows the one that takes writes, and has what it has.
    fn follow(&self) {
        let (first, second) = (&self.servers[self.first], &self.servers[1 - self.first]);
        second.cli(&["REPLICAOF", &first.at.to_string(), &first.port.to_string()]);
        let link = "master_link_status:up"; // words: allow
        eventually(|| second.cli(&["INFO", "replication"]).contains(link).then_some(()));
    }
}
