//! The guard: which addresses a webhook may reach.
//!
//! [`Reach`] is configured. An address that is not known to be public is forbidden unless the
//! configuration allows it. Metadata services, link-local and reserved ranges, and the addresses of
//! brokers and stores are always forbidden: a task must not be able to reach the infrastructure
//! that runs it. `dial` checks every address just before it connects to that address.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, PoisonError, RwLock};

use punctual_connectors::Connections;
use punctual_core::{HttpTarget, Invalid, Namespace, NewTask, Target};

/// How far webhooks may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Public addresses only.
    Public,
    /// Also this machine: for a broker that is reachable from this machine only.
    Loopback,
    /// Also private networks.
    Private,
}

/// Why an address may not be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Forbidden {
    #[error("{0} is the broker's own address")]
    Own(IpAddr),
    #[error("{0} is an address of another broker or of the store")]
    Ours(IpAddr),
    #[error("{0} is this machine; --allow-private-targets allows it")]
    Loopback(IpAddr),
    #[error("{0} is in a private network; --allow-private-targets allows it")]
    Private(IpAddr),
    #[error("{0} is a metadata service")]
    Metadata(IpAddr),
    #[error("{0} is not a public address")]
    Special(IpAddr),
}

/// Decides which addresses webhooks may reach. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    reach: Reach,
    own: SocketAddr,
    /// Effective addresses of the shared store and of the other brokers.
    barred: Arc<RwLock<HashSet<SocketAddr>>>,
    /// Which connections a namespace may use.
    connections: Connections,
}

/// Services that give secrets to any caller on the right machine. Some are in ranges that are
/// otherwise allowed.
const METADATA: [IpAddr; 12] = [
    // Most clouds.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // Containers and pods at Amazon.
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    // Alibaba.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Azure, among public addresses.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Oracle.
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // Google.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Scaleway.
    IpAddr::V4(Ipv4Addr::new(169, 254, 42, 42)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

/// IPv4 ranges that are neither public nor private: this network, link-local, protocol assignments,
/// documentation, relays, benchmarks, multicast, reserved and broadcast.
const SPECIAL_V4: [(Ipv4Addr, u32); 10] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Private ranges of IPv4; the last is shared between providers and their customers.
const PRIVATE_V4: [(Ipv4Addr, u32); 4] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
];

/// Ranges within 2000::/3 that are not public: protocol assignments (with Teredo), documentation
/// and 6to4. Teredo and 6to4 can carry any IPv4 address and are no longer used. Nothing outside of
/// 2000::/3 is public.
const SPECIAL_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];
const PUBLIC_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
const PRIVATE_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7);
/// NAT64: the last 32 bits are the IPv4 address that is reached.
const NAT64: (Ipv6Addr, u32) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

impl Guard {
    /// Creates the guard of a broker that listens on `own`.
    pub(crate) fn new(reach: Reach, own: SocketAddr) -> Self {
        Self { reach, own, barred: Arc::default(), connections: Connections::default() }
    }

    /// The guard of a broker with connections.
    pub(crate) fn with_connections(self, connections: Connections) -> Self {
        Self { connections, ..self }
    }

