//! Reads everything of a partition, and compares the results of two stores.
//!
//! A difference is reported with the text around it only, so that it is short enough to read.

use std::fmt::Debug;
use std::time::Duration;

use punctual_core::{
    BrokerId, DeadLetter, EndKind, Epoch, FireId, FireRecord, Lease, Seat, Task, TaskId, TaskKind,
    TaskState, Timestamp,
};

use super::owner_model::{KEYS, NAMESPACES, OwnerModel};
use super::random::ModelRandom;
use crate::conformance::PARTITIONS;
use crate::conformance::fixtures::{epoch, id, key, namespace, partition};
use crate::conformance::owner::{OwnerState, TestOwner};
use crate::counts::{CountedNamespace, Counts};
use crate::due::{DueMinute, DueSteps};
use crate::letter_groups::{CountedGroup, LetterGroups};
use crate::query::{Filter, FireFilter, FirePosition, Head, KindFilter, Position};
use crate::{LeaseStore, TaskStore};

/// The page sizes, bounds and filters of the reads. The results of whole reads must not depend on
/// them.
pub(super) struct ReadParameters {
    limit: usize,
    until: Timestamp,
    filter: Filter,
    /// A fire of any partition, which may not exist.
    after: FireId,
    fire_filter: FireFilter,
    steps: DueSteps,
}

impl ReadParameters {
    pub(super) fn new(random: &mut ModelRandom, now: Timestamp) -> Self {
        let limit = [1, 3, 10, 1000][random.index(4)];
        let until = match random.below(2) {
            0 => Timestamp::MAX,
            _ => now.after(Duration::from_secs(random.below(100))),
        };
        let mut filter = Filter::all(namespace(NAMESPACES[random.index(3)]));
        match random.below(7) {
            5 => filter.kind = Some(KindFilter::Series),
            6 => {
                filter.kind = Some(KindFilter::Only(TaskKind::ALL[random.index(4)]));
                filter.from = now;
            }
            0 => filter.state = Some(TaskState::Paused),
            1 => filter.key_prefix = KEYS[random.index(KEYS.len())].to_owned(),
            2 => filter.label = Some(("zone".to_owned(), "eu".to_owned())),
            3 => {
                filter.from = now;
                filter.to = until;
            }
            _ => {}
        }
        let due = Timestamp::from_millis(now.as_millis() - 1000 * random.below(200));
        let other = partition(u16::try_from(random.below(PARTITIONS.into())).expect("few"));
        let task = id(due, other, epoch(1), random.below(500));
        let fire_filter = fire_filter(random, now);
        let (after, steps) = (FireId { task, nominal_at: due }, due_steps(random, now));
        Self { limit, until, filter, after, fire_filter, steps }
    }
}

/// Steps around now, of some minutes or hours, and everything before them.
fn due_steps(random: &mut ModelRandom, now: Timestamp) -> DueSteps {
    let first = DueMinute::of(now).get() - 60 + u32::try_from(random.below(60)).expect("small");
    let length = [1, 7, 60, 1440][random.index(4)];
    let bounds = (0..20).map(|number| DueMinute::new(first + length * number));
    let all = [DueMinute::FIRST].into_iter().chain(bounds).chain([DueMinute::new(u32::MAX)]);
    DueSteps::new(all.collect()).expect("they ascend")
}

fn fire_filter(random: &mut ModelRandom, now: Timestamp) -> FireFilter {
    let mut filter = FireFilter::all(namespace(NAMESPACES[random.index(3)]));
    match random.below(6) {
        0 => filter.end = Some(EndKind::ALL[random.index(EndKind::ALL.len())]),
        1 => filter.key_prefix = KEYS[random.index(KEYS.len())].to_owned(),
        2 => filter.label = Some(("zone".to_owned(), "eu".to_owned())),
        3 => filter.from = Timestamp::from_millis(now.as_millis() - 1000 * random.below(600)),
        4 => {
            filter.end = Some(EndKind::Dead);
            filter.key_prefix = "b".to_owned();
            filter.to = now;
        }
        _ => {}
    }
    filter
}

