//! Builds batches of schedule calls, and distributes the answers of a batch to its callers.
//!
//! A batch has tasks of one namespace and fits one message. Each caller gets one reply. After a
//! broken stream only tasks that may be sent twice are sent again, in their order. Network and time
//! are in `batch`.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use prost::Message;
use punctual_proto::v1;
use tokio::sync::oneshot;
use tonic::Status;

use crate::error::CallFailure;
use crate::task::Scheduled;
use crate::{Error, wire};

/// Tasks of one batch: enough that the cost of the batch itself does not matter, and below the
/// limit of a broker, which is 10,000.
pub(crate) const TASKS_MAX: usize = 4096;
/// Bytes of one batch: with one more of the largest tasks still below the 4 MiB that gRPC servers
/// accept by default.
const BYTES_MAX: usize = 2 * 1024 * 1024;

/// Batches in flight. A broker commits many of them together; more would only wait there.
const IN_FLIGHT_MAX: usize = 16;
/// Batches in flight with which a batch that can still grow is sent. Otherwise it grows until one
/// is answered, so that many callers fill few batches.
const GROWING_IN_FLIGHT_MAX: usize = 2;

/// The status of a task that the broker did not schedule, but may schedule later, or another broker
/// now.
const NOT_NOW: u32 = 503;
/// The only problem with this status that all brokers have in common, because they share the store.
const FULL: &str = "urn:punctual:full";
/// How many brokers may refuse a batch for now before its callers get that answer. In a cluster
/// that restarts broker by broker, one of them accepts it.
const PASSES_MAX: u32 = 3;

type ReplySender = oneshot::Sender<Result<Scheduled, Error>>;
type BatchReplySender = oneshot::Sender<Vec<Result<Scheduled, Error>>>;

/// A queued call, and where its answer goes.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are the large variant, and a box would be one more allocation each"
)]
pub(crate) enum ScheduleCall {
    /// One task, which is sent together with others.
    One { namespace: Arc<str>, task: v1::NewTask, reply: ReplySender },
    /// A batch of the caller, which is sent as it is. It has at most [`TASKS_MAX`] tasks, see
    /// [`split`].
    Many {
        namespace: Arc<str>,
        tasks: Vec<v1::NewTask>,
        idempotency_key: String,
        reply: BatchReplySender,
    },
}

/// Splits a list of tasks into parts that fit one batch each. The same list is always split in the
/// same way, because idempotency depends on the position of a task in its batch.
pub(crate) fn split(tasks: Vec<v1::NewTask>) -> impl Iterator<Item = Vec<v1::NewTask>> {
    let mut tasks = tasks.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut part = vec![tasks.next()?];
        let mut bytes = part[0].encoded_len();
        while part.len() < TASKS_MAX {
            let fits = |next: &v1::NewTask| bytes + next.encoded_len() <= BYTES_MAX;
            let Some(next) = tasks.next_if(fits) else { break };
            bytes += next.encoded_len();
            part.push(next);
        }
        Some(part)
    })
}

/// The reason of a broker that scheduled nothing of a batch, because it cannot accept tasks now;
/// `None` for all other results.
pub(crate) fn refused_for_now(results: &[v1::ScheduleResult]) -> Option<String> {
    let refused = |result: &v1::ScheduleResult| match &result.result {
        Some(v1::schedule_result::Result::Problem(problem)) => {
            problem.status == NOT_NOW && problem.r#type != FULL
        }
        _ => false,
    };
    match results.first()?.result.as_ref()? {
        v1::schedule_result::Result::Problem(problem) if results.iter().all(refused) => {
            Some(problem.detail.clone())
        }
        _ => None,
    }
}

/// A batch, and where the answers go.
#[derive(Debug)]
pub(crate) struct SentBatch {
    /// Shared with the transport while it is in flight.
    message: Arc<v1::ScheduleBatch>,
    replies: ReplySenders,
    /// Whether a broker may have received it.
    maybe_received: bool,
    /// How many brokers have refused it for now.
    passes: u32,
}

#[derive(Debug)]
enum ReplySenders {
    /// One caller for each task.
    Each(Vec<ReplySender>),
    /// One caller for all tasks.
    Whole(BatchReplySender),
}

impl SentBatch {
    pub(crate) fn number(&self) -> u64 {
        self.message.number
    }

