//! Faults of a single Redis, each on a real server of its own.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::writer::{TestWriter, done, is_unavailable, options, put, wait_briefly};
use punctual_core::{FireEnd, FireRecord, PartitionId, Partitions, Seat, TaskState};
use punctual_store::conformance::fixtures::{NOW, TTL, at, broker, die, next_fire, settle, shop};
use punctual_store::{
    Batch, BatchNo, Change, Head, LeaseStore, Resource, Retention, StoreError, TaskStore,
};
use punctual_store_redis::{Durability, OpenError, Options, RedisStore, keys};
use punctual_test_support::ports::free_port;
use punctual_test_support::redis::RedisServer;
use punctual_test_support::wait_for;

const P: PartitionId = PartitionId::FIRST;

/// Some timeouts of a call: a busy machine is late, a call without a bound never comes.
const BOUND: Duration = Duration::from_secs(3);

/// What must be answered within a bound, whatever Redis does.
async fn within<T>(bound: Duration, answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(bound, answer).await.expect("an answer comes within the timeout")
}

fn replicas(server: &RedisServer) -> bool {
    let says = server.cli(&["INFO", "replication"]);
    says.contains("state=online") && !says.contains("lag=-1")
}

/// Whether a replica has the last batch of the only store on its server.
fn has_all_of(replica: &RedisServer, server: &RedisServer) -> bool {
    let own = keys::own(&name_of(server), Seat::Partition(P));
    let [ours, theirs] = [replica, server].map(|server| server.cli(&["HGET", &own, "batch"]));
    ours == theirs && !ours.trim().is_empty()
}

/// A server and one that follows it.
fn pair() -> (RedisServer, RedisServer) {
    let first = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    let port = first.port.to_string();
    let second =
        RedisServer::start(&["--replicaof", "127.0.0.1", &port, "--replica-priority", "1"]);
    wait_for("the replica to follow", || replicas(&first));
    (first, second)
}

#[tokio::test]
async fn scripts_that_were_lost_are_sent_again() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    for _ in 0..3 {
        let tasks = writer.tasks(2);
        writer.send(put(&tasks)).await.expect("the script is sent whole");
        writer.living.extend(tasks);
        assert_eq!(server.cli(&["SCRIPT", "FLUSH"]).trim(), "OK");
        writer.assert_whole().await;
    }
    assert_eq!(writer.repeated, 0);
}

#[tokio::test]
async fn a_server_that_was_killed_comes_back_with_all_that_was_answered() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut asked = options(vec![server.url()]);
    asked.durability = Durability::Fsync;
    let mut writer = TestWriter::open(asked, P).await;
    writer.put(10).await;
    server.kill();
    let tasks = writer.tasks(5);
    for _ in 0..3 {
        let away = within(BOUND, writer.send(put(&tasks))).await;
        assert!(is_unavailable(&away), "{away:?}");
        assert!(is_unavailable(&within(BOUND, writer.loaded()).await));
    }
    server.start_again();
    writer.make(put(&tasks)).await;
    writer.living.extend(tasks);
    writer.assert_whole().await;
    writer.settle(7).await;
    writer.assert_whole().await;
}

/// With the file synced each second an answer waits for that, from 7.2 on; what an older server cannot promise is not taken.
#[tokio::test]
async fn an_answer_waits_until_the_file_is_synced_or_the_server_is_refused() {
    let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let mut asked = options(vec![server.url()]);
    asked.durability = Durability::Fsync;
    asked.timeout = Duration::from_secs(4);
    if server.cli(&["WAITAOF", "0", "0", "1"]).contains("unknown command") {
        let refused = RedisStore::open(asked).await;
        let Err(OpenError::Server(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("7.2"), "{why}");
        return;
    }
    let mut writer = TestWriter::open(asked, P).await;
    writer.put(10).await;
    // The server goes on writing its file, and syncs it no more.
    assert_eq!(server.cli(&["CONFIG", "SET", "appendfsync", "no"]).trim(), "OK");
    let tasks = writer.tasks(5);
    let unsynced = within(BOUND * 2, writer.send(put(&tasks))).await;
    assert!(is_unavailable(&unsynced), "{unsynced:?}");
    assert_eq!(server.cli(&["CONFIG", "SET", "appendfsync", "everysec"]).trim(), "OK");
    writer.make(put(&tasks)).await;
    writer.living.extend(tasks);
    writer.assert_whole().await;
}

#[tokio::test]
async fn a_server_that_hangs_is_unavailable_in_time_and_nothing_doubles() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    writer.put(3).await;
    server.suspend();
    let tasks = writer.tasks(4);
    for _ in 0..3 {
        let hung = within(BOUND, writer.send(put(&tasks))).await;
        assert!(is_unavailable(&hung), "{hung:?}");
    }
    let broker = broker("a:1");
    let lease = writer.store.acquire(Seat::Leader, &broker, TTL, NOW);
    assert!(is_unavailable(&within(BOUND, lease).await));
    server.resume();
    writer.make(put(&tasks)).await;
    writer.living.extend(tasks);
    writer.assert_whole().await;
    // What was sent while it hung may come in late; it has been made already.
    writer.put(1).await;
    writer.assert_whole().await;
}

