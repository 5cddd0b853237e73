//! The server: its settings that matter for durability, and the schema of a cluster.
//!
//! Settings that an operator may have chosen on purpose are warnings. A setting that makes the
//! requested durability impossible is an error.

use std::collections::HashMap;

use punctual_sql::SqlError;
use punctual_sql::postgres::PostgresClient;

use super::schema::TABLES;
use crate::error::SqlOpenError;
use crate::options::{SqlDurability, fault_of_letters};

/// The oldest supported version of the server, as `server_version_num` counts.
const VERSION_MIN: u32 = 130_000;
/// Taken while the tables are created, so that two brokers do not create them at once.
const CREATION_LOCK: i64 = 0x7075_6e63_7475_616c;
/// The longest cluster name: PostgreSQL cuts identifiers after 63 bytes.
const CLUSTER_BYTES_MAX: usize = 63;

/// Returns why a cluster cannot have this name, if it cannot: the name is that of a schema.
pub(super) fn fault_of_name(cluster: &str) -> Option<&'static str> {
    if cluster.is_empty() || cluster.len() > CLUSTER_BYTES_MAX {
        return Some("must have 1 to 63 characters");
    }
    let reserved = cluster.starts_with("pg_") || cluster == "information_schema";
    let fault = "is reserved by PostgreSQL; choose one that does not begin with pg_";
    fault_of_letters(cluster).or(reserved.then_some(fault))
}

