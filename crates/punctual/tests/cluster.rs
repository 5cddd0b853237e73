//! Brokers that share a Redis, from outside: whichever is called, the answer is the same, and partitions move without anybody noticing.
//!
//! What happens when something fails is in `faults_cluster.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]
#![allow(clippy::print_stdout, reason = "a run says what it measured")]

#[path = "cluster/machine.rs"]
mod machine;
#[path = "cluster/member.rs"]
mod member;
#[path = "cluster/names.rs"]
mod names;
#[path = "cluster/net.rs"]
mod net;
#[path = "cluster/redis.rs"]
mod redis;
#[path = "cluster/stage.rs"]
mod stage;
#[path = "faults/witness.rs"]
mod witness;

mod field;

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use field::{Receiver, eventually, now_millis};
use machine::Clock;
use member::Desk;
use names::Names;
use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use punctual_proto::v1;
use punctual_proto::v1::peers_client::PeersClient;
use punctual_proto::v1::tasks_client::TasksClient;
use serde_json::{Value, json};
use stage::{Held, Stage};
use tonic::Code;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;
use witness::{Ledger, millis, pause, receive};

/// As many as there are if nobody says.
const PARTITIONS: u16 = 16;

fn due(when: &str, url: &str) -> Value {
    json!({"in": when, "target": {"http": {"url": url}}})
}

/// Names of tasks that a broker owns.
fn keys_of(held: &Held, desk: &Desk, prefix: &str, count: usize) -> Vec<String> {
    let theirs = &held.by_broker[&desk.address];
    let partitions = Partitions::new(PARTITIONS).unwrap();
    let namespace = Namespace::new("shop").unwrap();
    let is_theirs = |key: &String| {
        let key = TaskKey::new(key.as_str()).unwrap();
        theirs.contains(&partition_of(&namespace, &key, partitions).get().into())
    };
    (0..).map(|n| format!("{prefix}-{n}")).filter(is_theirs).take(count).collect()
}

