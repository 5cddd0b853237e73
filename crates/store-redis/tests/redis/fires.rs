//! Ended fires on real servers: random walks beside the memory store, long lists, damage, and what
//! a sweep leaves.

use std::time::Duration;

use punctual_core::{
    ANSWER_BYTES_MAX, Answer, AttemptResult, DeadReason, EndKind, FireEnd, FireId, FireRecord,
    Namespace, Outcome, PartitionId, Seat, SkipReason, Skipped, Task, Timestamp,
};
use punctual_store::conformance::fixtures::{
    NOW, TTL, at, broker, die, epoch, id, key, namespace, next_fire, settle, settle_with_next,
    shop, task,
};
use punctual_store::conformance::{StoreUnderTest, run};
use punctual_store::{
    Batch, BatchNo, Change, FireFilter, FirePosition, LeaseStore, MemoryStore, Prior, Retention,
    StoreError, TaskStore,
};
use punctual_store_redis::RedisOptions;
use punctual_store_redis::keys::PartitionKeys;
use punctual_test_support::redis::RedisServer;

use crate::subject::{RedisSubject, partitions};
use crate::writer::{P, TestWriter, options, put};

const NAMESPACES: [&str; 3] = ["shop", "shop-1", "other"];
const KEYS: [&str; 6] = ["a", "aa", "ab", "b", "b/1", "ä"];

/// Deterministic numbers of a seed.
struct Numbers(u64);

impl Numbers {
    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        let bound = u64::try_from(all.len()).expect("few");
        all[usize::try_from(self.below(bound)).expect("few")]
    }
}

/// Returns all records that match, read in pages.
async fn all_fires<S: TaskStore>(
    store: &S,
    filter: &FireFilter,
    mut after: Option<FirePosition>,
    limit: usize,
) -> Vec<FireRecord> {
    let mut records = Vec::new();
    loop {
        let page = store.fires(P, filter, after, limit).await.expect("reads need no lease");
        assert!(page.items.len() <= limit, "a page has at most its limit");
        records.extend(page.items);
        let Some(next) = page.next else { return records };
        assert!(after.is_none_or(|after| next < after), "a page ends after it begins");
        after = Some(next);
    }
}

fn positions(records: &[FireRecord]) -> Vec<FirePosition> {
    records.iter().map(FirePosition::of).collect()
}

/// A record whose fire is no longer a part of its task.
fn overlapping(record: FireRecord) -> Change {
    let was = Prior::apart(&record);
    Change::Settle { record, next: None, was }
}

/// Ends random fires, some of them again.
struct FireWalk {
    numbers: Numbers,
    tasks: Vec<Task>,
    living: Vec<Task>,
    now: Timestamp,
}

impl FireWalk {
    fn changes(&mut self) -> Vec<Change> {
        (0..self.numbers.below(40)).flat_map(|_| self.change()).collect()
    }

    fn ended_at(&mut self) -> Timestamp {
        match self.numbers.below(10) {
            // Clocks of owners differ.
            0 => self.now.millis_before(self.numbers.below(20_000)),
            // Within a group, and further apart.
            _ => self.now.millis_before(self.numbers.below(12) * 25),
        }
    }

    fn change(&mut self) -> Option<Change> {
        let ended_at = self.ended_at();
        match self.numbers.below(10) {
            0..4 => Some(Change::Put(self.create())),
            4..7 => {
                let task = self.living.pop()?;
                let end = self.end();
                Some(match end {
                    FireEnd::Dead(_) => die(&task, ended_at, None),
                    end => settle(&task, end, ended_at),
                })
            }
            _ => {
                let task = self.some_task()?;
                let record = FireRecord::of(&task, self.end(), ended_at);
                let nominal_at = match self.numbers.below(3) {
                    0 => record.fire_id.nominal_at,
                    more => at(1_000_000 + more),
                };
                let fire_id = FireId { nominal_at, ..record.fire_id };
                Some(overlapping(FireRecord { fire_id, ..record }))
            }
        }
    }

