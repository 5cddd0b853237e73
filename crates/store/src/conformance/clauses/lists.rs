//! Lookups by key, and lists of the tasks that match a filter.

use punctual_core::{FireEnd, Namespace, Task, TaskState, Timestamp};

use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{
    NOW, at, die, due_at, in_state, key, namespace, postpone, refile, settle, shop,
};
use crate::conformance::owner::TestOwner;
use crate::query::{Filter, Head, Position};
use crate::{LeaseStore, TaskStore};

pub async fn find_returns_heads_in_the_order_of_the_keys<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [a, b] = ["a", "b"].map(|name| owner.task(at(1)).key(name).build());
    owner.put([&a, &b]).await;
    let partition = owner.state().partition;
    let keys = ["b", "never", "a", "b"].map(key);
    let heads = store.find(partition, &shop(), &keys).await;
    let [a, b] = [&a, &b].map(|task| Some(Head::of(task)));
    assert_eq!(heads.expect("reads need no lease"), [b.clone(), None, a, b]);
    let none = store.find(partition, &shop(), &[]).await;
    assert_eq!(none.expect("reads need no lease"), []);
}

pub async fn keys_are_compared_as_a_whole<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let long = "x".repeat(256);
    let names = ["a", "aa", "a/b", "A", " a", "ä", &long, &long[1..]];
    let tasks = names.map(|name| owner.task(at(1)).key(name).build());
    owner.put(&tasks).await;
    for (name, task) in names.iter().zip(&tasks) {
        assert_eq!(owner.find(name).await, Some(Head::of(task)), "{name:?}");
    }
    for name in ["aaa", "a/", "b", "a "] {
        assert_eq!(owner.find(name).await, None, "{name:?}");
    }
}

/// Fills namespaces with tasks of the same keys, chosen so that namespace and key run together in a
/// careless encoding.
async fn similar_namespaces<S: TaskStore + LeaseStore>(
    owner: &mut TestOwner<'_, S>,
) -> Vec<(Namespace, Vec<Task>)> {
    let mut all = Vec::new();
    for name in ["shop", "shop-1", "shop.a"] {
        let mut tasks = Vec::new();
        for (second, key) in (1..).zip(["a", "1", ".a", "b"]) {
            tasks.push(owner.task(at(second)).namespace(name).key(key).build());
        }
        owner.put(&tasks).await;
        all.push((namespace(name), tasks));
    }
    all
}

pub async fn a_key_names_a_task_only_within_its_namespace<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for (namespace, tasks) in similar_namespaces(&mut owner).await {
        for (key, task) in ["a", "1", ".a", "b"].iter().zip(&tasks) {
            let head = owner.find_in(&namespace, key).await;
            assert_eq!(head, Some(Head::of(task)), "{namespace}/{key}");
        }
        for key in ["-1a", ".aa", "c"] {
            assert_eq!(owner.find_in(&namespace, key).await, None);
        }
    }
    assert_eq!(owner.find_in(&namespace("sho"), "a").await, None);
}

pub async fn namespaces_do_not_see_each_other<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let all = similar_namespaces(&mut owner).await;
    let ended = &all[1].1[0];
    let dead = &all[2].1[0];
    owner.apply(vec![settle(ended, FireEnd::Done, NOW), die(dead, NOW, None)]).await;
    for (number, (namespace, tasks)) in (0..).zip(&all) {
        let listed = owner.list_by(&Filter::all(namespace.clone()), 2).await;
        assert_eq!(listed, tasks[usize::from(number != 0)..]);
        let letters = owner.dead_of(namespace, 9).await;
        assert_eq!(letters.len(), usize::from(number == 2));
        let counts = owner.counts_of(namespace).await;
        assert_eq!(counts.accepted(), 4);
        assert_eq!(counts.done, i64::from(number == 1));
        assert_eq!(counts.dead_letters, i64::from(number == 2));
        let head = owner.find_in(namespace, "a").await;
        assert_eq!(head.is_some(), number == 0);
    }
    // Loading returns the tasks of every namespace.
    assert_eq!(owner.load().await.len(), 10);
}

