//! Options: where the database is, how durable a write must be, and how long a call may take.

use std::time::Duration;

use punctual_core::Partitions;
use punctual_sql::SqlOptions;

/// How durable a batch must be before `apply` returns `Ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SqlDurability {
    /// As the server is configured: with the defaults of PostgreSQL, on the disk of the primary,
    /// and on that of the synchronous replicas if `synchronous_standby_names` names some.
    #[default]
    Server,
    /// On the disk of the primary, whatever the server's default is.
    Fsync,
    /// On the disk of a synchronous replica too. Needs `synchronous_standby_names`.
    Replica,
}

/// How to reach a store in a database.
#[derive(Debug, Clone)]
pub struct SqlStoreOptions {
    /// The database, and how to connect to it.
    pub sql: SqlOptions,
    /// The name of this cluster of brokers, which is the name of its schema. Several clusters can
    /// share one database.
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
    /// The longest cluster name: PostgreSQL cuts identifiers after 63 bytes.
    pub const CLUSTER_BYTES_MAX: usize = 63;

    /// Creates options with the defaults.
    #[must_use]
    pub fn new(mut sql: SqlOptions, cluster: &str, partitions: Partitions) -> Self {
        sql.statement_timeout = Self::TIMEOUT;
        let durability = SqlDurability::default();
        Self { sql, cluster: cluster.to_owned(), partitions, durability }
    }
}

/// Returns why a cluster cannot have this name, if it cannot: the name is that of a schema.
pub(crate) fn fault_of_name(cluster: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if cluster.is_empty() || cluster.len() > SqlStoreOptions::CLUSTER_BYTES_MAX {
        return Some("must have 1 to 63 characters");
    }
    if !cluster.bytes().all(plain) {
        return Some("may contain only letters, digits, - and _");
    }
    let reserved = cluster.starts_with("pg_") || cluster == "information_schema";
    reserved.then_some("is reserved by PostgreSQL; choose one that does not begin with pg_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_schema_of_ours_is_refused() {
        for (name, good) in [
            ("punctual", true),
            ("Shop-2_b", true),
            ("", false),
            ("a\"b", false),
            ("a.b", false),
            ("pg_catalog", false),
            ("information_schema", false),
            (&"a".repeat(63), true),
            (&"a".repeat(64), false),
        ] {
            assert_eq!(fault_of_name(name).is_none(), good, "{name}");
        }
    }
}
