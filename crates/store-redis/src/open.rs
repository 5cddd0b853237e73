//! Opens a store: connects, fixes or checks what never changes, and checks the server.
//!
//! Settings of the server that an operator may have chosen on purpose are warnings. A setting that
//! makes the requested durability impossible is an error.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use punctual_core::Partitions;
use punctual_store::codec::Interner;
use punctual_store::{EpochTracker, StoreError};
use redis::Value;

use crate::damage::DamageTracker;
use crate::error::RedisOpenError;
use crate::format::keys::{self, PartitionKeys};
use crate::options::{Durability, RedisOptions};
use crate::store::{HistorySizes, RedisStore};
use crate::transport::connection::{RedisAddress, RedisConnection, RedisKind, Wait};
use crate::transport::reply;

/// The format of the keys and values, in the `meta` key.
const FORMAT: &str = "1";
/// The oldest supported version: earlier ones lack ZMSCORE and replicate scripts by their source.
const VERSION_MIN: (u32, u32) = (6, 2);
/// The first version with WAITAOF.
const VERSION_WITH_WAITAOF: (u32, u32) = (7, 2);
/// The number of connections for writes that wait for replicas or disks: each wait blocks what
/// follows on its connection.
const WAITING_CONNECTIONS: usize = 8;

impl RedisStore {
    /// Opens a store. The first broker that opens it fixes its number of partitions. Returns the
    /// store, and warnings for the operator.
    pub async fn open(options: RedisOptions) -> Result<(Self, Vec<String>), RedisOpenError> {
        if let Some(fault) = keys::fault_of_name(&options.cluster) {
            return Err(RedisOpenError::Options(format!("the cluster name {fault}")));
        }
        let probe = RedisConnection::new(Arc::new(RedisAddress::new(&options, RedisKind::Single)?));
        let server = ServerInfo::read(&probe).await?;
        let (warnings, wait) = server.check(options.durability)?;
        let address = Arc::new(RedisAddress::new(&options, server.kind())?);
        let reads = RedisConnection::new(Arc::clone(&address));
        fix_or_check(&reads, &options.cluster, options.partitions).await?;
        let connections = if wait == Wait::Nothing { 1 } else { WAITING_CONNECTIONS };
        let writes = (0..connections).map(|_| RedisConnection::new(Arc::clone(&address))).collect();
        let keys = |partition| PartitionKeys::new(&options.cluster, partition);
        let keys = options.partitions.iter().map(keys).collect();
        let store = Self {
            partitions: options.partitions,
            keys,
            address,
            reads,
            writes,
            wait,
            epochs: EpochTracker::default(),
            interner: Interner::default(),
            rewinds: AtomicU64::new(0),
            damage: DamageTracker::default(),
            sizes: Mutex::new(HistorySizes::new(options.partitions)),
            cluster: options.cluster,
        };
        Ok((store, warnings))
    }

    /// Returns the number of partitions.
    #[must_use]
    pub const fn partitions(&self) -> Partitions {
        self.partitions
    }
}

/// Stores format and number of partitions at the first start, and checks them at every other.
async fn fix_or_check(
    connection: &RedisConnection,
    cluster: &str,
    partitions: Partitions,
) -> Result<(), RedisOpenError> {
    let meta = keys::meta(cluster);
    let configured = partitions.count();
    let format = get_or_propose(connection, &meta, "format", FORMAT).await?;
    let made = get_or_propose(connection, &meta, "partitions", &configured.to_string()).await?;
    let cluster = cluster.to_owned();
    if format != FORMAT {
        return Err(RedisOpenError::Format { cluster, format });
    }
    if made != configured.to_string() {
        return Err(RedisOpenError::Partitions { cluster, made, configured });
    }
    Ok(())
}

/// Returns the value of a field, and proposes one if there is none. The first proposal wins, so
/// that two brokers that start together agree. Nothing is written if the field exists: a server
/// without free memory refuses writes, and a broker must be able to start on it.
pub(crate) async fn get_or_propose(
    connection: &RedisConnection,
    key: &str,
    field: &str,
    proposed: &str,
) -> Result<String, StoreError> {
    let mut read = redis::cmd("HGET");
    read.arg(key).arg(field);
    let mut value = connection.command(read.clone(), key).await?;
    if value == Value::Nil {
        let mut propose = redis::cmd("HSETNX");
        propose.arg(key).arg(field).arg(proposed);
        connection.command(propose, key).await?;
        value = connection.command(read, key).await?;
    }
    Ok(reply::text(&value)?.to_owned())
}

/// What a server reports about itself. What an ACL does not allow to read is missing.
#[derive(Debug, Default)]
struct ServerInfo {
    info: HashMap<String, String>,
    config: HashMap<String, String>,
}

