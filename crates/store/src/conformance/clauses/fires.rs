//! Fires over all tasks: newest first, by end, key, label and time; and the last fire of a key.

use punctual_core::{
    DeadReason, EndKind, FireEnd, FireRecord, SkipReason, Skipped, Task, Timestamp,
};

use crate::TaskStore;
use crate::change::{Change, Prior};
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{
    answered_task, at, die, namespace, next_fire, partition, settle, settle_with_next, shop,
};
use crate::conformance::owner::TestOwner;
use crate::query::{FireFilter, FirePosition, Retention};

fn ended(task: &Task, end: FireEnd, ended_at: Timestamp) -> FireRecord {
    FireRecord::of(task, end, ended_at)
}

pub async fn fires_are_listed_newest_first_for_any_page_size<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    assert_eq!(owner.fires(&FireFilter::all(shop()), 10).await, []);
    let mut records = Vec::new();
    for number in 0..40u64 {
        let task = owner.task(at(1 + number % 7)).key(&format!("order-{number}")).build();
        // Several end at the same time.
        let ended_at = at(100 + number / 3);
        owner.put([&task]).await;
        owner.apply(vec![settle(&task, FireEnd::Done, ended_at)]).await;
        records.push(ended(&task, FireEnd::Done, ended_at));
    }
    records.sort_by_key(FirePosition::of);
    records.reverse();
    for limit in [1, 3, 7, 40, 100] {
        assert_eq!(owner.fires(&FireFilter::all(shop()), limit).await, records, "pages of {limit}");
    }
}

pub async fn fires_are_selected_by_end_key_label_and_time<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [a, b, c, d] = ["order-1", "order-2", "unit-1", ""].map(|key| (key, owner.id(at(1))));
    let [a, b, c, d] = [a, b, c, d].map(|(key, id)| {
        let builder = crate::conformance::fixtures::task(id);
        let builder = if key.is_empty() { builder } else { builder.key(key) };
        builder.label("zone", if key == "unit-1" { "us" } else { "eu" }).build()
    });
    owner.put([&a, &b, &c, &d]).await;
    let skipped = FireEnd::Skipped(Skipped { fires: 3, until: at(9), why: SkipReason::Overlap });
    owner
        .apply(vec![
            settle(&a, FireEnd::Done, at(10)),
            die(&b, at(11), None),
            settle(&c, FireEnd::Cancelled, at(12)),
            settle(&d, skipped, at(13)),
        ])
        .await;
    let dead = FireEnd::Dead(DeadReason::Exhausted);
    let [a, b, c, d] = [
        ended(&a, FireEnd::Done, at(10)),
        ended(&b, dead, at(11)),
        ended(&c, FireEnd::Cancelled, at(12)),
        ended(&d, skipped, at(13)),
    ];
    let all = || FireFilter::all(shop());
    let label = |value: &str| Some(("zone".to_owned(), value.to_owned()));
    for (filter, want) in [
        (all(), vec![&d, &c, &b, &a]),
        (FireFilter { end: Some(EndKind::Done), ..all() }, vec![&a]),
        (FireFilter { end: Some(EndKind::Dead), ..all() }, vec![&b]),
        (FireFilter { end: Some(EndKind::Cancelled), ..all() }, vec![&c]),
        (FireFilter { end: Some(EndKind::Skipped), ..all() }, vec![&d]),
        (FireFilter { end: Some(EndKind::Replaced), ..all() }, vec![]),
        (FireFilter { key_prefix: "order-".to_owned(), ..all() }, vec![&b, &a]),
        (FireFilter { key_prefix: "order-1".to_owned(), ..all() }, vec![&a]),
        (FireFilter { key_prefix: "order-11".to_owned(), ..all() }, vec![]),
        (
            FireFilter { key_prefix: "order".to_owned(), end: Some(EndKind::Dead), ..all() },
            vec![&b],
        ),
        (FireFilter { label: label("eu"), ..all() }, vec![&d, &b, &a]),
        (FireFilter { label: label("us"), ..all() }, vec![&c]),
        (FireFilter { label: label("mars"), ..all() }, vec![]),
        (FireFilter { from: at(11), to: at(13), ..all() }, vec![&c, &b]),
        (FireFilter { from: at(14), ..all() }, vec![]),
        (FireFilter::all(namespace("other")), vec![]),
    ] {
        for limit in [1, 100] {
            let got = owner.fires(&filter, limit).await;
            assert_eq!(got.iter().collect::<Vec<_>>(), want, "{filter:?}");
        }
    }
}

