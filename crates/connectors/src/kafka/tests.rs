use std::time::Duration;

use punctual_core::{Guarantee, MessageOptions, MessageSystem};
use punctual_test_support::KafkaCluster;

use super::*;
use crate::sink_fixtures::{Wanted, connection_of, shown};

async fn open(toml: &str) -> Result<Box<dyn SinkSession>, String> {
    let connection = connection_of(toml);
    sink(&connection.name, connection.system.link().unwrap(), 1000).connect().await
}

async fn session(cluster: &KafkaCluster) -> Box<dyn SinkSession> {
    let url = format!("kafka://{}", cluster.addresses());
    open(&format!("kind = \"kafka\"\nurl = {url:?}")).await.unwrap()
}

fn to(topic: &str) -> Wanted {
    Wanted::to(MessageSystem::Kafka, topic)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_confirmed_with_headers_in_the_partition_of_their_key() {
    let cluster = KafkaCluster::start(3);
    cluster.make_topic("orders", 7);
    let mut session = session(&cluster).await;
    let key = Some("foobar".to_owned());
    let headers = vec![("region".to_owned(), "eu".to_owned())];
    let options = MessageOptions { key, headers, ..MessageOptions::default() };
    let own_key = Wanted { options, ..to("orders").key("21") };
    let mut batch = vec![to("orders").key("21").delivery(1), own_key.delivery(2)];
    batch.extend((3..10).map(|number| to("orders").delivery(number)));
    let sent = session.send(&batch).await;
    let results = shown(&sent.results);
    assert!(results.iter().all(|result| result.starts_with("acked: topic orders")), "{results:?}");
    // The hashes are those of Kafka's own tests.
    let partition = |hash: i32| u64::try_from((hash & i32::MAX) % 7).unwrap();
    let records = cluster.records("orders", 7);
    assert_eq!(records.len(), batch.len());
    for (number, key, hash) in [(0, "21", -973_932_308), (1, "foobar", -790_332_482)] {
        let id = batch[number].fire_id.to_string();
        let record = records.iter().find(|record| record.header("webhook-id") == Some(&*id));
        let record = record.unwrap();
        assert_eq!((record.key.as_deref(), record.partition), (Some(key), partition(hash)));
        assert_eq!(record.value.as_deref(), Some("{\"order\":42}"));
        assert_eq!(record.header("punctual-namespace"), Some("shop"));
        assert_eq!(record.header("punctual-key"), Some("21"));
        assert_eq!(record.header("content-type"), Some("application/json"));
        assert_eq!(record.header("region"), (number == 1).then_some("eu"));
        let text = format!("acked: topic orders, partition {}, offset ", partition(hash));
        assert!(results[number].starts_with(&text), "{results:?}");
    }
    assert_eq!(records.iter().filter(|record| record.key.is_none()).count(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_refuses_a_record_says_why() {
    let cluster = KafkaCluster::start(3);
    cluster.make_topic("orders", 1);
    let mut session = session(&cluster).await;
    // Message too large, topic authorization failed, invalid record.
    for (code, expected) in [
        (10, "refused: broker error: MessageTooLarge"),
        (29, "failed: broker error: TopicAuthorizationFailed"),
        (87, "refused: broker error: InvalidRecord"),
    ] {
        cluster.refuse_writes(&[code]);
        let sent = session.send(&[to("orders").delivery(1)]).await;
        let results = shown(&sent.results);
        assert!(results[0].starts_with(expected), "{code}: {results:?}");
        assert_eq!(sent.lost, None);
    }
    let sent = session.send(&[to("orders").delivery(2)]).await;
    assert!(shown(&sent.results)[0].starts_with("acked"), "{:?}", sent.results);
    assert_eq!(cluster.records("orders", 1).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_moved_costs_no_attempt() {
    let cluster = KafkaCluster::start(3);
    cluster.make_topic("orders", 1);
    let mut session = session(&cluster).await;
    // Not the leader of the partition.
    cluster.refuse_writes(&[6]);
    let sent = session.send(&[to("orders").delivery(1)]).await;
    assert!(shown(&sent.results)[0].starts_with("acked"), "{:?}", sent.results);
    assert_eq!(cluster.records("orders", 1).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_was_lost_costs_no_attempt() {
    let cluster = KafkaCluster::start(1);
    cluster.make_topic("orders", 1);
    let mut session = session(&cluster).await;
    let first = session.send(&[to("orders").delivery(1)]).await;
    assert!(shown(&first.results)[0].starts_with("acked"), "{:?}", first.results);
    cluster.cut_after_requests();
    let second = to("orders").delivery(2);
    let sent = session.send(std::slice::from_ref(&second)).await;
    assert!(shown(&sent.results)[0].starts_with("acked"), "{:?}", sent.results);
    // The mock cluster does not recognise the sequence numbers, so it has the record twice.
    let id = second.fire_id.to_string();
    let records = cluster.records("orders", 1);
    let ids = records[1..].iter().map(|record| record.header("webhook-id"));
    assert!(records.len() >= 2 && ids.into_iter().all(|found| found == Some(&*id)), "{records:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_are_gone_end_the_session() {
    let cluster = KafkaCluster::start(3);
    cluster.make_topic("orders", 1);
    let mut session = session(&cluster).await;
    assert_eq!(session.check().await, Ok(()));
    let first = session.send(&[to("orders").delivery(1)]).await;
    assert!(shown(&first.results)[0].starts_with("acked"), "{:?}", first.results);
    cluster.close();
    let sent = session.send(&[to("orders").delivery(2)]).await;
    assert!(shown(&sent.results)[0].starts_with("failed: "), "{:?}", sent.results);
    assert!(sent.lost.is_some());
    let url = format!("kafka://{}", cluster.addresses());
    let toml = format!("kind = \"kafka\"\nurl = {url:?}");
    assert!(open(&toml).await.is_err());
    cluster.open();
    let mut session = open(&toml).await.unwrap();
    let sent = session.send(&[to("orders").delivery(2)]).await;
    assert!(shown(&sent.results)[0].starts_with("acked"), "{:?}", sent.results);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_cluster_leaves_the_outcome_unknown() {
    let cluster = KafkaCluster::start(3);
    cluster.make_topic("orders", 1);
    let mut session = session(&cluster).await;
    let first = session.send(&[to("orders").delivery(1)]).await;
    assert!(shown(&first.results)[0].starts_with("acked"), "{:?}", first.results);
    cluster.delay(2000);
    let wanted = to("orders").timeout(Duration::from_millis(500));
    let batch = [wanted.delivery(2), wanted.guarantee(Guarantee::AtMostOnce).delivery(3)];
    let sent = session.send(&batch).await;
    assert_eq!(shown(&sent.results), ["failed: no confirmation in time", "expired"]);
    assert!(sent.lost.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_not_there_fails_and_is_not_made() {
    let cluster = KafkaCluster::start(3);
    let mut session = session(&cluster).await;
    let batch = [to("missing").delivery(1), to("missing").delivery(2)];
    let sent = session.send(&batch).await;
    let results = shown(&sent.results);
    assert!(results.iter().all(|result| result.starts_with("failed: ")), "{results:?}");
    assert!(results[0].contains("missing"), "{results:?}");
}