    /// Forbids the addresses of the other brokers and of the store, which could be used to change
    /// everything, and allows those that were forbidden by an earlier call.
    pub(crate) fn bar(&self, addresses: impl Iterator<Item = SocketAddr>) {
        let effective = |it: SocketAddr| SocketAddr::new(effective_ip(it.ip()), it.port());
        let addresses = addresses.map(effective).collect();
        *self.barred.write().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Checks whether a webhook may connect to an address.
    pub(crate) fn check(&self, address: SocketAddr) -> Result<(), Forbidden> {
        check_ip(address.ip(), self.reach)?;
        let ip = effective_ip(address.ip());
        if address.port() == self.own.port() && self.listens_at(ip) {
            return Err(Forbidden::Own(ip));
        }
        let barred = self.barred.read().unwrap_or_else(PoisonError::into_inner);
        if barred.contains(&SocketAddr::new(ip, address.port())) {
            return Err(Forbidden::Ours(ip));
        }
        Ok(())
    }

    /// Checks the targets of a new task: where its deliveries go, and its callbacks.
    pub(crate) fn check_targets(&self, task: &NewTask) -> Result<(), Invalid> {
        let namespace = &task.namespace;
        self.check_target("target", &task.target, namespace)?;
        let callbacks = task.callbacks.as_deref();
        let on_done = callbacks.and_then(|callbacks| callbacks.on_done.as_ref());
        let on_dead = callbacks.and_then(|callbacks| callbacks.on_dead.as_ref());
        on_done.map_or(Ok(()), |target| self.check_target("on_done", target, namespace))?;
        on_dead.map_or(Ok(()), |target| self.check_target("on_dead", target, namespace))
    }

    fn check_target(
        &self,
        field: &str,
        target: &Target,
        namespace: &Namespace,
    ) -> Result<(), Invalid> {
        match target {
            Target::Http(http) => self.check_webhook(&format!("{field}.http.url"), http),
            Target::Grpc(grpc) => self.check_url(&format!("{field}.grpc.url"), grpc.url()),
            Target::Sink(sink) => {
                let named = |invalid: Invalid| invalid.within(field);
                self.connections.check(namespace, sink).map_err(named)
            }
            Target::Queue(_) | Target::Mail(_) => Ok(()),
        }
    }

    /// Checks the address of a webhook whose URL is `field` of the request.
    pub(crate) fn check_webhook(&self, field: &str, http: &HttpTarget) -> Result<(), Invalid> {
        self.check_url(field, http.url())
    }

    /// Checks the address of a URL that is `field` of the request. A host name is checked only when
    /// it is called, because its addresses may change until then.
    fn check_url(&self, field: &str, url: &str) -> Result<(), Invalid> {
        let bad_url = |problem: &str| Invalid::new(field, problem);
        let uri: http::Uri = url.parse().map_err(|_| bad_url("must be a URL"))?;
        let Some((host, port)) = host_and_port(&uri) else {
            return Err(bad_url("must name a host"));
        };
        match host.parse() {
            Ok(ip) => self
                .check(SocketAddr::new(ip, port))
                .map_err(|forbidden| bad_url(&format!("must not be called: {forbidden}"))),
            Err(_) => Ok(()),
        }
    }

    fn listens_at(&self, ip: IpAddr) -> bool {
        let own = effective_ip(self.own.ip());
        // An unspecified address listens on every address of this machine; only such an address can
        // be bound.
        own == ip || (own.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok())
    }
}

/// Returns the host of a URL, without the brackets of IPv6, and its port.
pub(crate) fn host_and_port(uri: &http::Uri) -> Option<(&str, u16)> {
    let host = uri.host()?;
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let port = match (uri.port_u16(), uri.scheme_str()?) {
        (Some(port), "http" | "https") => port,
        (None, "http") => 80,
        (None, "https") => 443,
        _ => return None,
    };
    Some((host, port))
}

/// Checks an address without its port.
fn check_ip(ip: IpAddr, reach: Reach) -> Result<(), Forbidden> {
    let ip = effective_ip(ip);
    if METADATA.contains(&ip) {
        return Err(Forbidden::Metadata(ip));
    }
    let (private, special) = match ip {
        IpAddr::V4(v4) => (PRIVATE_V4.iter().any(in_v4(v4)), SPECIAL_V4.iter().any(in_v4(v4))),
        IpAddr::V6(v6) => {
            let private = in_v6(v6)(&PRIVATE_V6);
            let public = in_v6(v6)(&PUBLIC_V6) && !SPECIAL_V6.iter().any(in_v6(v6));
            (private, !public && !private)
        }
    };
    match reach {
        _ if ip.is_loopback() && reach != Reach::Public => Ok(()),
        _ if ip.is_loopback() => Err(Forbidden::Loopback(ip)),
        _ if special => Err(Forbidden::Special(ip)),
        Reach::Public | Reach::Loopback if private => Err(Forbidden::Private(ip)),
        _ => Ok(()),
    }
}

/// Returns the address that is reached: the inner one of a mapped or translated address.
fn effective_ip(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) if in_v6(v6)(&NAT64) => {
            let [.., a, b, c, d] = v6.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        ip => ip,
    }
}

