//! The rows of the catalog, compared with `tests/golden` (see `crate::golden`).

use bytes::Bytes;
use punctual_core::{BrokerId, Epoch, Partitions, Seat, Sequence, Timestamp, Version};
use punctual_journal::CommitNo;
use tempfile::TempDir;

use super::*;
use crate::golden::{assert_golden, assert_golden_text, from_hex, to_hex};
use crate::run::Generation;
use crate::state::names::name;
use crate::state::relocation::Moved;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn open(dir: &TempDir) -> Catalog {
    let partitions = Partitions::new(4).expect("a few");
    Catalog::open(dir.path(), &EmbeddedOptions::tiny(partitions)).expect("opens")
}

fn partition() -> PartitionId {
    PartitionId::new(3).expect("a partition")
}

fn id(number: u64) -> TaskId {
    let epoch = Epoch::new(2).expect("an epoch");
    TaskId::new(NOW, partition(), epoch, Sequence::new(number).expect("a sequence"))
}

fn fire_id() -> FireId {
    FireId { task: id(8), nominal_at: NOW }
}

fn meta() -> CatalogMeta {
    let now = NOW.as_millis();
    CatalogMeta { commit: CommitNo(300), generation: Generation(20), run_next: 7, now }
}

fn runs() -> Vec<ListedRun> {
    let run = |no, kind, swept| ListedRun {
        no: RunNo(no),
        generation: Generation(no + 10),
        kind,
        file_bytes: 4000,
        swept,
    };
    let first = PartitionId::new(0).expect("a partition");
    vec![
        run(4, RunKind::Near, Vec::new()),
        run(5, RunKind::Far, Vec::new()),
        run(6, RunKind::History, vec![first, partition()]),
    ]
}

fn counts() -> Counts {
    Counts { scheduled: 1, paused: 2, done: 3, dead: 4, cancelled: -5, dead_letters: 600 }
}

fn leases() -> Vec<Lease> {
    let lease = |seat| {
        let epoch = Epoch::new(300).expect("an epoch");
        Lease { seat, broker: BrokerId::new("10.0.0.2:7400"), epoch, until: NOW }
    };
    vec![lease(Seat::Leader), lease(Seat::Partition(partition()))]
}

fn last_batch() -> LastBatch {
    LastBatch { batch: Some(BatchNo::new(777)) }
}

fn relocations() -> Vec<(TaskId, Relocation)> {
    let later = Timestamp::from_millis(1_900_000_000_000);
    vec![
        (id(5), Relocation::filed(later)),
        (id(6), Relocation::postponed(Some(NOW), moved(later, None))),
    ]
}

fn moved(fire_at: Timestamp, updated_at: Option<Timestamp>) -> Moved {
    Moved { fire_at, version: Version::new(9), updated_at }
}

fn paused() -> Paused {
    Paused { fire_at: NOW, body: Bytes::from_static(b"the body of a task") }
}

/// One row of every kind. Bodies, heads and letters are spelled by the codec of the contract.
fn write(catalog: &Catalog) {
    let mut batch = catalog.batch();
    batch.meta(meta());
    runs().iter().for_each(|run| batch.run(run));
    batch.bits(RunNo(4), 1, vec![1, 2, 3, 4, 5, 6, 7, 8]);
    batch.counts(partition(), "shop", &counts());
    leases().iter().for_each(|lease| batch.lease(lease));
    batch.last_batch(partition(), last_batch());
    batch.name(&name(partition(), "shop", "key/5"), Some(b"a head"));
    for (id, relocation) in relocations() {
        batch.relocation(id, Some(relocation));
        batch.order(ListedKind::Postponed, None, Some(EntryKey::new(NOW, id)));
    }
    batch.paused(id(7), Some(&paused()));
    batch.order(ListedKind::Paused, None, Some(EntryKey::new(NOW, id(7))));
    batch.letter(fire_id(), Some(b"a dead letter"));
    batch.commit().expect("committed");
}

