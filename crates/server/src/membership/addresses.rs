//! The addresses of the other brokers and of the store, which webhooks must not reach.
//!
//! Brokers and Redis servers come and go, and host names get other addresses. So the servers are
//! read from Redis and all names are resolved again from time to time, and whenever brokers join
//! or leave. While Redis or a name server does not answer, the last known addresses stay refused.
//! The guard (`courier/webhook/guard.rs`) checks each address just before it is called.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use punctual_core::BrokerId;
use punctual_store_any::SharedStore;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Membership;
use crate::courier::Guard;

/// How often servers are read and names are resolved: a few small calls each time.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// How long a name server may take: less than the time from one refresh to the next.
const LOOKUP_MAX: Duration = Duration::from_secs(3);

/// Keeps the addresses that a guard refuses current.
pub(crate) struct BarredAddresses {
    guard: Guard,
    store: SharedStore,
    /// Host and port of each server that the store named last.
    named: Vec<(String, u16)>,
    brokers: Vec<BrokerId>,
    /// The last known addresses of each host.
    hosts: BTreeMap<String, Vec<IpAddr>>,
    /// Hosts whose last lookup failed, and whether the store could not be asked: each is logged
    /// once.
    failed_hosts: HashSet<String>,
    store_failed: bool,
}

impl BarredAddresses {
    pub(crate) fn new(guard: Guard, store: SharedStore) -> Self {
        let (named, brokers, hosts) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (failed_hosts, store_failed) = (HashSet::new(), false);
        Self { guard, store, named, brokers, hosts, failed_hosts, store_failed }
    }

    /// Refreshes the addresses until the broker has left the cluster.
    pub(crate) async fn watch(mut self, membership: Arc<Membership>) {
        let mut left = membership.left.subscribe();
        tokio::select! {
            _ = left.wait_for(|left| *left) => {}
            () = self.refresh_forever(&membership) => {}
        }
    }

    async fn refresh_forever(&mut self, membership: &Membership) {
        let mut views = membership.view.subscribe();
        let mut ticks = interval(REFRESH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                Ok(()) = views.changed() => {
                    let brokers = membership.others();
                    if brokers == self.brokers {
                        continue;
                    }
                    self.brokers = brokers;
                    // Without waiting for Redis and name servers: most addresses need neither.
                    self.bar();
                }
            }
            self.refresh().await;
        }
    }

    /// Reads the servers of the store, and resolves all names.
    pub(crate) async fn refresh(&mut self) {
        let named = self.store.named_servers().await;
        let failed_before = std::mem::replace(&mut self.store_failed, named.is_err());
        match named {
            Ok(named) => self.named = named,
            Err(error) if !failed_before => {
                tracing::warn!(%error, "store servers not read; the last known stay refused");
            }
            Err(_) => {}
        }
        self.resolve().await;
        self.bar();
    }

    /// Returns host and port of everything that webhooks must not reach.
    fn wanted(&self) -> BTreeSet<(&str, u16)> {
        let stores =
            self.store.configured_servers().into_iter().chain(self.named.iter().map(host_and_port));
        stores.chain(self.brokers.iter().filter_map(split)).collect()
    }

    /// Resolves all names. A host that cannot be resolved keeps its last addresses.
    async fn resolve(&mut self) {
        let wanted: HashSet<String> =
            self.wanted().into_iter().map(|(host, _)| host.to_owned()).collect();
        self.hosts.retain(|host, _| wanted.contains(host));
        self.failed_hosts.retain(|host| wanted.contains(host));
        let mut lookups = JoinSet::new();
        for host in wanted.into_iter().filter(|host| host.parse::<IpAddr>().is_err()) {
            lookups.spawn(async move {
                let found = match timeout(LOOKUP_MAX, lookup_host((host.as_str(), 0))).await {
                    Ok(found) => found.map(|found| found.map(|it| it.ip()).collect()),
                    Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
                };
                (host, found)
            });
        }
        while let Some(looked_up) = lookups.join_next().await {
            match looked_up {
                Ok((host, Ok(addresses))) => {
                    self.failed_hosts.remove(&host);
                    self.hosts.insert(host, addresses);
                }
                Ok((host, Err(error))) => {
                    if !self.failed_hosts.contains(&host) {
                        tracing::warn!(host, %error, "address lookup failed");
                        self.failed_hosts.insert(host);
                    }
                }
                // The runtime ends.
                Err(_) => return,
            }
        }
    }

    /// Passes the addresses to the guard.
    fn bar(&self) {
        let addresses = self.wanted().into_iter().flat_map(|(host, port)| {
            let literal = host.parse().ok();
            let resolved = self.hosts.get(host).into_iter().flatten().copied();
            literal.into_iter().chain(resolved).map(move |ip| SocketAddr::new(ip, port))
        });
        self.guard.bar(addresses);
    }
}

fn host_and_port((host, port): &(String, u16)) -> (&str, u16) {
    (host, *port)
}

/// Splits the `HOST:PORT` of a broker. An IPv6 address is in brackets.
fn split(broker: &BrokerId) -> Option<(&str, u16)> {
    let (host, port) = broker.as_str().rsplit_once(':')?;
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    Some((inner.unwrap_or(host), port.parse().ok()?))
}
