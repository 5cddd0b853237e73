//! Views: everything that can be read of a partition, as lines of text. A store that lost nothing
//! has the same lines as the model.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use punctual_core::{DeadLetter, PartitionId, Task, TaskId, Timestamp};
use punctual_store::conformance::fixtures::{key, namespace};
use punctual_store::{Filter, FireFilter, Position, TaskStore};

use super::plan::{KEYS, NAMESPACES, key_of};

/// Tasks per page: several pages are needed, so that cursors cross runs and memory.
const PAGE: usize = 257;
/// Fires that are compared as text. All are compared by a hash.
const NEWEST: usize = 20;

/// The live tasks and the dead letters of a partition, in an order that does not depend on the
/// store.
pub(crate) async fn tasks_and_letters(
    store: &impl TaskStore,
    partition: PartitionId,
) -> (Vec<Task>, Vec<DeadLetter>) {
    let (mut tasks, mut letters) = (Vec::new(), Vec::new());
    for name in NAMESPACES {
        let namespace = namespace(name);
        let (filter, mut after) = (Filter::all(namespace.clone()), Position::START);
        loop {
            let page = store.list(partition, &filter, after, PAGE).await.expect("list");
            tasks.extend(page.items);
            let Some(next) = page.next else { break };
            after = next;
        }
        let mut after = None;
        loop {
            let page = store.dead(partition, &namespace, after, PAGE).await.expect("dead");
            letters.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(next);
        }
    }
    (tasks, letters)
}

/// The fires that ended since a time: a summary of all, the newest, and the last one of each key.
async fn fires(store: &impl TaskStore, partition: PartitionId, since: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    for name in NAMESPACES {
        let filter = FireFilter { from: since, ..FireFilter::all(namespace(name)) };
        let (mut after, mut records) = (None, Vec::new());
        loop {
            let page = store.fires(partition, &filter, after, PAGE).await.expect("fires");
            records.extend(page.items.iter().map(|record| format!("fire of {name} {record:?}")));
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        let mut hasher = DefaultHasher::new();
        records.hash(&mut hasher);
        lines.push(format!("fires of {name} {} {}", records.len(), hasher.finish()));
        lines.extend(records.into_iter().take(NEWEST));
        let keys: Vec<_> = (0..KEYS).map(|number| key(&key_of(number))).collect();
        let last = store.last_fires(partition, &filter.namespace, &keys).await.expect("last");
        for (key, record) in keys.iter().zip(last) {
            let record = record.filter(|record| record.ended_at >= since);
            lines.push(format!("last fire {name} {key:?} {record:?}"));
        }
    }
    lines
}

/// Everything, and what became of the `tracked` tasks, which may have ended. History before `since`
/// may be swept or not.
pub(crate) async fn lines(
    store: &impl TaskStore,
    partition: PartitionId,
    tracked: &[TaskId],
    since: Timestamp,
) -> Vec<String> {
    let mut lines = Vec::new();
    let (tasks, letters) = tasks_and_letters(store, partition).await;
    lines.extend(tasks.iter().map(|task| format!("live {task:?}")));
    lines.extend(letters.iter().map(|letter| format!("dead {letter:?}")));
    for name in NAMESPACES {
        let namespace = namespace(name);
        let counts = store.counts(partition, &namespace).await.expect("counts");
        lines.push(format!("counts of {name} {counts:?}"));
        let keys: Vec<_> = (0..KEYS).map(|number| key(&key_of(number))).collect();
        let heads = store.find(partition, &namespace, &keys).await.expect("find");
        for (key, head) in keys.iter().zip(heads) {
            lines.push(format!("name {name} {key:?} {head:?}"));
        }
    }
    let mut after = Position::START;
    loop {
        let loaded = store.load(partition, after, Timestamp::MAX, PAGE).await.expect("load");
        let in_order =
            |task: &Task| format!("loaded {:?} {} {:?}", task.fire_at, task.id, task.version);
        lines.extend(loaded.iter().map(in_order));
        match loaded.last() {
            Some(last) if loaded.len() == PAGE => after = Position::of(last),
            _ => break,
        }
    }
    lines.extend(fires(store, partition, since).await);
    for (id, task) in tracked.iter().zip(store.get(partition, tracked).await.expect("get")) {
        lines.push(format!("got {id} {task:?}"));
        let records = store.history(partition, *id, usize::MAX).await.expect("history");
        let kept = records.iter().filter(|record| record.ended_at >= since);
        lines.extend(kept.map(|record| format!("history {record:?}")));
    }
    lines
}