fn tables(catalog: &Catalog) -> [(&'static str, &Keyspace); 6] {
    [
        ("names", &catalog.names),
        ("standings", &catalog.relocations),
        ("paused", &catalog.paused),
        ("dead", &catalog.dead),
        ("order", &catalog.order),
        ("rest", &catalog.rest),
    ]
}

/// All rows as lines: table, key, value.
fn dump(catalog: &Catalog) -> String {
    let mut text = String::new();
    for (table, rows) in tables(catalog) {
        for row in rows.iter() {
            let (key, value) = row.into_inner().expect("a row");
            let value = to_hex(&value);
            let line = format!("{table} {} {value}", to_hex(&key));
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

fn restore(catalog: &Catalog, text: &str) {
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut next = || words.next().unwrap_or_default();
        let (table, key, value) = (next(), from_hex(next()), from_hex(next()));
        let mut tables = tables(catalog).into_iter();
        let (_, rows) = tables.find(|(name, _)| *name == table).expect("a table of the catalog");
        rows.insert(key, value).expect("inserted");
    }
}

#[test]
fn rows_have_the_bytes_of_format_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let catalog = open(&dir);
    write(&catalog);
    let golden = assert_golden_text("catalog_rows.txt", &dump(&catalog));

    let dir = tempfile::tempdir().expect("a directory");
    let catalog = open(&dir);
    restore(&catalog, &golden);
    let contents = catalog.contents().expect("reads");
    assert_eq!(contents.meta, Some(meta()));
    assert_eq!(contents.runs, runs());
    assert_eq!(contents.bits, [(RunNo(4), 1, vec![1, 2, 3, 4, 5, 6, 7, 8])]);
    assert_eq!(contents.counts, [(partition(), "shop".to_owned(), counts())]);
    assert_eq!(contents.leases, leases());
    assert_eq!(contents.last_batches, [(partition(), last_batch())]);
    for (id, relocation) in relocations() {
        assert_eq!(catalog.relocation(id).expect("reads"), Some(relocation));
    }
    assert_eq!(catalog.paused(id(7)).expect("reads"), Some(paused()));
    assert_eq!(catalog.letter(fire_id()).expect("reads"), Some(b"a dead letter".to_vec()));
    let mut letters = Vec::new();
    let each = |fire_id: FireId, _: &[u8]| {
        letters.push(fire_id);
        true
    };
    catalog.letters_after(partition(), None, each).expect("reads");
    assert_eq!(letters, [fire_id()]);
    let range = (EntryKey::new(Timestamp::EPOCH, id(0)), EntryKey::new(Timestamp::MAX, id(0)));
    let postponed = catalog.order_between(ListedKind::Postponed, range, 9).expect("reads");
    assert_eq!(postponed, [EntryKey::new(NOW, id(5)), EntryKey::new(NOW, id(6))]);
    let paused = catalog.order_between(ListedKind::Paused, range, 9).expect("reads");
    assert_eq!(paused, [EntryKey::new(NOW, id(7))]);
    let names = catalog.names_from(&name(partition(), "shop", "key/"), 9).expect("reads");
    assert_eq!(names, [name(partition(), "shop", "key/5")]);
}

#[test]
fn a_relocation_with_the_time_of_a_touch_has_the_bytes_of_format_2() {
    let later = Timestamp::from_millis(1_900_000_000_000);
    let touched = moved(later, Some(Timestamp::from_millis(1_900_000_000_000 - 900_000)));
    let relocation = Relocation::postponed(Some(NOW), touched);
    let golden = assert_golden("catalog_touched_row", &relocation.to_bytes());
    assert_eq!(Relocation::read(&golden), Ok(relocation));
    let without = Relocation::postponed(Some(NOW), moved(later, None));
    assert_eq!(golden.len(), without.to_bytes().len() + 3);
}

#[test]
fn groups_of_dead_letters_have_their_bytes_and_read_back() {
    let group = |reason: &str, target: &str| punctual_core::LetterGroup {
        reason: reason.to_owned(),
        target: target.to_owned(),
    };
    let mut groups = LetterGroups::default();
    let later = Timestamp::from_millis(1_900_000_000_000);
    let example = fire_id();
    let gone = FireId { task: id(9), nominal_at: NOW };
    groups.add(group("status 503", "https://api.example"), NOW, example);
    groups.add(group("failed: größe", "queue mail"), later, example);
    groups.add(group("failed: größe", "queue mail"), NOW, gone);
    groups.remove(&group("failed: größe", "queue mail"), gone);
    let mut bytes = Vec::new();
    put_letter_groups(&mut bytes, &groups);
    let golden = assert_golden("catalog_letter_groups", &bytes);
    assert_eq!(read_letter_groups(&mut Reader::new(&golden)), Ok(groups));
}
