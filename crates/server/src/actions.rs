//! What operators did: who, when, which call, on what, and how many tasks or letters it changed.
//!
//! An action is a call that changed something and that needs the right to operate, or that came
//! from the console or from a token that may operate and not produce. Each is one line of the log,
//! which is what lasts, and an entry of a list in memory, which is bounded and ends with the
//! broker. What programs create, touch and cancel by themselves is no action: that is in the
//! history of each task. `gather_measures` adds up the lists of all brokers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use punctual_core::{Namespace, Timestamp};

/// Actions of one namespace that are kept, and namespaces of which some are kept: as many as series
/// are. An action takes some hundred bytes.
pub(crate) const KEPT_MAX: usize = 1000;
const NAMESPACES_MAX: usize = 64;
/// Bytes of a detail: a filter of usual length. Longer ones are cut.
pub(crate) const DETAIL_BYTES_MAX: usize = 256;

/// One call of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OperatorAction {
    pub(crate) at: Timestamp,
    /// The call, as the OpenAPI document names it: `pause_task`.
    pub(crate) call: String,
    /// What the token of the caller grants.
    pub(crate) by: String,
    /// The key or id of the task, the id of the fire or of the operation, or the name of the alarm
    /// or rule. Empty if the call names none.
    pub(crate) name: String,
    /// What the call asked for, as text: the verb and the filter. Empty if there is nothing to add.
    pub(crate) detail: String,
    /// How many tasks or dead letters were changed, if the call is about many.
    pub(crate) changed: Option<u64>,
}

/// What a call asked for and did, for its action.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ActionDetail {
    /// The name, if the call does not have it.
    pub(crate) name: Option<String>,
    pub(crate) detail: String,
    pub(crate) changed: Option<u64>,
}

impl ActionDetail {
    /// A call that names so many tasks.
    pub(crate) fn of_many(named: usize, changed: usize) -> Self {
        Self { name: None, detail: format!("{named} tasks"), changed: Some(changed as u64) }
    }
}

/// The actions of a namespace that are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActionList {
    /// Since when nothing is missing.
    pub(crate) since: Timestamp,
    /// Newest first.
    pub(crate) actions: Vec<OperatorAction>,
}

/// The actions that this broker has carried out.
#[derive(Debug)]
pub(crate) struct Actions(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    /// When the broker started, or the last action of a namespace that was dropped as a whole.
    since: Timestamp,
    namespaces: HashMap<Namespace, KeptActions>,
}

#[derive(Debug, Default)]
struct KeptActions {
    /// Oldest first.
    actions: VecDeque<OperatorAction>,
    /// When the last one was dropped that is missing.
    dropped: Option<Timestamp>,
}

