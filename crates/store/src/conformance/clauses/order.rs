//! Order: which tasks `load` returns, from which position, until when, and how many.

use std::time::Duration;

use punctual_core::{FireEnd, TaskState, Timestamp};

use crate::LeaseStore;
use crate::TaskStore;
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{NOW, at, due_at, in_state, postpone, refile, settle};
use crate::conformance::owner::{TestOwner, ids};
use crate::query::Position;

pub async fn an_empty_partition_loads_nothing<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    assert_eq!(TestOwner::first(&store).await.load().await, []);
}

pub async fn tasks_load_by_time_then_by_id<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let seconds = [5, 1, 3, 1, 9, 5, 0, 5];
    let mut tasks: Vec<_> = seconds.map(|second| owner.task(at(second)).build()).into();
    // An id has the time at which its task was first due, which may differ from `fire_at`.
    tasks.push(due_at(&owner.task(at(100)).build(), at(5)));
    tasks.push(due_at(&owner.task(at(0)).build(), at(5)));
    owner.put(&tasks).await;
    tasks.sort_by_key(Position::of);
    assert_eq!(owner.load().await, tasks);
}

pub async fn the_order_of_tasks_does_not_depend_on_batches<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut tasks = Vec::new();
    for second in [7, 2, 9, 2, 4] {
        let task = owner.task(at(second)).build();
        owner.put([&task]).await;
        tasks.push(task);
    }
    tasks.sort_by_key(Position::of);
    assert_eq!(owner.load().await, tasks);
}

pub async fn loading_continues_after_the_last_loaded_task<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    // Three tasks are due at each second, so that chunks end within a second and between two.
    let mut tasks = Vec::new();
    for number in 0..30 {
        tasks.push(owner.task(at(number / 3)).build());
    }
    owner.put(&tasks).await;
    for limit in [1, 2, 3, 7, 29, 30, 31] {
        let (mut loaded, mut after) = (Vec::new(), Position::START);
        loop {
            let chunk = owner.load_between(after, Timestamp::MAX, limit).await;
            assert!(chunk.len() <= limit);
            let full = chunk.len() == limit;
            loaded.extend(chunk);
            match loaded.last() {
                Some(last) if full => after = Position::of(last),
                // Fewer than the limit means that there are no more.
                _ => break,
            }
        }
        assert_eq!(loaded, tasks, "by {limit}");
    }
}

pub async fn a_position_is_exclusive_and_need_not_be_that_of_a_task<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks = [1, 2, 2, 3].map(|second| owner.task(at(second)).build());
    owner.put(&tasks).await;
    let of = |index: usize| Position::of(&tasks[index]);
    for (after, first) in [
        (Position::START, 0),
        (Position::before(at(1)), 0),
        (of(0), 1),
        (Position::before(at(2)), 1),
        (of(1), 2),
        (of(2), 3),
        (Position::before(at(3)), 3),
        (of(3), 4),
        (Position::before(at(4)), 4),
    ] {
        let loaded = owner.load_between(after, Timestamp::MAX, 9).await;
        assert_eq!(loaded, tasks[first..], "after {after:?}");
    }
}

pub async fn until_is_exclusive<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks = [1, 2, 3].map(|second| owner.task(at(second)).build());
    owner.put(&tasks).await;
    let milli = Duration::from_millis(1);
    for (until, count) in [
        (NOW, 0),
        (at(1), 0),
        (at(1).after(milli), 1),
        (at(2), 1),
        (at(3), 2),
        (at(3).after(milli), 3),
    ] {
        let loaded = owner.load_between(Position::START, until, 9).await;
        assert_eq!(loaded, tasks[..count], "until {until}");
    }
}

pub async fn a_load_returns_at_most_limit_tasks<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks = [1, 2, 3].map(|second| owner.task(at(second)).build());
    owner.put(&tasks).await;
    for (limit, count) in [(0, 0), (1, 1), (3, 3), (4, 3), (usize::MAX, 3)] {
        let loaded = owner.load_between(Position::START, Timestamp::MAX, limit);
        assert_eq!(loaded.await, tasks[..count], "limit {limit}");
    }
}

/// Tasks that a store skips while it searches must not make the result short.
pub async fn fewer_tasks_than_the_limit_means_no_more_even_if_others_were_skipped<
    S: StoreUnderTest,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut scheduled = Vec::new();
    for round in 0..50 {
        let [paused, ended, moved, stays] = [0, 1, 2, 3].map(|_| owner.task(at(round)).build());
        owner.put([&paused, &ended, &moved, &stays]).await;
        let (moved, postponement) = postpone(&moved, at(1000 + round));
        let changes = vec![
            refile(&paused, &in_state(&paused, TaskState::Paused)),
            settle(&ended, FireEnd::Cancelled, NOW),
            postponement,
        ];
        owner.apply(changes).await;
        scheduled.extend([stays, moved]);
    }
    scheduled.sort_by_key(Position::of);
    let first = owner.load_between(Position::START, at(1000), 50).await;
    assert_eq!(first, scheduled[..50]);
    let rest = owner.load_between(Position::of(&first[49]), Timestamp::MAX, 50);
    assert_eq!(rest.await, scheduled[50..]);
    let none = owner.load_between(Position::of(&first[49]), at(1000), 50);
    assert_eq!(none.await, []);
}

pub async fn a_paused_task_is_never_loaded<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let paused = owner.task(at(1)).paused().build();
    let waits = owner.task(at(2)).build();
    owner.put([&paused, &waits]).await;
    assert_eq!(owner.load().await, [waits.clone()]);
    assert_eq!(owner.list().await, [paused, waits]);
}

pub async fn a_read_sees_all_earlier_writes<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for second in 1..50 {
        let task = owner.task(at(second)).key("a").build();
        owner.put([&task]).await;
        assert_eq!(owner.load().await, [task.clone()]);
        assert_eq!(owner.get(task.id).await, Some(task.clone()));
        assert_eq!(owner.find("a").await.map(|head| head.id), Some(task.id));
        owner.apply(vec![settle(&task, FireEnd::Done, NOW)]).await;
        assert_eq!(owner.load().await, []);
        assert_eq!(owner.get(task.id).await, None);
        assert_eq!(owner.find("a").await, None);
    }
}

pub async fn reads_need_no_lease<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(1)).build();
    owner.put([&task]).await;
    let partition = owner.state().partition;
    let lease = owner.state().lease;
    store.release(&lease).await.expect("the holder may release");
    let loaded = store.load(partition, Position::START, at(9), 9).await;
    assert_eq!(ids(&loaded.expect("reads need no lease")), [task.id]);
}
