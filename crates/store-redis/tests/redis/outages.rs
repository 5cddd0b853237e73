//! Outages of a single Redis: killed, suspended, loading, or behind a connection that loses
//! answers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use punctual_core::Seat;
use punctual_store::conformance::fixtures::{NOW, TTL, at, broker};
use punctual_store::{BatchNo, LeaseStore, StoreError};
use punctual_store_redis::{Durability, RedisOpenError, RedisStore, keys};
use punctual_test_support::ports::free_port;
use punctual_test_support::redis::RedisServer;

use crate::writer::{
    BOUND, P, TestWriter, is_unavailable, name_of, options, put, wait_briefly, within,
};

#[tokio::test]
async fn a_server_that_lost_its_scripts_gets_them_again() {
    let server = RedisServer::start(&[]);
    let mut writer = TestWriter::open(options(vec![server.url()]), P).await;
    for _ in 0..3 {
        let tasks = writer.tasks(2);
        writer.send(put(&tasks)).await.expect("the script is sent whole");
        writer.open.extend(tasks);
        assert_eq!(server.cli(&["SCRIPT", "FLUSH"]).trim(), "OK");
        writer.assert_whole().await;
    }
    assert_eq!(writer.repeated, 0);
}

#[tokio::test]
async fn a_killed_server_comes_back_with_everything_it_acknowledged() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut settings = options(vec![server.url()]);
    settings.durability = Durability::Fsync;
    let mut writer = TestWriter::open(settings, P).await;
    writer.put(10).await;
    server.kill();
    let tasks = writer.tasks(5);
    for _ in 0..3 {
        let killed = within(BOUND, writer.send(put(&tasks))).await;
        assert!(is_unavailable(&killed), "{killed:?}");
        assert!(is_unavailable(&within(BOUND, writer.loaded()).await));
    }
    server.start_again();
    writer.apply(put(&tasks)).await;
    writer.open.extend(tasks);
    writer.assert_whole().await;
    writer.settle(7).await;
    writer.assert_whole().await;
}

/// Redis 7.2 and later can wait for the sync of each second. An older server is refused.
#[tokio::test]
async fn a_batch_is_acknowledged_after_the_file_is_synced_or_the_server_is_refused() {
    let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    let mut settings = options(vec![server.url()]);
    settings.durability = Durability::Fsync;
    settings.timeout = Duration::from_secs(4);
    if server.cli(&["WAITAOF", "0", "0", "1"]).contains("unknown command") {
        let refused = RedisStore::open(settings).await;
        let Err(RedisOpenError::Server(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("7.2"), "{why}");
        return;
    }
    let mut writer = TestWriter::open(settings, P).await;
    writer.put(10).await;
    // The server still writes its file, but syncs it no more.
    assert_eq!(server.cli(&["CONFIG", "SET", "appendfsync", "no"]).trim(), "OK");
    let tasks = writer.tasks(5);
    let unsynced = within(BOUND * 2, writer.send(put(&tasks))).await;
    assert!(is_unavailable(&unsynced), "{unsynced:?}");
    assert_eq!(server.cli(&["CONFIG", "SET", "appendfsync", "everysec"]).trim(), "OK");
    writer.apply(put(&tasks)).await;
    writer.open.extend(tasks);
    writer.assert_whole().await;
}

#[tokio::test]
async fn a_suspended_server_is_unavailable_in_time_and_doubles_nothing() {
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
    writer.apply(put(&tasks)).await;
    writer.open.extend(tasks);
    writer.assert_whole().await;
    // Batches sent to the suspended server may arrive now; they are applied already.
    writer.put(1).await;
    writer.assert_whole().await;
}

/// Forwards connections to a server, and can drop the answers.
struct AnswerProxy {
    port: u16,
    drops_answers: Arc<AtomicBool>,
}

impl AnswerProxy {
    fn start(to: u16) -> Self {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let drops_answers = Arc::new(AtomicBool::new(false));
        let dropping = Arc::clone(&drops_answers);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", to)).expect("the server listens");
                let [from, back] = [client.try_clone(), server.try_clone()];
                let (from, back) = (from.expect("a socket"), back.expect("a socket"));
                std::thread::spawn(move || forward(from, server, None));
                let dropping = Arc::clone(&dropping);
                std::thread::spawn(move || forward(back, client, Some(&dropping)));
            }
        });
        Self { port, drops_answers }
    }
}

/// Forwards bytes until `cut` is set; the bytes that come then are dropped, and both ends closed.
fn forward(mut from: TcpStream, mut to: TcpStream, cut: Option<&AtomicBool>) {
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
async fn a_batch_whose_answer_was_lost_is_applied_once() {
    let server = RedisServer::start(&[]);
    let proxy = AnswerProxy::start(server.port);
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let mut writer = TestWriter::open(options(vec![url]), P).await;
    writer.put(3).await;
    let tasks = writer.tasks(2);
    proxy.drops_answers.store(true, Ordering::SeqCst);
    let lost = within(BOUND, writer.send(put(&tasks))).await;
    assert!(is_unavailable(&lost), "{lost:?}");
    let own = keys::own(&name_of(&server), Seat::Partition(P));
    assert_eq!(server.cli(&["HGET", &own, "batch"]).trim(), "2", "Redis has applied it");
    proxy.drops_answers.store(false, Ordering::SeqCst);
    writer.apply(put(&tasks)).await;
    writer.open.extend(tasks);
    writer.assert_whole().await;
    writer.settle(2).await;
    writer.assert_whole().await;
}

#[tokio::test]
async fn a_late_owner_is_fenced_and_its_lease_has_ended() {
    let server = RedisServer::start(&[]);
    let settings = options(vec![server.url()]);
    let mut old = TestWriter::open(settings.clone(), P).await;
    old.put(2).await;
    let seat = Seat::Partition(P);
    let new = RedisStore::open(settings).await.expect("the store opens").0;
    let held = new.acquire(seat, &broker("b:1"), TTL, NOW).await;
    assert!(matches!(held, Err(StoreError::Held { .. })), "{held:?}");
    // The lease is measured by the clock of Redis, whatever the clock of the broker shows.
    let short = Duration::from_millis(1);
    let lease =
        old.store.acquire(seat, &broker("a:1"), short, NOW).await.expect("the lease is its own");
    old.epoch = lease.epoch;
    old.number = BatchNo::FIRST;
    wait_briefly().await;
    let acquired = new.acquire(seat, &broker("b:1"), TTL, NOW).await.expect("the lease has ended");
    assert!(acquired.epoch > lease.epoch);
    let tasks = old.tasks(1);
    let fenced = old.send(put(&tasks)).await;
    assert!(matches!(fenced, Err(StoreError::Fenced { current, .. }) if current == acquired.epoch));
    assert_eq!(old.store.rewinds(), 0, "another broker owns it, nothing is lost");
    let renewed = old.store.renew(&lease, TTL, at(1)).await;
    assert!(matches!(renewed, Err(StoreError::Held { .. })), "{renewed:?}");
    new.remember_epoch(seat, punctual_core::Epoch::new(77).expect("small"));
    let next = new.acquire(seat, &broker("b:1"), TTL, NOW).await.expect("the lease is its own");
    assert_eq!(next.epoch.get(), 78, "no epoch is given twice");
}

#[tokio::test]
async fn a_server_that_loads_its_file_is_unavailable_until_it_is_done() {
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
            Err(other) => unreachable!("a loading server answered {other}"),
        }
        wait_briefly().await;
    }
    assert!(loading, "a batch was sent while the server was loading");
    writer.open.extend(tasks);
    writer.assert_whole().await;
}
