//! A worker that acks at once and keeps account: what came, how late, how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use punctual_proto::v1::{Delivery, Hello, Settle, WorkerMessage, broker_message, worker_message};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use super::clock::micros;
use super::report::Lags;
use super::wire::{NAMESPACE, QUEUE, channel, number_of, workers};

/// Unsettled deliveries that a worker takes at once.
const CREDIT: u32 = 16_384;

/// What a worker saw.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) lags: Lags,
    /// How often each task came, by its number.
    times: Vec<u8>,
}

impl Seen {
    /// Tasks that never came.
    pub(super) fn lost(&self) -> u64 {
        self.times.iter().filter(|times| **times == 0).count() as u64
    }

    /// Deliveries beyond the first of a task.
    pub(super) fn doubled(&self) -> u64 {
        self.times.iter().map(|times| u64::from(times.saturating_sub(1))).sum()
    }

    /// What several workers saw together.
    pub(super) fn and(mut self, other: &Self) -> Self {
        for (times, more) in self.times.iter_mut().zip(&other.times) {
            *times = times.saturating_add(*more);
        }
        self.lags.early += other.lags.early;
        self
    }
}

/// A worker on a stream of its own, until `count` tasks were received by all that share the counter.
pub(super) fn start(
    address: String,
    count: u64,
    received: Arc<AtomicU64>,
) -> JoinHandle<anyhow::Result<Seen>> {
    tokio::spawn(async move {
        let mut seen = Seen { lags: Lags::new(), times: vec![0; usize::try_from(count)?] };
        let until = || received.load(Ordering::Relaxed) >= count;
        listen(&address, NAMESPACE, until, |number, delivery, now| {
            seen.lags.note(delivery.fire_at_ms * 1000, now);
            if let Some(times) = seen.times.get_mut(usize::try_from(number)?) {
                received.fetch_add(u64::from(*times == 0), Ordering::Relaxed);
                *times = times.saturating_add(1);
            }
            Ok(())
        })
        .await?;
        Ok(seen)
    })
}

/// Receives and acks what comes to the queue of a namespace, by the number of the task, until it is enough.
pub(super) async fn listen(
    address: &str,
    namespace: &str,
    enough: impl Fn() -> bool,
    mut on: impl FnMut(u64, &Delivery, u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut workers = workers(channel(address).await?);
    let (sender, receiver) = mpsc::channel(64);
    let hello = Hello {
        namespace: namespace.to_owned(),
        queues: vec![QUEUE.to_owned()],
        credit: CREDIT,
        name: "bench".to_owned(),
    };
    send(&sender, worker_message::Message::Hello(hello)).await?;
    let mut stream = workers.work(ReceiverStream::new(receiver)).await?.into_inner();
    while !enough() {
        let wait = std::time::Duration::from_millis(200);
        // Another worker may have had the last one.
        let Ok(message) = tokio::time::timeout(wait, stream.message()).await else {
            continue;
        };
        let Some(message) = message?.and_then(|message| message.message) else {
            continue;
        };
        let broker_message::Message::Deliveries(batch) = message else {
            continue;
        };
        let now = micros();
        let mut ack = Vec::with_capacity(batch.deliveries.len());
        for delivery in &batch.deliveries {
            let number = number_of(&delivery.payload).context("not a payload of ours")?;
            on(number, delivery, now)?;
            ack.push(delivery.token);
        }
        let settle = Settle { ack, ..Settle::default() };
        send(&sender, worker_message::Message::Settle(settle)).await?;
    }
    // The stream stays until the broker has read the last acks.
    drop(sender);
    while let Ok(Some(_)) = stream.message().await {}
    Ok(())
}

async fn send(
    sender: &mpsc::Sender<WorkerMessage>,
    message: worker_message::Message,
) -> anyhow::Result<()> {
    let message = WorkerMessage { message: Some(message) };
    sender.send(message).await.context("the stream to the broker is closed")
}
