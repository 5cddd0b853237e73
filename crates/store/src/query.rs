//! Types of reads: positions, pages, filters, heads and retention.

use std::time::Duration;

use punctual_core::{
    EndKind, FireId, FireRecord, Labels, Namespace, Schedule, Task, TaskId, TaskKey, TaskKind,
    TaskState, Timestamp, Version,
};

/// The size in bytes at which the history of one task ends: a fire may have an answer of 64 KiB and
/// two hundred attempts, and a caller may ask for a thousand fires.
pub const HISTORY_BYTES_MAX: usize = 8 << 20;

/// A position in the order of tasks: by `fire_at`, then by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The time at which the task is due.
    pub fire_at: Timestamp,
    /// Orders the tasks that are due at the same time.
    pub id: TaskId,
}

impl Position {
    /// The position before every task.
    pub const START: Self = Self::before(Timestamp::EPOCH);

    /// Returns the position before every task that is due at `fire_at` or later.
    #[must_use]
    pub const fn before(fire_at: Timestamp) -> Self {
        // No owner creates an id with epoch 0, so this id is smaller than that of any task.
        Self { fire_at, id: TaskId::floor(Timestamp::EPOCH) }
    }

    /// Returns the position directly before this one: a read that starts after it returns the task
    /// at this position first.
    #[must_use]
    pub const fn just_before(self) -> Self {
        Self { fire_at: self.fire_at, id: self.id.below() }
    }

    /// Returns the position of a task.
    #[must_use]
    pub const fn of(task: &Task) -> Self {
        Self { fire_at: task.fire_at, id: task.id }
    }
}

/// The part of a task that a lookup by key returns: enough to touch, replace or cancel the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The task that the key names.
    pub id: TaskId,
    /// `Scheduled` or `Paused`, or `Done` or `Dead` for a watch that has fired.
    pub state: TaskState,
    /// When the task is due.
    pub fire_at: Timestamp,
    /// The nominal time of its current fire.
    pub nominal_at: Timestamp,
    /// The version of the task, which grows with every change of it.
    pub version: Version,
    /// The schedule of the task.
    pub schedule: Schedule,
}

impl Head {
    /// Returns the head of a task.
    #[must_use]
    pub fn of(task: &Task) -> Self {
        Self {
            id: task.id,
            state: task.state,
            fire_at: task.fire_at,
            nominal_at: task.nominal_at,
            version: task.version,
            schedule: task.definition.schedule.clone(),
        }
    }
}

/// Selects tasks by the kind of their schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindFilter {
    /// Tasks of one kind.
    Only(TaskKind),
    /// Tasks whose later fires follow from the schedule: cron and every.
    Series,
}

impl KindFilter {
    /// Returns whether tasks of a kind match.
    #[must_use]
    pub fn matches(self, kind: TaskKind) -> bool {
        match self {
            Self::Only(only) => only == kind,
            Self::Series => kind.is_series(),
        }
    }

    /// Returns whether all tasks that match are series. Stores have an index of these.
    #[must_use]
    pub const fn selects_series(self) -> bool {
        match self {
            Self::Only(only) => only.is_series(),
            Self::Series => true,
        }
    }
}

/// Selects living tasks. A task matches if every condition that is set holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// The namespace of the tasks.
    pub namespace: Namespace,
    /// The state of the tasks; any state if not set.
    pub state: Option<TaskState>,
    /// The kind of their schedule; any kind if not set.
    pub kind: Option<KindFilter>,
    /// The start of the key. A task without a key matches only the empty prefix.
    pub key_prefix: String,
    /// The name and the value of a label.
    pub label: Option<(String, String)>,
    /// The task is due at this time or later.
    pub from: Timestamp,
    /// The task is due before this time.
    pub to: Timestamp,
}

impl Filter {
    /// Returns a filter that matches all living tasks of a namespace.
    #[must_use]
    pub const fn all(namespace: Namespace) -> Self {
        Self {
            namespace,
            state: None,
            kind: None,
            key_prefix: String::new(),
            label: None,
            from: Timestamp::EPOCH,
            to: Timestamp::MAX,
        }
    }

