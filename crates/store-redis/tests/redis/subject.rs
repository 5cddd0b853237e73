//! How the suite comes by a Redis store: a name of its own on a server that the whole run shares.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use punctual_core::{Partitions, Seat, Timestamp};
use punctual_store::conformance::fixtures::NOW;
use punctual_store::conformance::{PARTITIONS, Subject};
use punctual_store_redis::{Options, RedisStore, keys};

use punctual_test_support::redis::cli;
use punctual_test_support::redis::shared::{self, RedisLayout};

pub(crate) struct RedisSubject {
    ports: &'static [u16],
    options: Options,
    layout: RedisLayout,
    now: Cell<Timestamp>,
    hand: Cell<Option<DirectConnection>>,
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
        Self { ports, options, layout, now: Cell::new(NOW), hand: Cell::default() }
    }
}

#[allow(dead_code, reason = "not every test looks behind the store")]
impl RedisSubject {
    pub(crate) fn name(&self) -> &str {
        &self.options.cluster
    }

    /// Writes a field of a hash by a foreign hand.
    pub(crate) async fn set(&self, key: &str, field: &str, value: &str) {
        let mut command = redis::cmd("HSET");
        command.arg(key).arg(field).arg(value);
        DirectConnection::reach(self.layout, self.ports).await.send(&command).await;
    }
}

/// A name that no other test has, in whatever process.
pub(crate) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Processes of one run may come by the same number one after another.
    let entropy = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    format!("t{}-{number}-{entropy:x}", std::process::id())
}

pub(crate) fn partitions() -> Partitions {
    Partitions::new(PARTITIONS).expect("a few partitions")
}

impl Subject for RedisSubject {
    type Store = RedisStore;
    const DURABLE: bool = true;
    const STEPS: u64 = 150;

    async fn open(&self) -> RedisStore {
        RedisStore::open(self.options.clone()).await.expect("the store opens").0
    }

    /// The process ends, Redis goes on. What was on its way is made by then, or never.
    async fn crash(&self, store: RedisStore, _entropy: u64) {
        drop(store);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        for port in self.ports {
            cli(*port, &["-r", "20", "PING"]);
        }
    }

    /// Redis counts leases by its own clock, which nobody moves: what is left of them is moved instead.
    async fn pass(&self, _store: &RedisStore, time: Duration) {
        self.now.set(self.now.get().after(time));
        let cluster = &self.options.cluster;
        let mut hand = match self.hand.take() {
            Some(hand) => hand,
            None => DirectConnection::reach(self.layout, self.ports).await,
        };
        for seat in partitions().iter().map(Seat::Partition).chain([Seat::Leader]) {
            hand.age(&keys::own(cluster, seat), self.now.get()).await;
        }
        hand.age_roll(&keys::roll(cluster), time).await;
        self.hand.set(Some(hand));
    }
}

/// Sets what is left of a lease by its `until`.
const AGE: &str = "local ends = redis.call('HGET', KEYS[1], 'until')
if not ends then return 0 end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], 'expires', string.format('%d', now + tonumber(ends) - tonumber(ARGV[1])))
return 1";

/// Makes all that is on the roll older.
const AGE_ROLL: &str = "local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local said, over, from = string.match(all[i + 1], '^(%d+) (%d+) ()')
  local older = string.format('%d %d ', tonumber(said) - tonumber(ARGV[1]), tonumber(over) - tonumber(ARGV[1]))
  redis.call('HSET', KEYS[1], all[i], older .. string.sub(all[i + 1], from))
end
return 1";

/// A connection beside the store's.
enum DirectConnection {
    Single(redis::aio::MultiplexedConnection),
    Cluster(redis::cluster_async::ClusterConnection),
}

impl DirectConnection {
    async fn reach(layout: RedisLayout, ports: &[u16]) -> Self {
        let urls: Vec<_> = ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect();
        match layout {
            RedisLayout::Single => {
                let client = redis::Client::open(urls[0].as_str()).expect("a valid address");
                let connection = client.get_multiplexed_async_connection().await;
                Self::Single(connection.expect("Redis listens"))
            }
            RedisLayout::Cluster => {
                let client = redis::cluster::ClusterClient::new(urls).expect("valid addresses");
                let connection = client.get_async_connection().await;
                Self::Cluster(connection.expect("the Cluster listens"))
            }
        }
    }

    async fn age(&mut self, key: &str, now: Timestamp) {
        self.run(AGE, key, now.as_millis()).await;
    }

    async fn age_roll(&mut self, key: &str, time: Duration) {
        self.run(AGE_ROLL, key, u64::try_from(time.as_millis()).expect("short")).await;
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
        sent.expect("Redis does it");
    }
}