    /// Sends each caller its result. Callers that are gone are ignored.
    pub(crate) fn answer(self, results: Vec<v1::ScheduleResult>) {
        if results.len() != self.message.tasks.len() {
            return self.fail(|| Error::Answer("a batch has the wrong number of results"));
        }
        let mut results = results.into_iter().map(wire::schedule_result);
        match self.replies {
            ReplySenders::Each(replies) => {
                for (reply, result) in replies.into_iter().zip(results) {
                    _ = reply.send(result);
                }
            }
            ReplySenders::Whole(reply) => _ = reply.send(results.by_ref().collect()),
        }
    }

    fn fail(self, error: impl Fn() -> Error) {
        match self.replies {
            ReplySenders::Each(replies) => {
                for reply in replies {
                    _ = reply.send(Err(error()));
                }
            }
            ReplySenders::Whole(reply) => {
                let results = self.message.tasks.iter().map(|_| Err(error()));
                _ = reply.send(results.collect());
            }
        }
    }

    /// Whether it may be sent twice: all tasks have keys, or the batch has an idempotency key.
    fn is_repeatable(&self) -> bool {
        !self.message.idempotency_key.is_empty()
            || self.message.tasks.iter().all(|task| !task.key.is_empty())
    }

    /// Fails the tasks that must not be sent twice, and returns the batch with the others, if any.
    fn without_unrepeatable(self, status: &Status) -> Option<Self> {
        if self.is_repeatable() {
            return Some(self);
        }
        let ReplySenders::Each(replies) = self.replies else {
            self.fail(|| Error::Lost(status.message().to_owned()));
            return None;
        };
        let mut message = Arc::unwrap_or_clone(self.message);
        let mut kept = Vec::new();
        let mut kept_replies = Vec::new();
        for (task, reply) in mem::take(&mut message.tasks).into_iter().zip(replies) {
            if task.key.is_empty() {
                _ = reply.send(Err(Error::Lost(status.message().to_owned())));
            } else {
                kept.push(task);
                kept_replies.push(reply);
            }
        }
        message.tasks = kept;
        let replies = ReplySenders::Each(kept_replies);
        let (maybe_received, passes) = (self.maybe_received, self.passes);
        Some(Self { message: Arc::new(message), replies, maybe_received, passes })
            .filter(|batch| !batch.message.tasks.is_empty())
    }

    /// Whether it may be sent to one more broker.
    pub(crate) fn may_pass_on(&self) -> bool {
        self.passes < PASSES_MAX
    }

    /// Whether all its callers are gone.
    fn is_abandoned(&self) -> bool {
        match &self.replies {
            ReplySenders::Each(replies) => replies.iter().all(oneshot::Sender::is_closed),
            ReplySenders::Whole(reply) => reply.is_closed(),
        }
    }
}

/// Batches that are not in flight.
#[derive(Debug, Default)]
pub(crate) struct BatchQueue {
    /// Batches to send again, before all others.
    resend: VecDeque<SentBatch>,
    open: VecDeque<OpenBatch>,
    tasks: usize,
    bytes: usize,
    /// How many of the open batches are complete.
    complete: usize,
    /// How many of the open batches, from the first, are sent even if they can still grow.
    released: usize,
    numbers: u64,
}

/// A batch that was not sent yet.
#[derive(Debug)]
struct OpenBatch {
    namespace: Arc<str>,
    tasks: Vec<v1::NewTask>,
    bytes: usize,
    idempotency_key: String,
    replies: ReplySenders,
    /// Whether no task can be added: it is the batch of a caller, or a later batch of its namespace
    /// is open.
    complete: bool,
}

impl OpenBatch {
    fn accepts(&self, bytes: usize) -> bool {
        !self.complete && self.tasks.len() < TASKS_MAX && self.bytes + bytes <= BYTES_MAX
    }
}

