//! A Redis server that takes writes, and its replica: killed, suspended, filled and failed over.

use std::net::IpAddr;
use std::time::Duration;

use super::RedisServer;
use crate::wait::{eventually, pause};

const SETTINGS: [&str; 10] = [
    "--protected-mode",
    "no",
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-timeout",
    "5",
];

/// Two servers, of which one follows the other.
pub struct RedisPair {
    servers: [RedisServer; 2],
    /// The index of the server that takes writes.
    primary: usize,
}

impl RedisPair {
    pub fn start(address: IpAddr, ports: [u16; 2]) -> Self {
        let servers = ports.map(|port| RedisServer::start_at(address, port, &SETTINGS));
        let pair = Self { servers, primary: 0 };
        pair.servers.iter().for_each(wait_until_ready);
        pair.follow();
        pair
    }

    /// Returns the value of `--redis`.
    pub fn urls(&self) -> String {
        self.servers.each_ref().map(RedisServer::url).join(",")
    }

    pub fn ports(&self) -> [u16; 2] {
        self.servers.each_ref().map(|server| server.port)
    }

    /// Runs redis-cli against the primary.
    pub fn cli(&self, words: &[&str]) -> String {
        self.servers[self.primary].cli(words)
    }

    /// Kills the primary and starts it again after `downtime`.
    pub fn crash(&mut self, downtime: Duration) {
        let primary = &mut self.servers[self.primary];
        primary.kill();
        pause(downtime);
        primary.start_again();
        wait_until_ready(primary);
        self.follow();
    }

    /// Suspends the primary for `time`.
    pub fn suspend_for(&self, time: Duration) {
        self.servers[self.primary].suspend();
        pause(time);
        self.servers[self.primary].resume();
    }

    /// Makes the primary refuse writes for lack of memory, until `free_memory`.
    pub fn fill_memory(&self) {
        assert_eq!(self.cli(&["CONFIG", "SET", "maxmemory", "1"]).trim(), "OK");
    }

    pub fn free_memory(&self) {
        assert_eq!(self.cli(&["CONFIG", "SET", "maxmemory", "0"]).trim(), "OK");
    }

    /// Cuts the replica off, kills the primary, calls `between` and makes the replica the primary.
    ///
    /// What the primary acknowledged alone during `cut` is lost.
    pub fn fail_over(&mut self, cut: Duration, between: impl FnOnce()) {
        let replica = 1 - self.primary;
        let address = self.servers[replica].address.to_string();
        // Nothing listens on port 1: the replica keeps its data and gets nothing more.
        self.servers[replica].cli(&["REPLICAOF", &address, "1"]);
        pause(cut);
        self.servers[self.primary].kill();
        between();
        self.servers[replica].cli(&["REPLICAOF", "NO", "ONE"]);
        pause(cut);
        let port = self.servers[replica].port;
        let follows = ["--replicaof".to_owned(), format!("{address} {port}")];
        self.servers[self.primary].start_again_with(&follows);
        wait_until_ready(&self.servers[self.primary]);
        self.primary = replica;
        self.follow();
    }

    /// Makes the other server follow the primary, and waits until it has caught up.
    fn follow(&self) {
        let (primary, replica) = (&self.servers[self.primary], &self.servers[1 - self.primary]);
        replica.cli(&["REPLICAOF", &primary.address.to_string(), &primary.port.to_string()]);
        let link = "master_link_status:up"; // words: allow
        eventually(|| replica.cli(&["INFO", "replication"]).contains(link).then_some(()));
    }
}

fn wait_until_ready(server: &RedisServer) {
    eventually(|| server.cli(&["PING"]).starts_with("PONG").then_some(()));
}
