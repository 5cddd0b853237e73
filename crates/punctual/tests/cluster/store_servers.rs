//! Webhooks to the servers of the store, which are refused whether or not `--redis` names them.

use std::net::Ipv4Addr;

use punctual_bench::SlowNameServer;
use punctual_test_support::cluster::SharedServer;
use punctual_test_support::redis::{RedisCluster, RedisPair, RedisServer};
use punctual_test_support::{BrokerClient, TestCluster, eventually, wait_for};
use serde_json::json;

use crate::keys::due;

/// The port of the bus of a Redis Cluster is this much higher than that of its clients.
const BUS_PORT_OFFSET: u16 = 10_000;

/// Redis servers of which the brokers are given one address.
struct OneNamed<R> {
    servers: R,
    named: String,
}

impl<R> SharedServer for OneNamed<R> {
    fn urls(&self) -> String {
        self.named.clone()
    }
}

/// Returns whether a task that calls an address is refused.
fn is_refused(client: &BrokerClient, host: impl std::fmt::Display, port: u16) -> bool {
    let (status, answer) = client.put("probe", &due("1h", &format!("http://{host}:{port}/")));
    match status {
        200 | 201 => false,
        422 => {
            let detail = answer["detail"].as_str().unwrap();
            assert!(detail.contains("address of another broker or of the store"), "{detail}");
            true
        }
        _ => panic!("{status} {answer}"),
    }
}

/// Asserts that a delivery to a port of this machine, by name, is refused and not tried again.
fn assert_delivery_is_refused(client: &BrokerClient, port: u16) {
    let key = format!("to-{port}");
    let (status, answer) = client.put(&key, &due("0s", &format!("http://localhost:{port}/")));
    assert_eq!(status, 201, "a name is checked when it is called: {answer}");
    let letter = eventually(|| {
        let (_, page) = client.get("/dead?limit=100");
        let letters = page["dead"].as_array()?.iter();
        letters.into_iter().find(|letter| letter["task"]["key"] == key.as_str()).cloned()
    });
    assert_eq!(letter["reason"], "refused", "{letter}");
    assert_eq!(letter["attempts"].as_array().unwrap().len(), 1, "{letter}");
}

#[test]
fn webhooks_to_every_server_of_a_redis_cluster_are_refused() {
    let servers = RedisCluster::start();
    let named = servers.servers[0].url();
    let cluster = TestCluster::over(OneNamed { servers, named }, 1, &[], None);
    let client = cluster.client(0).clone();
    for server in &cluster.redis.servers.servers {
        assert!(is_refused(&client, "127.0.0.1", server.port), "port {}", server.port);
        let bus = server.port + BUS_PORT_OFFSET;
        assert!(is_refused(&client, "127.0.0.1", bus), "the bus of port {}", server.port);
        assert_delivery_is_refused(&client, server.port);
    }
    // A server that joins later is refused from then on, until it leaves.
    let joined = cluster.redis.servers.join();
    wait_for("the new server to be refused", || is_refused(&client, "127.0.0.1", joined.port));
    assert_delivery_is_refused(&client, joined.port);
    cluster.redis.servers.forget(&joined);
    wait_for("the address to be free", || !is_refused(&client, "127.0.0.1", joined.port));
}

#[test]
fn webhooks_to_a_replica_that_was_not_named_are_refused() {
    let servers = RedisPair::start(Ipv4Addr::LOCALHOST.into(), free_ports());
    let [primary, replica] = servers.ports();
    let named = format!("redis://127.0.0.1:{primary}");
    let cluster = TestCluster::over(OneNamed { servers, named }, 1, &[], None);
    for port in [primary, replica] {
        // The primary lists a replica when it has connected.
        wait_for("the server to be refused", || is_refused(cluster.client(0), "127.0.0.1", port));
        assert_delivery_is_refused(cluster.client(0), port);
    }
}

fn free_ports() -> [u16; 2] {
    [(); 2].map(|()| punctual_test_support::ports::free_port())
}

#[test]
fn a_name_of_the_store_is_resolved_again() {
    let servers = RedisServer::start(&[]);
    let port = servers.port;
    let named = format!("redis://store.test:{port}");
    let mut cluster = TestCluster::over(OneNamed { servers, named }, 0, &[], None);
    let names = SlowNameServer::start().unwrap();
    let [first, second] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 9)];
    names.resolve_to(&[first]);
    cluster.names = Some(names);
    let broker = cluster.add();
    cluster.start_again(broker);
    cluster.wait_until_whole();
    let client = cluster.client(broker).clone();
    let resolve_to = |addresses: &[Ipv4Addr]| {
        cluster.names.as_ref().unwrap().resolve_to(addresses);
    };
    assert!(is_refused(&client, first, port));
    assert!(!is_refused(&client, second, port));
    resolve_to(&[first, second]);
    wait_for("the second address to be refused", || is_refused(&client, second, port));
    // While the name cannot be resolved, its last addresses stay refused.
    resolve_to(&[]);
    wait_for("a lookup to fail", || {
        cluster.brokers[broker].logged().contains("address lookup failed")
    });
    assert!(is_refused(&client, first, port));
    assert!(is_refused(&client, second, port));
    resolve_to(&[first]);
    wait_for("the second address to be free", || !is_refused(&client, second, port));
    assert_eq!(client.put("a", &json!({"in": "1h", "target": {"queue": "q"}})).0, 201);
}