/// The results of all reads of one partition.
pub(super) struct ReadResults {
    loaded: Vec<Task>,
    listed: Vec<Task>,
    filtered: Vec<Task>,
    found: Vec<Option<Head>>,
    got: Vec<Option<Task>>,
    holder: Option<(Epoch, BrokerId, Timestamp)>,
    counts: Vec<Counts>,
    namespaces: Vec<CountedNamespace>,
    due: Vec<Vec<i64>>,
    letter_groups: Vec<Vec<CountedGroup>>,
    dead: Vec<Vec<DeadLetter>>,
    dead_after: Vec<Vec<DeadLetter>>,
    listed_after: Vec<Task>,
    history: Vec<(TaskId, Vec<FireRecord>)>,
    /// The ended fires of each namespace, and the last one of each key.
    fires: Vec<Vec<FireRecord>>,
    last_fires: Vec<Vec<Option<FireRecord>>>,
    fires_filtered: Vec<FireRecord>,
    fires_after: Vec<FireRecord>,
}

pub(super) fn epoch_holder_until(lease: Lease) -> (Epoch, BrokerId, Timestamp) {
    (lease.epoch, lease.broker, lease.until)
}

pub(super) async fn read<S: TaskStore + LeaseStore>(
    store: &S,
    owner_model: &OwnerModel,
    parameters: &ReadParameters,
) -> ReadResults {
    let partition = owner_model.partition;
    let owner = TestOwner::resume(
        store,
        OwnerState {
            lease: owner_model.lease.clone(),
            partition,
            number: owner_model.number,
            made: 0,
        },
    );
    let made: Vec<TaskId> = owner_model.made.iter().copied().collect();
    let (mut listed, mut found, mut history) = (Vec::new(), Vec::new(), Vec::new());
    let (mut counts, mut dead, mut dead_after) = (Vec::new(), Vec::new(), Vec::new());
    let (mut fires, mut last_fires) = (Vec::new(), Vec::new());
    let (mut due, mut letter_groups) = (Vec::new(), Vec::new());
    for name in NAMESPACES {
        let namespace = namespace(name);
        let filter = Filter::all(namespace.clone());
        listed.extend(owner.list_by(&filter, parameters.limit).await);
        let heads = store.find(partition, &namespace, &KEYS.map(key)).await;
        found.extend(heads.expect("reads need no lease"));
        counts.push(owner.counts_of(&namespace).await);
        due.push(owner.due_counts_of(&namespace, &parameters.steps).await);
        letter_groups.push(owner.letter_groups_of(&namespace).await);
        dead.push(owner.dead_of(&namespace, parameters.limit).await);
        dead_after
            .push(owner.dead_after(&namespace, Some(parameters.after), parameters.limit).await);
        fires.push(owner.fires(&FireFilter::all(namespace.clone()), 100).await);
        let last = store.last_fires(partition, &namespace, &KEYS.map(key)).await;
        last_fires.push(last.expect("reads need no lease"));
    }
    for id in &made {
        history.push((*id, owner.history(*id).await));
    }
    let holder = store.holder(Seat::Partition(partition)).await;
    let after = Position { fire_at: parameters.after.nominal_at, id: parameters.after.task };
    let listed_after = owner.list_after(&parameters.filter, after, parameters.limit).await;
    let filter = &parameters.fire_filter;
    let ended = FirePosition { ended_at: after.fire_at, fire_id: parameters.after };
    ReadResults {
        loaded: load(&owner, parameters).await,
        listed,
        filtered: owner.list_by(&parameters.filter, parameters.limit).await,
        found,
        got: store.get(partition, &made).await.expect("reads need no lease"),
        holder: holder.expect("reads need no lease").map(epoch_holder_until),
        counts,
        namespaces: owner.namespaces_after(None, parameters.limit).await,
        due,
        letter_groups,
        dead,
        dead_after,
        listed_after,
        history,
        fires,
        last_fires,
        fires_filtered: owner.fires(filter, parameters.limit).await,
        fires_after: owner.fires_after(filter, Some(ended), parameters.limit).await,
    }
}

async fn load<S: TaskStore + LeaseStore>(
    owner: &TestOwner<'_, S>,
    parameters: &ReadParameters,
) -> Vec<Task> {
    let (mut loaded, mut after) = (Vec::new(), Position::START);
    loop {
        let chunk = owner.load_between(after, parameters.until, parameters.limit).await;
        let full = chunk.len() == parameters.limit;
        loaded.extend(chunk);
        match loaded.last() {
            Some(last) if full => after = Position::of(last),
            _ => return loaded,
        }
    }
}

