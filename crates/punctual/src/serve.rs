//! `punctual serve`: runs a broker on an embedded store, or on a Redis, PostgreSQL or
//! MySQL that several brokers share.
//!
//! Turns [`Settings`] into the configuration of a broker, opens the store, and runs the broker
//! until SIGTERM or SIGINT. The broker itself is in `punctual-server`.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args as _;
use punctual_connectors::ConnectorConfig;
use punctual_core::{ANSWER_BYTES_DEFAULT, Partitions, zones_version};
use punctual_server::config::{
    MailSettings, admin_token, mail_server, signing_secret, tls, token, webhook_authorities,
    webhook_connections_max,
};
use punctual_server::{
    Config, ConfigError, LogFormat, MeteredStore, Sharing, raise_file_limit, start_log,
};
use punctual_store::Retention;
use punctual_store_any::{OpenedStore, PartitionCount, StoreLocation};
use punctual_store_redis::Durability;
use punctual_store_sql::{SqlDurability, SqlStoreOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::settings::{DurabilityArg, SecretText, Settings};

/// Defaults of the settings.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7400);
const DATA_DIR: &str = "./punctual-data";
const PARTITIONS: u16 = 1;
/// The default in a shared store: more than most clusters have brokers, and few enough for large
/// batches.
const PARTITIONS_SHARED: u16 = 16;
const CLUSTER: &str = "punctual";
const LEASE: Duration = Duration::from_secs(5);
const GRACE: Duration = Duration::from_secs(10);

/// How often, and how many times, the store is checked for other users after the broker has
/// stopped.
const RELEASE_CHECK_EVERY: Duration = Duration::from_millis(5);
const RELEASE_CHECKS_MAX: u32 = 100;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual serve
  punctual serve --data-dir /var/lib/punctual --listen 0.0.0.0:7400 --token shop=@/etc/punctual/shop
  punctual serve --redis redis://10.0.0.5:6379 --cluster shop --advertise 10.0.0.1:7400
  punctual serve --config /etc/punctual.toml")]
pub(crate) struct ServeArgs {
    /// TOML file with settings; flags and environment variables take precedence
    #[arg(long, env = "PUNCTUAL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,
}

/// Runs a broker until SIGTERM or SIGINT.
pub(crate) async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let settings = match &args.config {
        Some(path) => args.settings.or_file(path)?,
        None => args.settings,
    };
    start_log(settings.log_format.map_or(LogFormat::Pretty, LogFormat::from));
    let (version, timezone_data) = (env!("CARGO_PKG_VERSION"), zones_version());
    tracing::info!(version, timezone_data, "starting");
    for name in
        unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
    {
        tracing::warn!(name, "unknown environment variable ignored; see punctual serve --help");
    }
    raise_file_limit();
    let config = config(&settings)?;
    config.check()?;
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    let OpenedStore { store, partitions, .. } = open_store(&settings).await?;
    let store = MeteredStore::new(store);
    let store = Arc::new(store);
    let stop = stop_signal()?;
    let shared = config.sharing.is_some();
    let served = punctual_server::run(listener, config, Arc::clone(&store), partitions, stop).await;
    match release(store).await {
        Some(store) if served.is_ok() => store.close().await.context("cannot close the store")?,
        _ if shared => {}
        // The store is still in use, or it failed. Opening it again recovers as after a crash.
        _ => tracing::warn!("store not closed; the next start replays its journal"),
    }
    served?;
    tracing::info!("stopped");
    Ok(())
}

/// Returns environment variables that look like settings but are not. They are not an error, unlike
/// unknown keys of the file: service managers set variables that start with the name of a service.
fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let command = ServeArgs::augment_args(clap::Command::new("serve"));
    let known: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_env()).collect();
    let is_unknown =
        |name: &String| name.starts_with("PUNCTUAL_") && !known.contains(&OsStr::new(name));
    names.filter(is_unknown).collect()
}

/// Returns the store when it has no other user. The thread of an owner drops it shortly after it
/// has reported its end. Returns `None` if the store stays in use.
pub(crate) async fn release(mut store: Arc<MeteredStore>) -> Option<MeteredStore> {
    let mut checks = tokio::time::interval(RELEASE_CHECK_EVERY);
    for _ in 0..RELEASE_CHECKS_MAX {
        checks.tick().await;
        match Arc::try_unwrap(store) {
            Ok(store) => return Some(store),
            Err(shared) => store = shared,
        }
    }
    None
}

