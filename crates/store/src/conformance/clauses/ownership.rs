//! Ownership, atomicity and repetition: which batches a store accepts.

use std::cell::Cell;

use punctual_core::{Epoch, FireEnd, FireId, PARTITIONS_MAX, PartitionId, Seat, Task};

use crate::change::{Batch, BatchNo, Change, RepairNo};
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{
    NOW, TTL, at, broker, die, epoch, id, key, letter, next_fire, partition, postpone, settle,
    settle_with_next, shop, task,
};
use crate::conformance::owner::{TestOwner, ids};
use crate::error::StoreError;
use crate::query::{Filter, Position, Retention, Swept};
use crate::{LeaseStore, TaskStore};

fn batch(changes: Vec<Change>) -> Batch {
    Batch::new(BatchNo::FIRST, changes)
}

/// Writes and sweeps under each epoch, and checks that each is refused and changes nothing.
async fn assert_fenced<S: TaskStore>(store: &S, epochs: &[Epoch], want: Epoch) {
    let partition = PartitionId::FIRST;
    let unauthorized = task(id(at(1), partition, epoch(99), 1)).key("unauthorized");
    for ours in epochs {
        let answer = store.apply(partition, *ours, batch(vec![unauthorized.clone().put()]));
        match answer.await {
            Err(StoreError::Fenced { current, .. }) => assert_eq!(current, want),
            other => unreachable!("{ours} must be fenced, returned {other:?}"),
        }
        let answer = store.sweep(partition, *ours, Retention::default(), at(9_999_999));
        let answer = answer.await;
        let fenced = matches!(answer, Err(StoreError::Fenced { .. }));
        assert!(fenced, "{ours} may not sweep, returned {answer:?}");
    }
    let found = store.get(partition, &[unauthorized.build().id]).await;
    assert_eq!(found.expect("reads need no lease"), [None]);
}

pub async fn a_partition_without_an_owner_accepts_no_writes<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    assert_fenced(&store, &[Epoch::NONE, epoch(1), Epoch::MAX], Epoch::NONE).await;
}

pub async fn an_older_epoch_is_fenced_and_changes_nothing<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut old = TestOwner::first(&store).await;
    let first = old.task(at(5)).key("a").build();
    old.put([&first]).await;
    let new = TestOwner::first(&store).await;
    let [old, current] = [old, new].map(|owner| owner.state().lease.epoch);
    assert_fenced(&store, &[Epoch::NONE, old], current).await;
    let owner = TestOwner::first(&store).await;
    assert_eq!(owner.load().await, [first]);
    assert_eq!(owner.counts().await.accepted(), 1);
}

pub async fn an_epoch_that_was_never_granted_is_fenced<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let current = TestOwner::first(&store).await.state().lease.epoch;
    let next = current.next().expect("the first is not the last");
    assert_fenced(&store, &[next, Epoch::MAX], current).await;
}

pub async fn a_fenced_batch_changes_no_task_no_letter_and_no_count<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut old = TestOwner::first(&store).await;
    let [living, dead] = [at(5), at(6)].map(|due| old.task(due).key("a").build());
    old.apply(vec![Change::Put(dead.clone()), die(&dead, NOW, None)]).await;
    old.put([&living]).await;
    let new = TestOwner::first(&store).await;
    let counts = new.counts().await;
    let late = vec![
        postpone(&living, at(50)).1,
        settle(&living, FireEnd::Done, NOW),
        Change::DeleteLetter { fire_id: dead.fire().id, namespace: shop() },
    ];
    let answer = old.send(BatchNo::new(3), late).await;
    assert!(matches!(answer, Err(StoreError::Fenced { .. })));
    assert_eq!(new.load().await, [living.clone()]);
    assert_eq!(new.find("a").await.map(|head| head.id), Some(living.id));
    assert_eq!(new.history(living.id).await, []);
    assert_eq!(new.dead().await, [letter(&dead, NOW)]);
    assert_eq!(new.counts().await, counts);
}

pub async fn an_expired_or_released_lease_still_writes_until_another_broker_acquires_the_seat<
    S: StoreUnderTest,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    under_test.pass(&store, TTL).await;
    let [first, second] = [at(1), at(2)].map(|due| owner.task(due).build());
    owner.put([&first]).await;
    let lease = owner.state().lease;
    store.release(&lease).await.expect("the holder may release");
    owner.put([&second]).await;
    assert_eq!(owner.loaded_ids().await, [first.id, second.id]);
    let other = broker("other:1");
    let taken = store.acquire(lease.seat, &other, TTL, NOW).await;
    let current = taken.expect("the seat was released").epoch;
    assert_fenced(&store, &[lease.epoch], current).await;
}

