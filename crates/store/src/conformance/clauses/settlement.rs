//! The ends of fires and tasks: settle, cancel, replace, dead letters, redrive.

use punctual_core::{DeadLetter, DeadReason, FireEnd, FireRecord, Task, TaskState};

use crate::change::{Change, Prior};
use crate::conformance::fixtures::{
    NOW, at, attempts, die, in_state, letter, namespace, next_fire, partition, refile, rich_task,
    settle, settle_with_next, shop,
};
use crate::conformance::owner::{OwnerState, TestOwner};
use crate::conformance::{PARTITIONS, StoreUnderTest};
use crate::query::Head;
use crate::{LeaseStore, TaskStore};

pub async fn a_settled_task_is_removed_and_its_key_is_free<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for end in [FireEnd::Done, FireEnd::Cancelled] {
        for state in [TaskState::Scheduled, TaskState::Paused] {
            let task = in_state(&owner.task(at(1)).key("a").build(), state);
            owner.put([&task]).await;
            owner.apply(vec![settle(&task, end, at(2))]).await;
            assert_eq!(owner.get(task.id).await, None);
            assert_eq!(owner.find("a").await, None);
            assert_eq!(owner.load().await, []);
            assert_eq!(owner.list().await, []);
            let record = FireRecord::of(&task, end, at(2));
            assert_eq!(owner.history(task.id).await, [record]);
        }
    }
    let counts = owner.counts().await;
    assert_eq!((counts.done, counts.cancelled, counts.accepted()), (2, 2, 4));
}

pub async fn a_task_settled_with_a_next_fire_continues_under_its_id_and_key<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut task = owner.task(at(10)).key("a").build();
    let between = owner.task(at(15)).build();
    owner.put([&task, &between]).await;
    for second in [20, 30, 40] {
        let next = next_fire(&task, at(second));
        owner.apply(vec![settle_with_next(&task, at(second - 9), &next)]).await;
        task = next;
        assert_eq!(owner.load().await, [between.clone(), task.clone()]);
        assert_eq!(owner.find("a").await, Some(Head::of(&task)));
        assert_eq!(owner.get(task.id).await, Some(task.clone()));
    }
    assert_eq!(owner.history(task.id).await.len(), 3);
    assert_eq!(owner.counts().await.scheduled, 2);
    assert_eq!(owner.counts().await.done, 0);
}

pub async fn a_task_may_continue_paused<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(10)).key("a").build();
    owner.put([&task]).await;
    let next = in_state(&next_fire(&task, at(20)), TaskState::Paused);
    owner.apply(vec![settle_with_next(&task, at(11), &next)]).await;
    assert_eq!(owner.load().await, []);
    assert_eq!(owner.list().await, [next]);
    assert_eq!(owner.counts().await.paused, 1);
}

/// A watch that has fired stays in the store without a due time until it is touched.
pub async fn a_watch_may_stay_done_or_dead_and_be_scheduled_again<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for (silent, name) in [(TaskState::Done, "a"), (TaskState::Dead, "b")] {
        let task = owner.task(at(10)).key(name).build();
        owner.put([&task]).await;
        let fired = in_state(&task, silent);
        owner.apply(vec![settle_with_next(&task, at(11), &fired)]).await;
        assert_eq!(owner.load().await, []);
        assert_eq!(owner.find(name).await, Some(Head::of(&fired)));
        assert_eq!(owner.get(task.id).await, Some(fired.clone()));
        assert_eq!(owner.list().await, [fired.clone()]);
        let counts = owner.counts().await;
        assert_eq!((counts.scheduled, counts.done + counts.dead), (0, 1));
        let armed = in_state(&next_fire(&fired, at(99)), TaskState::Scheduled);
        owner.apply(vec![refile(&fired, &armed)]).await;
        assert_eq!(owner.load().await, [armed.clone()]);
        assert_eq!(owner.counts().await.scheduled, 1);
        owner.apply(vec![refile(&armed, &fired), settle(&fired, FireEnd::Cancelled, at(12))]).await;
        assert_eq!(owner.find(name).await, None);
        assert_eq!(owner.list().await, []);
        let counts = owner.counts().await;
        assert_eq!((counts.done, counts.dead, counts.scheduled), (0, 0, 0));
    }
    assert_eq!(owner.counts().await.cancelled, 2);
}

