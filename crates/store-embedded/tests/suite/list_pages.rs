//! Pages of a list: what one page examines depends on the page, not on the number of tasks.
//!
//! Counted in entries, rows and names, not in time: `StoreStats::looked_at`.

use std::path::Path;
use std::sync::Arc;

use punctual_core::{DeadLetter, FireId, Partitions, Payload, Task, TaskState};
use punctual_store::conformance::fixtures::{
    at, broker, die, id, in_state, partition, postpone, refile, shop, task,
};
use punctual_store::conformance::{fixtures::NOW, fixtures::TTL, run};
use punctual_store::{Batch, BatchNo, Change, Filter, LeaseStore, Position, TaskStore};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};

const LIMIT: usize = 10;
/// The number of watches in two stores.
const WATCHES: [u64; 2] = [2_000, 6_000];

/// The number of dead letters in two stores.
const LETTERS: [u64; 2] = [2_000, 6_000];
/// What a page of [`LIMIT`] dead letters may examine: 32 rows of the catalog, and 32 in memory.
const LETTER_ROWS_MAX: u64 = 64;

struct PageFixture {
    store: EmbeddedStore,
    epoch: punctual_core::Epoch,
    batch: BatchNo,
}

impl PageFixture {
    /// Opens a store and owns its first partition.
    async fn open(dir: &Path, partitions: Partitions) -> Self {
        let options =
            EmbeddedOptions { journal_file_bytes: 16 << 20, ..EmbeddedOptions::new(partitions) };
        let (store, _) = EmbeddedStore::open(dir, options).unwrap();
        let seat = punctual_core::Seat::Partition(partition(0));
        let epoch = store.acquire(seat, &broker("a"), TTL, NOW).await.unwrap().epoch;
        Self { store, epoch, batch: BatchNo::FIRST }
    }

    async fn apply(&mut self, changes: Vec<Change>) {
        for changes in changes.chunks(1000) {
            let batch = Batch::new(self.batch, changes.to_vec());
            self.store.apply(partition(0), self.epoch, batch).await.unwrap();
            self.batch = self.batch.next();
        }
    }

    /// Makes dead letters, not in their order. Returns their fires in order.
    async fn make_letters(&mut self, count: u64) -> Vec<FireId> {
        let make = |n: u64| {
            let due = at(10_000 + n * 7919 % count);
            task(id(due, partition(0), self.epoch, n)).build()
        };
        let tasks: Vec<Task> = (0..count).map(make).collect();
        self.apply(tasks.iter().map(|task| die(task, NOW, None)).collect()).await;
        let mut fire_ids: Vec<FireId> = tasks.iter().map(|task| task.fire().id).collect();
        fire_ids.sort_unstable();
        fire_ids
    }

    async fn delete_letters(&mut self, fire_ids: impl IntoIterator<Item = FireId>) {
        let delete = |fire_id| Change::DeleteLetter { fire_id, namespace: shop() };
        self.apply(fire_ids.into_iter().map(delete).collect()).await;
    }

    /// The fires of a page of dead letters, where the next begins, and how many rows were examined.
    async fn dead_page(&self, after: Option<FireId>) -> (Vec<FireId>, Option<FireId>, u64) {
        let before = self.store.stats().unwrap().looked_at;
        let page = self.store.dead(partition(0), &shop(), after, LIMIT).await.unwrap();
        let fire_ids = page.items.iter().map(DeadLetter::fire_id).collect();
        (fire_ids, page.next, self.store.stats().unwrap().looked_at - before)
    }

    /// Checks pages of dead letters at several positions.
    async fn check_dead_pages(&self, expected: &[FireId], what: &str) {
        for start in [0, expected.len() / 3, expected.len() - LIMIT / 2] {
            let mut after = start.checked_sub(1).map(|last| expected[last]);
            for some in expected[start..].chunks(LIMIT).take(4) {
                let (fire_ids, next, examined) = self.dead_page(after).await;
                assert_eq!(fire_ids, some, "{what}, from {start} of {}", expected.len());
                assert!((1..=LETTER_ROWS_MAX).contains(&examined), "{what}: {examined} examined");
                after = next;
            }
        }
    }

