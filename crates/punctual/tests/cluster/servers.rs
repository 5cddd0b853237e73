//! A Redis Cluster, as the tests of the Redis store start it.

#![allow(dead_code, reason = "the tests of the store use more of it")]

#[path = "../../../store-redis/tests/servers/cluster.rs"]
pub(crate) mod cluster;
#[path = "../../../store-redis/tests/servers/server.rs"]
pub(crate) mod server;

pub(crate) use server::{Server, cli, free_port, pause, wait_for};

use crate::stage::Servers;

impl Servers for cluster::Cluster {
    fn urls(&self) -> String {
        self.urls().join(",")
    }
}