/// Returns the number of partitions of an existing store as it is stored, or `None`.
pub(super) async fn stored_partitions(
    connection: &PostgresClient,
    cluster: &str,
) -> Result<Option<String>, SqlError> {
    if !exists(connection, cluster).await? {
        return Ok(None);
    }
    let query = format!("SELECT value FROM \"{cluster}\".meta WHERE name = 'partitions'");
    let rows = connection.within(connection.query(&query, &[])).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

async fn exists(connection: &PostgresClient, cluster: &str) -> Result<bool, SqlError> {
    let query = "SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'meta'";
    let rows = connection.within(connection.query(query, &[&cluster])).await?;
    Ok(!rows.is_empty())
}

/// Creates schema and tables, if they do not exist. A user without the right to create them can
/// open a store that exists.
pub(super) async fn create(connection: &PostgresClient, cluster: &str) -> Result<(), SqlError> {
    if exists(connection, cluster).await? {
        return Ok(());
    }
    let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({CREATION_LOCK})");
    connection.within(connection.batch_execute(&lock)).await?;
    if !exists(connection, cluster).await? {
        let make = format!(
            "CREATE SCHEMA IF NOT EXISTS \"{cluster}\"; SET LOCAL search_path TO \"{cluster}\"; \
             {TABLES}"
        );
        connection.within(connection.batch_execute(&make)).await?;
    }
    connection.within(connection.batch_execute("COMMIT")).await
}

/// Settings of a server that matter for durability.
#[derive(Debug, Default)]
pub(super) struct ServerSettings {
    settings: HashMap<String, String>,
    /// Connected replicas, and how many of them are synchronous.
    replicas: (i64, i64),
}

impl ServerSettings {
    pub(super) async fn read(connection: &PostgresClient) -> Result<Self, SqlError> {
        let query = "SELECT name, setting FROM pg_settings WHERE name IN ('server_version_num', \
             'server_version', 'fsync', 'synchronous_commit', 'full_page_writes', \
             'synchronous_standby_names')";
        let rows = connection.within(connection.query(query, &[])).await?;
        let settings = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        // A user without rights sees no states; then there is no warning about replicas.
        let query = "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) \
             FROM pg_stat_replication WHERE state IS NOT NULL";
        let rows = connection.within(connection.query(query, &[])).await?;
        let replicas = rows.first().map_or((0, 0), |row| (row.get(0), row.get(1)));
        Ok(Self { settings, replicas })
    }

    fn get(&self, name: &str) -> &str {
        self.settings.get(name).map_or("", String::as_str)
    }

    /// Returns warnings, or why the server cannot be used.
    pub(super) fn check(&self, durability: SqlDurability) -> Result<Vec<String>, SqlOpenError> {
        let shown = self.get("server_version");
        if self.get("server_version_num").parse::<u32>().unwrap_or(0) < VERSION_MIN {
            let problem = format!("PostgreSQL {shown} is too old; use PostgreSQL 13 or later");
            return Err(SqlOpenError::Server(problem));
        }
        let has_synchronous = !self.get("synchronous_standby_names").is_empty();
        if durability == SqlDurability::Replica && !has_synchronous {
            let problem = "durability `replica` needs synchronous replication: set \
                           `synchronous_standby_names` on the server";
            return Err(SqlOpenError::Server(problem.to_owned()));
        }
        let fsync_off = self.get("fsync") == "off";
        if durability == SqlDurability::Fsync && fsync_off {
            let problem = "durability `fsync` needs `fsync = on` on the server";
            return Err(SqlOpenError::Server(problem.to_owned()));
        }
        let mut warnings = Vec::new();
        let mut warn = |text: &str| warnings.push(text.to_owned());
        if fsync_off {
            warn(
                "PostgreSQL has `fsync = off`: a crash of its machine loses or damages all data; \
                 set `fsync = on`",
            );
        }
        if self.get("full_page_writes") == "off" {
            warn(
                "PostgreSQL has `full_page_writes = off`: a crash of its machine may damage data; \
                 set `full_page_writes = on`",
            );
        }
        let commit = self.get("synchronous_commit");
        if durability == SqlDurability::Server && (commit == "off" || commit == "local") {
            let lost = match commit {
                "off" => "a crash loses the last acknowledged changes",
                _ => "commits do not wait for synchronous replicas",
            };
            warn(&format!(
                "PostgreSQL has `synchronous_commit = {commit}`: {lost}; set \
                 `synchronous_commit = on`, or `--durability fsync`"
            ));
        }
        let (replicas, synchronous) = self.replicas;
        if replicas > 0 && synchronous == 0 {
            warn(
                "PostgreSQL has asynchronous replicas only: a failover to one loses the last \
                 acknowledged changes; set `synchronous_standby_names`",
            );
        }
        Ok(warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(changes: &[(&str, &str)]) -> ServerSettings {
        let mut settings: HashMap<String, String> = [
            ("server_version_num", "150018"),
            ("server_version", "15.18"),
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", "on"),
            ("synchronous_standby_names", ""),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (name, value) in changes {
            settings.insert((*name).to_owned(), (*value).to_owned());
        }
        ServerSettings { settings, replicas: (0, 0) }
    }

    #[test]
    fn dangerous_settings_cause_warnings() {
        for (changes, warnings) in [
            (&[][..], 0),
            (&[("fsync", "off")], 1),
            (&[("full_page_writes", "off"), ("synchronous_commit", "off")], 2),
            (&[("synchronous_commit", "local")], 1),
        ] {
            let found = server(changes).check(SqlDurability::Server).unwrap();
            assert_eq!(found.len(), warnings, "{changes:?}: {found:?}");
        }
        let replicas = ServerSettings { replicas: (2, 0), ..server(&[]) };
        assert_eq!(replicas.check(SqlDurability::Server).unwrap().len(), 1);
        let replicas = ServerSettings { replicas: (2, 1), ..server(&[]) };
        assert_eq!(replicas.check(SqlDurability::Server).unwrap().len(), 0);
    }

    #[test]
    fn a_server_that_cannot_keep_the_durability_is_refused() {
        for (changes, durability, fine) in [
            (&[("server_version_num", "120020")][..], SqlDurability::Server, false),
            (&[("server_version_num", "130000")], SqlDurability::Server, true),
            (&[("fsync", "off")], SqlDurability::Fsync, false),
            (&[], SqlDurability::Replica, false),
            (&[("synchronous_standby_names", "*")], SqlDurability::Replica, true),
        ] {
            assert_eq!(server(changes).check(durability).is_ok(), fine, "{changes:?}");
        }
    }

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
