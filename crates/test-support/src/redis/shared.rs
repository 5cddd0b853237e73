//! Redis servers that all tests of a run share: starting a Cluster takes seconds.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::OnceLock;

use super::cli;
use super::cluster::{SERVERS, SETTINGS, make};
use super::server::server_command;
use crate::ports::free_port;
use crate::shared_server::{SharedKind, SharedServers, detached, join};

/// Which of the shared installations a test uses.
#[derive(Debug, Clone, Copy)]
pub enum RedisLayout {
    Single,
    Cluster,
}

/// Returns the ports of the shared servers, which are started if need be.
pub fn ports(layout: RedisLayout) -> &'static [u16] {
    static SINGLE: OnceLock<SharedServers> = OnceLock::new();
    static CLUSTER: OnceLock<SharedServers> = OnceLock::new();
    let shared = match layout {
        RedisLayout::Single => &SINGLE,
        RedisLayout::Cluster => &CLUSTER,
    };
    let started = shared.get_or_init(|| {
        join(&SharedKind {
            name: &format!("redis-{layout:?}"),
            answers: &|port| cli(port, &["PING"]).starts_with("PONG"),
            start: &|dir| start(layout, dir),
            finish: &|ports| {
                if matches!(layout, RedisLayout::Cluster) {
                    make(ports);
                }
            },
        })
    });
    &started.ports
}

#[expect(clippy::zombie_processes, reason = "they outlive the test; the keeper ends them")]
fn start(layout: RedisLayout, dir: &Path) -> Vec<(u32, u16)> {
    let (count, settings) = match layout {
        RedisLayout::Single => (1, &["--appendonly", "yes"][..]),
        RedisLayout::Cluster => (SERVERS, &SETTINGS[..]),
    };
    let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
    let one = |_| {
        let port = free_port();
        let own = dir.join(format!("server-{port}"));
        fs::create_dir_all(&own).expect("make the folder");
        let words = server_command(Ipv4Addr::LOCALHOST.into(), port, &own, &settings);
        let server = detached(&words[0]).args(&words[1..]).spawn().expect("redis-server starts");
        (server.id(), port)
    };
    (0..count).map(one).collect()
}
