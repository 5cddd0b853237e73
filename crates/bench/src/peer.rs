//! The system that runs beside the broker, and the work of a row as a program on it does it.
//!
//! Each side is chosen in favour of the other system: the fewest commands or statements that do the
//! work, and nothing else. `docs/performance.md` lists them. [`crate::redis::work`] has those of
//! Redis, `postgres` those of PostgreSQL.

mod postgres;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::broker::{cpu_with_children, usage};
use crate::redis::work::{self, RedisCommands, RedisTarget};
use crate::redis::{BenchRedis, Fsync};
use crate::report::{BESIDE_POSTGRES, BESIDE_REDIS, ReportColumns};
use postgres::BesidePostgres;

/// The system that runs beside the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Beside {
    /// Redis, with commands for each task: the replies tell what happened to it
    Redis,
    /// Redis, with one command for a whole batch: the reply is only a count
    RedisBulk,
    /// PostgreSQL, with one statement for a whole batch: the reply is only a count
    Postgres,
}

impl Beside {
    /// The name in JSON.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Redis | Self::RedisBulk => "redis",
            Self::Postgres => "postgres",
        }
    }

    pub(crate) const fn columns(self) -> ReportColumns {
        match self {
            Self::Redis | Self::RedisBulk => BESIDE_REDIS,
            Self::Postgres => BESIDE_POSTGRES,
        }
    }
}

/// A server that runs beside the broker. The bench has started it.
#[derive(Debug)]
pub(crate) struct BenchPeer {
    beside: Beside,
    server: PeerServer,
}

#[derive(Debug)]
enum PeerServer {
    Redis(BenchRedis),
    Postgres(BesidePostgres),
}

/// Where the work of a row is sent.
#[derive(Debug, Clone)]
pub(crate) enum PeerTarget {
    Redis(RedisTarget),
    /// The URL of the database.
    Postgres(String),
}

/// A task as the other system has it.
#[derive(Debug)]
pub(crate) struct PeerTask {
    pub(crate) name: String,
    pub(crate) number: u64,
    pub(crate) due_ms: u64,
}

impl PeerTask {
    /// A task without a key of its own: its name is as long as an id of a broker.
    pub(crate) fn unnamed(number: u64, due_ms: u64) -> Self {
        Self { name: format!("{number:026}"), number, due_ms }
    }
}

/// What is done with the tasks of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PeerVerb {
    Schedule,
    /// Moves the due time of tasks that exist.
    Touch,
    Cancel,
}

/// Tasks of one claim in a drain.
pub(crate) const CLAIM_TASKS_MAX: usize = 1000;

impl BenchPeer {
    /// Starts a server with its data in a new directory in `dir`.
    pub(crate) async fn start(beside: Beside, dir: &Path) -> anyhow::Result<Self> {
        let server = match beside {
            Beside::Redis | Beside::RedisBulk => {
                PeerServer::Redis(BenchRedis::start(dir, Fsync::Always).await?)
            }
            Beside::Postgres => PeerServer::Postgres(BesidePostgres::start(dir).await?),
        };
        Ok(Self { beside, server })
    }

    pub(crate) const fn word(&self) -> &'static str {
        self.beside.word()
    }

    /// Removes all tasks.
    pub(crate) async fn renew(self, dir: &Path) -> anyhow::Result<Self> {
        let beside = self.beside;
        match self.server {
            // A new server has an empty append-only file.
            PeerServer::Redis(redis) => {
                redis.stop().await?;
                Self::start(beside, dir).await
            }
            PeerServer::Postgres(database) => {
                database.renew().await?;
                Ok(Self { beside, server: PeerServer::Postgres(database) })
            }
        }
    }

    pub(crate) fn target(&self) -> PeerTarget {
        match &self.server {
            PeerServer::Redis(redis) => PeerTarget::Redis(RedisTarget {
                port: redis.port(),
                commands: match self.beside {
                    Beside::RedisBulk => RedisCommands::Bulk,
                    Beside::Redis | Beside::Postgres => RedisCommands::Each,
                },
            }),
            PeerServer::Postgres(database) => PeerTarget::Postgres(database.url()),
        }
    }

    /// The CPU time of the server and of the processes that it started.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        cpu_with_children(match &self.server {
            PeerServer::Redis(redis) => redis.pid(),
            PeerServer::Postgres(database) => database.pid(),
        }?)
    }

    /// The resident memory of a server that is one process. The processes of PostgreSQL share
    /// theirs.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        match &self.server {
            PeerServer::Redis(redis) => Some(usage(redis.pid()?)?.resident_bytes),
            PeerServer::Postgres(_) => None,
        }
    }
}

impl PeerTarget {
    /// Sends batches on one connection until `next` has no more, with this many in flight. A batch
    /// is built while others are in flight. Returns how many tasks the server has acknowledged.
    pub(crate) async fn send(
        self,
        verb: PeerVerb,
        in_flight: usize,
        next: impl FnMut() -> Option<Vec<PeerTask>>,
    ) -> anyhow::Result<u64> {
        match self {
            Self::Redis(target) => work::send(target, verb, in_flight, next).await,
            Self::Postgres(url) => postgres::send(&url, verb, in_flight, next).await,
        }
    }

    /// Claims and acks tasks that are due until all workers together have received `count`.
    /// Returns how many this one has received. An ack is written together with the next claim.
    pub(crate) async fn drain(self, count: u64, received: Arc<AtomicU64>) -> anyhow::Result<u64> {
        match self {
            Self::Redis(target) => work::drain(target.port, count, received).await,
            Self::Postgres(url) => postgres::drain(&url, count, received).await,
        }
        .context("a worker of the other system failed")
    }
}