    /// A page, and how much was examined for it.
    async fn page(&self, filter: &Filter, after: Position) -> (Vec<Task>, Option<Position>, u64) {
        let before = self.store.stats().unwrap().looked_at;
        let page = self.store.list(partition(0), filter, after, LIMIT).await.unwrap();
        (page.items, page.next, self.store.stats().unwrap().looked_at - before)
    }

    /// Checks pages at several positions, of everything and with filters. Returns how much was
    /// examined for each.
    async fn check(&self, expected: &[Task], what: &str) -> Vec<u64> {
        let mut examined = Vec::new();
        let all = Filter::all(shop());
        for start in [0, expected.len() / 3, expected.len() - 50] {
            let mut after =
                if start == 0 { Position::START } else { Position::of(&expected[start - 1]) };
            for some in expected[start..].chunks(LIMIT).take(4) {
                let (tasks, next, this_page) = self.page(&all, after).await;
                assert_eq!(tasks, some, "{what}, from {start}");
                examined.push(this_page);
                after = next.unwrap();
            }
        }
        let paused = Filter { state: Some(TaskState::Paused), ..Filter::all(shop()) };
        let (tasks, _, this_page) = self.page(&paused, Position::START).await;
        let some: Vec<_> = expected.iter().filter(|task| task.state == TaskState::Paused).collect();
        assert!(tasks.iter().eq(some[..LIMIT].iter().copied()), "{what}, paused");
        examined.push(this_page);
        let named = Filter { key_prefix: "watch/001".to_owned(), ..Filter::all(shop()) };
        let (tasks, _, this_page) = self.page(&named, Position::START).await;
        let begins = |task: &&Task| {
            task.definition.key.as_ref().is_some_and(|key| key.as_str().starts_with("watch/001"))
        };
        let some: Vec<_> = expected.iter().filter(begins).collect();
        assert!(tasks.iter().eq(some[..LIMIT].iter().copied()), "{what}, by name");
        examined.push(this_page);
        examined
    }
}

fn listed(tasks: &[Task]) -> Vec<Task> {
    let mut tasks = tasks.to_vec();
    tasks.sort_by_key(Position::of);
    tasks
}

#[test]
fn a_page_examines_what_it_shows_however_many_tasks_are_postponed() {
    run(async {
        let [few, many] = WATCHES;
        let (few, many) = (pages_of(few).await, pages_of(many).await);
        assert_eq!(few.len(), many.len());
        for (number, (few, many)) in few.iter().zip(&many).enumerate() {
            // Pages at the front skip entries of tasks that are due later; a small store has fewer
            // of these.
            assert!(
                *many <= few + few / 4,
                "page {number}: {many} examined, {few} in the smaller store"
            );
        }
    });
}

/// How much each page examines in a store with so many watches.
async fn pages_of(watches: u64) -> Vec<u64> {
    let dir = tempfile::tempdir().unwrap();
    let mut owner = PageFixture::open(dir.path(), Partitions::ONE).await;
    let epoch = owner.epoch;
    let make = |n: u64| {
        let due = at(10_000 + n);
        task(id(due, partition(0), epoch, n)).key(&format!("watch/{n:05}")).build()
    };
    let mut tasks: Vec<Task> = (0..watches).map(make).collect();
    owner.apply(tasks.iter().cloned().map(Change::Put).collect()).await;
    let mut examined = vec![owner.check_made(&tasks).await];
    owner.store.checkpoint().await.unwrap();

    // Every task is postponed, not in the order of the ids, or paused.
    for (round, checkpoint) in [(1, true), (2, true), (3, false)] {
        let mut changes = Vec::new();
        for (n, task) in (0..).zip(&mut tasks) {
            let change;
            if n % 40 == 7 {
                let state = if round == 2 { TaskState::Scheduled } else { TaskState::Paused };
                let next = in_state(task, state);
                change = refile(task, &next);
                *task = next;
            } else {
                let fire_at = at(50_000 + round * 1000 + n * 7919 % 3001);
                (*task, change) = postpone(task, fire_at);
            }
            changes.push(change);
        }
        owner.apply(changes).await;
        if round != 2 {
            examined.extend(owner.check(&listed(&tasks), "in memory").await);
        }
        if checkpoint {
            owner.store.checkpoint().await.unwrap();
        }
        if round != 2 {
            examined.extend(owner.check(&listed(&tasks), "after a checkpoint").await);
        }
    }
    owner.store.close().await.unwrap();
    let report = punctual_store_embedded::check(dir.path()).unwrap();
    assert_eq!(report.problems, [] as [String; 0]);
    examined
}

