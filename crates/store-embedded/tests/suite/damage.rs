//! Damaged and foreign directories: opening is refused, or reading finds the damage; no wrong data.

use std::fs;
use std::path::{Path, PathBuf};

use punctual_core::{Partitions, Seat, Task, Timestamp};
use punctual_store::conformance::fixtures::{NOW, TTL, at, broker, id, partition, task};
use punctual_store::conformance::run;
use punctual_store::{Batch, BatchNo, Change, LeaseStore, Position, StoreError, TaskStore};
use punctual_store_embedded::{EmbeddedOpenError, EmbeddedOptions, EmbeddedStore, check, stats};
use tempfile::TempDir;

const TASKS: u64 = 300;

fn options() -> EmbeddedOptions {
    EmbeddedOptions::tiny(Partitions::ONE)
}

fn open(dir: &Path) -> Result<EmbeddedStore, EmbeddedOpenError> {
    EmbeddedStore::open(dir, options()).map(|(store, _)| store)
}

/// A store whose tasks are all in runs, and the tasks.
async fn filled() -> (TempDir, Vec<Task>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let seat = Seat::Partition(partition(0));
    let lease = store.acquire(seat, &broker("a"), TTL, NOW).await.unwrap();
    let tasks: Vec<Task> = (0..TASKS)
        .map(|n| task(id(at(n / 3), partition(0), lease.epoch, n)).key(&format!("k{n}")).build())
        .collect();
    let changes = tasks.iter().cloned().map(Change::Put).collect();
    let batch = Batch::new(BatchNo::FIRST, changes);
    store.apply(partition(0), lease.epoch, batch).await.unwrap();
    store.close().await.unwrap();
    (dir, tasks)
}

fn runs(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("runs")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

async fn load(store: &EmbeddedStore) -> Result<Vec<Task>, StoreError> {
    store.load(partition(0), Position::START, Timestamp::MAX, usize::MAX).await
}

#[test]
fn a_flipped_byte_anywhere_in_a_run_is_detected() {
    run(async {
        let (dir, tasks) = filled().await;
        let path = &runs(dir.path())[0];
        let good = fs::read(path).unwrap();
        // Bytes of every region: header, keys, bodies, fences, trailer.
        let step = (good.len() / 60).max(1);
        let offsets = (0..good.len()).step_by(step).chain(good.len() - 40..good.len());
        let (mut refused, mut broken) = (0, 0);
        for offset in offsets {
            let mut bad = good.clone();
            bad[offset] ^= 0x10;
            fs::write(path, &bad).unwrap();
            match open(dir.path()) {
                Err(error) => {
                    assert!(error.to_string().contains(".run"), "{error}");
                    refused += 1;
                }
                Ok(store) => match load(&store).await {
                    Ok(loaded) => assert_eq!(loaded, tasks, "byte {offset}"),
                    Err(StoreError::Broken(why)) => {
                        assert!(why.contains(".run is damaged at byte"), "{why}");
                        assert!(matches!(load(&store).await, Err(StoreError::Broken(_))));
                        broken += 1;
                    }
                    Err(other) => panic!("{other}"),
                },
            }
        }
        assert!(refused > 0 && broken > 0, "{refused} refused, {broken} broken");
        fs::write(path, &good).unwrap();
        assert_eq!(load(&open(dir.path()).unwrap()).await.unwrap(), tasks);
    });
}

#[test]
fn the_error_names_a_run_that_is_missing_or_cut() {
    run(async {
        let (dir, _) = filled().await;
        let path = runs(dir.path()).pop().unwrap();
        let good = fs::read(&path).unwrap();
        for length in [0, 1, 16, 40, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..length]).unwrap();
            let error = open(dir.path()).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
        fs::remove_file(&path).unwrap();
        let error = open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("is missing") && error.contains(".run"), "{error}");
    });
}

#[test]
fn a_run_file_that_is_not_listed_is_removed() {
    run(async {
        let (dir, tasks) = filled().await;
        let leftover = dir.path().join("runs/00000000deadbeef.run");
        fs::write(&leftover, b"half a run").unwrap();
        let (store, report) = EmbeddedStore::open(dir.path(), options()).unwrap();
        assert_eq!(report.leftovers, 1);
        assert!(report.closed_cleanly);
        assert!(!leftover.exists());
        assert_eq!(load(&store).await.unwrap(), tasks);
    });
}

#[test]
fn a_second_open_is_refused_and_names_the_process() {
    run(async {
        let (dir, _) = filled().await;
        let store = open(dir.path()).unwrap();
        let error = open(dir.path()).unwrap_err();
        assert!(matches!(error, EmbeddedOpenError::Held { .. }), "{error}");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(store);
        open(dir.path()).unwrap();
    });
}

#[test]
fn another_format_or_number_of_partitions_is_refused() {
    run(async {
        let (dir, _) = filled().await;
        let two = EmbeddedOptions::tiny(Partitions::new(2).unwrap());
        let error = EmbeddedStore::open(dir.path(), two).unwrap_err();
        assert!(
            matches!(error, EmbeddedOpenError::Partitions { found: 1, asked: 2, .. }),
            "{error}"
        );
        let path = dir.path().join("FORMAT");
        let text = fs::read_to_string(&path).unwrap();
        for other in [1, 3] {
            let text = text.replace("punctual-store 2", &format!("punctual-store {other}"));
            fs::write(&path, text).unwrap();
            let error = open(dir.path()).unwrap_err();
            assert!(
                matches!(error, EmbeddedOpenError::Format { found, .. } if found == other),
                "{error}"
            );
        }
    });
}

#[test]
fn no_store_is_created_in_a_directory_with_other_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("letter.txt"), b"dear").unwrap();
    assert!(matches!(open(dir.path()), Err(EmbeddedOpenError::NotAStore { .. })));
    assert!(matches!(check(dir.path()), Err(EmbeddedOpenError::NotAStore { .. })));
}

#[test]
fn a_catalog_that_lost_rows_is_refused_by_the_journal() {
    run(async {
        let (dir, _) = filled().await;
        fs::remove_dir_all(dir.path().join("catalog")).unwrap();
        for path in runs(dir.path()) {
            fs::remove_file(path).unwrap();
        }
        match open(dir.path()) {
            // Refused, or everything is still in the journal.
            Err(error) => assert!(matches!(error, EmbeddedOpenError::Journal(_)), "{error}"),
            Ok(store) => assert_eq!(load(&store).await.unwrap().len() as u64, TASKS),
        }
    });
}

#[test]
fn a_check_finds_damage_and_reports_nothing_in_a_good_store() {
    run(async {
        let (dir, _) = filled().await;
        let report = check(dir.path()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!((report.scheduled, report.names), (TASKS, TASKS));
        assert_eq!(stats(dir.path()).unwrap().tasks_in_runs, TASKS);
        let path = &runs(dir.path())[0];
        let mut bad = fs::read(path).unwrap();
        bad[60] ^= 1;
        fs::write(path, &bad).unwrap();
        match check(dir.path()) {
            Ok(report) => assert!(!report.problems.is_empty()),
            Err(error) => assert!(error.to_string().contains("damaged"), "{error}"),
        }
    });
}