#[test]
fn whichever_broker_is_called_the_answer_is_the_same() {
    let stage = Stage::on_loopback(3, &[]);
    let receiver = Receiver::start();
    let held = stage.wait_until_whole();
    let shares: Vec<usize> = held.by_broker.values().map(BTreeSet::len).collect();
    assert_eq!((shares.iter().sum::<usize>(), shares.len()), (16, 3), "{held:?}");
    assert!(shares.iter().all(|share| (5..=6).contains(share)), "{held:?}");
    for (owner, others) in [(0, [1, 2]), (1, [2, 0]), (2, [0, 1])] {
        let (here, there) = (stage.desk(others[0]), stage.desk(others[1]));
        let names = keys_of(&held, stage.desk(owner), &format!("of{owner}"), 8);
        follow_a_task(here, there, &names, &receiver);
        follow_a_dead_letter(here, there, &names[3], &receiver);
        follow_a_queue(here, there, &names[4..6]);
        follow_an_idempotency_key(here, there, &names[6..8]);
    }
    counts_are_the_same_everywhere(&stage);
    let forwarded = stage.desk(0).metric(r#"punctual_forwarded_total{result="answered"}"#);
    assert!(forwarded.unwrap() > 0.0);
}

/// The life of a task that neither of the two brokers owns.
fn follow_a_task(here: &Desk, there: &Desk, names: &[String], receiver: &Receiver) {
    let (a, b) = (&names[0], &names[1]);
    let (status, made) = here.put(a, &due("1h", &receiver.url));
    assert_eq!((status, &made["version"]), (201, &json!(1)), "{made}");
    let (_, shown) = there.get(&format!("/tasks/{a}"));
    assert_eq!((&shown["id"], &shown["state"]), (&made["id"], &json!("scheduled")), "{shown}");
    assert_eq!(there.put(a, &due("2h", &receiver.url)).1["version"], 2, "the key is known there");
    let (status, moved) = there.post(&format!("/tasks/{a}/touch"), &json!({"in": "3h"}));
    assert_eq!((status, &moved["version"]), (200, &json!(3)), "{moved}");
    let list = |desk: &Desk, state: &str| {
        let (status, page) = desk.get(&format!("/tasks?state={state}&key_prefix={a}"));
        assert_eq!(status, 200, "{page}");
        page["tasks"].as_array().unwrap().len()
    };
    assert_eq!((list(here, "scheduled"), list(there, "scheduled")), (1, 1));
    assert_eq!(here.post(&format!("/tasks/{a}/pause"), &json!({})).1["state"], "paused");
    assert_eq!((list(here, "paused"), list(there, "scheduled")), (1, 0));
    assert_eq!(there.post(&format!("/tasks/{a}/touch"), &json!({"in": "0s"})).0, 409);
    assert_eq!(there.post(&format!("/tasks/{a}/resume"), &json!({})).1["state"], "scheduled");
    assert_eq!(here.post(&format!("/tasks/{a}/fire"), &json!({})).0, 200);
    assert_eq!(receiver.next().header("punctual-key"), a);
    let (status, cancelled) = there.shop("DELETE", &format!("/tasks/{a}"), &Value::Null);
    assert_eq!((status, &cancelled["result"]), (200, &json!("cancelled")), "{cancelled}");
    assert_eq!(here.get(&format!("/tasks/{a}")).0, 404);
    assert_eq!(there.post(&format!("/tasks/{a}/touch"), &json!({"in": "1h"})).0, 404);
    // One that fires, and its history.
    let (_, made) = there.put(b, &due("0s", &receiver.url));
    let received = receiver.next();
    assert_eq!(received.header("punctual-key"), b);
    let path = format!("/tasks/{}/fires", made["id"].as_str().unwrap());
    let fires = eventually(|| Some(here.get(&path)).filter(|(status, _)| *status == 200)).1;
    let fire = &fires["fires"][0];
    assert_eq!((&fire["end"], &fire["fire_at"]), (&json!("done"), &made["fire_at"]), "{fires}");
    assert_eq!(there.get(&path).1, fires);
    // Many at once, of all partitions.
    let many: Vec<Value> = (0..20).map(|n| json!(format!("{b}-{n}"))).collect();
    let tasks: Vec<Value> = many
        .iter()
        .map(|key| {
            let mut task = due("1h", &receiver.url);
            task["key"] = key.clone();
            task
        })
        .collect();
    let (status, answer) = here.post("/tasks", &json!(tasks));
    assert_eq!(status, 200, "{answer}");
    let (_, answer) = there.post("/touch", &json!({"keys": many, "in": "2h"}));
    assert_eq!(answer["touched"], 20, "{answer}");
    let (_, answer) = there.post("/cancel", &json!({"keys": many}));
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["result"] == "cancelled"), "{answer}");
}

fn follow_a_dead_letter(here: &Desk, there: &Desk, key: &str, receiver: &Receiver) {
    here.put(key, &due("0s", &format!("{}/410", receiver.url)));
    let fire = receiver.next();
    let dead = |desk: &Desk| {
        let (_, page) = desk.get("/dead?limit=100");
        let letters = page["dead"].as_array().unwrap().clone();
        letters.into_iter().find(|letter| letter["task"]["key"] == key)
    };
    let letter = eventually(|| dead(there));
    assert_eq!((&letter["reason"], dead(here)), (&json!("refused"), Some(letter.clone())));
    let id = letter["fire_id"].as_str().unwrap();
    assert_eq!(there.post("/dead/redrive", &json!({"ids": [id]})).1["redriven"], 1);
    assert_eq!(receiver.next().header("webhook-id"), fire.header("webhook-id"));
    eventually(|| dead(here));
    let path = format!("/dead/{id}");
    assert_eq!(here.shop("DELETE", &path, &Value::Null).1["result"], "deleted");
    assert_eq!((dead(here), dead(there)), (None, None));
}

/// Polled here and acked there, of a task that both do not own.
fn follow_a_queue(here: &Desk, there: &Desk, names: &[String]) {
    for name in names {
        let (status, made) = here.put(name, &json!({"in": "0s", "target": {"queue": "mail"}}));
        assert_eq!(status, 201, "{made}");
        let want = json!({"max": 1, "wait": "5s", "lease": "10s"});
        let (_, mut answer) = there.post("/queues/mail/lease", &want);
        let delivery = answer["deliveries"][0].take();
        assert_eq!(delivery["key"], json!(name), "{delivery}");
        let tokens = json!({"tokens": [delivery["token"]]});
        let (_, acked) = here.post("/queues/mail/ack", &tokens);
        assert_eq!(acked["results"][0]["result"], "acked", "{acked}");
        let (_, again) = there.post("/queues/mail/ack", &tokens);
        assert_eq!(again["results"][0]["result"], "stale", "{again}");
    }
}

