//! Working: which deliveries are settled, how, and on which stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use punctual_client::{Dedup, Failure};
use punctual_proto::v1;
use tokio::sync::Semaphore;

use crate::fake_broker::{FakeBroker, delivery};

fn sorted(mut tokens: Vec<u64>) -> Vec<u64> {
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[tokio::test]
async fn the_result_of_a_handler_settles_its_delivery() {
    let broker = FakeBroker::start().await;
    for token in 1..=6 {
        broker.deliver(delivery(token));
    }
    let worker =
        broker.client().namespace("a").worker("q").name("w").handler(|delivery| async move {
            match delivery.fire_id.as_str() {
                "fire-2" => Err(Failure::fail("not now")),
                "fire-3" => Err(Failure::fail("later").retry_in(Duration::from_secs(7))),
                "fire-4" => Err(Failure::refuse("never")),
                "fire-5" => panic!("on purpose"),
                "fire-6" => Ok(delivery.json()?),
                _ => Ok(()),
            }
        });
    let worker = worker.spawn();
    broker
        .until(|record| record.acked.len() + record.failed.len() + record.refused.len() == 6)
        .await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.failed, worked.refused), (1, 4, 1));

    let mut record = broker.record();
    let v1::Hello { namespace, queues, credit, name } = record.hellos.remove(0);
    assert_eq!((namespace, queues, credit, name), ("a".into(), vec!["q".into()], 64, "w".into()));
    assert_eq!(record.acked, [1]);
    record.failed.sort_by_key(|fail| fail.token);
    let reasons: Vec<_> = record.failed.iter().map(|fail| fail.reason.as_str()).collect();
    assert_eq!(reasons[..3], ["not now", "later", "the handler panicked"]);
    assert!(reasons[3].starts_with("EOF"), "{reasons:?}");
    assert_eq!(record.failed[1].retry_in_ms, Some(7_000));
    assert_eq!(record.refused, [v1::Refuse { token: 4, reason: "never".into() }]);
}

#[tokio::test]
async fn a_handler_that_outlives_its_stream_is_settled_on_the_next_stream() {
    let broker = FakeBroker::start().await;
    broker.deliver(delivery(1));
    broker.deliver(delivery(2));
    let gate = Arc::new(Semaphore::new(0));
    let handler_gate = Arc::clone(&gate);
    let worker =
        broker.client().namespace("a").worker("q").concurrency(3).handler(move |delivery| {
            let gate = Arc::clone(&handler_gate);
            async move {
                if delivery.fire_id.as_str() == "fire-1" {
                    gate.acquire().await?.forget();
                }
                Ok(())
            }
        });
    let worker = worker.spawn();
    broker.until(|record| record.acked == [2] && record.delivered.len() == 2).await;
    broker.cut();
    broker.until(|record| record.hellos.len() == 2).await;
    assert_eq!(broker.record().hellos[1].credit, 2, "one of three handlers still runs");
    gate.add_permits(1);
    broker.until(|record| record.acked.contains(&1)).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.unsettled), (2, 0));
    // The ack was sent again: the client cannot know that it arrived before the stream broke.
    assert_eq!(broker.record().acked.iter().filter(|token| **token == 2).count(), 2);
}

#[tokio::test]
async fn tokens_of_an_earlier_run_are_not_sent_to_a_restarted_broker() {
    let broker = FakeBroker::start().await;
    broker.deliver(delivery(1));
    let gate = Arc::new(Semaphore::new(0));
    let handler_gate = Arc::clone(&gate);
    let worker = broker.client().namespace("a").worker("q").handler(move |delivery| {
        let gate = Arc::clone(&handler_gate);
        async move {
            if delivery.fire_id.as_str() == "fire-1" {
                gate.acquire().await?.forget();
            }
            Ok(())
        }
    });
    let worker = worker.spawn();
    broker.until(|record| record.delivered == [1]).await;
    broker.record().run = "second".to_owned();
    broker.cut();
    broker.until(|record| record.hellos.len() == 2).await;
    gate.add_permits(1);
    broker.deliver(delivery(2));
    broker.until(|record| !record.acked.is_empty()).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.unsettled), (2, 1));
    assert_eq!(broker.record().acked, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_settles_everything_it_was_sent() {
    for batches in [false, true] {
        let broker = FakeBroker::start().await;
        for token in 0..20_000 {
            broker.deliver(delivery(token));
        }
        let builder = broker.client().namespace("a").worker("q").concurrency(500);
        let worker = if batches {
            builder.batch_handler(|deliveries| async move {
                tokio::task::yield_now().await;
                deliveries.iter().map(|_| Ok(())).collect()
            })
        } else {
            builder.handler(|_| async {
                tokio::task::yield_now().await;
                Ok(())
            })
        };
        let worker = worker.spawn();
        broker.until(|record| record.acked.len() > 2_000).await;
        let worked = worker.stop().await.unwrap();
        let record = broker.record();
        assert_eq!(sorted(record.acked.clone()), sorted(record.delivered.clone()));
        assert_eq!((worked.acked, worked.unsettled), (record.delivered.len() as u64, 0));
        assert!(!record.due.is_empty(), "the worker stopped before all deliveries were sent");
    }
}

#[tokio::test]
async fn the_lease_of_a_slow_handler_is_extended() {
    let broker = FakeBroker::start().await;
    broker.deliver(v1::Delivery { lease_ms: 60, ..delivery(1) });
    let gate = Arc::new(Semaphore::new(0));
    let handler_gate = Arc::clone(&gate);
    let worker = broker.client().namespace("a").worker("q").handler(move |_| {
        let gate = Arc::clone(&handler_gate);
        async move {
            gate.acquire().await?.forget();
            Ok(())
        }
    });
    let worker = worker.spawn();
    broker.until(|record| record.extended.len() >= 3).await;
    assert!(broker.record().acked.is_empty());
    gate.add_permits(1);
    broker.until(|record| record.acked == [1]).await;
    worker.stop().await.unwrap();
    assert_eq!(broker.record().extended[0], v1::Extend { token: 1, lease_ms: 60 });
}

#[tokio::test]
async fn a_fire_delivered_twice_has_one_effect_and_two_acks() {
    let broker = FakeBroker::start().await;
    broker.deliver(delivery(1));
    broker.deliver(v1::Delivery { token: 2, attempt: 2, ..delivery(1) });
    let effects = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&effects);
    let worker = broker.client().namespace("a").worker("q").dedup(Dedup::in_memory(100));
    let worker = worker.handler(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let worker = worker.spawn();
    broker.until(|record| record.acked.len() == 2).await;
    worker.stop().await.unwrap();
    assert_eq!(effects.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_value_of_a_handler_is_sent_as_the_result() {
    let broker = FakeBroker::start().await;
    for token in 1..=3 {
        broker.deliver(delivery(token));
    }
    let worker = broker.client().namespace("a").worker("q").handler(|delivery| async move {
        Ok::<_, Failure>(match delivery.fire_id.as_str() {
            "fire-1" => Some("x".repeat(3)),
            "fire-2" => None,
            _ => Some("x".repeat(16 * 1024)),
        })
    });
    let worker = worker.spawn();
    broker
        .until(|record| record.acked.len() + record.results.len() + record.failed.len() == 3)
        .await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.failed), (2, 1));
    let record = broker.record();
    assert_eq!((&record.acked[..], record.results[0].token), (&[2][..], 1));
    assert_eq!(record.results[0].result, "\"xxx\"");
    assert_eq!(record.failed[0].reason, "the result must have at most 16384 bytes, has 16386");
}
