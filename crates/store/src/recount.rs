//! Counting by reading everything: what the counts of a store have to be.
//!
//! The conformance suite compares the counts of a store with these. They take as long as there are
//! tasks or letters, so that no request uses them.

use punctual_core::{DeadLetter, FireId, Namespace, PartitionId, TaskState, Timestamp};

use crate::due::{DueMinute, DueSteps, minute_of};
use crate::error::StoreError;
use crate::letter_groups::{CountedGroup, LetterGroups};
use crate::query::{Filter, Position};
use crate::task_store::TaskStore;

/// Tasks and letters in one read.
const PAGE: usize = 1000;

/// Counts the tasks that are due in each step.
pub async fn recount_due<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    namespace: &Namespace,
    steps: &DueSteps,
) -> Result<Vec<i64>, StoreError> {
    let mut counts = vec![0; steps.count()];
    let (state, from) = (Some(TaskState::Scheduled), steps.first().start());
    let to = match steps.end() {
        end if end > DueMinute::of(Timestamp::MAX) => Timestamp::MAX,
        end => end.start(),
    };
    let filter = Filter { state, from, to, ..Filter::all(namespace.clone()) };
    let mut after = Position::START;
    loop {
        let page = store.list(partition, &filter, after, PAGE).await?;
        for minute in page.items.iter().filter_map(minute_of) {
            if let Some(step) = steps.step_of(minute) {
                counts[step] += 1;
            }
        }
        match page.next {
            Some(next) => after = next,
            None => return Ok(counts),
        }
    }
}

/// Counts the dead letters of each group.
pub async fn recount_groups<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    namespace: &Namespace,
) -> Result<Vec<CountedGroup>, StoreError> {
    let mut groups = LetterGroups::default();
    let mut after: Option<FireId> = None;
    loop {
        let page = store.dead(partition, namespace, after, PAGE).await?;
        for letter in &page.items {
            groups.add(letter.group(), letter.died_at, DeadLetter::fire_id(letter));
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(groups.iter().collect()),
        }
    }
}
