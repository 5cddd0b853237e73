//! Gathering: asks become batches, and an answered or broken batch becomes answers again.
//!
//! In: [`Ask`]s in order. Out: batches in order, each within the bounds of a message.
//! Invariants: a batch is of one namespace; a reply is used once; after a break only what is safe goes again, in the
//! order in which it went before.
//! Not here: time and network (`batch`).

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

/// Tasks of one batch. At this length what a batch costs by itself is nothing beside its tasks, and a broker's limit
/// is 10,000.
pub(crate) const TASKS_MAX: usize = 4096;
/// Bytes of one batch: below the 4 MiB that gRPC servers take by default, with room for the largest task.
const BYTES_MAX: usize = 2 * 1024 * 1024;

/// The status of a problem that is not about the task: nothing was done, and it may be later, or elsewhere.
const NOT_NOW: u32 = 503;
/// The type of the only problem with this status that every other broker would have as well: they have the same store.
const FULL: &str = "urn:punctual:full";
/// How often a batch that a broker does not want for now is taken to another: a cluster that stops broker by broker has one that stays.
const PASSES_MAX: u32 = 3;

/// A wish in line, and who waits for its answer.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are the large one: a box would be one more allocation each"
)]
pub(crate) enum ScheduleCall {
    /// One task; travels with others.
    One { namespace: Arc<str>, task: v1::NewTask, reply: oneshot::Sender<Result<Scheduled, Error>> },
    /// A batch that the caller made; travels as it is. At most [`TASKS_MAX`] tasks, see [`split`].
    Many {
        namespace: Arc<str>,
        tasks: Vec<v1::NewTask>,
        idempotency_key: String,
        reply: oneshot::Sender<Vec<Result<Scheduled, Error>>>,
    },
}

/// Parts of a caller's list that fit into one batch each. The same list is always split in the same way, because an
/// idempotency key counts places.
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

/// What a broker says if it took nothing of a batch, because it cannot take anything for now.
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

/// Tasks that travel together, and who waits for them.
#[derive(Debug)]
pub(crate) struct SentBatch {
    /// Shared with the transport while it is under way.
    message: Arc<v1::ScheduleBatch>,
    replies: ReplySenders,
    /// Whether a broker may have seen it.
    seen: bool,
    /// How many brokers did not want it for now.
    passes: u32,
}

#[derive(Debug)]
enum ReplySenders {
    /// One caller per task.
    Each(Vec<oneshot::Sender<Result<Scheduled, Error>>>),
    /// One caller for all.
    Whole(oneshot::Sender<Vec<Result<Scheduled, Error>>>),
}

impl SentBatch {
    pub(crate) fn number(&self) -> u64 {
        self.message.number
    }

