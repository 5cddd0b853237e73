//! Durability: acknowledged changes survive closing and opening the store, and a crash.
//!
//! Each clause fills a partition, reads everything, opens the store again and reads the same.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::{
    DeadLetter, DeadReason, EndKind, FireEnd, FireId, FireRecord, Lease, Payload, Seat, Task,
    TaskId, TaskState,
};

use super::settlement::{assert_dead_after_any_fire, dead_in_all_partitions};
use crate::change::{BatchNo, Change};
use crate::conformance::fixtures::{
    NOW, TTL, at, broker, die, due_at, in_state, next_fire, partition, postpone, refile, rich_task,
    settle, settle_with_next, shop,
};
use crate::conformance::owner::{OwnerState, TestOwner};
use crate::conformance::{PARTITIONS, StoreUnderTest};
use crate::counts::Counts;
use crate::due::{DueMinute, DueSteps};
use crate::error::StoreError;
use crate::letter_groups::CountedGroup;
use crate::query::{Filter, FireFilter, FirePosition, Head, KindFilter, Retention};
use crate::{LeaseStore, TaskStore};

/// How a test ends the store.
#[derive(Debug, Clone, Copy)]
enum StoreEnd {
    Close,
    Crash,
}

const BOTH: [StoreEnd; 2] = [StoreEnd::Close, StoreEnd::Crash];

async fn reopen<S: StoreUnderTest>(under_test: &S, store: S::Store, end: StoreEnd) -> S::Store {
    assert!(S::DURABLE, "these clauses are for durable stores");
    match end {
        StoreEnd::Close => under_test.close(store).await,
        StoreEnd::Crash => under_test.crash(store, 0).await,
    }
    under_test.open().await
}

/// Everything that can be read of a partition whose tasks have these ids.
#[derive(Debug, PartialEq)]
struct PartitionContents {
    loaded: Vec<Task>,
    listed: Vec<Task>,
    got: Vec<Option<Task>>,
    found: Vec<Option<Head>>,
    dead: Vec<DeadLetter>,
    history: Vec<Vec<FireRecord>>,
    counts: Counts,
    due: Vec<i64>,
    letter_groups: Vec<CountedGroup>,
    series: Vec<Task>,
    holder: Option<Lease>,
}

const KEYS: [&str; 4] = ["a", "b", "c", "geräte/halle 3/Ω"];

async fn contents<S: TaskStore + LeaseStore>(
    store: &S,
    state: &OwnerState,
    ids: &[TaskId],
) -> PartitionContents {
    let owner = TestOwner::resume(store, state.clone());
    let mut found = Vec::new();
    for key in KEYS {
        found.push(owner.find(key).await);
    }
    let mut got = Vec::new();
    let mut history = Vec::new();
    for id in ids {
        got.push(owner.get(*id).await);
        history.push(owner.history(*id).await);
    }
    let series = Filter { kind: Some(KindFilter::Series), ..Filter::all(shop()) };
    PartitionContents {
        loaded: owner.load().await,
        listed: owner.list().await,
        got,
        found,
        dead: owner.dead().await,
        history,
        counts: owner.counts().await,
        due: owner.due_counts(&every_step()).await,
        letter_groups: owner.letter_groups_of(&shop()).await,
        series: owner.list_by(&series, 2).await,
        holder: store.holder(Seat::Partition(state.partition)).await.expect("reads need no lease"),
    }
}

/// Each second minute of an hour, and everything before and after.
fn every_step() -> DueSteps {
    let now = DueMinute::of(NOW).get();
    let minutes = (0..30).map(|number| DueMinute::new(now + 2 * number));
    let all = [DueMinute::FIRST].into_iter().chain(minutes).chain([DueMinute::new(u32::MAX)]);
    DueSteps::new(all.collect()).expect("they ascend")
}