/// Compares the results of the store with those of the two memory stores. Tasks must be the same.
/// Of records and letters, the store has at least those of `least` and at most those of `most`.
pub(super) fn compare(
    ours: &ReadResults,
    least: &ReadResults,
    most: &ReadResults,
) -> Result<(), String> {
    alike("loaded", &ours.loaded, &least.loaded)?;
    alike("listed", &ours.listed, &least.listed)?;
    alike("filtered", &ours.filtered, &least.filtered)?;
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
        agree(&ours.letter_groups[index], letters)?;
    }
    alike("due counts", &ours.due, &least.due)?;
    alike("namespaces", &ours.namespaces, &counted(&ours.counts))?;
    for (index, letters) in ours.dead_after.iter().enumerate() {
        among("a letter after a fire that must be kept", &least.dead_after[index], letters)?;
        among("a letter after a fire that may be kept", letters, &most.dead_after[index])?;
    }
    for (index, (id, records)) in ours.history.iter().enumerate() {
        let about = |what| format!("{what} of {id}");
        among(&about("a record that must be kept"), &least.history[index].1, records)?;
        among(&about("a record that may be kept"), records, &most.history[index].1)?;
    }
    for (index, fires) in ours.fires.iter().enumerate() {
        among("a fire that must be kept", &least.fires[index], fires)?;
        among("a fire that may be kept", fires, &most.fires[index])?;
        let last = ours.last_fires[index].iter().zip(&least.last_fires[index]);
        for (last, least) in last {
            match least {
                Some(_) => alike("last fire", last, least)?,
                None => among("a last fire", last.as_slice(), fires)?,
            }
        }
    }
    among("a selected fire that must be kept", &least.fires_filtered, &ours.fires_filtered)?;
    among("a selected fire that may be kept", &ours.fires_filtered, &most.fires_filtered)?;
    among("a fire after another that must be kept", &least.fires_after, &ours.fires_after)?;
    among("a fire after another that may be kept", &ours.fires_after, &most.fires_after)
}

/// Checks that groups are those of the letters that a store has. Letters that are gone may have
/// been the first or the last of their group.
fn agree(groups: &[CountedGroup], letters: &[DeadLetter]) -> Result<(), String> {
    let mut want = LetterGroups::default();
    for letter in letters {
        want.add(letter.group(), letter.died_at, letter.fire_id());
    }
    let want: Vec<CountedGroup> = want.iter().collect();
    let count = |groups: &[CountedGroup]| {
        let named = groups.iter().map(|it| (it.group.clone(), it.letters.count));
        let mut named: Vec<_> = named.collect();
        named.sort();
        named
    };
    alike("letters of groups", &count(groups), &count(&want))?;
    for CountedGroup { group, letters: found } in groups {
        let fires: Vec<FireId> = letters.iter().map(DeadLetter::fire_id).collect();
        let wanted = want.iter().find(|it| it.group == *group).map(|it| it.letters);
        let covers =
            wanted.is_some_and(|it| found.first_at <= it.first_at && found.last_at >= it.last_at);
        let example = found.example.is_none_or(|example| fires.contains(&example));
        if !covers || !example {
            return Err(format!("{found:?} is not the group of {fires:?}"));
        }
    }
    Ok(())
}

/// Returns what a list of namespaces has if these are the counts of all namespaces.
fn counted(counts: &[Counts]) -> Vec<CountedNamespace> {
    let all = NAMESPACES.iter().zip(counts).filter(|(_, counts)| !counts.is_zero());
    let all = all.map(|(name, counts)| CountedNamespace { name: namespace(name), counts: *counts });
    let mut all: Vec<_> = all.collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

pub(super) fn alike<T: PartialEq + Debug>(what: &str, ours: &T, want: &T) -> Result<(), String> {
    if ours == want {
        return Ok(());
    }
    // Of two long lists, show only the text around the first difference.
    let [ours, want] = [ours, want].map(|value| format!("{value:?}"));
    let same = ours.bytes().zip(want.bytes()).take_while(|(a, b)| a == b);
    let from = same.count().saturating_sub(400);
    let near = |text: &str| {
        String::from_utf8_lossy(&text.as_bytes()[from..]).chars().take(800).collect::<String>()
    };
    Err(format!("{what}:\n  is …{}\n  not …{}", near(&ours), near(&want)))
}

/// Checks that all of `some` are in `all`, in the same order.
fn among<T: PartialEq + Debug>(what: &str, some: &[T], all: &[T]) -> Result<(), String> {
    let mut rest = all.iter();
    match some.iter().find(|item| !rest.any(|other| other == *item)) {
        None => Ok(()),
        Some(item) => Err(format!("{what} is not there: {item:?}")),
    }
}