    fn create(&mut self) -> Task {
        let number = u64::try_from(self.tasks.len()).expect("few");
        let name = self.numbers.pick(&NAMESPACES);
        let built = task(id(at(number % 50), P, epoch(1), number)).namespace(name);
        let built = match self.numbers.below(3) {
            0 => built,
            // One key per task at a time: the store is not asked for names here.
            _ => built.key(self.numbers.pick(&KEYS)),
        };
        let built = match self.numbers.below(3) {
            0 => built.label("zone", "eu"),
            _ => built,
        };
        let task = built.build();
        self.tasks.push(task.clone());
        self.living.insert(0, task.clone());
        task
    }

    fn some_task(&mut self) -> Option<Task> {
        if self.tasks.is_empty() {
            return None;
        }
        let count = u64::try_from(self.tasks.len()).expect("few");
        let index = self.numbers.below(count.min(40));
        let task = self.tasks[usize::try_from(count - 1 - index).expect("few")].clone();
        // Only fires of tasks that have ended end again.
        (!self.living.iter().any(|living| living.id == task.id)).then_some(task)
    }

    fn end(&mut self) -> FireEnd {
        let skipped = Skipped { fires: 1, until: at(1), why: SkipReason::Overlap };
        self.numbers.pick(&[
            FireEnd::Done,
            FireEnd::Done,
            FireEnd::Dead(DeadReason::Exhausted),
            FireEnd::Cancelled,
            FireEnd::Replaced,
            FireEnd::Skipped(skipped),
        ])
    }

    fn filter(&mut self) -> FireFilter {
        let mut filter = FireFilter::all(namespace(self.numbers.pick(&NAMESPACES)));
        if self.numbers.below(3) == 0 {
            filter.end = Some(self.numbers.pick(&EndKind::ALL));
        }
        match self.numbers.below(4) {
            0 => self.numbers.pick(&KEYS).clone_into(&mut filter.key_prefix),
            1 => filter.label = Some(("zone".to_owned(), "eu".to_owned())),
            _ => {}
        }
        if self.numbers.below(3) == 0 {
            filter.from = self.now.millis_before(self.numbers.below(60_000));
            filter.to = self.now.millis_before(self.numbers.below(30_000));
        }
        filter
    }

    fn start(&mut self) -> Option<FirePosition> {
        if self.numbers.below(2) == 0 {
            return None;
        }
        let ended_at = self.ended_at();
        let fire_id = self.some_task()?.fire().id;
        Some(FirePosition { ended_at, fire_id })
    }
}

/// Checks that all of `some` are in `all`, in the same order.
fn assert_among(what: &str, some: &[FireRecord], all: &[FireRecord]) {
    let mut rest = all.iter();
    for record in some {
        assert!(rest.any(|other| other == record), "{what}: {record:?}");
    }
}

async fn walk_beside_memory(subject: RedisSubject, seed: u64, steps: u64) {
    let store = subject.open().await;
    let [least, most] = [(); 2].map(|()| MemoryStore::new(partitions()));
    let (seat, broker) = (Seat::Partition(P), broker("a:1"));
    let lease = store.acquire(seat, &broker, TTL, NOW).await.expect("the seat is free");
    for memory in [&least, &most] {
        memory.acquire(seat, &broker, TTL, NOW).await.expect("the seat is free");
    }
    let numbers = Numbers(seed);
    let mut walk = FireWalk { numbers, tasks: Vec::new(), living: Vec::new(), now: NOW };
    let mut number = BatchNo::FIRST;
    for step in 0..steps {
        walk.now = walk.now.after(Duration::from_millis(walk.numbers.below(2000)));
        let batch = Batch::new(number, walk.changes());
        number = number.next();
        for _ in 0..=walk.numbers.below(2) {
            let made = store.apply(P, lease.epoch, batch.clone()).await;
            made.expect("a batch may be sent again");
        }
        for memory in [&least, &most] {
            memory.apply(P, lease.epoch, batch.clone()).await.expect("a valid batch");
        }
        if step % 10 == 9 {
            let history_age = Duration::from_secs(walk.numbers.below(40));
            let retention = Retention { history_age, ..Retention::default() };
            store.sweep(P, lease.epoch, retention, walk.now).await.expect("the owner sweeps");
            least.sweep(P, lease.epoch, retention, walk.now).await.expect("the owner sweeps");
        }
        let (filter, start) = (walk.filter(), walk.start());
        let limit = walk.numbers.pick(&[1, 3, 10, 1000]);
        let ours = all_fires(&store, &filter, start, limit).await;
        let must = all_fires(&least, &filter, start, limit).await;
        let may = all_fires(&most, &filter, start, limit).await;
        assert_among(&format!("seed {seed}, step {step}: must be there {filter:?}"), &must, &ours);
        assert_among(&format!("seed {seed}, step {step}: may be there {filter:?}"), &ours, &may);
        compare_last(&store, &filter.namespace).await;
    }
    assert_eq!(store.damaged_values(), 0);
}