/// Makes every kind of change. Returns the ids of the tasks.
async fn make_every_change<S: TaskStore + LeaseStore>(owner: &mut TestOwner<'_, S>) -> Vec<TaskId> {
    let rich = rich_task(owner.id(at(1)));
    let watch = owner.task(at(2)).key("a").build();
    let paused = owner.task(at(3)).key("b").build();
    let every = owner.task(at(4)).key("c").build();
    let [retried, done, dead, redriven, cancelled] =
        [5, 6, 7, 8, 9].map(|second| owner.task(at(second)).build());
    let all = [&rich, &watch, &paused, &every, &retried, &done, &dead, &redriven, &cancelled];
    owner.put(all).await;
    let (late, first) = postpone(&watch, at(60));
    owner.apply(vec![first, postpone(&late, at(90)).1]).await;
    let resumed = next_fire(&every, at(40));
    owner
        .apply(vec![
            refile(&paused, &in_state(&paused, TaskState::Paused)),
            settle_with_next(&every, at(5), &resumed),
            refile(&retried, &due_at(&retried, at(1))),
            settle(&done, FireEnd::Done, at(7)),
            die(&dead, at(8), None),
            die(&redriven, at(9), None),
            settle(&cancelled, FireEnd::Cancelled, at(9)),
        ])
        .await;
    let fire_id = redriven.fire().id;
    let task = due_at(&redriven, at(33));
    owner.apply(vec![Change::Redrive { fire_id, task }]).await;
    let series = owner.task(at(10)).key("d").build();
    let next = next_fire(&series, at(50));
    owner.apply(vec![Change::Put(series.clone()), die(&series, at(11), Some(&next))]).await;
    let apart = series.redriven_apart(owner.id(at(12)), at(12));
    let forget = Change::DeleteLetter { fire_id: series.fire().id, namespace: shop() };
    owner.apply(vec![forget, Change::Put(apart.clone())]).await;
    all.iter().map(|task| task.id).chain([series.id, apart.id]).collect()
}

pub async fn every_acknowledged_change_is_there_after_a_restart<S: StoreUnderTest>(under_test: &S) {
    let mut store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let ids = make_every_change(&mut owner).await;
    let state = owner.state();
    let before = contents(&store, &state, &ids).await;
    assert_eq!(before.loaded.len(), 7);
    for end in [StoreEnd::Crash, StoreEnd::Close, StoreEnd::Close, StoreEnd::Crash] {
        store = reopen(under_test, store, end).await;
        assert_eq!(contents(&store, &state, &ids).await, before, "{end:?}");
    }
}

pub async fn an_owner_continues_after_a_restart<S: StoreUnderTest>(under_test: &S) {
    let mut store = under_test.open().await;
    let mut state = TestOwner::first(&store).await.state();
    let mut tasks = Vec::new();
    for round in 0..10 {
        let mut owner = TestOwner::resume(&store, state);
        let task = owner.task(at(10 - round)).build();
        owner.put([&task]).await;
        tasks.insert(0, task);
        assert_eq!(owner.load().await, tasks);
        state = owner.state();
        store = reopen(under_test, store, BOTH[usize::from(round % 2 == 0)]).await;
    }
    assert_eq!(TestOwner::resume(&store, state).load().await, tasks);
}

pub async fn dead_letters_of_all_partitions_survive_a_restart<S: StoreUnderTest>(under_test: &S) {
    let mut store = under_test.open().await;
    let all = dead_in_all_partitions(&store).await;
    for end in [StoreEnd::Crash, StoreEnd::Close, StoreEnd::Close] {
        store = reopen(under_test, store, end).await;
        assert_dead_after_any_fire(&store, &all).await;
    }
}

/// Ends fires in every way, and dead ones again after they were redriven. Adds them to `records`.
async fn end_fires<S: TaskStore + LeaseStore>(
    owner: &mut TestOwner<'_, S>,
    round: u64,
    dead: &mut Vec<Task>,
    records: &mut BTreeMap<FireId, FireRecord>,
) {
    let ended_at = |number: u64| at(100 * round + number / 2);
    let mut keep = |task: &Task, end, ended_at| {
        records.insert(task.fire().id, FireRecord::of(task, end, ended_at));
    };
    for (number, task) in (0..).zip(std::mem::take(dead)) {
        let fire_id = task.fire().id;
        let redriven = task.redriven(at(100 * round));
        owner.apply(vec![Change::Redrive { fire_id, task: redriven.clone() }]).await;
        if number % 2 == 0 {
            owner.apply(vec![settle(&redriven, FireEnd::Done, ended_at(number))]).await;
            keep(&redriven, FireEnd::Done, ended_at(number));
        }
    }
    for number in 0..12 {
        let task = owner.task(at(round + number)).key(&format!("key-{}", number % 5)).build();
        let ended_at = ended_at(20 + number);
        owner.put([&task]).await;
        if number % 3 == 0 {
            owner.apply(vec![die(&task, ended_at, None)]).await;
            keep(&task, FireEnd::Dead(DeadReason::Exhausted), ended_at);
            dead.push(task);
        } else {
            owner.apply(vec![settle(&task, FireEnd::Cancelled, ended_at)]).await;
            keep(&task, FireEnd::Cancelled, ended_at);
        }
    }
}