impl PageFixture {
    /// Right after tasks were made their entries are at their time, and a range of time is a range
    /// of the timeline.
    async fn check_made(&self, tasks: &[Task]) -> u64 {
        let expected = listed(tasks);
        let (from, to) = (at(10_100), at(10_150));
        let filter = Filter { from, to, ..Filter::all(shop()) };
        let (found, _, this_page) = self.page(&filter, Position::START).await;
        let due = |task: &&Task| (from..to).contains(&task.fire_at);
        assert!(found.iter().eq(expected.iter().filter(due).take(LIMIT)));
        this_page
    }
}

/// The letters of other namespaces are examined, and nothing beyond the page.
#[test]
fn a_page_of_dead_letters_examines_what_it_shows_and_ends_at_a_size() {
    const LETTERS: u64 = 300;
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut owner = PageFixture::open(dir.path(), Partitions::ONE).await;
        let epoch = owner.epoch;
        let payload = Payload::Binary {
            bytes: vec![7; 64 << 10].into(),
            content_type: "application/octet-stream".into(),
        };
        let make = |n: u64| {
            let mut task = task(id(at(10_000 + n), partition(0), epoch, n)).build();
            Arc::make_mut(&mut task.definition).payload = payload.clone();
            task
        };
        let tasks: Vec<Task> = (0..LETTERS).map(make).collect();
        for tasks in tasks.chunks(50) {
            owner.apply(tasks.iter().cloned().map(Change::Put).collect()).await;
            owner.apply(tasks.iter().map(|task| die(task, NOW, None)).collect()).await;
        }
        owner.store.checkpoint().await.unwrap();
        let before = owner.store.stats().unwrap().looked_at;
        let page = owner.store.dead(partition(0), &shop(), None, LIMIT).await.unwrap();
        assert_eq!(page.items.len(), LIMIT);
        let examined = owner.store.stats().unwrap().looked_at - before;
        assert!(examined <= 32, "{examined} letters examined for a page of {LIMIT}");
        // 128 letters are 8 MiB.
        let (mut after, mut seen) = (None, 0);
        loop {
            let page = owner.store.dead(partition(0), &shop(), after, 1000).await.unwrap();
            assert!(page.items.len() <= 128, "{} letters on a page", page.items.len());
            seen += page.items.len();
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen as u64, LETTERS);
    });
}

#[test]
fn a_page_of_dead_letters_examines_what_it_shows_however_many_there_are() {
    run(async {
        for count in LETTERS {
            let dir = tempfile::tempdir().unwrap();
            let mut owner = PageFixture::open(dir.path(), Partitions::ONE).await;
            let mut fire_ids = owner.make_letters(count).await;
            owner.check_dead_pages(&fire_ids, "in memory").await;
            owner.store.checkpoint().await.unwrap();
            owner.check_dead_pages(&fire_ids, "in the catalog").await;
            let deleted = fire_ids.extract_if(.., |id| id.nominal_at.as_millis() % 3000 == 0);
            let deleted: Vec<FireId> = deleted.collect();
            owner.delete_letters(deleted).await;
            owner.check_dead_pages(&fire_ids, "some deleted").await;
            owner.store.checkpoint().await.unwrap();
            owner.check_dead_pages(&fire_ids, "some deleted in the catalog").await;
        }
    });
}

#[test]
fn a_page_of_dead_letters_ends_early_behind_many_deleted_ones() {
    const COUNT: u64 = 12_000;
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let mut owner = PageFixture::open(dir.path(), Partitions::ONE).await;
        let mut fire_ids = owner.make_letters(COUNT).await;
        let last = fire_ids.pop();
        owner.delete_letters(fire_ids).await;
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let (fire_ids, next, examined) = owner.dead_page(after).await;
            assert!(examined <= COUNT / 2, "{examined} deleted letters examined for one page");
            found.extend(fire_ids);
            assert!(next.is_none() || next > after, "a page ends after it begins");
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, Vec::from_iter(last));
    });
}