/// What it stands for is known to all, wherever it is kept and wherever the tasks live that it is used for.
fn follow_an_idempotency_key(here: &Desk, there: &Desk, names: &[String]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let send = |desk: &Desk, key: &str| {
        let queue = v1::target::To::Queue("nobody".to_owned());
        let task = v1::NewTask {
            key: key.to_owned(),
            when: Some(v1::new_task::When::AtMs(4_000_000_000_000)),
            target: Some(v1::Target { to: Some(queue) }),
            ..v1::NewTask::default()
        };
        let request = v1::ScheduleRequest {
            namespace: "shop".to_owned(),
            task: Some(task),
            idempotency_key: format!("request-{}", names[0]),
            ..v1::ScheduleRequest::default()
        };
        let address = format!("http://{}", desk.address);
        let sent = runtime.block_on(async {
            let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
            TasksClient::new(channel).schedule(request).await
        });
        sent.map(|answer| answer.into_inner().task.unwrap().id).map_err(|status| status.code())
    };
    let id = send(here, &names[0]).unwrap();
    assert_eq!(send(there, &names[0]), Ok(id), "the same");
    for (desk, name) in [(here, names[1].as_str()), (there, &names[1]), (there, "")] {
        assert_eq!(send(desk, name), Err(Code::AlreadyExists), "{name:?}");
    }
    assert_eq!(here.get(&format!("/tasks/{}", names[1])).0, 404);
    there.shop("DELETE", &format!("/tasks/{}", names[0]), &Value::Null);
}

fn counts_are_the_same_everywhere(stage: &Stage) {
    let stats = |desk: &Desk| {
        let (_, stats) = desk.get("/stats");
        let count = |name: &str| stats[name].as_i64().unwrap();
        let ends = ["scheduled", "firing", "paused", "done", "dead", "cancelled"].map(count);
        assert_eq!(ends.iter().sum::<i64>(), count("accepted"), "{stats}");
        (ends[0] + ends[1] == 0).then_some(ends)
    };
    let ends = eventually(|| stats(stage.desk(0)));
    // Of each broker: one done, two acked, 21 cancelled and replaced ones besides.
    assert!(ends[3] >= 9 && ends[5] >= 63, "{ends:?}");
    for index in [1, 2] {
        assert_eq!(stats(stage.desk(index)), Some(ends));
    }
}

#[test]
fn a_task_handed_to_the_wrong_broker_fires_when_its_owner_says_and_not_before() {
    let mut stage = Stage::on_loopback(2, &[]);
    // A broker whose clock is 200 ms ahead: near enough to take part, far enough to tell whose time it was.
    let ahead = stage.add();
    let clock = Clock::new(stage.logs(), "+0.2");
    stage.launch_with(ahead, &[], &clock.env());
    let held = stage.wait_until_whole();
    let (ledger, news) = Ledger::new();
    let url = receive(ledger.clone());
    let mut dues = BTreeMap::new();
    for owner in [0, 1] {
        for key in keys_of(&held, stage.desk(owner), &format!("from{owner}"), 20) {
            let body = due("5ms", &format!("{url}/now/{key}"));
            let (status, made) = stage.desk(ahead).put(&key, &body);
            let answered = now_millis();
            assert_eq!(status, 201, "{made}");
            let due = millis(made["fire_at"].as_str().unwrap());
            // By the time of the broker that was called it would be 200 ms later. A millisecond for rounding up, some for
            // clocks that were looked at one after the other.
            assert!(u128::from(due) <= answered + 5 + 50, "{due} at {answered}");
            dues.insert(key, due);
        }
    }
    for _ in 0..dues.len() {
        news.recv_timeout(field::PATIENCE).expect("it fires");
    }
    let receipts = ledger.receipts();
    for (key, due) in dues {
        let [receipt] = receipts[&key].as_slice() else { panic!("{key}: {receipts:?}") };
        assert_eq!(receipt.fire_at_millis, due, "{key}");
        assert!(receipt.at_millis >= due.into(), "{key} is early: {receipt:?}");
    }
    stage.members[ahead].kill();
}

