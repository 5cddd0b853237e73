//! Several brokers: which of them is called, which deliver, and what happens when one is gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use punctual_client::{CancelResult, Client, Error, Failure};
use tokio::sync::Semaphore;

use crate::fake_broker::{
    BrokerRecord, FakeBroker, delivery, delivery_with_short_lease, set_topology, start_cluster,
};

#[tokio::test]
async fn the_next_given_address_is_called_when_one_is_unreachable_or_draining() {
    let brokers = [FakeBroker::start().await, FakeBroker::start().await];
    let client = Client::builder("http://127.0.0.1:1").and_all(brokers.iter().map(FakeBroker::url));
    let client = client.timeout(Duration::from_secs(5)).connect().unwrap();
    let shop = client.namespace("shop");
    shop.task().key("a").queue("q").schedule().await.unwrap();
    assert_eq!(brokers[0].record().batches.len(), 1);
    assert_eq!(shop.cancel("a").await.unwrap(), CancelResult::Cancelled);

    brokers[0].record().draining = true;
    assert_eq!(shop.cancel("a").await.unwrap(), CancelResult::Cancelled);
    brokers[0].cut();
    shop.task().key("b").queue("q").schedule().await.unwrap();
    assert_eq!(brokers[1].record().batches.len(), 1);
}

#[tokio::test]
async fn another_broker_of_the_topology_is_called_when_the_given_one_is_gone() {
    let brokers = start_cluster(2).await;
    let shop = brokers[0].client().namespace("shop");
    shop.cancel("a").await.unwrap();
    brokers[0].until(|record| record.topology_requests > 0).await;
    brokers[0].close();
    assert_eq!(shop.get("a").await.unwrap(), None);
    shop.task().key("b").queue("q").schedule().await.unwrap();
    assert_eq!(brokers[1].record().batches.len(), 1);
}

#[tokio::test]
async fn unreachable_addresses_in_the_topology_do_not_stop_a_client() {
    let broker = FakeBroker::start().await;
    set_topology(
        std::slice::from_ref(&broker),
        &["127.0.0.1:1".into(), "127.0.0.1:2".into(), "not an address".into()],
    );
    let shop = broker.client().namespace("shop");
    broker.deliver(delivery(1));
    let worker = shop.worker("q").handler(|_| async { Ok::<_, Failure>(()) }).spawn();
    broker.until(|record| record.topology_requests > 1).await;
    broker.deliver(delivery(2));
    broker.until(|record| record.acked.len() == 2).await;
    broker.cut();
    assert_eq!(shop.get("a").await.unwrap(), None);
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.unsettled), (2, 0));
}

#[tokio::test]
async fn a_call_that_may_have_been_done_is_not_sent_to_another_broker() {
    let brokers = start_cluster(2).await;
    let shop = brokers[0].client().namespace("shop");
    shop.cancel("a").await.unwrap();
    brokers[0].until(|record| record.topology_requests > 0).await;
    brokers[0].hold_answers(true);
    let calls = tokio::spawn({
        let shop = shop.clone();
        async move {
            tokio::join!(
                shop.task().key("named").queue("q").schedule(),
                shop.task().queue("q").schedule(),
            )
        }
    });
    let tasks =
        |record: &BrokerRecord| record.batches.iter().map(|it| it.tasks.len()).sum::<usize>();
    brokers[0].until(|record| tasks(record) == 2).await;
    brokers[0].close();
    let (named, unnamed) = calls.await.unwrap();
    assert_eq!(named.unwrap().id.as_str(), "id-named");
    assert!(matches!(unnamed, Err(Error::Lost(_))), "{unnamed:?}");
    assert_eq!(tasks(&brokers[1].record()), 1);
}

