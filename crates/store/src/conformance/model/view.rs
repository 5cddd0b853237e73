//! Views: all that can be read of a partition, and how two stores may differ in it.
//!
//! In: a store, and what its owner made. Out: nothing, or the first difference, in words short enough to read.

use std::fmt::Debug;
use std::time::Duration;

use punctual_core::{
    BrokerId, DeadLetter, Epoch, FireId, FireRecord, Lease, Seat, Task, TaskId, TaskState,
    Timestamp,
};

use super::dice::Dice;
use super::plan::{KEYS, NAMESPACES, Plan};
use crate::conformance::PARTITIONS;
use crate::conformance::fixtures::{epoch, id, key, namespace, partition};
use crate::conformance::owner::{Owner, Standing};
use crate::counts::Counts;
use crate::query::{Filter, Head, Position};
use crate::{LeaseStore, TaskStore};

/// In which pieces to read this time. The answers must not depend on it.
pub(super) struct Ways {
    limit: usize,
    until: Timestamp,
    filter: Filter,
    /// A fire of any partition, made or not.
    after: FireId,
}

impl Ways {
    pub(super) fn new(dice: &mut Dice, now: Timestamp) -> Self {
        let limit = [1, 3, 10, 1000][dice.index(4)];
        let until = match dice.below(2) {
            0 => Timestamp::MAX,
            _ => now.after(Duration::from_secs(dice.below(100))),
        };
        let mut filter = Filter::all(namespace(NAMESPACES[dice.index(3)]));
        match dice.below(5) {
            0 => filter.state = Some(TaskState::Paused),
            1 => filter.key_prefix = KEYS[dice.index(KEYS.len())].to_owned(),
            2 => filter.label = Some(("zone".to_owned(), "eu".to_owned())),
            3 => {
                filter.from = now;
                filter.to = until;
            }
            _ => {}
        }
        let due = Timestamp::from_millis(now.as_millis() - 1000 * dice.below(200));
        let other = partition(u16::try_from(dice.below(PARTITIONS.into())).expect("few"));
        let task = id(due, other, epoch(1), dice.below(500));
        Self { limit, until, filter, after: FireId { task, nominal_at: due } }
    }
}

/// Everything about the present, and everything about the past.
pub(super) struct View {
    loaded: Vec<Task>,
    listed: Vec<Task>,
    passed: Vec<Task>,
    found: Vec<Option<Head>>,
    got: Vec<Option<Task>>,
    holder: Option<(Epoch, BrokerId, Timestamp)>,
    counts: Vec<Counts>,
    dead: Vec<Vec<DeadLetter>>,
    dead_after: Vec<Vec<DeadLetter>>,
    listed_after: Vec<Task>,
    history: Vec<(TaskId, Vec<FireRecord>)>,
}

pub(super) fn standing(lease: Lease) -> (Epoch, BrokerId, Timestamp) {
    (lease.epoch, lease.broker, lease.until)
}

pub(super) async fn read<S: TaskStore + LeaseStore>(store: &S, plan: &Plan, ways: &Ways) -> View {
    let partition = plan.partition;
    let owner = Owner::resume(
        store,
        Standing { lease: plan.lease.clone(), partition, number: plan.number, made: 0 },
    );
    let made: Vec<TaskId> = plan.made.iter().copied().collect();
    let (mut listed, mut found, mut history) = (Vec::new(), Vec::new(), Vec::new());
    let (mut counts, mut dead, mut dead_after) = (Vec::new(), Vec::new(), Vec::new());
    for name in NAMESPACES {
        let namespace = namespace(name);
        let filter = Filter::all(namespace.clone());
        listed.extend(owner.list_by(&filter, ways.limit).await);
        let heads = store.find(partition, &namespace, &KEYS.map(key)).await;
        found.extend(heads.expect("anybody may find"));
        counts.push(owner.counts_of(&namespace).await);
        dead.push(owner.dead_of(&namespace, ways.limit).await);
        dead_after.push(owner.dead_after(&namespace, Some(ways.after), ways.limit).await);
    }
    for id in &made {
        history.push((*id, owner.history(*id).await));
    }
    let holder = store.holder(Seat::Partition(partition)).await;
    let after = Position { fire_at: ways.after.nominal_at, id: ways.after.task };
    let listed_after = owner.list_after(&ways.filter, after, ways.limit).await;
    View {
        loaded: load(&owner, ways).await,
        listed,
        passed: owner.list_by(&ways.filter, ways.limit).await,
        found,
        got: store.get(partition, &made).await.expect("anybody may get"),
        holder: holder.expect("anybody may ask").map(standing),
        counts,
        dead,
        dead_after,
        listed_after,
        history,
    }
}

