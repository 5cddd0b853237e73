//! Callers: schedule, replace, touch, pause, resume and cancel tasks, at any broker.
//!
//! Commands are random. A caller repeats a command only if it certainly was not executed, or if the
//! command is idempotent.

use std::time::Duration;

use punctual_core::{
    Backoff, Due, Guarantee, HttpTarget, Jitter, Method, Namespace, NewTask, PartitionId,
    Partitions, Payload, Queue, RetryPolicy, Schedule, Target, TaskId, TaskKey, Timestamp,
    partition_of,
};
use punctual_engine::{
    Command, Condition, Delivery, Receipt, ScheduleCommand, StartState, Subject, TouchTo,
};

use crate::checker::{OrderedTask, PromiseChecker, recurs};
use crate::random::SimRandom;
use crate::variant::Variant;
use crate::waits::QUEUES;

/// Tries of one command.
pub(crate) const TRIES_MAX: u8 = 8;
/// The number of keys: small, so that callers use the same ones.
const NAMES: u64 = 12;
/// The number of keys of recurring tasks.
const SERIES: u64 = 3;

/// A command of a caller.
#[derive(Debug, Clone)]
pub(crate) struct SimCall {
    pub(crate) command: Command,
    /// The partition of its task; `None` for a new task without a key, which may use any.
    pub(crate) partition: Option<PartitionId>,
    /// The command may be repeated even if it is not known whether it was executed.
    pub(crate) repeatable: bool,
    pub(crate) tries: u8,
    /// The current try: the broker, its incarnation, and until when it waits for an owner.
    pub(crate) at: Option<(usize, u32, u64)>,
}

pub(crate) fn shop() -> Namespace {
    Namespace::new("shop").expect("a word")
}

fn key(name: &str) -> TaskKey {
    TaskKey::new(name).expect("letters and digits")
}

/// A task whose delivery waits in its courier.
pub(crate) struct WaitingTask {
    id: TaskId,
    key: Option<String>,
}

pub(crate) fn waiting_task(delivery: &Delivery) -> WaitingTask {
    let key = delivery.definition.key.as_ref().map(|key| key.as_str().to_owned());
    WaitingTask { id: delivery.fire_id.task, key }
}

/// Picks the next command of a caller. In a run with waits, many commands are about tasks whose
/// deliveries wait in their couriers.
pub(crate) fn next_call(
    random: &mut SimRandom,
    mut waits: Option<(&mut SimRandom, &[WaitingTask])>,
    checker: &mut PromiseChecker,
    variant: Variant,
    partitions: Partitions,
    now: u64,
) -> Option<SimCall> {
    if let Some((waits, waiting)) = &mut waits
        && waits.below(3) == 0
        && let Some(command) = about_waiting(waits, waiting, checker)
    {
        return Some(match command {
            WaitingCommand::About(subject, command) => about(command, &subject, partitions),
            WaitingCommand::Replace(key) => {
                let again = Some((&mut **waits, Some(key)));
                schedule(random, again, checker, variant, partitions, now)
            }
        });
    }
    let waits = waits.map(|(waits, _)| (waits, None));
    match random.below(100) {
        0..65 => Some(schedule(random, waits, checker, variant, partitions, now)),
        65..82 => {
            let subject = subject(random, checker)?;
            Some(about(Command::Cancel(subject.clone()), &subject, partitions))
        }
        _ => {
            let subject = subject(random, checker)?;
            let push = match random.below(3) {
                0 => TouchTo::Within,
                _ => TouchTo::To(Due::In(Duration::from_millis(random.below(20_000)))),
            };
            Some(about(Command::Touch(subject.clone(), push), &subject, partitions))
        }
    }
}

/// A command of a run with waits.
enum WaitingCommand {
    About(Subject, Command),
    /// Schedule another task with this key.
    Replace(String),
}

/// Picks a command about a task whose delivery waits, or about any other if there is none.
fn about_waiting(
    random: &mut SimRandom,
    waiting: &[WaitingTask],
    checker: &mut PromiseChecker,
) -> Option<WaitingCommand> {
    let index = usize::try_from(random.below(waiting.len() as u64)).unwrap_or(0);
    let (subject, key) = match waiting.get(index) {
        Some(WaitingTask { key: Some(name), .. }) if random.below(2) == 0 => {
            (Subject::Key(shop(), key(name)), Some(name.clone()))
        }
        Some(task) => (Subject::Id(shop(), task.id), task.key.clone()),
        None => (subject(random, checker)?, None),
    };
    let command = match (random.below(12), key) {
        (0..3, Some(key)) => return Some(WaitingCommand::Replace(key)),
        (0..5, _) => Command::Cancel(subject.clone()),
        (5..7, _) => {
            let to = TouchTo::To(Due::In(Duration::from_millis(random.below(20_000))));
            Command::Touch(subject.clone(), to)
        }
        (7, _) => Command::Touch(subject.clone(), TouchTo::Within),
        (8..10, _) => {
            checker.pausing.push(subject.clone());
            Command::Pause(subject.clone())
        }
        _ => {
            let paused = random.below(checker.pausing.len() as u64);
            let paused = usize::try_from(paused).ok().and_then(|it| checker.pausing.get(it));
            let subject = paused.cloned().unwrap_or(subject);
            return Some(WaitingCommand::About(subject.clone(), Command::Resume(subject)));
        }
    };
    Some(WaitingCommand::About(subject, command))
}