#[test]
fn name_and_number_of_partitions_are_fixed_when_the_cluster_is_made() {
    let mut stage = Stage::on_loopback(1, &["--partitions", "7"]);
    let stranger = stage.add();
    stage.flags.clear();
    stage.launch_with(stranger, &["--partitions", "8"], &[]);
    let status = stage.members[stranger].end();
    let said = stage.members[stranger].said();
    assert!(!status.success(), "{said}");
    let why = "cluster \"punctual\" was created with 7 partitions, not 8";
    assert!(said.contains(why), "{said}");
    // One that says nothing takes what there is.
    stage.start_again(stranger);
    let held = eventually(|| {
        let held = stage.held(stranger)?;
        (held.by_broker.get(&stage.desk(stranger).address)?.len() == 3).then_some(held)
    });
    assert_eq!(held.by_broker.values().map(BTreeSet::len).sum::<usize>(), 7, "{held:?}");
    // Another name is another cluster in the same Redis.
    let other = stage.add();
    stage.launch_with(other, &["--cluster", "other", "--partitions", "3"], &[]);
    let held = eventually(|| stage.held(other).filter(|held| held.leader.is_some()));
    assert_eq!(held.by_broker.len(), 1, "{held:?}");
    let nobody = json!({"in": "1h", "target": {"queue": "nobody"}});
    eventually(|| (stage.desk(other).put("a", &nobody).0 == 201).then_some(()));
    assert_eq!(stage.desk(stranger).get("/tasks/a").0, 404);
}

#[test]
fn nobody_without_the_secret_is_a_peer_and_no_webhook_goes_to_redis_or_a_broker() {
    let stage = Stage::on_loopback(2, &[]);
    let address = stage.desk(0).address;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = |authorization: Option<&str>| {
        runtime.block_on(async {
            let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
            let mut peers = PeersClient::new(channel.connect().await.unwrap());
            let mut request = tonic::Request::new(v1::GaugeRequest { namespace: None });
            if let Some(text) = authorization {
                let value = MetadataValue::try_from(text).unwrap();
                request.metadata_mut().insert("authorization", value);
            }
            peers.gauge(request).await.map(|_| ()).map_err(|status| status.code())
        })
    };
    for wrong in [None, Some("Bearer wrong"), Some(""), Some("Bearer ")] {
        assert_eq!(ask(wrong), Err(Code::Unauthenticated), "{wrong:?}");
    }
    let [first, second] = stage.redis.ports();
    let places = [first, second, stage.desk(0).address.port(), stage.desk(1).address.port()];
    for desk in stage.desks() {
        for port in places {
            let (status, problem) = desk.put("a", &due("1h", &format!("http://127.0.0.1:{port}/")));
            assert_eq!(status, 422, "{port}: {problem}");
            assert_eq!(problem["field"], "target.http.url", "{problem}");
        }
    }
}

#[test]
fn a_broker_that_stops_hands_everything_over_and_nothing_is_lost_or_doubled() {
    let mut stage = Stage::on_loopback(3, &[]);
    let (ledger, _news) = Ledger::new();
    let url = receive(ledger.clone());
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
    let (status, answer) = stage.desk(0).post("/tasks", &tasks.collect());
    assert_eq!(status, 200, "{answer}");
    pause(Duration::from_millis(from.saturating_sub(u64::try_from(now_millis()).unwrap()) + 500));
    let (leader, _) = stage.leader_and_follower();
    let told_at = now_millis();
    let status = stage.members[leader].stop();
    let took = now_millis() - told_at;
    assert!(status.success(), "{status}: {}", stage.members[leader].said());
    let other = stage.desk((leader + 1) % 3).clone();
    // What was under way is told to the successors: nothing ends without a word.
    let stats = eventually(|| {
        let (_, stats) = other.get("/stats");
        (stats["done"] == count).then_some(stats)
    });
    let receipts = ledger.receipts();
    let mut lags = Vec::new();
    for (key, due) in &dues {
        let got = receipts.get(key).map_or(0, Vec::len);
        assert_eq!(got, 1, "{key} was received {got} times: {:?}", receipts.get(key));
        let late = receipts[key][0].at_millis.checked_sub(u128::from(*due)).expect("not early");
        lags.push((late, u128::from(*due)));
    }
    assert_eq!((&stats["dead"], &stats["accepted"]), (&json!(0), &json!(count)), "{stats}");
    // How late, by when they were due: the hand-over, and the time before and after it.
    let latest = |from: u128, to: u128| {
        let due = lags.iter().filter(|(_, due)| (from..to).contains(due));
        due.map(|(late, _)| *late).max().unwrap_or(0)
    };
    let (before, while_it, after) =
        (latest(0, told_at), latest(told_at, told_at + took), latest(told_at + took, u128::MAX));
    println!(
        "stopped {took} ms after SIGTERM; the latest was {while_it} ms late, {before} ms before, {after} ms after"
    );
    // It comes back, and so does its share.
    stage.start_again(leader);
    stage.wait_until_whole();
}