fn in_v4(ip: Ipv4Addr) -> impl Fn(&(Ipv4Addr, u32)) -> bool {
    move |(network, bits)| (ip.to_bits() ^ network.to_bits()) >> (32 - bits) == 0
}

fn in_v6(ip: Ipv6Addr) -> impl Fn(&(Ipv6Addr, u32)) -> bool {
    move |(network, bits)| (ip.to_bits() ^ network.to_bits()) >> (128 - bits) == 0
}

#[cfg(test)]
mod tests {
    use punctual_core::{HttpTarget, Method};

    use super::*;

    #[test]
    fn the_store_and_other_brokers_are_never_called() {
        let guard = Guard::new(Reach::Private, "127.0.0.1:7400".parse().unwrap());
        let barred = ["127.0.0.1:6379", "[fd00::1]:6379", "10.0.0.2:7400"];
        guard.bar(barred.iter().map(|address| address.parse().unwrap()));
        for (address, fine) in [
            ("127.0.0.1:6379", false),
            ("[::ffff:127.0.0.1]:6379", false),
            ("[fd00::1]:6379", false),
            ("10.0.0.2:7400", false),
            ("[64:ff9b::10.0.0.2]:7400", false),
            ("10.0.0.2:80", true),
            ("127.0.0.1:6380", true),
        ] {
            assert_eq!(guard.check(address.parse().unwrap()).is_ok(), fine, "{address}");
        }
        guard.bar(std::iter::empty());
        assert!(guard.check("10.0.0.2:7400".parse().unwrap()).is_ok());
    }

    #[test]
    fn each_kind_of_address_is_allowed_from_its_reach_on() {
        use Reach::{Loopback, Private, Public};
        /// The smallest reach that allows the address; `None` if none does.
        const NEVER: Option<Reach> = None;
        for (ip, from) in [
            ("8.8.8.8", Some(Public)),
            ("1.1.1.1", Some(Public)),
            ("100.63.255.255", Some(Public)),
            ("100.128.0.0", Some(Public)),
            ("172.15.0.1", Some(Public)),
            ("172.32.0.1", Some(Public)),
            ("223.255.255.255", Some(Public)),
            ("2606:4700::1111", Some(Public)),
            ("2a00:1450:4001::1", Some(Public)),
            // This machine.
            ("127.0.0.1", Some(Loopback)),
            ("127.255.255.254", Some(Loopback)),
            ("::1", Some(Loopback)),
            // Private networks.
            ("10.0.0.1", Some(Private)),
            ("172.16.0.1", Some(Private)),
            ("172.31.255.255", Some(Private)),
            ("192.168.1.1", Some(Private)),
            ("100.64.0.1", Some(Private)),
            ("fc00::1", Some(Private)),
            ("fd12:3456::1", Some(Private)),
            // Metadata services.
            ("169.254.169.254", NEVER),
            ("169.254.170.2", NEVER),
            ("100.100.100.200", NEVER),
            ("168.63.129.16", NEVER),
            ("192.0.0.192", NEVER),
            ("fd00:ec2::254", NEVER),
            ("fd20:ce::254", NEVER),
            ("fe80::a9fe:a9fe", NEVER),
            // Unspecified, link-local, site-local, multicast, reserved.
            ("0.0.0.0", NEVER),
            ("0.1.2.3", NEVER),
            ("::", NEVER),
            ("169.254.1.1", NEVER),
            ("fe80::1", NEVER),
            ("fec0::1", NEVER),
            ("224.0.0.1", NEVER),
            ("239.255.255.255", NEVER),
            ("ff02::1", NEVER),
            ("240.0.0.1", NEVER),
            ("255.255.255.255", NEVER),
            // Documentation, benchmarks, protocols.
            ("192.0.2.1", NEVER),
            ("198.51.100.7", NEVER),
            ("203.0.113.7", NEVER),
            ("198.18.0.1", NEVER),
            ("198.19.255.255", NEVER),
            ("192.88.99.1", NEVER),
            ("2001:db8::1", NEVER),
            ("3fff::1", NEVER),
            ("100::1", NEVER),
            ("5f00::1", NEVER),
            // With an inner address: mapped, NAT64, compatible, 6to4, Teredo, local NAT64.
            ("::ffff:8.8.8.8", Some(Public)),
            ("::ffff:127.0.0.1", Some(Loopback)),
            ("::ffff:10.0.0.1", Some(Private)),
            ("::ffff:169.254.169.254", NEVER),
            ("::ffff:0.0.0.0", NEVER),
            ("64:ff9b::8.8.8.8", Some(Public)),
            ("64:ff9b::127.0.0.1", Some(Loopback)),
            ("64:ff9b::10.0.0.1", Some(Private)),
            ("64:ff9b::169.254.169.254", NEVER),
            ("64:ff9b::168.63.129.16", NEVER),
            ("64:ff9b:1::8.8.8.8", NEVER),
            ("::127.0.0.1", NEVER),
            ("2002:7f00:1::", NEVER),
            ("2002:a9fe:a9fe::", NEVER),
            ("2001:0:4136:e378:8000:63bf:80ff:fffe", NEVER),
        ] {
            let address: IpAddr = ip.parse().unwrap();
            for reach in [Public, Loopback, Private] {
                let allowed = match from {
                    None => false,
                    Some(Public) => true,
                    Some(Loopback) => reach != Public,
                    Some(Private) => reach == Private,
                };
                assert_eq!(check_ip(address, reach).is_ok(), allowed, "{ip} with {reach:?}");
            }
        }
    }

