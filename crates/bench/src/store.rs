//! The store of the measured brokers: a directory of their own, or a server that the bench starts.
//!
//! Servers sync each commit, as the embedded store does. They share the machine with the broker.

mod database;

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use punctual_sql::SqlKind;

pub(crate) use database::{BenchDatabase, BenchSession};

use crate::broker::cpu_with_children;
use crate::redis::{BenchRedis, Fsync, RespConnection};

/// The database with the tables of the brokers.
const TASKS: &str = "tasks";

/// Which store the brokers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreChoice {
    /// A directory
    Embedded,
    /// A redis-server with `appendfsync always`
    Redis,
    /// A PostgreSQL server with `synchronous_commit = on`
    Postgres,
    /// A MariaDB or MySQL server with `innodb_flush_log_at_trx_commit = 1`
    Mysql,
}

/// The store of the brokers, running.
#[derive(Debug)]
pub(crate) enum BenchStore {
    Embedded,
    Redis(BenchRedis),
    Database(BenchDatabase),
}

impl BenchStore {
    /// Starts the server, if the store has one, with its data in a new directory in `dir`.
    pub(crate) async fn start(choice: StoreChoice, dir: &Path) -> anyhow::Result<Self> {
        let kind = match choice {
            StoreChoice::Embedded => return Ok(Self::Embedded),
            StoreChoice::Redis => {
                return Ok(Self::Redis(BenchRedis::start(dir, Fsync::Always).await?));
            }
            StoreChoice::Postgres => SqlKind::Postgres,
            StoreChoice::Mysql => SqlKind::Mysql,
        };
        let database = BenchDatabase::start(kind, dir).await?;
        database.create(TASKS).await?;
        Ok(Self::Database(database))
    }

    /// The flags of `punctual serve` that name the store.
    pub(crate) fn flags(&self) -> Vec<String> {
        let flag = |flag: &str, url: String| vec![flag.to_owned(), url];
        match self {
            Self::Embedded => Vec::new(),
            Self::Redis(redis) => flag("--redis", format!("redis://127.0.0.1:{}", redis.port())),
            Self::Database(database) => {
                let name = match database.kind() {
                    SqlKind::Postgres => "--postgres",
                    SqlKind::Mysql => "--mysql",
                };
                flag(name, database.url(TASKS))
            }
        }
    }

    /// Removes all tasks of a server. No broker may run.
    pub(crate) async fn renew(&self) -> anyhow::Result<()> {
        match self {
            Self::Embedded => Ok(()),
            Self::Redis(redis) => {
                let mut connection = RespConnection::connect(redis.port()).await?;
                let script = b"redis.call('FLUSHALL') return 1";
                connection.command(3).word(b"EVAL").word(script).word(b"0");
                connection.send().await?;
                connection.number().await.map(drop)
            }
            Self::Database(database) => database.create(TASKS).await,
        }
    }

    /// The server, if it is a database.
    pub(crate) const fn database(&self) -> Option<&BenchDatabase> {
        match self {
            Self::Embedded | Self::Redis(_) => None,
            Self::Database(database) => Some(database),
        }
    }

    /// The CPU time of the server and of the processes that it started.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        cpu_with_children(match self {
            Self::Embedded => None,
            Self::Redis(redis) => redis.pid(),
            Self::Database(database) => database.pid(),
        }?)
    }

    /// Bytes of the server's data on disk.
    pub(crate) fn disk_bytes(&self) -> Option<u64> {
        match self {
            Self::Embedded | Self::Redis(_) => None,
            Self::Database(database) => Some(database.disk_bytes()),
        }
    }
}