    /// Returns whether a task matches. If `to` is [`Timestamp::MAX`], it excludes no task, not even
    /// one that is due at that instant.
    #[must_use]
    pub fn matches(&self, task: &Task) -> bool {
        let definition = &task.definition;
        definition.namespace == self.namespace
            && self.state.is_none_or(|state| state == task.state)
            && self.kind.is_none_or(|kind| kind.matches(definition.schedule.kind()))
            && self.matches_key(definition.key.as_ref())
            && self.matches_label(&definition.labels)
            && task.fire_at >= self.from
            && (task.fire_at < self.to || self.to == Timestamp::MAX)
    }

    fn matches_key(&self, key: Option<&TaskKey>) -> bool {
        key.map_or("", TaskKey::as_str).starts_with(&self.key_prefix)
    }

    fn matches_label(&self, labels: &Labels) -> bool {
        self.label.as_ref().is_none_or(|(name, value)| labels.get(name) == Some(value))
    }
}

/// A position in the order of ended fires, newest first: by `ended_at`, then by fire id, both
/// descending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FirePosition {
    /// When the fire ended.
    pub ended_at: Timestamp,
    /// Orders the fires that ended at the same time.
    pub fire_id: FireId,
}

impl FirePosition {
    /// Returns the position of a record.
    #[must_use]
    pub const fn of(record: &FireRecord) -> Self {
        Self { ended_at: record.ended_at, fire_id: record.fire_id }
    }
}

/// Selects ended fires. A fire matches if every condition that is set holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FireFilter {
    /// The namespace of the tasks.
    pub namespace: Namespace,
    /// How the fire ended; in any way if not set.
    pub end: Option<EndKind>,
    /// The start of the key. A fire of a task without a key matches only the empty prefix.
    pub key_prefix: String,
    /// The name and the value of a label.
    pub label: Option<(String, String)>,
    /// The fire ended at this time or later.
    pub from: Timestamp,
    /// The fire ended before this time.
    pub to: Timestamp,
}

impl FireFilter {
    /// Returns a filter that matches all ended fires of a namespace.
    #[must_use]
    pub const fn all(namespace: Namespace) -> Self {
        Self {
            namespace,
            end: None,
            key_prefix: String::new(),
            label: None,
            from: Timestamp::EPOCH,
            to: Timestamp::MAX,
        }
    }

    /// Returns whether a record matches. If `to` is [`Timestamp::MAX`], it excludes no fire.
    #[must_use]
    pub fn matches(&self, record: &FireRecord) -> bool {
        let key = record.key.as_ref().map_or("", TaskKey::as_str);
        record.namespace == self.namespace
            && self.end.is_none_or(|end| end == record.end.kind())
            && key.starts_with(&self.key_prefix)
            && self
                .label
                .as_ref()
                .is_none_or(|(name, value)| record.labels.get(name) == Some(value))
            && record.ended_at >= self.from
            && (record.ended_at < self.to || self.to == Timestamp::MAX)
    }
}

/// One page of a longer result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T, C> {
    /// The items, in order.
    pub items: Vec<T>,
    /// Where the next page starts, or `None` if this is the last one. A page may have fewer items
    /// than the limit, even none, and still have a next page: a store bounds how many items it
    /// reads for one page.
    pub next: Option<C>,
}

impl<T, C> Page<T, C> {
    /// Returns a page with the first `limit` of all items that follow, which are in order.
    /// `position` returns where the page after an item starts.
    pub fn first(
        mut items: impl Iterator<Item = T>,
        limit: usize,
        position: impl FnOnce(&T) -> C,
    ) -> Self {
        let page: Vec<T> = items.by_ref().take(limit).collect();
        let next = items.next().and_then(|_| page.last().map(position));
        Self { items: page, next }
    }
}

/// How long history and dead letters are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The age at which a history record is deleted.
    pub history_age: Duration,
    /// The size of history in bytes, over all partitions, above which the oldest records are
    /// deleted.
    pub history_bytes: u64,
    /// The age at which a dead letter is deleted.
    pub dead_age: Duration,
}

impl Default for Retention {
    /// A week or one gibibyte of history, a month of dead letters.
    fn default() -> Self {
        Self {
            history_age: Duration::from_secs(7 * 86_400),
            history_bytes: 1 << 30,
            dead_age: Duration::from_secs(30 * 86_400),
        }
    }
}