/// Passes everything on, or everything but the answers.
struct Proxy {
    port: u16,
    deaf: Arc<AtomicBool>,
}

impl Proxy {
    fn start(to: u16) -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let deaf = Arc::new(AtomicBool::new(false));
        let is_deaf = Arc::clone(&deaf);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", to)).expect("the server listens");
                let [from, back] = [client.try_clone(), server.try_clone()];
                let (from, back) = (from.expect("a socket"), back.expect("a socket"));
                std::thread::spawn(move || pass(from, server, None));
                let is_deaf = Arc::clone(&is_deaf);
                std::thread::spawn(move || pass(back, client, Some(&is_deaf)));
            }
        });
        Self { port, deaf }
    }
}

/// Passes bytes on, until the first that must not arrive: then both ends are cut.
fn pass(mut from: TcpStream, mut to: TcpStream, cut: Option<&AtomicBool>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if cut.is_some_and(|cut| cut.load(Ordering::SeqCst))
            || to.write_all(&bytes[..count]).is_err()
        {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[tokio::test]
async fn a_batch_whose_answer_was_lost_is_made_once() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port);
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let mut writer = TestWriter::open(options(vec![url]), P).await;
    writer.put(3).await;
    let tasks = writer.tasks(2);
    proxy.deaf.store(true, Ordering::SeqCst);
    let lost = within(BOUND, writer.send(put(&tasks))).await;
    assert!(is_unavailable(&lost), "{lost:?}");
    let own = keys::own(&name_of(&server), Seat::Partition(P));
    assert_eq!(server.cli(&["HGET", &own, "batch"]).trim(), "2", "Redis has made it");
    proxy.deaf.store(false, Ordering::SeqCst);
    writer.make(put(&tasks)).await;
    writer.living.extend(tasks);
    writer.assert_whole().await;
    writer.settle(2).await;
    writer.assert_whole().await;
}

/// The name of the only store on a server.
fn name_of(server: &RedisServer) -> String {
    let keys = server.cli(&["KEYS", "*:meta"]);
    let (_, name) = keys.trim().split_once('{').expect("a hash tag");
    name.split_once('}').expect("a hash tag").0.to_owned()
}

#[tokio::test]
async fn an_owner_that_slept_is_fenced_and_its_lease_is_over() {
    let server = RedisServer::start(&[]);
    let asked = options(vec![server.url()]);
    let mut old = TestWriter::open(asked.clone(), P).await;
    old.put(2).await;
    let seat = Seat::Partition(P);
    let new = RedisStore::open(asked).await.expect("the store opens").0;
    let held = new.acquire(seat, &broker("b:1"), TTL, NOW).await;
    assert!(matches!(held, Err(StoreError::Held { .. })), "{held:?}");
    // The lease counts by the clock of Redis, whatever the broker's clock says.
    let short = Duration::from_millis(1);
    let lease = old.store.acquire(seat, &broker("a:1"), short, NOW).await.expect("is its own");
    old.epoch = lease.epoch;
    old.number = BatchNo::FIRST;
    wait_briefly().await;
    let taken = new.acquire(seat, &broker("b:1"), TTL, NOW).await.expect("is over");
    assert!(taken.epoch > lease.epoch);
    let tasks = old.tasks(1);
    let fenced = old.send(put(&tasks)).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { current, .. }) if current == taken.epoch));
    assert_eq!(old.store.rewinds(), 0, "somebody else has it, nothing is lost");
    let renewed = old.store.renew(&lease, TTL, at(1)).await;
    assert!(matches!(renewed, Err(StoreError::Held { .. })), "{renewed:?}");
    new.remember_epoch(seat, punctual_core::Epoch::new(77).expect("small"));
    let next = new.acquire(seat, &broker("b:1"), TTL, NOW).await.expect("is its own");
    assert_eq!(next.epoch.get(), 78, "no epoch that anybody saw is given again");
}