impl Actions {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self(Mutex::new(Kept { since: now, namespaces: HashMap::new() }))
    }

    /// Logs an action and adds it to the list of its namespace.
    pub(crate) fn add(&self, namespace: &Namespace, mut action: OperatorAction) {
        cut(&mut action.detail);
        let OperatorAction { call, by, name, detail, changed, .. } = &action;
        tracing::info!(%namespace, %by, %call, ?name, ?detail, changed, "action of an operator");
        let mut kept = self.lock();
        if !kept.namespaces.contains_key(namespace) && kept.namespaces.len() >= NAMESPACES_MAX {
            kept.drop_oldest();
        }
        let own = kept.namespaces.entry(namespace.clone()).or_default();
        if own.actions.len() >= KEPT_MAX {
            own.dropped = own.actions.pop_front().map(|oldest| oldest.at);
        }
        own.actions.push_back(action);
    }

    pub(crate) fn list(&self, namespace: &Namespace) -> ActionList {
        let kept = self.lock();
        let own = kept.namespaces.get(namespace);
        let dropped = own.and_then(|own| own.dropped);
        let actions = own.into_iter().flat_map(|own| own.actions.iter().rev().cloned());
        ActionList {
            since: dropped.map_or(kept.since, |at| at.max(kept.since)),
            actions: actions.collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Every update is a single step, so the value is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Drops the namespace in which nothing was done for the longest time.
    fn drop_oldest(&mut self) {
        let last = |own: &KeptActions| own.actions.back().map(|action| action.at);
        let oldest = self.namespaces.iter().min_by_key(|(_, own)| last(own));
        let Some((namespace, own)) = oldest else { return };
        let (namespace, at) = (namespace.clone(), last(own));
        self.namespaces.remove(&namespace);
        self.since = at.map_or(self.since, |at| at.max(self.since));
    }
}

impl ActionList {
    /// Adds the actions of another broker. The newest ones are kept.
    pub(crate) fn add(&mut self, other: Self) {
        self.since = self.since.max(other.since);
        self.actions.extend(other.actions);
        self.actions.sort_by_key(|action| std::cmp::Reverse(action.at));
        if let Some(dropped) = self.actions.get(KEPT_MAX) {
            self.since = self.since.max(dropped.at);
            self.actions.truncate(KEPT_MAX);
        }
    }
}

/// Cuts a text to [`DETAIL_BYTES_MAX`], and says so.
fn cut(text: &mut String) {
    if text.len() > DETAIL_BYTES_MAX {
        text.truncate(text.floor_char_boundary(DETAIL_BYTES_MAX - '…'.len_utf8()));
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: usize) -> Timestamp {
        Timestamp::from_millis(seconds as u64 * 1000)
    }

    fn action(second: usize) -> OperatorAction {
        OperatorAction {
            at: at(second),
            call: "pause_task".to_owned(),
            by: "admin".to_owned(),
            name: second.to_string(),
            detail: String::new(),
            changed: None,
        }
    }

    fn namespace(name: &str) -> Namespace {
        Namespace::new(name).unwrap()
    }

    #[test]
    fn the_newest_actions_of_a_namespace_are_kept_and_the_list_says_since_when() {
        let actions = Actions::new(at(0));
        let shop = namespace("shop");
        assert_eq!(actions.list(&shop), ActionList { since: at(0), actions: Vec::new() });
        for second in 1..=KEPT_MAX + 2 {
            actions.add(&shop, action(second));
        }
        let list = actions.list(&shop);
        assert_eq!((list.since, list.actions.len()), (at(2), KEPT_MAX));
        assert_eq!(list.actions[0], action(KEPT_MAX + 2));
        assert_eq!(actions.list(&namespace("bank")).since, at(0));
    }

    #[test]
    fn the_namespace_without_actions_for_the_longest_time_is_dropped() {
        let actions = Actions::new(at(0));
        let name = |number: usize| namespace(&format!("n{number}"));
        for number in 0..NAMESPACES_MAX {
            actions.add(&name(number), action(1 + number));
        }
        actions.add(&name(0), action(100));
        actions.add(&name(NAMESPACES_MAX), action(101));
        assert_eq!(actions.list(&name(1)), ActionList { since: at(2), actions: Vec::new() });
        assert_eq!(actions.list(&name(0)).actions.len(), 2);
    }

    #[test]
    fn lists_of_brokers_are_added_in_the_order_of_time() {
        let list = |since, seconds: &[usize]| ActionList {
            since: at(since),
            actions: seconds.iter().map(|second| action(*second)).collect(),
        };
        let mut sum = list(1, &[9, 5]);
        sum.add(list(3, &[7]));
        assert_eq!(sum, list(3, &[9, 7, 5]));
        let many: Vec<usize> = (10..10 + KEPT_MAX).rev().collect();
        sum.add(list(0, &many));
        assert_eq!((sum.since, sum.actions.len()), (at(9), KEPT_MAX));
    }

    #[test]
    fn a_long_detail_is_cut_between_letters() {
        let actions = Actions::new(at(0));
        let long = OperatorAction { detail: "ü".repeat(DETAIL_BYTES_MAX), ..action(1) };
        actions.add(&namespace("shop"), long);
        let detail = actions.list(&namespace("shop")).actions.remove(0).detail;
        assert!(detail.len() <= DETAIL_BYTES_MAX && detail.ends_with("ü…"), "{detail}");
    }
}
