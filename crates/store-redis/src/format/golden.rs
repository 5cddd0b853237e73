//! Golden bytes of what this store writes to Redis: keys, fields, members, values and batches.
//!
//! The files are in `golden/` of this crate, one value each, as hexadecimal text. Each test encodes
//! fixed values, compares them with the files byte for byte, and decodes the files where there is
//! a reader. With `PUNCTUAL_GOLDEN=write` in the environment, missing files are written; existing
//! ones never change. A mismatch means that the store of a running cluster can no longer be read.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use punctual_core::{
    Assignment, BrokerId, DeadReason, EndKind, Epoch, FireEnd, FireId, FireRecord, Heartbeat,
    Labels, LetterGroup, PARTITIONS_MAX, PartitionId, Seat, Sequence, Task, TaskId, TaskState,
    Timestamp, Version,
};
use punctual_store::codec::{
    DueDifferences, HourCounts, Interner, put_bytes, put_letter_group, put_varint, read_due_log,
};
use punctual_store::conformance::fixtures::{
    NOW, at, attempts, die, epoch, id, next_fire, partition, postpone, refile, rich_task, settle,
    settle_with_next, shop, task,
};
use punctual_store::conformance::golden::GoldenFiles;
use punctual_store::{
    Batch, BatchNo, Change, Counts, DueHour, DueMinute, FirePosition, Head, Prior,
};

use crate::batch::BatchArguments;
use crate::format::codec::{self, Postponement};
use crate::format::due;
use crate::format::ends::{self, FireGroup, GroupOrigin};
use crate::format::groups;
use crate::format::keys::{self, PartitionKeys};

fn golden(folder: &str) -> GoldenFiles {
    GoldenFiles::open(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(folder))
}

fn bytes(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out);
    out
}

fn some_id() -> TaskId {
    id(at(60), partition(3), epoch(2), 7)
}

fn largest_id() -> TaskId {
    let sequence = Sequence::new((1 << 42) - 1).unwrap();
    TaskId::new(Timestamp::MAX, partition(PARTITIONS_MAX - 1), Epoch::MAX, sequence)
}

fn largest_fire() -> FireId {
    FireId { task: largest_id(), nominal_at: Timestamp::MAX }
}

fn largest_task() -> Task {
    Task { version: Version::new(u64::MAX), ..task(largest_id()).build() }
}

#[test]
fn keys_of_a_cluster_and_of_a_partition() {
    let last = partition(PARTITIONS_MAX - 1);
    let mut all = vec![
        keys::meta("shop"),
        keys::own("shop", Seat::Leader),
        keys::roll("shop"),
        keys::assignment("shop"),
    ];
    for partition in [PartitionId::FIRST, last] {
        all.push(keys::own("shop", Seat::Partition(partition)));
        all.extend(PartitionKeys::new("shop", partition).all().map(str::to_owned));
    }
    let mut files = golden("keys");
    files.check("shop", all.join("\n").as_bytes());
    files.finish();
}

#[test]
fn tasks_and_their_postponements() {
    let interner = Interner::default();
    let late =
        Postponement { fire_at: at(90), version: Version::new(300), updated_at: Some(at(80)) };
    let latest = Postponement {
        fire_at: Timestamp::MAX,
        version: Version::new(u64::MAX),
        updated_at: Some(Timestamp::MAX),
    };
    // Values of the first format do not have the time of the touch.
    let of_first_format = |late| Postponement { updated_at: None, ..late };
    let mut files = golden("task");
    for (name, task) in [
        ("scheduled", task(some_id()).build()),
        ("key_unicode", task(some_id()).key("geräte/halle 3/Ω/時計").build()),
        ("paused", task(some_id()).paused().build()),
        ("everything", rich_task(some_id())),
        ("largest_numbers", largest_task()),
    ] {
        let kept = files.check(name, &bytes(|out| codec::put_task(out, &task)));
        assert_eq!(codec::read_task(task.id, &kept, &interner), Ok(task), "{name}");
        assert!(!codec::is_ended(&kept), "{name}");
    }
    let task = task(some_id()).build();
    let value = bytes(|out| codec::put_task(out, &task));
    for (name, late) in [
        ("postponement", of_first_format(late)),
        ("postponement_largest_numbers", of_first_format(latest)),
        ("postponement_touched", late),
        ("postponement_touched_largest_numbers", latest),
    ] {
        let kept = files.check(name, &bytes(|out| codec::put_postponement(out, late)));
        let read = codec::read_task(task.id, &value, &interner);
        let postponed = codec::read_postponement(&kept).map(|late| late.of_task(read.unwrap()));
        let Postponement { fire_at, version, updated_at } = late;
        let updated_at = updated_at.unwrap_or(task.updated_at);
        let want = Task { fire_at, nominal_at: fire_at, version, updated_at, ..task.clone() };
        assert_eq!(postponed, Ok(want), "{name}");
    }
    files.finish();
}