async fn assert_fires<S: TaskStore + LeaseStore>(
    owner: &TestOwner<'_, S>,
    records: &BTreeMap<FireId, FireRecord>,
) {
    let mut newest: Vec<&FireRecord> = records.values().collect();
    newest.sort_by_key(|record| std::cmp::Reverse(FirePosition::of(record)));
    let all = || FireFilter::all(shop());
    for filter in [
        all(),
        FireFilter { end: Some(EndKind::Dead), ..all() },
        FireFilter { key_prefix: "key-".to_owned(), ..all() },
        FireFilter { key_prefix: "key-3".to_owned(), end: Some(EndKind::Cancelled), ..all() },
        FireFilter { from: at(120), to: at(330), ..all() },
    ] {
        let want: Vec<_> = newest.iter().filter(|record| filter.matches(record)).collect();
        for limit in [1, 7, 1000] {
            let got = owner.fires(&filter, limit).await;
            assert_eq!(
                got.iter().collect::<Vec<_>>(),
                want.iter().map(|r| **r).collect::<Vec<_>>()
            );
        }
    }
    for number in 0..6 {
        let name = format!("key-{number}");
        let of_key =
            |record: &&&FireRecord| record.key.as_ref().is_some_and(|k| k.as_str() == name);
        assert_eq!(owner.last_fire(&name).await.as_ref(), newest.iter().find(of_key).copied());
    }
}

pub async fn fires_of_all_partitions_survive_a_restart<S: StoreUnderTest>(under_test: &S) {
    let mut store = under_test.open().await;
    let mut states = Vec::new();
    for number in 0..PARTITIONS {
        let owner = TestOwner::take(&store, partition(number)).await;
        states.push((owner.state(), Vec::new(), BTreeMap::new()));
    }
    let ends = [StoreEnd::Close, StoreEnd::Close, StoreEnd::Crash, StoreEnd::Close];
    for (round, end) in (1..).zip(ends) {
        for (state, dead, records) in &mut states {
            let mut owner = TestOwner::resume(&store, state.clone());
            end_fires(&mut owner, round, dead, records).await;
            assert_fires(&owner, records).await;
            *state = owner.state();
        }
        store = reopen(under_test, store, end).await;
        for (state, _, records) in &states {
            assert_fires(&TestOwner::resume(&store, state.clone()), records).await;
        }
    }
}

pub async fn batch_numbers_survive_a_restart<S: StoreUnderTest>(under_test: &S) {
    for end in BOTH {
        let store = under_test.open().await;
        let mut owner = TestOwner::first(&store).await;
        let task = owner.task(at(1)).build();
        owner.apply(Vec::new()).await;
        owner.put([&task]).await;
        let state = owner.state();
        let scheduled = owner.counts().await.scheduled;
        let store = reopen(under_test, store, end).await;
        let mut owner = TestOwner::resume(&store, state);
        // The last batch again: its reply may have been lost with the process.
        let repeated = owner.send(BatchNo::new(2), vec![Change::Put(task.clone())]);
        repeated.await.expect("the batch was made before");
        assert_eq!(owner.counts().await.scheduled, scheduled);
        for number in [1, 4] {
            let answer = owner.send(BatchNo::new(number), Vec::new()).await;
            assert!(matches!(answer, Err(StoreError::Gap { .. })), "{answer:?}");
        }
        owner.apply(vec![settle(&task, FireEnd::Done, NOW)]).await;
        under_test.close(store).await;
    }
}

pub async fn epochs_keep_growing_and_fencing_after_a_restart<S: StoreUnderTest>(under_test: &S) {
    let mut store = under_test.open().await;
    let mut last: Option<OwnerState> = None;
    for end in [StoreEnd::Crash, StoreEnd::Close, StoreEnd::Crash] {
        let owner = TestOwner::first(&store).await;
        let state = owner.state();
        if let Some(last) = &last {
            assert!(state.lease.epoch > last.lease.epoch);
        }
        store = reopen(under_test, store, end).await;
        if let Some(last) = last {
            let old = TestOwner::resume(&store, last);
            let answer = old.send(BatchNo::FIRST, Vec::new()).await;
            assert!(matches!(answer, Err(StoreError::Fenced { .. })), "{answer:?}");
        }
        let mut owner = TestOwner::resume(&store, state);
        owner.apply(Vec::new()).await;
        last = Some(owner.state());
    }
}