/// An at-most-once task continues when a fire is claimed. The outcome of that fire no longer
/// changes the task.
pub async fn settling_a_fire_that_left_its_task_does_not_change_the_task<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let first = owner.task(at(10)).key("a").build();
    owner.put([&first]).await;
    let second = next_fire(&first, at(20));
    owner.apply(vec![die(&first, at(10), Some(&second))]).await;
    let third = next_fire(&second, at(30));
    owner.apply(vec![die(&second, at(20), Some(&third))]).await;
    let counts = owner.counts().await;
    assert_eq!((counts.scheduled, counts.dead, counts.dead_letters), (1, 0, 2));
    let (was, next) = (Prior::of(&second).in_state(TaskState::Firing), None);
    let forget = |task: &Task| Change::DeleteLetter { fire_id: task.fire().id, namespace: shop() };
    let record = FireRecord::of(&first, FireEnd::Done, at(40));
    let done = Change::Settle { record: record.clone(), next: next.clone(), was };
    owner.apply(vec![forget(&first), done]).await;
    let dead = Change::Dead { letter: letter(&second, at(41)), next, was };
    owner.apply(vec![forget(&second), dead]).await;
    assert_eq!(owner.load().await, [third.clone()]);
    assert_eq!(owner.find("a").await, Some(Head::of(&third)));
    assert_eq!(owner.get(third.id).await, Some(third.clone()));
    let history = owner.history(third.id).await;
    assert_eq!(history.len(), 2, "the known end replaces the unknown one");
    assert_eq!(history[1], record);
    let counts = owner.counts().await;
    assert_eq!((counts.scheduled, counts.dead_letters, counts.accepted()), (1, 1, 1));
}

pub async fn history_is_newest_first_and_limited<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut task = owner.task(at(0)).build();
    let other = owner.task(at(0)).build();
    owner.put([&task, &other]).await;
    owner.apply(vec![settle(&other, FireEnd::Done, at(3))]).await;
    let mut records = Vec::new();
    for second in 1..20 {
        // Ordered by nominal time, not by the end.
        let ended_at = at(1000 - second);
        records.insert(0, FireRecord::of(&task, FireEnd::Done, ended_at));
        let next = next_fire(&task, at(second));
        owner.apply(vec![settle_with_next(&task, ended_at, &next)]).await;
        task = next;
    }
    for limit in [0, 1, 5, 19, 100] {
        let kept = owner.history_of(task.id, limit).await;
        assert_eq!(kept, records[..limit.min(19)], "limit {limit}");
    }
    let never = owner.id(at(0));
    assert_eq!(owner.history(never).await, []);
}

pub async fn a_record_keeps_every_end_and_outcome<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for end in [FireEnd::Done, FireEnd::Cancelled, FireEnd::Replaced] {
        let id = owner.id(at(1));
        let task = rich_task(id);
        owner.put([&task]).await;
        owner.apply(vec![settle(&task, end, at(9))]).await;
        let record = FireRecord::of(&task, end, at(9));
        assert_eq!(record.attempts, attempts());
        assert_eq!(owner.history(id).await, [record]);
    }
}

pub async fn a_replaced_task_is_removed_and_its_key_names_the_new_one<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut old = owner.task(at(10)).key("a").build();
    owner.put([&old]).await;
    for second in [20, 5, 20] {
        let new = owner.task(at(second)).key("a").build();
        let replaced = settle(&old, FireEnd::Replaced, NOW);
        owner.apply(vec![replaced, Change::Put(new.clone())]).await;
        assert_eq!(owner.find("a").await, Some(Head::of(&new)));
        assert_eq!(owner.get(old.id).await, None);
        assert_eq!(owner.load().await, [new.clone()]);
        let record = FireRecord::of(&old, FireEnd::Replaced, NOW);
        assert_eq!(owner.history(old.id).await, [record]);
        let counts = owner.counts().await;
        assert_eq!((counts.scheduled, counts.accepted()), (1, 1));
        old = new;
    }
}

