//! Values that another program changed: as little as possible is affected.

use punctual_core::{BrokerId, FireEnd, Seat};
use punctual_store::conformance::fixtures::{
    NOW, TTL, at, die, id, namespace, partition, settle, shop, task,
};
use punctual_store::conformance::owner::TestOwner;
use punctual_store::conformance::{StoreUnderTest, run};
use punctual_store::{
    Batch, BatchNo, Change, DueMinute, DueSteps, Filter, FireFilter, LeaseStore, Position,
    StoreError, TaskStore,
};

use crate::subject::MysqlSubject;

#[test]
fn a_damaged_row_is_left_out_of_lists_and_named_by_other_reads() {
    run(async {
        let subject = MysqlSubject::new();
        let store = subject.open().await;
        let p = partition(0);
        let lease = store.acquire(Seat::Partition(p), &BrokerId::new("a:1"), TTL, NOW).await;
        let epoch = lease.unwrap().epoch;
        let [good, bad, done] = [1, 2, 3].map(|number| task(id(at(10), p, epoch, number)).build());
        let changes = vec![
            Change::Put(good.clone()),
            Change::Put(bad.clone()),
            Change::Put(done.clone()),
            settle(&done, FireEnd::Done, NOW),
        ];
        store.apply(p, epoch, Batch::new(BatchNo::FIRST, changes)).await.unwrap();
        let number = bad.id.as_u128();
        subject.sql("UPDATE `Shop-1_fire` SET record = x'07'").await;
        let damage = format!("UPDATE `Shop-1_task` SET body = x'00ff' WHERE id = x'{number:032x}'");
        subject.sql(&damage).await;
        let loaded = store.load(p, Position::START, at(100), 10).await.unwrap();
        assert_eq!(loaded, [good.clone()]);
        let listed = store.list(p, &Filter::all(shop()), Position::START, 10).await.unwrap();
        assert_eq!((listed.items, listed.next), (vec![good.clone()], None));
        assert_eq!(store.get(p, &[good.id]).await.unwrap(), [Some(good)]);
        let Err(StoreError::Damaged(read)) = store.get(p, &[bad.id]).await else {
            panic!("the damaged row is not named");
        };
        // The place is a condition that an operator can use as it is.
        let condition = read.place.strip_prefix("table `Shop-1_task`, ").unwrap();
        let condition = condition.replace(", ", " AND ");
        let found = subject.sql(&format!("SELECT 1 FROM `Shop-1_task` WHERE {condition}")).await;
        assert_eq!(found.len(), 1, "{condition}");
        let fires = store.fires(p, &FireFilter::all(shop()), None, 10).await;
        assert!(matches!(fires, Err(StoreError::Damaged(_))), "{fires:?}");
        assert_eq!(store.damaged_values(), 2);
        // The value stays until a change removes it.
        let cancel = vec![settle(&bad, FireEnd::Cancelled, NOW)];
        store.apply(p, epoch, Batch::new(BatchNo::FIRST.next(), cancel)).await.unwrap();
        assert_eq!(store.get(p, &[bad.id]).await.unwrap(), [None]);
    });
}

#[test]
fn a_damaged_count_is_named_and_leaves_those_of_other_namespaces() {
    run(async {
        let subject = MysqlSubject::new();
        let store = subject.open().await;
        let mut owner = TestOwner::first(&store).await;
        let mut changes = Vec::new();
        for name in ["other", "shop"] {
            let [lives, dies] = [10, 10].map(|at_second| owner.task(at(at_second)));
            let [lives, dies] = [lives, dies].map(|task| task.namespace(name).build());
            changes.extend([Change::Put(lives), Change::Put(dies.clone()), die(&dies, NOW, None)]);
        }
        // The differences of the first batch are folded; those of the second are not.
        owner.apply(changes).await;
        let task = owner.task(at(10)).build();
        owner.put([&task]).await;
        let p = partition(0);
        let minute = DueMinute::of(at(10)).get();
        let steps = DueSteps::new(vec![DueMinute::new(minute), DueMinute::new(minute + 60)]);
        let steps = steps.unwrap();
        let counts = async |name| store.due_counts(p, &namespace(name), &steps).await;
        let groups = async |name| store.letter_groups(p, &namespace(name)).await;
        subject.sql("UPDATE `Shop-1_total` SET value = x'ff' WHERE ns = 'other'").await;
        for damaged in [counts("other").await.map(drop), groups("other").await.map(drop)] {
            let Err(StoreError::Damaged(damage)) = damaged else { panic!("{damaged:?}") };
            assert!(damage.place.contains("total") && damage.place.contains("ns = "), "{damage}");
        }
        assert_eq!(counts("shop").await.unwrap().tasks, [2]);
        assert_eq!(groups("shop").await.unwrap()[0].letters.count, 1);
        // The row of a batch has the differences of all namespaces.
        subject.sql("UPDATE `Shop-1_difference` SET value = x'07'").await;
        let Err(StoreError::Damaged(damage)) = counts("shop").await else { panic!("not damaged") };
        assert!(damage.place.contains("difference"), "{damage}");
        // A fold leaves it, and adds all others.
        let again = subject.open().await;
        let mut resumed = TestOwner::resume(&again, owner.state());
        let task = resumed.task(at(10)).build();
        resumed.put([&task]).await;
        subject.sql("DELETE FROM `Shop-1_difference` WHERE value = x'07'").await;
        assert_eq!(resumed.due_counts_of(&shop(), &steps).await, [2]);
        let rows = subject.sql("SELECT COUNT(*) FROM `Shop-1_difference`").await;
        assert_eq!(rows, [["0"]], "the others were folded");
    });
}
