//! The record of what happened: callbacks, tasks that start paused, answers of receivers, and
//! cancels of keys whose tasks have ended.
//!
//! In one run of three, tasks have callbacks and some start paused; these runs have random numbers
//! of their own, so that the others are the same as before. Checked are that every end of a fire is
//! reported once, in the batch that ends it, that the callback is received or becomes a dead
//! letter, that a paused task waits for its resume, that attempts have the answers that receivers
//! gave, and that a key with a record is found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use punctual_core::{
    Answer, AttemptNo, Callbacks, FireEnd, FireId, FireRecord, HttpTarget, Method, NewTask,
    Outcome, Partitions, Schedule, Target, TaskId, TaskKey, TaskState,
};
use punctual_engine::{
    CallbackLedger, Command, Delivery, EngineError, Reply, Scheduled, StartState, Subject,
};
use punctual_store::{Filter, FireFilter, Position, TaskStore};

use crate::callers::{self, SimCall, shop};
use crate::checker::{PromiseChecker, is_unsent};
use crate::random::SimRandom;
use crate::store::{SimStore, ready};

/// Derives the random numbers of callbacks from the seed. With this value, no seed that was kept
/// before has them.
const RECORD: u64 = 0x0007_71b7_0000_0000;
/// A page size that includes everything.
const ALL: usize = 100_000;

/// What callers, receivers and the store say about ends.
#[derive(Debug)]
pub(crate) struct SimRecord {
    /// Decides about callbacks and paused starts; `None` in a run without them.
    random: Option<SimRandom>,
    /// Tasks that were created paused and that no call may have resumed since.
    start_paused: BTreeMap<TaskId, Option<TaskKey>>,
    /// Calls that resume a task and that no owner has answered yet.
    resuming: BTreeMap<u64, Subject>,
    /// Callbacks that were received.
    received: BTreeSet<TaskId>,
    /// Calls that cancel a key which had a record when they were made.
    found_before: BTreeSet<u64>,
    /// Callbacks that were created and count as accepted.
    pub(crate) callbacks: BTreeMap<TaskId, FireId>,
    /// Why the batches of the store do not agree with the ledger.
    wrong: Option<String>,
}

