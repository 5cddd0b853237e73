//! Reading: positions, pages, filters, and what a name leads to.

use std::time::Duration;

use punctual_core::{
    Labels, Namespace, Schedule, Task, TaskId, TaskKey, TaskState, Timestamp, Version,
};

/// A place in the order in which tasks are due: by time, then by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// When.
    pub fire_at: Timestamp,
    /// Which of those due then.
    pub id: TaskId,
}

impl Position {
    /// Before every task.
    pub const START: Self = Self::before(Timestamp::EPOCH);

    /// Before every task that is due at `fire_at` or later.
    #[must_use]
    pub const fn before(fire_at: Timestamp) -> Self {
        // No owner makes an id with epoch 0, so this one is below all ids of tasks.
        Self { fire_at, id: TaskId::floor(Timestamp::EPOCH) }
    }

    /// Right before this place: whoever reads on from there finds first what stands here.
    #[must_use]
    pub const fn just_before(self) -> Self {
        Self { fire_at: self.fire_at, id: self.id.below() }
    }

    /// Where a task stands.
    #[must_use]
    pub const fn of(task: &Task) -> Self {
        Self { fire_at: task.fire_at, id: task.id }
    }
}

/// What a key leads to: as much of a task as touching, replacing and cancelling it take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The task that the key names.
    pub id: TaskId,
    /// `Scheduled` or `Paused`.
    pub state: TaskState,
    /// When it is due.
    pub fire_at: Timestamp,
    /// When its present fire is due by the schedule.
    pub nominal_at: Timestamp,
    /// Which change of it this is.
    pub version: Version,
    /// By which rule it is due.
    pub schedule: Schedule,
}

impl Head {
    /// Of a task.
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

/// Which living tasks to list. Everything that is set must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Whose.
    pub namespace: Namespace,
    /// `Scheduled` or `Paused`; both if not set.
    pub state: Option<TaskState>,
    /// The beginning of the key; tasks without one do not match, unless it is empty.
    pub key_prefix: String,
    /// A label and its value.
    pub label: Option<(String, String)>,
    /// Due at this time or later.
    pub from: Timestamp,
    /// Due before this time.
    pub to: Timestamp,
}

impl Filter {
    /// All living tasks of a namespace.
    #[must_use]
    pub const fn all(namespace: Namespace) -> Self {
        Self {
            namespace,
            state: None,
            key_prefix: String::new(),
            label: None,
            from: Timestamp::EPOCH,
            to: Timestamp::MAX,
        }
    }

    /// Whether a task is one of them. The last instant of all time is never excluded by `to`.
    #[must_use]
    pub fn matches(&self, task: &Task) -> bool {
        let definition = &task.definition;
        definition.namespace == self.namespace
            && self.state.is_none_or(|state| state == task.state)
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

/// Some of what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T, C> {
    /// In order.
    pub items: Vec<T>,
    /// Where to go on; `None` when there is no more. A page may have fewer items than asked for, even
    /// none, and still have a next one: a store bounds what it looks at for one page.
    pub next: Option<C>,
}

/// How long what is over is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Age of a history record at which it goes.
    pub history_age: Duration,
    /// Bytes of history, all partitions together, above which the oldest go.
    pub history_bytes: u64,
    /// Age of a dead letter at which it goes.
    pub dead_age: Duration,
}

impl Default for Retention {
    /// History for a week or a gibibyte, dead letters for a month.
    fn default() -> Self {
        Self {
            history_age: Duration::from_secs(7 * 86_400),
            history_bytes: 1 << 30,
            dead_age: Duration::from_secs(30 * 86_400),
        }
    }
}

/// What a sweep deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// History records.
    pub history: u64,
    /// Dead letters.
    pub dead: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::fixtures::{at, epoch, id, namespace, partition, shop, task};

    #[test]
    fn a_task_passes_a_filter_when_all_that_is_set_holds() {
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
        for (filter, passes) in [
            (all(), true),
            (Filter::all(namespace("other")), false),
            (state(TaskState::Scheduled), true),
            (state(TaskState::Paused), false),
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
    fn a_task_without_a_key_begins_with_nothing_but_nothing() {
        let task = task(id(at(1), partition(0), epoch(1), 1)).build();
        let mut filter = Filter::all(shop());
        assert!(filter.matches(&task));
        filter.key_prefix = "a".to_owned();
        assert!(!filter.matches(&task));
    }

    #[test]
    fn a_filter_up_to_the_end_of_time_includes_it() {
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
    fn right_before_a_place_is_behind_everything_before_it() {
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
    fn a_head_says_what_its_task_says() {
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
