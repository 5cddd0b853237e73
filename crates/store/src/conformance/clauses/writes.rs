//! Storing tasks: put, refile and postpone.

use std::time::Duration;

use punctual_core::{FireEnd, Schedule, Task, TaskState, Version};

use crate::change::Change;
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{
    NOW, at, attempts, due_at, in_state, postpone, refile, rich_task, settle,
};
use crate::conformance::owner::TestOwner;
use crate::query::{Filter, Head, Position};

/// Checks that every read returns the task as it is.
async fn assert_reads_return<S: crate::TaskStore + crate::LeaseStore>(
    owner: &TestOwner<'_, S>,
    task: &Task,
) {
    assert_eq!(owner.get(task.id).await.as_ref(), Some(task));
    assert!(owner.list().await.contains(task), "is listed");
    let loaded = owner.load().await;
    let scheduled = task.state == TaskState::Scheduled;
    assert_eq!(loaded.contains(task), scheduled, "is loaded if scheduled");
    let positions = loaded.iter().filter(|other| other.id == task.id).count();
    assert_eq!(positions, usize::from(scheduled), "has one position in the order");
    if let Some(key) = &task.definition.key {
        assert_eq!(owner.find(key.as_str()).await, Some(Head::of(task)));
    }
}

pub async fn a_new_task_is_read_back_unchanged<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let named = owner.task(at(1)).key("a").label("zone", "eu").build();
    let unnamed = owner.task(at(2)).build();
    let paused = owner.task(at(3)).key("b").paused().build();
    owner.put([&named, &unnamed, &paused]).await;
    for task in [&named, &unnamed, &paused] {
        assert_reads_return(&owner, task).await;
    }
}

pub async fn every_read_returns_a_refiled_task_at_its_new_time<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut task = owner.task(at(50)).key("a").build();
    let other = owner.task(at(50)).build();
    owner.put([&task, &other]).await;
    for second in [90, 10, 50, 49, 51, 10, 10] {
        let moved = due_at(&task, at(second));
        owner.apply(vec![refile(&task, &moved)]).await;
        assert_reads_return(&owner, &moved).await;
        assert_reads_return(&owner, &other).await;
        task = moved;
    }
    assert_eq!(owner.counts().await.scheduled, 2);
}

pub async fn a_refiled_task_has_its_new_attempts_and_version<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(1)).key("a").build();
    owner.put([&task]).await;
    let all = attempts();
    for made in 1..=all.len() {
        let retried = Task {
            fire_at: at(100 + made as u64),
            version: Version::new(made as u64),
            attempts: all[..made].to_vec(),
            ..task.clone()
        };
        owner.apply(vec![refile(&task, &retried)]).await;
        assert_reads_return(&owner, &retried).await;
    }
}

pub async fn a_refiled_task_may_have_an_edited_definition<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let built = owner.task(at(1)).key("a").label("zone", "eu");
    let within = Duration::from_secs(60);
    let edited = built.clone().label("zone", "us");
    let edited = edited.schedule(Schedule::watch(within)).build();
    let task = built.build();
    owner.put([&task]).await;
    let edited = Task { version: task.version.next(), ..edited };
    owner.apply(vec![refile(&task, &edited)]).await;
    assert_reads_return(&owner, &edited).await;
    let by_label = |value: &str| Filter {
        label: Some(("zone".to_owned(), value.to_owned())),
        ..Filter::all(task.definition.namespace.clone())
    };
    assert_eq!(owner.list_by(&by_label("eu"), 9).await, []);
    assert_eq!(owner.list_by(&by_label("us"), 9).await, [edited.clone()]);
}

pub async fn a_task_can_be_paused_and_resumed<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(1)).key("a").build();
    owner.put([&task]).await;
    let paused = in_state(&task, TaskState::Paused);
    let resumed = due_at(&in_state(&paused, TaskState::Scheduled), at(7));
    for (was, now, scheduled) in [(&task, &paused, 0), (&paused, &resumed, 1)] {
        owner.apply(vec![refile(was, now)]).await;
        assert_reads_return(&owner, now).await;
        let counts = owner.counts().await;
        assert_eq!((counts.scheduled, counts.paused), (scheduled, 1 - scheduled));
    }
}

pub async fn postponing_a_task_changes_its_time_in_every_read_and_nothing_else<
    S: StoreUnderTest,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let id = owner.id(at(1));
    let task = Task { version: Version::FIRST, ..rich_task(id) };
    let between = owner.task(at(30)).build();
    owner.put([&task, &between]).await;
    let (postponed, change) = postpone(&task, at(60));
    owner.apply(vec![change]).await;
    assert_reads_return(&owner, &postponed).await;
    assert_eq!(owner.load().await, [between.clone(), postponed.clone()]);
    assert_eq!(owner.list().await, [between, postponed]);
    assert_eq!(owner.counts().await.scheduled, 2);
}