#[tokio::test]
async fn without_memory_new_tasks_are_refused_and_the_rest_goes_on() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    writer.put(10).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let tasks = writer.tasks(3);
    for _ in 0..2 {
        let full = writer.send(put(&tasks)).await;
        assert!(matches!(full, Err(StoreError::Full { room: Resource::Memory, .. })), "{full:?}");
    }
    let ended = writer.living[..4].to_vec();
    writer.send(done(&ended)).await.expect("settling goes on");
    writer.living.drain(..4);
    let late = writer.living[0].clone();
    let (late, postponement) = punctual_store::conformance::fixtures::postpone(&late, at(500));
    writer.send(vec![postponement]).await.expect("touching goes on");
    writer.living.remove(0);
    let lease = writer.store.holder(Seat::Partition(P)).await.expect("Redis answers");
    writer.store.renew(&lease.expect("is held"), TTL, NOW).await.expect("renewing goes on");
    let again = Batch { number: BatchNo::new(3), changes: Vec::new() };
    writer.store.apply(P, writer.epoch, again).await.expect("was made");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    writer.send(put(&tasks)).await.expect("there is room again");
    writer.living.extend(tasks);
    writer.living.push(late);
    writer.assert_whole().await;
}

#[tokio::test]
async fn without_memory_a_broker_starts_and_takes_what_nobody_has_any_more() {
    let server = RedisServer::start(&[]);
    let asked = options(vec![server.url()]);
    let mut gone = TestWriter::open(asked.clone(), P).await;
    let secret = gone.store.secret().await.expect("Redis answers");
    gone.put(3).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let seat = Seat::Partition(P);
    let lease = gone.store.holder(seat).await.expect("Redis answers").expect("is held");
    gone.store.release(&lease).await.expect("giving back goes on");
    let store = RedisStore::open(asked).await.expect("it was made before").0;
    assert_eq!(store.secret().await.expect("it was made before"), secret);
    let taken = store.acquire(seat, &broker("b:1"), TTL, NOW).await.expect("is free");
    assert!(taken.epoch > lease.epoch);
    let mut successor = gone;
    (successor.store, successor.epoch, successor.number) = (store, taken.epoch, BatchNo::FIRST);
    let ended = successor.living[..2].to_vec();
    successor.send(done(&ended)).await.expect("settling goes on");
    successor.living.drain(..2);
    successor.assert_whole().await;
}

#[tokio::test]
async fn a_replica_is_not_written_to_and_a_failover_is_followed() {
    let (first, second) = pair();
    let alone = RedisStore::open(options(vec![second.url()])).await;
    assert!(matches!(alone, Err(OpenError::Store(StoreError::Unavailable(_)))), "{alone:?}");
    let mut asked = options(vec![second.url(), first.url()]);
    asked.durability = Durability::Replica;
    let mut writer = TestWriter::open(asked, P).await;
    writer.put(5).await;
    // They change places: the first is a replica from now on.
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    first.cli(&["REPLICAOF", "127.0.0.1", &second.port.to_string()]);
    wait_for("the replica to follow", || replicas(&second));
    writer.put(5).await;
    assert!(writer.repeated > 0, "the first refused to be written to");
    writer.assert_whole().await;
    assert_eq!(writer.store.rewinds(), 0);
}

#[tokio::test]
async fn what_a_replica_has_not_seen_is_not_answered() {
    let (mut first, second) = pair();
    let mut asked = options(vec![first.url(), second.url()]);
    asked.durability = Durability::Replica;
    let mut writer = TestWriter::open(asked, P).await;
    writer.put(5).await;
    second.suspend();
    let tasks = writer.tasks(2);
    for _ in 0..2 {
        // Made by the first, but not as durably as was asked for; also when it is sent again.
        let alone = within(BOUND, writer.send(put(&tasks))).await;
        assert!(is_unavailable(&alone), "{alone:?}");
    }
    second.resume();
    writer.make(put(&tasks)).await;
    writer.living.extend(tasks);
    first.kill();
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(writer.loaded_in_time().await, writer.living.len(), "all that was answered");
    assert_eq!(writer.store.rewinds(), 0);
}

impl TestWriter {
    async fn loaded_in_time(&self) -> usize {
        loop {
            if let Ok(loaded) = within(Duration::from_secs(5), self.loaded()).await {
                return loaded.len();
            }
            wait_briefly().await;
        }
    }
}