/// The last fire of a key is the first that a list of it shows.
async fn compare_last<S: TaskStore>(store: &S, namespace: &Namespace) {
    let all = all_fires(store, &FireFilter::all(namespace.clone()), None, 1000).await;
    let last = store.last_fires(P, namespace, &KEYS.map(key)).await.expect("reads need no lease");
    for (name, last) in KEYS.into_iter().zip(last) {
        let want = all.iter().find(|record| record.key == Some(key(name)));
        assert_eq!(last.as_ref(), want, "{name}");
    }
}

#[test]
fn fires_on_a_single_server_match_memory() {
    for seed in 1..=4 {
        run(walk_beside_memory(RedisSubject::single(), seed, 100));
    }
}

#[test]
fn fires_on_a_cluster_match_memory() {
    run(walk_beside_memory(RedisSubject::cluster(), 9, 100));
}

#[tokio::test]
async fn a_batch_that_is_sent_again_or_fenced_lists_no_fire() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    let tasks = writer.tasks(6);
    writer.apply(put(&tasks)).await;
    let ended = tasks[..3].iter().map(|task| settle(task, FireEnd::Done, at(5))).collect();
    writer.apply(ended).await;
    let listed = all_fires(&writer.store, &FireFilter::all(shop()), None, 100).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    let sizes = || [&keys.ends, &keys.keyed, &keys.ages].map(|key| server.cli(&["ZCARD", key]));
    let before = sizes();
    let others = || tasks[3..].iter().map(|task| settle(task, FireEnd::Done, at(6))).collect();
    let again = Batch::new(BatchNo::new(writer.number.get() - 1), others());
    writer.store.apply(P, writer.epoch, again).await.expect("the number decides");
    let late = Batch::new(BatchNo::FIRST, others());
    let fenced = writer.store.apply(P, epoch(9), late).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "{fenced:?}");
    assert_eq!(sizes(), before);
    assert_eq!(all_fires(&writer.store, &FireFilter::all(shop()), None, 2).await, listed);
    assert_eq!(listed.len(), 3);
}

#[tokio::test]
async fn a_history_ends_when_its_records_are_too_large_together_with_its_newest_fires() {
    let server = RedisServer::start(&[]);
    let timeout = Duration::from_secs(10);
    let settings = RedisOptions { timeout, ..options(vec![server.url()]) };
    let mut writer = TestWriter::open(settings, P).await;
    let mut task = writer.tasks(1).remove(0);
    let id = task.id;
    writer.apply(put(&[task.clone()])).await;
    // Each fire has four answers of the largest size: nine mebibytes together.
    let mut ended = Vec::new();
    for number in 0..144 {
        let ended_at = at(1000 + number);
        let next = next_fire(&task, ended_at);
        for _ in 0..4 {
            let body = vec![b'x'; ANSWER_BYTES_MAX].into();
            let answer = Some(Box::new(Answer::of_worker(body)));
            task.add_attempt(ended_at, ended_at, AttemptResult { outcome: Outcome::Acked, answer });
        }
        writer.apply(vec![settle_with_next(&task, ended_at, &next)]).await;
        ended.insert(0, task.fire().id);
        task = next;
    }
    let read = async |limit| {
        let records = writer.store.history(P, id, limit).await.expect("reads need no lease");
        records.iter().map(|record| record.fire_id).collect::<Vec<_>>()
    };
    let some = read(usize::MAX).await;
    assert!((100..144).contains(&some.len()), "{}", some.len());
    assert_eq!(some, ended[..some.len()]);
    assert_eq!(read(7).await, ended[..7]);
    assert_eq!(writer.store.damaged_values(), 0);
}

