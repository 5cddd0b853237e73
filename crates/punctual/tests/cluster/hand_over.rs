//! Brokers that leave and join: partitions move, and nothing is lost.

use std::thread;
use std::time::Duration;

use punctual_test_support::receiver::receive;
use punctual_test_support::{
    DeliveryLog, OwnedPartitions, TestCluster, eventually, now_millis, pause,
};
use serde_json::json;

#[test]
fn a_stopping_broker_hands_its_partitions_over_without_loss_or_doubles() {
    let mut cluster = TestCluster::on_loopback(3, &[]);
    let (log, _arrivals) = DeliveryLog::new();
    let url = receive(log.clone());
    let (count, span) = (600, 3_000);
    let from = u64::try_from(now_millis()).unwrap() + 1_500;
    let dues: Vec<(String, u64)> = (0..count)
        .map(|n| {
            let manner = if n % 7 == 0 { "slow" } else { "now" };
            (format!("k{n}-{manner}"), from + n * span / count)
        })
        .collect();
    let tasks = dues.iter().zip(0..).map(|((key, due), n)| {
        let manner = key.rsplit('-').next().unwrap();
        let guarantee = ["at_least_once", "at_most_once", "exactly_once"][n % 3];
        json!({"key": key, "at": due, "guarantee": guarantee,
            "target": {"http": {"url": format!("{url}/{manner}/{key}")}}})
    });
    let (status, answer) = cluster.client(0).post("/tasks", &tasks.collect());
    assert_eq!(status, 200, "{answer}");
    pause(Duration::from_millis(from.saturating_sub(u64::try_from(now_millis()).unwrap()) + 500));
    let (leader, _) = cluster.leader_and_follower();
    let signalled_at = now_millis();
    let status = cluster.brokers[leader].stop();
    let took = now_millis() - signalled_at;
    assert!(status.success(), "{status}: {}", cluster.brokers[leader].logged());
    let other = cluster.client((leader + 1) % 3).clone();
    // Successors learn the outcome of what was in flight, so every task is done.
    let stats = eventually(|| {
        let (_, stats) = other.get("/stats");
        (stats["done"] == count).then_some(stats)
    });
    let deliveries = log.deliveries();
    let mut lags = Vec::new();
    for (key, due) in &dues {
        let got = deliveries.get(key).map_or(0, Vec::len);
        assert_eq!(got, 1, "{key} was received {got} times: {:?}", deliveries.get(key));
        let late = deliveries[key][0].at_millis.checked_sub(u128::from(*due)).expect("not early");
        lags.push((late, u128::from(*due)));
    }
    assert_eq!((&stats["dead"], &stats["accepted"]), (&json!(0), &json!(count)), "{stats}");
    // The largest lag of tasks due before, during and after the hand-over.
    let latest = |from: u128, to: u128| {
        let due = lags.iter().filter(|(_, due)| (from..to).contains(due));
        due.map(|(late, _)| *late).max().unwrap_or(0)
    };
    let (before, during, after) = (
        latest(0, signalled_at),
        latest(signalled_at, signalled_at + took),
        latest(signalled_at + took, u128::MAX),
    );
    println!(
        "stopped {took} ms after SIGTERM; largest lag {during} ms, {before} ms before, \
         {after} ms after"
    );
    // The broker is started again and gets its share.
    cluster.start_again(leader);
    cluster.wait_until_whole();
}

#[test]
fn a_joining_broker_gets_its_share_and_no_other_partition_moves() {
    let mut cluster = TestCluster::on_loopback(3, &[]);
    let before = cluster.wait_until_whole();
    let client = cluster.client(0).clone();
    let caller = thread::spawn(move || {
        // Calls are answered while partitions move.
        for n in 0..150 {
            let (status, answer) =
                client.put(&format!("j{n}"), &json!({"in": "1h", "target": {"queue": "idle"}}));
            assert_eq!(status, 201, "{answer}");
            pause(Duration::from_millis(10));
        }
    });
    let fourth = cluster.add();
    cluster.launch(fourth);
    let has_share =
        |owned: &OwnedPartitions| owned.by_broker.values().all(|partitions| partitions.len() == 4);
    let after = eventually(|| {
        let reports: Vec<OwnedPartitions> =
            (0..4).map(|index| cluster.owned(index)).collect::<Option<_>>()?;
        let agreed = reports.iter().all(|owned| *owned == reports[0]);
        (agreed && has_share(&reports[0])).then(|| reports[0].clone())
    });
    caller.join().unwrap();
    let newcomer = cluster.client(fourth).address;
    for (broker, partitions) in &after.by_broker {
        if *broker != newcomer {
            let kept = &before.by_broker[broker];
            assert!(
                partitions.is_subset(kept),
                "{broker} got another partition: {before:?} {after:?}"
            );
        }
    }
}
