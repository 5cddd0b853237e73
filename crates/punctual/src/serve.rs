//! `punctual serve`: runs a broker on the embedded store.
//!
//! In: flags and the environment. Out: a running broker, until SIGTERM or SIGINT. It gathers and explains; what a broker is, is in
//! `server`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use punctual_core::{Partitions, parse_duration};
use punctual_server::{Config, LogFormat, Store, start_log};
use punctual_store::Retention;
use punctual_store_embedded::{EmbeddedStore, Options};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Where to listen: HTTP/1.1 and HTTP/2 on one port.
    #[arg(long, env = "PUNCTUAL_LISTEN", default_value = "127.0.0.1:7400")]
    listen: SocketAddr,

    /// Listen beyond loopback although nobody has to say who they are.
    #[arg(long, env = "PUNCTUAL_INSECURE")]
    insecure: bool,

    /// Where tasks are kept. Made if it is not there.
    #[arg(long, env = "PUNCTUAL_DATA_DIR", default_value = "./punctual-data")]
    data_dir: PathBuf,

    /// How many partitions the store has; fixed when it is first made.
    #[arg(long, env = "PUNCTUAL_PARTITIONS", default_value_t = 1)]
    partitions: u16,

    /// Keep history for so long,
    #[arg(long, env = "PUNCTUAL_HISTORY_AGE", default_value = "7d", value_parser = parse_duration)]
    history_age: Duration,

    /// and for so many bytes: above, the oldest goes.
    #[arg(long, env = "PUNCTUAL_HISTORY_BYTES", default_value_t = Retention::default().history_bytes)]
    history_bytes: u64,

    /// Keep dead letters for so long.
    #[arg(long, env = "PUNCTUAL_DEAD_AGE", default_value = "30d", value_parser = parse_duration)]
    dead_age: Duration,

    /// How long work under way may take to end when the broker stops.
    #[arg(long, env = "PUNCTUAL_GRACE", default_value = "10s", value_parser = parse_duration)]
    grace: Duration,

    /// How log lines look.
    #[arg(long, env = "PUNCTUAL_LOG_FORMAT", default_value = "pretty")]
    log_format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Pretty,
    Json,
}

/// Runs a broker until it is told to stop.
pub(crate) async fn serve(flags: Serve) -> anyhow::Result<()> {
    start_log(match flags.log_format {
        Format::Pretty => LogFormat::Pretty,
        Format::Json => LogFormat::Json,
    });
    let retention = Retention {
        history_age: flags.history_age,
        history_bytes: flags.history_bytes,
        dead_age: flags.dead_age,
    };
    let (listen, insecure, grace) = (flags.listen, flags.insecure, flags.grace);
    let config = Config { listen, insecure, retention, grace };
    config.check()?;
    let partitions = Partitions::new(flags.partitions)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    let store = Arc::new(Store::Embedded(open(&flags.data_dir, partitions).await?));
    let stop = stop_signal()?;
    let served = punctual_server::run(listener, config, Arc::clone(&store), partitions, stop).await;
    match Arc::try_unwrap(store) {
        Ok(store) if served.is_ok() => store.close().await.context("cannot close the store")?,
        // Something still holds it, or it broke: like a crash, which it is made for.
        _ => tracing::warn!("the store was not closed; the next start replays its journal"),
    }
    served?;
    tracing::info!("stopped");
    Ok(())
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
