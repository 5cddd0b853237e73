//! A Redis Cluster of three servers that take writes, with one replica each.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use super::{RedisServer, cli};
use crate::ports::free_port;
use crate::wait::{pause, wait_for};

/// The number of servers.
pub(super) const SERVERS: usize = 6;

/// How long a slot stays half moved for each of its keys, as that of a large partition does.
const MOVE_PAUSE: Duration = Duration::from_millis(50);

/// The Cluster notices within a second that a server is gone. Nothing is synced to disk.
pub(super) const SETTINGS: [&str; 10] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout", // words: allow
    "1000",
    "--appendonly",
    "no",
    "--repl-diskless-sync-delay",
    "0",
    "--cluster-allow-replica-migration",
    "no",
];

/// Makes a Cluster of running servers.
pub(super) fn make(ports: &[u16]) {
    let members: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let made = Command::new("redis-cli")
        .args(["--cluster", "create"])
        .args(&members)
        .args(["--cluster-replicas", "1", "--cluster-yes"])
        .output()
        .expect("redis-cli runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
    for port in ports {
        wait_for("the Cluster to be whole", || {
            cli(*port, &["CLUSTER", "INFO"]).contains("cluster_state:ok")
        });
    }
    let replicas = |port: &u16| {
        let info = cli(*port, &["INFO", "replication"]);
        info.contains("master_link_status:up") || info.contains("connected_slaves:1") // words: allow
    };
    for port in ports {
        wait_for("replicas to follow", || replicas(port));
    }
}

/// A Redis Cluster that belongs to one test.
pub struct RedisCluster {
    pub servers: Vec<RedisServer>,
}

impl RedisCluster {
    pub fn start() -> Self {
        let ports: Vec<u16> = (0..SERVERS).map(|_| free_port()).collect();
        let start =
            |port: &u16| RedisServer::start_at(Ipv4Addr::LOCALHOST.into(), *port, &SETTINGS);
        let servers = ports.iter().map(start).collect();
        make(&ports);
        Self { servers }
    }

    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(RedisServer::url).collect()
    }

    /// Starts a server that joins the Cluster, without slots.
    pub fn join(&self) -> RedisServer {
        let joined = RedisServer::start_at(Ipv4Addr::LOCALHOST.into(), free_port(), &SETTINGS);
        let port = joined.port.to_string();
        self.servers[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        joined
    }

    /// Removes a server that has joined.
    pub fn forget(&self, joined: &RedisServer) {
        let id = joined.cli(&["CLUSTER", "MYID"]);
        // It must not be introduced again by its own messages.
        joined.cli(&["CLUSTER", "RESET", "HARD"]);
        for server in &self.servers {
            server.cli(&["CLUSTER", "FORGET", id.trim()]);
        }
    }

    /// Returns the server that takes the writes of a key now.
    pub fn serving(&self, key: &str) -> usize {
        self.find(|server| {
            let answer = server.cli(&["EXISTS", key]);
            answer.trim() == "0" || answer.trim() == "1"
        })
    }

    /// Moves the slot of a key to another server, key by key.
    pub fn move_slot(&self, key: &str, to: usize) {
        let from = self.serving(key);
        assert_ne!(from, to);
        let [source, target] = [from, to].map(|index| &self.servers[index]);
        let slot = source.cli(&["CLUSTER", "KEYSLOT", key]);
        let slot = slot.trim();
        let [source_id, target_id] =
            [source, target].map(|server| server.cli(&["CLUSTER", "MYID"]));
        let [source_id, target_id] = [source_id.trim(), target_id.trim()];
        target.cli(&["CLUSTER", "SETSLOT", slot, "IMPORTING", source_id]);
        source.cli(&["CLUSTER", "SETSLOT", slot, "MIGRATING", target_id]);
        let port = target.port.to_string();
        wait_for("the slot to be empty", || {
            let keys = source.cli(&["CLUSTER", "GETKEYSINSLOT", slot, "1"]);
            let Some(key) = keys.lines().next().filter(|key| !key.is_empty()) else { return true };
            source.cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            pause(MOVE_PAUSE);
            false
        });
        for server in [target, source] {
            let answer = server.cli(&["CLUSTER", "SETSLOT", slot, "NODE", target_id]);
            assert_eq!(answer.trim(), "OK");
        }
    }

    /// Returns whether a server takes the writes of a key.
    pub fn serves(&self, index: usize, key: &str) -> bool {
        matches!(self.servers[index].cli(&["EXISTS", key]).trim(), "0" | "1")
    }

    /// Returns whether a server is a replica of another and connected to it.
    pub fn follows(&self, index: usize, other: usize) -> bool {
        let info = self.servers[index].cli(&["INFO", "replication"]);
        let port = format!("master_port:{}\r", self.servers[other].port); // words: allow
        info.contains(&port) && info.contains("master_link_status:up") // words: allow
    }

    /// Returns the replica of a server.
    pub fn replica_of(&self, index: usize) -> usize {
        let port = format!("master_port:{}\r", self.servers[index].port); // words: allow
        self.find(|server| server.cli(&["INFO", "replication"]).contains(&port))
    }

    fn find(&self, is_it: impl Fn(&RedisServer) -> bool) -> usize {
        let mut found = None;
        wait_for("a matching server", || {
            found = self.servers.iter().position(&is_it);
            found.is_some()
        });
        found.expect("waited for it")
    }
}
