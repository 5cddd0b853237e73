//! A broker whose lease has ended sends nothing over its connections.

use std::time::Duration;

use punctual_test_support::{BrokerClient, TestCluster, eventually, pause, wait_for};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::database::{Database, Kind, task};

/// The number that only tasks insert that hold the sessions.
const HOLDS: i64 = 100;

fn connection(client: &BrokerClient) -> Value {
    let answer = client.request("GET", "/v1/connections", "");
    answer.map_or(Value::Null, |(_, answer)| answer["connections"][0].clone())
}

fn waiting(client: &BrokerClient) -> u64 {
    connection(client)["waiting"].as_u64().unwrap_or_default()
}

/// A broker is suspended beyond its lease while tasks wait for its sessions. They are cancelled at
/// the next owner. When the first broker resumes, it must not run them.
#[test]
fn a_broker_suspended_beyond_its_lease_does_not_run_what_waited_for_a_session() {
    let database = Database::start(Kind::Postgres);
    let config = NamedTempFile::new().unwrap();
    std::fs::write(&config, database.config()).unwrap();
    let path = config.path().display().to_string();
    let cluster = TestCluster::on_loopback(2, &["--config", &path]);
    cluster.wait_until_whole();
    let [suspended, successor] = [0, 1].map(|index| cluster.client(index));
    for client in [suspended, successor] {
        wait_for("a connection", || connection(client)["state"] == "ready");
    }
    database.suspend();
    let put = |key: &str, number: i64| {
        let mut task = task("note", &json!({"number": number}));
        task["timeout"] = json!("2m");
        assert_eq!(suspended.put(key, &task).0, 201);
    };
    let mut holding = 0;
    wait_for("tasks that wait at both brokers", || {
        holding += 1;
        put(&format!("holds{holding}"), HOLDS);
        pause(Duration::from_millis(20));
        waiting(suspended) > 0 && waiting(successor) > 0
    });
    let before = waiting(suspended) + waiting(successor);
    let keys: Vec<String> = (0..20).map(|number| format!("waits{number}")).collect();
    keys.iter().for_each(|key| put(key, 1));
    wait_for("more that wait", || {
        waiting(suspended) + waiting(successor) >= before + keys.len() as u64
    });
    cluster.brokers[0].signal("-STOP");
    for key in &keys {
        // Until the successor owns all partitions, it does not answer for them.
        let answer = eventually(|| {
            let (status, answer) = successor.request_task("DELETE", key, "")?;
            (status == 200).then_some(answer)
        });
        assert_eq!(answer, json!({"result": "cancelled"}), "{key}");
    }
    database.resume();
    cluster.brokers[0].signal("-CONT");
    let count = |number: i64| {
        database
            .number(&format!("select count(distinct fire_id) from effects where number = {number}"))
    };
    wait_for("the others", || count(HOLDS) == holding);
    // The first broker has its sessions back, and nothing waits for them any more.
    wait_for("idle connections", || {
        [suspended, successor].iter().all(|client| {
            let connection = connection(client);
            connection["waiting"] == 0 && connection["in_flight"] == 0
        })
    });
    assert_eq!(count(1), 0, "cancelled tasks were run");
}
