//! Opening: connects, fixes or checks what never changes, and says plainly what is wrong with the server.
//!
//! In: options. Out: the store, and warnings for people. A store opens with warnings: they are about what the operator
//! may want on purpose. What would make a promise a lie is refused.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use punctual_core::Partitions;
use punctual_store::StoreError;
use punctual_store::codec::Interner;
use redis::Value;

use crate::connection::{RedisAddress, RedisConnection, RedisKind, Wait};
use crate::epochs::EpochTracker;
use crate::error::RedisOpenError;
use crate::keys::{self, PartitionKeys};
use crate::options::{Durability, RedisOptions};
use crate::reply;
use crate::store::{HistorySizes, RedisStore};

/// What is written in this format only this program and later ones read.
const FORMAT: &str = "1";
/// Below it there is no ZMSCORE, and scripts are not replicated by what they did.
const VERSION_MIN: (u32, u32) = (6, 2);
/// From here on there is WAITAOF.
const VERSION_WITH_WAITAOF: (u32, u32) = (7, 2);
/// Connections for writes that wait for replicas or disks: each holds up what is behind it.
const WAITING_LINKS: usize = 8;

impl RedisStore {
    /// Opens a store. The first to open it fixes its number of partitions. Returns what the operator should know.
    pub async fn open(options: RedisOptions) -> Result<(Self, Vec<String>), RedisOpenError> {
        if let Some(fault) = keys::fault_of_name(&options.cluster) {
            return Err(RedisOpenError::Options(format!("the cluster's name {fault}")));
        }
        let probe = RedisConnection::new(Arc::new(RedisAddress::new(&options, RedisKind::Single)?));
        let server = ServerInfo::ask(&probe).await?;
        let (warnings, wait) = server.check(options.durability)?;
        let address = Arc::new(RedisAddress::new(&options, server.kind())?);
        let reads = RedisConnection::new(Arc::clone(&address));
        fix(&reads, &options.cluster, options.partitions).await?;
        let links = if wait == Wait::Nothing { 1 } else { WAITING_LINKS };
        let writes = (0..links).map(|_| RedisConnection::new(Arc::clone(&address))).collect();
        let keys = |partition| PartitionKeys::new(&options.cluster, partition);
        let keys = options.partitions.iter().map(keys).collect();
        let store = Self {
            partitions: options.partitions,
            keys,
            reads,
            writes,
            wait,
            epochs: EpochTracker::default(),
            interner: Interner::default(),
            rewinds: AtomicU64::new(0),
            sizes: Mutex::new(HistorySizes::new(options.partitions)),
            cluster: options.cluster,
        };
        Ok((store, warnings))
    }

    /// How many partitions it has.
    #[must_use]
    pub const fn partitions(&self) -> Partitions {
        self.partitions
    }
}

/// Fixes format and partitions at first start, and checks them at every other.
async fn fix(
    link: &RedisConnection,
    cluster: &str,
    partitions: Partitions,
) -> Result<(), RedisOpenError> {
    let meta = keys::meta(cluster);
    let asked = partitions.count();
    let format = get_or_propose(link, &meta, "format", FORMAT).await?;
    let made = get_or_propose(link, &meta, "partitions", &asked.to_string()).await?;
    let cluster = cluster.to_owned();
    if format != FORMAT {
        return Err(RedisOpenError::Format { cluster, format });
    }
    if made != asked.to_string() {
        return Err(RedisOpenError::Partitions { cluster, made, asked });
    }
    Ok(())
}

/// What a field is: what whoever came first proposed, so that two that start together agree. Nothing is written when it is
/// there: a server without memory refuses that, and a broker must be able to start on it.
pub(crate) async fn get_or_propose(
    link: &RedisConnection,
    key: &str,
    field: &str,
    proposed: &str,
) -> Result<String, StoreError> {
    let mut read = redis::cmd("HGET");
    read.arg(key).arg(field);
    let mut said = link.command(read.clone(), key).await?;
    if said == Value::Nil {
        let mut propose = redis::cmd("HSETNX");
        propose.arg(key).arg(field).arg(proposed);
        link.command(propose, key).await?;
        said = link.command(read, key).await?;
    }
    Ok(reply::text(&said)?.to_owned())
}

/// What a server says of itself. What an ACL does not let us ask is not there.
#[derive(Debug, Default)]
struct ServerInfo {
    info: HashMap<String, String>,
    config: HashMap<String, String>,
}

impl ServerInfo {
    async fn ask(link: &RedisConnection) -> Result<Self, StoreError> {
        let info = link.command(redis::cmd("INFO"), "").await?;
        let info = reply::text(&info)?.lines().filter_map(|line| line.split_once(':'));
        let info = info.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut config = HashMap::new();
        for name in ["appendonly", "appendfsync", "maxmemory-policy"] {
            let mut command = redis::cmd("CONFIG");
            command.arg("GET").arg(name);
            // Hosted servers often refuse it; what is not known is not warned about.
            if let Ok(Value::Array(values)) = link.command(command, "").await
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

    /// Warnings, and what to wait for behind a write.
    fn check(&self, durability: Durability) -> Result<(Vec<String>, Wait), RedisOpenError> {
        let version = self.version();
        let shown = self.info("redis_version").unwrap_or("unknown");
        if version < VERSION_MIN {
            let problem = format!("Redis {shown} is too old: 6.2 or later is needed");
            return Err(RedisOpenError::Server(problem));
        }
        let mut warnings = Vec::new();
        let mut warn = |text: &str| warnings.push(text.to_owned());
        if self.config("appendonly") == Some("no") {
            warn(
                "Redis has `appendonly no`: when it restarts, tasks since its last snapshot are gone",
            );
        }
        if let Some(policy) = self.config("maxmemory-policy").filter(|is| *is != "noeviction") {
            warn(&format!(
                "Redis has `maxmemory-policy {policy}`: when memory is short it may delete tasks; set noeviction"
            ));
        }
        let replicas = self.info("connected_slaves"); // words: allow
        let wait = match durability {
            Durability::Master => Wait::Nothing,
            Durability::Replica => {
                if replicas == Some("0") {
                    warn(
                        "durability `replica` is asked for, and Redis has no replica: nothing is accepted until it has one",
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
            // It syncs before it answers; there is nothing to wait for.
            (Some("yes"), Some("always")) => return Ok(Wait::Nothing),
            _ if version >= VERSION_WITH_WAITAOF => return Ok(Wait::Synced),
            _ => format!(
                "durability `fsync` needs Redis 7.2 or later, or `appendfsync always`; this is {shown}"
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
    fn fsync_is_refused_where_the_server_cannot() {
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
    fn what_is_dangerous_is_warned_about_and_what_is_too_old_refused() {
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
