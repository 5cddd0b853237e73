//! Whose time counts: the clock of the owner, and a lease that ended during a lookup.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_bench::SlowNameServer;
use punctual_test_support::receiver::receive;
use punctual_test_support::{
    BrokerClient, DeliveryLog, FakeClock, TestCluster, WAIT_MAX, WebhookReceiver, eventually,
    millis, now_millis,
};
use serde_json::{Value, json};

use crate::keys::{due, keys_of};

#[test]
fn a_task_scheduled_at_another_broker_is_due_by_the_clock_of_its_owner() {
    let mut cluster = TestCluster::on_loopback(2, &[]);
    // A broker whose clock is 200 ms ahead: close enough to take part, far enough to tell whose
    // clock was used.
    let ahead = cluster.add();
    let clock = FakeClock::new(cluster.logs(), "+0.2");
    cluster.launch_with(ahead, &[], &clock.env());
    let owned = cluster.wait_until_whole();
    let (log, arrivals) = DeliveryLog::new();
    let url = receive(log.clone());
    let mut dues = BTreeMap::new();
    for owner in [0, 1] {
        for key in keys_of(&owned, cluster.client(owner), &format!("from{owner}"), 20) {
            let body = due("5ms", &format!("{url}/now/{key}"));
            let (status, made) = cluster.client(ahead).put(&key, &body);
            let answered = now_millis();
            assert_eq!(status, 201, "{made}");
            let due = millis(made["fire_at"].as_str().unwrap());
            // By the clock of the called broker it would be 200 ms later. The margin is for
            // rounding up and for clocks that were read one after the other.
            assert!(u128::from(due) <= answered + 5 + 50, "{due} at {answered}");
            dues.insert(key, due);
        }
    }
    for _ in 0..dues.len() {
        arrivals.recv_timeout(WAIT_MAX).expect("the task fires");
    }
    let deliveries = log.deliveries();
    for (key, due) in dues {
        let [delivery] = deliveries[&key].as_slice() else { panic!("{key}: {deliveries:?}") };
        assert_eq!(delivery.fire_at_millis, due, "{key}");
        assert!(delivery.at_millis >= due.into(), "{key} is early: {delivery:?}");
    }
    cluster.brokers[ahead].kill();
}

/// How long the lookup of a name takes: longer than a lease, shorter than the broker's timeout.
const LOOKUP: Duration = Duration::from_millis(3500);

/// A broker is suspended beyond its lease while it looks up its receiver. The next owner makes an
/// attempt, which fails, and then cancels or replaces the task. When the first broker resumes, it
/// must not send the delivery.
#[test]
fn a_broker_suspended_beyond_its_lease_during_a_lookup_does_not_send() {
    let mut cluster = TestCluster::on_loopback(0, &[]);
    cluster.names = Some(SlowNameServer::start().unwrap());
    for _ in 0..2 {
        let index = cluster.add();
        cluster.start_again(index);
    }
    let owned = cluster.wait_until_whole();
    let (suspended, successor) = (cluster.client(0), cluster.client(1));
    let receiver = WebhookReceiver::start();
    let url = receiver.url.replace("127.0.0.1", "slow.test");
    let names = cluster.names.as_ref().unwrap();
    names.delay(LOOKUP);
    let began_at = now_millis();
    let keys = keys_of(&owned, suspended, "suspended", 2);
    for key in &keys {
        let task = json!({"in": "0s", "timeout": "30s", "retry": {"backoff": {"fixed": "1h"}},
            "target": {"http": {"url": format!("{url}/500/{key}")}}});
        assert_eq!(suspended.put(key, &task).0, 201);
    }
    let state = |client: &BrokerClient, key: &str| {
        let answer = client.request("GET", &format!("/v1/shop/tasks/{key}"), "");
        answer.map_or(Value::Null, |(_, task)| task["state"].clone())
    };
    // They wait for their lookup.
    eventually(|| {
        let (_, stats) = suspended.request("GET", "/v1/shop/stats", "")?;
        (stats["queued"] == keys.len()).then_some(())
    });
    cluster.brokers[0].signal("-STOP");
    names.delay(Duration::ZERO);
    for _ in &keys {
        receiver.next();
    }
    eventually(|| keys.iter().all(|key| state(successor, key) == "scheduled").then_some(()));
    let (_, answer) = successor.shop("DELETE", &format!("/tasks/{}", keys[0]), &Value::Null);
    assert_eq!(answer["result"], "cancelled", "{answer}");
    assert_eq!(successor.put(&keys[1], &due("1h", &url)).0, 200);
    let took = now_millis() - began_at;
    assert!(took < LOOKUP.as_millis(), "the successor took {took} ms, so this test proves nothing");
    cluster.brokers[0].signal("-CONT");
    receiver.stays_silent(LOOKUP);
}
