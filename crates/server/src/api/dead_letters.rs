//! Redrives and deletes dead letters, for HTTP and gRPC.
//!
//! A redrive schedules dead letters again, in batches of [`REDRIVE_BATCH`]. One call redrives at
//! most [`REDRIVE_MAX`] of them and says whether there are more.

use std::collections::BTreeMap;

use punctual_core::{DeadLetter, FireId, Invalid, Namespace, PartitionId};
use punctual_engine::{Command, EngineError, Subject};
use punctual_store::{StoreError, TaskStore as _};

use super::command_batch::{CommandBatch, expect_forgotten, expect_task, next_result};
use super::limits::check_count;
use super::task_pages::dead_letter_page;
use crate::broker::Broker;
use crate::problem::{Problem, TaskRef};

/// Dead letters that are redriven in one commit. An owner takes a call whole, so this is how long a
/// step holds up other namespaces: a fraction of a millisecond.
const REDRIVE_BATCH: usize = 128;
/// Dead letters that one call redrives: this takes some seconds.
const REDRIVE_MAX: usize = 100_000;

/// The result of a redrive.
#[derive(Debug, Default)]
pub(crate) struct RedrivenLetters {
    /// How many were scheduled again.
    pub(crate) redriven: usize,
    /// The fire ids of those that were not, as they were sent, and why.
    pub(crate) problems: Vec<(String, Problem)>,
    /// Dead letters are left, because one call redrives a limited number.
    pub(crate) more: bool,
}

/// Redrives the dead letters of these fire ids.
pub(crate) async fn redrive_ids(
    broker: &Broker,
    namespace: &Namespace,
    ids: &[String],
) -> Result<RedrivenLetters, Problem> {
    check_count("ids", ids.len())?;
    let mut redriven = RedrivenLetters::default();
    for batch in ids.chunks(REDRIVE_BATCH) {
        let _permit = broker.limits.reads.acquire(namespace).await?;
        let mut letters = Vec::new();
        let found = find_letters(broker, namespace, batch).await;
        for (id, found) in batch.iter().zip(found) {
            match found {
                Ok(letter) => letters.push(letter),
                Err(problem) => {
                    redriven.problems.push((id.clone(), problem));
                }
            }
        }
        redrive_batch(broker, namespace, letters, &mut redriven).await;
    }
    Ok(redriven)
}

/// Redrives all dead letters of a namespace, at most [`REDRIVE_MAX`].
///
/// Pages forward only. A fire that fails again keeps its fire id, so it is not redriven twice.
pub(crate) async fn redrive_all(
    broker: &Broker,
    namespace: &Namespace,
) -> Result<RedrivenLetters, Problem> {
    let mut redriven = RedrivenLetters::default();
    let (mut after, mut count) = (None, 0);
    loop {
        // A permit for each step: other lists of the namespace have their turn between two.
        let permit = broker.limits.reads.acquire(namespace).await?;
        let page = dead_letter_page(broker, namespace, after, REDRIVE_BATCH).await?;
        count += page.items.len();
        redrive_batch(broker, namespace, page.items, &mut redriven).await;
        drop(permit);
        after = page.next;
        redriven.more = after.is_some();
        if after.is_none() || count >= REDRIVE_MAX {
            return Ok(redriven);
        }
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

async fn redrive_batch(
    broker: &Broker,
    namespace: &Namespace,
    letters: Vec<DeadLetter>,
    redriven: &mut RedrivenLetters,
) {
    let mut batch = CommandBatch::default();
    for letter in &letters {
        let subject = match &letter.task.definition.key {
            Some(key) => Subject::Key(namespace.clone(), key.clone()),
            None => Subject::Id(namespace.clone(), letter.task.id),
        };
        let command = Command::Redrive { subject, fire_id: letter.fire_id() };
        batch.push(letter.task.id.partition(), command);
    }
    for (letter, result) in letters.iter().zip(batch.run(&broker.owners).await) {
        match result.and_then(expect_task) {
            Ok(_) => redriven.redriven += 1,
            Err(error) => {
                let id = letter.fire_id().to_string();
                let problem = redrive_problem(error, namespace, letter);
                redriven.problems.push((id, problem));
            }
        }
    }
}

/// The problem names the dead letter if it is gone, else its task.
fn redrive_problem(error: EngineError, namespace: &Namespace, letter: &DeadLetter) -> Problem {
    if error == EngineError::DeadLetterNotFound {
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
