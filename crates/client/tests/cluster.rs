//! Several brokers over real sockets: who is asked, who delivers, and what happens when one goes.

mod field;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use field::{Field, cluster, delivery, know};
use punctual_client::{CancelResult, Client, Error, Failure};
use tokio::sync::Semaphore;

#[tokio::test]
async fn the_next_of_the_given_addresses_is_asked_when_one_is_away_or_stops() {
    let fields = [Field::new().await, Field::new().await];
    let client = Client::builder("http://127.0.0.1:1").and_all(fields.iter().map(Field::url));
    let client = client.timeout(Duration::from_secs(5)).connect().unwrap();
    let shop = client.namespace("shop");
    shop.task().key("a").queue("q").schedule().await.unwrap();
    assert_eq!(fields[0].broker.said().batches.len(), 1);
    assert_eq!(shop.cancel("a").await.unwrap(), CancelResult::Cancelled);

    fields[0].broker.said().draining = true;
    assert_eq!(shop.cancel("a").await.unwrap(), CancelResult::Cancelled);
    fields[0].cut();
    shop.task().key("b").queue("q").schedule().await.unwrap();
    assert_eq!(fields[1].broker.said().batches.len(), 1);
}

#[tokio::test]
async fn a_broker_of_the_topology_takes_over_when_the_given_one_is_gone() {
    let fields = cluster(2).await;
    let shop = fields[0].client().namespace("shop");
    shop.cancel("a").await.unwrap();
    fields[0].broker.until(|said| said.looks > 0).await;
    fields[0].close();
    assert_eq!(shop.get("a").await.unwrap(), None);
    shop.task().key("b").queue("q").schedule().await.unwrap();
    assert_eq!(fields[1].broker.said().batches.len(), 1);
}

#[tokio::test]
async fn addresses_that_lead_nowhere_do_not_keep_a_client_from_working() {
    let field = Field::new().await;
    know(
        std::slice::from_ref(&field),
        &["127.0.0.1:1".into(), "127.0.0.1:2".into(), "not an address".into()],
    );
    let shop = field.client().namespace("shop");
    field.broker.deliver(delivery(1));
    let worker = shop.worker("q").handler(|_| async { Ok::<_, Failure>(()) }).spawn();
    field.broker.until(|said| said.looks > 1).await;
    field.broker.deliver(delivery(2));
    field.broker.until(|said| said.acked.len() == 2).await;
    field.cut();
    assert_eq!(shop.get("a").await.unwrap(), None);
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.untold), (2, 0));
}

#[tokio::test]
async fn what_may_have_been_done_is_not_asked_of_another_broker() {
    let fields = cluster(2).await;
    let shop = fields[0].client().namespace("shop");
    shop.cancel("a").await.unwrap();
    fields[0].broker.until(|said| said.looks > 0).await;
    fields[0].broker.holds_answers.store(true, Ordering::Relaxed);
    let calls = tokio::spawn({
        let shop = shop.clone();
        async move {
            tokio::join!(
                shop.task().key("named").queue("q").schedule(),
                shop.task().queue("q").schedule(),
            )
        }
    });
    let tasks = |said: &field::Said| said.batches.iter().map(|it| it.tasks.len()).sum::<usize>();
    fields[0].broker.until(|said| tasks(said) == 2).await;
    fields[0].close();
    let (named, unnamed) = calls.await.unwrap();
    assert_eq!(named.unwrap().id.as_str(), "id-named");
    assert!(matches!(unnamed, Err(Error::Lost(_))), "{unnamed:?}");
    assert_eq!(tasks(&fields[1].broker.said()), 1);
}

#[tokio::test]
async fn a_batch_that_a_broker_did_not_take_goes_to_another_whatever_is_in_it() {
    let fields = cluster(2).await;
    let client = Client::builder(fields[0].url()).timeout(Duration::from_secs(2));
    let shop = client.connect().unwrap().namespace("shop");
    shop.task().key("a").queue("q").schedule().await.unwrap();
    fields[0].broker.until(|said| said.looks > 0).await;
    fields[0].broker.said().draining = true;
    shop.task().queue("q").schedule().await.unwrap();
    assert_eq!(fields[1].broker.said().batches.len(), 1);
    // If nobody takes it, that is told.
    fields[1].broker.said().draining = true;
    let refused = shop.task().queue("q").schedule().await;
    assert!(matches!(refused, Err(Error::Busy(_) | Error::TimedOut)), "{refused:?}");
}

#[tokio::test]
async fn what_the_shared_store_has_no_room_for_is_not_taken_to_another_broker() {
    let fields = cluster(2).await;
    let shop = fields[0].client().namespace("shop");
    shop.task().key("a").queue("q").schedule().await.unwrap();
    fields[0].broker.until(|said| said.looks > 0).await;
    let refused = shop.task().key("more").queue("q").schedule().await;
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    let asked = [0, 1].map(|index: usize| fields[index].broker.said().batches.len());
    assert_eq!(asked, [2, 0]);
}

