//! Commands: what callers want of a partition, decided one at a time per task.
//!
//! In: [`Command`]s. Out: each is decided in its own room (`schedule`, `cancel`, `touch`, `pause`, `redrive`), or answered at once when
//! nothing changes.
//! Invariant: commands about one subject are decided in the order in which they came, each after the one
//! before is durable, and against what the store holds then.
//! Not here: checking what a caller sent (`server/api` and `core`), reading the store (`look`).

use std::collections::VecDeque;
use std::sync::Arc;

use punctual_core::{
    AttemptNo, Due, FireId, Namespace, NewTask, Task, TaskId, TaskKey, TaskState, Timestamp,
    Version,
};
use punctual_store::Resource;

use crate::commands::lookup::{FoundTask, Lookup, LookupDepth};
use crate::handle::call::{Call, ReplyTo};
use crate::owner::Owner;
use crate::ownership::hand_over::{InFlight, StoredAs};

/// Whom a command is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The task that a key names.
    Key(Namespace, TaskKey),
    /// The task with an id, if it is of this namespace.
    Id(Namespace, TaskId),
}

impl Subject {
    /// Whose.
    #[must_use]
    pub const fn namespace(&self) -> &Namespace {
        match self {
            Self::Key(namespace, _) | Self::Id(namespace, _) => namespace,
        }
    }
}

/// What callers want.
#[derive(Debug, Clone)]
pub enum Command {
    /// Create a task, or replace the one that its key names.
    Schedule(ScheduleCommand),
    /// Write down what an idempotency key stands for, where the key alone leads: its task is made elsewhere.
    Bind(Namespace, Receipt),
    /// Stop a task before its next fire.
    Cancel(Subject),
    /// Show a task.
    Get(Subject),
    /// Push the next fire of a task out, or bring it forward.
    Touch(Subject, Push),
    /// Let a task wait until it is resumed.
    Pause(Subject),
    /// Let a paused task go on.
    Resume(Subject),
    /// Fire a task now, once, besides its schedule.
    Fire(Subject),
    /// Send a dead letter back to be fired.
    Redrive {
        /// The key of its task, or its id if it has none.
        subject: Subject,
        /// Which letter.
        fire_id: FireId,
    },
    /// Delete a dead letter.
    Forget {
        /// Whose it must be.
        namespace: Namespace,
        /// Which letter.
        fire_id: FireId,
    },
}

impl Command {
    /// Whether it makes a task and asks for nothing that is there already.
    pub(crate) fn only_adds(&self) -> bool {
        let Self::Schedule(order) = self else { return false };
        order.new_task.key.is_none() && order.receipt.is_none()
    }
}

/// A task to be scheduled.
#[derive(Debug, Clone)]
pub struct ScheduleCommand {
    /// What, already checked.
    pub new_task: Arc<NewTask>,
    /// Whether it may be created, replaced, or both.
    pub condition: Condition,
    /// What makes it be created once, however often it is asked for.
    pub receipt: Option<Receipt>,
}

/// What is remembered of a task that was created under an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Where it is kept: made of the caller's key and, if the task has one, of the key of the task.
    pub key: TaskKey,
    /// Of the task as it was sent: the same key with another one is a conflict.
    pub digest: String,
}

/// What must hold for a task to be scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Always,
    /// The key names no task yet.
    Absent,
    /// The key names a task of this version.
    Version(Version),
}

/// To when a touch moves a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Push {
    /// As the schedule of a watch says.
    Within,
    /// To a time of the caller's.
    To(Due),
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To [`Command::Schedule`].
    Scheduled(Scheduled),
    /// To [`Command::Bind`]: from now on, or since before, the key stands for this and nothing else.
    Bound,
    /// To [`Command::Cancel`].
    Cancelled(Cancelled),
    /// To [`Command::Get`], [`Command::Pause`], [`Command::Resume`], [`Command::Fire`] and [`Command::Redrive`]: the task as
    /// it stands.
    Task(Task),
    /// To [`Command::Touch`].
    Touched {
        /// When it is due from now on.
        fire_at: Timestamp,
        /// Its version from now on.
        version: Version,
    },
    /// To [`Command::Forget`].
    Forgotten,
}

/// The answer to [`Command::Schedule`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheduled {
    /// A new task.
    Created(Task),
    /// A task in place of another.
    Replaced(Task),
}

