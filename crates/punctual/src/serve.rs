//! `punctual serve`: runs a broker on the embedded store.
//!
//! In: [`Settings`]. Out: a running broker, until SIGTERM or SIGINT. It gathers and explains; what a broker is, is in
//! `server`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use punctual_core::{Partitions, zones_version};
use punctual_server::config::{admin_token, signing_secret, tls, token};
use punctual_server::{Config, ConfigError, LogFormat, Store, raise_file_limit, start_log};
use punctual_store::Retention;
use punctual_store_embedded::{EmbeddedStore, Options};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::settings::{Hidden, Settings};

/// What a broker is told if nobody says otherwise.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7400);
const DATA_DIR: &str = "./punctual-data";
const PARTITIONS: u16 = 1;
const GRACE: Duration = Duration::from_secs(10);

/// How often, and how many times, it is looked whether the store is still in use when the broker has stopped.
const SOLE_EVERY: Duration = Duration::from_millis(5);
const SOLE_LOOKS_MAX: u32 = 100;

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Read what is not said otherwise from this file
    #[arg(long, env = "PUNCTUAL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    settings: Settings,
}

/// Runs a broker until it is told to stop.
pub(crate) async fn serve(flags: Serve) -> anyhow::Result<()> {
    let settings = match &flags.config {
        Some(path) => flags.settings.or_file(path)?,
        None => flags.settings,
    };
    start_log(settings.log_format.map_or(LogFormat::Pretty, LogFormat::from));
    let (version, timezone_data) = (env!("CARGO_PKG_VERSION"), zones_version());
    tracing::info!(version, timezone_data, "starting");
    raise_file_limit();
    let config = config(&settings)?;
    config.check()?;
    let partitions = Partitions::new(settings.partitions.unwrap_or(PARTITIONS))?;
    let data_dir = settings.data_dir.unwrap_or_else(|| DATA_DIR.into());
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    let store = Arc::new(Store::embedded(open(&data_dir, partitions).await?));
    let stop = stop_signal()?;
    let served = punctual_server::run(listener, config, Arc::clone(&store), partitions, stop).await;
    match sole(store).await {
        Some(store) if served.is_ok() => store.close().await.context("cannot close the store")?,
        // Something still holds it, or it broke: like a crash, which it is made for.
        _ => tracing::warn!("the store was not closed; the next start replays its journal"),
    }
    served?;
    tracing::info!("stopped");
    Ok(())
}

/// The store, once nobody else has it. An owner's thread lets go of it a moment after it has said that it ends.
async fn sole(mut store: Arc<Store>) -> Option<Store> {
    let mut looks = tokio::time::interval(SOLE_EVERY);
    for _ in 0..SOLE_LOOKS_MAX {
        looks.tick().await;
        match Arc::try_unwrap(store) {
            Ok(store) => return Some(store),
            Err(shared) => store = shared,
        }
    }
    None
}

fn config(settings: &Settings) -> anyhow::Result<Config> {
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
        tls: tls(settings.tls_cert.as_deref(), settings.tls_key.as_deref())?,
        retention,
        grace: settings.grace.unwrap_or(GRACE),
    })
}

fn each<T>(
    texts: Option<&[Hidden]>,
    read: impl Fn(&str) -> Result<T, ConfigError>,
) -> Result<Vec<T>, ConfigError> {
    texts.unwrap_or_default().iter().map(|text| read(text.reveal())).collect()
}

/// Opens the store, off the runtime: a large one takes a second or two.
async fn open(dir: &Path, partitions: Partitions) -> anyhow::Result<EmbeddedStore> {
    let folder = dir.to_owned();
    let opening = move || EmbeddedStore::open(&folder, Options::new(partitions));
    let opened = tokio::task::spawn_blocking(opening).await.context("opening panicked")?;
    let (store, report) =
        opened.with_context(|| format!("cannot open the store in {}", dir.display()))?;
    let (replayed, clean) = (report.replayed, report.closed_cleanly);
    tracing::info!(dir = %dir.display(), replayed, clean, "store open");
    if let Some(dropped) = report.dropped {
        tracing::warn!(
            ?dropped,
            "cut off a torn end of the journal; nobody was told it was durable"
        );
    }
    Ok(store)
}

/// Resolves at the first SIGTERM or SIGINT. A second one ends the process at once.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
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
