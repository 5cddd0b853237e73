//! Batching: many calls under way at once travel together on one stream.
//!
//! In: [`Ask`]s, in a line with a bound. Out: to each caller its own answer.
//! Invariants: batches of one namespace go in the order in which they were calls for; each is answered once; what may
//! have been done and is not named is never sent twice.
//! Next door: `batch/gather.rs` puts batches together and takes them apart, and knows no network.

mod queue;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use punctual_proto::v1;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status, Streaming};

use self::queue::{BatchQueue, SentBatch, refused_for_now};
pub(crate) use self::queue::{ScheduleCall, TASKS_MAX, split};
use crate::brokers::address_list::AfterFailure;
use crate::brokers::{ANSWER_BYTES_MAX, Brokers};
use crate::client::AuthorizedChannel;
use crate::clock::{self, Backoff, PAUSE_MIN};
use crate::error::CallFailure;
use crate::wire::{SCHEDULE_MANY, SharedBatchCodec};

/// Asks in line before a caller waits: two batches, so that the next is ready when one has gone.
const CALLS_MAX: usize = 2 * TASKS_MAX;
/// Batches without an answer. A broker makes many durable together; more than this only grows its line.
const IN_FLIGHT_MAX: usize = 16;
/// While a batch is under way the next one waits this long for company: less than most writes take to be durable, and
/// the shortest that the runtime can wait. A lone caller never waits.
const LINGER: Duration = Duration::from_millis(1);

/// Starts gathering. It stops when every sender is gone and the last batch is answered.
///
/// A stream is to one broker; when it breaks the next is opened to whichever answers. When none could be reached for longer than `give_up_after`, those who wait are told so.
pub(crate) fn spawn(brokers: Arc<Brokers>, give_up_after: Duration) -> mpsc::Sender<ScheduleCall> {
    let (sender, calls) = mpsc::channel(CALLS_MAX);
    tokio::spawn(run(calls, brokers, give_up_after));
    sender
}

async fn run(
    mut calls: mpsc::Receiver<ScheduleCall>,
    brokers: Arc<Brokers>,
    give_up_after: Duration,
) {
    let mut queue = BatchQueue::default();
    let mut backoff = Backoff::new();
    let mut unreachable_since = None;
    loop {
        if queue.is_empty() {
            match calls.recv().await {
                Some(call) => queue.push(call),
                None => return,
            }
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
        tracing::debug!(unanswered = in_flight.len(), %status, "the stream of batches ended");
        // A broker that does not let a stream begin has read nothing of it, and another may.
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
        match CallFailure::of(&status) {
            // It was told to whoever it was meant for; the next batch may be another's.
            CallFailure::Refused => continue,
            // Another broker can take it now.
            _ if next == AfterFailure::AtOnce => {}
            CallFailure::Lost | CallFailure::Busy => {
                unreachable_since = None;
                backoff.wait().await;
            }
            CallFailure::Unreachable => {
                let since = *unreachable_since.get_or_insert_with(clock::now);
                let left = give_up_after.saturating_sub(clock::now() - since).max(PAUSE_MIN);
                if timeout(left, backoff.wait()).await.is_err() {
                    give_up(&mut queue, &mut calls, &status);
                }
            }
        }
        queue.drop_abandoned();
    }
}

/// Tells all who wait, so that they need not find out by waiting longer.
fn give_up(queue: &mut BatchQueue, calls: &mut mpsc::Receiver<ScheduleCall>, status: &Status) {
    queue.fail_all(status);
    for _ in 0..CALLS_MAX {
        let Ok(call) = calls.try_recv() else { break };
        queue.push(call);
    }
    queue.fail_all(status);
}

/// One stream of batches, from its opening until it breaks.
struct BatchStream<'a> {
    queue: &'a mut BatchQueue,
    /// Sent and not answered, in that order.
    in_flight: VecDeque<SentBatch>,
    answers: u64,
    /// Whether the broker has let it begin.
    opened: bool,
    brokers: &'a Brokers,
}

impl BatchStream<'_> {
    /// Until all callers are gone and answered, or with why it broke.
    async fn run(
        &mut self,
        calls: &mut mpsc::Receiver<ScheduleCall>,
        grpc: &mut Grpc<AuthorizedChannel>,
    ) -> Result<(), Status> {
        // A capacity of one: a batch goes when the one before is written, and grows until then.
        let (outgoing, batches) = mpsc::channel(1);
        self.take_waiting(calls);
        // The first goes before there is an answer to the opening, which some servers give only then.
        if let Some(first) = self.next() {
            _ = outgoing.try_send(first);
        }
        let mut answers = open(grpc, batches).await?;
        self.opened = true;
        let mut linger = pin!(clock::after(LINGER));
        let mut lingering = false;
        let mut callers = true;
        while callers || !self.queue.is_empty() || !self.in_flight.is_empty() {
            let can_send = !self.queue.is_empty() && self.in_flight.len() < IN_FLIGHT_MAX;
            let alone = self.in_flight.is_empty() || self.queue.is_ready();
            if can_send && !alone && !lingering {
                linger.as_mut().reset(clock::now() + LINGER);
                lingering = true;
            }
            let due = can_send && (alone || linger.is_elapsed());
            tokio::select! {
                biased;
                answer = answers.message() => self.answer(answer?)?,
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
                    lingering = false;
                }
                () = &mut linger, if can_send && !due => {}
            }
        }
        Ok(())
    }

    /// Everything that is in line already, up to a whole batch.
    fn take_waiting(&mut self, calls: &mut mpsc::Receiver<ScheduleCall>) {
        while !self.queue.is_full() {
            match calls.try_recv() {
                Ok(call) => self.queue.push(call),
                Err(_) => return,
            }
        }
    }

    /// The next batch, on its way from now on.
    fn next(&mut self) -> Option<Arc<v1::ScheduleBatch>> {
        let (batch, message) = self.queue.pop()?;
        self.in_flight.push_back(batch);
        Some(message)
    }

    fn answer(&mut self, answer: Option<v1::ScheduledBatch>) -> Result<(), Status> {
        let answer = answer.ok_or_else(|| Status::cancelled("the broker ended the stream"))?;
        let Some(batch) = self.in_flight.pop_front_if(|batch| batch.number() == answer.number)
        else {
            return Err(Status::internal("the answer is to another batch"));
        };
        // A broker that stops says so of each task, and has taken none: another one may.
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
