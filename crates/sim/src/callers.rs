//! Callers: schedule, replace, touch and cancel tasks, at any broker.
//!
//! In: dice. Out: commands. A caller asks again only if it was told that nothing was done, or if its order is repeatable.

use std::time::Duration;

use punctual_core::{
    Backoff, Due, Guarantee, HttpTarget, Jitter, Method, Namespace, NewTask, PartitionId,
    Partitions, RetryPolicy, Schedule, Target, TaskKey, Timestamp, partition_of,
};
use punctual_engine::{Command, Condition, Push, Receipt, ScheduleCommand, Subject};

use crate::dice::Dice;
use crate::variant::Variant;
use crate::witness::{Ordered, Witness, goes_on};

/// Tries of one wish.
pub(crate) const TRIES_MAX: u8 = 8;
/// Names that callers use: few, so that they meet.
const NAMES: u64 = 12;
/// Names of tasks that are due again and again.
const SERIES: u64 = 3;

/// A wish of a caller on its way.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) command: Command,
    /// Where its task lives, or will live; any will do for a new one without a name.
    pub(crate) partition: Option<PartitionId>,
    /// The same may be asked for again although it is not known whether it was done.
    pub(crate) repeatable: bool,
    pub(crate) tries: u8,
    /// The try that is under way: the broker, its life, and until when it looks for an owner.
    pub(crate) at: Option<(usize, u32, u64)>,
}

pub(crate) fn shop() -> Namespace {
    Namespace::new("shop").expect("a word")
}

fn key(name: &str) -> TaskKey {
    TaskKey::new(name).expect("letters and digits")
}

/// What somebody wants next.
pub(crate) fn wish(
    dice: &mut Dice,
    witness: &mut Witness,
    variant: Variant,
    partitions: Partitions,
    now: u64,
) -> Option<Call> {
    match dice.roll(100) {
        0..65 => Some(schedule(dice, witness, variant, partitions, now)),
        65..82 => {
            let subject = subject(dice, witness)?;
            Some(about(Command::Cancel(subject.clone()), &subject, partitions))
        }
        _ => {
            let subject = subject(dice, witness)?;
            let push = match dice.roll(3) {
                0 => Push::Within,
                _ => Push::To(Due::In(Duration::from_millis(dice.roll(20_000)))),
            };
            Some(about(Command::Touch(subject.clone(), push), &subject, partitions))
        }
    }
}

/// Ends all that is due again and again.
pub(crate) fn last_wishes(partitions: Partitions) -> Vec<Call> {
    let names = (0..SERIES).map(|name| Subject::Key(shop(), key(&format!("every-{name}"))));
    names.map(|subject| about(Command::Cancel(subject.clone()), &subject, partitions)).collect()
}

fn about(command: Command, subject: &Subject, partitions: Partitions) -> Call {
    let partition = match subject {
        Subject::Key(namespace, key) => partition_of(namespace, key, partitions),
        Subject::Id(_, id) => id.partition(),
    };
    Call { command, partition: Some(partition), repeatable: false, tries: 0, at: None }
}

fn subject(dice: &mut Dice, witness: &Witness) -> Option<Subject> {
    if dice.roll(2) == 0 {
        let name = match dice.roll(8) {
            0 => format!("every-{}", dice.roll(SERIES)),
            1 => format!("watch-{}", dice.roll(SERIES)),
            _ => format!("key-{}", dice.roll(NAMES)),
        };
        return Some(Subject::Key(shop(), key(&name)));
    }
    dice.pick(&witness.promised()).map(|id| Subject::Id(shop(), id))
}

fn schedule(
    dice: &mut Dice,
    witness: &mut Witness,
    variant: Variant,
    partitions: Partitions,
    now: u64,
) -> Call {
    let number = witness.orders.len();
    let delay = match dice.roll(5) {
        0 => 0,
        1 => dice.roll(100),
        2 | 3 => dice.roll(10_000),
        _ => dice.roll(50_000),
    };
    let (schedule, name) = match dice.roll(20) {
        0 => {
            let interval = Duration::from_millis(dice.between(1_000, 5_000));
            (Schedule::every(interval), Some(format!("every-{}", dice.roll(SERIES))))
        }
        1 => {
            let within = Duration::from_millis(dice.between(1_000, 12_000));
            (Schedule::watch(within), Some(format!("watch-{}", dice.roll(SERIES))))
        }
        2..8 => (Schedule::Once(Due::At(Timestamp::from_millis(now + delay))), None),
        8..12 => (Schedule::Once(Due::In(Duration::from_millis(delay))), None),
        _ => {
            let due = Due::In(Duration::from_millis(delay));
            (Schedule::Once(due), Some(format!("key-{}", dice.roll(NAMES))))
        }
    };
    let guarantee = [Guarantee::AtMostOnce, Guarantee::AtLeastOnce, Guarantee::ExactlyOnce];
    let guarantee = dice.pick(&guarantee).unwrap_or_default();
    let host = dice.pick(&["ok", "ok", "ok", "flaky", "slow", "never"]).unwrap_or("ok");
    let http =
        HttpTarget::new(&format!("http://{host}.example/{number}"), Method::Post, Vec::new());
    let backoff = Backoff::Fixed(Duration::from_millis(dice.between(50, 3_000)));
    let attempts_max = u16::try_from(dice.between(1, 5)).unwrap_or(1);
    let repeatable = dice.roll(3) == 0;
    witness.orders.push(Ordered {
        key: name.clone(),
        guarantee,
        attempts_max,
        goes_on: goes_on(&schedule),
        receipt: repeatable,
    });
    let claimed = variant != Variant::NothingIsClaimed;
    let new_task = NewTask {
        key: name.as_deref().map(key),
        guarantee: if claimed { guarantee } else { Guarantee::AtLeastOnce },
        retry: RetryPolicy { attempts_max, backoff, jitter: Jitter::default() },
        timeout: Duration::from_millis(dice.between(100, 2_500)),
        ..NewTask::new(shop(), schedule, Target::Http(http.expect("an address")))
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
    let order =
        ScheduleCommand { new_task: new_task.into(), condition: Condition::Always, receipt };
    Call { command: Command::Schedule(order), partition, repeatable, tries: 0, at: None }
}
