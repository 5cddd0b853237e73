//! Ports that a server keeps over restarts.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// A server of a Redis Cluster also listens this much above its port.
const CLUSTER_BUS_OFFSET: u16 = 10_000;

/// Returns a port on which nothing listens, nor on the port of its Redis Cluster bus.
///
/// The port is below those that the system gives to outgoing connections, so that a client cannot
/// take it while its server is down. Tests that run at the same time get different ports.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut ports = (0..10_000).map(|_| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let number = std::process::id().wrapping_mul(16).wrapping_add(next);
        u16::try_from(10_000 + number % 10_000).expect("below 20,000")
    });
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
    let found = ports.find(|port| is_free(*port) && is_free(port + CLUSTER_BUS_OFFSET));
    found.expect("there is a free port")
}

/// Returns an address on loopback that a broker keeps over restarts.
pub fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}
