//! Redrives and deletes dead letters, and counts them by group, for HTTP and gRPC.
//!
//! A redrive schedules dead letters again, a delete removes them for good; both work in batches of
//! [`LETTER_BATCH`]. One call changes at most [`LETTERS_MAX`] of them and says whether there are
//! more.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use punctual_core::{DeadLetter, FireId, Invalid, LetterGroup, Namespace, PartitionId};
use punctual_engine::{Command, EngineError, Subject};
use punctual_store::{CountedGroup, GroupLetters, StoreError, TaskStore as _};

use super::command_batch::{CommandBatch, expect_forgotten, expect_task, next_result};
use super::limits::check_count;
use super::task_pages::{LetterFilter, dead_letter_page};
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};
use crate::shares::SharePermit;

/// Dead letters that are changed in one commit. An owner takes a call whole, so this is how long a
/// step holds up other namespaces: a fraction of a millisecond.
const LETTER_BATCH: usize = 128;
/// Dead letters that one call changes: this takes some seconds.
const LETTERS_MAX: usize = 100_000;

/// Groups in one answer.
pub(crate) const GROUPS_MAX: usize = 200;

/// What to do with dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LetterVerb {
    /// Schedule them again.
    Redrive,
    /// Remove them for good.
    Delete,
}

/// Which dead letters are changed.
#[derive(Debug)]
pub(crate) enum LetterSelection {
    /// Those of these fire ids.
    Ids(Vec<String>),
    /// All that match; without a condition, all of the namespace.
    Matching(LetterFilter),
}

/// As an action of an operator shows it.
impl fmt::Display for LetterSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ids(ids) => write!(f, "{} fire ids", ids.len()),
            Self::Matching(LetterFilter { reason: None, target: None }) => f.write_str("all"),
            Self::Matching(LetterFilter { reason, target }) => {
                let conditions = [("reason", reason), ("target", target)].into_iter();
                let conditions = conditions.filter_map(|(name, it)| Some((name, it.as_ref()?)));
                let conditions: Vec<String> =
                    conditions.map(|(name, it)| format!("{name}={it:?}")).collect();
                f.write_str(&conditions.join(" "))
            }
        }
    }
}

/// What a call has done.
#[derive(Debug, Default)]
pub(crate) struct ChangedLetters {
    /// How many were scheduled again, or deleted.
    pub(crate) changed: usize,
    /// The fire ids of those that were not, as they were sent, and why.
    pub(crate) problems: Vec<(String, Problem)>,
    /// Dead letters that match are left, because one call changes a limited number.
    pub(crate) more: bool,
}

/// Redrives or deletes dead letters of a namespace.
pub(crate) async fn change_letters(
    broker: &Broker,
    namespace: &Namespace,
    verb: LetterVerb,
    selection: LetterSelection,
) -> Result<ChangedLetters, Problem> {
    match selection {
        LetterSelection::Ids(ids) => change_ids(broker, namespace, verb, &ids).await,
        LetterSelection::Matching(filter) => {
            change_matching(broker, namespace, verb, &filter).await
        }
    }
}

async fn change_ids(
    broker: &Broker,
    namespace: &Namespace,
    verb: LetterVerb,
    ids: &[String],
) -> Result<ChangedLetters, Problem> {
    check_count("ids", ids.len())?;
    let mut changed = ChangedLetters::default();
    for batch in ids.chunks(LETTER_BATCH) {
        let _permit = broker.limits.reads.acquire(namespace).await?;
        let mut letters = Vec::new();
        let found = find_letters(broker, namespace, batch).await;
        for (id, found) in batch.iter().zip(found) {
            match found {
                Ok(letter) => letters.push(letter),
                Err(problem) => {
                    changed.problems.push((id.clone(), problem));
                }
            }
        }
        change_batch(broker, namespace, verb, letters, &mut changed).await;
    }
    Ok(changed)
}

/// Changes all dead letters that match, at most [`LETTERS_MAX`].
///
/// Pages forward only. A fire that fails again keeps its fire id, so it is not redriven twice.
async fn change_matching(
    broker: &Broker,
    namespace: &Namespace,
    verb: LetterVerb,
    filter: &LetterFilter,
) -> Result<ChangedLetters, Problem> {
    let mut changed = ChangedLetters::default();
    let (mut after, mut count) = (None, 0);
    loop {
        // A permit for each step: other lists of the namespace have their turn between two.
        let permit = broker.limits.reads.acquire(namespace).await?;
        let page = dead_letter_page(broker, namespace, filter, after, LETTER_BATCH).await?;
        count += page.items.len();
        change_batch(broker, namespace, verb, page.items, &mut changed).await;
        drop(permit);
        after = page.next;
        changed.more = after.is_some();
        if after.is_none() || count >= LETTERS_MAX {
            return Ok(changed);
        }
    }
}

