//! A broker whose lease has ended sends nothing over its connections, and commits nothing.

use std::time::Duration;

use punctual_test_support::redis::RedisServer;
use punctual_test_support::{BrokerClient, CutLink, TestCluster, eventually, pause, wait_for};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::database::{Database, Kind, task};

crate::on_both!(
    a_statement_that_was_open_when_its_broker_was_suspended_is_not_committed,
    the_locks_of_a_suspended_broker_end_and_the_successor_runs_the_fire,
);

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

/// Two brokers with a connection to one database. The first owns the only partition; the link of
/// the second to the database is cut until it is mended.
struct SuspendedInTransaction {
    database: Database,
    cluster: TestCluster<RedisServer>,
    link: CutLink,
    _configs: [NamedTempFile; 2],
}

impl SuspendedInTransaction {
    /// Suspends the first broker while the database runs its statement.
    fn start(kind: Kind, guarantee: &str) -> Self {
        let database = Database::start(kind);
        let link = CutLink::to(database.port());
        link.cut();
        let configs = [database.config(), database.config_over(&link)].map(|config| {
            let file = NamedTempFile::new().unwrap();
            std::fs::write(&file, config).unwrap();
            file
        });
        let flags = ["--partitions", "1"];
        let mut cluster = TestCluster::over(RedisServer::start(&[]), 0, &flags, None);
        for config in &configs {
            let index = cluster.add();
            let path = config.path().display().to_string();
            cluster.launch_with(index, &["--config", &path], &[]);
            // The first one takes the partition before the second one is there.
            cluster.brokers[index].wait_until_ready();
            cluster.wait_until_whole();
        }
        let owned = cluster.owned(0).unwrap().by_broker;
        assert_eq!(owned[&cluster.client(0).address].len(), 1, "{owned:?}");
        wait_for("a connection", || connection(cluster.client(0))["state"] == "ready");
        let mut task = task("held", &json!({"number": 1, "seconds": 1}));
        task["guarantee"] = json!(guarantee);
        assert_eq!(cluster.client(0).put("held", &task).0, 201);
        wait_for("the statement", || database.sleeping() == 1);
        cluster.brokers[0].signal("-STOP");
        wait_for("the end of the statement", || database.sleeping() == 0);
        Self { database, cluster, link, _configs: configs }
    }

    fn effects(&self) -> i64 {
        self.database.number("select count(*) from effects")
    }
}

/// The transaction has run its statement when the next owner answers that the task is cancelled.
/// When its broker resumes, it must not commit it.
fn a_statement_that_was_open_when_its_broker_was_suspended_is_not_committed(kind: Kind) {
    let scene = SuspendedInTransaction::start(kind, "at_least_once");
    let [suspended, successor] = [0, 1].map(|index| scene.cluster.client(index));
    let answer = eventually(|| {
        let (status, answer) = successor.request_task("DELETE", "held", "")?;
        (status == 200).then_some(answer)
    });
    assert_eq!(answer, json!({"result": "cancelled"}));
    scene.cluster.brokers[0].signal("-CONT");
    wait_for("the end of the transaction", || {
        let connection = connection(suspended);
        connection["state"] == "ready" && connection["in_flight"] == 0
    });
    assert_eq!(scene.effects(), 0, "a cancelled task had an effect");
    // The same statement has its effect if nothing is in its way.
    scene.link.mend();
    let task = task("held", &json!({"number": 2, "seconds": 0}));
    wait_for("an owner", || matches!(successor.put("again", &task).0, 200 | 201));
    wait_for("the effect", || scene.effects() == 1);
    assert_eq!(scene.database.number("select number from effects"), 2);
}

/// The fire id that the open transaction has recorded is locked; the next owner needs it.
fn the_locks_of_a_suspended_broker_end_and_the_successor_runs_the_fire(kind: Kind) {
    let scene = SuspendedInTransaction::start(kind, "exactly_once");
    scene.link.mend();
    wait_for("the effect", || scene.effects() == 1);
    scene.cluster.brokers[0].signal("-CONT");
    wait_for("the first broker", || connection(scene.cluster.client(0))["in_flight"] == 0);
    assert_eq!(scene.effects(), 1);
}
