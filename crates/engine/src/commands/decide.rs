//! Queues commands by subject and decides the first of each queue when its lookup is answered.
//!
//! A command that changes nothing is answered at once; every other one becomes a decision in the
//! file of its verb and is answered when that is durable. A command without a subject is decided
//! without a lookup.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use punctual_core::{FireId, Namespace, Task, TaskId, TaskState, Timestamp};
use punctual_store::Damage;

use crate::commands::SubjectQueue;
use crate::commands::lookup::{FoundTask, Lookup, LookupDepth};
use crate::commands::queue::{QueuedCommand, QueuedWork};
use crate::commands::read_tracker::Scope;
use crate::commit::decision::Decision;
use crate::handle::call::{Call, ReplyTo, Requester};
use crate::handle::command::{Command, Subject};
use crate::handle::error::EngineError;
use crate::handle::reply::Reply;
use crate::owner::Owner;
use crate::ownership::in_flight::InFlight;

impl Owner {
    pub(crate) fn on_call(&mut self, call: Call, now: Timestamp) {
        if call.commands.is_empty() {
            return call.refuse(&EngineError::NotFound);
        }
        if self.tenure.is_handing_over() || !self.tenure.may_act(now) {
            return call.refuse(&EngineError::Stopped);
        }
        // The commands that wait for the store already are enough.
        if self.is_store_away() {
            return call.refuse(&EngineError::StoreUnavailable);
        }
        for (command, reply) in self.commands.calls.open(call) {
            match command.subject() {
                None => self.decide(command, reply, None, FoundTask::default(), now),
                Some(subject) => {
                    self.queue(subject, QueuedCommand::of_caller(command, Some(reply)));
                }
            }
        }
    }

    /// Looks a task up, to hold it in memory if it is due before the horizon.
    pub(crate) fn queue_load(&mut self, namespace: Namespace, id: TaskId) {
        self.queue(Subject::Id(namespace, id), QueuedCommand::own(QueuedWork::Load));
    }

    /// Looks up which task has the key of a claimed fire that was not sent, to store it again.
    pub(crate) fn queue_put_back(&mut self, subject: Subject, fire_id: FireId) {
        self.queue(subject, QueuedCommand::own(QueuedWork::PutBack(fire_id)));
    }

    /// Looks up the fire of a delivery that is in flight at another broker.
    pub(crate) fn queue_adoption(&mut self, delivery: InFlight) {
        let subject = Subject::Id(delivery.namespace.clone(), delivery.task_id);
        self.queue(subject, QueuedCommand::own(QueuedWork::Adopt(Box::new(delivery))));
    }

    fn queue(&mut self, subject: Subject, command: QueuedCommand) {
        match self.commands.queues.entry(subject) {
            Entry::Occupied(mut entry) => {
                // What the command before reads answers this one too.
                if command.as_read().is_some()
                    && entry.get().commands.len() == 1
                    && let Some(lookup) = self.commands.lookups_wanted.last_mut()
                    && lookup.subject == *entry.key()
                    && lookup.depth == LookupDepth::Head
                {
                    lookup.depth = LookupDepth::Task;
                }
                entry.get_mut().commands.push_back(command);
            }
            Entry::Vacant(entry) => {
                self.commands.lookups_wanted.push(command.lookup(entry.key()));
                let lookup = Some(self.reads.open());
                entry.insert(SubjectQueue { commands: VecDeque::from([command]), lookup });
            }
        }
    }

    /// Decides a command about a subject with the result of its lookup.
    pub(crate) fn on_found(
        &mut self,
        command: QueuedCommand,
        subject: Subject,
        found: FoundTask,
        now: Timestamp,
    ) {
        match command.into_parts() {
            (QueuedWork::Caller(command), Some(reply)) => {
                self.decide(command, reply, Some(subject), found, now);
            }
            (QueuedWork::PutBack(fire_id), _) => {
                self.put_back(fire_id, Some(subject), found.head, now);
            }
            (QueuedWork::Adopt(delivery), _) => {
                // The next command first: the last adoption releases events that were held back.
                self.decide_next(subject);
                self.adopt_one(&delivery, found, now);
            }
            (QueuedWork::Load | QueuedWork::Caller(_), _) => match found.task {
                Some(task) => self.on_looked_up(task, subject),
                None => self.decide_next(subject),
            },
        }
    }

    /// Refuses a command about a subject, because a value that it needs is damaged in the store. A
    /// command of the owner's own does without the value.
    pub(crate) fn on_damaged(
        &mut self,
        command: QueuedCommand,
        subject: Subject,
        damage: &Damage,
        now: Timestamp,
    ) {
        match command.into_parts() {
            (QueuedWork::Caller(_), Some(reply)) => {
                let requester = Requester { reply: Some(reply), subject: Some(subject) };
                let error = EngineError::Damaged(damage.to_string().into());
                self.answer(requester, Err(error));
            }
            (QueuedWork::PutBack(fire_id), _) => {
                self.decide_next(subject);
                self.fail_unsent(fire_id, now);
            }
            (QueuedWork::Adopt(delivery), _) => {
                self.decide_next(subject);
                self.adopt_one(&delivery, FoundTask::default(), now);
            }
            (QueuedWork::Load | QueuedWork::Caller(_), _) => self.decide_next(subject),
        }
    }

    /// Returns the lookup to repeat while the store is unavailable. Once the lease has ended,
    /// callers are refused, and only the owner's own commands still need one.
    pub(crate) fn lookup_to_repeat(&mut self, lookup: Lookup, now: Timestamp) -> Option<Lookup> {
        if self.tenure.may_act(now) {
            return Some(lookup);
        }
        let subject = &lookup.subject;
        self.commands.refuse_queued(subject);
        let own = self.commands.first_lookup(subject);
        if own.is_none() {
            self.commands.queues.remove(subject);
        }
        own
    }

