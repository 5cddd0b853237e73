//! The Redis store for the conformance suite: a cluster name of its own on shared servers.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use punctual_core::{Partitions, Seat, Timestamp};
use punctual_store::conformance::fixtures::NOW;
use punctual_store::conformance::{PARTITIONS, Subject};
use punctual_store_redis::{Options, RedisStore, keys};
use punctual_test_support::redis::cli;
use punctual_test_support::redis::shared::{self, RedisLayout};

/// Opens stores under one cluster name.
pub(crate) struct RedisSubject {
    ports: &'static [u16],
    options: Options,
    layout: RedisLayout,
    now: Cell<Timestamp>,
    direct: Cell<Option<DirectConnection>>,
}

impl RedisSubject {
    pub(crate) fn single() -> Self {
        Self::new(RedisLayout::Single)
    }

    pub(crate) fn cluster() -> Self {
        Self::new(RedisLayout::Cluster)
    }

    fn new(layout: RedisLayout) -> Self {
        let ports = shared::ports(layout);
        let urls = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
        let mut options = Options::new(urls, &unique_name(), partitions());
        options.timeout = Duration::from_secs(10);
        Self { ports, options, layout, now: Cell::new(NOW), direct: Cell::default() }
    }
}

impl RedisSubject {
    pub(crate) fn name(&self) -> &str {
        &self.options.cluster
    }

    /// Writes a field of a hash, past the store.
    pub(crate) async fn set(&self, key: &str, field: &str, value: &str) {
        let mut command = redis::cmd("HSET");
        command.arg(key).arg(field).arg(value);
        DirectConnection::open(self.layout, self.ports).await.send(&command).await;
    }
}

/// Returns a name that no other test has, in any process.
pub(crate) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Processes of one run may get the same id one after another.
    let entropy = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    format!("t{}-{number}-{entropy:x}", std::process::id())
}

pub(crate) fn partitions() -> Partitions {
    Partitions::new(PARTITIONS).expect("a valid count")
}

impl Subject for RedisSubject {
    type Store = RedisStore;
    const DURABLE: bool = true;
    const STEPS: u64 = 150;

    async fn open(&self) -> RedisStore {
        RedisStore::open(self.options.clone()).await.expect("the store opens").0
    }

    /// The process ends while Redis runs. Requests in flight are applied by then, or never.
    async fn crash(&self, store: RedisStore, _entropy: u64) {
        drop(store);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        for port in self.ports {
            cli(*port, &["-r", "20", "PING"]);
        }
    }

    /// Redis measures leases by its own clock, which a test cannot move. So the remaining time of
    /// each lease is moved instead.
    async fn pass(&self, _store: &RedisStore, time: Duration) {
        self.now.set(self.now.get().after(time));
        let cluster = &self.options.cluster;
        let mut direct = match self.direct.take() {
            Some(direct) => direct,
            None => DirectConnection::open(self.layout, self.ports).await,
        };
        for seat in partitions().iter().map(Seat::Partition).chain([Seat::Leader]) {
            direct.age(&keys::own(cluster, seat), self.now.get()).await;
        }
        direct.age_members(&keys::roll(cluster), time).await;
        self.direct.set(Some(direct));
    }
}

/// Sets the remaining time of a lease from its `until`.
const AGE: &str = "local ends = redis.call('HGET', KEYS[1], 'until')
if not ends then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local expires = now + tonumber(ends) - tonumber(ARGV[1])
redis.call('HSET', KEYS[1], 'expires', string.format('%d', expires))
return 1";

/// Makes all heartbeats older.
const AGE_MEMBERS: &str = "local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local sent, over, from = string.match(all[i + 1], '^(%d+) (%d+) ()')
  local age = tonumber(ARGV[1])
  local older = string.format('%d %d ', tonumber(sent) - age, tonumber(over) - age)
  redis.call('HSET', KEYS[1], all[i], older .. string.sub(all[i + 1], from))
end
return 1";

/// A connection that bypasses the store.
enum DirectConnection {
    Single(redis::aio::MultiplexedConnection),
    Cluster(redis::cluster_async::ClusterConnection),
}

impl DirectConnection {
    async fn open(layout: RedisLayout, ports: &[u16]) -> Self {
        let urls: Vec<_> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
        match layout {
            RedisLayout::Single => {
                let client = redis::Client::open(urls[0].as_str()).expect("a valid URL");
                let connection = client.get_multiplexed_async_connection().await;
                Self::Single(connection.expect("Redis listens"))
            }
            RedisLayout::Cluster => {
                let client = redis::cluster::ClusterClient::new(urls).expect("valid URLs");
                let connection = client.get_async_connection().await;
                Self::Cluster(connection.expect("the Cluster listens"))
            }
        }
    }

    async fn age(&mut self, key: &str, now: Timestamp) {
        self.run(AGE, key, now.as_millis()).await;
    }

    async fn age_members(&mut self, key: &str, time: Duration) {
        self.run(AGE_MEMBERS, key, u64::try_from(time.as_millis()).expect("a short time")).await;
    }

    async fn run(&mut self, script: &str, key: &str, argument: u64) {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(1).arg(key).arg(argument);
        self.send(&command).await;
    }

    async fn send(&mut self, command: &redis::Cmd) {
        let sent: Result<i64, _> = match self {
            Self::Single(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(connection).await,
        };
        sent.expect("Redis runs the command");
    }
}