/// Returns the calls that resume all tasks that were to be paused.
pub(crate) fn resume_all(checker: &PromiseChecker, partitions: Partitions) -> Vec<SimCall> {
    let paused = checker.pausing.iter();
    paused.map(|it| about(Command::Resume(it.clone()), it, partitions)).collect()
}

/// Returns the calls that cancel all recurring tasks.
pub(crate) fn cancel_series(partitions: Partitions) -> Vec<SimCall> {
    let names = (0..SERIES).map(|name| Subject::Key(shop(), key(&format!("every-{name}"))));
    names.map(|subject| about(Command::Cancel(subject.clone()), &subject, partitions)).collect()
}

pub(crate) fn about(command: Command, subject: &Subject, partitions: Partitions) -> SimCall {
    let partition = match subject {
        Subject::Key(namespace, key) => partition_of(namespace, key, partitions),
        Subject::Id(_, id) => id.partition(),
    };
    SimCall { command, partition: Some(partition), repeatable: false, tries: 0, at: None }
}

fn subject(random: &mut SimRandom, checker: &PromiseChecker) -> Option<Subject> {
    if random.below(2) == 0 {
        let name = match random.below(8) {
            0 => format!("every-{}", random.below(SERIES)),
            1 => format!("watch-{}", random.below(SERIES)),
            _ => format!("key-{}", random.below(NAMES)),
        };
        return Some(Subject::Key(shop(), key(&name)));
    }
    random.pick(&checker.promised()).map(|id| Subject::Id(shop(), id))
}

/// Orders a task. In a run with waits it may have the key of a task whose delivery waits, and may
/// be for a queue.
fn schedule(
    random: &mut SimRandom,
    waits: Option<(&mut SimRandom, Option<String>)>,
    checker: &mut PromiseChecker,
    variant: Variant,
    partitions: Partitions,
    now: u64,
) -> SimCall {
    let number = checker.orders.len();
    let delay = match random.below(5) {
        0 => 0,
        1 => random.below(100),
        2 | 3 => random.below(10_000),
        _ => random.below(50_000),
    };
    let (waits, again) = waits.unzip();
    let kind = match again.as_ref().and_then(Option::as_deref) {
        Some(key) if key.starts_with("every") => 0,
        Some(key) if key.starts_with("watch") => 1,
        Some(_) => 19,
        None => random.below(20),
    };
    let (schedule, name) = match kind {
        0 => {
            let interval = Duration::from_millis(random.between(1_000, 5_000));
            (Schedule::every(interval), Some(format!("every-{}", random.below(SERIES))))
        }
        1 => {
            let within = Duration::from_millis(random.between(1_000, 12_000));
            (Schedule::watch(within), Some(format!("watch-{}", random.below(SERIES))))
        }
        2..8 => (Schedule::Once(Due::At(Timestamp::from_millis(now + delay))), None),
        8..12 => (Schedule::Once(Due::In(Duration::from_millis(delay))), None),
        _ => {
            let due = Due::In(Duration::from_millis(delay));
            (Schedule::Once(due), Some(format!("key-{}", random.below(NAMES))))
        }
    };
    let name = again.flatten().or(name);
    let guarantee = [Guarantee::AtMostOnce, Guarantee::AtLeastOnce, Guarantee::ExactlyOnce];
    let guarantee = random.pick(&guarantee).unwrap_or_default();
    let host = random.pick(&["ok", "ok", "ok", "flaky", "slow", "never"]).unwrap_or("ok");
    let http =
        HttpTarget::new(&format!("http://{host}.example/{number}"), Method::Post, Vec::new());
    let backoff = Backoff::Fixed(Duration::from_millis(random.between(50, 3_000)));
    let attempts_max = u16::try_from(random.between(1, 5)).unwrap_or(1);
    let repeatable = random.below(3) == 0;
    checker.orders.push(OrderedTask {
        key: name.clone(),
        guarantee,
        attempts_max,
        recurs: recurs(&schedule),
        receipt: repeatable,
    });
    let claimed = variant != Variant::NothingIsClaimed;
    let queue =
        waits.and_then(|waits| if waits.below(3) == 0 { waits.pick(&QUEUES) } else { None });
    let target = match queue {
        Some(queue) => Target::Queue(Queue::new(queue).expect("a word")),
        None => Target::Http(http.expect("an address")),
    };
    let new_task = NewTask {
        key: name.as_deref().map(key),
        guarantee: if claimed { guarantee } else { Guarantee::AtLeastOnce },
        retry: RetryPolicy { attempts_max, backoff, jitter: Jitter::default() },
        timeout: Duration::from_millis(random.between(100, 2_500)),
        payload: Payload::Json(number.to_string().into()),
        ..NewTask::new(shop(), schedule, target)
    };
    let receipt = repeatable
        .then(|| Receipt { key: key(&format!("receipt-{number}")), digest: number.to_string() });
    let partition = match (&new_task.key, &receipt) {
        (Some(key), _) => Some(partition_of(&shop(), key, partitions)),
        (None, Some(receipt)) => {
            Some(partition_of(&shop().of_receipts(), &receipt.key, partitions))
        }
        (None, None) => None,
    };
    let order = ScheduleCommand {
        new_task: new_task.into(),
        condition: Condition::Always,
        receipt,
        start: StartState::Scheduled,
    };
    SimCall { command: Command::Schedule(order), partition, repeatable, tries: 0, at: None }
}