impl BatchQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.resend.is_empty() && self.open.is_empty()
    }

    /// Whether no further call should be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.tasks >= TASKS_MAX || self.bytes >= BYTES_MAX || !self.resend.is_empty()
    }

    /// Whether the next batch is sent now, with this many batches in flight.
    ///
    /// With few in flight, all that was asked so far is sent. With more, only full batches and what
    /// is before them: other batches grow until one in flight is answered. No batch waits for time
    /// to pass.
    pub(crate) fn is_due(&mut self, in_flight: usize) -> bool {
        if in_flight < GROWING_IN_FLIGHT_MAX {
            self.released = self.open.len();
        }
        !self.is_empty()
            && in_flight < IN_FLIGHT_MAX
            && (self.released > 0 || self.complete > 0 || self.is_full())
    }

    pub(crate) fn push(&mut self, call: ScheduleCall) {
        match call {
            ScheduleCall::One { namespace, task, reply } => {
                let bytes = task.encoded_len();
                self.tasks += 1;
                self.bytes += bytes;
                // Only the last batch of its namespace, so that tasks stay in order.
                let last = self.open.iter_mut().rfind(|batch| batch.namespace == namespace);
                if let Some(batch) = last {
                    if batch.accepts(bytes)
                        && let ReplySenders::Each(replies) = &mut batch.replies
                    {
                        batch.tasks.push(task);
                        batch.bytes += bytes;
                        replies.push(reply);
                        return;
                    }
                    self.complete += usize::from(!mem::replace(&mut batch.complete, true));
                }
                self.open.push_back(OpenBatch {
                    namespace,
                    tasks: vec![task],
                    bytes,
                    idempotency_key: String::new(),
                    replies: ReplySenders::Each(vec![reply]),
                    complete: false,
                });
            }
            ScheduleCall::Many { namespace, tasks, idempotency_key, reply } => {
                let bytes = tasks.iter().map(Message::encoded_len).sum();
                self.tasks += tasks.len();
                self.bytes += bytes;
                self.complete += 1;
                self.open.push_back(OpenBatch {
                    namespace,
                    tasks,
                    bytes,
                    idempotency_key,
                    replies: ReplySenders::Whole(reply),
                    complete: true,
                });
            }
        }
    }

    /// Takes the next batch, and its message to send.
    pub(crate) fn pop(&mut self) -> Option<(SentBatch, Arc<v1::ScheduleBatch>)> {
        self.numbers += 1;
        let batch = match self.resend.pop_front() {
            Some(mut batch) => {
                Arc::make_mut(&mut batch.message).number = self.numbers;
                batch
            }
            None => self.pop_open()?,
        };
        let message = Arc::clone(&batch.message);
        Some((batch, message))
    }

    fn pop_open(&mut self) -> Option<SentBatch> {
        let batch = self.open.pop_front()?;
        self.tasks -= batch.tasks.len();
        self.bytes -= batch.bytes;
        self.complete -= usize::from(batch.complete);
        self.released = self.released.saturating_sub(1);
        let message = v1::ScheduleBatch {
            number: self.numbers,
            namespace: batch.namespace.to_string(),
            tasks: batch.tasks,
            idempotency_key: batch.idempotency_key,
        };
        let replies = batch.replies;
        Some(SentBatch { message: Arc::new(message), replies, maybe_received: false, passes: 0 })
    }

    /// Takes back a batch that a broker refused for now. It is sent next.
    pub(crate) fn pass_on(&mut self, mut batch: SentBatch) {
        batch.passes += 1;
        self.resend.push_front(batch);
    }

    /// Takes back batches that no broker has read. They are sent next.
    pub(crate) fn return_unread(&mut self, in_flight: VecDeque<SentBatch>) {
        for batch in in_flight.into_iter().rev() {
            self.resend.push_front(batch);
        }
    }

    /// Takes back the batches of a broken stream. Tasks that may be sent twice are sent next; the
    /// others fail.
    pub(crate) fn return_unanswered(&mut self, in_flight: VecDeque<SentBatch>, status: &Status) {
        let failure = CallFailure::of(status);
        for mut batch in in_flight.into_iter().rev() {
            batch.maybe_received |= failure != CallFailure::Unreachable;
            let again = match failure {
                CallFailure::Unreachable => Some(batch),
                CallFailure::Lost | CallFailure::Busy => batch.without_unrepeatable(status),
                CallFailure::Refused => {
                    batch.fail(|| wire::error_of_status(status));
                    None
                }
            };
            if let Some(batch) = again {
                self.resend.push_front(batch);
            }
        }
    }

    /// Fails all batches because no broker can be reached: as lost those that a broker may have
    /// received, as unreachable all others.
    pub(crate) fn fail_all(&mut self, status: &Status) {
        for batch in self.resend.drain(..) {
            let maybe_received = batch.maybe_received;
            batch.fail(|| match maybe_received {
                true => Error::Lost(status.message().to_owned()),
                false => wire::error_of_status(status),
            });
        }
        while let Some(batch) = self.pop_open() {
            batch.fail(|| wire::error_of_status(status));
        }
    }

    /// Drops batches to send again whose callers are all gone.
    pub(crate) fn drop_abandoned(&mut self) {
        self.resend.retain(|batch| !batch.is_abandoned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn one(queue: &mut BatchQueue, namespace: &str, key: &str) {
        let task = v1::NewTask { key: key.to_owned(), ..v1::NewTask::default() };
        let (namespace, reply) = (Arc::from(namespace), oneshot::channel().0);
        queue.push(ScheduleCall::One { namespace, task, reply });
    }

    fn many(queue: &mut BatchQueue, namespace: &str, count: usize) {
        let tasks = vec![v1::NewTask::default(); count];
        let (namespace, reply) = (Arc::from(namespace), oneshot::channel().0);
        let idempotency_key = String::new();
        queue.push(ScheduleCall::Many { namespace, tasks, idempotency_key, reply });
    }

    /// Sends all batches that are due, and returns how many tasks each has.
    fn send(queue: &mut BatchQueue, in_flight: &mut usize) -> Vec<usize> {
        let mut sent = Vec::new();
        while queue.is_due(*in_flight) {
            sent.push(queue.pop().unwrap().1.tasks.len());
            *in_flight += 1;
        }
        sent
    }

    #[test]
    fn a_caller_that_is_alone_never_waits() {
        let mut queue = BatchQueue::default();
        assert!(!queue.is_due(0), "there is nothing to send");
        for _ in 0..3 {
            one(&mut queue, "a", "k");
            assert_eq!(send(&mut queue, &mut 0), [1]);
        }
    }

    #[test]
    fn calls_made_while_batches_are_in_flight_are_the_next_batch_as_soon_as_one_is_answered() {
        let (mut queue, mut in_flight) = (BatchQueue::default(), 0);
        for sent in 0..GROWING_IN_FLIGHT_MAX {
            one(&mut queue, "a", &sent.to_string());
            assert_eq!(send(&mut queue, &mut in_flight), [1]);
        }
        for key in 0..64 {
            one(&mut queue, "a", &key.to_string());
            assert!(!queue.is_due(in_flight), "the batch grows");
        }
        in_flight -= 1;
        assert_eq!(send(&mut queue, &mut in_flight), [64]);
    }

    #[test]
    fn an_answer_sends_what_all_namespaces_have_asked() {
        let (mut queue, mut in_flight) = (BatchQueue::default(), GROWING_IN_FLIGHT_MAX);
        for key in 0..30 {
            one(&mut queue, ["a", "b", "c"][key % 3], &key.to_string());
        }
        assert_eq!(send(&mut queue, &mut in_flight), NONE);
        in_flight -= 1;
        assert_eq!(send(&mut queue, &mut in_flight), [10, 10, 10]);
        one(&mut queue, "a", "later");
        assert_eq!(send(&mut queue, &mut in_flight), NONE);
    }

    #[test]
    fn a_backlog_is_sent_as_full_batches_up_to_the_bound() {
        let (mut queue, mut in_flight) = (BatchQueue::default(), GROWING_IN_FLIGHT_MAX);
        for batch in GROWING_IN_FLIGHT_MAX..IN_FLIGHT_MAX {
            for key in 0..TASKS_MAX {
                assert_eq!(send(&mut queue, &mut in_flight), NONE, "task {key} of {batch}");
                one(&mut queue, "a", &key.to_string());
            }
            assert_eq!(send(&mut queue, &mut in_flight), [TASKS_MAX]);
        }
        (0..TASKS_MAX).for_each(|key| one(&mut queue, "a", &key.to_string()));
        assert!(queue.is_full());
        assert_eq!(send(&mut queue, &mut in_flight), NONE, "as many as may be are in flight");
    }

    #[test]
    fn the_batch_of_a_caller_waits_for_no_answer_and_neither_do_earlier_calls() {
        let (mut queue, mut in_flight) = (BatchQueue::default(), GROWING_IN_FLIGHT_MAX);
        one(&mut queue, "b", "earlier");
        assert_eq!(send(&mut queue, &mut in_flight), NONE);
        many(&mut queue, "a", 7);
        one(&mut queue, "a", "later");
        assert_eq!(send(&mut queue, &mut in_flight), [1, 7]);
        assert!(!queue.is_empty());
    }

    #[test]
    fn a_batch_without_space_for_the_next_task_is_sent_before_it() {
        let (mut queue, mut in_flight) = (BatchQueue::default(), GROWING_IN_FLIGHT_MAX);
        let large = "k".repeat(BYTES_MAX / 2);
        one(&mut queue, "a", &large);
        assert_eq!(send(&mut queue, &mut in_flight), NONE);
        one(&mut queue, "a", &large[1..]);
        assert_eq!(send(&mut queue, &mut in_flight), [1], "both are more than fits");
    }
}
