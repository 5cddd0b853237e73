//! Redriven fires of tasks that continued without them: tasks of their own, and the same fires.

use punctual_core::{FireEnd, FireRecord, Task};

use crate::change::Change;
use crate::conformance::StoreUnderTest;
use crate::conformance::fixtures::{at, attempts, die, letter, next_fire, refile, settle, shop};
use crate::conformance::owner::TestOwner;
use crate::query::Head;
use crate::{LeaseStore, TaskStore};

/// Stores a series whose first fire died, and redrives that fire. Returns the fire before it died,
/// the series before its next fire, and the redriven fire.
async fn redriven<S: TaskStore + LeaseStore>(owner: &mut TestOwner<'_, S>) -> [Task; 3] {
    let first = Task { attempts: attempts(), ..owner.task(at(10)).key("a").build() };
    let second = next_fire(&first, at(20));
    owner.put([&first]).await;
    owner.apply(vec![die(&first, at(11), Some(&second))]).await;
    let apart = first.redriven_apart(owner.id(at(15)), at(15));
    let forget = Change::DeleteLetter { fire_id: first.fire().id, namespace: shop() };
    owner.apply(vec![forget, Change::Put(apart.clone())]).await;
    [first, second, apart]
}

pub async fn a_redriven_fire_of_a_series_is_a_task_of_its_own<S: StoreUnderTest>(under_test: &S) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [first, second, apart] = redriven(&mut owner).await;
    assert_eq!(apart.fire().id, first.fire().id);
    assert_eq!(owner.load().await, [apart.clone(), second.clone()]);
    assert_eq!(owner.list().await, [apart.clone(), second.clone()]);
    assert_eq!(owner.get(apart.id).await, Some(apart.clone()));
    assert_eq!(owner.find("a").await, Some(Head::of(&second)), "the key names the series");
    assert_eq!((owner.dead().await, owner.dead_letter(first.fire().id).await), (vec![], None));
    let counts = owner.counts().await;
    assert_eq!((counts.scheduled, counts.dead, counts.dead_letters), (2, 0, 0));
}

pub async fn a_redriven_fire_of_a_series_ends_in_the_history_of_the_series<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    for end in [FireEnd::Done, FireEnd::Cancelled] {
        let [first, second, apart] = redriven(&mut owner).await;
        let retried = Task { fire_at: at(16), ..apart.clone() };
        owner.apply(vec![refile(&apart, &retried)]).await;
        owner.apply(vec![settle(&retried, end, at(17))]).await;
        let record = FireRecord::of(&retried, end, at(17));
        assert_eq!((record.fire_id, &record.key), (first.fire().id, &first.definition.key));
        assert_eq!(owner.history(first.id).await, [record], "instead of the earlier record");
        assert_eq!(owner.history(apart.id).await, []);
        assert_eq!(owner.get(apart.id).await, None);
        assert_eq!(owner.load().await, [second.clone()]);
        assert_eq!(owner.find("a").await, Some(Head::of(&second)), "its key is not freed");
        assert_eq!(owner.get(second.id).await, Some(second.clone()));
        owner.apply(vec![settle(&second, FireEnd::Cancelled, at(18))]).await;
    }
    let counts = owner.counts().await;
    assert_eq!((counts.scheduled, counts.done, counts.cancelled), (0, 1, 3));
}

pub async fn a_redriven_fire_of_a_series_that_dies_again_is_a_letter_of_the_series<
    S: StoreUnderTest,
>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let [first, second, mut apart] = redriven(&mut owner).await;
    let fire_id = first.fire().id;
    for round in 0..3 {
        let died_at = at(30 + round);
        owner.apply(vec![die(&apart, died_at, None)]).await;
        assert_eq!(owner.dead().await, [letter(&apart, died_at)]);
        assert_eq!(owner.dead_letter(fire_id).await, Some(letter(&apart, died_at)));
        let records = owner.history(first.id).await;
        assert_eq!((records.len(), records[0].ended_at), (1, died_at), "one record per fire");
        assert_eq!(owner.load().await, [second.clone()]);
        let counts = owner.counts().await;
        assert_eq!((counts.scheduled, counts.dead, counts.dead_letters), (1, 1, 1));
        apart = apart.redriven(died_at);
        owner.apply(vec![Change::Redrive { fire_id, task: apart.clone() }]).await;
        assert_eq!((owner.dead().await, owner.dead_letter(fire_id).await), (vec![], None));
        assert_eq!(owner.get(apart.id).await, Some(apart.clone()));
        let counts = owner.counts().await;
        assert_eq!((counts.scheduled, counts.dead, counts.dead_letters), (2, 0, 0));
    }
    assert_eq!(owner.find("a").await, Some(Head::of(&second)));
}

/// The task of the fire may have ended with it, or in the same batch.
pub async fn a_redriven_fire_of_a_series_that_has_ended_has_one_record<S: StoreUnderTest>(
    under_test: &S,
) {
    let store = under_test.open().await;
    let mut owner = TestOwner::first(&store).await;
    let last = owner.task(at(10)).key("a").build();
    owner.put([&last]).await;
    owner.apply(vec![die(&last, at(11), None)]).await;
    let apart = last.redriven_apart(owner.id(at(15)), at(15));
    let forget = Change::DeleteLetter { fire_id: last.fire().id, namespace: shop() };
    owner.apply(vec![forget, Change::Put(apart.clone())]).await;
    owner.apply(vec![settle(&apart, FireEnd::Done, at(16))]).await;
    let record = FireRecord::of(&apart, FireEnd::Done, at(16));
    assert_eq!(owner.history(last.id).await, [record]);
    assert_eq!((owner.get(last.id).await, owner.get(apart.id).await), (None, None));
    let [first, second, apart] = redriven(&mut owner).await;
    let cancelled = settle(&second, FireEnd::Cancelled, at(17));
    owner.apply(vec![cancelled, settle(&apart, FireEnd::Done, at(18))]).await;
    let ends: Vec<_> = owner.history(first.id).await.iter().map(|record| record.end).collect();
    assert_eq!(ends, [FireEnd::Cancelled, FireEnd::Done]);
    assert_eq!((owner.find("a").await, owner.list().await), (None, vec![]));
}
