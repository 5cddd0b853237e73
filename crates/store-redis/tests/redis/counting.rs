//! Counts of due tasks, series and groups of dead letters: data of an earlier version, a count that
//! is interrupted, a log that is folded, and what a read costs.

use punctual_core::{Schedule, Seat, Task, Timestamp};
use punctual_store::conformance::fixtures::{
    NOW, TTL, at, broker, die, id, in_state, settle, shop, task,
};
use punctual_store::{
    Change, CountedGroup, DueCounts, DueMinute, DueSteps, Filter, KindFilter, LeaseStore, Position,
    TaskStore,
};
use punctual_store_redis::keys::PartitionKeys;
use punctual_store_redis::{RedisOptions, RedisStore};
use punctual_test_support::redis::RedisServer;

use crate::writer::{P, TestWriter, options};

/// What the counts of the namespace of the tests are.
#[derive(Debug, PartialEq)]
struct Counted {
    due: DueCounts,
    series: Vec<Task>,
    groups: Vec<CountedGroup>,
}

async fn counted(store: &RedisStore) -> Counted {
    let first = DueMinute::of(at(0)).get();
    let steps = (0..=100).map(|step| DueMinute::new(first + 7 * step)).collect();
    let steps = DueSteps::new(steps).expect("they ascend");
    let due = store.due_counts(P, &shop(), &steps).await.expect("Redis answers");
    let filter = Filter { kind: Some(KindFilter::Series), ..Filter::all(shop()) };
    let series = store.list(P, &filter, Position::START, 5000).await.expect("Redis answers").items;
    let groups = store.letter_groups(P, &shop()).await;
    let mut groups = groups.expect("the letters are counted");
    groups.sort_by(|one, other| one.group.cmp(&other.group));
    // Which letter is the example depends on the order in which they were counted.
    groups.iter_mut().for_each(|it| it.letters.example = None);
    Counted { due, series, groups }
}

/// Stores tasks of several kinds in several batches, some of which end or die.
async fn write(writer: &mut TestWriter, count: u64) {
    let every = || Schedule::every(std::time::Duration::from_secs(600));
    let tasks: Vec<Task> = (0..count)
        .map(|number| {
            let built = task(id(at(number), P, writer.epoch, 100_000 + number));
            match number % 10 {
                7 => built.schedule(every()).build(),
                8 => in_state(&built.schedule(every()).build(), punctual_core::TaskState::Paused),
                9 => built.paused().build(),
                _ => built.build(),
            }
        })
        .collect();
    for some in tasks.chunks(500) {
        writer.apply(some.iter().cloned().map(Change::Put).collect()).await;
    }
    let dead = tasks.iter().skip(2).step_by(10).map(|task| die(task, task.fire_at, None));
    writer.apply(dead.collect()).await;
    let done = tasks.iter().skip(3).step_by(10);
    writer.apply(done.map(|task| settle(task, punctual_core::FireEnd::Done, NOW)).collect()).await;
}

/// Removes what an earlier version did not write.
fn forget_counts(server: &RedisServer, settings: &RedisOptions) {
    let keys = PartitionKeys::new(&settings.cluster, P);
    let PartitionKeys { counted, due_hours, due_log, groups, grouped, .. } = &keys;
    let series = keys.series(shop().as_str());
    server.cli(&["DEL", counted, due_hours, due_log, groups, grouped, &series]);
}

#[tokio::test]
async fn a_partition_that_an_earlier_version_wrote_is_counted_when_it_is_acquired() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    write(&mut writer, 5000).await;
    let want = counted(&writer.store).await;
    assert_eq!((want.due.tasks.iter().sum::<i64>(), want.due.until), (2500, None));
    assert_eq!((want.series.len(), want.groups[0].letters.count), (1000, 500));
    forget_counts(&server, &settings);
    let steps = DueSteps::new(vec![DueMinute::FIRST, DueMinute::new(7)]).expect("they ascend");
    let due = writer.store.due_counts(P, &shop(), &steps).await.expect("Redis answers");
    assert_eq!(due.until, Some(DueMinute::FIRST), "nothing is counted");
    writer.store.letter_groups(P, &shop()).await.expect_err("no letter is counted");
    let filter = Filter { kind: Some(KindFilter::Series), ..Filter::all(shop()) };
    let page = writer.store.list(P, &filter, Position::START, 10).await.expect("Redis answers");
    assert_eq!(page.items, want.series[..10], "they are found without the index");
    let again = TestWriter::open(settings, P).await;
    assert_eq!(counted(&again.store).await, want);
}

