//! The server: its settings that matter, and the tables of a cluster.
//!
//! Settings that an operator may have chosen on purpose are warnings. A setting that makes the
//! requested durability impossible is an error.

use std::collections::HashMap;
use std::time::Duration;

use punctual_sql::mysql_async::prelude::Queryable as _;
use punctual_sql::mysql_async::{Conn, Row};
use punctual_sql::{SqlError, SqlOptions, mysql};

use super::schema::TABLES;
use super::template::{ValueStyle, fill};
use crate::error::SqlOpenError;
use crate::options::{SqlDurability, fault_of_letters};
use crate::values::Columns as _;

/// The oldest supported versions.
const MYSQL_MIN: (u32, u32) = (8, 0);
const MARIADB_MIN: (u32, u32) = (10, 6);
/// The smallest packet that the server must accept: a task of the largest size as hexadecimal
/// digits, with answers.
const PACKET_MIN: usize = 4 << 20;
/// The largest packet of a batch. A larger one would keep the seat locked while it travels.
const PACKET_MAX: usize = 8 << 20;
/// Names of tables have 64 letters at most, of which the longest suffix has eleven.
const CLUSTER_BYTES_MAX: usize = 50;
/// How long a commit must wait for a replica before the server stops waiting for replicas: shorter
/// times make `--durability replica` a promise that an outage of the replica breaks.
const REPLICA_WAIT_MIN: Duration = Duration::from_secs(3600);

/// Which of the two servers it is: some settings have other names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerFlavor {
    Mysql,
    Mariadb,
}

/// Returns why a cluster cannot have this name, if it cannot: names of tables begin with it.
pub(super) fn fault_of_name(cluster: &str) -> Option<&'static str> {
    if cluster.is_empty() || cluster.len() > CLUSTER_BYTES_MAX {
        return Some("must have 1 to 50 characters for MySQL");
    }
    fault_of_letters(cluster)
}

async fn query(
    connection: &mut Conn,
    options: &SqlOptions,
    text: &str,
) -> Result<Vec<Row>, SqlError> {
    mysql::within(options.statement_timeout, connection.query(text)).await
}

async fn exists(
    connection: &mut Conn,
    options: &SqlOptions,
    cluster: &str,
) -> Result<bool, SqlError> {
    let text = format!(
        "SELECT 1 FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = '{cluster}_meta'"
    );
    Ok(!query(connection, options, &text).await?.is_empty())
}

/// Returns the number of partitions of an existing store as it is stored, or `None`.
pub(super) async fn stored_partitions(
    connection: &mut Conn,
    options: &SqlOptions,
    cluster: &str,
) -> Result<Option<String>, SqlError> {
    if !exists(connection, options, cluster).await? {
        return Ok(None);
    }
    let text = "SELECT value FROM @meta WHERE name = 'partitions'";
    let text = fill(text, cluster, &[], ValueStyle::Inline).text;
    let rows = query(connection, options, &text).await?;
    Ok(rows.first().map(|row| row.text(0)))
}

/// Creates the tables, if they do not exist. A user without the right to create them can open a
/// store that exists.
pub(super) async fn create(
    connection: &mut Conn,
    options: &SqlOptions,
    cluster: &str,
) -> Result<(), SqlError> {
    if exists(connection, options, cluster).await? {
        return Ok(());
    }
    // Two brokers do not create them at once. The lock ends with the connection.
    let seconds = options.statement_timeout.as_secs().max(1);
    let lock = format!("SELECT GET_LOCK('punctual {cluster}', {seconds})");
    let locked = query(connection, options, &lock).await?;
    if locked.first().map(|row| row.int(0)) != Some(1) {
        return Err(SqlError::Silent(options.statement_timeout));
    }
    for table in TABLES {
        let text = fill(table, cluster, &[], ValueStyle::Inline).text;
        query(connection, options, &text).await?;
    }
    Ok(())
}

/// Settings of a server, by their names in lower case.
#[derive(Debug, Default)]
pub(super) struct ServerVariables {
    variables: HashMap<String, String>,
    /// Connected replicas that can be seen.
    replicas: i64,
}

/// The names of settings of semi-synchronous replication: those of MariaDB and of MySQL before
/// 8.0.26, and the later ones.
const SEMI_SYNC: [&str; 2] = ["rpl_semi_sync_master_", "rpl_semi_sync_source_"];

impl ServerVariables {
    pub(super) async fn read(
        connection: &mut Conn,
        options: &SqlOptions,
    ) -> Result<Self, SqlError> {
        let text = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', \
             'innodb_flush_log_at_trx_commit', 'innodb_flush_method', 'innodb_doublewrite', \
             'log_bin', 'sync_binlog', 'binlog_format', 'max_allowed_packet', \
             'lower_case_table_names', 'wsrep_on') OR Variable_name LIKE 'rpl_semi_sync_%'";
        let rows = query(connection, options, text).await?;
        let pair = |row: &Row| (row.text(0).to_ascii_lowercase(), row.text(1));
        let variables = rows.iter().map(pair).collect();
        // A user without rights sees no replicas; then there is no warning about them.
        let text = "SELECT COUNT(*) FROM information_schema.processlist \
             WHERE command LIKE 'Binlog Dump%'";
        let rows = query(connection, options, text).await?;
        let replicas = rows.first().map_or(0, |row| row.int(0));
        Ok(Self { variables, replicas })
    }