#[test]
fn ids_and_fires() {
    let mut files = golden("id");
    for (name, id) in [
        ("task_some", some_id()),
        ("task_smallest", TaskId::floor(Timestamp::EPOCH)),
        ("task_largest", largest_id()),
    ] {
        let kept = files.check(name, &codec::id(id));
        assert_eq!(codec::read_id(&kept), Ok(id), "{name}");
    }
    let fire_id = FireId { task: some_id(), nominal_at: at(61) };
    for (name, fire_id) in [("fire_some", fire_id), ("fire_largest", largest_fire())] {
        let kept = files.check(name, &codec::fire(fire_id));
        assert_eq!(codec::read_fire(&kept), Ok(fire_id), "{name}");
    }
    files.check("fire_above_all_of_a_task", &codec::fire_above(some_id()));
    files.finish();
}

#[test]
fn names_and_heads() {
    let mut files = golden("name");
    files.check("field", &bytes(|out| codec::put_name(out, "shop", "order/42")));
    files.check("field_unicode", &bytes(|out| codec::put_name(out, "shop", "geräte/Ω/時計")));
    for (name, task) in [
        ("head", task(some_id()).key("order/42").build()),
        ("head_everything", rich_task(some_id())),
        ("head_largest_numbers", largest_task()),
    ] {
        let head = Head::of(&task);
        let kept = files.check(name, &bytes(|out| codec::put_head(out, &head)));
        assert_eq!(codec::read_head(&kept), Ok(head), "{name}");
        assert_eq!(kept[..codec::ID_BYTES], codec::id(task.id), "{name}");
    }
    files.finish();
}

#[test]
fn records() {
    let interner = Interner::default();
    let task = Task { attempts: attempts(), ..task(some_id()).build() };
    let labelled =
        FireRecord::of(&rich_task(some_id()), FireEnd::Dead(DeadReason::Unknown), at(99));
    let mut files = golden("history");
    for (name, record) in [
        ("record_done", FireRecord::of(&task, FireEnd::Done, at(99))),
        ("record_dead", FireRecord { labels: Labels::default(), ..labelled.clone() }),
        ("record_labelled", labelled),
        (
            "record_largest_numbers",
            FireRecord {
                fire_id: largest_fire(),
                due_at: Timestamp::MAX,
                ..FireRecord::of(&task, FireEnd::Cancelled, Timestamp::MAX)
            },
        ),
    ] {
        let kept = files.check(name, &bytes(|out| codec::put_record(out, &record)));
        assert_eq!(codec::read_record(&kept, &interner), Ok(record.clone()), "{name}");
        let name = format!("{name}_of_an_ended_task");
        let kept = files.check(&name, &bytes(|out| codec::put_ended(out, &record)));
        assert!(codec::is_ended(&kept), "{name}");
        assert_eq!(codec::read_record(&kept[1..], &interner), Ok(record), "{name}");
    }
    files.finish();
}

#[test]
fn groups_of_ended_fires_and_their_pieces() {
    let origin = |epoch, batch| GroupOrigin { epoch, batch: BatchNo::new(batch) };
    let some = (origin(epoch(2), 300), 1);
    let largest = (origin(Epoch::MAX, u64::MAX), u32::MAX);
    let dead = FireEnd::Dead(DeadReason::Unknown);
    let ended = |task: &Task, end, ended_at| FireRecord::of(task, end, ended_at);
    let done = [task(some_id()).build(), task(id(at(61), partition(3), epoch(2), 8)).build()];
    let mut done = done.map(|task| ended(&task, FireEnd::Done, at(99)));
    done[1].ended_at = at(99).after(Duration::from_millis(70));
    let later = FireId { task: some_id(), nominal_at: at(61) };
    let rich = FireRecord { fire_id: later, ..ended(&rich_task(some_id()), dead, at(99)) };
    let last = FireRecord {
        fire_id: largest_fire(),
        namespace: shop().of_receipts(),
        ..ended(&rich_task(largest_id()), FireEnd::Cancelled, Timestamp::MAX)
    };
    let mut files = golden("ends");
    for (name, records, (origin, number)) in [
        ("two", &done[..], some),
        ("everything", std::slice::from_ref(&rich), some),
        ("largest", std::slice::from_ref(&last), largest),
    ] {
        let groups = FireGroup::divide(records.iter());
        assert_eq!(groups.len(), 1, "{name}");
        let kept =
            files.check(&format!("group_{name}"), &bytes(|out| groups[0].put(out, origin, number)));
        let start = records[0].namespace.as_str().len() + 1;
        let positions: Vec<_> = records.iter().rev().map(FirePosition::of).collect();
        let read = ends::read_group(&kept, start).unwrap();
        assert_eq!(read.iter().map(|it| it.position).collect::<Vec<_>>(), positions, "{name}");
        files.check(
            &format!("piece_{name}"),
            &bytes(|out| {
                ends::put_piece_header(out, origin, 1, u32::MAX);
                groups[0].put_reference(out, number);
            }),
        );
    }
    for (name, record) in [("keyed", &rich), ("keyed_largest", &last)] {
        let key = record.key.as_ref().unwrap();
        let kept = files.check(name, &bytes(|out| ends::put_keyed(out, record, key)));
        let letter = ends::letter(record.end.kind());
        let want = ends::KeyedFire { position: FirePosition::of(record), letter };
        assert_eq!(ends::read_keyed(&kept), Ok(want), "{name}");
    }
    let letters: Vec<u8> = EndKind::ALL.into_iter().map(ends::letter).collect();
    files.check("letters", &letters);
    files.finish();
}