#[tokio::test]
async fn a_refused_batch_is_sent_to_another_broker_whatever_it_contains() {
    let brokers = start_cluster(2).await;
    let client = Client::builder(brokers[0].url()).timeout(Duration::from_secs(2));
    let shop = client.connect().unwrap().namespace("shop");
    shop.task().key("a").queue("q").schedule().await.unwrap();
    brokers[0].until(|record| record.topology_requests > 0).await;
    brokers[0].record().draining = true;
    shop.task().queue("q").schedule().await.unwrap();
    assert_eq!(brokers[1].record().batches.len(), 1);
    // If all brokers refuse the batch, the caller gets an error.
    brokers[1].record().draining = true;
    let refused = shop.task().queue("q").schedule().await;
    assert!(matches!(refused, Err(Error::Busy(_) | Error::TimedOut)), "{refused:?}");
}

#[tokio::test]
async fn a_task_refused_by_a_full_shared_store_is_not_sent_to_another_broker() {
    let brokers = start_cluster(2).await;
    let shop = brokers[0].client().namespace("shop");
    shop.task().key("a").queue("q").schedule().await.unwrap();
    brokers[0].until(|record| record.topology_requests > 0).await;
    let refused = shop.task().key("more").queue("q").schedule().await;
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    let batches = [0, 1].map(|index: usize| brokers[index].record().batches.len());
    assert_eq!(batches, [2, 0]);
}

#[tokio::test]
async fn the_refusal_of_a_draining_broker_without_others_is_returned_at_once() {
    let broker = FakeBroker::start().await;
    let shop = broker.client().namespace("shop");
    shop.task().key("a").queue("q").schedule().await.unwrap();
    broker.record().draining = true;
    let refused = shop.task().key("b").queue("q").schedule().await;
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    assert_eq!(broker.record().batches.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_works_for_all_brokers_and_settles_with_the_one_that_delivered() {
    let brokers = start_cluster(3).await;
    for token in 0..300 {
        brokers[usize::try_from(token % 3).unwrap()].deliver(delivery(token));
    }
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let observed = Arc::clone(&most);
    let worker = brokers[0].client().namespace("shop").worker("q").concurrency(5);
    let worker = worker.handler(move |_| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&observed));
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Failure>(())
        }
    });
    let worker = worker.spawn();
    for (number, broker) in brokers.iter().enumerate() {
        broker.until(|record| record.acked.len() >= 100).await;
        let is_its_own = |token: &u64| usize::try_from(token % 3).unwrap() == number;
        assert!(broker.record().acked.iter().all(is_its_own));
    }
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.stale, worked.unsettled), (300, 0, 0));
    assert!(most.load(Ordering::SeqCst) <= 5, "{most:?} at once");
    for broker in &brokers {
        assert_eq!(broker.record().hellos.len(), 1, "one session each");
    }
}

#[tokio::test]
async fn the_concurrency_bounds_handlers_even_if_there_are_more_brokers() {
    for batches in [false, true] {
        let brokers = start_cluster(3).await;
        let gate = Arc::new(Semaphore::new(0));
        let begun = Arc::new(AtomicU32::new(0));
        let builder = brokers[0].client().namespace("shop").worker("q").concurrency(1);
        let (handler_gate, counted) = (Arc::clone(&gate), Arc::clone(&begun));
        let work = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let gate = Arc::clone(&handler_gate);
            async move { gate.acquire().await.map(tokio::sync::SemaphorePermit::forget) }
        };
        let worker = if batches {
            builder.batch_handler(move |deliveries| {
                let working = work();
                async move {
                    let _ = working.await;
                    deliveries.iter().map(|_| Ok(())).collect()
                }
            })
        } else {
            builder.handler(move |_| {
                let working = work();
                async move { Ok(working.await?) }
            })
        };
        let worker = worker.spawn();
        for broker in &brokers {
            broker.until(|record| record.hellos.len() == 1).await;
        }
        for (token, broker) in brokers.iter().enumerate() {
            broker.deliver(delivery_with_short_lease(token as u64));
        }
        for broker in &brokers {
            broker.until(|record| record.delivered.len() == 1).await;
        }
        // Two deliveries wait, and their leases are extended.
        let extended = |brokers: &[FakeBroker]| {
            brokers.iter().filter(|broker| !broker.record().extended.is_empty()).count()
        };
        for broker in &brokers {
            broker.until(|record| !record.extended.is_empty()).await;
        }
        assert_eq!(extended(&brokers), 3);
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        gate.add_permits(3);
        for broker in &brokers {
            broker.until(|record| record.acked.len() == 1).await;
        }
        assert_eq!(worker.stop().await.unwrap().acked, 3);
    }
}