#[tokio::test]
async fn a_store_that_has_lost_what_it_answered_is_noticed() {
    let (mut first, second) = pair();
    let mut writer = TestWriter::open(options(vec![first.url(), second.url()]), P).await;
    writer.put(5).await;
    // The link is cut; what is answered now is lost with the first server.
    wait_for("the replica to have it", || has_all_of(&second, &first));
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    writer.put(2).await;
    let epoch = writer.epoch;
    first.kill();
    let tasks = writer.tasks(1);
    let gap = loop {
        match within(Duration::from_secs(5), writer.send(put(&tasks))).await {
            Err(StoreError::Unavailable(_)) => wait_briefly().await,
            other => break other,
        }
    };
    let expected = BatchNo::new(2);
    assert!(
        matches!(gap, Err(StoreError::Gap { expected: is, .. }) if is == expected),
        "says which batch it has last: {gap:?}"
    );
    assert_eq!(writer.store.rewinds(), 1);
    let taken = writer.store.acquire(Seat::Partition(P), &broker("a:1"), TTL, NOW).await;
    assert!(taken.expect("is its own").epoch > epoch);
}

#[tokio::test]
async fn an_epoch_that_was_lost_is_not_given_twice() {
    let (mut first, second) = pair();
    let asked = options(vec![first.url(), second.url()]);
    let mut writer = TestWriter::open(asked.clone(), P).await;
    writer.put(1).await;
    wait_for("the replica to have it", || has_all_of(&second, &first));
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    let seat = Seat::Partition(P);
    let lost = writer.store.acquire(seat, &broker("a:1"), TTL, NOW).await.expect("is its own");
    first.kill();
    // Somebody who knows nothing of it is given the same number by what is left.
    let other = RedisStore::open(options_of(&asked, &second)).await.expect("the store opens").0;
    let own = keys::own(&asked.cluster, seat);
    second.cli(&["HSET", &own, "expires", "0"]);
    let taken = other.acquire(seat, &broker("b:1"), TTL, NOW).await.expect("is over");
    assert_eq!(taken.epoch, lost.epoch);
    writer.epoch = lost.epoch;
    writer.number = BatchNo::FIRST;
    let tasks = writer.tasks(1);
    let fenced = loop {
        match writer.send(put(&tasks)).await {
            Err(StoreError::Unavailable(_)) => wait_briefly().await,
            other => break other,
        }
    };
    assert!(matches!(fenced, Err(StoreError::Fenced { .. })), "the token differs: {fenced:?}");
    assert_eq!(writer.store.rewinds(), 1);
}

fn options_of(asked: &Options, server: &RedisServer) -> Options {
    Options { urls: vec![server.url()], ..asked.clone() }
}

#[tokio::test]
async fn a_server_that_loads_is_unavailable_until_it_has() {
    let mut server = RedisServer::start(&[
        "--loading-process-events-interval-bytes",
        "1024",
        "--key-load-delay",
        "500",
        "--enable-debug-command",
        "yes",
    ]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    writer.put(5).await;
    assert_eq!(server.cli(&["DEBUG", "POPULATE", "2000"]).trim(), "OK");
    server.cli(&["SAVE"]);
    server.kill();
    server.start_again();
    let tasks = writer.tasks(1);
    let mut loading = false;
    loop {
        match within(BOUND, writer.send(put(&tasks))).await {
            Ok(()) => break,
            Err(StoreError::Unavailable(why)) => loading |= why.to_string().contains("loading"),
            Err(other) => unreachable!("a server that loads answered {other}"),
        }
        wait_briefly().await;
    }
    assert!(loading, "was asked while it was loading");
    writer.living.extend(tasks);
    writer.assert_whole().await;
}

#[tokio::test]
async fn the_number_of_partitions_is_fixed_at_first_start() {
    let server = RedisServer::start(&[]);
    let asked = options(vec![server.url()]);
    let (store, warnings) = RedisStore::open(asked.clone()).await.expect("the store opens");
    assert_eq!(store.partitions(), asked.partitions);
    assert_eq!(warnings.len(), 1, "appendonly no: {warnings:?}");
    let other = Options { partitions: Partitions::ONE, ..asked.clone() };
    let refused = RedisStore::open(other).await;
    assert!(matches!(refused, Err(OpenError::Partitions { .. })), "{refused:?}");
    RedisStore::open(asked.clone()).await.expect("the same opens again");
    server.cli(&["HSET", &keys::meta(&asked.cluster), "format", "99"]);
    let refused = RedisStore::open(asked.clone()).await;
    assert!(matches!(refused, Err(OpenError::Format { .. })), "{refused:?}");
    let named = Options { cluster: "a}b".to_owned(), ..asked };
    let refused = RedisStore::open(named).await;
    assert!(matches!(refused, Err(OpenError::Options(_))), "{refused:?}");
    // Two groups of brokers on one server do not see each other.
    let mut one = TestWriter::open(options(vec![server.url()]), P).await;
    let two = TestWriter::open(options(vec![server.url()]), P).await;
    one.put(2).await;
    assert_eq!(two.loaded().await.expect("Redis answers"), []);
}

#[tokio::test]
async fn the_check_at_start_says_what_is_wrong() {
    let server = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    let mut asked = options(vec![server.url()]);
    asked.durability = Durability::Replica;
    let (_, warnings) = RedisStore::open(asked.clone()).await.expect("the store opens");
    for word in ["appendonly no", "allkeys-lru", "no replica"] {
        assert!(warnings.iter().any(|warning| warning.contains(word)), "{word}: {warnings:?}");
    }
    asked.durability = Durability::Fsync;
    let refused = RedisStore::open(asked).await;
    assert!(matches!(refused, Err(OpenError::Server(_))), "{refused:?}");
}

#[tokio::test]
async fn an_end_that_is_known_later_does_not_touch_a_task_that_went_on() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    let task = writer.tasks(1).remove(0);
    let next = next_fire(&task, at(60));
    // Claimed as a letter before it is sent; the task goes on meanwhile.
    let claim = die(&task, at(1), Some(&next));
    writer.make(vec![Change::Put(task.clone()), claim]).await;
    let fire_id = task.fire().id;
    let record = FireRecord::of(&task, FireEnd::Done, at(2));
    let known = Change::Settle { record: record.clone(), next: None, was: TaskState::Firing };
    writer.make(vec![Change::Forget { fire_id, namespace: shop() }, known]).await;
    assert_eq!(writer.store.get(P, &[task.id]).await.expect("Redis answers"), [Some(next.clone())]);
    let key = task.definition.key.clone().expect("has a name");
    let found = writer.store.find(P, &shop(), &[key]).await.expect("Redis answers");
    assert_eq!(found, [Some(Head::of(&next))]);
    let history = writer.store.history(P, task.id, 9).await.expect("Redis answers");
    assert_eq!(history, [record], "it takes the place of the claim");
}