impl SimRecord {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = SimRandom::new(seed ^ RECORD);
        let random = (random.below(3) == 0).then_some(random);
        Self {
            random,
            start_paused: BTreeMap::new(),
            resuming: BTreeMap::new(),
            received: BTreeSet::new(),
            found_before: BTreeSet::new(),
            callbacks: BTreeMap::new(),
            wrong: None,
        }
    }

    /// Gives a new task callbacks, or lets it start paused.
    pub(crate) fn decorate(&mut self, call: &mut SimCall) {
        let (Some(random), Command::Schedule(order)) = (&mut self.random, &mut call.command) else {
            return;
        };
        let mut target = |share: u64| {
            let host = random.pick(&["ok", "ok", "flaky", "slow"]).unwrap_or("ok");
            let url = format!("http://{host}.example/callback");
            let http = HttpTarget::new(&url, Method::Post, Vec::new()).expect("an address");
            (random.below(3) < share).then_some(Target::Http(http))
        };
        let callbacks = Callbacks::new(target(1), target(2));
        order.new_task = Arc::new(NewTask { callbacks, ..NewTask::clone(&order.new_task) });
        if random.below(8) == 0 {
            order.start = StartState::Paused;
        }
    }

    /// Notes whether a key that is to be cancelled has a record, and which tasks may be resumed.
    pub(crate) fn called(&mut self, number: u64, call: &SimCall, store: &SimStore) {
        if let Command::Resume(subject) = &call.command {
            self.start_paused.retain(|id, key| !names(subject, *id, key.as_ref()));
            self.resuming.insert(number, subject.clone());
        }
        if let (Command::Cancel(Subject::Key(_, key)), Some(partition)) =
            (&call.command, call.partition)
        {
            let last =
                ready(store.memory.last_fires(partition, &shop(), std::slice::from_ref(key)));
            let last = last.expect("the memory store answers").into_iter().flatten().next();
            if last.is_some_and(|last| is_found(&last)) {
                self.found_before.insert(number);
            }
        }
    }

    /// Records the answer of an owner to a call.
    pub(crate) fn answered(
        &mut self,
        call: u64,
        command: &Command,
        answer: &Result<Reply, EngineError>,
        store: &SimStore,
        checker: &mut PromiseChecker,
    ) {
        self.resuming.remove(&call);
        match (command, answer) {
            // The call was made before the task was created, and came after it.
            (Command::Resume(_), Ok(Reply::Task(task))) => {
                self.start_paused.remove(&task.id);
            }
            (Command::Schedule(order), Ok(Reply::Scheduled(scheduled)))
                if order.start == StartState::Paused =>
            {
                self.scheduled_paused(scheduled, checker);
            }
            (Command::Cancel(_), Err(EngineError::NotFound))
                if self.found_before.contains(&call) && store.nothing_lost =>
            {
                let observed = format!("{command:?} answered not found, and there is a record");
                checker.break_promise("a key keeps its last life", observed);
            }
            _ => {}
        }
    }

    fn scheduled_paused(&mut self, scheduled: &Scheduled, checker: &mut PromiseChecker) {
        let task = scheduled.task();
        if task.state != TaskState::Paused {
            let observed = format!("{} is {:?}", task.id, task.state);
            checker.break_promise("a task that starts paused is paused", observed);
        }
        // A series or a watch may be edited while an attempt is in flight.
        let key = task.definition.key.clone();
        let resumes = |subject: &Subject| names(subject, task.id, key.as_ref());
        let is_once = matches!(task.definition.schedule, Schedule::Once(_));
        if is_once && !self.resuming.values().any(resumes) {
            self.start_paused.insert(task.id, key);
        }
    }

    /// Checks a delivery that a receiver gets.
    pub(crate) fn receive(&mut self, delivery: &Delivery, checker: &mut PromiseChecker) {
        let id = delivery.fire_id.task;
        if self.start_paused.contains_key(&id) {
            let observed = format!("sent before it was resumed: {}", delivery.fire_id);
            checker.break_promise("a task that starts paused waits", observed);
        }
        if delivery.definition.callback_of.is_some() {
            self.received.insert(id);
        }
    }

    /// Returns the calls that resume all paused tasks.
    pub(crate) fn resume_all(&mut self, store: &SimStore, partitions: Partitions) -> Vec<SimCall> {
        let mut calls = Vec::new();
        for partition in partitions.iter() {
            let filter = Filter { state: Some(TaskState::Paused), ..Filter::all(shop()) };
            let page = ready(store.memory.list(partition, &filter, Position::START, ALL));
            for task in page.expect("the memory store answers").items {
                self.start_paused.remove(&task.id);
                let subject = Subject::Id(shop(), task.id);
                calls.push(callers::about(Command::Resume(subject.clone()), &subject, partitions));
            }
        }
        calls
    }

    /// Reads all batches that the store has. Afterwards it is known which callbacks there are.
    pub(crate) fn read_batches(&mut self, store: &SimStore) {
        let mut ledgers = BTreeMap::new();
        for (partition, batch) in store.batches() {
            let ledger: &mut CallbackLedger = ledgers.entry(partition).or_default();
            if let Err(wrong) = ledger.add(batch) {
                self.wrong.get_or_insert(format!("{partition}: {wrong}"));
            }
        }
        self.callbacks = ledgers.values().flat_map(CallbackLedger::callbacks).collect();
    }

    /// Checks callbacks and answers at the end of a run.
    pub(crate) fn check_at_rest(
        &self,
        store: &SimStore,
        partitions: Partitions,
        checker: &mut PromiseChecker,
    ) {
        const REPORTED: &str = "every end is reported once";
        if let Some(wrong) = &self.wrong {
            checker.break_promise(REPORTED, wrong.clone());
        }
        for (id, fire_id) in &self.callbacks {
            let letter = FireId { task: *id, nominal_at: id.due() };
            let letter = ready(store.memory.dead_letters(id.partition(), &[letter]));
            let dead = letter.expect("the memory store answers").iter().any(Option::is_some);
            if !dead && !self.received.contains(id) && !store.is_excused(*id) {
                checker.break_promise(REPORTED, format!("{id} of {fire_id} was not received"));
            }
        }
        for partition in partitions.iter() {
            let filter = FireFilter::all(shop());
            let page = ready(store.memory.fires(partition, &filter, None, ALL));
            for record in page.expect("the memory store answers").items {
                if let Some(observed) = wrong_answer(&record) {
                    checker.break_promise("a record has the answers of receivers", observed);
                }
            }
        }
    }
}

/// Whether a subject names a task.
fn names(subject: &Subject, id: TaskId, key: Option<&TaskKey>) -> bool {
    match subject {
        Subject::Key(_, named) => key == Some(named),
        Subject::Id(_, named) => id == *named,
    }
}

/// Whether a cancel of the key of this record is answered by it.
fn is_found(last: &FireRecord) -> bool {
    last.end != FireEnd::Replaced || !last.attempts.is_empty()
}

/// What a receiver answers to an attempt.
pub(crate) fn answer_to(fire_id: FireId, attempt: AttemptNo, outcome: &Outcome) -> Option<Answer> {
    let body = format!("{fire_id} {}", attempt.get());
    let answer = Answer::of_response(200, "text/plain", body.as_bytes(), true, body.len());
    (*outcome != Outcome::Expired).then_some(answer)
}

fn wrong_answer(record: &FireRecord) -> Option<String> {
    let wrong = record.attempts.iter().find(|attempt| {
        let not_sent = is_unsent(&attempt.outcome);
        let expected = answer_to(record.fire_id, attempt.number, &attempt.outcome);
        attempt.answer.as_deref() != expected.as_ref().filter(|_| !not_sent)
    })?;
    Some(format!("{}: {wrong:?}", record.fire_id))
}
