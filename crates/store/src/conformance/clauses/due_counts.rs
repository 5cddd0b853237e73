//! Due counts, the index of series, and the groups of dead letters: what they count, and that they
//! stay right through every change.

use std::collections::VecDeque;
use std::time::Duration;

use punctual_core::{
    DeadLetter, DeadReason, FireEnd, FireId, LetterGroup, Schedule, Task, TaskKind, TaskState,
    Timestamp,
};

use crate::change::{Change, Prior};
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{
    NOW, at, die, due_at, every_minute, in_state, namespace, next_fire, partition, postpone,
    refile, settle, settle_with_next, shop,
};
use crate::conformance::owner::TestOwner;
use crate::due::{DueMinute, DueSteps, minute_of};
use crate::letter_groups::LetterGroups;
use crate::query::{Filter, KindFilter, Retention};

const MINUTE: Duration = Duration::from_secs(60);

/// The start of the minute, some minutes after [`NOW`].
fn minute(number: u32) -> DueMinute {
    DueMinute::new(DueMinute::of(NOW).get() + number)
}

fn steps(minutes: &[u32]) -> DueSteps {
    DueSteps::new(minutes.iter().map(|number| minute(*number)).collect()).expect("they ascend")
}

fn in_minutes(number: u32) -> Timestamp {
    minute(number).start()
}

pub async fn due_counts_have_the_tasks_of_each_step<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut other = TestOwner::take(&store, partition(1)).await;
    let watch = Schedule::watch(Duration::from_secs(60));
    let mut tasks = Vec::new();
    for number in [0, 1, 1, 59, 60, 61, 180, 1440, 100_000] {
        tasks.push(owner.task(in_minutes(number)).build());
    }
    tasks.push(owner.task(in_minutes(61)).schedule(watch).build());
    // These do not count: paused tasks, series, other namespaces and other partitions.
    tasks.push(owner.task(in_minutes(1)).paused().build());
    tasks.push(owner.task(in_minutes(1)).schedule(every_minute()).build());
    tasks.push(owner.task(in_minutes(1)).namespace("other").build());
    tasks.push(owner.task(in_minutes(1)).namespace("shop-1").build());
    owner.put(&tasks).await;
    let elsewhere = other.task(in_minutes(1)).build();
    other.put([&elsewhere]).await;
    for (bounds, want) in [
        (&[0, 1, 2, 60, 62][..], &[1, 2, 1, 3][..]),
        (&[2, 59], &[0]),
        (&[0, 60, 120, 180, 240, 1440], &[4, 3, 0, 1, 0]),
        (&[60, 1440, 1441, 200_000], &[4, 1, 1]),
        (&[30, 90, 3000], &[4, 2]),
    ] {
        assert_eq!(owner.due_counts(&steps(bounds)).await, want, "{bounds:?}");
    }
    let all = vec![DueMinute::FIRST, minute(0), DueMinute::new(u32::MAX)];
    assert_eq!(owner.due_counts(&DueSteps::new(all).expect("they ascend")).await, [0, 10]);
    assert_eq!(other.due_counts(&steps(&[0, 60])).await, [1]);
}

pub async fn due_counts_follow_a_task_through_its_life<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let steps = steps(&[0, 60, 120, 180, 240]);
    let task = owner.task(in_minutes(1)).key("a").build();
    let (later, postponed) = postpone(&task, in_minutes(61));
    let retried = due_at(&later, in_minutes(130));
    let paused = in_state(&retried, TaskState::Paused);
    let resumed = due_at(&in_state(&paused, TaskState::Scheduled), in_minutes(190));
    let next = next_fire(&resumed, in_minutes(10));
    let dead = die(&next, NOW, None);
    let redriven = due_at(&next.clone().redriven(NOW), in_minutes(70));
    let redrive = Change::Redrive { fire_id: next.fire().id, task: redriven.clone() };
    for (change, want) in [
        (Change::Put(task.clone()), [1, 0, 0, 0]),
        (postponed, [0, 1, 0, 0]),
        (refile(&later, &retried), [0, 0, 1, 0]),
        (refile(&retried, &paused), [0, 0, 0, 0]),
        (refile(&paused, &resumed), [0, 0, 0, 1]),
        (settle_with_next(&resumed, NOW, &next), [1, 0, 0, 0]),
        (dead, [0, 0, 0, 0]),
        (redrive, [0, 1, 0, 0]),
        (settle(&redriven, FireEnd::Cancelled, NOW), [0, 0, 0, 0]),
    ] {
        let shown = format!("{change:?}");
        owner.apply(vec![change]).await;
        assert_eq!(owner.due_counts(&steps).await, want, "{shown}");
    }
    // The same in one batch: what remains of it is nothing.
    let again = owner.task(in_minutes(1)).build();
    let (moved, postponed) = postpone(&again, in_minutes(200));
    let end = settle(&moved, FireEnd::Done, NOW);
    owner.apply(vec![Change::Put(again), postponed, end]).await;
    assert_eq!(owner.due_counts(&steps).await, [0, 0, 0, 0]);
}

