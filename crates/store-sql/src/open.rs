//! Opens a store: connects, creates or checks the tables, and checks the server.
//!
//! Settings of the server that an operator may have chosen on purpose are warnings. A setting that
//! makes the requested durability impossible is an error.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use punctual_core::Partitions;
use punctual_sql::postgres::{self, PostgresClient};
use punctual_sql::{SqlError, SqlKind};
use punctual_store::codec::Interner;
use punctual_store::{EpochTracker, StoreError};

use crate::damage::DamagedRows;
use crate::error::SqlOpenError;
use crate::options::{SqlDurability, SqlStoreOptions, fault_of_name};
use crate::postgres::schema::{FORMAT, TABLES};
use crate::postgres::session::{SessionOptions, SessionRole, SessionSlot, WriteSlot};
use crate::store::PostgresStore;

/// The oldest supported version of the server, as `server_version_num` counts.
const VERSION_MIN: u32 = 130_000;
/// Connections for batches: as many are committed at once by one flush of the server.
const WRITE_CONNECTIONS_MAX: usize = 4;
/// Taken while the tables are created, so that two brokers do not create them at once.
const CREATION_LOCK: i64 = 0x7075_6e63_7475_616c;

const META: &str = "SELECT value FROM meta WHERE name = $1";
const PROPOSE_META: &str =
    "INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";

impl PostgresStore {
    /// Opens a store. The first broker that opens it creates its tables and fixes its number of
    /// partitions. Returns the store, and warnings for the operator.
    pub async fn open(options: SqlStoreOptions) -> Result<(Self, Vec<String>), SqlOpenError> {
        check_options(&options)?;
        let connection = postgres::connect(&options.sql).await?;
        let server = ServerSettings::read(&connection).await?;
        let warnings = server.check(options.durability)?;
        create(&connection, &options.cluster).await?;
        drop(connection);
        let SqlStoreOptions { sql, cluster, partitions, durability } = options;
        let session_options = Arc::new(SessionOptions { sql, cluster, durability });
        let writes = (0..WRITE_CONNECTIONS_MAX.min(usize::from(partitions.count())))
            .map(|_| WriteSlot {
                slot: SessionSlot::new(SessionRole::Write),
                turn: tokio::sync::Mutex::default(),
            })
            .collect();
        let store = Self {
            partitions,
            options: session_options,
            writes,
            seats: SessionSlot::new(SessionRole::Write),
            sweeps: SessionSlot::new(SessionRole::Write),
            lookups: SessionSlot::new(SessionRole::Read),
            loads: SessionSlot::new(SessionRole::Read),
            pages: SessionSlot::new(SessionRole::Read),
            epochs: EpochTracker::default(),
            interner: Interner::default(),
            rewinds: AtomicU64::new(0),
            damage: DamagedRows::default(),
            sweeping: tokio::sync::Mutex::default(),
        };
        store.fix_or_check().await?;
        Ok((store, warnings))
    }

    /// Returns the number of partitions of an existing store, or `None` if there is no store.
    pub async fn partitions_in(
        options: &SqlStoreOptions,
    ) -> Result<Option<Partitions>, SqlOpenError> {
        check_options(options)?;
        let connection = postgres::connect(&options.sql).await?;
        if !exists(&connection, &options.cluster).await? {
            return Ok(None);
        }
        let query =
            format!("SELECT value FROM \"{}\".meta WHERE name = 'partitions'", options.cluster);
        let rows = connection.within(connection.query(&query, &[])).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let made: String = row.get(0);
        let count = made.parse().ok().and_then(|count| Partitions::new(count).ok());
        count.map(Some).ok_or_else(|| {
            let why = format!("the store has an unreadable number of partitions: {made:?}");
            SqlOpenError::Store(StoreError::Broken(why))
        })
    }

    /// Stores format and number of partitions at the first start, and checks them at every other.
    async fn fix_or_check(&self) -> Result<(), SqlOpenError> {
        let cluster = self.options.cluster.clone();
        let configured = self.partitions.count();
        let format = get_or_propose(&self.seats, &self.options, "format", FORMAT).await?;
        if format != FORMAT {
            return Err(SqlOpenError::Format { cluster, format, ours: FORMAT });
        }
        let proposed = configured.to_string();
        let made = get_or_propose(&self.seats, &self.options, "partitions", &proposed).await?;
        if made != proposed {
            return Err(SqlOpenError::Partitions { cluster, made, configured });
        }
        Ok(())
    }
}

fn check_options(options: &SqlStoreOptions) -> Result<(), SqlOpenError> {
    if options.sql.kind != SqlKind::Postgres {
        let why = "the store needs a postgres:// URL".to_owned();
        return Err(SqlOpenError::Options(why));
    }
    match fault_of_name(&options.cluster) {
        Some(fault) => Err(SqlOpenError::Options(format!("the cluster name {fault}"))),
        None => Ok(()),
    }
}

async fn exists(connection: &PostgresClient, cluster: &str) -> Result<bool, SqlError> {
    let query = "SELECT 1 FROM pg_tables WHERE schemaname = $1 AND tablename = 'meta'";
    let rows = connection.within(connection.query(query, &[&cluster])).await?;
    Ok(!rows.is_empty())
}

/// Creates schema and tables, if they do not exist. A user without the right to create them can
/// open a store that exists.
async fn create(connection: &PostgresClient, cluster: &str) -> Result<(), SqlError> {
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

/// Returns a value that is fixed once, and proposes one if there is none. The first proposal wins,
/// so that two brokers that start together agree.
pub(crate) async fn get_or_propose(
    slot: &SessionSlot,
    options: &Arc<SessionOptions>,
    name: &str,
    proposed: &str,
) -> Result<String, StoreError> {
    for _ in 0..2 {
        let rows = slot.call(options, META, &[&name]).await?;
        if let Some(row) = rows.first() {
            return Ok(row.get(0));
        }
        slot.call(options, PROPOSE_META, &[&name, &proposed]).await?;
    }
    let rows = slot.call(options, META, &[&name]).await?;
    let row = rows.first().ok_or_else(|| {
        StoreError::Broken(format!("the database does not keep the value {name} of table meta"))
    })?;
    Ok(row.get(0))
}

/// Settings of a server that matter for durability.
#[derive(Debug, Default)]
struct ServerSettings {
    settings: HashMap<String, String>,
    /// Connected replicas, and how many of them are synchronous.
    replicas: (i64, i64),
}

impl ServerSettings {
    async fn read(connection: &PostgresClient) -> Result<Self, SqlError> {
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
    fn check(&self, durability: SqlDurability) -> Result<Vec<String>, SqlOpenError> {
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
}