impl ServerInfo {
    async fn read(connection: &RedisConnection) -> Result<Self, StoreError> {
        let info = connection.command(redis::cmd("INFO"), "").await?;
        let info = reply::text(&info)?.lines().filter_map(|line| line.split_once(':'));
        let info = info.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut config = HashMap::new();
        for name in ["appendonly", "appendfsync", "maxmemory-policy"] {
            let mut command = redis::cmd("CONFIG");
            command.arg("GET").arg(name);
            // Hosted servers often refuse this command; an unknown setting causes no warning.
            if let Ok(Value::Array(values)) = connection.command(command, "").await
                && let Some(value) = values.get(1).and_then(|value| reply::text(value).ok())
            {
                config.insert(name.to_owned(), value.to_owned());
            }
        }
        Ok(Self { info, config })
    }

    fn kind(&self) -> RedisKind {
        match self.info("cluster_enabled") {
            Some("1") => RedisKind::Cluster,
            _ => RedisKind::Single,
        }
    }

    fn info(&self, name: &str) -> Option<&str> {
        self.info.get(name).map(String::as_str)
    }

    fn config(&self, name: &str) -> Option<&str> {
        self.config.get(name).map(String::as_str)
    }

    fn version(&self) -> (u32, u32) {
        let mut parts = self.info("redis_version").unwrap_or_default().split('.');
        let mut part = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        (part(), part())
    }

    /// Returns warnings, and what to wait for after a write.
    fn check(&self, durability: Durability) -> Result<(Vec<String>, Wait), RedisOpenError> {
        let version = self.version();
        let shown = self.info("redis_version").unwrap_or("unknown");
        if version < VERSION_MIN {
            let problem = format!("Redis {shown} is too old; use Redis 6.2 or later");
            return Err(RedisOpenError::Server(problem));
        }
        let mut warnings = Vec::new();
        let mut warn = |text: &str| warnings.push(text.to_owned());
        if self.config("appendonly") == Some("no") {
            warn(
                "Redis has `appendonly no`: a restart loses all changes since its last snapshot; \
                 set `appendonly yes`",
            );
        }
        if let Some(policy) = self.config("maxmemory-policy").filter(|is| *is != "noeviction") {
            warn(&format!(
                "Redis has `maxmemory-policy {policy}`: it may delete tasks when memory is short; \
                 set `maxmemory-policy noeviction`"
            ));
        }
        let replicas = self.info("connected_slaves"); // words: allow
        let wait = match durability {
            Durability::Master => Wait::Nothing,
            Durability::Replica => {
                if replicas == Some("0") {
                    warn(
                        "durability is `replica`, but Redis has no replica: writes are refused \
                         until one is connected",
                    );
                }
                Wait::Replica
            }
            Durability::Fsync => self.check_fsync(version, shown)?,
        };
        Ok((warnings, wait))
    }

    fn check_fsync(&self, version: (u32, u32), shown: &str) -> Result<Wait, RedisOpenError> {
        let problem = match (self.config("appendonly"), self.config("appendfsync")) {
            (Some("no"), _) => "durability `fsync` needs `appendonly yes`".to_owned(),
            // The server syncs before it replies; there is nothing to wait for.
            (Some("yes"), Some("always")) => return Ok(Wait::Nothing),
            _ if version >= VERSION_WITH_WAITAOF => return Ok(Wait::Synced),
            _ => format!(
                "durability `fsync` needs Redis 7.2 or later, or `appendfsync always`; \
                 this is Redis {shown}"
            ),
        };
        Err(RedisOpenError::Server(problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version: &str, config: &[(&str, &str)]) -> ServerInfo {
        let pairs = |all: &[(&str, &str)]| {
            all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        ServerInfo { info: pairs(&[("redis_version", version)]), config: pairs(config) }
    }

    #[test]
    fn fsync_is_refused_if_the_server_cannot_guarantee_it() {
        let always = [("appendonly", "yes"), ("appendfsync", "always")];
        let every = [("appendonly", "yes"), ("appendfsync", "everysec")];
        let never = [("appendonly", "no"), ("appendfsync", "always")];
        for (version, config, want) in [
            ("7.0.15", &always, Some(Wait::Nothing)),
            ("7.0.15", &every, None),
            ("7.2.0", &every, Some(Wait::Synced)),
            ("8.0.1", &never, None),
        ] {
            let checked = server(version, config).check(Durability::Fsync);
            assert_eq!(checked.ok().map(|(_, wait)| wait), want, "{version} {config:?}");
        }
    }

    #[test]
    fn dangerous_settings_cause_warnings_and_old_versions_are_refused() {
        let config = [("appendonly", "no"), ("maxmemory-policy", "allkeys-lru")];
        let (warnings, _) = server("7.0.15", &config).check(Durability::Master).unwrap();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        let good = [("appendonly", "yes"), ("maxmemory-policy", "noeviction")];
        let (warnings, _) = server("6.2.0", &good).check(Durability::Master).unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        for version in ["6.0.16", "5.0.0", "", "x"] {
            assert!(server(version, &good).check(Durability::Master).is_err(), "{version}");
        }
    }
}