/// Settles records of many namespaces, ends and keys, also of fires that their id does not lead to.
async fn end_many(writer: &mut TestWriter) {
    let tasks = writer.tasks(300);
    writer.apply(put(&tasks)).await;
    let mut changes = Vec::new();
    for (number, task) in (0..).zip(&tasks) {
        changes.push(match number % 3 {
            0 => settle(task, FireEnd::Done, at(number / 7)),
            1 => die(task, at(number / 5), None),
            _ => settle(task, FireEnd::Cancelled, at(number)),
        });
        let record = FireRecord::of(task, FireEnd::Done, at(number));
        let namespace = namespace(&format!("n{}", number % 40));
        let fire_id = FireId { nominal_at: at(7_000_000), ..record.fire_id };
        changes.push(overlapping(FireRecord { namespace, fire_id, ..record }));
    }
    writer.apply(changes).await;
}

#[tokio::test]
async fn a_sweep_leaves_no_key_behind() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    end_many(&mut writer).await;
    // Some end again.
    end_many(&mut writer).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    let listing = [&keys.ends, &keys.keyed, &keys.ages, &keys.fires, &keys.history];
    for key in listing {
        assert_eq!(server.cli(&["EXISTS", key]).trim(), "1", "{key}");
    }
    let age = Duration::from_secs(1);
    let retention = Retention { history_age: age, dead_age: age, ..Retention::default() };
    let swept = writer.store.sweep(P, writer.epoch, retention, at(10_000)).await;
    assert_eq!(swept.expect("the writer owns the partition").history, 1200);
    for key in listing.into_iter().chain([&keys.tasks, &keys.letters, &keys.dead]) {
        assert_eq!(server.cli(&["EXISTS", key]).trim(), "0", "{key}");
    }
    assert_eq!(writer.store.damaged_values(), 0);
}

/// Pieces of the first format list fires and no groups.
#[tokio::test]
async fn pieces_of_the_first_format_are_swept() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    let tasks = writer.tasks(3);
    writer.apply(put(&tasks)).await;
    let ended = tasks.iter().map(|task| settle(task, FireEnd::Done, at(5))).collect();
    writer.apply(ended).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    // Epoch 1, batch 2, piece 0, 300 bytes; then the fires.
    let replace = "local piece = '\\0\\0\\0\\1\\0\\0\\0\\0\\0\\0\\0\\2\\0\\0\\0\\0\\1\\44'
        for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do
          piece = piece .. id .. '\\0\\0' .. string.sub(id, 1, 6)
        end
        local score = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
        redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
        return redis.call('ZADD', KEYS[2], score, piece)";
    let replaced =
        server.cli(&["EVAL", replace, "4", &keys.tasks, &keys.ages, &keys.ends, &keys.keyed]);
    assert_eq!(replaced.trim(), "1");
    let retention = Retention { history_age: Duration::from_secs(1), ..Retention::default() };
    for (now, want) in [(at(5), 0), (at(10), 3)] {
        let swept = writer.store.sweep(P, writer.epoch, retention, now).await;
        assert_eq!(swept.expect("the writer owns the partition").history, want);
    }
    assert_eq!(server.cli(&["EXISTS", &keys.tasks, &keys.ages]).trim(), "0");
    assert_eq!(writer.store.damaged_values(), 0);
}