pub async fn a_key_can_be_cancelled_and_reused_in_one_batch<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [old, new] = [at(10), at(20)].map(|due| owner.task(due).key("a").build());
    owner.put([&old]).await;
    let cancelled = settle(&old, FireEnd::Cancelled, NOW);
    owner.apply(vec![cancelled, Change::Put(new.clone())]).await;
    assert_eq!(owner.find("a").await, Some(Head::of(&new)));
    assert_eq!(owner.get(old.id).await, None);
    let counts = owner.counts().await;
    assert_eq!((counts.scheduled, counts.cancelled), (1, 1));
}

pub async fn a_dead_task_leaves_a_letter_and_a_record<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut letters = Vec::new();
    for reason in
        [DeadReason::Exhausted, DeadReason::Refused, DeadReason::Expired, DeadReason::Unknown]
    {
        let id = owner.id(at(1));
        let task = rich_task(id);
        owner.put([&task]).await;
        let mut letter = letter(&task, at(5));
        letter.reason = reason;
        let change = Change::Dead { letter: letter.clone(), next: None, was: Prior::of(&task) };
        owner.apply(vec![change]).await;
        assert_eq!(owner.dead_letter(letter.fire_id()).await.as_ref(), Some(&letter));
        letters.push(Some(letter));
        let record = FireRecord::of(&task, FireEnd::Dead(reason), at(5));
        assert_eq!(owner.history(id).await, [record]);
        assert_eq!(owner.get(id).await, None);
        assert_eq!(owner.find("geräte/halle 3/Ω").await, None);
    }
    assert_eq!(owner.load().await, []);
    let counts = owner.counts().await;
    assert_eq!((counts.dead, counts.dead_letters, counts.accepted()), (4, 4, 4));

    // Many at once, in the order of the fires, which is not that of the ids.
    letters.reverse();
    let missing = owner.task(at(2)).build().fire().id;
    let mut fire_ids: Vec<_> = letters.iter().flatten().map(DeadLetter::fire_id).collect();
    fire_ids.insert(1, missing);
    letters.insert(1, None);
    assert_eq!(owner.dead_letters(&fire_ids).await, letters);
    assert_eq!(owner.dead_letters(&[]).await, []);
}

pub async fn a_task_may_continue_after_a_dead_fire<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(10)).key("a").build();
    owner.put([&task]).await;
    let next = next_fire(&task, at(20));
    let last = next_fire(&task, at(30));
    owner.apply(vec![die(&task, at(11), Some(&next))]).await;
    owner.apply(vec![die(&next, at(21), Some(&last))]).await;
    assert_eq!(owner.load().await, [last.clone()]);
    assert_eq!(owner.find("a").await, Some(Head::of(&last)));
    let letters = [letter(&task, at(11)), letter(&next, at(21))];
    assert_eq!(owner.dead().await, letters);
    let counts = owner.counts().await;
    assert_eq!((counts.scheduled, counts.dead), (1, 0));
    assert_eq!(counts.dead_letters, 2);
}

pub async fn dead_letters_are_listed_in_pages_by_fire_id<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut letters = Vec::new();
    for number in 0..25u64 {
        let name = if number % 3 == 0 { "shop" } else { "other" };
        let task = owner.task(at(40 - number)).namespace(name).build();
        let next = next_fire(&task, at(100));
        owner.put([&task]).await;
        owner.apply(vec![die(&task, NOW, Some(&next))]).await;
        owner.apply(vec![die(&next, NOW, None)]).await;
        letters.extend([letter(&task, NOW), letter(&next, NOW)]);
    }
    letters.sort_by_key(punctual_core::DeadLetter::fire_id);
    for name in ["shop", "other"] {
        let namespace = namespace(name);
        let mut want = letters.clone();
        want.retain(|letter| letter.task.definition.namespace == namespace);
        for limit in [1, 2, 7, 17, 18, 100] {
            assert_eq!(owner.dead_of(&namespace, limit).await, want, "by {limit}");
        }
    }
    assert_eq!(owner.dead_of(&namespace("unused"), 9).await, []);
}