async fn load<S: TaskStore + LeaseStore>(owner: &Owner<'_, S>, ways: &Ways) -> Vec<Task> {
    let (mut loaded, mut after) = (Vec::new(), Position::START);
    loop {
        let chunk = owner.load_between(after, ways.until, ways.limit).await;
        let full = chunk.len() == ways.limit;
        loaded.extend(chunk);
        match loaded.last() {
            Some(last) if full => after = Position::of(last),
            _ => return loaded,
        }
    }
}

/// The present must be the same; of the past, a store has at least what must be kept and at most what ever was.
pub(super) fn compare(ours: &View, least: &View, most: &View) -> Result<(), String> {
    alike("loaded", &ours.loaded, &least.loaded)?;
    alike("listed", &ours.listed, &least.listed)?;
    alike("passed", &ours.passed, &least.passed)?;
    alike("listed after", &ours.listed_after, &least.listed_after)?;
    alike("found", &ours.found, &least.found)?;
    alike("got", &ours.got, &least.got)?;
    alike("holder", &ours.holder, &least.holder)?;
    for (index, letters) in ours.dead.iter().enumerate() {
        among("a letter that must be kept", &least.dead[index], letters)?;
        among("a letter that may be kept", letters, &most.dead[index])?;
        let kept = i64::try_from(letters.len()).expect("few");
        let want = Counts { dead_letters: kept, ..least.counts[index] };
        alike("counts", &ours.counts[index], &want)?;
    }
    for (index, letters) in ours.dead_after.iter().enumerate() {
        among("a letter after a fire that must be kept", &least.dead_after[index], letters)?;
        among("a letter after a fire that may be kept", letters, &most.dead_after[index])?;
    }
    for (index, (id, records)) in ours.history.iter().enumerate() {
        let about = |what| format!("{what} of {id}");
        among(&about("a record that must be kept"), &least.history[index].1, records)?;
        among(&about("a record that may be kept"), records, &most.history[index].1)?;
    }
    Ok(())
}

pub(super) fn alike<T: PartialEq + Debug>(what: &str, ours: &T, want: &T) -> Result<(), String> {
    if ours == want {
        return Ok(());
    }
    // Of two long lists only the neighbourhood of the first difference is worth reading.
    let [ours, want] = [ours, want].map(|value| format!("{value:?}"));
    let same = ours.bytes().zip(want.bytes()).take_while(|(a, b)| a == b);
    let from = same.count().saturating_sub(400);
    let near = |text: &str| {
        String::from_utf8_lossy(&text.as_bytes()[from..]).chars().take(800).collect::<String>()
    };
    Err(format!("{what}:\n  is …{}\n  not …{}", near(&ours), near(&want)))
}

/// Whether all of `some` are in `all`, in the same order.
fn among<T: PartialEq + Debug>(what: &str, some: &[T], all: &[T]) -> Result<(), String> {
    let mut rest = all.iter();
    match some.iter().find(|item| !rest.any(|other| other == *item)) {
        None => Ok(()),
        Some(item) => Err(format!("{what} is not there: {item:?}")),
    }
}