pub async fn the_epoch_of_the_leader_seat_does_not_allow_writes<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let taken = store.acquire(Seat::Leader, &broker("owner:1"), TTL, NOW).await;
    let leader = taken.expect("the seat is free").epoch;
    assert_fenced(&store, &[leader], Epoch::NONE).await;
}

pub async fn partitions_do_not_see_each_other<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut one = TestOwner::take(&store, partition(1)).await;
    let mut two = TestOwner::take(&store, partition(2)).await;
    let a = one.task(at(1)).key("a").build();
    let b = two.task(at(1)).key("a").build();
    let dead = two.task(at(2)).build();
    one.put([&a]).await;
    two.put([&b, &dead]).await;
    two.apply(vec![die(&dead, NOW, None)]).await;
    for (owner, ours, theirs, letters) in [(&one, &a, &b, 0), (&two, &b, &a, 1)] {
        assert_eq!(owner.load().await, [ours.clone()]);
        assert_eq!(owner.list().await, [ours.clone()]);
        assert_eq!(owner.find("a").await.map(|head| head.id), Some(ours.id));
        assert_eq!(owner.get(theirs.id).await, None);
        assert_eq!(owner.dead().await.len(), letters);
        assert_eq!(owner.history(dead.id).await.len(), letters);
        assert_eq!(owner.counts().await.scheduled, 1);
    }
    // Batch numbers are separate too: the first partition is at 2, the second at 3.
    one.apply(vec![settle(&a, FireEnd::Done, NOW)]).await;
    assert_eq!(two.find("a").await.map(|head| head.id), Some(b.id));
    let swept = store.sweep(partition(1), epoch(1), Retention::default(), NOW);
    assert_eq!(swept.await.expect("the owner may sweep"), Swept::default());
}

pub async fn a_partition_that_the_store_does_not_have_is_refused<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let outside = partition(PARTITIONS_MAX - 1);
    let task = id(at(1), outside, epoch(1), 1);
    let fire_id = FireId { task, nominal_at: at(1) };
    let (seat, all) = (Seat::Partition(outside), Filter::all(shop()));
    for result in [
        store.acquire(seat, &broker("owner:1"), TTL, NOW).await.map(drop),
        store.apply(outside, Epoch::NONE, batch(Vec::new())).await,
        store.load(outside, Position::START, at(9), 9).await.map(drop),
        store.find(outside, &shop(), &[key("a")]).await.map(drop),
        store.get(outside, &[task]).await.map(drop),
        store.list(outside, &all, Position::START, 9).await.map(drop),
        store.dead(outside, &shop(), None, 9).await.map(drop),
        store.dead_letters(outside, &[fire_id]).await.map(drop),
        store.history(outside, task, 9).await.map(drop),
        store.counts(outside, &shop()).await.map(drop),
        store.sweep(outside, Epoch::NONE, Retention::default(), NOW).await.map(drop),
    ] {
        let refused =
            matches!(result, Err(StoreError::Outside { partition }) if partition == outside);
        assert!(refused, "returned {result:?}");
    }
}

pub async fn changes_of_a_batch_are_made_in_their_order<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [old, new] = [at(1), at(2)].map(|due| owner.task(due).key("a").build());
    let (postponed, postponement) = postpone(&new, at(9));
    let changes = vec![
        Change::Put(old.clone()),
        settle(&old, FireEnd::Replaced, NOW),
        Change::Put(new),
        postponement,
    ];
    owner.apply(changes).await;
    assert_eq!(owner.load().await, [postponed.clone()]);
    assert_eq!(owner.find("a").await.map(|head| head.id), Some(postponed.id));
    assert_eq!(owner.counts().await.accepted(), 1);
}

pub async fn a_refused_batch_changes_nothing<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let tasks: Vec<_> = (0..10).map(|second| owner.task(at(second)).build()).collect();
    let changes = || tasks.iter().cloned().map(Change::Put).collect();
    let answer = owner.send(BatchNo::new(2), changes()).await;
    assert!(matches!(answer, Err(StoreError::Gap { .. })), "{answer:?}");
    assert_eq!(owner.list().await, []);
    assert_eq!(owner.counts().await.accepted(), 0);
    owner.apply(changes()).await;
    assert_eq!(owner.loaded_ids().await, ids(&tasks));
}

