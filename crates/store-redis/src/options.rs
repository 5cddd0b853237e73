//! Options: where the store is, how much is durable before an answer, and how long anything may take.

use std::time::Duration;

use punctual_core::Partitions;

/// What must have happened to a batch before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The server that takes writes has made it. It is lost if that server fails over before a replica has it (a replica
    /// is usually some milliseconds behind, and any time behind when its link is cut), or if it crashes before it
    /// has synced its file (a second with `appendfsync everysec`).
    #[default]
    Master,
    /// And at least one replica has it too: `WAIT 1`, its answer checked.
    Replica,
    /// And it is synced to the server's own disk: `WAITAOF 1 0`, from Redis 7.2. An older server is taken only with
    /// `appendfsync always`, which syncs before every answer.
    Fsync,
}

/// Where and how.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// `redis://[user:password@]host:port[/db]`, or `rediss://` for TLS. For a Redis Cluster some of its servers; for a
    /// single server with replicas all of them, so that the one that takes writes is found after a failover.
    pub urls: Vec<String>,
    /// The name of this group of brokers; several can share one Redis.
    pub cluster: String,
    /// How many partitions; fixed when the store is first opened.
    pub partitions: Partitions,
    /// What is durable before an answer.
    pub durability: Durability,
    /// How long one call may take, waiting for replicas included. A call that takes longer is answered as unavailable, and
    /// its outcome is not known.
    pub timeout: Duration,
    /// How long connecting to one server may take.
    pub connect_timeout: Duration,
    /// Certificates of a private authority, as PEM, for `rediss://`; the public ones if there are none.
    pub authority_pem: Option<Vec<u8>>,
}

impl RedisOptions {
    /// How long one call may take, unless said otherwise: less than half of the shortest lease that makes sense.
    pub const TIMEOUT: Duration = Duration::from_secs(2);
    /// How long connecting may take, unless said otherwise.
    pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

    /// With everything else left at its default.
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