/// Stores tasks of all kinds, and returns them in order: refiled, postponed, paused, with keys,
/// with labels, and some of another namespace.
async fn mixture<S: TaskStore + LeaseStore>(owner: &mut TestOwner<'_, S>) -> Vec<Task> {
    let mut tasks = Vec::new();
    for number in 0..60u64 {
        let mut built = owner.task(at(number % 17));
        if number % 2 == 0 {
            built = built.key(&format!("order/{}/{number}", number % 3));
        }
        if number % 3 == 0 {
            built = built.label("zone", ["eu", "us"][usize::from(number % 2 == 0)]);
        }
        if number % 10 == 9 {
            built = built.namespace("other");
        }
        let task = built.build();
        owner.put([&task]).await;
        let (task, change) = match number % 7 {
            1 => postpone(&task, at(100 + number)),
            2 => {
                let paused = in_state(&task, TaskState::Paused);
                let change = refile(&task, &paused);
                (paused, change)
            }
            3 => {
                let early = due_at(&task, at(number % 5));
                let change = refile(&task, &early);
                (early, change)
            }
            _ => {
                tasks.push(task);
                continue;
            }
        };
        owner.apply(vec![change]).await;
        tasks.push(task);
    }
    tasks.sort_by_key(Position::of);
    tasks
}

fn filters() -> Vec<Filter> {
    let all = || Filter::all(shop());
    let label = |name: &str, value: &str| Filter {
        label: Some((name.to_owned(), value.to_owned())),
        ..all()
    };
    let state = |state| Filter { state: Some(state), ..all() };
    let prefix = |prefix: &str| Filter { key_prefix: prefix.to_owned(), ..all() };
    let due = |from, to| Filter { from, to, ..all() };
    vec![
        all(),
        Filter::all(namespace("other")),
        Filter::all(namespace("unused")),
        state(TaskState::Scheduled),
        state(TaskState::Paused),
        prefix("order/"),
        prefix("order/1"),
        prefix("order/1/34"),
        prefix("nothing"),
        label("zone", "eu"),
        label("zone", "mars"),
        label("nothing", "eu"),
        due(at(3), at(9)),
        due(at(100), Timestamp::MAX),
        due(Timestamp::EPOCH, at(1)),
        due(at(9), at(9)),
        Filter {
            state: Some(TaskState::Scheduled),
            key_prefix: "order/0".to_owned(),
            label: Some(("zone".to_owned(), "us".to_owned())),
            from: at(1),
            to: at(12),
            ..all()
        },
    ]
}

pub async fn a_list_returns_all_matching_tasks_in_order_for_any_page_size<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks = mixture(&mut owner).await;
    for filter in filters() {
        let mut want = tasks.clone();
        want.retain(|task| filter.matches(task));
        for limit in [1, 2, 5, 53, 54, 1000] {
            let listed = owner.list_by(&filter, limit).await;
            assert_eq!(listed, want, "{filter:?} by {limit}");
        }
    }
}

pub async fn a_list_starts_after_a_position<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks = [1, 2, 2, 3].map(|second| owner.task(at(second)).build());
    owner.put(&tasks).await;
    let from = Filter { from: at(2), ..Filter::all(shop()) };
    for (filter, after, first) in [
        (&Filter::all(shop()), Position::of(&tasks[1]), 2),
        (&Filter::all(shop()), Position::before(at(2)), 1),
        (&from, Position::START, 1),
        (&from, Position::of(&tasks[2]), 3),
    ] {
        let listed = owner.list_after(filter, after, 9).await;
        assert_eq!(listed, tasks[first..], "after {after:?}");
    }
}

/// A caller that reads pages while the owner writes still sees every task that does not change.
pub async fn changes_between_two_pages_do_not_hide_unchanged_tasks<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks = [1, 2, 3, 4, 5, 6].map(|second| owner.task(at(second)).build());
    owner.put(&tasks).await;
    let partition = owner.state().partition;
    let filter = Filter::all(shop());
    let (mut listed, mut after) = (Vec::new(), Some(Position::START));
    let mut gone = tasks[..3].iter();
    while let Some(from) = after {
        let page = store.list(partition, &filter, from, 1).await;
        let page = page.expect("reads need no lease");
        listed.extend(page.items);
        after = page.next;
        if let Some(task) = gone.next() {
            owner.apply(vec![settle(task, FireEnd::Done, NOW)]).await;
        }
    }
    for task in &tasks[3..] {
        assert!(listed.contains(task), "{task:?} was not listed");
    }
}