pub async fn no_reader_sees_a_part_of_a_batch<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let mut tasks: Vec<_> = (0..20).map(|_| owner.task(at(0)).build()).collect();
    owner.put(&tasks).await;
    let reader = TestOwner::resume(&store, owner.state());
    let done = Cell::new(false);
    // All tasks move to the next second together, alternately by postponing and by settling.
    let writes = async {
        for round in 1..100 {
            let mut changes = Vec::new();
            for task in &mut tasks {
                let (next, change) = if round % 2 == 0 {
                    postpone(task, at(round))
                } else {
                    let next = next_fire(task, at(round));
                    let change = settle_with_next(task, NOW, &next);
                    (next, change)
                };
                *task = next;
                changes.push(change);
            }
            owner.apply(changes).await;
            tokio::task::yield_now().await;
        }
        done.set(true);
    };
    let reads = async {
        while !done.get() {
            // One load is one read. A list may be several, and may see several batches.
            let loaded = reader.load().await;
            assert_eq!(loaded.len(), 20, "each has one position");
            let together = loaded.iter().all(|task| task.fire_at == loaded[0].fire_at);
            assert!(together, "some have moved, others have not");
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(writes, reads);
}

pub async fn the_last_batch_sent_again_returns_ok_and_changes_nothing<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [first, second] = [at(1), at(2)].map(|due| owner.task(due).build());
    owner.put([&first]).await;
    for _ in 0..2 {
        let again = owner.send(BatchNo::FIRST, vec![Change::Put(first.clone())]);
        again.await.expect("the batch was made before");
        assert_eq!(owner.counts().await.scheduled, 1);
    }
    owner.apply(vec![settle(&first, FireEnd::Done, NOW)]).await;
    let again = owner.send(BatchNo::new(2), vec![settle(&first, FireEnd::Done, NOW)]);
    again.await.expect("the batch was made before");
    assert_eq!(owner.counts().await.done, 1);
    assert_eq!(owner.history(first.id).await.len(), 1);
    // The store compares numbers, not contents.
    let other = owner.send(BatchNo::new(2), vec![Change::Put(second)]).await;
    other.expect("this number was made");
    assert_eq!(owner.load().await, []);
}

pub async fn any_other_number_than_the_next_is_a_gap<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let task = owner.task(at(1)).build();
    for (made, refused) in [(0, vec![0, 2, 3]), (1, vec![0, 3, 4]), (2, vec![0, 1, 4])] {
        for number in refused {
            let given = BatchNo::new(number);
            match owner.send(given, vec![Change::Put(task.clone())]).await {
                Err(StoreError::Gap { expected, given: got, .. }) => {
                    assert_eq!((expected, got), (BatchNo::new(made + 1), given));
                }
                other => unreachable!("{number} after {made} returned {other:?}"),
            }
        }
        assert_eq!(owner.list().await, []);
        owner.apply(Vec::new()).await;
    }
}

pub async fn batch_numbers_start_at_one_in_each_epoch<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut old = TestOwner::first(&store).await;
    let task = old.task(at(1)).build();
    old.put([&task]).await;
    let mut new = TestOwner::first(&store).await;
    let answer = new.send(BatchNo::new(2), Vec::new()).await;
    assert!(matches!(answer, Err(StoreError::Gap { .. })), "{answer:?}");
    // The first batch of this epoch is not a repetition of the first batch of the last epoch.
    new.apply(vec![settle(&task, FireEnd::Done, NOW)]).await;
    assert_eq!(new.load().await, []);
}

pub async fn a_repair_fences_batches_that_were_sent_before_it<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let (first, late) = (owner.task(at(1)).build(), owner.task(at(2)).build());
    owner.put([&first]).await;
    let (one, two) = (RepairNo::NONE.next(), RepairNo::NONE.next().next());
    let batch = |number, repair, task: &Task| {
        Batch::new(BatchNo::new(number), vec![Change::Put(task.clone())]).in_repair(repair)
    };
    // A refused batch begins no repair.
    let refused = owner.send_batch(batch(3, two, &late)).await;
    assert!(matches!(refused, Err(StoreError::Gap { .. })), "{refused:?}");
    // A batch that is sent again begins one, and is made once.
    owner.send_batch(batch(1, one, &first)).await.expect("made before");
    for number in [1, 2, 3] {
        let fenced = owner.send_batch(batch(number, RepairNo::NONE, &late)).await;
        assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{number}: {fenced:?}");
    }
    assert_eq!(owner.load().await, [first.clone()]);
    // So does a new batch.
    owner.send_batch(batch(2, two, &late)).await.expect("the next batch");
    let fenced = owner.send_batch(batch(3, one, &late)).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
    assert_eq!(owner.load().await, [first, late]);
    // The next epoch has repaired nothing.
    TestOwner::first(&store).await.apply(Vec::new()).await;
}

pub async fn an_empty_batch_is_accepted<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    owner.apply(Vec::new()).await;
    owner.apply(Vec::new()).await;
    assert_eq!(owner.state().number, BatchNo::new(3));
}