/// Answers, results, labels and the occasion are read back as they were written.
pub async fn a_record_with_answers_is_read_back_unchanged<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = answered_task(owner.id(at(1)));
    let manual = task.clone().fired_manually(at(3));
    owner.put([&task]).await;
    assert_eq!(owner.get(task.id).await, Some(task.clone()));
    assert_eq!(owner.load().await, [task.clone()]);
    owner.apply(vec![Change::Refile { task: manual.clone(), was: Prior::of(&manual) }]).await;
    let next = next_fire(&task, at(20));
    owner.apply(vec![settle_with_next(&manual, at(4), &next)]).await;
    let record = ended(&manual, FireEnd::Done, at(4));
    assert!(record.result().is_some_and(|result| &result[..] == br#"{"cost":17}"#));
    assert_eq!(owner.history(task.id).await, [record.clone()]);
    assert_eq!(owner.fires(&FireFilter::all(shop()), 10).await, [record.clone()]);
    assert_eq!(owner.last_fire("robot").await, Some(record));
    owner.apply(vec![die(&Task { attempts: task.attempts, ..next }, at(21), None)]).await;
    assert_eq!(owner.dead().await.len(), 1);
}

pub async fn a_fire_that_ends_again_is_listed_once<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(1)).key("a").build();
    owner.put([&task]).await;
    owner.apply(vec![die(&task, at(5), None)]).await;
    let dead = FireFilter { end: Some(EndKind::Dead), ..FireFilter::all(shop()) };
    assert_eq!(owner.fires(&dead, 10).await.len(), 1);
    let redriven = task.clone().redriven(at(6));
    let fire_id = task.fire().id;
    owner.apply(vec![Change::Redrive { fire_id, task: redriven.clone() }]).await;
    assert_eq!(owner.fires(&dead, 10).await.len(), 1, "it has not ended again");
    owner.apply(vec![settle(&redriven, FireEnd::Done, at(7))]).await;
    assert_eq!(owner.fires(&dead, 10).await, []);
    let record = ended(&redriven, FireEnd::Done, at(7));
    assert_eq!(owner.fires(&FireFilter::all(shop()), 10).await, [record.clone()]);
    assert_eq!(owner.last_fire("a").await, Some(record));
}

pub async fn the_last_fire_of_a_key_is_that_of_its_last_task<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    assert_eq!(owner.last_fire("a").await, None);
    for number in 0..5u64 {
        let task = owner.task(at(1)).key("a").build();
        let longer = owner.task(at(1)).key("ab").build();
        owner.put([&task, &longer]).await;
        let before = owner.last_fire("a").await;
        assert_eq!(before.is_some(), number > 0, "that of the task before");
        let end = [FireEnd::Done, FireEnd::Cancelled][usize::from(number % 2 == 0)];
        owner.apply(vec![settle(&task, end, at(10 + number))]).await;
        owner.apply(vec![settle(&longer, FireEnd::Done, at(20 + number))]).await;
        assert_eq!(owner.last_fire("a").await, Some(ended(&task, end, at(10 + number))));
    }
    assert_eq!(owner.last_fire("b").await, None);
    let other = store.last_fires(partition(0), &namespace("other"), &["a", "b"].map(key)).await;
    assert_eq!(other.expect("reads need no lease"), [None, None]);
    let both = store.last_fires(partition(0), &shop(), &["b", "ab"].map(key)).await;
    let both = both.expect("reads need no lease");
    assert_eq!(both.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
}

fn key(text: &str) -> punctual_core::TaskKey {
    crate::conformance::fixtures::key(text)
}

pub async fn a_swept_fire_is_listed_no_longer<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(1)).key("a").build();
    owner.put([&task]).await;
    owner.apply(vec![settle(&task, FireEnd::Done, at(2))]).await;
    let retention =
        Retention { history_age: std::time::Duration::from_secs(60), ..Default::default() };
    let epoch = owner.state().lease.epoch;
    for (now, listed) in [(at(10), 1), (at(10_000), 0)] {
        // A store may need several calls.
        for _ in 0..3 {
            store.sweep(partition(0), epoch, retention, now).await.expect("the owner sweeps");
        }
        assert_eq!(owner.fires(&FireFilter::all(shop()), 10).await.len(), listed);
        assert_eq!(owner.last_fire("a").await.is_some(), listed == 1);
    }
}

pub async fn fires_start_after_a_position_of_any_partition<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut first = TestOwner::first(&store).await;
    let mut second = TestOwner::take(&store, partition(1)).await;
    let mut positions = Vec::new();
    for number in 0..6u64 {
        for owner in [&mut first, &mut second] {
            let task = owner.task(at(1)).build();
            owner.put([&task]).await;
            owner.apply(vec![settle(&task, FireEnd::Done, at(10 + number))]).await;
            positions.push(FirePosition::of(&ended(&task, FireEnd::Done, at(10 + number))));
        }
    }
    positions.sort();
    positions.reverse();
    for after in &positions {
        for (owner, own) in [(&first, partition(0)), (&second, partition(1))] {
            let filter = FireFilter::all(shop());
            let got = owner.fires_after(&filter, Some(*after), 2).await;
            let got: Vec<_> = got.iter().map(FirePosition::of).collect();
            let ours = |it: &&FirePosition| it.fire_id.task.partition() == own && *it < after;
            let want: Vec<_> = positions.iter().filter(ours).copied().collect();
            assert_eq!(got, want);
        }
    }
}
