//! Commands that are forwarded: order, batches, limits, and peers that fail.

use super::*;

#[tokio::test]
async fn a_peer_answers_each_command_in_order() {
    let peer = TestPeer::start(Payload::Empty, None);
    peer.let_continue(1);
    let commands: Vec<_> = (0..5000).map(|number| get(&number.to_string())).collect();
    let answers = peers().forward(&peer.broker, partition(0), &commands).await.unwrap();
    assert_eq!(versions(&answers), (0..5000).collect::<Vec<_>>());
}

#[tokio::test]
async fn replies_longer_than_the_largest_message_arrive() {
    let peer = TestPeer::start(Payload::Json(vec![b' '; 256 * 1024].into()), None);
    peer.let_continue(1);
    // More than the largest message.
    let commands: Vec<_> = (0..400).map(|number| get(&number.to_string())).collect();
    let answers = peers().forward(&peer.broker, partition(0), &commands).await.unwrap();
    assert_eq!(versions(&answers), (0..400).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_peer_that_does_not_own_the_partition_refuses() {
    let peer = TestPeer::start(Payload::Empty, None);
    let peers = peers();
    let sent = peers.forward(&peer.broker, partition(VACANT), &[get("1")]).await;
    assert_eq!(sent, Err(PeerError::NotMine));
    let reported = peers.report(&peer.broker, partition(VACANT), &[report()]).await;
    assert_eq!(reported, Err(PeerError::NotMine));
}

#[tokio::test]
async fn when_a_peer_is_killed_the_call_in_flight_is_lost_and_the_queued_ones_are_unsent() {
    let mut peer = TestPeer::start(Payload::Empty, None);
    let peers = peers();
    let forward = |key: &str| tokio::spawn(peers.forward(&peer.broker, partition(0), &[get(key)]));
    let first = forward("1");
    assert_eq!(peer.arrived.recv().await.unwrap(), "1");
    let behind = ["2", "3"].map(forward);
    peer.kill();
    let first = timeout(LONG, first).await.unwrap().unwrap().unwrap_err();
    assert_eq!(kind(&first), "lost", "{first}");
    for behind in behind {
        let behind = behind.await.unwrap().unwrap_err();
        assert_eq!(kind(&behind), "unreachable", "{behind}");
    }
    // The connection is known to be broken, and nothing listens at the address any more.
    let after = peers.forward(&peer.broker, partition(0), &[get("4")]).await.unwrap_err();
    assert_eq!(kind(&after), "unreachable", "{after}");
}

/// At whatever moment a peer is killed: a call that failed for certain never arrived, and a call
/// that was answered did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_failed_for_certain_never_arrived() {
    let mut seen = [0; 3];
    for round in 0..20 {
        let mut peer = TestPeer::start(Payload::Empty, None);
        peer.let_continue(100_000);
        let peers = peers();
        let callers: Vec<_> = (0..6)
            .map(|caller| {
                let (peers, broker) = (Arc::clone(&peers), peer.broker.clone());
                tokio::spawn(async move {
                    let mut answered = Vec::new();
                    for number in 0..40 {
                        let key = format!("{caller}-{number}");
                        // Two callers per partition, so that some commands share a message.
                        let sent =
                            peers.forward(&broker, partition(caller / 2), &[get(&key)]).await;
                        answered.push((key, sent.map(drop)));
                    }
                    answered
                })
            })
            .collect();
        let mut arrived = BTreeSet::new();
        for _ in 0..=5 * round {
            arrived.extend(peer.arrived().await.split(' ').map(str::to_owned));
        }
        peer.kill();
        for caller in callers {
            for (key, answered) in caller.await.unwrap() {
                while let Ok(keys) = peer.arrived.try_recv() {
                    arrived.extend(keys.split(' ').map(str::to_owned));
                }
                match answered {
                    Ok(()) => assert!(arrived.contains(&key), "{key} was answered"),
                    Err(PeerError::Lost(_)) => seen[1] += 1,
                    Err(error) => assert!(!arrived.contains(&key), "{key} arrived: {error}"),
                }
            }
        }
        seen[0] += arrived.len();
        seen[2] += 240 - arrived.len();
    }
    assert!(seen.iter().all(|seen| *seen > 0), "answered, lost and unsent: {seen:?}");
}

#[tokio::test]
async fn a_call_to_an_address_without_a_listener_is_unsent() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let broker = BrokerId::new(&format!("127.0.0.1:{port}"));
    let peers = peers();
    let errors = [
        peers.forward(&broker, partition(0), &[get("1")]).await.unwrap_err(),
        peers.take(&broker, partition(0), Epoch::NONE, &[]).await.unwrap_err(),
        peers.gauges(&broker, None).await.unwrap_err(),
        peers.gauges(&BrokerId::new("no address"), None).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(kind(&error), "unreachable", "{error}");
    }
}