impl Scheduled {
    /// The task, new or in place of another.
    #[must_use]
    pub const fn task(&self) -> &Task {
        match self {
            Self::Created(task) | Self::Replaced(task) => task,
        }
    }
}

/// The answer to [`Command::Cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It will never fire.
    Cancelled,
    /// Too late: this attempt is under way.
    Firing(AttemptNo),
    /// Too late: it has fired, then.
    AlreadyFired(Timestamp),
}

/// Why a command was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// There is no such living task.
    #[error("no such task")]
    NotFound,
    /// There is no such dead letter.
    #[error("no such dead letter")]
    NoLetter,
    /// It was to be created only, and exists.
    #[error("the key names a task already")]
    Exists(Box<Task>),
    /// It was to be replaced at another version.
    #[error("the task is at version {}", .0.get())]
    OtherVersion(Version),
    /// The idempotency key was used for another task.
    #[error("the idempotency key was used for another task")]
    OtherOrder,
    /// It cannot be changed while this attempt is under way.
    #[error("attempt {} of the task is under way", .0.get())]
    Firing(AttemptNo),
    /// It cannot be moved while it is paused.
    #[error("the task is paused")]
    Paused,
    /// A task that is due once can only be touched to a time.
    #[error("the task is no watch: say `in` or `at`")]
    NoWatch,
    /// A task that is due again and again cannot be touched.
    #[error("a cron or every task cannot be touched; edit it, or fire it besides")]
    NoTouch,
    /// Its schedule has no time left.
    #[error("the schedule has no fire time after now")]
    Never,
    /// Too much is under way; try again a little later.
    #[error("too much is under way; try again later")]
    Busy,
    /// Nothing was done: the store has no room.
    #[error("the store has no room left {0}")]
    Full(Resource),
    /// Nothing was done: this owner decides no more, or not before the store has what it forgot. Whoever is asked next does.
    #[error("nobody decides about this at the moment; try again")]
    Stopped,
    /// Nothing was done: the store does not answer.
    #[error("the store does not answer; nothing was done")]
    Away,
    /// The owner ended with the call under way.
    #[error("it is not known whether it was done")]
    Lost,
}

/// A command in line; one without a place for its answer is the owner's own.
#[derive(Debug)]
pub(crate) struct Queued {
    wish: Wish,
    reply: Option<ReplyTo>,
}

#[derive(Debug)]
enum Wish {
    Caller(Command),
    /// Hold the task in memory if it belongs there.
    Hold,
    /// A claimed fire was not sent: put its task back, unless its name was given to another meanwhile.
    PutBack(FireId),
    /// A delivery is under way at another broker: count it as under way here.
    Adopt(Box<InFlight>),
}

impl Queued {
    /// Where its answer belongs.
    pub(crate) fn reply(self) -> Option<ReplyTo> {
        self.reply
    }

    /// The delivery elsewhere that it is about.
    pub(crate) fn flight(&self) -> Option<&InFlight> {
        match &self.wish {
            Wish::Adopt(flight) => Some(flight),
            _ => None,
        }
    }

    /// What must be read to decide it.
    fn look(&self, subject: &Subject) -> Lookup {
        let receipt = match &self.wish {
            Wish::Caller(Command::Schedule(order)) => order.receipt_subject(),
            _ => None,
        };
        let (depth, letter) = match &self.wish {
            Wish::Caller(Command::Touch(..)) | Wish::PutBack(_) => (LookupDepth::Head, None),
            Wish::Caller(Command::Redrive { fire_id, .. } | Command::Forget { fire_id, .. }) => {
                (LookupDepth::Task, Some(*fire_id))
            }
            Wish::Adopt(flight) => match flight.stands {
                StoredAs::Filed => (LookupDepth::Task, None),
                StoredAs::Claimed { .. } => (LookupDepth::Head, Some(flight.fire_id)),
            },
            Wish::Caller(_) | Wish::Hold => (LookupDepth::Task, None),
        };
        // Without a name of its own the receipt is what the task is looked up by.
        let receipt = receipt.filter(|receipt| receipt != subject);
        Lookup { subject: subject.clone(), depth, letter, receipt }
    }
}

impl ScheduleCommand {
    /// Under which name the receipt is kept.
    fn receipt_subject(&self) -> Option<Subject> {
        Some(self.receipt.as_ref()?.subject(&self.new_task.namespace))
    }
}

impl Receipt {
    fn subject(&self, namespace: &Namespace) -> Subject {
        Subject::Key(namespace.of_receipts(), self.key.clone())
    }
}

