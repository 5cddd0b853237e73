//! A Redis Cluster of three servers that take writes, with one replica each.

use std::process::Command;

use super::{Server, cli, free_port, pause, wait_for};

/// Servers of a Cluster.
pub(crate) const MEMBERS: usize = 6;

/// A Cluster notices in a second that a server is gone; nothing is synced to disk.
pub(crate) const SETTINGS: [&str; 10] = [
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

/// Makes a Cluster of servers that run.
pub(crate) fn make(ports: &[u16]) {
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
        let says = cli(*port, &["INFO", "replication"]);
        says.contains("master_link_status:up") || says.contains("connected_slaves:1") // words: allow
    };
    for port in ports {
        wait_for("replicas to follow", || replicas(port));
    }
}

/// A Cluster of a test's own.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let ports: Vec<u16> = (0..MEMBERS).map(|_| free_port()).collect();
        let servers = ports.iter().map(|port| Server::start_at(*port, &SETTINGS)).collect();
        make(&ports);
        Self { servers }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// Which server takes the writes of a key now.
    pub(crate) fn serving(&self, key: &str) -> usize {
        self.find(|server| {
            let says = server.cli(&["EXISTS", key]);
            says.trim() == "0" || says.trim() == "1"
        })
    }

    /// Moves the slot of a key from the server that has it to another, key by key.
    pub(crate) fn move_slot(&self, key: &str, to: usize) {
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
            // Half-moved for a while, as a large partition is.
            (0..5).for_each(|_| pause());
            false
        });
        for server in [target, source] {
            let said = server.cli(&["CLUSTER", "SETSLOT", slot, "NODE", target_id]);
            assert_eq!(said.trim(), "OK");
        }
    }

    /// Whether a server takes the writes of a key.
    pub(crate) fn serves(&self, index: usize, key: &str) -> bool {
        matches!(self.servers[index].cli(&["EXISTS", key]).trim(), "0" | "1")
    }

    /// Whether a server has all that another has.
    pub(crate) fn follows(&self, index: usize, other: usize) -> bool {
        let says = self.servers[index].cli(&["INFO", "replication"]);
        let port = format!("master_port:{}\r", self.servers[other].port); // words: allow
        says.contains(&port) && says.contains("master_link_status:up") // words: allow
    }

    /// The server that follows another.
    pub(crate) fn replica_of(&self, index: usize) -> usize {
        let port = format!("master_port:{}\r", self.servers[index].port); // words: allow
        self.find(|server| server.cli(&["INFO", "replication"]).contains(&port))
    }

    fn find(&self, is_it: impl Fn(&Server) -> bool) -> usize {
        let mut found = None;
        wait_for("a server of that kind", || {
            found = self.servers.iter().position(&is_it);
            found.is_some()
        });
        found.expect("was found")
    }
}
