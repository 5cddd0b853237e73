//! Streams of workers and connections without anything to do.

use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::clock::{BenchTimer, pause};
use crate::connection::{HttpConnection, channel, workers};
use crate::tenants::context::{LoadContext, NAMESPACE};
use crate::worker::BenchWorkerStream;

const STREAMS: u64 = 10_000;
/// Streams on one connection: a broker allows 256.
const STREAMS_EACH: u64 = 250;
const CONNECTIONS: u64 = 10_000;
/// Files of this process that are left for everything else.
const FILES_RESERVED: u64 = 2048;
/// How long all of them may take to open; fewer are enough.
const OPEN_MAX: Duration = Duration::from_secs(60);

pub(super) async fn run(context: &LoadContext) -> anyhow::Result<()> {
    let streams = context.sized(STREAMS);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let connections = context.sized(CONNECTIONS).min(files.saturating_sub(FILES_RESERVED));
    if connections < context.sized(CONNECTIONS) {
        context.add(
            "connections left out, for the limit of open files",
            context.sized(CONNECTIONS) - connections,
        );
    }
    let mut idle = JoinSet::new();
    context.repeat(&mut idle, streams.div_ceil(STREAMS_EACH), |context, _| async move {
        open_streams(&context).await
    });
    context.repeat(&mut idle, connections, |context, number| async move {
        open_connection(&context, number).await
    });
    let timer = BenchTimer::start();
    let all = || context.count("streams") >= streams && context.count("connections") >= connections;
    while !all() && timer.elapsed() < OPEN_MAX {
        pause(50).await;
    }
    context.wait_for("streams", 1).await?;
    context.establish_for_good().await
}

/// Opens streams on one connection, and keeps them until one is closed.
async fn open_streams(context: &LoadContext) -> anyhow::Result<()> {
    let workers = workers(channel(&context.address).await?);
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS_EACH.min(context.sized(STREAMS)) {
        let (context, mut workers) = (context.clone(), workers.clone());
        streams.spawn(async move {
            let mut stream = BenchWorkerStream::open(&mut workers, NAMESPACE, "idle", 1).await?;
            context.add("streams", 1);
            loop {
                stream.deliveries().await?;
            }
        });
    }
    match streams.join_next().await {
        Some(ended) => ended?,
        None => Ok(()),
    }
}

/// Opens a connection and keeps it until the broker closes it. Every other one is answered once.
async fn open_connection(context: &LoadContext, number: u64) -> anyhow::Result<()> {
    if number.is_multiple_of(2) {
        let mut connection = HttpConnection::connect(&context.address).await?;
        connection.request("GET", "/livez", "application/json", b"").await?;
        context.add("connections", 1);
        connection.wait_until_closed().await;
    } else {
        let mut stream = TcpStream::connect(&context.address).await?;
        context.add("connections", 1);
        let _ = stream.read_u8().await;
    }
    Ok(())
}
