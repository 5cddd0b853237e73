//! Workload `schedule`: how many tasks per second the broker accepts, one at a time and in batches,
//! over HTTP, gRPC and the Rust client. The tasks are due within the next thirty days, so none
//! fires meanwhile. Each row begins with an empty store.

use anyhow::{Context as _, ensure};
use punctual_client::{Client, Timestamp};
use punctual_proto::v1::{
    NewTask, ScheduleBatch, ScheduleRequest, ScheduledBatch, schedule_result,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::clock::millis;
use crate::connection::{
    HttpConnection, NAMESPACE, QUEUE, channel, payload, take_numbers, task, task_json, tasks,
};
use crate::context::BenchContext;
use crate::peer::{BenchPeer, PeerTask, PeerVerb};
use crate::rounds::{BATCH, RateRow, SendShape, TurnResult, TurnTimer};
use crate::senders::{self, SendTime};

const DAY_MS: u64 = 86_400_000;
/// Batches in flight on one stream if their number is not measured.
pub(crate) const IN_FLIGHT: usize = 4;
/// Connections by which tasks are created that another measurement needs.
const SENDERS: u64 = 4;

/// How tasks are sent.
#[derive(Debug, Clone, Copy)]
enum SendMode {
    Client,
    Http,
    HttpBatch,
    Grpc,
    GrpcBatch,
}

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let one = |connections| SendShape::One { connections };
    let batches = |connections, in_flight| SendShape::Batches { connections, in_flight };
    let callers = SendShape::Callers { callers: 64 };
    for (mode, shape, name, wanted) in [
        (SendMode::Client, callers, "one at a time, Rust client", "–"),
        (SendMode::Http, one(1), "one at a time, HTTP", "–"),
        (SendMode::Http, one(16), "one at a time, HTTP", "–"),
        (SendMode::Http, one(64), "one at a time, HTTP", "≥ 30,000/s"),
        (SendMode::Grpc, one(64), "one at a time, gRPC", "–"),
        (SendMode::HttpBatch, batches(16, 1), "batches of 1,000, HTTP (NDJSON)", "–"),
        (SendMode::GrpcBatch, batches(1, 1), "batches of 1,000, gRPC", "–"),
        (SendMode::GrpcBatch, batches(1, 16), "batches of 1,000, gRPC", "–"),
        (SendMode::GrpcBatch, batches(16, 1), "batches of 1,000, gRPC", "≥ 300,000/s"),
        (SendMode::GrpcBatch, batches(16, 4), "batches of 1,000, gRPC", "≥ 300,000/s"),
    ] {
        bench.renew().await?;
        let results = bench
            .rounds(
                async |bench| measure(bench, mode, shape).await,
                async |peer| measure_peer(peer, SendTime::start(bench.length), shape).await,
            )
            .await?;
        let row = RateRow::new(format!("schedule, {name}"), shape, wanted);
        row.report(&results, &mut bench.report);
    }
    Ok(())
}

async fn measure(
    bench: &BenchContext,
    mode: SendMode,
    shape: SendShape,
) -> anyhow::Result<TurnResult> {
    let client = Client::connect(format!("http://{}", bench.broker.address))?;
    let turn = TurnTimer::of_broker(bench);
    let time = SendTime::start(bench.length);
    let sender = |_| {
        let (address, client) = (bench.broker.address.clone(), client.clone());
        async move {
            match mode {
                SendMode::Client => call(&client, time).await,
                SendMode::Http => http(&address, time).await,
                SendMode::HttpBatch => http_batch(&address, time).await,
                SendMode::Grpc => grpc(&address, time).await,
                SendMode::GrpcBatch => {
                    let mut requests = time.requests();
                    let next = move || requests.another().then(random_batch);
                    send_batches(&address, shape.in_flight(), next).await
                }
            }
        }
    };
    let done = senders::run(shape.senders(), sender).await?;
    Ok(turn.finish_of_broker(done, bench))
}

