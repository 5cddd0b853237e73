//! Hand-overs, reports, gauges, polls and settlements, and the connections themselves.

use super::*;
use crate::measures::windows::WindowCounts;

#[tokio::test]
async fn a_partition_is_taken_even_if_the_caller_hangs_up() {
    let mut peer = TestPeer::start(Payload::Empty, None);
    let peers = peers();
    let delivery = InFlight {
        task_id: fire_id().task,
        fire_id: fire_id(),
        namespace: shop(),
        attempt: AttemptNo::FIRST,
        fired_at: Timestamp::EPOCH,
        until: Timestamp::MAX,
        stored_as: StoredAs::Filed,
    };
    let (broker, epoch) = (peer.broker.clone(), Epoch::new(3).unwrap());
    let taking = tokio::spawn({
        let (peers, broker, delivery) = (Arc::clone(&peers), broker.clone(), delivery.clone());
        async move { peers.take(&broker, partition(5), epoch, &[delivery]).await }
    });
    assert_eq!(peer.arrived().await, "take p5 e3 1");
    taking.abort();
    assert!(taking.await.is_err());
    // A second call on the same connection: the peer knows by now that the first was aborted.
    assert!(peers.gauges(&broker, None).await.is_ok());
    peer.let_continue(2);
    assert_eq!(peer.arrived().await, "taken");

    let taken = peers.take(&broker, partition(5), epoch, &[]).await;
    assert_eq!(taken, Ok(Epoch::new(4).unwrap()));
}

#[tokio::test]
async fn reports_gauges_views_polls_and_settlements_arrive() {
    let mut peer = TestPeer::start(Payload::Json(vec![b'1'; 100_000].into()), None);
    let (peers, broker) = (peers(), peer.broker.clone());
    peers.report(&broker, partition(0), &vec![report(); 25_000]).await.unwrap();
    for count in ["report 10000", "report 10000", "report 5000"] {
        assert_eq!(peer.arrived().await, count);
    }
    assert_eq!(peers.gauges(&broker, None).await.unwrap().loaded, 2);
    assert_eq!(peers.gauges(&broker, Some(&shop())).await.unwrap().loaded, 1);
    assert_eq!(peers.view(&broker, &view_query(partition(0))).await.unwrap().connections, 7);
    let vacant = peers.view(&broker, &view_query(partition(VACANT))).await;
    assert_eq!(vacant, Err(PeerError::NotMine));

    let window = Duration::from_secs(60);
    let spec = WindowSpec { namespace: Some(shop()), window, counts: WindowCounts::Failures };
    let sums = peers.measure(&broker, &[spec]).await.unwrap();
    assert_eq!(sums.iter().map(|sum| sum.total).collect::<Vec<_>>(), [60]);
    let series = peers.series(&broker, &shop()).await.unwrap();
    assert_eq!(series.since, Some(Timestamp::EPOCH));

    let queue = Queue::new("orders").unwrap();
    peer.let_continue(1);
    let (wait, lease) = (Duration::from_secs(1), Some(Duration::from_secs(90)));
    let polled = peers.poll(&broker, &poll_options(50, wait, lease)).await.unwrap();
    assert_eq!(peer.arrived().await, "poll shop orders 50 1s Some(90s)");
    let tokens: Vec<u64> = polled.iter().map(|polled| polled.token.0).collect();
    assert_eq!(tokens, (0..50).collect::<Vec<_>>());

    let settlements = [(LeaseToken(1), Settlement::Ack), (LeaseToken(2), Settlement::Ack)];
    let (shop, other) = (shop(), Queue::new("other").unwrap());
    for (queue, first) in [
        (None, SettleResult::Accepted),
        (Some(&queue), SettleResult::Accepted),
        (Some(&other), SettleResult::Stale),
    ] {
        let scope = SettleScope { namespace: &shop, queue };
        let results = peers.settle(&broker, scope, &settlements).await.unwrap();
        assert_eq!(results, [first, SettleResult::Stale], "{queue:?}");
    }
}

#[tokio::test]
async fn polls_do_not_block_other_calls() {
    let mut peer = TestPeer::start(Payload::Empty, None);
    let (peers, broker) = (peers(), peer.broker.clone());
    let polls: Vec<_> = (0..256)
        .map(|_| {
            let (peers, broker) = (Arc::clone(&peers), broker.clone());
            tokio::spawn(async move { peers.poll(&broker, &poll_options(1, LONG, None)).await })
        })
        .collect();
    for _ in 0..256 {
        peer.arrived().await;
    }
    let one_more = peers.poll(&broker, &poll_options(1, LONG, None)).await;
    assert_eq!(one_more, Err(PeerError::Busy));
    assert!(peers.gauges(&broker, None).await.is_ok());
    peer.let_continue(256);
    for poll in polls {
        assert_eq!(poll.await.unwrap().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn connections_to_brokers_that_left_are_dropped_and_made_again_if_they_return() {
    let peer = TestPeer::start(Payload::Empty, None);
    let peers = peers();
    let (other, me) = (BrokerId::new("127.0.0.1:1"), BrokerId::new("here:1"));
    assert!(peers.gauges(&peer.broker, None).await.is_ok());
    assert!(peers.gauges(&other, None).await.is_err());
    assert_eq!(peers.count(), 2);
    peers.retain(std::slice::from_ref(&other));
    assert_eq!(peers.count(), 1);
    assert!(peers.gauges(&peer.broker, None).await.is_ok());
    let error = peers.gauges(&me, None).await.unwrap_err();
    assert_eq!(kind(&error), "refused", "{error}");
}
