//! The servers of a Redis: those of the options, and those that Redis itself names.
//!
//! A Redis Cluster names all its servers, replicas and their bus ports included; a single server
//! names its replicas or its primary. A broker refuses webhooks to all of them. What Redis names
//! is untrusted input: what is not an address is left out.

use std::collections::BTreeSet;

use punctual_store::StoreError;
use redis::{Cmd, Value};

use crate::format::keys;
use crate::store::RedisStore;
use crate::transport::connection::RedisKind;
use crate::transport::reply;

/// The largest number of addresses: several for each server of the largest Redis Cluster (1,000).
const ADDRESSES_MAX: usize = 8_192;

impl RedisStore {
    /// Returns host and port of the servers of the options.
    pub fn configured_servers(&self) -> impl Iterator<Item = (&str, u16)> {
        self.address.servers()
    }

    /// Returns host and port of the servers that Redis names. They change when servers join, leave
    /// or fail over.
    pub async fn named_servers(&self) -> Result<Vec<(String, u16)>, StoreError> {
        let mut named = BTreeSet::new();
        match self.address.kind {
            RedisKind::Single => add_role(&mut named, &self.ask(&["ROLE"]).await?),
            RedisKind::Cluster => {
                let lines = self.ask(&["CLUSTER", "NODES"]).await?; // words: allow
                add_lines(&mut named, reply::text(&lines)?);
                // Only this reply has both ports of a server with TLS. Redis 7 or later has it.
                match self.ask(&["CLUSTER", "SHARDS"]).await {
                    Ok(groups) => add_groups(&mut named, &groups),
                    Err(error @ StoreError::Unavailable(_)) => return Err(error),
                    Err(_) => {}
                }
            }
        }
        Ok(named.into_iter().take(ADDRESSES_MAX).collect())
    }

    async fn ask(&self, words: &[&str]) -> Result<Value, StoreError> {
        let mut command = Cmd::new();
        command.arg(words);
        self.reads.command(command, &keys::meta(&self.cluster)).await
    }
}

/// Hosts and ports that Redis names.
type Named = BTreeSet<(String, u16)>;

fn add<'a>(named: &mut Named, hosts: impl IntoIterator<Item = &'a str>, ports: &[u16]) {
    // A server that does not know its own host gives none, or a question mark.
    for host in hosts.into_iter().filter(|host| !matches!(*host, "" | "?")) {
        named.extend(ports.iter().filter(|port| **port > 0).map(|port| (host.to_owned(), *port)));
    }
}

/// Adds the servers of the lines of a Cluster: the second word is `IP:PORT@BUS_PORT[,HOST]`.
fn add_lines(named: &mut Named, lines: &str) {
    for word in lines.lines().filter_map(|line| line.split(' ').nth(1)) {
        let mut parts = word.split(',');
        let Some((ip, ports)) = parts.next().and_then(|part| part.rsplit_once(':')) else {
            continue;
        };
        // Later versions may add `NAME=VALUE`.
        let host = parts.next().filter(|part| !part.contains('='));
        let (port, bus_port) = ports.split_once('@').unwrap_or((ports, ""));
        let ports = [port, bus_port].map(|port| port.parse().unwrap_or(0));
        add(named, [ip].into_iter().chain(host), &ports);
    }
}

/// Adds the servers of a reply of `CLUSTER SHARDS`: lists of names and values in each other.
fn add_groups(named: &mut Named, groups: &Value) {
    let Value::Array(groups) = groups else { return };
    let lists = groups.iter().flat_map(|group| values(group, &["nodes"])); // words: allow
    for servers in lists {
        let Value::Array(servers) = servers else { continue };
        for server in servers {
            let hosts = values(server, &["ip", "endpoint", "hostname"]);
            let ports: Vec<u16> = values(server, &["port", "tls-port"])
                .filter_map(|port| u16::try_from(reply::integer(port).ok()?).ok())
                .collect();
            add(named, hosts.filter_map(|host| reply::text(host).ok()), &ports);
        }
    }
}

