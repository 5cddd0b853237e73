//! Pages of ended fires: in memory and in runs, with many fires of one time, key or task, and with
//! an index that is missing or damaged. The memory store says what must be listed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use punctual_core::{
    ANSWER_BYTES_MAX, Answer, AttemptResult, EndKind, Epoch, FireEnd, Outcome, Partitions, Seat,
    Task, TaskId,
};
use punctual_store::conformance::fixtures::{
    NOW, TTL, at, broker, die, id, key, next_fire, partition, settle, settle_with_next, shop, task,
};
use punctual_store::conformance::run;
use punctual_store::{
    Batch, BatchNo, Change, FireFilter, LeaseStore, MemoryStore, Retention, TaskStore,
};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore, check};
use tempfile::TempDir;

/// More than the fires of a run that are selected by key and then sorted.
const FIRES: u64 = 9000;

/// A store, the memory store with the same contents, and their owner.
struct StorePair {
    dir: TempDir,
    store: Option<EmbeddedStore>,
    model: MemoryStore,
    epoch: Epoch,
    number: BatchNo,
    made: u64,
}

impl StorePair {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let model = MemoryStore::new(Partitions::ONE);
        let seat = Seat::Partition(partition(0));
        let epoch = store.acquire(seat, &broker("a"), TTL, NOW).await.unwrap().epoch;
        assert_eq!(model.acquire(seat, &broker("a"), TTL, NOW).await.unwrap().epoch, epoch);
        let number = BatchNo::FIRST;
        Self { dir, store: Some(store), model, epoch, number, made: 0 }
    }

    fn store(&self) -> &EmbeddedStore {
        self.store.as_ref().expect("open")
    }

    async fn apply(&mut self, changes: Vec<Change>) {
        let batch = Batch::new(self.number, changes);
        self.number = self.number.next();
        self.store().apply(partition(0), self.epoch, batch.clone()).await.unwrap();
        self.model.apply(partition(0), self.epoch, batch).await.unwrap();
    }

    fn task(&mut self, name: &str) -> Task {
        self.made += 1;
        task(id(at(self.made % 50), partition(0), self.epoch, self.made)).key(name).build()
    }

    /// Fires of tasks that end, a few at each time; one of a hundred is dead.
    async fn end(&mut self, fires: u64, from: u64) {
        for chunk in (0..fires).collect::<Vec<_>>().chunks(500) {
            let mut changes = Vec::new();
            for number in chunk {
                let task = self.task(&format!("order/{:05}", number * 7919 % 9973));
                changes.push(Change::Put(task.clone()));
                let ended_at = at(from + number / 900);
                changes.push(match number % 100 {
                    0 => die(&task, ended_at, None),
                    1 => settle(&task, FireEnd::Cancelled, ended_at),
                    _ => settle(&task, FireEnd::Done, ended_at),
                });
            }
            self.apply(changes).await;
        }
    }

    /// Fires of one task that continues.
    async fn series(&mut self, fires: u64, from: u64) {
        let mut task = self.task("series");
        let mut changes = vec![Change::Put(task.clone())];
        for number in 0..fires {
            let next = next_fire(&task, at(from + number));
            changes.push(settle_with_next(&task, at(from + number), &next));
            task = next;
        }
        self.apply(changes).await;
    }

    /// Fires of one task that continues, each with four answers of the largest size.
    async fn answered_series(&mut self, fires: u64) -> TaskId {
        let mut task = self.task(&format!("answered/{}", self.made));
        self.apply(vec![Change::Put(task.clone())]).await;
        for number in 0..fires {
            let ended_at = at(1000 + number);
            let next = next_fire(&task, ended_at);
            for _ in 0..4 {
                let body = Bytes::from(vec![b'x'; ANSWER_BYTES_MAX]);
                let answer = Some(Box::new(Answer::of_worker(body)));
                task.add_attempt(
                    ended_at,
                    ended_at,
                    AttemptResult { outcome: Outcome::Acked, answer },
                );
            }
            self.apply(vec![settle_with_next(&task, ended_at, &next)]).await;
            task = next;
        }
        task.id
    }

    async fn reopen(&mut self) {
        self.store.take().expect("open").close().await.unwrap();
        self.store = Some(open(self.dir.path()));
    }

    async fn assert_same(&self) {
        let all = || FireFilter::all(shop());
        let prefix = |prefix: &str| FireFilter { key_prefix: prefix.to_owned(), ..all() };
        for filter in [
            all(),
            FireFilter { end: Some(EndKind::Dead), ..all() },
            FireFilter { end: Some(EndKind::Replaced), ..all() },
            prefix("order/"),
            prefix("order/00"),
            prefix("series"),
            prefix("t"),
            FireFilter { end: Some(EndKind::Dead), ..prefix("order/") },
            FireFilter { from: at(103), to: at(105), ..prefix("order/") },
            FireFilter { from: at(103), to: at(104), ..all() },
            FireFilter { label: Some(("a".to_owned(), "b".to_owned())), ..all() },
        ] {
            for limit in [999, 20_000] {
                assert_eq!(
                    pages(self.store(), &filter, limit).await,
                    pages(&self.model, &filter, limit).await,
                    "{filter:?}"
                );
            }
        }
        let keys: Vec<_> = ["series", "order/00000", "order/00007", "order/9", "", "a"]
            .into_iter()
            .filter(|name| !name.is_empty())
            .map(key)
            .collect();
        let last = self.store().last_fires(partition(0), &shop(), &keys).await.unwrap();
        assert_eq!(last, self.model.last_fires(partition(0), &shop(), &keys).await.unwrap());
    }

    fn indexes(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.path().join("runs")).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "idx"));
        paths.sort();
        paths
    }
}

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, EmbeddedOptions::new(Partitions::ONE)).unwrap().0
}