#[tokio::test]
async fn a_sole_broker_that_stops_is_told_at_once_as_before() {
    let field = Field::new().await;
    let shop = field.client().namespace("shop");
    shop.task().key("a").queue("q").schedule().await.unwrap();
    field.broker.said().draining = true;
    let refused = shop.task().key("b").queue("q").schedule().await;
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    assert_eq!(field.broker.said().batches.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_works_for_all_brokers_and_settles_with_the_one_that_delivered() {
    let fields = cluster(3).await;
    for token in 0..300 {
        fields[usize::try_from(token % 3).unwrap()].broker.deliver(delivery(token));
    }
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let seen = Arc::clone(&most);
    let worker = fields[0].client().namespace("shop").worker("q").concurrency(5);
    let worker = worker.handler(move |_| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&seen));
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
    for (number, field) in fields.iter().enumerate() {
        field.broker.until(|said| said.acked.len() >= 100).await;
        let of_it = |token: &u64| usize::try_from(token % 3).unwrap() == number;
        assert!(field.broker.said().acked.iter().all(of_it));
    }
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.stale, worked.untold), (300, 0, 0));
    assert!(most.load(Ordering::SeqCst) <= 5, "{most:?} at once");
    for field in &fields {
        assert_eq!(field.broker.said().hellos.len(), 1, "one session each");
    }
}

#[tokio::test]
async fn never_more_handlers_than_the_concurrency_even_if_it_is_less_than_brokers() {
    for batches in [false, true] {
        let fields = cluster(3).await;
        let gate = Arc::new(Semaphore::new(0));
        let begun = Arc::new(AtomicU32::new(0));
        let builder = fields[0].client().namespace("shop").worker("q").concurrency(1);
        let (passed, counted) = (Arc::clone(&gate), Arc::clone(&begun));
        let work = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let gate = Arc::clone(&passed);
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
        for field in &fields {
            field.broker.until(|said| said.hellos.len() == 1).await;
        }
        for (token, field) in fields.iter().enumerate() {
            field.broker.deliver(field::short(token as u64));
        }
        for field in &fields {
            field.broker.until(|said| said.delivered.len() == 1).await;
        }
        // Two of them wait, and their leases are extended meanwhile.
        let extended = |fields: &[Field]| {
            fields.iter().filter(|field| !field.broker.said().extended.is_empty()).count()
        };
        for field in &fields {
            field.broker.until(|said| !said.extended.is_empty()).await;
        }
        assert_eq!(extended(&fields), 3);
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        gate.add_permits(3);
        for field in &fields {
            field.broker.until(|said| said.acked.len() == 1).await;
        }
        assert_eq!(worker.stop().await.unwrap().acked, 3);
    }
}

#[tokio::test]
async fn sessions_come_and_go_with_the_topology() {
    let fields = cluster(3).await;
    let address = |number: usize| fields[number].address.to_string();
    know(&fields, &[address(0), address(1)]);
    let worker = fields[0].client().namespace("shop").worker("q").concurrency(9);
    let worker = worker.handler(|_| async { Ok::<_, Failure>(()) }).spawn();
    fields[1].broker.until(|said| !said.hellos.is_empty()).await;
    fields[1].broker.deliver(delivery(1));
    fields[1].broker.until(|said| said.acked == [1]).await;
    assert!(fields[2].broker.said().hellos.is_empty());

    know(&fields, &[address(0), address(2)]);
    fields[2].broker.until(|said| !said.hellos.is_empty()).await;
    fields[2].broker.deliver(delivery(2));
    fields[2].broker.until(|said| said.acked == [2]).await;
    fields[1].broker.until(|said| said.sessions == 0).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.untold), (2, 0));
}

#[tokio::test]
async fn a_broker_with_two_addresses_has_one_session_and_is_found_by_the_other_if_one_breaks() {
    // The second is another door to the first: the same run.
    let fields = cluster(3).await;
    fields[1].broker.said().run = "run-0".to_owned();
    let worker = fields[0].client().namespace("shop").worker("q").concurrency(9);
    let worker = worker.handler(|_| async { Ok::<_, Failure>(()) }).spawn();
    for field in &fields {
        field.broker.until(|said| !said.hellos.is_empty()).await;
    }
    let one = || (fields[0].broker.said().sessions, fields[1].broker.said().sessions);
    fields[1].broker.until(|said| said.sessions == 0).await;
    assert_eq!(one(), (1, 0));
    fields[0].close();
    fields[1].broker.deliver(delivery(7));
    fields[1].broker.until(|said| said.acked == [7]).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.untold), (1, 0));
}

#[tokio::test]
async fn a_broken_session_keeps_nobody_else_waiting_and_is_opened_again() {
    let fields = cluster(2).await;
    let gate = Arc::new(Semaphore::new(0));
    let passed = Arc::clone(&gate);
    let worker = fields[0].client().namespace("shop").worker("q").concurrency(2);
    let worker = worker.handler(move |delivery| {
        let gate = Arc::clone(&passed);
        async move {
            if delivery.fire_id.as_str() == "fire-1" {
                gate.acquire().await?.forget();
            }
            Ok(())
        }
    });
    let worker = worker.spawn();
    for field in &fields {
        field.broker.until(|said| !said.hellos.is_empty()).await;
    }
    fields[0].broker.deliver(delivery(1));
    fields[0].broker.until(|said| said.delivered == [1]).await;
    fields[0].close();
    gate.add_permits(1);
    for token in 10..20 {
        fields[1].broker.deliver(delivery(token));
    }
    fields[1].broker.until(|said| said.acked.len() == 10).await;
    fields[0].open();
    fields[0].broker.until(|said| said.acked == [1]).await;
    fields[0].broker.deliver(delivery(2));
    fields[0].broker.until(|said| said.acked.contains(&2)).await;
    let worked = worker.stop().await.unwrap();
    assert_eq!((worked.acked, worked.untold), (12, 0));
    let acked: BTreeSet<u64> = fields[1].broker.said().acked.iter().copied().collect();
    assert_eq!(acked, (10..20).collect());
}