#[tokio::test]
async fn a_version_that_does_not_count_is_noticed_by_its_epoch() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    write(&mut writer, 500).await;
    let want = counted(&writer.store).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    // An earlier version acquired the partition, which raised the epoch only, and lost some counts.
    server.cli(&["HINCRBY", &keys.own, "epoch", "1"]);
    server.cli(&["DEL", &keys.due_log, &keys.grouped]);
    let again = TestWriter::open(settings, P).await;
    assert_eq!(counted(&again.store).await, want);
}

#[tokio::test]
async fn counting_that_was_interrupted_continues_with_the_next_acquisition() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    write(&mut writer, 5000).await;
    let want = counted(&writer.store).await;
    forget_counts(&server, &settings);
    let keys = PartitionKeys::new(&settings.cluster, P);
    let (seat, me) = (Seat::Partition(P), broker("a:1"));
    let mut interrupted = 0;
    for polls in 1..200 {
        let (store, _) = RedisStore::open(settings.clone()).await.expect("the store opens");
        let mut acquiring = Box::pin(store.acquire(seat, &me, TTL, NOW));
        let at_before = server.cli(&["HGET", &keys.counted, "at"]);
        // Given up at one of many moments.
        let given_up = tokio::select! {
            biased;
            acquired = &mut acquiring => acquired.is_err(),
            () = yields(polls) => true,
        };
        drop(acquiring);
        let at_after = server.cli(&["HGET", &keys.counted, "at"]);
        interrupted += u32::from(given_up && at_after != at_before);
        if !given_up {
            assert!(interrupted > 0, "the count was never interrupted between two pages");
            assert_eq!(counted(&store).await, want);
            return;
        }
    }
    unreachable!("the partition was never acquired");
}

/// Lets other work continue for a while.
async fn yields(count: u32) {
    for _ in 0..count * 20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_long_log_is_folded_and_the_counts_stay_the_same() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    let minute = |number: u64| Timestamp::from_millis(at(0).as_millis() + number * 60_000);
    let mut tasks = Vec::new();
    for batch in 0..30 {
        let some: Vec<Task> = (0..5000)
            .map(|number| {
                let number = batch * 5000 + number;
                task(id(minute(number * 7 % 30_000), P, writer.epoch, number)).build()
            })
            .collect();
        writer.apply(some.iter().cloned().map(Change::Put).collect()).await;
        tasks.extend(some);
    }
    let folds = server.cli(&["HGET", &keys.counted, "folds"]);
    assert!(folds.trim().parse::<u32>().is_ok_and(|folds| folds > 0), "{folds}");
    let first = DueMinute::of(at(0)).get();
    let steps = (0..=1000).map(|step| DueMinute::new(first + 30 * step)).collect();
    let steps = DueSteps::new(steps).expect("they ascend");
    let want = |tasks: &[Task]| {
        let mut counts = vec![0; steps.count()];
        for task in tasks {
            counts[steps.step_of(DueMinute::of(task.fire_at)).expect("within the steps")] += 1;
        }
        DueCounts { tasks: counts, until: None }
    };
    let due = writer.store.due_counts(P, &shop(), &steps).await.expect("Redis answers");
    assert_eq!(due, want(&tasks));
    let rest = tasks.split_off(60_000);
    for some in tasks.chunks(5000) {
        let done = some.iter().map(|task| settle(task, punctual_core::FireEnd::Done, NOW));
        writer.apply(done.collect()).await;
    }
    let due = writer.store.due_counts(P, &shop(), &steps).await.expect("Redis answers");
    assert_eq!(due, want(&rest));
    let log_bytes: usize = server.cli(&["STRLEN", &keys.due_log]).trim().parse().expect("a number");
    assert!(log_bytes < 512 << 10, "the log has {log_bytes} bytes");
    for some in rest.chunks(5000) {
        let done = some.iter().map(|task| settle(task, punctual_core::FireEnd::Done, NOW));
        writer.apply(done.collect()).await;
    }
    let due = writer.store.due_counts(P, &shop(), &steps).await.expect("Redis answers");
    assert_eq!(due, want(&[]));
}

#[tokio::test]
async fn a_damaged_log_or_hour_is_named_and_batches_are_made() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    writer.put(10).await;
    server.cli(&["APPEND", &keys.due_log, "\u{7f}x"]);
    let steps = DueSteps::new(vec![DueMinute::FIRST, DueMinute::new(u32::MAX)]).expect("ascend");
    let error = writer.store.due_counts(P, &shop(), &steps).await.expect_err("it is damaged");
    assert!(error.to_string().contains(&keys.due_log), "{error}");
    server.cli(&["DEL", &keys.due_log]);
    server.cli(&["HSET", &keys.due_log, "a", "b"]);
    writer.put(10).await;
    assert_eq!(writer.counts().await.scheduled, 20);
    let again = TestWriter::open(settings, P).await;
    let due = again.store.due_counts(P, &shop(), &steps).await.expect("they were counted again");
    assert_eq!(due, DueCounts { tasks: vec![20], until: None });
}