/// How much a sweep deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// The number of history records.
    pub history: u64,
    /// The number of dead letters.
    pub dead: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::fixtures::{at, epoch, id, namespace, partition, shop, task};

    #[test]
    fn a_task_matches_a_filter_if_every_condition_that_is_set_holds() {
        let task =
            task(id(at(10), partition(0), epoch(1), 1)).key("order/42").label("zone", "eu").build();
        let all = || Filter::all(shop());
        let label = |name: &str, value: &str| Filter {
            label: Some((name.to_owned(), value.to_owned())),
            ..all()
        };
        let prefix = |key_prefix: &str| Filter { key_prefix: key_prefix.to_owned(), ..all() };
        let state = |state| Filter { state: Some(state), ..all() };
        let due = |from, to| Filter { from, to, ..all() };
        let kind = |kind| Filter { kind: Some(kind), ..all() };
        for (filter, passes) in [
            (all(), true),
            (Filter::all(namespace("other")), false),
            (state(TaskState::Scheduled), true),
            (state(TaskState::Paused), false),
            (kind(KindFilter::Only(TaskKind::Once)), true),
            (kind(KindFilter::Only(TaskKind::Watch)), false),
            (kind(KindFilter::Series), false),
            (prefix("order/"), true),
            (prefix("order/42"), true),
            (prefix("order/421"), false),
            (prefix("rder"), false),
            (label("zone", "eu"), true),
            (label("zone", "us"), false),
            (label("eu", "zone"), false),
            (due(at(10), at(11)), true),
            (due(at(9), at(10)), false),
            (due(at(11), Timestamp::MAX), false),
            (Filter { state: Some(TaskState::Paused), ..prefix("order") }, false),
        ] {
            assert_eq!(filter.matches(&task), passes, "{filter:?}");
        }
    }

    #[test]
    fn a_task_without_a_key_matches_only_the_empty_prefix() {
        let task = task(id(at(1), partition(0), epoch(1), 1)).build();
        let mut filter = Filter::all(shop());
        assert!(filter.matches(&task));
        filter.key_prefix = "a".to_owned();
        assert!(!filter.matches(&task));
    }

    #[test]
    fn a_filter_up_to_the_last_instant_includes_it() {
        let task = task(id(Timestamp::MAX, partition(0), epoch(1), 1)).build();
        let mut filter = Filter::all(shop());
        assert!(filter.matches(&task));
        filter.to = Timestamp::from_millis(Timestamp::MAX.as_millis() - 1);
        assert!(!filter.matches(&task));
    }

    #[test]
    fn a_position_before_a_time_is_below_every_task_due_then() {
        let first = task(id(at(5), partition(0), epoch(1), 0)).build();
        assert!(Position::before(at(5)) < Position::of(&first));
        assert!(Position::before(at(6)) > Position::of(&first));
        let earliest = task(id(Timestamp::EPOCH, partition(0), epoch(1), 0)).build();
        assert!(Position::START < Position::of(&earliest));
    }

    #[test]
    fn just_before_a_position_is_after_every_earlier_position() {
        let [a, b] = [1, 2].map(|number| id(at(1), partition(0), epoch(1), number));
        let position = |id| Position { fire_at: at(1), id };
        assert!(position(b).just_before() < position(b));
        assert!(position(b).just_before() >= position(a));
        assert_eq!(Position::START.just_before(), Position::START);
    }

    #[test]
    fn positions_sort_by_time_then_by_id() {
        let [a, b] = [1, 2].map(|number| id(at(1), partition(0), epoch(1), number));
        let position = |second, id| Position { fire_at: at(second), id };
        assert!(position(1, a) < position(1, b));
        assert!(position(1, b) < position(2, a));
    }

    #[test]
    fn a_head_has_the_values_of_its_task() {
        let task = task(id(at(5), partition(0), epoch(1), 0)).key("a").build();
        let head = Head::of(&task);
        assert_eq!((head.id, head.state), (task.id, task.state));
        assert_eq!((head.fire_at, head.nominal_at), task_times(&task));
        assert_eq!(head.version, task.version);
        assert_eq!(head.schedule, task.definition.schedule);
    }

    const fn task_times(task: &Task) -> (Timestamp, Timestamp) {
        (task.fire_at, task.nominal_at)
    }
}