    fn get(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), "1" | "ON" | "on" | "YES")
    }

    fn semi_sync(&self, name: &str) -> Option<&str> {
        SEMI_SYNC.iter().find_map(|prefix| {
            let value = self.variables.get(&format!("{prefix}{name}"))?;
            Some(value.as_str())
        })
    }

    pub(super) fn flavor(&self) -> ServerFlavor {
        match self.get("version").contains("MariaDB") {
            true => ServerFlavor::Mariadb,
            false => ServerFlavor::Mysql,
        }
    }

    /// The largest packet of a batch.
    pub(super) fn packet_max(&self) -> usize {
        let allowed: usize = self.get("max_allowed_packet").parse().unwrap_or(0);
        // A packet has a byte in front of its text.
        allowed.saturating_sub(1024).min(PACKET_MAX)
    }

    fn version(&self) -> (u32, u32) {
        let mut numbers = self.get("version").split(['.', '-']);
        let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        (next(), next())
    }

    /// Returns warnings, or why the server cannot be used.
    pub(super) fn check(
        &self,
        cluster: &str,
        durability: SqlDurability,
    ) -> Result<Vec<String>, SqlOpenError> {
        self.check_usable(cluster)?;
        self.check_durability(durability)?;
        let mut warnings = Vec::new();
        let mut warn = |text: &str| warnings.push(text.to_owned());
        if let Some(problem) = self.unsynced() {
            warn(&format!("the database has {problem}"));
        }
        if self.get("innodb_doublewrite").eq_ignore_ascii_case("off") {
            warn(
                "the database has `innodb_doublewrite = OFF`: a crash of its machine may damage \
                 data; set `innodb_doublewrite = ON`",
            );
        }
        if self.is_on("wsrep_on") {
            warn(
                "the database is a Galera cluster, of which reads may be behind: direct all \
                 brokers to the same server",
            );
        }
        let synchronous = self.semi_sync("enabled").is_some_and(|value| value == "ON");
        if self.replicas > 0 && !synchronous {
            warn(
                "the database has asynchronous replicas only: a failover to one loses the last \
                 acknowledged changes; enable semi-synchronous replication",
            );
        }
        Ok(warnings)
    }

    fn check_usable(&self, cluster: &str) -> Result<(), SqlOpenError> {
        let refuse = |problem: String| Err(SqlOpenError::Server(problem));
        let version = self.version();
        let (oldest, product) = match self.flavor() {
            ServerFlavor::Mysql => (MYSQL_MIN, "MySQL 8.0"),
            ServerFlavor::Mariadb => (MARIADB_MIN, "MariaDB 10.6"),
        };
        if version < oldest {
            let shown = self.get("version");
            return refuse(format!("version {shown} is too old; use {product} or later"));
        }
        if self.packet_max() + 1024 < PACKET_MIN {
            let shown = self.get("max_allowed_packet");
            return refuse(format!(
                "`max_allowed_packet = {shown}` is too small for the largest tasks; set at least \
                 4M on the server"
            ));
        }
        if self.is_on("log_bin") && self.get("binlog_format").eq_ignore_ascii_case("statement") {
            let problem = "`binlog_format = STATEMENT` cannot replicate READ COMMITTED; set \
                           `binlog_format = ROW` on the server";
            return refuse(problem.to_owned());
        }
        let folded = !matches!(self.get("lower_case_table_names"), "" | "0");
        if folded && cluster.bytes().any(|byte| byte.is_ascii_uppercase()) {
            let problem = "the server does not distinguish upper and lower case in names of \
                           tables; choose a cluster name in lower case";
            return refuse(problem.to_owned());
        }
        Ok(())
    }

    fn check_durability(&self, durability: SqlDurability) -> Result<(), SqlOpenError> {
        let needs = |problem: String| Err(SqlOpenError::Server(problem));
        match durability {
            SqlDurability::Server => Ok(()),
            SqlDurability::Fsync => match self.unsynced() {
                Some(problem) => needs(format!("durability `fsync` is impossible with {problem}")),
                None => Ok(()),
            },
            SqlDurability::Replica => {
                let wait = self.semi_sync("timeout").and_then(|millis| millis.parse().ok());
                let wait = Duration::from_millis(wait.unwrap_or(0));
                let alone = self.semi_sync("wait_no_slave").or(self.semi_sync("wait_no_replica"));
                if self.semi_sync("enabled") != Some("ON") {
                    return needs(
                        "durability `replica` needs semi-synchronous replication: set \
                         `rpl_semi_sync_master_enabled = ON` on the server"
                            .to_owned(),
                    );
                }
                if wait < REPLICA_WAIT_MIN || alone == Some("OFF") {
                    return needs(
                        "durability `replica` is impossible if commits stop waiting for replicas: \
                         set `rpl_semi_sync_master_timeout` to 3600000 or more, and \
                         `rpl_semi_sync_master_wait_no_slave = ON`"
                            .to_owned(),
                    );
                }
                Ok(())
            }
        }
    }

    /// Returns why a commit may be lost by a crash of the server's machine.
    fn unsynced(&self) -> Option<String> {
        const LOST: &str = "a crash of its machine loses the last acknowledged changes";
        let flush = self.get("innodb_flush_log_at_trx_commit");
        // MariaDB syncs twice with 3.
        if !matches!(flush, "1" | "3") {
            let name = "innodb_flush_log_at_trx_commit";
            return Some(format!("`{name} = {flush}`: {LOST}; set `{name} = 1`"));
        }
        if self.get("innodb_flush_method").eq_ignore_ascii_case("nosync") {
            let name = "innodb_flush_method";
            return Some(format!("`{name} = nosync`: {LOST}; set `{name} = fsync`"));
        }
        let synced = self.get("sync_binlog");
        if self.is_on("log_bin") && synced != "1" {
            // Recovery rolls back what the binary log does not have.
            return Some(format!("`sync_binlog = {synced}`: {LOST}; set `sync_binlog = 1`"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(changes: &[(&str, &str)]) -> ServerVariables {
        let mut variables: HashMap<String, String> = [
            ("version", "10.11.19-MariaDB-log"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("innodb_doublewrite", "ON"),
            ("log_bin", "OFF"),
            ("sync_binlog", "0"),
            ("binlog_format", "MIXED"),
            ("max_allowed_packet", "16777216"),
            ("lower_case_table_names", "0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (name, value) in changes {
            variables.insert((*name).to_owned(), (*value).to_owned());
        }
        ServerVariables { variables, replicas: 0 }
    }

    #[test]
    fn dangerous_settings_cause_warnings() {
        for (changes, warnings) in [
            (&[][..], 0),
            (&[("innodb_flush_log_at_trx_commit", "2")], 1),
            (&[("innodb_flush_log_at_trx_commit", "0"), ("innodb_doublewrite", "OFF")], 2),
            (&[("log_bin", "ON")], 1),
            (&[("log_bin", "ON"), ("sync_binlog", "1")], 0),
            (&[("wsrep_on", "ON")], 1),
        ] {
            let found = server(changes).check("Shop", SqlDurability::Server).unwrap();
            assert_eq!(found.len(), warnings, "{changes:?}: {found:?}");
        }
        let alone = ServerVariables { replicas: 2, ..server(&[]) };
        assert_eq!(alone.check("c", SqlDurability::Server).unwrap().len(), 1);
        let enabled = ("rpl_semi_sync_source_enabled", "ON");
        let synchronous = ServerVariables { replicas: 2, ..server(&[enabled]) };
        assert_eq!(synchronous.check("c", SqlDurability::Server).unwrap().len(), 0);
    }

    #[test]
    fn a_server_that_cannot_be_used_or_keep_the_durability_is_refused() {
        let enabled = ("rpl_semi_sync_master_enabled", "ON");
        for (changes, durability, fine) in [
            (&[("version", "10.5.9-MariaDB")][..], SqlDurability::Server, false),
            (&[("version", "10.6.0-MariaDB")], SqlDurability::Server, true),
            (&[("version", "5.7.44-log")], SqlDurability::Server, false),
            (&[("version", "8.0.36")], SqlDurability::Server, true),
            (&[("max_allowed_packet", "1048576")], SqlDurability::Server, false),
            (&[("max_allowed_packet", "4194304")], SqlDurability::Server, true),
            (&[("lower_case_table_names", "1")], SqlDurability::Server, false),
            (&[("binlog_format", "STATEMENT")], SqlDurability::Server, true),
            (&[("binlog_format", "STATEMENT"), ("log_bin", "ON")], SqlDurability::Server, false),
            (&[("innodb_flush_log_at_trx_commit", "2")], SqlDurability::Fsync, false),
            (&[("log_bin", "ON")], SqlDurability::Fsync, false),
            (&[], SqlDurability::Fsync, true),
            (&[], SqlDurability::Replica, false),
            (&[enabled], SqlDurability::Replica, false),
            (&[enabled, ("rpl_semi_sync_master_timeout", "10000")], SqlDurability::Replica, false),
            (&[enabled, ("rpl_semi_sync_master_timeout", "3600000")], SqlDurability::Replica, true),
        ] {
            let checked = server(changes).check("Shop", durability);
            assert_eq!(checked.is_ok(), fine, "{changes:?}: {checked:?}");
        }
    }

    #[test]
    fn a_name_that_makes_no_names_of_tables_is_refused() {
        for (name, good) in [
            ("punctual", true),
            ("Shop-2_b", true),
            ("", false),
            ("a`b", false),
            ("a.b", false),
            (&"a".repeat(50), true),
            (&"a".repeat(51), false),
        ] {
            assert_eq!(fault_of_name(name).is_none(), good, "{name}");
        }
    }
}