async fn measure_peer(
    peer: &BenchPeer,
    time: SendTime,
    shape: SendShape,
) -> anyhow::Result<TurnResult> {
    let turn = TurnTimer::of_peer(peer);
    let tasks = shape.batch_tasks();
    let sender = |_| {
        let mut requests = time.requests();
        let next = move || {
            requests.another().then(|| {
                let first = take_numbers(tasks);
                (first..first + tasks).map(|n| PeerTask::unnamed(n, random_due(n))).collect()
            })
        };
        peer.target().send(PeerVerb::Schedule, shape.in_flight(), next)
    };
    Ok(turn.finish_of_peer(senders::run(shape.senders(), sender).await?, peer))
}

/// Returns a due time at random within the next thirty days.
pub(crate) fn random_due(number: u64) -> u64 {
    millis() + DAY_MS + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (29 * DAY_MS)
}

fn random_batch() -> ScheduleBatch {
    batch(take_numbers(BATCH), random_due)
}

async fn call(client: &Client, time: SendTime) -> anyhow::Result<u64> {
    let namespace = client.namespace(NAMESPACE);
    let mut done = 0;
    let mut requests = time.requests();
    while requests.another() {
        let number = take_numbers(1);
        let due = Timestamp::from_millis(random_due(number));
        let task = namespace.task().at(due).queue(QUEUE).payload(payload(number), "");
        task.schedule().await?;
        done += 1;
    }
    Ok(done)
}

async fn http(address: &str, time: SendTime) -> anyhow::Result<u64> {
    let mut connection = HttpConnection::connect(address).await?;
    let path = format!("/v1/{NAMESPACE}/tasks");
    let mut done = 0;
    let mut requests = time.requests();
    while requests.another() {
        let number = take_numbers(1);
        let body = task_json(number, random_due(number));
        let (status, answer) =
            connection.request("POST", &path, "application/json", body.as_bytes()).await?;
        ensure!(status == 201, "{status}: {}", String::from_utf8_lossy(answer));
        done += 1;
    }
    Ok(done)
}

async fn http_batch(address: &str, time: SendTime) -> anyhow::Result<u64> {
    let mut connection = HttpConnection::connect(address).await?;
    let path = format!("/v1/{NAMESPACE}/tasks");
    let mut done = 0;
    let mut requests = time.requests();
    while requests.another() {
        let first = take_numbers(BATCH);
        let lines: Vec<_> = (first..first + BATCH).map(|n| task_json(n, random_due(n))).collect();
        let body = lines.join("\n");
        let (status, answer) =
            connection.request("POST", &path, "application/x-ndjson", body.as_bytes()).await?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
        done += BATCH;
    }
    Ok(done)
}

async fn grpc(address: &str, time: SendTime) -> anyhow::Result<u64> {
    let mut tasks = tasks(channel(address).await?);
    let mut done = 0;
    let mut requests = time.requests();
    while requests.another() {
        let number = take_numbers(1);
        let request = ScheduleRequest {
            namespace: NAMESPACE.to_owned(),
            task: Some(task(number, random_due(number))),
            ..ScheduleRequest::default()
        };
        tasks.schedule(request).await?;
        done += 1;
    }
    Ok(done)
}

/// Builds a batch of tasks with consecutive numbers.
pub(crate) fn batch(first: u64, due: impl Fn(u64) -> u64) -> ScheduleBatch {
    let tasks = (first..first + BATCH).map(|number| task(number, due(number))).collect();
    let namespace = NAMESPACE.to_owned();
    ScheduleBatch { number: first, namespace, tasks, idempotency_key: String::new() }
}

/// Sends batches on one stream until `next` has no more, with this many in flight. A batch is built
/// while others are in flight. Returns how many tasks the broker has scheduled.
pub(crate) async fn send_batches(
    address: &str,
    in_flight: usize,
    mut next: impl FnMut() -> Option<ScheduleBatch>,
) -> anyhow::Result<u64> {
    let in_flight = in_flight.max(1);
    let (sender, batches) = mpsc::channel(in_flight);
    let mut answers = open(address, batches).await?;
    let (mut unanswered, mut done) = (0, 0);
    while let Some(batch) = next() {
        if unanswered == in_flight {
            done += scheduled(answers.message().await?.context("the broker ended the stream")?)?;
            unanswered -= 1;
        }
        sender.send(batch).await.context("the stream to the broker is closed")?;
        unanswered += 1;
    }
    drop(sender);
    while let Some(answer) = answers.message().await? {
        done += scheduled(answer)?;
    }
    Ok(done)
}

