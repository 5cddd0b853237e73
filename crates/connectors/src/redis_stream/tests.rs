use std::time::Duration;

use punctual_core::{Guarantee, MessageOptions, MessageSystem, Outcome};
use punctual_test_support::redis::RedisServer;

use super::*;
use crate::sink_fixtures::{Wanted, connection_of, shown};

async fn open(url: &str) -> Result<Box<dyn SinkSession>, String> {
    let connection = connection_of(&format!("kind = \"redis\"\nurl = {url:?}"));
    sink(&connection.name, connection.system.link().unwrap(), 1000).connect().await
}

fn to(stream: &str) -> Wanted {
    Wanted::to(MessageSystem::RedisStream, stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_has_the_headers_as_fields_and_the_body_as_payload() {
    let server = RedisServer::start(&[]);
    let mut session = open(&format!("{}/3", server.url())).await.unwrap();
    let batch = [to("orders").key("order-1").delivery(1), to("orders").delivery(2)];
    let sent = session.send(&batch).await;
    let ids = server.cli(&["-n", "3", "XRANGE", "orders", "-", "+"]);
    for (result, delivery) in shown(&sent.results).iter().zip(&batch) {
        let id = result.strip_prefix("acked: entry ").unwrap_or_else(|| panic!("{result}"));
        assert!(ids.contains(id), "{id}: {ids}");
        assert!(ids.contains(&delivery.fire_id.to_string()), "{ids}");
    }
    let lines: Vec<&str> = ids.lines().collect();
    for (name, value) in [
        ("punctual-namespace", "shop"),
        ("punctual-key", "order-1"),
        ("punctual-attempt", "1"),
        ("content-type", "application/json"),
        ("payload", "{\"order\":42}"),
    ] {
        let found = lines.windows(2).any(|pair| pair == [name, value]);
        assert!(found, "{name}: {ids}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_keeps_about_as_many_entries_as_the_task_says() {
    let server = RedisServer::start(&["--stream-node-max-entries", "10"]); // words: allow
    let mut session = open(&server.url()).await.unwrap();
    let options = MessageOptions { stream_length: Some(20), ..MessageOptions::default() };
    let wanted = Wanted { options, ..to("orders") };
    let batch: Vec<_> = (0..200).map(|number| wanted.delivery(number)).collect();
    let sent = session.send(&batch).await;
    let acked = |result: &AttemptResult| result.outcome == Outcome::Acked;
    assert!(sent.results.iter().all(|result| result.as_ref().is_some_and(acked)));
    let length: u64 = server.cli(&["XLEN", "orders"]).trim().parse().unwrap();
    assert!((20..=40).contains(&length), "{length}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_server_fail_the_attempt_with_what_it_said() {
    let server = RedisServer::start(&[]);
    server.cli(&["SET", "text", "x"]);
    server.cli(&["ACL", "SETUSER", "limited", "on", ">pw", "~orders", "~text", "+xadd", "+ping"]);
    let url = format!("redis://limited:pw@127.0.0.1:{}", server.port);
    let mut session = open(&url).await.unwrap();
    let batch = [to("text").delivery(1), to("orders").delivery(2), to("other").delivery(3)];
    let sent = session.send(&batch).await;
    let results = shown(&sent.results);
    assert!(results[0].contains("failed: ") && results[0].contains("WRONGTYPE"), "{results:?}");
    assert!(results[1].starts_with("acked: entry"), "{results:?}");
    assert!(results[2].contains("failed: ") && results[2].contains("NOPERM"), "{results:?}");
    assert_eq!(sent.lost, None);
    assert_eq!(session.check().await, Ok(()));

    let mut session = open(&server.url()).await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let sent = session.send(&[to("orders").delivery(4)]).await;
    assert!(shown(&sent.results)[0].contains("OOM"), "{:?}", sent.results);
    assert_eq!(sent.lost, None);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let error = open(&format!("redis://limited:wrong@127.0.0.1:{}", server.port)).await;
    let error = error.err().unwrap();
    assert!(!error.contains("wrong@"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_to_the_server_that_accepts_writes() {
    let (first, second) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let url = format!("redis://127.0.0.1:{},127.0.0.1:{}", first.port, second.port);
    let mut session = open(&url).await.unwrap();
    let port = second.port.to_string();
    first.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let sent = session.send(&[to("orders").delivery(1)]).await;
    assert!(shown(&sent.results)[0].contains("READONLY"), "{:?}", shown(&sent.results));
    assert!(sent.lost.is_some());
    let mut session = open(&url).await.unwrap();
    let sent = session.send(&[to("orders").delivery(1)]).await;
    assert!(shown(&sent.results)[0].starts_with("acked"), "{:?}", sent.results);
    assert_eq!(second.cli(&["XLEN", "orders"]).trim(), "1");
    let only_replica = open(&first.url()).await.err().unwrap();
    assert_eq!(only_replica, "the server is a replica");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_or_is_silent_leaves_the_outcome_unknown() {
    for silent in [true, false] {
        let mut server = RedisServer::start(&[]);
        let mut session = open(&server.url()).await.unwrap();
        let wanted = to("orders").timeout(Duration::from_millis(500));
        let batch = [wanted.delivery(1), wanted.guarantee(Guarantee::AtMostOnce).delivery(2)];
        server.suspend();
        let sent = match silent {
            true => session.send(&batch).await,
            false => tokio::join!(session.send(&batch), async { server.kill() }).0,
        };
        let results = shown(&sent.results);
        assert!(results[0].starts_with("failed: "), "{results:?}");
        assert_eq!(results[1], "expired");
        assert!(sent.lost.is_some());
    }
}
