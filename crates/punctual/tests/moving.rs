//! Moving house: the real binary between real stores, whole, cut, killed and twice.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]

use punctual_test_support as field;

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use field::{TestBroker as Broker, WebhookReceiver as Receiver, eventually};
use punctual_core::{BrokerId, PartitionId, Partitions, Seat};
use punctual_store::conformance::fixtures::{NOW, at, id, letter, partition, rich_task, task};
use punctual_store::{Batch, BatchNo, Change, LeaseStore as _, TaskStore as _};
use punctual_store_embedded::{EmbeddedStore, Options};
use punctual_store_redis::RedisStore;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Kills its server when its input closes, in whatever way the test ends.
const KEEPER: &str = r#""$@" >/dev/null 2>&1 & pid=$!; read -r _; kill -9 $pid; wait $pid"#;

/// A Redis of its own.
struct Redis {
    url: String,
    _dir: TempDir,
    keeper: Child,
    stdin: Option<ChildStdin>,
}

impl Redis {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper", "redis-server", "--bind", "127.0.0.1", "--save", ""])
            .args(["--port", &port.to_string(), "--dir"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = keeper.stdin.take();
        eventually(|| TcpStream::connect(("127.0.0.1", port)).ok());
        Self { url: format!("redis://127.0.0.1:{port}"), _dir: dir, keeper, stdin }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.keeper.wait();
    }
}

/// Where a store is, as flags.
fn in_dir(dir: &Path) -> Vec<String> {
    vec!["--data-dir".into(), dir.display().to_string()]
}

fn in_redis(redis: &Redis) -> Vec<String> {
    vec!["--redis".into(), redis.url.clone(), "--cluster".into(), "shop".into()]
}

fn command(verb: &str, place: &[String], more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
    command.arg(verb).args(place).args(more);
    command
}

/// Whether it went well, and what it told.
fn run(verb: &str, place: &[String], more: &[&str]) -> (bool, String) {
    let output = command(verb, place, more).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

fn fine(verb: &str, place: &[String], more: &[&str]) -> String {
    let (fine, told) = run(verb, place, more);
    assert!(fine, "{verb} {more:?}: {told}");
    told
}

/// Files of one test.
struct Shelf(TempDir);

impl Shelf {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn export(&self, place: &[String], name: &str) -> Vec<String> {
        fine("export", place, &["--out", &self.text(name)]);
        self.lines(name)
    }

    /// All lines but the first and the last, in order of their text.
    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.pop();
        lines.remove(0);
        lines.sort_unstable();
        lines
    }
}

fn stop(broker: Broker) -> Arc<TempDir> {
    let dir = Arc::clone(&broker.dir);
    broker.signal("-TERM");
    assert!(broker.end().success());
    dir
}

/// A store with some of everything in it, made by a broker that has stopped.
fn stock(receiver: &Receiver) -> Arc<TempDir> {
    let broker = Broker::start(&["--partitions", "4"]);
    let put = |key: &str, body: &str| {
        let (status, answer) = broker.put(key, body);
        assert!(status < 300, "{answer}");
        answer
    };
    let queue = r#""target": {"queue": "q"}"#;
    put(
        "once",
        &format!(r#"{{"in": "300d", {queue}, "payload": {{"a": 1}}, "labels": {{"zone": "eu"}}}}"#),
    );
    put("moved", &format!(r#"{{"in": "300d", {queue}}}"#));
    assert_eq!(broker.call("POST", "/v1/shop/tasks/moved/touch", &[], r#"{"in": "301d"}"#).0, 200);
    put("paused", &format!(r#"{{"in": "300d", {queue}}}"#));
    assert_eq!(broker.call("POST", "/v1/shop/tasks/paused/pause", &[], "").0, 200);
    put("cron", &format!(r#"{{"cron": "0 9 * * *", "timezone": "Europe/Berlin", {queue}}}"#));
    put("watch", &format!(r#"{{"within": "48h", {queue}}}"#));
    let keyed = [("idempotency-key", "x1")];
    let body =
        format!(r#"{{"in": "300d", {queue}, "payload_base64": "AAEC", "content_type": "a/b"}}"#);
    assert!(broker.call("POST", "/v1/shop/tasks", &keyed, body).0 < 300);
    assert!(
        broker.call("PUT", "/v1/other/tasks/once", &[], format!(r#"{{"in": "9d", {queue}}}"#)).0
            < 300
    );
    // One that fires again and again, and dies of it each time; one that died and whose name has another task since.
    let gone = format!("{}/410", receiver.url);
    put(
        "beat",
        &format!(r#"{{"every": "100ms", "count": 3, "target": {{"http": {{"url": "{gone}"}}}}}}"#),
    );
    put("dead", &field::task(r#""in": "0s""#, &gone));
    put("again", &field::task(r#""in": "0s""#, &gone));
    eventually(|| {
        let (_, page) = broker.call("GET", "/v1/shop/dead", &[], "");
        (page["dead"].as_array().unwrap().len() == 5).then_some(())
    });
    put("again", &format!(r#"{{"in": "300d", {queue}}}"#));
    // A fire that is being tried again, and one besides the schedule that has been received.
    let sour = format!("{}/500", receiver.url);
    let tries = r#""in": "0s", "retry": {"attempts_max": 3, "backoff": {"fixed": "20d"}}"#;
    put("tried", &field::task(tries, &sour));
    eventually(|| (broker.get("tried").1["attempt"] == 1).then_some(()));
    put("manual", &field::task(r#""in": "300d""#, &receiver.url));
    assert_eq!(broker.call("POST", "/v1/shop/tasks/besides/fire", &[], "").0, 200);
    eventually(|| {
        let (_, fires) = broker.call("GET", "/v1/shop/tasks/besides/fires", &[], "");
        fires["fires"].get(0).cloned()
    });
    stop(broker)
}

#[test]
fn there_and_back_again_everything_stands_as_it_stood() {
    let (receiver, redis, shelf) = (Receiver::start(), Redis::start(), Shelf::new());
    let dir = stock(&receiver);
    let before = shelf.export(&in_dir(dir.path()), "before");
    let kinds = |kind: &str| before.iter().filter(|line| line.starts_with(kind)).count();
    assert_eq!(kinds(r#"{"dead""#), 5, "{before:#?}");
    assert!(kinds(r#"{"fire""#) >= 2, "{before:#?}");
    // Nine of the shop, one of the other, and the receipt.
    assert_eq!(kinds(r#"{"task""#), 11, "{before:#?}");

    fine("import", &in_redis(&redis), &["--in", &shelf.text("before")]);
    assert_eq!(shelf.export(&in_redis(&redis), "in-redis"), before);
    let back = Arc::new(tempfile::tempdir().unwrap());
    fine("import", &in_dir(back.path()), &["--in", &shelf.text("in-redis")]);
    assert_eq!(shelf.export(&in_dir(back.path()), "back"), before);

    // And a broker takes it for its own.
    let broker = Broker::start_on(Arc::clone(&back), &["--partitions", "4"]);
    assert_eq!(broker.get("moved").1["version"], 2);
    assert_eq!(broker.get("paused").1["state"], "paused");
    assert_eq!(broker.get("tried").1["attempt"], 1);
    let (_, stats) = broker.call("GET", "/v1/shop/stats", &[], "");
    assert_eq!((&stats["dead_letters"], &stats["dead"]), (&json!(5), &json!(2)), "{stats}");
    let (_, page) = broker.call("GET", "/v1/shop/dead", &[], "");
    for dead in page["dead"].as_array().unwrap() {
        let key = dead["task"]["key"].as_str().unwrap();
        let body = json!({ "ids": [dead["fire_id"]] }).to_string();
        let (_, answer) = broker.call("POST", "/v1/shop/dead/redrive", &[], body);
        let redriven = if key == "again" { 0 } else { 1 };
        assert_eq!(answer["redriven"], redriven, "{key}: {answer}");
    }
    assert_eq!(broker.get("once").1["payload"], json!({"a": 1}));
    let body = r#"{"in": "300d", "target": {"queue": "q"}, "payload_base64": "AAEC", "content_type": "a/b"}"#;
    let (status, same) = broker.call("POST", "/v1/shop/tasks", &[("idempotency-key", "x1")], body);
    let known = |line: &String| line.contains(same["id"].as_str().unwrap());
    assert!(status < 300 && before.iter().any(known), "the receipt has moved: {same}");
}

#[test]
fn an_import_into_other_partitions_makes_new_ids_and_says_so_and_twice_is_once() {
    let (receiver, shelf) = (Receiver::start(), Shelf::new());
    let dir = stock(&receiver);
    let before = shelf.export(&in_dir(dir.path()), "before");
    let wide = Arc::new(tempfile::tempdir().unwrap());
    let place = in_dir(wide.path());
    let told = fine("import", &place, &["--in", &shelf.text("before"), "--partitions", "16"]);
    assert!(told.contains("with a new id") && told.contains("receipts"), "{told}");
    let first = shelf.export(&place, "first");
    let told = fine("import", &place, &["--in", &shelf.text("before")]);
    assert!(told.contains("imported 0 tasks, 0 dead letters"), "{told}");
    assert_eq!(shelf.export(&place, "second"), first);
    let receipts = before.iter().filter(|line| line.contains(r#""namespace":"shop~""#)).count();
    assert_eq!(first.len(), before.len() - receipts);

    let broker = Broker::start_on(Arc::clone(&wide), &["--partitions", "16"]);
    for key in ["once", "moved", "paused", "cron", "watch", "again", "tried", "manual"] {
        assert_eq!(broker.get(key).0, 200, "{key}");
    }
    // What ends here does not come back.
    assert_eq!(broker.delete("once").0, 200);
    stop(broker);
    let told = fine("import", &place, &["--in", &shelf.text("before")]);
    assert!(told.contains("1 have ended here since"), "{told}");
}

#[test]
fn a_key_that_is_taken_is_a_conflict_unless_it_is_to_be_replaced() {
    let shelf = Shelf::new();
    let one = |payload: &str| {
        let broker = Broker::start(&[]);
        let body =
            format!(r#"{{"in": "300d", "target": {{"queue": "q"}}, "payload": "{payload}"}}"#);
        assert_eq!(broker.put("k", body).0, 201);
        stop(broker)
    };
    let (ours, theirs) = (one("ours"), one("theirs"));
    shelf.export(&in_dir(theirs.path()), "theirs");
    let file = shelf.text("theirs");
    let (fine_, told) = run("import", &in_dir(ours.path()), &["--in", &file]);
    assert!(
        !fine_ && told.contains("shop/k names another") && told.contains("--replace"),
        "{told}"
    );
    let payload = |dir: &Arc<TempDir>| {
        let broker = Broker::start_on(Arc::clone(dir), &[]);
        let payload = broker.get("k").1["payload"].clone();
        let (_, stats) = broker.call("GET", "/v1/shop/stats", &[], "");
        assert_eq!(stats["scheduled"], 1);
        stop(broker);
        payload
    };
    assert_eq!(payload(&ours), "ours");
    fine("import", &in_dir(ours.path()), &["--in", &file, "--replace"]);
    assert_eq!(payload(&ours), "theirs");
}

/// A store of so many tasks, letters and records, without a broker.
async fn many(dir: &Path, count: u64) {
    let partitions = Partitions::new(4).unwrap();
    let (store, _) = EmbeddedStore::open(dir, Options::new(partitions)).unwrap();
    for number in 0..4 {
        let partition = partition(number);
        let seat = Seat::Partition(partition);
        let broker = BrokerId::new("a:1");
        let mut lease = None;
        for _ in 0..7 {
            lease = Some(store.acquire(seat, &broker, Duration::from_secs(1), NOW).await.unwrap());
        }
        let epoch = lease.unwrap().epoch;
        let mut changes = Vec::new();
        for place in 0..count / 4 {
            let id = id(at(place % 1000), partition, epoch, place);
            match place % 50 {
                0 => changes.push(Change::Put(with_key(rich_task(id), place))),
                1 => {
                    let task = task(id).build();
                    changes.push(Change::Put(task.clone()));
                    let letter = letter(&task, at(place));
                    changes.push(Change::Dead { letter, next: None, was: task.state });
                }
                2 => changes.push(task(id).paused().put()),
                _ => changes.push(task(id).put()),
            }
        }
        for (part, number) in changes.chunks(1000).zip(1..) {
            let batch = Batch::new(BatchNo::new(number), part.to_vec());
            store.apply(partition, epoch, batch).await.unwrap();
        }
    }
    store.close().await.unwrap();
}

fn with_key(task: punctual_core::Task, number: u64) -> punctual_core::Task {
    let key = punctual_core::TaskKey::new(&format!("{}-{number}", task.id.partition())).unwrap();
    let definition = punctual_core::NewTask { key: Some(key), ..(*task.definition).clone() };
    punctual_core::Task { definition: Arc::new(definition), ..task }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_was_killed_is_done_again_and_nothing_doubles() {
    let (redis, shelf) = (Redis::start(), Shelf::new());
    let dir = tempfile::tempdir().unwrap();
    many(dir.path(), 8_000).await;
    let before = shelf.export(&in_dir(dir.path()), "before");
    let embedded = tempfile::tempdir().unwrap();
    for place in [in_redis(&redis), in_dir(embedded.path())] {
        let mut killed = 0;
        for millis in [30, 100, 250, 500] {
            let file = shelf.text("before");
            let mut child =
                command("import", &place, &["--in", &file]).stderr(Stdio::null()).spawn().unwrap();
            tokio::time::timeout(Duration::from_millis(millis), std::future::pending::<()>())
                .await
                .unwrap_err();
            killed += u32::from(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(killed > 0, "it was never in the middle");
        fine("import", &place, &["--in", &shelf.text("before")]);
        assert!(shelf.export(&place, "after") == before, "{place:?} has something else");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_file_is_refused_and_says_what_was_imported() {
    let shelf = Shelf::new();
    let dir = tempfile::tempdir().unwrap();
    many(dir.path(), 3_000).await;
    let before = shelf.export(&in_dir(dir.path()), "before");
    let whole = std::fs::read(shelf.path("before")).unwrap();
    std::fs::write(shelf.path("cut"), &whole[..whole.len() / 2]).unwrap();
    let after = tempfile::tempdir().unwrap();
    let (fine_, told) = run("import", &in_dir(after.path()), &["--in", &shelf.text("cut")]);
    assert!(!fine_ && told.contains("the file was cut in line"), "{told}");
    assert!(!told.contains("imported 0 tasks") && told.contains("imported "), "{told}");
    fine("import", &in_dir(after.path()), &["--in", &shelf.text("before")]);
    assert!(shelf.export(&in_dir(after.path()), "after") == before);
    std::fs::write(shelf.path("no"), "{}\n").unwrap();
    let nowhere = after.path().join("new");
    let (fine_, told) = run("import", &in_dir(&nowhere), &["--in", &shelf.text("no")]);
    assert!(!fine_ && !nowhere.exists(), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_a_broker_has_is_not_touched() {
    let (redis, shelf) = (Redis::start(), Shelf::new());
    let broker = Broker::start(&[]);
    let (fine_, told) = run("export", &in_dir(broker.dir.path()), &["--out", &shelf.text("x")]);
    assert!(!fine_ && told.contains(&broker.pid().to_string()), "{told}");
    let dir = stop(broker);
    shelf.export(&in_dir(dir.path()), "file");
    let (fine_, told) = run("export", &in_redis(&redis), &[]);
    assert!(!fine_ && told.contains("there is no cluster shop"), "{told}");

    let options =
        punctual_store_redis::Options::new(vec![redis.url.clone()], "shop", Partitions::ONE);
    let (store, _) = RedisStore::open(options).await.unwrap();
    let seat = Seat::Partition(PartitionId::FIRST);
    let ttl = Duration::from_secs(60);
    let lease = store.acquire(seat, &BrokerId::new("a:1"), ttl, NOW).await.unwrap();
    let (fine_, told) = run("import", &in_redis(&redis), &["--in", &shelf.text("file")]);
    assert!(!fine_ && told.contains("p0 is held by a:1"), "{told}");
    store.release(&lease).await.unwrap();
    fine("import", &in_redis(&redis), &["--in", &shelf.text("file")]);
    let holder = store.holder(seat).await.unwrap().unwrap();
    assert!(holder.epoch > lease.epoch && !holder.holds_at(NOW), "{holder:?}");
}

#[test]
fn an_export_goes_through_a_pipe_and_leaves_history_out_if_told() {
    let receiver = Receiver::start();
    let dir = stock(&receiver);
    let output = command("export", &in_dir(dir.path()), &["--without-history"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["header"]["partitions"], 4);
    assert_eq!(lines.last().unwrap()["end"]["fires"], 0);
    assert!(lines.iter().all(|line| line["fire"].is_null()));
}
