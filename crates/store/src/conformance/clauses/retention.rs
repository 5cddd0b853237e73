//! Counts and retention: counts add up, and a sweep deletes only what is past its retention.

use std::time::Duration;

use punctual_core::{FireEnd, TaskState, Timestamp};

use crate::change::Change;
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{
    NOW, at, die, in_state, letter, namespace, next_fire, postpone, refile, settle,
    settle_with_next, shop,
};
use crate::conformance::owner::TestOwner;
use crate::counts::Counts;
use crate::query::{Retention, Swept};
use crate::{LeaseStore, TaskStore};

/// The largest number of sweeps until one deletes nothing: a store may bound one sweep.
const SWEEPS_MAX: usize = 1000;

const HOUR: Duration = Duration::from_secs(3600);

/// Nothing is deleted by size, everything after an hour.
const AFTER_AN_HOUR: Retention =
    Retention { history_age: HOUR, history_bytes: u64::MAX, dead_age: HOUR };

pub async fn an_unused_namespace_has_zero_counts<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let owner = TestOwner::first(&store).await;
    assert_eq!(owner.counts().await, Counts::default());
}

pub async fn counts_add_up_after_a_mixture_of_changes<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks: Vec<_> = (0..20).map(|second| owner.task(at(second)).build()).collect();
    owner.put(&tasks).await;
    let paused = in_state(&tasks[0], TaskState::Paused);
    let next = next_fire(&tasks[1], at(50));
    let new = owner.task(at(60)).key("new").build();
    let back = next_fire(&tasks[2], at(70));
    let redriven = Change::Redrive { fire_id: tasks[2].fire().id, task: back };
    let forgotten = Change::DeleteLetter { fire_id: tasks[3].fire().id, namespace: shop() };
    let changes = vec![
        refile(&tasks[0], &paused),
        settle_with_next(&tasks[1], NOW, &next),
        die(&tasks[2], NOW, None),
        redriven,
        die(&tasks[3], NOW, None),
        forgotten,
        die(&tasks[4], NOW, None),
        die(&tasks[5], NOW, Some(&next_fire(&tasks[5], at(80)))),
        settle(&tasks[6], FireEnd::Done, NOW),
        settle(&tasks[7], FireEnd::Cancelled, NOW),
        settle(&tasks[8], FireEnd::Replaced, NOW),
        Change::Put(new),
        postpone(&tasks[9], at(99)).1,
    ];
    owner.apply(changes).await;
    let want = Counts { scheduled: 15, paused: 1, done: 1, dead: 2, cancelled: 1, dead_letters: 2 };
    assert_eq!(owner.counts().await, want);
    assert_eq!(want.accepted(), 20, "every accepted task is counted once");
    assert_eq!(owner.list().await.len(), 16);
    assert_eq!(owner.load().await.len(), 15);
    assert_eq!(owner.dead().await.len(), 2);
}

/// Ends one task as done and one as a dead letter at each of the given times.
async fn ended<S: TaskStore + LeaseStore>(
    owner: &mut TestOwner<'_, S>,
    ends: &[Timestamp],
) -> Vec<[punctual_core::Task; 2]> {
    let mut tasks = Vec::new();
    for ended_at in ends {
        let [done, dead] = [0, 1].map(|second| owner.task(at(second)).build());
        owner.put([&done, &dead]).await;
        owner
            .apply(vec![settle(&done, FireEnd::Done, *ended_at), die(&dead, *ended_at, None)])
            .await;
        tasks.push([done, dead]);
    }
    tasks
}

async fn sweep<S: TaskStore + LeaseStore>(
    store: &S,
    owner: &TestOwner<'_, S>,
    retention: Retention,
    now: Timestamp,
) -> Swept {
    let mut total = Swept::default();
    let state = owner.state();
    for _ in 0..SWEEPS_MAX {
        let swept = store.sweep(state.partition, state.lease.epoch, retention, now);
        let swept = swept.await.expect("the owner may sweep");
        if swept == Swept::default() {
            return total;
        }
        total.history += swept.history;
        total.dead += swept.dead;
    }
    unreachable!("sweeps come to an end")
}

