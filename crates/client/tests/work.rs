//! Working over real sockets: what is settled, when, and to whom.

mod field;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use field::{Field, delivery};
use punctual_client::{Dedup, Failure};
use punctual_proto::v1;
use tokio::sync::Semaphore;

fn sorted(mut tokens: Vec<u64>) -> Vec<u64> {
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[tokio::test]
async fn what_a_handler_says_is_what_the_broker_hears() {
    let field = Field::new().await;
    for token in 1..=6 {
        field.broker.deliver(delivery(token));
    }
    let worker =
        field.client().namespace("a").worker("q").name("w").handler(|delivery| async move {
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
    field.broker.until(|said| said.acked.len() + said.failed.len() + said.refused.len() == 6).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.failed, worked.refused), (1, 4, 1));

    let mut said = field.broker.said();
    let v1::Hello { namespace, queues, credit, name } = said.hellos.remove(0);
    assert_eq!((namespace, queues, credit, name), ("a".into(), vec!["q".into()], 64, "w".into()));
    assert_eq!(said.acked, [1]);
    said.failed.sort_by_key(|fail| fail.token);
    let reasons: Vec<_> = said.failed.iter().map(|fail| fail.reason.as_str()).collect();
    assert_eq!(reasons[..3], ["not now", "later", "the handler panicked"]);
    assert!(reasons[3].starts_with("EOF"), "{reasons:?}");
    assert_eq!(said.failed[1].retry_in_ms, Some(7_000));
    assert_eq!(said.refused, [v1::Refuse { token: 4, reason: "never".into() }]);
}

#[tokio::test]
async fn a_handler_that_outlives_its_stream_is_settled_on_the_next_one() {
    let field = Field::new().await;
    field.broker.deliver(delivery(1));
    field.broker.deliver(delivery(2));
    let gate = Arc::new(Semaphore::new(0));
    let passed = Arc::clone(&gate);
    let worker =
        field.client().namespace("a").worker("q").concurrency(3).handler(move |delivery| {
            let gate = Arc::clone(&passed);
            async move {
                if delivery.fire_id.as_str() == "fire-1" {
                    gate.acquire().await?.forget();
                }
                Ok(())
            }
        });
    let worker = worker.spawn();
    field.broker.until(|said| said.acked == [2] && said.delivered.len() == 2).await;
    field.cut();
    field.broker.until(|said| said.hellos.len() == 2).await;
    assert_eq!(field.broker.said().hellos[1].credit, 2, "one of three is still under way");
    gate.add_permits(1);
    field.broker.until(|said| said.acked.contains(&1)).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.untold), (2, 0));
    // The ack of the stream that broke was told again: nobody could know that it had arrived.
    assert_eq!(field.broker.said().acked.iter().filter(|token| **token == 2).count(), 2);
}

#[tokio::test]
async fn a_broker_that_was_started_anew_hears_nothing_of_old_tokens() {
    let field = Field::new().await;
    field.broker.deliver(delivery(1));
    let gate = Arc::new(Semaphore::new(0));
    let passed = Arc::clone(&gate);
    let worker = field.client().namespace("a").worker("q").handler(move |delivery| {
        let gate = Arc::clone(&passed);
        async move {
            if delivery.fire_id.as_str() == "fire-1" {
                gate.acquire().await?.forget();
            }
            Ok(())
        }
    });
    let worker = worker.spawn();
    field.broker.until(|said| said.delivered == [1]).await;
    field.broker.said().run = "second".to_owned();
    field.cut();
    field.broker.until(|said| said.hellos.len() == 2).await;
    gate.add_permits(1);
    field.broker.deliver(delivery(2));
    field.broker.until(|said| !said.acked.is_empty()).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.untold), (2, 1));
    assert_eq!(field.broker.said().acked, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_settles_all_that_it_was_sent() {
    for batches in [false, true] {
        let field = Field::new().await;
        for token in 0..20_000 {
            field.broker.deliver(delivery(token));
        }
        let builder = field.client().namespace("a").worker("q").concurrency(500);
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
        field.broker.until(|said| said.acked.len() > 2_000).await;
        let worked = worker.stop().await.unwrap();
        let said = field.broker.said();
        assert_eq!(sorted(said.acked.clone()), sorted(said.delivered.clone()));
        assert_eq!((worked.acked, worked.untold), (said.delivered.len() as u64, 0));
        assert!(!said.due.is_empty(), "it stopped before it was all done");
    }
}

#[tokio::test]
async fn a_slow_handler_keeps_its_lease() {
    let field = Field::new().await;
    field.broker.deliver(v1::Delivery { lease_ms: 60, ..delivery(1) });
    let gate = Arc::new(Semaphore::new(0));
    let passed = Arc::clone(&gate);
    let worker = field.client().namespace("a").worker("q").handler(move |_| {
        let gate = Arc::clone(&passed);
        async move {
            gate.acquire().await?.forget();
            Ok(())
        }
    });
    let worker = worker.spawn();
    field.broker.until(|said| said.extended.len() >= 3).await;
    assert!(field.broker.said().acked.is_empty());
    gate.add_permits(1);
    field.broker.until(|said| said.acked == [1]).await;
    worker.stop().await.unwrap();
    assert_eq!(field.broker.said().extended[0], v1::Extend { token: 1, lease_ms: 60 });
}

#[tokio::test]
async fn a_fire_that_is_delivered_twice_has_one_effect_and_two_acks() {
    let field = Field::new().await;
    field.broker.deliver(delivery(1));
    field.broker.deliver(v1::Delivery { token: 2, attempt: 2, ..delivery(1) });
    let effects = Arc::new(AtomicU32::new(0));
    let had = Arc::clone(&effects);
    let worker = field.client().namespace("a").worker("q").dedup(Dedup::in_memory(100));
    let worker = worker.handler(move |_| {
        had.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let worker = worker.spawn();
    field.broker.until(|said| said.acked.len() == 2).await;
    worker.stop().await.unwrap();
    assert_eq!(effects.load(Ordering::Relaxed), 1);
}