pub async fn series_are_listed_among_many_other_tasks<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let every = Schedule::every(Duration::from_secs(7));
    let (mut tasks, mut series) = (Vec::new(), Vec::new());
    for second in 0..20 {
        let once = owner.task(at(second)).build();
        let cron = owner.task(at(second)).schedule(every_minute()).build();
        let other = owner.task(at(second)).namespace("shop-1").schedule(every.clone()).build();
        let every = owner.task(at(second)).schedule(every.clone()).label("a", "b").build();
        let every = if second % 5 == 0 { in_state(&every, TaskState::Paused) } else { every };
        series.extend([cron.clone(), every.clone()]);
        tasks.extend([once, other, every, cron]);
    }
    owner.put(&tasks).await;
    // One moves, one ends, one is not a series any more, and one is redriven.
    let moved = next_fire(&series[3], at(50));
    let once = Task { definition: tasks[0].definition.clone(), ..series[6].clone() };
    let redriven = due_at(&series[8].clone().redriven(NOW), at(60));
    owner
        .apply(vec![
            settle_with_next(&series[3], NOW, &moved),
            settle(&series[4], FireEnd::Cancelled, NOW),
            refile(&series[6], &once),
            die(&series[8], NOW, None),
        ])
        .await;
    let fire_id = series[8].fire().id;
    owner.apply(vec![Change::Redrive { fire_id, task: redriven.clone() }]).await;
    for index in [8, 6, 4, 3] {
        series.remove(index);
    }
    series.extend([moved, redriven]);
    let by_kind = |kind| Filter { kind: Some(kind), ..Filter::all(shop()) };
    let kind_of = |task: &Task| task.definition.schedule.kind();
    for kind in
        [KindFilter::Series, KindFilter::Only(TaskKind::Cron), KindFilter::Only(TaskKind::Every)]
    {
        let want = series.iter().filter(|task| kind.matches(kind_of(task)));
        for filter in [
            by_kind(kind),
            Filter { state: Some(TaskState::Paused), ..by_kind(kind) },
            Filter { from: at(3), to: at(51), ..by_kind(kind) },
            Filter { label: Some(("a".to_owned(), "b".to_owned())), ..by_kind(kind) },
        ] {
            let mut want: Vec<_> = want.clone().filter(|task| filter.matches(task)).collect();
            want.sort_by_key(|task| (task.fire_at, task.id));
            for limit in [1, 3, 1000] {
                let listed = owner.list_by(&filter, limit).await;
                assert_eq!(listed.iter().collect::<Vec<_>>(), want, "{filter:?} by {limit}");
            }
        }
    }
    let once = owner.list_by(&by_kind(KindFilter::Only(TaskKind::Once)), 7).await;
    assert_eq!(once.len(), 21);
    assert_eq!(owner.list_by(&by_kind(KindFilter::Only(TaskKind::Watch)), 7).await, []);
    let other = Filter { namespace: namespace("shop-1"), ..by_kind(KindFilter::Series) };
    assert_eq!(owner.list_by(&other, 9).await.len(), 20);
}

pub async fn dead_letters_count_in_their_group_until_they_are_gone<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut letters = Vec::new();
    for (second, reason) in [
        (1, DeadReason::Exhausted),
        (2, DeadReason::Expired),
        (3, DeadReason::Expired),
        (4, DeadReason::Expired),
        (5, DeadReason::Expired),
        (6, DeadReason::Unknown),
    ] {
        let task = owner.task(at(second)).build();
        owner.put([&task]).await;
        let (died_at, was) = (at(second), Prior::of(&task));
        let letter = DeadLetter { task, died_at, reason };
        owner.apply(vec![Change::Dead { letter: letter.clone(), next: None, was }]).await;
        letters.push(letter);
    }
    let other = owner.task(at(1)).namespace("shop-1").build();
    owner.put([&other]).await;
    owner.apply(vec![die(&other, at(1), None)]).await;
    let group = letters[1].group();
    let counted = owner.letter_group(&group).await.expect("the group has letters");
    let times = (counted.first_at, counted.last_at);
    assert_eq!((counted.count, times), (4, (at(2), at(5))));
    assert_eq!(counted.example, Some(letters[4].fire_id()));
    assert_eq!(owner.letter_group_counts().await, [1, 1, 4]);
    let delete =
        |letter: &DeadLetter| Change::DeleteLetter { fire_id: letter.fire_id(), namespace: shop() };
    // Twice: a letter that is gone is not counted again.
    owner.apply(vec![delete(&letters[4])]).await;
    owner.apply(vec![delete(&letters[4])]).await;
    let counted = owner.letter_group(&group).await.expect("the group has letters");
    assert_eq!(counted.count, 3);
    assert_ne!(counted.example, Some(letters[4].fire_id()));
    let (fire_id, task) = (letters[3].fire_id(), letters[3].task.clone().redriven(NOW));
    owner.apply(vec![Change::Redrive { fire_id, task }]).await;
    assert_eq!(owner.letter_group_counts().await, [1, 1, 2]);
    // A claim whose outcome is known now: the letter is replaced in one batch.
    let claim = &letters[5];
    let refused = DeadLetter { reason: DeadReason::Refused, ..claim.clone() };
    let was = Prior::of(&claim.task).in_state(TaskState::Dead);
    let known = Change::Dead { letter: refused.clone(), next: None, was };
    owner.apply(vec![delete(claim), known]).await;
    assert_eq!(owner.letter_group(&claim.group()).await, None);
    assert_eq!(owner.letter_group(&refused.group()).await.map(|it| it.count), Some(1));
    let dead_age = Duration::from_secs(100);
    let retention = Retention { dead_age, ..Retention::default() };
    while owner.sweep(retention, at(103)).await > 0 {}
    assert_eq!(owner.letter_group_counts().await, [1], "those of 1, 2 and 3 s are past their age");
}