    /// To each caller its own result. One that has gone away wants none.
    pub(crate) fn answer(self, results: Vec<v1::ScheduleResult>) {
        if results.len() != self.message.tasks.len() {
            return self.fail(|| Error::Answer("a batch has another number of results"));
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

    /// Whether it may go twice as it is: every task is named, or the batch is.
    fn is_repeatable(&self) -> bool {
        !self.message.idempotency_key.is_empty()
            || self.message.tasks.iter().all(|task| !task.key.is_empty())
    }

    /// Parts from its callers who cannot be helped, and is what may go again.
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
        Some(Self { message: Arc::new(message), replies, seen: self.seen, passes: self.passes })
            .filter(|batch| !batch.message.tasks.is_empty())
    }

    /// Whether one more broker may be asked.
    pub(crate) fn may_pass_on(&self) -> bool {
        self.passes < PASSES_MAX
    }

    /// Whether nobody waits for it any more.
    fn is_abandoned(&self) -> bool {
        match &self.replies {
            ReplySenders::Each(replies) => replies.iter().all(oneshot::Sender::is_closed),
            ReplySenders::Whole(reply) => reply.is_closed(),
        }
    }
}

/// Batches that have not gone yet.
#[derive(Debug, Default)]
pub(crate) struct BatchQueue {
    /// To go first.
    resend: VecDeque<SentBatch>,
    open: VecDeque<OpenBatch>,
    tasks: usize,
    bytes: usize,
    numbers: u64,
}

/// A batch that others may still join.
#[derive(Debug)]
struct OpenBatch {
    namespace: Arc<str>,
    tasks: Vec<v1::NewTask>,
    bytes: usize,
    idempotency_key: String,
    replies: ReplySenders,
}

impl OpenBatch {
    fn accepts(&self, namespace: &str, bytes: usize) -> bool {
        *self.namespace == *namespace
            && matches!(self.replies, ReplySenders::Each(_))
            && self.tasks.len() < TASKS_MAX
            && self.bytes + bytes <= BYTES_MAX
    }
}

impl BatchQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.resend.is_empty() && self.open.is_empty()
    }

    /// Whether no more asks should be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.tasks >= TASKS_MAX || self.bytes >= BYTES_MAX || !self.resend.is_empty()
    }

    /// Whether the first batch has nothing to wait for.
    pub(crate) fn is_ready(&self) -> bool {
        let whole = |batch: &OpenBatch| matches!(batch.replies, ReplySenders::Whole(_));
        self.is_full() || self.open.len() > 1 || self.open.front().is_some_and(whole)
    }

    pub(crate) fn push(&mut self, call: ScheduleCall) {
        match call {
            ScheduleCall::One { namespace, task, reply } => {
                let bytes = task.encoded_len();
                self.tasks += 1;
                self.bytes += bytes;
                // The last of its namespace: an earlier one would let it overtake.
                let last = self.open.iter_mut().rfind(|batch| batch.namespace == namespace);
                if let Some(batch) = last.filter(|batch| batch.accepts(&namespace, bytes))
                    && let ReplySenders::Each(replies) = &mut batch.replies
                {
                    batch.tasks.push(task);
                    batch.bytes += bytes;
                    replies.push(reply);
                    return;
                }
                self.open.push_back(OpenBatch {
                    namespace,
                    tasks: vec![task],
                    bytes,
                    idempotency_key: String::new(),
                    replies: ReplySenders::Each(vec![reply]),
                });
            }
            ScheduleCall::Many { namespace, tasks, idempotency_key, reply } => {
                let bytes = tasks.iter().map(Message::encoded_len).sum();
                self.tasks += tasks.len();
                self.bytes += bytes;
                let replies = ReplySenders::Whole(reply);
                self.open.push_back(OpenBatch {
                    namespace,
                    tasks,
                    bytes,
                    idempotency_key,
                    replies,
                });
            }
        }
    }

    /// The next batch, once to keep and once to send.
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
        let message = v1::ScheduleBatch {
            number: self.numbers,
            namespace: batch.namespace.to_string(),
            tasks: batch.tasks,
            idempotency_key: batch.idempotency_key,
        };
        let replies = batch.replies;
        Some(SentBatch { message: Arc::new(message), replies, seen: false, passes: 0 })
    }

    /// A broker has taken nothing of it: it goes first, whatever is in it.
    pub(crate) fn pass_on(&mut self, mut batch: SentBatch) {
        batch.passes += 1;
        self.resend.push_front(batch);
    }

    /// Nobody has read these: they go first, whatever is in them.
    pub(crate) fn return_unread(&mut self, in_flight: VecDeque<SentBatch>) {
        for batch in in_flight.into_iter().rev() {
            self.resend.push_front(batch);
        }
    }

    /// After a break: what is safe goes again, before all others; the rest is told.
    pub(crate) fn return_unanswered(&mut self, in_flight: VecDeque<SentBatch>, status: &Status) {
        let failure = CallFailure::of(status);
        for mut batch in in_flight.into_iter().rev() {
            batch.seen |= failure != CallFailure::Unreachable;
            let again = match failure {
                CallFailure::Unreachable => Some(batch),
                CallFailure::Lost | CallFailure::Busy => batch.without_unrepeatable(status),
                CallFailure::Refused => {
                    batch.fail(|| Error::from_status(status));
                    None
                }
            };
            if let Some(batch) = again {
                self.resend.push_front(batch);
            }
        }
    }

    /// The broker is out of reach: what never went is told so, what went before is told that it is lost.
    pub(crate) fn fail_all(&mut self, status: &Status) {
        for batch in self.resend.drain(..) {
            let seen = batch.seen;
            batch.fail(|| match seen {
                true => Error::Lost(status.message().to_owned()),
                false => Error::from_status(status),
            });
        }
        while let Some(batch) = self.pop_open() {
            batch.fail(|| Error::from_status(status));
        }
    }

    /// Lets go of what has not gone and nobody waits for.
    pub(crate) fn drop_abandoned(&mut self) {
        self.resend.retain(|batch| !batch.is_abandoned());
    }
}
