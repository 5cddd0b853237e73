//! A worker of the Rust client on three brokers of which the leader is killed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual_client::{Client, Delivery, Failure, NewTask};
use punctual_test_support::{TestCluster, eventually};
use tokio::runtime::Runtime;

/// Tasks of the load, due one millisecond after the other.
const TASKS: usize = 3_000;

#[test]
fn a_worker_handles_every_task_although_the_leader_is_killed() {
    let mut cluster = TestCluster::on_loopback(3, &[]);
    cluster.wait_until_whole();
    let (leader, follower) = cluster.leader_and_follower();
    let runtime = Runtime::new().unwrap();
    let _in_runtime = runtime.enter();
    // It knows one address, and learns the others. That one is killed.
    let client = Client::connect(format!("http://{}", cluster.addresses()[leader])).unwrap();
    let shop = client.namespace("shop");
    let handled: Arc<Mutex<HashMap<String, Vec<String>>>> = Arc::default();
    let count = || handled.lock().unwrap().len();
    let log = Arc::clone(&handled);
    let worker = shop.worker("load").concurrency(32).handler(move |delivery: Delivery| {
        let log = Arc::clone(&log);
        async move {
            let (key, fire) = (delivery.key.unwrap_or_default(), delivery.fire_id.to_string());
            log.lock().unwrap().entry(key).or_default().push(fire);
            Ok::<_, Failure>(())
        }
    });
    let worker = worker.spawn();
    let workers = || cluster.client(follower).get("/workers").1["workers"].as_array().map(Vec::len);
    eventually(|| (workers() == Some(3)).then_some(()));
    let tasks = (0..TASKS).map(|n| {
        let delay = Duration::from_millis(u64::try_from(n).unwrap());
        NewTask::new().key(format!("t-{n}")).delay(delay).queue("load")
    });
    let scheduled = runtime.block_on(shop.schedule_many(tasks));
    assert!(scheduled.iter().all(Result::is_ok), "{scheduled:?}");
    let owned = cluster.wait_until_whole();
    let owned = owned.by_broker[&cluster.addresses()[leader]].len();
    assert!(owned > 0, "the leader must own partitions, so that some of the tasks are its own");
    eventually(|| (count() > TASKS / 10).then_some(()));
    cluster.brokers[leader].kill();
    assert!(count() < TASKS, "the leader was killed after the last fire");
    eventually(|| (count() == TASKS).then_some(()));
    let stats = || cluster.client(follower).get("/stats").1;
    eventually(|| (stats()["done"] == TASKS).then_some(()));
    runtime.block_on(worker.stop()).unwrap();
    for (key, fires) in handled.lock().unwrap().iter() {
        assert!(fires.iter().all(|fire| *fire == fires[0]), "{key}: {fires:?}");
    }
    let topology = cluster.client(follower).request("GET", "/v1/topology", "").unwrap().1;
    let address = cluster.addresses()[leader].to_string();
    assert_ne!(topology["leader"], address.as_str(), "{topology}");
}