pub async fn leases_survive_a_restart<S: StoreUnderTest>(under_test: &S) {
    let mut store = under_test.open().await;
    let taken = store.acquire(Seat::Leader, &broker("a:1"), TTL, NOW).await;
    let lease = taken.expect("the seat is free");
    for end in BOTH {
        store = reopen(under_test, store, end).await;
        let holder = store.holder(Seat::Leader).await.expect("reads need no lease");
        assert_eq!(holder, Some(lease.clone()));
        let refused = store.acquire(Seat::Leader, &broker("b:1"), TTL, at(9)).await;
        assert!(matches!(refused, Err(StoreError::Held { .. })), "{refused:?}");
    }
    let renewed = store.renew(&lease, TTL, at(5)).await.expect("the lease is current");
    store = reopen(under_test, store, StoreEnd::Crash).await;
    let holder = store.holder(Seat::Leader).await.expect("reads need no lease");
    assert_eq!(holder, Some(renewed.clone()));
    store.release(&renewed).await.expect("the lease is current");
    store = reopen(under_test, store, StoreEnd::Crash).await;
    let next = store.acquire(Seat::Leader, &broker("b:1"), TTL, at(6)).await;
    assert!(next.expect("the seat was released").epoch > lease.epoch);
}

pub async fn namespaces_of_all_partitions_survive_a_restart<S: StoreUnderTest>(under_test: &S) {
    let mut store = under_test.open().await;
    let mut states = Vec::new();
    for number in 0..PARTITIONS {
        let mut owner = TestOwner::take(&store, partition(number)).await;
        let own = owner.task(at(1)).namespace(&format!("only-{number}")).build();
        let ended = owner.task(at(2)).namespace("ended").build();
        owner.put([&own, &ended]).await;
        owner.apply(vec![settle(&ended, FireEnd::Done, NOW)]).await;
        states.push(owner.state());
    }
    for end in [StoreEnd::Crash, StoreEnd::Close, StoreEnd::Crash] {
        store = reopen(under_test, store, end).await;
        for (number, state) in states.iter().enumerate() {
            let owner = TestOwner::resume(&store, state.clone());
            let listed = owner.namespaces_after(None, 1).await;
            let names: Vec<_> = listed.iter().map(|counted| counted.name.as_str()).collect();
            assert_eq!(names, ["ended", &format!("only-{number}")]);
            assert_eq!([listed[0].counts.done, listed[1].counts.scheduled], [1, 1]);
        }
    }
}

pub async fn many_postponements_survive_a_restart<S: StoreUnderTest>(under_test: &S) {
    let mut store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut watches: Vec<_> = (0..20).map(|second| owner.task(at(second)).build()).collect();
    owner.put(&watches).await;
    let mut state = owner.state();
    for round in 1..20 {
        let mut owner = TestOwner::resume(&store, state);
        let mut changes = Vec::new();
        for (step, watch) in (1..).zip(&mut watches) {
            let later = watch.fire_at.after(Duration::from_secs(round * step % 7 + 1));
            let (postponed, change) = postpone(watch, later);
            *watch = postponed;
            changes.push(change);
        }
        owner.apply(changes).await;
        state = owner.state();
        if round % 6 == 0 {
            store = reopen(under_test, store, BOTH[usize::from(round == 6)]).await;
        }
    }
    watches.sort_by_key(crate::query::Position::of);
    store = reopen(under_test, store, StoreEnd::Crash).await;
    let owner = TestOwner::resume(&store, state);
    assert_eq!(owner.load().await, watches);
    assert_eq!(owner.list().await, watches);
}

pub async fn counts_and_living_tasks_survive_a_sweep_and_a_restart<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let ids = make_every_change(&mut owner).await;
    let state = owner.state();
    let all = Retention {
        history_age: Duration::from_secs(60),
        history_bytes: u64::MAX,
        dead_age: Duration::from_secs(60),
    };
    let (epoch, now) = (state.lease.epoch, at(1_000_000));
    let swept = store.sweep(state.partition, epoch, all, now).await;
    swept.expect("the owner may sweep");
    let before = contents(&store, &state, &ids).await;
    let store = reopen(under_test, store, StoreEnd::Close).await;
    assert_eq!(contents(&store, &state, &ids).await, before);
}

pub async fn large_batches_survive_a_restart<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::take(&store, partition(2)).await;
    let mut tasks = Vec::new();
    for number in 0..3000u64 {
        let size = if number % 500 == 0 { 200_000 } else { 10 };
        let payload = Payload::Json(vec![b'7'; size].into());
        tasks.push(owner.task(at(number)).payload(payload).build());
    }
    owner.put(&tasks).await;
    let state = owner.state();
    let store = reopen(under_test, store, StoreEnd::Crash).await;
    let owner = TestOwner::resume(&store, state);
    assert_eq!(owner.load().await, tasks);
    assert_eq!(owner.counts().await.scheduled, 3000);
}
