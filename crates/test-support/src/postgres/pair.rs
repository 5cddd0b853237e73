//! A PostgreSQL server that takes writes, and its synchronous replica: killed, suspended and failed
//! over.
//!
//! A commit waits for the replica. After a failover the new server waits until the other follows.

use std::net::IpAddr;
use std::time::Duration;

use super::{PostgresServer, ROLE};
use crate::ports::free_port;
use crate::wait::{pause, wait_for};

/// A replica that has lost its server tries again soon, and notices soon that it is gone.
const SETTINGS: [&str; 3] =
    ["max_connections=200", "wal_retrieve_retry_interval=200ms", "wal_receiver_timeout=5s"];
/// Commits wait for one replica, whatever its name.
const SYNCHRONOUS: &str = "ALTER SYSTEM SET synchronous_standby_names = '*'";
const RELOAD: &str = "SELECT pg_reload_conf()";

/// Two servers, of which one follows the other.
pub struct PostgresPair {
    servers: [PostgresServer; 2],
    /// The index of the server that takes writes.
    primary: usize,
}

impl PostgresPair {
    pub fn start(address: IpAddr) -> Self {
        let first = PostgresServer::start_at(address, free_port(), &SETTINGS);
        // The replica copies the setting.
        first.sql("postgres", SYNCHRONOUS);
        first.sql("postgres", RELOAD);
        let second = first.start_replica("replica", &SETTINGS);
        let pair = Self { servers: [first, second], primary: 0 };
        pair.wait_until_synchronous();
        pair
    }

    /// Returns the value of `--postgres`: both servers.
    pub fn urls(&self) -> String {
        let [first, second] =
            self.servers.each_ref().map(|server| format!("{}:{}", server.address, server.port));
        format!("postgres://{ROLE}@{first},{second}/postgres")
    }

    pub fn ports(&self) -> [u16; 2] {
        self.servers.each_ref().map(|server| server.port)
    }

    /// Kills the primary and starts it again after `downtime`.
    pub fn crash(&mut self, downtime: Duration) {
        let primary = &mut self.servers[self.primary];
        primary.kill();
        pause(downtime);
        primary.start_again();
        self.wait_until_synchronous();
    }

    /// Suspends the primary for `time`.
    pub fn suspend_for(&self, time: Duration) {
        self.servers[self.primary].suspend();
        pause(time);
        self.servers[self.primary].resume();
    }

    /// Cuts the replica off, kills the primary, calls `between` and makes the replica the primary.
    /// After `cut` more the other server follows it.
    ///
    /// What the primary committed during `cut` is lost; it has acknowledged none of it.
    pub fn fail_over(&mut self, cut: Duration, between: impl FnOnce()) {
        let replica = 1 - self.primary;
        let follower = &self.servers[replica];
        follower.sql("postgres", "ALTER SYSTEM SET primary_conninfo = ''");
        follower.sql("postgres", RELOAD);
        pause(cut);
        self.servers[self.primary].kill();
        between();
        self.servers[replica].promote();
        pause(cut);
        self.primary = replica;
        let [first, second] = &mut self.servers;
        match replica {
            0 => second.follow(first, "replica"),
            _ => first.follow(second, "replica"),
        }
        self.wait_until_synchronous();
    }

    fn wait_until_synchronous(&self) {
        let query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        let primary = &self.servers[self.primary];
        wait_for("the replica", || primary.sql("postgres", query).trim() == "1");
    }
}
