//! Streams of workers and connections without anything to do.

use rustix::process::{Resource, getrlimit};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::connection::{HttpConnection, channel, workers};
use crate::tenants::context::{LoadContext, NAMESPACE};
use crate::worker::BenchWorkerStream;

const STREAMS: u64 = 10_000;
/// Streams on one connection: a broker allows 256.
const STREAMS_EACH: u64 = 250;
const CONNECTIONS: u64 = 10_000;
/// Files of this process that are left for everything else.
const FILES_RESERVED: u64 = 2048;

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
    context.wait_until_steady("streams").await?;
    context.wait_until_steady("connections").await?;
    context.establish_for_good().await
}

/// Opens streams on one connection, and keeps each until the broker closes it.
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
    while let Some(ended) = streams.join_next().await {
        let ended: anyhow::Result<()> = ended?;
        context.add("streams refused or closed", u64::from(ended.is_err()));
    }
    Ok(())
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