    #[test]
    fn the_brokers_own_address_is_never_called() {
        for (own, address, allowed) in [
            ("127.0.0.1:7400", "127.0.0.1:7400", false),
            ("127.0.0.1:7400", "[::ffff:127.0.0.1]:7400", false),
            ("127.0.0.1:7400", "[64:ff9b::7f00:1]:7400", false),
            ("127.0.0.1:7400", "127.0.0.1:7401", true),
            ("127.0.0.1:7400", "127.0.0.2:7400", true),
            ("[::1]:7400", "[::1]:7400", false),
            ("[::1]:7400", "127.0.0.1:7400", true),
            ("0.0.0.0:7400", "127.0.0.1:7400", false),
            ("0.0.0.0:7400", "127.0.0.2:7400", false),
            ("0.0.0.0:7400", "127.0.0.1:80", true),
            ("[::]:7400", "127.0.0.1:7400", false),
            ("0.0.0.0:7400", "8.8.8.8:7400", true),
        ] {
            let guard = Guard::new(Reach::Private, own.parse().unwrap());
            let answer = guard.check(address.parse().unwrap());
            assert_eq!(answer.is_ok(), allowed, "{address} from {own}: {answer:?}");
        }
    }

    #[test]
    fn a_new_task_is_checked_if_its_url_has_an_address_and_not_if_it_has_a_name() {
        let guard = Guard::new(Reach::Loopback, "127.0.0.1:7400".parse().unwrap());
        let shop = Namespace::new("shop").unwrap();
        for (url, taken) in [
            ("http://127.0.0.1:9000/", true),
            ("http://[::1]:9000/", true),
            ("http://127.0.0.1:7400/v1/shop/tasks", false),
            ("http://10.0.0.1/", false),
            ("http://169.254.169.254/latest/meta-data", false),
            ("https://[fd00:ec2::254]/", false),
            ("http://[::ffff:169.254.169.254]:80/", false),
            ("http://0.0.0.0:9000/", false),
            ("http://metadata.internal/", true),
            ("http://2130706433/", true),
        ] {
            let target = Target::Http(HttpTarget::new(url, Method::Post, vec![]).unwrap());
            let answer = guard.check_target("target", &target, &shop);
            assert_eq!(answer.is_ok(), taken, "{url}: {answer:?}");
            if let Err(invalid) = answer {
                assert_eq!(invalid.field, "target.http.url");
            }
        }
    }
}
