//! The list of namespaces: in order of their names, each with its counts, for as long as it has
//! any.

use std::time::Duration;

use punctual_core::{FireEnd, Namespace, Task, TaskState};

use crate::change::Change;
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{
    NOW, at, die, in_state, namespace, partition, refile, settle, shop,
};
use crate::conformance::owner::TestOwner;
use crate::counts::{CountedNamespace, Counts};
use crate::query::Retention;
use crate::{LeaseStore, TaskStore};

/// Stores one scheduled task of a namespace, which may be internal.
async fn put<S: TaskStore + LeaseStore>(owner: &mut TestOwner<'_, S>, name: &Namespace) -> Task {
    let task = owner.task(at(1)).define(|definition| definition.namespace = name.clone()).build();
    owner.put([&task]).await;
    task
}

fn names(counted: &[CountedNamespace]) -> Vec<&str> {
    counted.iter().map(|counted| counted.name.as_str()).collect()
}

pub async fn namespaces_are_listed_by_name_with_their_counts_for_any_page_size<
    S: StoreUnderTest,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut other = TestOwner::take(&store, partition(1)).await;
    assert_eq!(owner.namespaces_after(None, 1).await, []);
    // Names in the order of their bytes, of which one begins with another; one is internal.
    let sorted = ["A", "Shop", "a", "shop", "shop-1", "shop.a", "shop1", "shop~", "z"];
    let of = |name: &str| Namespace::from_stored(name).expect("a valid namespace");
    for name in ["shop.a", "z", "a", "shop", "Shop", "shop~", "shop1", "A", "shop-1"] {
        put(&mut owner, &of(name)).await;
        put(&mut other, &of("other")).await;
    }
    let shop = put(&mut owner, &shop()).await;
    let paused = put(&mut owner, &of("z")).await;
    let dead = put(&mut owner, &of("a")).await;
    let changes = vec![
        settle(&shop, FireEnd::Done, NOW),
        refile(&paused, &in_state(&paused, TaskState::Paused)),
        die(&dead, NOW, None),
    ];
    owner.apply(changes).await;
    for limit in [1, 2, 4, 8, 9, 10, 1000] {
        let listed = owner.namespaces_after(None, limit).await;
        assert_eq!(names(&listed), sorted, "by {limit}");
        for CountedNamespace { name, counts } in listed {
            assert_eq!(counts, owner.counts_of(&name).await, "{name} by {limit}");
        }
    }
    let only = CountedNamespace {
        name: of("other"),
        counts: Counts { scheduled: 9, ..Counts::default() },
    };
    assert_eq!(other.namespaces_after(None, 1).await, [only]);
}

pub async fn namespaces_start_after_a_name_that_need_not_exist<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for name in ["b", "d", "f"] {
        put(&mut owner, &namespace(name)).await;
    }
    for (after, want) in [
        ("a", &["b", "d", "f"][..]),
        ("b", &["d", "f"]),
        ("b-1", &["d", "f"]),
        ("e", &["f"]),
        ("f", &[]),
        ("z", &[]),
    ] {
        let listed = owner.namespaces_after(Some(namespace(after)), 1).await;
        assert_eq!(names(&listed), want, "after {after}");
    }
}

/// Ended tasks are counted for ever, so that `accepted` stays true.
pub async fn a_namespace_stays_listed_when_all_of_its_tasks_have_ended<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [done, cancelled, dead, deleted] = ["done", "cancelled", "dead", "deleted"].map(namespace);
    let mut tasks = Vec::new();
    for name in [&done, &cancelled, &dead, &deleted] {
        tasks.push(put(&mut owner, name).await);
    }
    let fire_id = tasks[3].fire().id;
    let changes = vec![
        settle(&tasks[0], FireEnd::Done, NOW),
        settle(&tasks[1], FireEnd::Cancelled, NOW),
        die(&tasks[2], NOW, None),
        die(&tasks[3], NOW, None),
        Change::DeleteLetter { fire_id, namespace: deleted.clone() },
    ];
    owner.apply(changes).await;
    let second = Duration::from_secs(1);
    let retention = Retention { history_age: second, history_bytes: u64::MAX, dead_age: second };
    let state = owner.state();
    let swept = store.sweep(state.partition, state.lease.epoch, retention, at(1_000_000)).await;
    swept.expect("the owner may sweep");
    let want = [
        (cancelled, Counts { cancelled: 1, ..Counts::default() }),
        (dead, Counts { dead: 1, ..Counts::default() }),
        (deleted, Counts { dead: 1, ..Counts::default() }),
        (done, Counts { done: 1, ..Counts::default() }),
    ];
    let want = want.map(|(name, counts)| CountedNamespace { name, counts });
    assert_eq!(owner.namespaces_after(None, 3).await, want);
}

pub async fn a_namespace_without_a_count_is_not_listed<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for name in ["a", "c", "d"] {
        put(&mut owner, &namespace(name)).await;
    }
    // A replaced task is counted as the task that replaces it, which is missing here.
    let replaced = put(&mut owner, &namespace("b")).await;
    owner.apply(vec![settle(&replaced, FireEnd::Replaced, NOW)]).await;
    let at_once = owner.task(at(1)).namespace("e").build();
    let changes = vec![Change::Put(at_once.clone()), settle(&at_once, FireEnd::Replaced, NOW)];
    owner.apply(changes).await;
    for limit in [1, 2, 3, 9] {
        let listed = owner.namespaces_after(None, limit).await;
        assert_eq!(names(&listed), ["a", "c", "d"], "by {limit}");
    }
    put(&mut owner, &namespace("b")).await;
    assert_eq!(names(&owner.namespaces_after(None, 2).await), ["a", "b", "c", "d"]);
}

pub async fn a_namespace_that_appears_between_two_pages_hides_no_other<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for name in ["b", "d", "f"] {
        put(&mut owner, &namespace(name)).await;
    }
    let partition = owner.state().partition;
    let first = store.namespaces(partition, None, 2).await.expect("reads need no lease");
    assert_eq!(names(&first.items), ["b", "d"]);
    for name in ["a", "c", "e"] {
        put(&mut owner, &namespace(name)).await;
    }
    let rest = owner.namespaces_after(first.next, 1).await;
    assert_eq!(names(&rest), ["e", "f"]);
}
