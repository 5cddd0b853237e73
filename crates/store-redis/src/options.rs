//! Options: where Redis is, how durable a write must be, and how long a call may take.

use std::time::Duration;

use punctual_core::Partitions;

/// How durable a batch must be before `apply` returns `Ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The primary server has made the batch. The batch is lost if that server fails over before a
    /// replica has it (a replica is usually some milliseconds behind, and any time behind while its
    /// connection is cut), or if it crashes before it has synced its file (within a second with
    /// `appendfsync everysec`).
    #[default]
    Master,
    /// At least one replica has the batch too: `WAIT 1`, with its reply checked.
    Replica,
    /// The batch is also synced to the disk of the server: `WAITAOF 1 0`, since Redis 7.2. An older
    /// server is accepted only with `appendfsync always`, which syncs before every reply.
    Fsync,
}

/// How to reach a store in Redis.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://[user:password@]host:port[/db]`, or `rediss://` for TLS. For a Redis Cluster some
    /// of its servers; for a single server with replicas all of them, so that the new primary is
    /// found after a failover.
    pub urls: Vec<String>,
    /// The name of this cluster of brokers; several clusters can share one Redis.
    pub cluster: String,
    /// The number of partitions; fixed when the store is first opened.
    pub partitions: Partitions,
    /// How durable a write must be before it returns.
    pub durability: Durability,
    /// How long one call may take, including the wait for replicas. A longer call returns
    /// `Unavailable`, and its result is not known.
    pub timeout: Duration,
    /// How long connecting to one server may take.
    pub connect_timeout: Duration,
    /// Certificates of a private authority in PEM, for `rediss://`; without them the public
    /// authorities are trusted.
    pub authority_pem: Option<Vec<u8>>,
}

impl RedisOptions {
    /// The default of [`RedisOptions::timeout`]: less than half of the shortest useful lease.
    pub const TIMEOUT: Duration = Duration::from_secs(2);
    /// The default of [`RedisOptions::connect_timeout`].
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

    /// Creates options with the defaults.
    #[must_use]
    pub fn new(urls: Vec<String>, cluster: &str, partitions: Partitions) -> Self {
        Self {
            urls,
            cluster: cluster.to_owned(),
            partitions,
            durability: Durability::default(),
            timeout: Self::TIMEOUT,
            connect_timeout: Self::CONNECT_TIMEOUT,
            authority_pem: None,
        }
    }
}