/// Returns the values of these names in a list of names and values.
fn values<'a>(list: &'a Value, names: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    let list = if let Value::Array(list) = list { list.as_slice() } else { &[] };
    let is_named = |name| reply::text(name).is_ok_and(|name| names.contains(&name));
    list.chunks_exact(2).filter(move |pair| is_named(&pair[0])).map(|pair| &pair[1])
}

/// Adds the servers of a reply of `ROLE`: the replicas of a primary, or the primary of a replica.
fn add_role(named: &mut Named, role: &Value) {
    let pair = |host: &Value, port: &Value| {
        let port = u16::try_from(reply::integer(port).ok()?).ok()?;
        Some((reply::text(host).ok()?.to_owned(), port))
    };
    let Value::Array(role) = role else { return };
    match role.as_slice() {
        [_, _, Value::Array(replicas)] => {
            let replicas = replicas.iter().filter_map(|replica| match replica {
                Value::Array(replica) => pair(replica.first()?, replica.get(1)?),
                _ => None,
            });
            named.extend(replicas);
        }
        [_, host, port, ..] => named.extend(pair(host, port)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn shown(named: &Named) -> Vec<String> {
        named.iter().map(|(host, port)| format!("{host} {port}")).collect()
    }

    #[test]
    fn every_line_of_a_cluster_names_a_server_and_its_bus() {
        let mut named = Named::new();
        add_lines(
            &mut named,
            "07c3 127.0.0.1:30004@31004 flags e7d1 0 1426 4 connected\n\
             67ed 10.0.0.2:6379@16379,redis-2.test flags - 0 14 2 connected 5461-10922\n\
             292f ::1:6379@16379,,name=value myself,flags - 0 0 1 connected 0-5460\n\
             0000 :0@0 noaddr - 0 0 0 disconnected\n\
             1111 :7000@17000 myself - 0 0 0 connected\n\
             nonsense\n\n5 6:x@y z\n",
        );
        assert_eq!(
            shown(&named),
            [
                "10.0.0.2 6379",
                "10.0.0.2 16379",
                "127.0.0.1 30004",
                "127.0.0.1 31004",
                "::1 6379",
                "::1 16379",
                "redis-2.test 6379",
                "redis-2.test 16379",
            ]
        );
    }

    #[test]
    fn a_group_of_servers_names_both_ports_of_each() {
        let server = [
            ("id", bulk("e10b")),
            ("port", Value::Int(6379)),
            ("tls-port", Value::Int(6380)),
            ("ip", bulk("10.0.0.3")),
            ("endpoint", bulk("?")),
            ("hostname", bulk("redis-3.test")),
        ];
        let server = server.into_iter().flat_map(|(name, value)| [bulk(name), value]).collect();
        let servers = Value::Array(vec![Value::Array(server), Value::Nil]);
        let group = vec![bulk("slots"), Value::Array(vec![]), bulk("nodes"), servers]; // words: allow
        let mut named = Named::new();
        add_groups(&mut named, &Value::Array(vec![Value::Array(group), Value::Int(1)]));
        assert_eq!(
            shown(&named),
            ["10.0.0.3 6379", "10.0.0.3 6380", "redis-3.test 6379", "redis-3.test 6380"]
        );
    }

    #[test]
    fn a_role_names_the_replicas_or_the_primary() {
        let replica = Value::Array(vec![bulk("10.0.0.2"), bulk("6379"), bulk("7")]);
        let replicas = Value::Array(vec![replica, Value::Nil, Value::Array(vec![])]);
        let primary = Value::Array(vec![bulk("master"), Value::Int(7), replicas]); // words: allow
        let follows = vec![bulk("slave"), bulk("redis-1"), Value::Int(6379), bulk("connected")]; // words: allow
        let mut named = Named::new();
        add_role(&mut named, &primary);
        add_role(&mut named, &Value::Array(follows));
        add_role(&mut named, &Value::Nil);
        assert_eq!(shown(&named), ["10.0.0.2 6379", "redis-1 6379"]);
    }
}