pub async fn a_sweep_never_deletes_before_the_retention_ends<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let ends: Vec<_> = (1..10).map(|second| at(second * 60)).collect();
    let tasks = ended(&mut owner, &ends).await;
    for minute in 1..10u64 {
        // Those that ended in the first minutes are past their age by at least a millisecond.
        let now = at(minute * 60).after(HOUR);
        sweep(&store, &owner, AFTER_AN_HOUR, now).await;
        for ([done, dead], ended_at) in tasks.iter().zip(&ends) {
            if now.since(*ended_at) < HOUR {
                assert_eq!(owner.history(done.id).await.len(), 1);
                assert_eq!(owner.history(dead.id).await.len(), 1);
                let kept = owner.dead_letter(dead.fire().id).await;
                assert_eq!(kept, Some(letter(dead, *ended_at)));
            }
        }
    }
}

pub async fn a_sweep_deletes_what_is_past_its_retention<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks = ended(&mut owner, &[at(1), at(2), at(3)]).await;
    let swept = sweep(&store, &owner, AFTER_AN_HOUR, at(100 * 3600)).await;
    let all = Swept { history: 6, dead: 3 };
    assert_eq!(swept, all);
    assert_eq!(owner.dead().await, []);
    for task in tasks.iter().flatten() {
        assert_eq!(owner.history(task.id).await, []);
        assert_eq!(owner.dead_letter(task.fire().id).await, None);
    }
    let counts = owner.counts().await;
    assert_eq!((counts.done, counts.dead, counts.dead_letters), (3, 3, 0));
}

pub async fn a_sweep_returns_how_much_it_deleted_and_updates_the_counts<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let ends: Vec<_> = (1..10).map(|second| at(second * 60)).collect();
    let tasks = ended(&mut owner, &ends).await;
    let swept = sweep(&store, &owner, AFTER_AN_HOUR, at(5 * 60).after(HOUR)).await;
    let mut records = 0;
    for task in tasks.iter().flatten() {
        records += owner.history(task.id).await.len() as u64;
    }
    let letters = owner.dead().await.len() as u64;
    assert_eq!((swept.history, swept.dead), (18 - records, 9 - letters));
    let counts = owner.counts().await;
    assert_eq!(u64::try_from(counts.dead_letters), Ok(letters));
    assert_eq!((counts.done, counts.dead), (9, 9));
}

pub async fn history_and_dead_letters_have_separate_retention_ages<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    ended(&mut owner, &[at(1)]).await;
    let now = at(100 * 3600);
    let keep_dead = Retention { dead_age: Duration::MAX, ..AFTER_AN_HOUR };
    assert_eq!(sweep(&store, &owner, keep_dead, now).await.dead, 0);
    assert_eq!(owner.dead().await.len(), 1);
    let [done, _] = ended(&mut owner, &[at(1)]).await[0].clone();
    let keep_history = Retention { history_age: Duration::MAX, ..AFTER_AN_HOUR };
    assert_eq!(sweep(&store, &owner, keep_history, now).await.history, 0);
    assert_eq!(owner.history(done.id).await.len(), 1);
}

pub async fn a_sweep_never_changes_living_tasks<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(1)).key("a").build();
    let next = next_fire(&task, at(2));
    let paused = owner.task(at(1)).paused().build();
    let other = owner.task(at(3)).namespace("other").build();
    owner.put([&task, &paused, &other]).await;
    owner.apply(vec![die(&task, NOW, Some(&next))]).await;
    let all = Retention { history_age: Duration::ZERO, history_bytes: 0, dead_age: Duration::ZERO };
    sweep(&store, &owner, all, Timestamp::MAX).await;
    assert_eq!(owner.load().await, [next.clone(), other]);
    assert_eq!(owner.get(paused.id).await, Some(paused));
    assert_eq!(owner.find("a").await.map(|head| head.id), Some(next.id));
    assert_eq!(owner.counts().await.accepted(), 2);
    assert_eq!(owner.counts_of(&namespace("other")).await.accepted(), 1);
}

pub async fn history_below_its_size_limit_is_kept<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    ended(&mut owner, &[at(1), at(2)]).await;
    let retention =
        Retention { history_age: Duration::MAX, history_bytes: 1 << 30, dead_age: Duration::MAX };
    let swept = sweep(&store, &owner, retention, Timestamp::MAX).await;
    assert_eq!(swept, Swept::default());
}