#[tokio::test]
async fn sessions_follow_the_topology() {
    let brokers = start_cluster(3).await;
    let address = |number: usize| brokers[number].address.to_string();
    set_topology(&brokers, &[address(0), address(1)]);
    let worker = brokers[0].client().namespace("shop").worker("q").concurrency(9);
    let worker = worker.handler(|_| async { Ok::<_, Failure>(()) }).spawn();
    brokers[1].until(|record| !record.hellos.is_empty()).await;
    brokers[1].deliver(delivery(1));
    brokers[1].until(|record| record.acked == [1]).await;
    assert!(brokers[2].record().hellos.is_empty());

    set_topology(&brokers, &[address(0), address(2)]);
    brokers[2].until(|record| !record.hellos.is_empty()).await;
    brokers[2].deliver(delivery(2));
    brokers[2].until(|record| record.acked == [2]).await;
    brokers[1].until(|record| record.sessions == 0).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.unsettled), (2, 0));
}

#[tokio::test]
async fn a_broker_with_two_addresses_has_one_session_and_is_found_at_the_other_if_one_breaks() {
    // The second address belongs to the first broker: it has the same run.
    let brokers = start_cluster(3).await;
    brokers[1].record().run = "run-0".to_owned();
    let worker = brokers[0].client().namespace("shop").worker("q").concurrency(9);
    let worker = worker.handler(|_| async { Ok::<_, Failure>(()) }).spawn();
    for broker in &brokers {
        broker.until(|record| !record.hellos.is_empty()).await;
    }
    let one = || (brokers[0].record().sessions, brokers[1].record().sessions);
    brokers[1].until(|record| record.sessions == 0).await;
    assert_eq!(one(), (1, 0));
    brokers[0].close();
    brokers[1].deliver(delivery(7));
    brokers[1].until(|record| record.acked == [7]).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.unsettled), (1, 0));
}

#[tokio::test]
async fn a_broken_session_does_not_delay_other_brokers_and_is_opened_again() {
    let brokers = start_cluster(2).await;
    let gate = Arc::new(Semaphore::new(0));
    let handler_gate = Arc::clone(&gate);
    let worker = brokers[0].client().namespace("shop").worker("q").concurrency(2);
    let worker = worker.handler(move |delivery| {
        let gate = Arc::clone(&handler_gate);
        async move {
            if delivery.fire_id.as_str() == "fire-1" {
                gate.acquire().await?.forget();
            }
            Ok(())
        }
    });
    let worker = worker.spawn();
    for broker in &brokers {
        broker.until(|record| !record.hellos.is_empty()).await;
    }
    brokers[0].deliver(delivery(1));
    brokers[0].until(|record| record.delivered == [1]).await;
    brokers[0].close();
    gate.add_permits(1);
    for token in 10..20 {
        brokers[1].deliver(delivery(token));
    }
    brokers[1].until(|record| record.acked.len() == 10).await;
    brokers[0].open();
    brokers[0].until(|record| record.acked == [1]).await;
    brokers[0].deliver(delivery(2));
    brokers[0].until(|record| record.acked.contains(&2)).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.unsettled), (12, 0));
    let acked: BTreeSet<u64> = brokers[1].record().acked.iter().copied().collect();
    assert_eq!(acked, (10..20).collect());
}
