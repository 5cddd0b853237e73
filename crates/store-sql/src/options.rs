//! Options: where the database is, how durable a write must be, and how long a call may take.

use std::time::Duration;

use punctual_core::Partitions;
use punctual_sql::SqlOptions;

/// How durable a batch must be before `apply` returns `Ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SqlDurability {
    /// As the server is configured: with the defaults of PostgreSQL and MySQL, on the disk of the
    /// primary, and on that of synchronous replicas if the server has some.
    #[default]
    Server,
    /// On the disk of the primary, whatever the server's default is.
    Fsync,
    /// On the disk of a synchronous replica too. Needs synchronous replication in PostgreSQL, and
    /// semi-synchronous replication in MySQL.
    Replica,
}

/// How to reach a store in a database.
#[derive(Debug, Clone)]
pub struct SqlStoreOptions {
    /// The database, and how to connect to it.
    pub sql: SqlOptions,
    /// The name of this cluster of brokers: its schema in PostgreSQL, and the beginning of the
    /// names of its tables in MySQL. Several clusters can share one database.
    pub cluster: String,
    /// The number of partitions; fixed when the store is first opened.
    pub partitions: Partitions,
    /// How durable a write must be before it returns.
    pub durability: SqlDurability,
}

impl SqlStoreOptions {
    /// The default of [`SqlOptions::statement_timeout`] for a store: less than half of the usual
    /// lease.
    pub const TIMEOUT: Duration = Duration::from_secs(4);
    /// How long a statement may take while a store is opened: another broker may create the tables,
    /// and no lease depends on it yet.
    const OPENING_TIMEOUT: Duration = Duration::from_secs(30);

    /// Creates options with the defaults.
    #[must_use]
    pub fn new(mut sql: SqlOptions, cluster: &str, partitions: Partitions) -> Self {
        sql.statement_timeout = Self::TIMEOUT;
        let durability = SqlDurability::default();
        Self { sql, cluster: cluster.to_owned(), partitions, durability }
    }

    /// How to connect while the store is opened.
    pub(crate) fn opening(&self) -> SqlOptions {
        let statement_timeout = self.sql.statement_timeout.max(Self::OPENING_TIMEOUT);
        SqlOptions { statement_timeout, ..self.sql.clone() }
    }
}

/// Returns what is wrong with the letters of a cluster name, which is a part of names in the
/// database.
pub(crate) fn fault_of_letters(cluster: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let fault = "may contain only letters, digits, - and _";
    (!cluster.bytes().all(plain)).then_some(fault)
}
