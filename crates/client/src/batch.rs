//! Sends concurrent schedule calls together in batches, on one stream.
//!
//! The queue of calls is bounded. Batches of one namespace are sent in the order of the calls, and
//! each caller gets one answer. A task without a key that a broker may have scheduled is never sent
//! twice. `batch/queue.rs` builds batches and distributes their answers, without network or time;
//! `batch/outage.rs` decides when to try again and when to give up.

mod outage;
mod queue;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use punctual_proto::v1;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status, Streaming};

use self::outage::{NextStream, Outage, StreamEnd};
use self::queue::{BatchQueue, SentBatch, refused_for_now};
pub(crate) use self::queue::{ScheduleCall, TASKS_MAX, split};
use crate::brokers::channel::AuthorizedChannel;
use crate::brokers::{ANSWER_BYTES_MAX, BrokerConnections};
use crate::clock::{self, Backoff};
use crate::error::CallFailure;
use crate::wire::{SCHEDULE_MANY, SharedBatchCodec};

/// Queued calls before a caller must wait: two batches, so that the next is ready when one is sent.
const CALLS_MAX: usize = 2 * TASKS_MAX;

/// Starts the task that sends batches. It ends when all senders are dropped and the last batch is
/// answered.
///
/// Each stream is to one broker. When it breaks, the next one is opened to a broker that answers.
/// If none could be reached for `give_up_after`, all waiting calls fail.
pub(crate) fn spawn(
    brokers: Arc<BrokerConnections>,
    give_up_after: Duration,
) -> mpsc::Sender<ScheduleCall> {
    let (sender, calls) = mpsc::channel(CALLS_MAX);
    tokio::spawn(run(calls, brokers, give_up_after));
    sender
}

async fn run(
    mut calls: mpsc::Receiver<ScheduleCall>,
    brokers: Arc<BrokerConnections>,
    give_up_after: Duration,
) {
    let mut queue = BatchQueue::default();
    let mut backoff = Backoff::new();
    let mut outage = Outage::new(give_up_after);
    loop {
        if queue.is_empty() {
            let idle_since = clock::now();
            match calls.recv().await {
                Some(call) => queue.push(call),
                None => return,
            }
            outage.after_idle(clock::now() - idle_since);
        }
        let (address, channel) = brokers.channel();
        let mut grpc = Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        let mut stream = BatchStream {
            queue: &mut queue,
            in_flight: VecDeque::new(),
            answers: 0,
            opened: false,
            brokers: &brokers,
        };
        let Err(status) = stream.run(&mut calls, &mut grpc).await else { return };
        let (in_flight, answers, opened) = (stream.in_flight, stream.answers, stream.opened);
        tracing::debug!(unanswered = in_flight.len(), %status, "batch stream ended");
        // A broker that refuses the stream has read no batch, and another one may accept them.
        if !opened && CallFailure::of(&status) == CallFailure::Busy && !brokers.is_alone() {
            queue.return_unread(in_flight);
        } else {
            queue.return_unanswered(in_flight, &status);
        }
        if answers > 0 {
            brokers.answered(&address);
            backoff.reset();
        }
        let next = brokers.failed(&address, &status);
        let end = StreamEnd { failure: CallFailure::of(&status), answers, next };
        match outage.next_stream(end, clock::now()) {
            NextStream::AtOnce => {}
            NextStream::AfterPause => backoff.wait().await,
            NextStream::AfterPauseWithin(left) => {
                if timeout(left, backoff.wait()).await.is_err() {
                    give_up(&mut queue, &mut calls, &status);
                }
            }
        }
        queue.drop_abandoned();
    }
}

/// Fails all waiting calls, so that they do not wait for their timeout.
fn give_up(queue: &mut BatchQueue, calls: &mut mpsc::Receiver<ScheduleCall>, status: &Status) {
    queue.fail_all(status);
    for _ in 0..CALLS_MAX {
        let Ok(call) = calls.try_recv() else { break };
        queue.push(call);
    }
    queue.fail_all(status);
}

/// One stream of batches, until it breaks.
struct BatchStream<'a> {
    queue: &'a mut BatchQueue,
    /// Sent and not answered, in order.
    in_flight: VecDeque<SentBatch>,
    answers: u64,
    /// Whether the broker has accepted the stream.
    opened: bool,
    brokers: &'a BrokerConnections,
}

impl BatchStream<'_> {
    /// Runs until all callers are gone and answered, or returns why the stream broke.
    async fn run(
        &mut self,
        calls: &mut mpsc::Receiver<ScheduleCall>,
        grpc: &mut Grpc<AuthorizedChannel>,
    ) -> Result<(), Status> {
        // A capacity of one: a batch grows until the previous one is written.
        let (outgoing, batches) = mpsc::channel(1);
        self.take_waiting(calls);
        // Send the first batch at once: some servers answer the request only after a message.
        if let Some(first) = self.next() {
            _ = outgoing.try_send(first);
        }
        let mut answers = open(grpc, batches).await?;
        self.opened = true;
        let mut callers = true;
        while callers || !self.queue.is_empty() || !self.in_flight.is_empty() {
            let due = self.queue.is_due(self.in_flight.len());
            tokio::select! {
                biased;
                answer = answers.message() => {
                    self.answer(answer?)?;
                    // Callers that were answered often call again: the next batch has these calls.
                    tokio::task::yield_now().await;
                    self.take_waiting(calls);
                }
                call = calls.recv(), if callers && !self.queue.is_full() => match call {
                    Some(call) => {
                        self.queue.push(call);
                        self.take_waiting(calls);
                    }
                    None => callers = false,
                },
                permit = outgoing.reserve(), if due => {
                    let permit = permit.map_err(|_| Status::cancelled("the stream is closed"))?;
                    if let Some(batch) = self.next() {
                        permit.send(batch);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes all queued calls, up to a whole batch.
    fn take_waiting(&mut self, calls: &mut mpsc::Receiver<ScheduleCall>) {
        while !self.queue.is_full() {
            match calls.try_recv() {
                Ok(call) => self.queue.push(call),
                Err(_) => return,
            }
        }
    }

    /// Takes the next batch, which is in flight from now on.
    fn next(&mut self) -> Option<Arc<v1::ScheduleBatch>> {
        let (batch, message) = self.queue.pop()?;
        self.in_flight.push_back(batch);
        Some(message)
    }

    fn answer(&mut self, answer: Option<v1::ScheduledBatch>) -> Result<(), Status> {
        let answer = answer.ok_or_else(|| Status::cancelled("the broker ended the stream"))?;
        let Some(batch) = self.in_flight.pop_front_if(|batch| batch.number() == answer.number)
        else {
            return Err(Status::internal("the answer belongs to another batch"));
        };
        // A broker that is stopping refuses each task of the batch; another one may accept them.
        if !self.brokers.is_alone()
            && batch.may_pass_on()
            && let Some(problem) = refused_for_now(&answer.results)
        {
            self.queue.pass_on(batch);
            return Err(Status::unavailable(problem));
        }
        self.answers += 1;
        batch.answer(answer.results);
        Ok(())
    }
}

async fn open(
    grpc: &mut Grpc<AuthorizedChannel>,
    batches: mpsc::Receiver<Arc<v1::ScheduleBatch>>,
) -> Result<Streaming<v1::ScheduledBatch>, Status> {
    grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let request = Request::new(ReceiverStream::new(batches));
    let path = PathAndQuery::from_static(SCHEDULE_MANY);
    let opened = grpc.streaming(request, path, SharedBatchCodec).await?;
    Ok(opened.into_inner())
}
