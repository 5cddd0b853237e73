//! Workload `touch`: watches are touched and tasks that are due once are postponed, by key, one at
//! a time and in batches, over HTTP and gRPC; and how much memory many touched names need.

use anyhow::ensure;
use punctual_proto::v1::{NewTask, TouchRequest, new_task, touch_request};
use serde_json::json;

use super::schedule::{fill_peer, fill_with, send_to_peer};
use crate::broker::usage;
use crate::clock::millis;
use crate::connection::{HttpConnection, NAMESPACE, channel, task, tasks};
use crate::context::BenchContext;
use crate::peer::{BenchPeer, PeerTask, PeerVerb};
use crate::report::grouped;
use crate::rounds::{BATCH, RateRow, SendShape, TurnResult, TurnTimer};
use crate::senders::{self, SendTime};

/// How far a touch moves a task: `within` of the watches, and `in` of the others.
const DELAY_MS: u64 = 48 * 3_600_000;
const BATCHES: SendShape = SendShape::Batches { connections: 8, in_flight: 1 };

/// What is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TouchSubject {
    Watches,
    /// Tasks that are due once, which a touch with `in` postpones.
    Once,
}

/// How touches are sent.
#[derive(Debug, Clone, Copy)]
enum TouchMode {
    /// Each answer has the whole task, which has to be read.
    Http,
    HttpMinimal,
    HttpBatch,
    GrpcBatch,
}

/// The keys that a sender touches, again and again.
#[derive(Debug, Clone, Copy)]
struct TouchedKeys {
    /// All keys that there are.
    keys: u64,
    /// How many keys each of its requests has.
    size: u64,
    /// How many keys all senders touch between two requests of this one.
    step: u64,
    next: u64,
}

impl TouchedKeys {
    fn new(keys: u64, shape: SendShape, sender: u64) -> Self {
        let size = shape.batch_tasks();
        Self { keys, size, step: shape.senders() * size, next: sender * size }
    }

    fn take(&mut self) -> Vec<u64> {
        let first = self.next;
        self.next += self.step;
        (first..first + self.size).map(|number| number % self.keys).collect()
    }
}

pub(crate) async fn run(bench: &mut BenchContext) -> anyhow::Result<()> {
    let keys = (bench.keys / bench.divisor).max(BATCH);
    create(bench, TouchSubject::Watches, keys).await?;
    let one = SendShape::One { connections: 16 };
    let watches = format!("touch {} watches", grouped(keys));
    for (mode, shape, name, wanted) in [
        (TouchMode::Http, one, "one at a time, HTTP", "–"),
        (TouchMode::HttpMinimal, one, "one at a time, HTTP, return=minimal", "–"),
        (TouchMode::GrpcBatch, BATCHES, "batches of 1,000, gRPC", "≥ 200,000/s"),
        (TouchMode::HttpBatch, BATCHES, "batches of 1,000, HTTP", "≥ 100,000/s"),
    ] {
        let what = format!("{watches}, {name}");
        measure(bench, TouchSubject::Watches, mode, keys, RateRow::new(what, shape, wanted))
            .await?;
    }
    memory(bench, keys).await?;
    bench.renew().await?;
    create(bench, TouchSubject::Once, keys).await?;
    for (mode, name) in [(TouchMode::GrpcBatch, "gRPC"), (TouchMode::HttpBatch, "HTTP")] {
        let what = format!("postpone {} tasks, batches of 1,000, {name}", grouped(keys));
        measure(bench, TouchSubject::Once, mode, keys, RateRow::new(what, BATCHES, "–")).await?;
    }
    Ok(())
}

async fn measure(
    bench: &mut BenchContext,
    touched: TouchSubject,
    mode: TouchMode,
    keys: u64,
    row: RateRow,
) -> anyhow::Result<()> {
    let shape = row.shape;
    let results = bench
        .rounds(
            async |bench| {
                let turn = TurnTimer::of_broker(bench);
                let time = SendTime::start(bench.length);
                let sender = |sender| {
                    let address = bench.broker.address.clone();
                    let keys = TouchedKeys::new(keys, shape, sender);
                    touch(address, touched, mode, keys, time)
                };
                let done = senders::run(shape.senders(), sender).await?;
                Ok(turn.finish_of_broker(done, bench))
            },
            async |peer| touch_at_peer(peer, keys, shape, SendTime::start(bench.length)).await,
        )
        .await?;
    row.report(&results, &mut bench.report);
    Ok(())
}

