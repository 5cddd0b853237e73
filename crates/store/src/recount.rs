//! Counting by reading: for a store that keeps no counters of due tasks and of groups of dead
//! letters.
//!
//! Both read at most a number of tasks or letters, and say what they left out.

use punctual_core::{
    DeadLetter, FireId, LetterGroup, Namespace, PartitionId, TaskState, Timestamp,
};

use crate::due::{DueCounts, DueMinute, DueSteps, minute_of};
use crate::error::StoreError;
use crate::letter_groups::{CountedGroup, LetterGroups};
use crate::query::{Filter, Position};
use crate::task_store::TaskStore;

/// Tasks and letters in one read.
const PAGE: usize = 1000;

/// Counts the tasks that are due in each step, with at most so many reads.
pub async fn recount_due<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    namespace: &Namespace,
    steps: &DueSteps,
    reads_max: usize,
) -> Result<DueCounts, StoreError> {
    let mut tasks = vec![0; steps.count()];
    let (state, from) = (Some(TaskState::Scheduled), steps.first().start());
    let to = match steps.end() {
        end if end > DueMinute::of(Timestamp::MAX) => Timestamp::MAX,
        end => end.start(),
    };
    let filter = Filter { state, from, to, ..Filter::all(namespace.clone()) };
    let mut after = Position::START;
    for _ in 0..reads_max {
        let page = store.list(partition, &filter, after, PAGE).await?;
        for minute in page.items.iter().filter_map(minute_of) {
            if let Some(step) = steps.step_of(minute) {
                tasks[step] += 1;
            }
        }
        match page.next {
            Some(next) => after = next,
            None => return Ok(DueCounts { tasks, until: None }),
        }
    }
    Ok(DueCounts { tasks, until: Some(DueMinute::of(after.fire_at)) })
}

/// Counts the dead letters of each group, with at most so many reads. Letters that were not read
/// count with the others; `total` is the number of all letters.
pub async fn recount_groups<S: TaskStore>(
    store: &S,
    partition: PartitionId,
    namespace: &Namespace,
    total: u64,
    reads_max: usize,
) -> Result<Vec<CountedGroup>, StoreError> {
    let mut groups = LetterGroups::default();
    let mut after: Option<FireId> = None;
    let mut last: Option<DeadLetter> = None;
    for _ in 0..reads_max {
        let page = store.dead(partition, namespace, after, PAGE).await?;
        for letter in page.items {
            groups.add(letter.group(), letter.died_at, letter.fire_id());
            last = Some(letter);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(groups.iter().collect()),
        }
    }
    let unread = total.saturating_sub(groups.letters());
    let mut counted: Vec<CountedGroup> = groups.iter().collect();
    if let Some(last) = last.filter(|_| unread > 0) {
        let other = LetterGroup::other();
        match counted.iter_mut().find(|it| it.group == other) {
            Some(others) => others.letters.count += unread,
            None => {
                let mut letters = LetterGroups::default();
                letters.add(other, last.died_at, last.fire_id());
                counted.extend(letters.iter().map(|mut it| {
                    (it.letters.count, it.letters.example) = (unread, None);
                    it
                }));
            }
        }
    }
    Ok(counted)
}