/// The groups of the dead letters of a namespace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupList {
    /// The largest ones first, at most [`GROUPS_MAX`].
    pub(crate) groups: Vec<CountedGroup>,
    /// Letters of other groups.
    pub(crate) more: u64,
}

/// Counts the dead letters of a namespace by group, and returns the permit to keep until the
/// answer was sent.
pub(crate) async fn list_groups(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<(GroupList, SharePermit), Problem> {
    let permit = broker.limits.reads.acquire(namespace).await?;
    let mut all = Vec::new();
    for partition in broker.owners.partitions().iter() {
        all.extend(broker.store.letter_groups(partition, namespace).await?);
    }
    Ok((GroupList::of(all), permit))
}

impl GroupList {
    /// Adds up the groups of all partitions.
    fn of(counted: Vec<CountedGroup>) -> Self {
        let (mut by_group, mut more) = (BTreeMap::<LetterGroup, GroupLetters>::new(), 0);
        for CountedGroup { group, letters } in counted {
            if group == LetterGroup::other() {
                more += letters.count;
                continue;
            }
            match by_group.entry(group) {
                Entry::Occupied(mut known) => known.get_mut().add_all(&letters),
                Entry::Vacant(vacant) => _ = vacant.insert(letters),
            }
        }
        let groups = by_group.into_iter().map(|(group, letters)| CountedGroup { group, letters });
        let mut groups: Vec<CountedGroup> = groups.collect();
        groups.sort_by_key(|group| Reverse(group.letters.count));
        let rest = groups.split_off(groups.len().min(GROUPS_MAX));
        more += rest.iter().map(|group| group.letters.count).sum::<u64>();
        Self { groups, more }
    }
}

/// Returns the dead letters in the order of `ids`; those of one partition are read together.
async fn find_letters(
    broker: &Broker,
    namespace: &Namespace,
    ids: &[String],
) -> Vec<Result<DeadLetter, Problem>> {
    let mut found = Vec::with_capacity(ids.len());
    let mut by_partition: BTreeMap<PartitionId, (Vec<usize>, Vec<FireId>)> = BTreeMap::new();
    for (index, id) in ids.iter().enumerate() {
        found.push(parse_fire_id("ids", id).and_then(|fire_id| {
            let (indexes, fire_ids) = by_partition.entry(fire_id.task.partition()).or_default();
            indexes.push(index);
            fire_ids.push(fire_id);
            // Until it is found.
            Err(Problem::dead_letter_not_found(namespace, fire_id))
        }));
    }
    for (partition, (indexes, fire_ids)) in by_partition {
        if broker.owners.of(partition).is_none() {
            continue;
        }
        for (index, letter) in
            indexes.into_iter().zip(read_letters(broker, partition, &fire_ids).await)
        {
            match letter {
                Ok(Some(letter)) if letter.task.definition.namespace == *namespace => {
                    found[index] = Ok(letter);
                }
                Ok(_) => {}
                Err(error) => found[index] = Err(error.into()),
            }
        }
    }
    found
}

/// Reads dead letters of one partition at once. If that fails, for example because one of them is
/// damaged, each is read alone.
async fn read_letters(
    broker: &Broker,
    partition: PartitionId,
    fire_ids: &[FireId],
) -> Vec<Result<Option<DeadLetter>, StoreError>> {
    if let Ok(letters) = broker.store.dead_letters(partition, fire_ids).await {
        return letters.into_iter().map(Ok).collect();
    }
    let mut letters = Vec::with_capacity(fire_ids.len());
    for fire_id in fire_ids {
        let letter = broker.store.dead_letters(partition, &[*fire_id]).await;
        letters.push(letter.map(|letter| letter.into_iter().flatten().next()));
    }
    letters
}

async fn change_batch(
    broker: &Broker,
    namespace: &Namespace,
    verb: LetterVerb,
    letters: Vec<DeadLetter>,
    changed: &mut ChangedLetters,
) {
    let mut batch = CommandBatch::default();
    for letter in &letters {
        batch.push(letter.task.id.partition(), command(namespace, verb, letter));
    }
    for (letter, result) in letters.iter().zip(batch.run(&broker.owners).await) {
        let result = result.and_then(|reply| match verb {
            LetterVerb::Redrive => expect_task(reply).map(drop),
            LetterVerb::Delete => expect_forgotten(&reply),
        });
        match result {
            Ok(()) => changed.changed += 1,
            Err(error) => {
                let id = letter.fire_id().to_string();
                let problem = letter_problem(error, namespace, letter);
                changed.problems.push((id, problem));
            }
        }
    }
}

fn command(namespace: &Namespace, verb: LetterVerb, letter: &DeadLetter) -> Command {
    let (namespace, fire_id) = (namespace.clone(), letter.fire_id());
    match (verb, &letter.task.definition.key) {
        (LetterVerb::Delete, _) => Command::DeleteLetter { namespace, fire_id },
        (LetterVerb::Redrive, Some(key)) => {
            Command::Redrive { subject: Subject::Key(namespace, key.clone()), fire_id }
        }
        (LetterVerb::Redrive, None) => {
            Command::Redrive { subject: Subject::Id(namespace, letter.task.id), fire_id }
        }
    }
}

/// The problem names the dead letter if it is gone, else its task.
fn letter_problem(error: EngineError, namespace: &Namespace, letter: &DeadLetter) -> Problem {
    if matches!(error, EngineError::DeadLetterNotFound) {
        return Problem::dead_letter_not_found(namespace, letter.fire_id());
    }
    let id = letter.task.id.to_string();
    let key = letter.task.definition.key.as_ref();
    let name = key.map_or(id.as_str(), |key| key.as_str());
    Problem::of_task(error, TaskRef { namespace, name })
}

/// Removes a dead letter for good.
pub(crate) async fn delete_letter(
    broker: &Broker,
    namespace: &Namespace,
    id: &str,
) -> Result<(), Problem> {
    let fire_id = parse_fire_id("fire_id", id)?;
    let mut batch = CommandBatch::default();
    let forget = Command::DeleteLetter { namespace: namespace.clone(), fire_id };
    batch.push(fire_id.task.partition(), forget);
    let mut results = batch.run(&broker.owners).await.into_iter();
    match next_result(&mut results).and_then(|reply| expect_forgotten(&reply)) {
        Ok(()) => Ok(()),
        Err(EngineError::NotFound | EngineError::DeadLetterNotFound) => {
            Err(Problem::dead_letter_not_found(namespace, fire_id))
        }
        Err(error) => Err(error.into()),
    }
}

fn parse_fire_id(field: &str, text: &str) -> Result<FireId, Problem> {
    let fire_id = text.parse::<FireId>();
    Ok(fire_id.map_err(|error| Invalid::new(field, error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use punctual_core::{TaskId, Timestamp};

    use super::*;

    fn counted(group: LetterGroup, count: u64, at: u64) -> CountedGroup {
        let at = Timestamp::from_millis(at);
        let example = Some(FireId { task: TaskId::floor(at), nominal_at: at });
        CountedGroup { group, letters: GroupLetters { count, first_at: at, last_at: at, example } }
    }

    fn group(reason: &str) -> LetterGroup {
        LetterGroup { reason: reason.to_owned(), target: "queue q".to_owned() }
    }

    #[test]
    fn groups_of_partitions_are_added_up_and_the_largest_is_first() {
        let list = GroupList::of(vec![
            counted(group("a"), 1, 100),
            counted(group("b"), 3, 50),
            counted(LetterGroup::other(), 7, 1),
            counted(group("a"), 4, 200),
        ]);
        let shown = list.groups.iter().map(|it| (it.group.reason.as_str(), it.letters.count));
        assert_eq!(shown.collect::<Vec<_>>(), [("a", 5), ("b", 3)]);
        let times = [list.groups[0].letters.first_at, list.groups[0].letters.last_at];
        assert_eq!(times, [Timestamp::from_millis(100), Timestamp::from_millis(200)]);
        assert_eq!(list.more, 7);
    }

    #[test]
    fn letters_beyond_the_largest_groups_are_only_counted() {
        let many = (0..GROUPS_MAX + 2).map(|number| counted(group(&number.to_string()), 2, 1));
        let list = GroupList::of(many.collect());
        assert_eq!((list.groups.len(), list.more), (GROUPS_MAX, 4));
    }
}