/// Touches on one connection until the time is over. Returns how many tasks were touched.
async fn touch(
    address: String,
    touched: TouchSubject,
    mode: TouchMode,
    mut keys: TouchedKeys,
    time: SendTime,
) -> anyhow::Result<u64> {
    let mut http = HttpConnection::connect(&address).await?;
    if matches!(mode, TouchMode::HttpMinimal) {
        http = http.prefer_minimal();
    }
    let mut tasks = tasks(channel(&address).await?);
    let mut done = 0;
    let mut requests = time.requests();
    while requests.another() {
        let names: Vec<_> = keys.take().into_iter().map(key).collect();
        let wanted = names.len() as u64;
        let touched = match mode {
            TouchMode::Http | TouchMode::HttpMinimal => {
                for name in names {
                    let path = format!("/v1/{NAMESPACE}/tasks/{name}/touch");
                    post(&mut http, &path, b"").await?;
                }
                wanted
            }
            TouchMode::HttpBatch => {
                let mut body = json!({ "keys": names });
                if touched == TouchSubject::Once {
                    body["in"] = format!("{}s", DELAY_MS / 1000).into();
                }
                let path = format!("/v1/{NAMESPACE}/touch");
                let answer = post(&mut http, &path, body.to_string().as_bytes()).await?;
                serde_json::from_slice::<serde_json::Value>(answer)?["touched"]
                    .as_u64()
                    .unwrap_or(0)
            }
            TouchMode::GrpcBatch => {
                let to = match touched {
                    TouchSubject::Watches => None,
                    TouchSubject::Once => Some(touch_request::To::InMs(DELAY_MS)),
                };
                let namespace = NAMESPACE.to_owned();
                let request = TouchRequest { namespace, keys: names, to, create: None };
                tasks.touch(request).await?.into_inner().touched
            }
        };
        ensure!(touched == wanted, "{touched} of {wanted} were touched");
        done += touched;
    }
    Ok(done)
}

async fn post<'a>(
    http: &'a mut HttpConnection,
    path: &str,
    body: &[u8],
) -> anyhow::Result<&'a [u8]> {
    let (status, answer) = http.request("POST", path, "application/json", body).await?;
    ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(answer));
    Ok(answer)
}

async fn touch_at_peer(
    peer: &BenchPeer,
    keys: u64,
    shape: SendShape,
    time: SendTime,
) -> anyhow::Result<TurnResult> {
    let turn = TurnTimer::of_peer(peer);
    let sender = |sender| {
        let mut keys = TouchedKeys::new(keys, shape, sender);
        let mut requests = time.requests();
        let next =
            move || requests.another().then(|| keys.take().into_iter().map(peer_task).collect());
        peer.target().send(PeerVerb::Touch, shape.in_flight(), next)
    };
    Ok(turn.finish_of_peer(senders::run(shape.senders(), sender).await?, peer))
}

/// Touches each watch once more, and reports the memory of the servers.
async fn memory(bench: &mut BenchContext, keys: u64) -> anyhow::Result<()> {
    let mut tasks = tasks(channel(&bench.broker.address).await?);
    for first in (0..keys).step_by(usize::try_from(BATCH)?) {
        let names = (first..(first + BATCH).min(keys)).map(key).collect();
        let namespace = NAMESPACE.to_owned();
        let request = TouchRequest { namespace, keys: names, to: None, create: None };
        tasks.touch(request).await?;
    }
    if let Some(peer) = &bench.peer {
        send_to_peer(peer, PeerVerb::Touch, BATCHES, keys, peer_task).await?;
    }
    let resident = |pid: Option<u32>| pid.and_then(usage).map(|usage| usage.resident_bytes);
    let broker = resident(bench.broker.pid());
    let words = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{} MiB resident", bytes >> 20),
        None => "unknown".to_owned(),
    };
    let what = format!("memory after touching {} names", grouped(keys));
    let mut cells = vec![what, words(broker), "≤ 400 MiB".to_owned()];
    let mut figures = json!({"resident_bytes": broker});
    if let Some(peer) = &bench.peer {
        let resident = peer.resident_bytes();
        cells.push(words(resident));
        figures[peer.word()] = json!({"resident_bytes": resident});
    }
    bench.report.cells(cells, figures);
    Ok(())
}

fn key(number: u64) -> String {
    format!("device-{number:08}")
}

fn peer_task(number: u64) -> PeerTask {
    PeerTask { name: key(number), number, due_ms: millis() + DELAY_MS }
}

/// When a task is due that a touch postpones: earlier than a touch moves it. Moving a task to an
/// earlier time would store it again as a whole.
fn due_before_touch(number: u64) -> u64 {
    let half = DELAY_MS / 2;
    millis() + half + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % half
}

/// Creates a task for every key, in the broker and in the system beside it.
async fn create(bench: &BenchContext, touched: TouchSubject, keys: u64) -> anyhow::Result<()> {
    let make = move |number| {
        let task = NewTask { key: key(number), ..task(number, due_before_touch(number)) };
        match touched {
            TouchSubject::Watches => {
                NewTask { when: Some(new_task::When::WithinMs(DELAY_MS)), ..task }
            }
            TouchSubject::Once => task,
        }
    };
    fill_with(bench, keys, make).await?;
    if let Some(peer) = &bench.peer {
        fill_peer(peer, keys, peer_task).await?;
    }
    Ok(())
}