#[tokio::test]
async fn history_that_is_too_large_goes_from_its_old_end() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    let mut ends = Vec::new();
    for second in 0..20 {
        let tasks = writer.tasks(50);
        writer.make(put(&tasks)).await;
        let settled = |task| settle(task, FireEnd::Done, at(second));
        writer.make(tasks.iter().map(settled).collect()).await;
        ends.push(tasks[0].id);
    }
    let half = Retention { history_bytes: 50_000, ..Retention::default() };
    let swept = writer.store.sweep(P, writer.epoch, half, at(20)).await.expect("is the owner");
    assert!(swept.history >= 100 && swept.history % 50 == 0, "{swept:?}");
    let gone = usize::try_from(swept.history / 50).expect("few");
    for (index, id) in ends.iter().enumerate() {
        let kept = writer.store.history(P, *id, 9).await.expect("Redis answers");
        assert_eq!(kept.len(), usize::from(index >= gone), "the oldest {gone} went");
    }
    let again = writer.store.sweep(P, writer.epoch, half, at(20)).await.expect("is the owner");
    assert_eq!(again.history, 0, "the rest is not too large");
    assert_eq!(writer.counts().await.done, 1000);
}

#[tokio::test]
async fn what_a_foreign_hand_wrote_is_an_error_and_no_panic() {
    let server = RedisServer::start(&[]);
    let asked = options(vec![server.url()]);
    let mut writer = TestWriter::open(asked.clone(), P).await;
    writer.put(3).await;
    let keys = keys::Keys::new(&asked.cluster, P);
    let ids = server.cli(&["ZRANGE", &keys.due, "0", "0"]);
    assert!(!ids.is_empty());
    // Bodies that are nobody's, an index without bodies, and a key of another kind.
    server.cli(&["EVAL", "for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('HSET', KEYS[1], id, 'x') end", "1", &keys.tasks]);
    assert!(matches!(writer.loaded().await, Err(StoreError::Broken(_))));
    let id = writer.living[0].id;
    assert!(matches!(writer.store.get(P, &[id]).await, Err(StoreError::Broken(_))));
    server.cli(&["DEL", &keys.tasks]);
    assert!(matches!(writer.loaded().await, Err(StoreError::Broken(_))));
    server.cli(&["SET", &keys.tasks, "x"]);
    assert!(matches!(writer.loaded().await, Err(StoreError::Broken(_))));
    let tasks = writer.tasks(1);
    assert!(matches!(writer.send(put(&tasks)).await, Err(StoreError::Broken(_))));
    server.cli(&["HSET", &keys.own, "epoch", "many"]);
    let holder = writer.store.holder(Seat::Partition(P)).await;
    assert!(matches!(holder, Err(StoreError::Broken(_))), "{holder:?}");
}