/// Ends fires of tasks that the store does not have, in batches.
async fn end_records(
    writer: &mut TestWriter,
    count: u64,
    batch: usize,
    build: impl Fn(u64) -> FireRecord,
) -> Vec<FireRecord> {
    let records: Vec<FireRecord> = (0..count).map(build).collect();
    for some in records.chunks(batch) {
        writer.apply(some.iter().cloned().map(overlapping).collect()).await;
    }
    let mut records = records;
    records.sort_by_key(|record| std::cmp::Reverse(FirePosition::of(record)));
    records
}

fn record(number: u64, key: Option<&str>, ended_at: Timestamp) -> FireRecord {
    let built = task(id(at(number % 1000), PartitionId::FIRST, epoch(1), number));
    let built = match key {
        Some(key) => built.key(key),
        None => built,
    };
    FireRecord::of(&built.build(), FireEnd::Done, ended_at)
}

#[tokio::test]
async fn many_fires_that_end_at_the_same_time_are_listed_in_order() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    let same = |number| record(number, None, at(5));
    let want = end_records(&mut writer, 3000, 70, same).await;
    for limit in [999, 4000] {
        let got = all_fires(&writer.store, &FireFilter::all(shop()), None, limit).await;
        assert!(positions(&got) == positions(&want), "pages of {limit}");
    }
}

#[tokio::test]
async fn a_prefix_of_many_keys_is_found_behind_many_other_fires() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    // More than a page reads from one key range, and more others than a page walks through.
    let with_key = |number| record(number, Some(&format!("order-{number}")), at(number / 9));
    let ordered = end_records(&mut writer, 5000, 1000, with_key).await;
    let without_key = |number| record(10_000 + number, None, at(2000 + number / 100));
    end_records(&mut writer, 60_000, 5000, without_key).await;
    let filter =
        |prefix: &str| FireFilter { key_prefix: prefix.to_owned(), ..FireFilter::all(shop()) };
    let got = all_fires(&writer.store, &filter("order-"), None, 1000).await;
    assert!(positions(&got) == positions(&ordered));
    let page = writer.store.fires(P, &filter("order-"), None, 10).await.expect("Redis answers");
    assert!(page.items.is_empty() && page.next.is_some(), "a page reads a part of the groups");
    let few = all_fires(&writer.store, &filter("order-49"), None, 7).await;
    let want = ordered
        .iter()
        .filter(|it| it.key.as_ref().is_some_and(|key| key.as_str().starts_with("order-49")));
    assert_eq!(few, want.cloned().collect::<Vec<_>>());
    let dead = FireFilter { end: Some(EndKind::Dead), ..FireFilter::all(shop()) };
    assert_eq!(all_fires(&writer.store, &dead, None, 7).await, []);
    let labelled =
        FireFilter { label: Some(("zone".to_owned(), "eu".to_owned())), ..FireFilter::all(shop()) };
    let page = writer.store.fires(P, &labelled, None, 10).await.expect("Redis answers");
    assert!(page.items.is_empty() && page.next.is_some(), "a page reads a part of the records");
}

#[tokio::test]
async fn large_records_are_listed_in_short_pages() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    let large = |number| {
        let mut large = record(number, Some("a"), at(number));
        let answered =
            punctual_store::conformance::fixtures::answered_task(large.fire_id.task).attempts;
        large.attempts = std::iter::repeat_n(answered, 60).flatten().take(200).collect();
        large
    };
    let want = end_records(&mut writer, 300, 20, large).await;
    for prefix in ["", "a"] {
        let filter = FireFilter { key_prefix: prefix.to_owned(), ..FireFilter::all(shop()) };
        let got = all_fires(&writer.store, &filter, None, 1000).await;
        assert!(positions(&got) == positions(&want), "prefix {prefix:?}");
    }
}