/// The positions and ends of all fires that match, by pages.
async fn pages(store: &impl TaskStore, filter: &FireFilter, limit: usize) -> Vec<String> {
    let (mut after, mut fires) = (None, Vec::new());
    loop {
        let page = store.fires(partition(0), filter, after, limit).await.unwrap();
        let line = |record: &punctual_core::FireRecord| format!("{record:?}");
        fires.extend(page.items.iter().map(line));
        let Some(next) = page.next else { return fires };
        assert!(after.is_none_or(|after| next < after), "each page ends further on");
        after = Some(next);
    }
}

#[test]
fn fires_in_memory_and_in_runs_are_listed_like_those_of_the_memory_store() {
    run(async {
        let mut both = StorePair::new().await;
        both.end(FIRES, 100).await;
        both.assert_same().await;
        both.store().checkpoint().await.unwrap();
        both.assert_same().await;
        both.end(1000, 104).await;
        both.series(700, 90).await;
        both.store().checkpoint().await.unwrap();
        both.series(300, 150).await;
        both.end(300, 99).await;
        both.assert_same().await;
        both.reopen().await;
        both.assert_same().await;
        assert_eq!(check(both_closed(both).await.path()).unwrap().problems, Vec::<String>::new());
    });
}

async fn both_closed(mut both: StorePair) -> TempDir {
    both.store.take().expect("open").close().await.unwrap();
    both.dir
}

#[test]
fn a_history_ends_when_its_records_are_too_large_together_with_its_newest_fires() {
    run(async {
        let mut both = StorePair::new().await;
        // Nine mebibytes.
        let id = both.answered_series(144).await;
        let all = both.model.history(partition(0), id, usize::MAX).await.unwrap();
        assert_eq!(all.len(), 144);
        for _ in ["in memory", "in a run"] {
            let some = both.store().history(partition(0), id, usize::MAX).await.unwrap();
            assert!((100..144).contains(&some.len()), "{}", some.len());
            assert_eq!(some, all[..some.len()]);
            let few = both.store().history(partition(0), id, 7).await.unwrap();
            assert_eq!(few, all[..7]);
            both.store().checkpoint().await.unwrap();
        }
        // Records of several runs and of memory.
        both.series(50, 150).await;
        let ended = both.answered_series(3).await;
        both.store().checkpoint().await.unwrap();
        let some = both.store().history(partition(0), ended, 2).await.unwrap();
        assert_eq!(some, both.model.history(partition(0), ended, 2).await.unwrap());
    });
}