pub async fn groups_of_dead_letters_are_bounded<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let max = LetterGroups::COUNT_MAX as u64;
    let mut letters = Vec::new();
    for number in 0..max + 5 {
        let queue = punctual_core::Queue::new(&format!("queue-{number}")).expect("a valid queue");
        let target = punctual_core::Target::Queue(queue);
        let task = owner.task(at(number)).define(|it| it.target = target).build();
        owner.put([&task]).await;
        owner.apply(vec![die(&task, at(number), None)]).await;
        letters.push(task);
    }
    let others = owner.letter_group(&LetterGroup::other()).await.expect("there are others");
    assert_eq!((others.count, others.first_at, others.last_at), (5, at(max), at(max + 4)));
    assert_eq!(owner.letter_group_counts().await.len(), LetterGroups::COUNT_MAX + 1);
    let delete = |task: &Task| Change::DeleteLetter { fire_id: task.fire().id, namespace: shop() };
    owner.apply(letters.iter().map(delete).collect()).await;
    assert_eq!(owner.letter_group_counts().await, []);
}

/// So many batches that a store which keeps differences adds them to its counts several times.
const SMALL_BATCHES: u32 = 1200;

pub async fn counts_stay_right_through_many_small_batches<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut living: VecDeque<Task> = VecDeque::new();
    let mut letters: VecDeque<(FireId, LetterGroup)> = VecDeque::new();
    for number in 0..SMALL_BATCHES {
        let task = owner.task(in_minutes(number * 7 % 240)).build();
        let mut changes = vec![Change::Put(task.clone())];
        living.push_back(task);
        match number % 8 {
            1 | 3 => {
                let moved = living.pop_front().expect("one was put");
                let (moved, postponed) = postpone(&moved, moved.fire_at.after(MINUTE * 90));
                living.push_back(moved);
                changes.push(postponed);
            }
            2 | 4 | 5 => {
                let task = living.pop_front().expect("one was put");
                changes.push(settle(&task, FireEnd::Done, NOW));
            }
            6 => {
                let task = living.pop_front().expect("one was put");
                let reason = match number % 3 {
                    0 => DeadReason::Expired,
                    _ => DeadReason::Unknown,
                };
                let was = Prior::of(&task);
                let letter = DeadLetter { task, died_at: NOW, reason };
                letters.push_back((letter.fire_id(), letter.group()));
                changes.push(Change::Dead { letter, next: None, was });
            }
            7 if letters.len() > 20 => {
                let (fire_id, _) = letters.pop_front().expect("more than 20");
                changes.push(Change::DeleteLetter { fire_id, namespace: shop() });
            }
            _ => {}
        }
        owner.apply(changes).await;
    }
    let steps = steps(&[0, 30, 60, 120, 200, 1000]);
    let mut want = vec![0; steps.count()];
    for minute in living.iter().filter_map(minute_of) {
        want[steps.step_of(minute).expect("all are due within a day")] += 1;
    }
    assert_eq!(owner.due_counts(&steps).await, want);
    for reason in [DeadReason::Expired, DeadReason::Unknown] {
        let group = DeadLetter { task: living[0].clone(), died_at: NOW, reason }.group();
        let count = letters.iter().filter(|(_, other)| *other == group).count() as u64;
        let counted = owner.letter_group(&group).await;
        assert_eq!(counted.map(|it| it.count), Some(count), "{reason:?}");
    }
}