#[tokio::test]
async fn damaged_entries_and_records_of_fires_are_left_out_and_named() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut writer = TestWriter::open(settings.clone(), P).await;
    let tasks = writer.tasks(40);
    writer.apply(put(&tasks)).await;
    for (second, task) in (1..).zip(&tasks) {
        writer.apply(vec![settle(task, FireEnd::Done, at(second))]).await;
    }
    let keys = PartitionKeys::new(&settings.cluster, P);
    let filter = FireFilter::all(shop());
    let prefix = FireFilter { key_prefix: "order-".to_owned(), ..filter.clone() };
    let whole = all_fires(&writer.store, &filter, None, 7).await;
    // Of the newest fires, two records.
    let overwrite = "local ids = redis.call('HKEYS', KEYS[1])
        table.sort(ids)
        redis.call('HSET', KEYS[1], ids[40], '\\0x', ids[39], '\\0' .. string.rep('long', 9))";
    server.cli(&["EVAL", overwrite, "1", &keys.tasks]);
    let want = positions(&whole[2..]);
    for filter in [&filter, &prefix] {
        assert_eq!(positions(&all_fires(&writer.store, filter, None, 7).await), want);
    }
    assert_eq!(writer.store.damaged_values(), 2);
    for task in &tasks[38..] {
        let key = task.definition.key.clone().expect("has a key");
        let read = writer.store.last_fires(P, &shop(), &[key]).await;
        let Err(StoreError::Damaged(damage)) = read else { unreachable!("{read:?}") };
        assert!(damage.place.contains(&keys.tasks), "{damage:?}");
    }
    // Members that are no groups and no fires, among the others; and a group with a wrong length.
    let clutter = "redis.call('ZADD', KEYS[1], 0, 'shop\\0d\\0\\0\\1',
          0, 'shop\\0d' .. string.rep('\\0', 40), 0, 'shop\\0x\\0\\0\\1' .. string.rep('\\255', 90))
        redis.call('ZADD', KEYS[2], 0, 'shop\\0order-1x', 0, 'shop\\0order-2')
        local group = redis.call('ZRANGE', KEYS[1], 10, 10)[1]
        redis.call('ZREM', KEYS[1], group)
        redis.call('ZADD', KEYS[1], 0, group .. 'x')";
    server.cli(&["EVAL", clutter, "2", &keys.ends, &keys.keyed]);
    let got = positions(&all_fires(&writer.store, &filter, None, 7).await);
    assert_eq!(got.len(), want.len() - 1, "those of the damaged group are left out");
    assert_eq!(positions(&all_fires(&writer.store, &prefix, None, 7).await), want);
    assert_eq!(writer.store.damaged_values(), 2 + 4 + 2);
    // A sweep passes over what it cannot read, and deletes everything else.
    let retention = Retention { history_age: Duration::from_secs(1), ..Retention::default() };
    for _ in 0..5 {
        let swept = writer.store.sweep(P, writer.epoch, retention, at(9000)).await;
        swept.expect("the writer owns the partition");
    }
    assert_eq!(all_fires(&writer.store, &filter, None, 7).await, []);
    assert_eq!(server.cli(&["ZCARD", &keys.ages]).trim(), "0");
}

#[tokio::test]
async fn a_listing_key_of_another_type_is_named() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let writer = TestWriter::open(settings.clone(), P).await;
    let keys = PartitionKeys::new(&settings.cluster, P);
    for key in [&keys.ends, &keys.keyed] {
        server.cli(&["SET", key, "x"]);
        let filter = FireFilter { key_prefix: "a".to_owned(), ..FireFilter::all(shop()) };
        let filter = if key == &keys.ends { FireFilter::all(shop()) } else { filter };
        let read = writer.store.fires(P, &filter, None, 9).await;
        let Err(StoreError::Damaged(damage)) = read else { unreachable!("{read:?}") };
        assert_eq!(damage.place, format!("key {key}"));
        server.cli(&["DEL", key]);
    }
}