#[test]
fn a_broker_that_joins_gets_its_share_and_little_else_moves() {
    let mut stage = Stage::on_loopback(3, &[]);
    let before = stage.wait_until_whole();
    let calls = stage.desk(0).clone();
    let calling = thread::spawn(move || {
        // Calls go on while partitions move, each answered once.
        for n in 0..150 {
            let (status, answer) =
                calls.put(&format!("j{n}"), &json!({"in": "1h", "target": {"queue": "nobody"}}));
            assert_eq!(status, 201, "{answer}");
            pause(Duration::from_millis(10));
        }
    });
    let fourth = stage.add();
    stage.launch(fourth);
    let share = |held: &Held| held.by_broker.values().all(|partitions| partitions.len() == 4);
    let after = eventually(|| {
        let said: Vec<Held> = (0..4).map(|index| stage.held(index)).collect::<Option<_>>()?;
        let agreed = said.iter().all(|held| *held == said[0]);
        (agreed && share(&said[0])).then(|| said[0].clone())
    });
    calling.join().unwrap();
    let newcomer = stage.desk(fourth).address;
    for (broker, partitions) in &after.by_broker {
        if *broker != newcomer {
            let kept = &before.by_broker[broker];
            assert!(partitions.is_subset(kept), "{broker} got something: {before:?} {after:?}");
        }
    }
}

/// How long a name takes to be looked up: longer than a lease, shorter than a broker waits for it.
const LOOKUP: Duration = Duration::from_millis(3500);

/// A broker is stopped past its lease while it looks its receiver up. The next owner makes an attempt, which fails, and
/// then answers that the task is cancelled, or replaced. The first broker must not send what it began when it goes on.
#[test]
fn a_broker_that_slept_past_its_lease_in_a_lookup_does_not_send() {
    let mut stage = Stage::on_loopback(0, &[]);
    stage.names = Some(Names::start());
    for _ in 0..2 {
        let index = stage.add();
        stage.start_again(index);
    }
    let held = stage.wait_until_whole();
    let (sleeper, successor) = (stage.desk(0), stage.desk(1));
    let receiver = Receiver::start();
    let url = receiver.url.replace("127.0.0.1", "slow.test");
    let names = stage.names.as_ref().unwrap();
    names.delay(LOOKUP);
    let began_at = now_millis();
    let keys = keys_of(&held, sleeper, "asleep", 2);
    for key in &keys {
        let task = json!({"in": "0s", "timeout": "30s", "retry": {"backoff": {"fixed": "1h"}},
            "target": {"http": {"url": format!("{url}/500/{key}")}}});
        assert_eq!(sleeper.put(key, &task).0, 201);
    }
    let state = |desk: &Desk, key: &str| {
        let answer = desk.ask("GET", &format!("/v1/shop/tasks/{key}"), "");
        answer.map_or(Value::Null, |(_, task)| task["state"].clone())
    };
    eventually(|| keys.iter().all(|key| state(sleeper, key) == "firing").then_some(()));
    stage.members[0].signal("-STOP");
    names.delay(Duration::ZERO);
    for _ in &keys {
        receiver.next();
    }
    eventually(|| keys.iter().all(|key| state(successor, key) == "scheduled").then_some(()));
    let (_, answer) = successor.shop("DELETE", &format!("/tasks/{}", keys[0]), &Value::Null);
    assert_eq!(answer["result"], "cancelled", "{answer}");
    assert_eq!(successor.put(&keys[1], &due("1h", &url)).0, 200);
    let took = now_millis() - began_at;
    assert!(took < LOOKUP.as_millis(), "the successor took {took} ms, so this shows nothing");
    stage.members[0].signal("-CONT");
    receiver.stays_silent(LOOKUP);
}