#[test]
fn members_of_dead_letters_and_fields_of_counts() {
    let mut files = golden("field");
    let fire_id = FireId { task: some_id(), nominal_at: at(61) };
    files.check("dead_letter", &bytes(|out| codec::put_letter_member(out, &shop(), fire_id)));
    let receipts = shop().of_receipts();
    files.check(
        "dead_letter_largest",
        &bytes(|out| codec::put_letter_member(out, &receipts, largest_fire())),
    );
    let counts =
        Counts { scheduled: 1, paused: 2, done: 3, dead: 4, cancelled: 5, dead_letters: 6 };
    let by_letter = codec::by_letter(&counts);
    for (letter, count) in by_letter {
        let name = format!("count_{count}");
        files.check(&name, &bytes(|out| codec::put_count_field(out, "shop", letter)));
    }
    files.check("history_bytes", codec::HISTORY_BYTES_FIELD);
    assert_eq!(codec::counts_of(by_letter.map(|(_, count)| count)), counts);
    files.finish();
}

#[test]
fn due_counts_and_groups_of_dead_letters() {
    let mut files = golden("counts");
    let hour = DueHour::new(500_000);
    let (mut counts, mut differences) = (HourCounts::default(), DueDifferences::default());
    for (index, by) in [(0, 1), (7, 100_000), (59, -2)] {
        counts.add(hour.minute(index), by);
        differences.add_to(&shop(), hour.minute(index), by);
    }
    differences.add_to(&shop().of_receipts(), DueMinute::new(u32::MAX), i64::MAX);
    let member = due::hour_member("shop", hour, &counts).unwrap();
    let kept = files.check("hour", &member);
    let (read, rest) = due::read_hour_member("shop", &kept).unwrap();
    assert_eq!((read, HourCounts::read(rest)), (hour, Ok(counts)));
    let kept = files.check("log", &differences.to_bytes().unwrap());
    let mut read = 0;
    let bytes = read_due_log(&kept, |_, moved| {
        read += moved.len();
        ControlFlow::Continue(())
    });
    assert_eq!((bytes, read), (Ok(kept.len()), 4));
    let group = LetterGroup {
        reason: "failed: größe".to_owned(),
        target: "https://a.example".to_owned(),
    };
    let name = files.check("group", &bytes_of_group(&group));
    // What `letter_groups.lua` writes.
    let fire_id = FireId { task: some_id(), nominal_at: at(61) };
    let value = |example: &[u8], name: &[u8]| [b"3 1000 2000 ", example, name].concat();
    let of = |value: &[u8]| groups::read_group(value).map(|it| (it.group, it.letters.example));
    let kept = files.check("group_counted", &value(&codec::fire(fire_id), &name));
    assert_eq!(of(&kept), Ok((group, Some(fire_id))));
    let kept = files.check("group_others", &value(&[0; codec::FIRE_BYTES], b""));
    assert_eq!(of(&kept), Ok((LetterGroup::other(), None)));
    files.finish();
}

fn bytes_of_group(group: &LetterGroup) -> Vec<u8> {
    bytes(|out| put_letter_group(out, group))
}