#[test]
fn a_page_that_selects_nothing_is_bounded_and_says_where_it_stopped() {
    run(async {
        let mut both = StorePair::new().await;
        both.end(2 * FIRES, 100).await;
        let label = Some(("zone".to_owned(), "eu".to_owned()));
        let filter = FireFilter { label, ..FireFilter::all(shop()) };
        for _ in ["in memory", "in a run"] {
            let page = both.store().fires(partition(0), &filter, None, 10).await.unwrap();
            assert_eq!(page.items, []);
            assert!(page.next.is_some(), "more was not examined");
            both.assert_same().await;
            both.store().checkpoint().await.unwrap();
        }
    });
}

#[test]
fn a_damaged_index_is_built_again_and_no_fire_is_missing() {
    run(async {
        let mut both = StorePair::new().await;
        both.end(1500, 100).await;
        both.reopen().await;
        let path = both.indexes().remove(0);
        let good = fs::read(&path).unwrap();
        let step = good.len() / 12;
        for offset in (16..good.len()).step_by(step).chain([good.len() - 4]) {
            both.store.take().expect("open").close().await.unwrap();
            let mut bad = good.clone();
            bad[offset] ^= 0x10;
            fs::write(&path, &bad).unwrap();
            let problems = check(both.dir.path()).unwrap().problems;
            assert!(problems.len() == 1 && problems[0].contains(".idx is damaged"), "{problems:?}");
            both.store = Some(open(both.dir.path()));
            both.assert_same().await;
        }
        both.reopen().await;
        assert_eq!(fs::read(&path).unwrap(), good, "the next opening writes it");
    });
}

#[test]
fn an_index_that_is_missing_is_written_at_opening() {
    run(async {
        let mut both = StorePair::new().await;
        both.end(600, 100).await;
        both.reopen().await;
        let path = both.indexes().remove(0);
        let good = fs::read(&path).unwrap();
        both.store.take().expect("open").close().await.unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(check(both.dir.path()).unwrap().problems, Vec::<String>::new());
        assert!(!path.exists(), "a check changes nothing");
        both.store = Some(open(both.dir.path()));
        assert_eq!(fs::read(&path).unwrap(), good);
        both.assert_same().await;
    });
}

#[test]
fn an_index_that_vanishes_while_the_store_is_open_is_built_again() {
    run(async {
        let mut both = StorePair::new().await;
        both.end(600, 100).await;
        both.reopen().await;
        both.indexes().iter().for_each(|path| fs::remove_file(path).unwrap());
        both.assert_same().await;
        both.end(100, 101).await;
        both.reopen().await;
        assert_eq!(both.indexes().len(), 2);
        both.assert_same().await;
    });
}

#[test]
fn an_index_is_counted_and_removed_with_its_run() {
    run(async {
        let mut both = StorePair::new().await;
        both.end(600, 100).await;
        both.store().checkpoint().await.unwrap();
        let index_bytes: u64 =
            both.indexes().iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        let mut run_bytes = 0;
        for path in both.indexes() {
            run_bytes += fs::metadata(path.with_extension("run")).unwrap().len();
        }
        assert!(index_bytes > 0);
        assert_eq!(both.store().stats().unwrap().history_bytes, run_bytes + index_bytes);
        let retention = Retention { history_age: Duration::from_secs(60), ..Retention::default() };
        let sweep = both.store().sweep(partition(0), both.epoch, retention, at(100_000));
        assert_eq!(sweep.await.unwrap().history, 600);
        both.store().checkpoint().await.unwrap();
        assert_eq!(both.indexes(), Vec::<PathBuf>::new());
        // Beside a run that is not listed, an index is left over as well.
        let leftover = both.dir.path().join("runs/00000000deadbeef.idx");
        fs::write(&leftover, b"half an index").unwrap();
        both.reopen().await;
        assert!(!leftover.exists());
    });
}
