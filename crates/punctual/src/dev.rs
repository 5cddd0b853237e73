//! `punctual dev`: runs a broker for tests, in memory and with a virtual clock.
//!
//! It prints its address as one line of JSON, serves `/v1/clock` beside the API, and ends at
//! SIGTERM, SIGINT or, with `--exit-with-stdin`, when its standard input is closed. It listens on
//! loopback only and keeps nothing.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use punctual_core::{Partitions, Timestamp};
use punctual_server::{LogFormat, MeteredStore, raise_file_limit, start_log};
use punctual_store_any::{OpenedStore, PartitionCount, StoreLocation};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::cli::print_line;
use crate::serve::{config, stop_signal};
use crate::settings::Settings;

/// Any free port.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const PARTITIONS: u16 = 1;
/// Short: a test that has ended does not wait for its deliveries.
const GRACE: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = "The clock is frozen until it is moved:
  GET  /v1/clock           {\"now\", \"running\", \"speed\"}
  POST /v1/clock/advance   {\"by\": \"48h\"} or {\"to\": \"2027-01-01T00:00:00Z\"}; returns when
                           everything that became due is delivered and settled
  POST /v1/clock/run       {\"speed\": 60}
  POST /v1/clock/freeze

Tasks are kept in memory, and the broker listens on loopback only: flags of `punctual serve` that
say otherwise, like --data-dir and --redis, are refused. Without --listen it takes a free port, and
prints {\"url\":\"http://127.0.0.1:PORT\"} on standard output.

Examples:
  punctual dev
  punctual dev --clock 2027-01-04T08:00:00Z --exit-with-stdin
  punctual dev --listen 127.0.0.1:7400 --token shop=secret")]
pub(crate) struct DevArgs {
    /// Where the clock starts, in RFC 3339 [default: the present time]
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse_rfc3339)]
    clock: Option<Timestamp>,

    /// End when standard input is closed, so that the broker ends with the test that started it
    #[arg(long)]
    exit_with_stdin: bool,

    #[command(flatten)]
    settings: Settings,
}

/// Runs a broker with a virtual clock until it is asked to stop.
pub(crate) async fn dev(args: DevArgs) -> anyhow::Result<()> {
    let mut settings = args.settings;
    refuse_storage(&settings)?;
    start_log(settings.log_format.map_or(LogFormat::Pretty, LogFormat::from));
    raise_file_limit();
    settings.listen = Some(settings.listen.unwrap_or(LISTEN));
    settings.grace = Some(settings.grace.unwrap_or(GRACE));
    let config = config(&settings)?;
    if !config.listen.ip().is_loopback() {
        let listen = config.listen;
        bail!("--listen {listen} is not a loopback address: punctual dev is for tests only");
    }
    config.check()?;
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {}", config.listen))?;
    let address = listener.local_addr().context("cannot read the listen address")?;
    let partitions = Partitions::new(settings.partitions.unwrap_or(PARTITIONS))?;
    let count = PartitionCount::Exactly(partitions);
    let OpenedStore { store, .. } = punctual_store_any::open(StoreLocation::Memory, count).await?;
    let store = Arc::new(MeteredStore::new(store));
    let (signal, stdin) = (stop_signal()?, stdin_closed(args.exit_with_stdin)?);
    let stop = async {
        tokio::select! {
            () = signal => {}
            () = stdin => {}
        }
    };
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    // The listener queues connections from now on.
    print_line(&json!({ "url": format!("{scheme}://{address}") }).to_string())?;
    punctual_server::run_virtual(listener, config, store, partitions, args.clock, stop).await?;
    tracing::info!("stopped");
    Ok(())
}

/// Refuses settings that a broker in memory, alone and on loopback does not have.
fn refuse_storage(settings: &Settings) -> anyhow::Result<()> {
    let refused = [
        ("--data-dir", settings.data_dir.is_some()),
        ("--redis", settings.redis.is_some()),
        ("--redis-ca", settings.redis_ca.is_some()),
        ("--postgres", settings.postgres.is_some()),
        ("--postgres-ca", settings.postgres_ca.is_some()),
        ("--mysql", settings.mysql.is_some()),
        ("--mysql-ca", settings.mysql_ca.is_some()),
        ("--cluster", settings.cluster.is_some()),
        ("--durability", settings.durability.is_some()),
        ("--lease", settings.lease.is_some()),
        ("--advertise", settings.advertise.is_some()),
        ("--tls-ca", settings.tls_ca.is_some()),
        ("--insecure", settings.insecure.is_some()),
    ];
    match refused.iter().find(|(_, given)| *given) {
        Some((flag, _)) => bail!(
            "{flag} cannot be used with punctual dev, which keeps tasks in memory and listens on \
             loopback only; use punctual serve"
        ),
        None => Ok(()),
    }
}

/// Completes when standard input is closed, if `wanted`. What is read is ignored.
fn stdin_closed(wanted: bool) -> anyhow::Result<impl Future<Output = ()>> {
    let (sender, closed) = oneshot::channel::<()>();
    let kept = if wanted {
        // A thread of its own: the runtime would wait for a read that cannot be cancelled.
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || {
                let (_sender, mut buffer) = (sender, [0; 1024]);
                while matches!(std::io::stdin().read(&mut buffer), Ok(1..)) {}
            })
            .context("cannot read standard input")?;
        None
    } else {
        Some(sender)
    };
    Ok(async move {
        let _kept = kept;
        let _ = closed.await;
    })
}