#[test]
fn heartbeats_and_assignments() {
    let broker = BrokerId::new("10.0.0.2:7400");
    let heartbeat = |holds: Vec<(PartitionId, Epoch)>, leaving, ahead_ms| Heartbeat {
        broker: broker.clone(),
        holds,
        leaving,
        ahead_ms,
    };
    let last = partition(PARTITIONS_MAX - 1);
    let holds =
        vec![(PartitionId::FIRST, epoch(1)), (partition(300), epoch(70_000)), (last, Epoch::MAX)];
    let mut files = golden("membership");
    for (name, heartbeat) in [
        ("heartbeat_idle", heartbeat(Vec::new(), false, None)),
        ("heartbeat_holds", heartbeat(holds.clone(), false, None)),
        ("heartbeat_leaving", heartbeat(holds, true, Some(-1))),
        ("heartbeat_clock_ahead_smallest", heartbeat(Vec::new(), false, Some(i64::MIN))),
        ("heartbeat_clock_ahead_largest", heartbeat(Vec::new(), true, Some(i64::MAX))),
    ] {
        let kept =
            files.check(name, &bytes(|out| punctual_store::codec::put_heartbeat(out, &heartbeat)));
        assert_eq!(
            punctual_store::codec::read_heartbeat(broker.clone(), &kept),
            Ok(heartbeat),
            "{name}"
        );
    }
    let owner = |name: &str| Some(BrokerId::new(name));
    for (name, owners) in [
        ("assignment_empty", Vec::new()),
        ("assignment_without_owners", vec![None, None]),
        ("assignment", vec![owner("b:1"), None, owner("a:1"), owner("b:1"), owner("größe:1")]),
    ] {
        let assignment = Assignment { owners };
        let kept = files
            .check(name, &bytes(|out| punctual_store::codec::put_assignment(out, &assignment)));
        assert_eq!(punctual_store::codec::read_assignment(&kept), Ok(assignment), "{name}");
    }
    files.finish();
}

/// The arguments of `apply.lua` behind the number of the batch: sections, each a count and values.
fn arguments(changes: Vec<Change>) -> Vec<u8> {
    let sections = BatchArguments::of(epoch(2), Batch::new(BatchNo::new(300), changes));
    let mut out = vec![u8::from(sections.grows)];
    for section in sections.sections() {
        put_varint(&mut out, section.len() as u64);
        for argument in section.arguments() {
            put_bytes(&mut out, argument);
        }
    }
    out
}

/// Every change, with every effect that it can have on a task.
#[test]
fn batches() {
    let first = task(some_id()).key("order/42").build();
    let paused = Task { state: TaskState::Paused, ..first.clone() };
    let fire_id = first.fire().id;
    let next = next_fire(&first, at(120));
    let second = task(id(at(61), partition(3), epoch(2), 8)).key("order/42").build();
    let put = Change::Put(first.clone());
    let (later, postponed) = postpone(&first, at(90));
    let forget = Change::DeleteLetter { fire_id, namespace: shop() };
    let redrive = Change::Redrive { fire_id, task: first.clone() };
    let record = FireRecord::of(&first, FireEnd::Done, NOW);
    let was = Prior::apart(&record);
    let overlapping = Change::Settle { record, next: None, was };
    let replaced = settle(&first, FireEnd::Replaced, NOW);
    let largest = largest_task();
    let mut files = golden("batch");
    for (name, changes) in [
        ("empty", Vec::new()),
        ("put", vec![put.clone()]),
        ("put_paused", vec![Change::Put(paused.clone())]),
        ("put_everything", vec![Change::Put(rich_task(some_id()))]),
        ("put_largest_numbers", vec![Change::Put(largest.clone())]),
        ("put_and_postpone", vec![put.clone(), postponed.clone()]),
        ("put_and_settle", vec![put, settle(&first, FireEnd::Done, NOW)]),
        ("refile_scheduled", vec![refile(&paused, &first)]),
        ("refile_paused", vec![refile(&first, &paused)]),
        ("postpone", vec![postponed]),
        ("settle_done", vec![settle(&first, FireEnd::Done, NOW)]),
        ("settle_cancelled", vec![settle(&paused, FireEnd::Cancelled, NOW)]),
        ("settle_after_a_postponement", vec![settle(&later, FireEnd::Done, NOW)]),
        ("settle_with_next", vec![settle_with_next(&first, NOW, &next)]),
        ("settle_overlapping", vec![forget.clone(), overlapping]),
        ("settle_largest_numbers", vec![settle(&largest, FireEnd::Done, Timestamp::MAX)]),
        ("replace", vec![replaced, Change::Put(second)]),
        ("dead", vec![die(&first, NOW, None)]),
        ("dead_with_next", vec![die(&first, NOW, Some(&next))]),
        ("dead_and_redrive", vec![die(&first, NOW, None), redrive.clone()]),
        ("redrive", vec![redrive]),
        ("forget", vec![forget]),
    ] {
        files.check(name, &arguments(changes));
    }
    files.finish();
}