/// Turns settings into the configuration of a broker.
pub(crate) fn config(settings: &Settings) -> anyhow::Result<Config> {
    let default = Retention::default();
    let retention = Retention {
        history_age: settings.history_age.unwrap_or(default.history_age),
        history_bytes: settings.history_bytes.unwrap_or(default.history_bytes),
        dead_age: settings.dead_age.unwrap_or(default.dead_age),
    };
    let mut tokens = each(settings.tokens.as_deref(), token)?;
    tokens.extend(each(settings.admin_tokens.as_deref(), admin_token)?);
    Ok(Config {
        listen: settings.listen.unwrap_or(LISTEN),
        insecure: settings.insecure.unwrap_or(false),
        tokens,
        signing_secrets: each(settings.signing_secrets.as_deref(), signing_secret)?,
        allow_private_targets: settings.allow_private_targets.unwrap_or(false),
        webhook_authorities: webhook_authorities(settings.webhook_ca.as_deref())?,
        webhook_connections_max: settings
            .webhook_connections
            .unwrap_or_else(webhook_connections_max),
        answer_bytes: settings.answer_bytes.unwrap_or(ANSWER_BYTES_DEFAULT),
        mail_server: mail_server(MailSettings {
            url: settings.smtp_url.as_deref(),
            from: settings.smtp_from.as_deref(),
            credentials_file: settings.smtp_credentials_file.as_deref(),
            ca: settings.smtp_ca.as_deref(),
        })?,
        connectors: ConnectorConfig::read(&settings.connections, &settings.sources)?,
        tls: tls(settings.tls_cert.as_deref(), settings.tls_key.as_deref())?,
        retention,
        grace: settings.grace.unwrap_or(GRACE),
        sharing: sharing(settings)?,
    })
}

/// The configuration of a shared store; `None` for an embedded one.
fn sharing(settings: &Settings) -> anyhow::Result<Option<Sharing>> {
    if settings.redis.is_none() && settings.postgres.is_none() && settings.mysql.is_none() {
        let alone = [
            ("cluster", settings.cluster.is_some()),
            ("lease", settings.lease.is_some()),
            ("advertise", settings.advertise.is_some()),
            ("durability", settings.durability.is_some()),
            ("redis_ca", settings.redis_ca.is_some()),
            ("postgres_ca", settings.postgres_ca.is_some()),
            ("mysql_ca", settings.mysql_ca.is_some()),
        ];
        if let Some((key, _)) = alone.iter().find(|(_, given)| *given) {
            bail!(
                "{key} needs a shared store: give --redis redis://HOST:PORT, --postgres \
                 postgres://USER@HOST/DATABASE or --mysql mysql://USER@HOST/DATABASE too"
            );
        }
        return Ok(None);
    }
    let kinds = [
        ("data_dir", settings.data_dir.is_some()),
        ("redis", settings.redis.is_some()),
        ("postgres", settings.postgres.is_some()),
        ("mysql", settings.mysql.is_some()),
    ];
    let given: Vec<&str> = kinds.iter().filter(|(_, given)| *given).map(|(key, _)| *key).collect();
    if let [first, second, ..] = given[..] {
        bail!("{first} and {second} exclude each other: give only one of them");
    }
    let (lease, advertise) = (settings.lease.unwrap_or(LEASE), settings.advertise.clone());
    let authority = settings.tls_ca.as_deref().map(read_pem).transpose()?;
    Ok(Some(Sharing { advertise, lease, authority }))
}