/// Fills all partitions with dead letters whose fire ids alternate between them.
pub(super) async fn dead_in_all_partitions<S: TaskStore + LeaseStore>(
    store: &S,
) -> Vec<(OwnerState, Vec<DeadLetter>)> {
    let mut all = Vec::new();
    for number in 0..PARTITIONS {
        let mut owner = TestOwner::take(store, partition(number)).await;
        let mut letters = Vec::new();
        for second in 0..10 {
            let task = owner.task(at(second * 4 + u64::from(number))).build();
            owner.put([&task]).await;
            owner.apply(vec![die(&task, NOW, None)]).await;
            letters.push(letter(&task, NOW));
        }
        all.push((owner.state(), letters));
    }
    all
}

/// A page over all partitions continues in each of them after the same fire, which is of one of
/// them.
pub(super) async fn assert_dead_after_any_fire<S: TaskStore + LeaseStore>(
    store: &S,
    all: &[(OwnerState, Vec<DeadLetter>)],
) {
    let fires = all.iter().flat_map(|(_, letters)| letters.iter().map(DeadLetter::fire_id));
    for after in fires {
        for (state, letters) in all {
            let owner = TestOwner::resume(store, state.clone());
            let mut want = letters.clone();
            want.retain(|letter| letter.fire_id() > after);
            let listed = owner.dead_after(&shop(), Some(after), 3).await;
            assert_eq!(listed, want, "{} after {after}", state.partition);
        }
    }
}

pub async fn dead_letters_are_listed_after_a_fire_of_any_partition<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let all = dead_in_all_partitions(&store).await;
    assert_dead_after_any_fire(&store, &all).await;
}

pub async fn redriving_removes_the_letter_and_restores_the_task_under_its_key<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [task, other] = [at(10), at(11)].map(|due| owner.task(due).key("a").build());
    let task = Task { attempts: attempts(), ..task };
    owner.put([&task]).await;
    owner.apply(vec![die(&task, at(11), None)]).await;
    // Another task may have had the key since.
    owner.apply(vec![Change::Put(other.clone()), settle(&other, FireEnd::Done, NOW)]).await;
    let back = Task {
        fire_at: at(99),
        attempts: Vec::new(),
        version: task.version.next(),
        ..task.clone()
    };
    let fire_id = task.fire().id;
    let redrive = Change::Redrive { fire_id, task: back.clone() };
    owner.apply(vec![redrive]).await;
    assert_eq!(owner.dead().await, []);
    assert_eq!(owner.dead_letter(fire_id).await, None);
    assert_eq!(owner.load().await, [back.clone()]);
    assert_eq!(owner.get(task.id).await, Some(back.clone()));
    assert_eq!(owner.find("a").await, Some(Head::of(&back)));
    let counts = owner.counts().await;
    assert_eq!((counts.scheduled, counts.done, counts.dead), (1, 1, 0));
    assert_eq!(counts.dead_letters, 0);
}

/// A redriven fire is the same fire: history has its last end.
pub async fn the_record_of_a_redriven_fire_replaces_the_earlier_one<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(10)).build();
    owner.put([&task]).await;
    owner.apply(vec![die(&task, at(11), None)]).await;
    let redrive = Change::Redrive { fire_id: task.fire().id, task: task.clone() };
    owner.apply(vec![redrive]).await;
    owner.apply(vec![settle(&task, FireEnd::Done, at(12))]).await;
    let record = FireRecord::of(&task, FireEnd::Done, at(12));
    assert_eq!(owner.history(task.id).await, [record]);
}

pub async fn forgetting_a_letter_removes_nothing_else<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(10)).key("a").build();
    let next = next_fire(&task, at(20));
    owner.put([&task]).await;
    owner.apply(vec![die(&task, at(11), Some(&next))]).await;
    owner.apply(vec![die(&next, at(21), None)]).await;
    let forget = Change::DeleteLetter { fire_id: task.fire().id, namespace: shop() };
    owner.apply(vec![forget]).await;
    assert_eq!(owner.dead().await, [letter(&next, at(21))]);
    assert_eq!(owner.dead_letter(task.fire().id).await, None);
    assert_eq!(owner.history(task.id).await.len(), 2);
    let counts = owner.counts().await;
    assert_eq!((counts.dead, counts.dead_letters), (1, 1));
}