/// Sends batches from a channel on one stream.
pub(crate) async fn send_from_channel(
    address: &str,
    batches: mpsc::Receiver<ScheduleBatch>,
) -> anyhow::Result<()> {
    let mut answers = open(address, batches).await?;
    while let Some(answer) = answers.message().await? {
        scheduled(answer)?;
    }
    Ok(())
}

async fn open(
    address: &str,
    batches: mpsc::Receiver<ScheduleBatch>,
) -> anyhow::Result<Streaming<ScheduledBatch>> {
    let mut tasks = tasks(channel(address).await?);
    Ok(tasks.schedule_many(ReceiverStream::new(batches)).await?.into_inner())
}

/// Checks that all tasks of a batch were scheduled. Returns how many.
fn scheduled(answer: ScheduledBatch) -> anyhow::Result<u64> {
    for result in &answer.results {
        let scheduled = matches!(result.result, Some(schedule_result::Result::Scheduled(_)));
        ensure!(scheduled, "a task was refused: {result:?}");
    }
    Ok(answer.results.len() as u64)
}

/// Schedules `count` tasks, in batches over a few connections.
pub(crate) async fn fill(
    bench: &BenchContext,
    count: u64,
    due: impl Fn(u64) -> u64 + Send + Sync + Copy + 'static,
) -> anyhow::Result<()> {
    fill_with(bench, count, move |number| task(number, due(number))).await
}

/// As [`fill`], with tasks of any kind, by number from 0.
pub(crate) async fn fill_with(
    bench: &BenchContext,
    count: u64,
    make: impl Fn(u64) -> NewTask + Send + Sync + Copy + 'static,
) -> anyhow::Result<()> {
    let bar = bench.report.bar("creating tasks", count);
    let sender = |sender| {
        let address = bench.broker.address.clone();
        let mut firsts = batch_starts(sender, SENDERS, count, BATCH);
        let next = move || {
            let first = firsts.next()?;
            let tasks = (first..(first + BATCH).min(count)).map(make).collect();
            let (namespace, idempotency_key) = (NAMESPACE.to_owned(), String::new());
            Some(ScheduleBatch { number: first, namespace, tasks, idempotency_key })
        };
        async move { send_batches(&address, IN_FLIGHT, next).await }
    };
    let done = senders::run(SENDERS, sender).await?;
    bar.finish_and_clear();
    ensure!(done == count, "{done} of {count} tasks were answered");
    Ok(())
}

/// The other side of [`fill_with`].
pub(crate) async fn fill_peer(
    peer: &BenchPeer,
    count: u64,
    make: impl Fn(u64) -> PeerTask + Send + Copy + 'static,
) -> anyhow::Result<()> {
    let shape = SendShape::Batches { connections: SENDERS, in_flight: IN_FLIGHT };
    let done = send_to_peer(peer, PeerVerb::Schedule, shape, count, make).await?;
    ensure!(done == count, "the other system has {done} of {count} tasks");
    Ok(())
}

/// Sends the tasks with numbers from 0 to `count` to the other system. Returns how many it has
/// acknowledged.
pub(crate) async fn send_to_peer(
    peer: &BenchPeer,
    verb: PeerVerb,
    shape: SendShape,
    count: u64,
    make: impl Fn(u64) -> PeerTask + Send + Copy + 'static,
) -> anyhow::Result<u64> {
    let size = shape.batch_tasks();
    let sender = |sender| {
        let mut firsts = batch_starts(sender, shape.senders(), count, size);
        let next = move || {
            let first = firsts.next()?;
            Some((first..(first + size).min(count)).map(make).collect())
        };
        peer.target().send(verb, shape.in_flight(), next)
    };
    senders::run(shape.senders(), sender).await
}

/// The first numbers of the batches of one of several senders, with `size` tasks each.
fn batch_starts(
    sender: u64,
    senders: u64,
    count: u64,
    size: u64,
) -> impl Iterator<Item = u64> + Send {
    let step = usize::try_from(senders).unwrap_or(usize::MAX);
    (sender..count.div_ceil(size)).step_by(step).map(move |number| number * size)
}