impl Command {
    fn subject(&self) -> Option<Subject> {
        match self {
            Self::Schedule(order) => match order.new_task.key.clone() {
                Some(key) => Some(Subject::Key(order.new_task.namespace.clone(), key)),
                None => order.receipt_subject(),
            },
            Self::Bind(namespace, receipt) => Some(receipt.subject(namespace)),
            Self::Cancel(subject)
            | Self::Get(subject)
            | Self::Touch(subject, _)
            | Self::Pause(subject)
            | Self::Resume(subject)
            | Self::Fire(subject)
            | Self::Redrive { subject, .. } => Some(subject.clone()),
            Self::Forget { namespace, fire_id } => {
                Some(Subject::Id(namespace.clone(), fire_id.task))
            }
        }
    }
}

impl Owner {
    pub(crate) fn on_call(&mut self, call: Call, now: Timestamp) {
        if call.commands.is_empty() {
            return call.refuse(&EngineError::NotFound);
        }
        if self.handing_over.is_some() || !self.may_act(now) {
            return call.refuse(&EngineError::Stopped);
        }
        // Waiting with the others would help nobody.
        if self.away {
            return call.refuse(&EngineError::Away);
        }
        for (command, reply) in self.calls.open(call) {
            match command.subject() {
                // A task without a name is about nobody else.
                None => self.decide(command, reply, None, FoundTask::default(), now),
                Some(subject) => {
                    let wish = Wish::Caller(command);
                    self.queue(subject, Queued { wish, reply: Some(reply) });
                }
            }
        }
    }

    /// Has the store asked about a task, to hold it in memory if it belongs there.
    pub(crate) fn hold(&mut self, namespace: Namespace, id: TaskId) {
        self.queue(Subject::Id(namespace, id), Queued { wish: Wish::Hold, reply: None });
    }

    /// Has a claimed fire that was not sent put back, once it is known who bears its name now.
    pub(crate) fn queue_put_back(&mut self, subject: Subject, fire_id: FireId) {
        self.queue(subject, Queued { wish: Wish::PutBack(fire_id), reply: None });
    }

    /// Has the store asked how a fire stands that is under way at another broker.
    pub(crate) fn queue_adoption(&mut self, flight: InFlight) {
        let subject = Subject::Id(flight.namespace.clone(), flight.fire_id.task);
        self.queue(subject, Queued { wish: Wish::Adopt(Box::new(flight)), reply: None });
    }

    fn queue(&mut self, subject: Subject, queued: Queued) {
        if let Some(queue) = self.queues.get_mut(&subject) {
            return queue.push_back(queued);
        }
        self.look(queued.look(&subject));
        self.queues.insert(subject, VecDeque::from([queued]));
    }

    /// The store has said what it knows of a subject: the first command about it is decided.
    pub(crate) fn on_found(&mut self, subject: Subject, sight: FoundTask, now: Timestamp) {
        let Some(queue) = self.queues.get_mut(&subject) else {
            return;
        };
        let Some(Queued { wish, reply }) = queue.pop_front() else {
            return;
        };
        match (wish, reply) {
            (Wish::Caller(command), Some(reply)) => {
                self.decide(command, reply, Some(subject), sight, now);
            }
            (Wish::PutBack(fire_id), _) => self.put_back(fire_id, Some(subject), sight.head, now),
            (Wish::Adopt(flight), _) => {
                // First the next one about the same task: with the last of all, what was held back goes on.
                self.free(subject);
                self.adopt_one(&flight, sight, now);
            }
            (Wish::Hold | Wish::Caller(_), _) => {
                if let Some(task) = sight.task.filter(|task| !self.memory.contains(task.id)) {
                    self.file(task);
                }
                self.free(subject);
            }
        }
    }

    /// What the store said is not enough or out of date: the first command about a subject is looked after again.
    pub(crate) fn look_again(&mut self, subject: &Subject) {
        if let Some(queued) = self.queues.get(subject).and_then(VecDeque::front) {
            self.look(queued.look(subject));
        }
    }

    /// The store does not answer. Once the lease is over nobody who asked is kept waiting for it. Out: what is still to be looked
    /// after, if anything is.
    pub(crate) fn still_wanted(&mut self, look: Lookup, now: Timestamp) -> Option<Lookup> {
        if self.may_act(now) {
            return Some(look);
        }
        self.refuse_queued(&look.subject);
        match self.queues.get(&look.subject)?.front() {
            Some(own) => Some(own.look(&look.subject)),
            None => {
                self.queues.remove(&look.subject);
                None
            }
        }
    }