fn read_pem(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Opens the store: a shared one if the settings name one, else the data directory.
async fn open_store(settings: &Settings) -> anyhow::Result<OpenedStore> {
    if settings.redis.is_some() {
        open_redis(settings).await
    } else if let Some(url) = &settings.postgres {
        let ca = settings.postgres_ca.as_deref();
        open_sql(settings, url.reveal(), ca, StoreLocation::Postgres).await
    } else if let Some(url) = &settings.mysql {
        open_sql(settings, url.reveal(), settings.mysql_ca.as_deref(), StoreLocation::Mysql).await
    } else {
        open_embedded(settings).await
    }
}

/// Opens the store in Redis. Without the setting `partitions`, an existing cluster keeps its own.
async fn open_redis(settings: &Settings) -> anyhow::Result<OpenedStore> {
    let partitions = shared_partitions(settings)?;
    let urls = settings.redis.iter().flatten().map(|url| url.reveal().to_owned()).collect();
    let cluster = settings.cluster.as_deref().unwrap_or(CLUSTER);
    let mut options = punctual_store_redis::RedisOptions::new(urls, cluster, Partitions::ONE);
    options.durability = match settings.durability {
        None | Some(DurabilityArg::Master) => Durability::Master,
        Some(DurabilityArg::Replica) => Durability::Replica,
        Some(DurabilityArg::Fsync) => Durability::Fsync,
    };
    // A call that takes longer than a part of the lease would cost the lease.
    options.timeout = options.timeout.min(settings.lease.unwrap_or(LEASE) / 3);
    options.authority_pem = settings.redis_ca.as_deref().map(read_pem).transpose()?;
    open_shared(StoreLocation::Redis(options), partitions, cluster).await
}

/// Opens the store in a database. Without the setting `partitions`, an existing cluster keeps its
/// own.
async fn open_sql(
    settings: &Settings,
    url: &str,
    ca: Option<&Path>,
    location: fn(SqlStoreOptions) -> StoreLocation,
) -> anyhow::Result<OpenedStore> {
    let partitions = shared_partitions(settings)?;
    let cluster = settings.cluster.as_deref().unwrap_or(CLUSTER);
    let mut sql = punctual_sql::SqlOptions::from_url(url)?;
    if let Some(file) = ca {
        sql = sql.with_authority(read_pem(file)?);
    }
    let mut options = SqlStoreOptions::new(sql, cluster, Partitions::ONE);
    options.durability = match settings.durability {
        None => SqlDurability::Server,
        Some(DurabilityArg::Fsync) => SqlDurability::Fsync,
        Some(DurabilityArg::Replica) => SqlDurability::Replica,
        Some(DurabilityArg::Master) => bail!(
            "with --postgres and --mysql, durability is fsync or replica; without it, the database \
             commits as it is configured"
        ),
    };
    // A call that takes longer than a part of the lease would cost the lease.
    let timeout = settings.lease.unwrap_or(LEASE) / 3;
    options.sql.statement_timeout = options.sql.statement_timeout.min(timeout);
    options.sql.connect_timeout = options.sql.connect_timeout.min(timeout);
    open_shared(location(options), partitions, cluster).await
}

/// Without the setting `partitions`, an existing cluster keeps its own number.
fn shared_partitions(settings: &Settings) -> anyhow::Result<PartitionCount> {
    Ok(match settings.partitions {
        Some(count) => PartitionCount::Exactly(Partitions::new(count)?),
        None => PartitionCount::ExistingOr(Partitions::new(PARTITIONS_SHARED)?),
    })
}

async fn open_shared(
    location: StoreLocation,
    partitions: PartitionCount,
    cluster: &str,
) -> anyhow::Result<OpenedStore> {
    let opened = punctual_store_any::open(location, partitions).await?;
    for warning in &opened.warnings {
        tracing::warn!("{warning}");
    }
    tracing::info!(cluster, partitions = opened.partitions.count(), "store open");
    Ok(opened)
}

/// Opens the store in the data directory.
async fn open_embedded(settings: &Settings) -> anyhow::Result<OpenedStore> {
    let partitions = Partitions::new(settings.partitions.unwrap_or(PARTITIONS))?;
    let dir = settings.data_dir.clone().unwrap_or_else(|| DATA_DIR.into());
    let location = StoreLocation::Embedded(dir.clone());
    let opened = punctual_store_any::open(location, PartitionCount::Exactly(partitions)).await?;
    if let Some(report) = &opened.recovered {
        let (replayed, clean) = (report.replayed, report.closed_cleanly);
        tracing::info!(dir = %dir.display(), replayed, clean, "store open");
        let tightened = &report.tightened;
        if tightened.paths > 0 {
            let (dir, paths) = (dir.display(), tightened.paths);
            let message = "others could access the data directory; its modes were tightened";
            tracing::warn!(%dir, paths, "{message}");
        }
        if let Some(problem) = &tightened.problem {
            tracing::warn!(problem, "others can access the data directory");
        }
        if let Some(dropped) = &report.dropped {
            tracing::warn!(?dropped, "removed an unacknowledged write at the end of the journal");
        }
    }
    Ok(opened)
}

fn each<T>(
    texts: Option<&[SecretText]>,
    read: impl Fn(&str) -> Result<T, ConfigError>,
) -> Result<Vec<T>, ConfigError> {
    texts.unwrap_or_default().iter().map(|text| read(text.reveal())).collect()
}

/// Resolves at the first SIGTERM or SIGINT. A second one ends the process at once.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            std::process::exit(1);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_variables_that_are_not_settings_are_found() {
        let names = [
            "PUNCTUAL_TOKENS",
            "PUNCTUAL_CONFIG",
            "PUNCTUAL_LISTEN",
            "PUNCTUAL_TOKEN",
            "PUNCTUAL_LISTNE",
            "PATH",
        ];
        let unknown = unknown_variables(names.into_iter().map(str::to_owned));
        assert_eq!(unknown, ["PUNCTUAL_TOKEN", "PUNCTUAL_LISTNE"]);
    }
}