pub async fn a_task_can_be_postponed_many_times<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut watches = [1, 2, 3].map(|second| owner.task(at(second)).build());
    owner.put(&watches).await;
    for round in 1..200 {
        // One batch has several postponements of the same task.
        let mut changes = Vec::new();
        for watch in &mut watches {
            for step in 0..2 {
                let later = watch.fire_at.after(Duration::from_millis(round + step));
                let (postponed, change) = postpone(watch, later);
                *watch = postponed;
                changes.push(change);
            }
        }
        owner.apply(changes).await;
    }
    watches.sort_by_key(Position::of);
    assert_eq!(owner.load().await, watches);
    for watch in &watches {
        assert_reads_return(&owner, watch).await;
    }
    assert_eq!(owner.load_between(Position::START, at(30), 9).await, []);
}

pub async fn a_postponed_task_settles_once<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(1)).key("a").build();
    owner.put([&task]).await;
    let (task, change) = postpone(&task, at(60));
    owner.apply(vec![change]).await;
    owner.apply(vec![settle(&task, FireEnd::Done, at(60))]).await;
    assert_eq!(owner.load().await, []);
    assert_eq!(owner.list().await, []);
    assert_eq!(owner.find("a").await, None);
    assert_eq!(owner.get(task.id).await, None);
    assert_eq!(owner.history(task.id).await.len(), 1);
}

pub async fn a_postponed_task_can_be_refiled_earlier_and_postponed_again<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(10)).key("a").build();
    owner.put([&task]).await;
    let (late, change) = postpone(&task, at(60));
    owner.apply(vec![change]).await;
    // Earlier than the postponed time, then earlier than the first time.
    for second in [30, 5] {
        let early = due_at(&late, at(second));
        owner.apply(vec![refile(&late, &early)]).await;
        assert_reads_return(&owner, &early).await;
        let (again, change) = postpone(&early, at(60));
        owner.apply(vec![change]).await;
        assert_reads_return(&owner, &again).await;
    }
}

pub async fn a_postponed_task_can_be_paused_and_resumed<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(10)).key("a").build();
    owner.put([&task]).await;
    let (late, change) = postpone(&task, at(60));
    let paused = in_state(&late, TaskState::Paused);
    owner.apply(vec![change, refile(&late, &paused)]).await;
    assert_reads_return(&owner, &paused).await;
    let resumed = in_state(&paused, TaskState::Scheduled);
    owner.apply(vec![refile(&paused, &resumed)]).await;
    assert_reads_return(&owner, &resumed).await;
}

pub async fn a_task_put_and_postponed_in_one_batch_is_due_later<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(10)).key("a").build();
    let (late, change) = postpone(&task, at(60));
    owner.apply(vec![Change::Put(task), change]).await;
    assert_reads_return(&owner, &late).await;
}

pub async fn a_change_of_an_unknown_task_changes_no_task<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let stays = owner.task(at(10)).key("a").build();
    owner.put([&stays]).await;
    let [unknown_task, done] = [at(10), at(20)].map(|due| owner.task(due).key("a").build());
    owner.apply(vec![postpone(&unknown_task, at(60)).1]).await;
    let cancelled = settle(&done, FireEnd::Cancelled, NOW);
    let dead = crate::conformance::fixtures::die(&unknown_task, NOW, None);
    owner.apply(vec![cancelled, dead]).await;
    assert_reads_return(&owner, &stays).await;
    assert_eq!(owner.load().await, [stays.clone()]);
    assert_eq!(owner.list().await, [stays]);
    for unknown in [&unknown_task, &done] {
        assert_eq!(owner.get(unknown.id).await, None);
        // The record that came with the change is kept.
        assert_eq!(owner.history(unknown.id).await.len(), 1);
    }
    let letters = owner.dead().await;
    assert_eq!(letters, [crate::conformance::fixtures::letter(&unknown_task, NOW)]);
}

pub async fn postponing_an_ended_task_does_not_restore_it<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(10)).key("a").build();
    owner.put([&task]).await;
    let late = postpone(&task, at(60)).1;
    let settled = settle(&task, FireEnd::Done, NOW);
    owner.apply(vec![settled, late.clone()]).await;
    owner.apply(vec![late]).await;
    assert_eq!(owner.get(task.id).await, None);
    assert_eq!(owner.load().await, []);
    assert_eq!(owner.find("a").await, None);
}

pub async fn get_returns_tasks_in_the_order_of_the_ids<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [put, moved, late, ended, never] =
        [1, 2, 3, 4, 5].map(|second| owner.task(at(second)).build());
    owner.put([&put, &moved, &late, &ended]).await;
    let refiled = due_at(&moved, at(77));
    let (postponed, postponement) = postpone(&late, at(66));
    let changes = vec![refile(&moved, &refiled), postponement, settle(&ended, FireEnd::Done, NOW)];
    owner.apply(changes).await;
    let ids = [never.id, late.id, ended.id, put.id, moved.id, put.id];
    let got = crate::TaskStore::get(&store, owner.state().partition, &ids).await;
    let got = got.expect("reads need no lease");
    let put = Some(put);
    assert_eq!(got, [None, Some(postponed), None, put.clone(), Some(refiled), put]);
    let none = crate::TaskStore::get(&store, owner.state().partition, &[]).await;
    assert_eq!(none.expect("reads need no lease"), []);
}