#[tokio::test]
async fn a_call_to_a_silent_peer_is_lost_within_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let broker = BrokerId::new(&listener.local_addr().unwrap().to_string());
    let silent = tokio::spawn(async move {
        let _connection = listener.accept().await;
        std::future::pending::<()>().await;
    });
    let sent = peers().forward(&broker, partition(0), &[get("1")]);
    let error = timeout(Duration::from_secs(8), sent).await.unwrap().unwrap_err();
    assert_eq!(kind(&error), "lost", "{error}");
    silent.abort();
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_before_it_is_sent() {
    let mut peer = TestPeer::start(Payload::Empty, None);
    peer.let_continue(1);
    let peers = peers();
    let large = Arc::new(new_task(Payload::Json(vec![b' '; 256 * 1024].into())));
    let order = ScheduleCommand {
        new_task: large,
        condition: Condition::Always,
        receipt: None,
        start: punctual_engine::StartState::Scheduled,
    };
    let commands = vec![Command::Schedule(order); 330];
    let error = peers.forward(&peer.broker, partition(0), &commands).await.unwrap_err();
    assert_eq!(kind(&error), "refused", "{error}");
    assert!(peer.arrived.try_recv().is_err());
    let many: Vec<_> = vec![get("1"); punctual_engine::COMMANDS_MAX + 1];
    assert_eq!(peers.forward(&peer.broker, partition(0), &many).await, Err(PeerError::Busy));
    assert!(
        peers.forward(&peer.broker, partition(0), &[get("1")]).await.is_ok(),
        "the permits were released"
    );
}

#[tokio::test]
async fn commands_of_a_partition_stay_in_order_and_share_messages() {
    let mut peer = TestPeer::start(Payload::Empty, None);
    let (peers, broker) = (peers(), peer.broker.clone());
    let forward = |key: &str| tokio::spawn(peers.forward(&broker, partition(0), &[get(key)]));
    let mut sent = vec![forward("1")];
    assert_eq!(peer.arrived().await, "1");
    sent.extend(["2", "3", "4"].map(forward));
    // Another partition has a queue of its own.
    let other_partition = tokio::spawn(peers.forward(&peer.broker, partition(1), &[get("9")]));
    assert_eq!(peer.arrived().await, "9");
    // A command whose caller has gone away is not sent.
    sent[2].abort();
    while !sent[2].is_finished() {
        tokio::task::yield_now().await;
    }
    peer.let_continue(3);
    assert_eq!(peer.arrived().await, "2 4");
    assert_eq!(versions(&other_partition.await.unwrap().unwrap()), [9]);
    for (sent, want) in sent.into_iter().zip([Some(1), Some(2), None, Some(4)]) {
        let answers = sent.await.ok().map(|answers| versions(&answers.unwrap()));
        assert_eq!(answers, want.map(|want| vec![want]));
    }
}

#[tokio::test]
async fn a_refused_command_does_not_fail_others_in_the_same_message() {
    let mut peer = TestPeer::start(Payload::Empty, None);
    let peers = peers();
    let forward = |key: &str| tokio::spawn(peers.forward(&peer.broker, partition(0), &[get(key)]));
    let sent = ["1", "2", "bad", "3"].map(forward);
    peer.let_continue(9);
    let mut answers = Vec::new();
    for sent in sent {
        answers.push(sent.await.unwrap().map(|answers| versions(&answers)));
    }
    let bad = Err(PeerError::Refused("bad".to_owned()));
    assert_eq!(answers, [Ok(vec![1]), Ok(vec![2]), bad, Ok(vec![3])]);
    let mut arrived = BTreeSet::new();
    while let Ok(keys) = peer.arrived.try_recv() {
        arrived.insert(keys);
    }
    assert!(arrived.contains("bad"), "it was sent on its own in the end: {arrived:?}");
}