    /// Puts a command back in front of its queue, to be decided with the whole task.
    pub(crate) fn look_up_whole(
        &mut self,
        command: Command,
        reply: Option<ReplyTo>,
        subject: Subject,
    ) {
        let (depth, letter, receipt) = (LookupDepth::Task, None, None);
        let lookup = Lookup { subject: subject.clone(), depth, letter, receipt };
        if let Some(queue) = self.commands.queues.get_mut(&subject) {
            queue.commands.push_front(QueuedCommand::of_caller(command, reply));
            self.look_up(lookup);
        }
    }

    /// The command before is done: looks up what the next one about the same subject needs.
    pub(crate) fn decide_next(&mut self, subject: Subject) {
        let Entry::Occupied(queue) = self.commands.queues.entry(subject) else { return };
        if queue.get().commands.is_empty() {
            queue.remove();
            return;
        }
        let subject = queue.key().clone();
        self.look_up_again(&subject);
    }

    fn decide(
        &mut self,
        command: Command,
        reply: ReplyTo,
        subject: Option<Subject>,
        found: FoundTask,
        now: Timestamp,
    ) {
        let requester = Requester { reply: Some(reply), subject };
        if !self.tenure.may_act(now) {
            return self.answer(requester, Err(EngineError::Stopped));
        }
        if let Some(reply) = self.awaits_outcome(&command, found.task.as_ref()) {
            return self.answer(requester, reply);
        }
        if let Some(id) = found.id().filter(|_| command.recalls()) {
            if found.task.is_none()
                && self.tasks.is_firing(id)
                && let Some(subject) = requester.subject
            {
                // To decide about a task whose delivery is recalled takes the whole task.
                return self.look_up_whole(command, requester.reply, subject);
            }
            self.recall(id, now);
        }
        let found = self.with_overlapping(found);
        match command {
            Command::Schedule(schedule) => match (&schedule.new_task.key, &schedule.receipt) {
                // Without a key the subject is the receipt.
                (None, Some(_)) => self.schedule(schedule, requester, None, found.task, now),
                _ => {
                    let receipt = found.receipt.map(|receipt| *receipt);
                    self.schedule(schedule, requester, found.task, receipt, now);
                }
            },
            Command::Bind(namespace, receipt) => {
                self.bind(&namespace, &receipt, requester, found.task.as_ref(), now);
            }
            Command::Cancel(_) => self.cancel(requester, found, now),
            Command::Get(subject) => {
                let task = found.task.map(|task| self.with_firing_state(task));
                let task = task.or_else(|| self.deliveries.claimed_task(&subject));
                self.answer(requester, task.map(Reply::Task).ok_or(EngineError::NotFound));
            }
            Command::Touch(_, push) => self.touch(push, requester, found, now),
            Command::Pause(_) => self.pause(requester, found.task, now),
            Command::Resume(_) => self.resume(requester, found.task, now),
            Command::Fire(_) => self.fire_manually(requester, found.task, now),
            Command::Redrive { .. } => self.redrive(requester, found, now),
            Command::DeleteLetter { .. } => self.forget(requester, found),
        }
    }

    /// Answers the next command about a subject without a lookup, if it only reads the task: a
    /// durable decision has left it like this. If another decision was made since, the read waits
    /// for that one.
    pub(crate) fn answer_next_read(&mut self, subject: &Subject, task: Task, now: Timestamp) {
        if !self.tenure.may_act(now) || self.reads.is_undurable(Scope::Task(task.id)) {
            return;
        }
        let Some(queue) = self.commands.queues.get_mut(subject) else { return };
        if let Some(reply) = queue.commands.front().and_then(QueuedCommand::as_read) {
            queue.commands.pop_front();
            let task = self.with_firing_state(task);
            self.commands.reply(reply, Ok(Reply::Task(task)));
        }
    }

    /// Answers a command that is done. If the caller is to try again, so are the callers of the
    /// commands after it about the same subject, which keeps their order.
    pub(crate) fn answer(&mut self, requester: Requester, reply: Result<Reply, EngineError>) {
        let try_again = reply == Err(EngineError::Stopped);
        if let Some(to) = requester.reply {
            self.commands.reply(to, reply);
        }
        if let Some(subject) = requester.subject {
            if try_again {
                self.commands.refuse_queued(&subject);
            }
            self.decide_next(subject);
        }
    }

    /// Answers a command that changes nothing with what was read. A store that may have lost the
    /// task which the reply is about has to accept a batch first.
    pub(crate) fn answer_read(&mut self, requester: Requester, reply: Reply) {
        if !self.writer.must_confirm_reads() {
            return self.answer(requester, Ok(reply));
        }
        let mut decision = Decision::answering(requester);
        decision.replies(reply);
        self.write(decision);
    }

    /// Uses the copy in memory of a task with overlapping fires: the store gets them only when one
    /// of them has ended.
    fn with_overlapping(&self, found: FoundTask) -> FoundTask {
        match found.task.as_ref().and_then(|task| self.tasks.get(task.id)) {
            Some(loaded) if !loaded.task().overlapping.is_empty() => {
                FoundTask { task: Some(loaded.task().clone()), ..found }
            }
            _ => found,
        }
    }

    /// Sets the state of a stored task to firing if an attempt was sent, which only memory has.
    pub(crate) fn with_firing_state(&self, mut task: Task) -> Task {
        if task.state == TaskState::Scheduled && self.tasks.was_sent(task.id) {
            task.state = TaskState::Firing;
        }
        task
    }
}
