//! Real Redis servers on free ports, in folders of their own.
//!
//! [`RedisServer`] is one process. [`RedisPair`] is a server and its replica, [`RedisCluster`]
//! three servers with a replica each. Tests that need any running Redis share one ([`shared`]).

pub mod shared;

mod cluster;
mod pair;
mod server;

pub use cluster::RedisCluster;
pub use pair::RedisPair;
pub use server::RedisServer;

use std::process::Command;

/// Runs redis-cli against a server on loopback. Returns what it prints.
pub fn cli(port: u16, words: &[&str]) -> String {
    cli_at("127.0.0.1", port, words)
}

fn cli_at(address: &str, port: u16, words: &[&str]) -> String {
    let out = Command::new("redis-cli")
        .args(["-h", address, "-p", &port.to_string()])
        .args(words)
        .output()
        .expect("redis-cli is needed");
    String::from_utf8_lossy(&out.stdout).into_owned()
}