    /// What callers want of a subject is not done, all of it: whoever asks again does so in the same order.
    fn refuse_queued(&mut self, subject: &Subject) {
        let Some(queue) = self.queues.get_mut(subject) else { return };
        let (asked, own): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(queue).into_iter().partition(|queued| queued.reply.is_some());
        *queue = own;
        for reply in asked.into_iter().filter_map(Queued::reply) {
            self.calls.answer(reply, Err(EngineError::Stopped));
        }
    }

    /// Puts a command back to where it was, to be decided when the whole task was read.
    pub(crate) fn look_deeper(
        &mut self,
        command: Command,
        reply: Option<ReplyTo>,
        subject: Subject,
    ) {
        let (depth, letter, receipt) = (LookupDepth::Task, None, None);
        let look = Lookup { subject: subject.clone(), depth, letter, receipt };
        let queue = self.queues.entry(subject).or_default();
        queue.push_front(Queued { wish: Wish::Caller(command), reply });
        self.look(look);
    }

    /// The command before is done; the next one about the same subject may be decided.
    pub(crate) fn free(&mut self, subject: Subject) {
        match self.queues.get(&subject).map(VecDeque::is_empty) {
            Some(true) => {
                self.queues.remove(&subject);
            }
            Some(false) => self.look_again(&subject),
            None => {}
        }
    }

    fn decide(
        &mut self,
        command: Command,
        reply: ReplyTo,
        subject: Option<Subject>,
        sight: FoundTask,
        now: Timestamp,
    ) {
        let asked = Asked { reply: Some(reply), subject };
        if !self.may_act(now) {
            return self.answer(asked, Err(EngineError::Stopped));
        }
        let sight = self.with_what_memory_knows(sight);
        match command {
            Command::Schedule(order) => match (&order.new_task.key, &order.receipt) {
                (None, Some(_)) => self.schedule(order, asked, None, sight.task, now),
                _ => self.schedule(order, asked, sight.task, sight.receipt, now),
            },
            Command::Bind(namespace, ours) => {
                self.bind(&namespace, &ours, asked, sight.task.as_ref(), now);
            }
            Command::Cancel(_) => self.cancel(asked, sight, now),
            Command::Get(subject) => {
                let shown = sight.task.map(|task| self.as_it_stands(task));
                let shown = shown.or_else(|| self.claims.firing(&subject)).map(Reply::Task);
                self.answer(asked, shown.ok_or(EngineError::NotFound));
            }
            Command::Touch(_, push) => self.touch(push, asked, sight, now),
            Command::Pause(_) => self.pause(asked, sight.task),
            Command::Resume(_) => self.resume(asked, sight.task, now),
            Command::Fire(_) => self.fire_besides(asked, sight.task, now),
            Command::Redrive { .. } => self.redrive(asked, sight, now),
            Command::Forget { .. } => self.forget(asked, sight),
        }
    }

    /// Replies a command that changes nothing. One that is to be asked again takes along what was asked after it about the same subject.
    pub(crate) fn answer(&mut self, asked: Asked, answer: Result<Reply, EngineError>) {
        let again = answer == Err(EngineError::Stopped);
        if let Some(reply) = asked.reply {
            self.calls.answer(reply, answer);
        }
        if let Some(subject) = asked.subject {
            if again {
                self.refuse_queued(&subject);
            }
            self.free(subject);
        }
    }

    /// A fire that has come up to another is written down only when one of them is over.
    fn with_what_memory_knows(&self, sight: FoundTask) -> FoundTask {
        match sight.task.as_ref().and_then(|task| self.memory.get(task.id)) {
            Some(loaded) if !loaded.task.overlapping.is_empty() => {
                FoundTask { task: Some(loaded.task.clone()), ..sight }
            }
            _ => sight,
        }
    }

    /// A task as the store has it, with what only memory knows: whether it is firing.
    pub(crate) fn as_it_stands(&self, mut task: Task) -> Task {
        if task.state == TaskState::Scheduled && self.memory.is_firing(task.id) {
            task.state = TaskState::Firing;
        }
        task
    }
}

/// Who asked, and about whom.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Nobody, if the owner asked itself.
    pub(crate) reply: Option<ReplyTo>,
    pub(crate) subject: Option<Subject>,
}
