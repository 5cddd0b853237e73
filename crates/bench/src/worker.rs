//! A worker that acks every delivery at once, and records what arrived, how late and how often; and
//! the stream of a worker, for workers that do something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use punctual_proto::v1::workers_client::WorkersClient;
use punctual_proto::v1::{
    BrokerMessage, Delivery, Hello, Settle, WorkerMessage, broker_message, worker_message,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::clock::micros;
use crate::connection::{NAMESPACE, QUEUE, channel, number_of, workers};
use crate::report::LagHistogram;

/// How many unsettled deliveries a worker accepts.
const CREDIT: u32 = 16_384;

/// What a worker received.
#[derive(Debug)]
pub(crate) struct WorkerTally {
    pub(crate) lags: LagHistogram,
    /// How often each task was delivered, indexed by its number.
    times: Vec<u8>,
}

impl WorkerTally {
    /// Counts tasks that were never delivered.
    pub(crate) fn lost(&self) -> u64 {
        self.times.iter().filter(|times| **times == 0).count() as u64
    }

    /// Counts deliveries after the first of each task.
    pub(crate) fn doubled(&self) -> u64 {
        self.times.iter().map(|times| u64::from(times.saturating_sub(1))).sum()
    }

    /// Adds what another worker received.
    pub(crate) fn merge(mut self, other: &Self) -> Self {
        for (times, more) in self.times.iter_mut().zip(&other.times) {
            *times = times.saturating_add(*more);
        }
        self.lags.early += other.lags.early;
        self
    }
}

/// Starts a worker with its own stream. It ends when all workers that share `received` have
/// received `count` tasks.
pub(crate) fn start(
    address: String,
    count: u64,
    received: Arc<AtomicU64>,
) -> JoinHandle<anyhow::Result<WorkerTally>> {
    tokio::spawn(async move {
        let mut tally =
            WorkerTally { lags: LagHistogram::new(), times: vec![0; usize::try_from(count)?] };
        let until = || received.load(Ordering::Relaxed) >= count;
        listen(&address, NAMESPACE, until, |number, delivery, now| {
            tally.lags.note(delivery.fire_at_ms * 1000, now);
            if let Some(times) = tally.times.get_mut(usize::try_from(number)?) {
                received.fetch_add(u64::from(*times == 0), Ordering::Relaxed);
                *times = times.saturating_add(1);
            }
            Ok(())
        })
        .await?;
        Ok(tally)
    })
}

/// Receives and acks deliveries from the queue of a namespace until `enough` returns true. Calls
/// `on` with the number of the task, the delivery and the time in microseconds.
pub(crate) async fn listen(
    address: &str,
    namespace: &str,
    enough: impl Fn() -> bool,
    mut on: impl FnMut(u64, &Delivery, u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut workers = workers(channel(address).await?);
    let mut stream = BenchWorkerStream::open(&mut workers, namespace, QUEUE, CREDIT).await?;
    while !enough() {
        let wait = std::time::Duration::from_millis(200);
        // Another worker may have received the last delivery.
        let Ok(deliveries) = tokio::time::timeout(wait, stream.deliveries()).await else {
            continue;
        };
        let now = micros();
        let mut ack = Vec::new();
        for delivery in &deliveries? {
            let number = number_of(&delivery.payload).context("an unknown payload")?;
            on(number, delivery, now)?;
            ack.push(delivery.token);
        }
        if !ack.is_empty() {
            stream.settle(Settle { ack, ..Settle::default() }).await?;
        }
    }
    stream.close().await;
    Ok(())
}

/// The stream of one worker.
#[derive(Debug)]
pub(crate) struct BenchWorkerStream {
    sender: mpsc::Sender<WorkerMessage>,
    messages: Streaming<BrokerMessage>,
}

impl BenchWorkerStream {
    /// Opens a stream for one queue.
    pub(crate) async fn open(
        workers: &mut WorkersClient<Channel>,
        namespace: &str,
        queue: &str,
        credit: u32,
    ) -> anyhow::Result<Self> {
        let (sender, receiver) = mpsc::channel(64);
        let hello = Hello {
            namespace: namespace.to_owned(),
            queues: vec![queue.to_owned()],
            credit,
            name: "bench".to_owned(),
        };
        send(&sender, worker_message::Message::Hello(hello)).await?;
        let messages = workers.work(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { sender, messages })
    }

    /// Waits for the next message. Returns its deliveries; other messages have none.
    pub(crate) async fn deliveries(&mut self) -> anyhow::Result<Vec<Delivery>> {
        let message = self.messages.message().await?.context("the broker closed the stream")?;
        Ok(match message.message {
            Some(broker_message::Message::Deliveries(batch)) => batch.deliveries,
            _ => Vec::new(),
        })
    }

    pub(crate) async fn settle(&self, settle: Settle) -> anyhow::Result<()> {
        send(&self.sender, worker_message::Message::Settle(settle)).await
    }

    /// Ends the stream when the broker has read everything that was sent.
    async fn close(mut self) {
        drop(self.sender);
        while let Ok(Some(_)) = self.messages.message().await {}
    }
}

async fn send(
    sender: &mpsc::Sender<WorkerMessage>,
    message: worker_message::Message,
) -> anyhow::Result<()> {
    let message = WorkerMessage { message: Some(message) };
    sender.send(message).await.context("the stream to the broker is closed")
}
