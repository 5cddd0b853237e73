//! Export and import with the real binary, between real stores: complete files and truncated ones,
//! killed imports and repeated ones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation ends the test")]

use punctual_test_support as field;

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use field::{TestBroker as Broker, WebhookReceiver as Receiver, eventually};
use punctual_core::{BrokerId, PartitionId, Partitions, Seat};
use punctual_store::conformance::fixtures::{NOW, at, id, letter, partition, rich_task, task};
use punctual_store::{Batch, BatchNo, Change, LeaseStore as _, Prior, TaskStore as _};
use punctual_store_embedded::{EmbeddedOptions, EmbeddedStore};
use punctual_store_redis::RedisStore;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Kills its server when its input closes, however the test ends.
const KEEPER: &str = r#""$@" >/dev/null 2>&1 & pid=$!; read -r _; kill -9 $pid; wait $pid"#;

/// A Redis server of one test.
struct TransferRedis {
    url: String,
    _dir: TempDir,
    keeper: Child,
    stdin: Option<ChildStdin>,
}

impl TransferRedis {
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

impl Drop for TransferRedis {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.keeper.wait();
    }
}

/// The flags that name a store.
fn in_dir(dir: &Path) -> Vec<String> {
    vec!["--data-dir".into(), dir.display().to_string()]
}

fn in_redis(redis: &TransferRedis) -> Vec<String> {
    vec!["--redis".into(), redis.url.clone(), "--cluster".into(), "shop".into()]
}

/// A database of the shared server.
fn in_database(flag: &str, url: String) -> Vec<String> {
    vec![flag.into(), url, "--cluster".into(), "shop".into()]
}

fn command(verb: &str, store: &[String], more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_punctual"));
    command.arg(verb).args(store).args(more);
    command
}

/// Whether the command succeeded, and its standard error.
fn run(verb: &str, store: &[String], more: &[&str]) -> (bool, String) {
    let output = command(verb, store, more).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

fn succeed(verb: &str, store: &[String], more: &[&str]) -> String {
    let (success, printed) = run(verb, store, more);
    assert!(success, "{verb} {more:?}: {printed}");
    printed
}

/// The export files of one test.
struct ExportFiles(TempDir);

impl ExportFiles {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn export(&self, store: &[String], name: &str) -> Vec<String> {
        succeed("export", store, &["--out", &self.text(name)]);
        self.lines(name)
    }

    /// All lines except the first and the last, sorted.
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

/// A store with tasks in every state, dead letters and history. Its broker has stopped.
fn filled_store(receiver: &Receiver) -> Arc<TempDir> {
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
    // A series whose fires are all dead letters, and a dead letter whose key names another task.
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
    // A fire that waits for its second attempt, and a manual fire that was received.
    let sour = format!("{}/500", receiver.url);
    let tries = r#""in": "0s", "retry": {"attempts_max": 3, "backoff": {"fixed": "20d"}}"#;
    put("tried", &field::task(tries, &sour));
    eventually(|| (broker.get("tried").1["attempt"] == 1).then_some(()));
    put("manual", &field::task(r#""in": "300d""#, &receiver.url));
    assert_eq!(broker.call("POST", "/v1/shop/tasks/manual/fire", &[], "").0, 200);
    eventually(|| {
        let (_, fires) = broker.call("GET", "/v1/shop/tasks/manual/fires", &[], "");
        fires["fires"].get(0).cloned()
    });
    stop(broker)
}

#[test]
fn an_export_imported_into_every_other_store_and_back_is_the_same() {
    let (receiver, redis, files) = (Receiver::start(), TransferRedis::start(), ExportFiles::new());
    let dir = filled_store(&receiver);
    let before = files.export(&in_dir(dir.path()), "before");
    let kinds = |kind: &str| before.iter().filter(|line| line.starts_with(kind)).count();
    assert_eq!(kinds(r#"{"dead""#), 5, "{before:#?}");
    assert!(kinds(r#"{"fire""#) >= 2, "{before:#?}");
    // Nine tasks of `shop`, one of `other`, and the receipt.
    assert_eq!(kinds(r#"{"task""#), 11, "{before:#?}");

    succeed("import", &in_redis(&redis), &["--in", &files.text("before")]);
    assert_eq!(files.export(&in_redis(&redis), "in-redis"), before);
    let postgres = in_database("--postgres", field::postgres::shared_database());
    succeed("import", &postgres, &["--in", &files.text("in-redis")]);
    assert_eq!(files.export(&postgres, "in-postgres"), before);
    let mysql = in_database("--mysql", field::mariadb::shared_database());
    succeed("import", &mysql, &["--in", &files.text("in-postgres")]);
    assert_eq!(files.export(&mysql, "in-mysql"), before);
    let back = Arc::new(tempfile::tempdir().unwrap());
    succeed("import", &in_dir(back.path()), &["--in", &files.text("in-mysql")]);
    assert_eq!(files.export(&in_dir(back.path()), "back"), before);

    // A broker runs on the imported store.
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
    // The same bytes as the first request: a receipt compares them.
    let body = concat!(
        r#"{"in": "300d", "target": {"queue": "q"}, "#,
        r#""payload_base64": "AAEC", "content_type": "a/b"}"#
    );
    let (status, same) = broker.call("POST", "/v1/shop/tasks", &[("idempotency-key", "x1")], body);
    let known = |line: &String| line.contains(same["id"].as_str().unwrap());
    assert!(status < 300 && before.iter().any(known), "the receipt was imported: {same}");
}

#[test]
fn an_import_into_other_partitions_assigns_new_ids_and_can_be_repeated() {
    let (receiver, files) = (Receiver::start(), ExportFiles::new());
    let dir = filled_store(&receiver);
    let before = files.export(&in_dir(dir.path()), "before");
    let wide = Arc::new(tempfile::tempdir().unwrap());
    let store = in_dir(wide.path());
    let printed = succeed("import", &store, &["--in", &files.text("before"), "--partitions", "16"]);
    assert!(printed.contains("with a new id") && printed.contains("receipts"), "{printed}");
    let first = files.export(&store, "first");
    let printed = succeed("import", &store, &["--in", &files.text("before")]);
    assert!(printed.contains("imported 0 tasks, 0 dead letters"), "{printed}");
    assert_eq!(files.export(&store, "second"), first);
    let receipts = before.iter().filter(|line| line.contains(r#""namespace":"shop~""#)).count();
    assert_eq!(first.len(), before.len() - receipts);

    let broker = Broker::start_on(Arc::clone(&wide), &["--partitions", "16"]);
    for key in ["once", "moved", "paused", "cron", "watch", "again", "tried", "manual"] {
        assert_eq!(broker.get(key).0, 200, "{key}");
    }
    // A task that has ended in the target is not imported again.
    assert_eq!(broker.delete("once").0, 200);
    stop(broker);
    let printed = succeed("import", &store, &["--in", &files.text("before")]);
    assert!(printed.contains("1 have ended here since"), "{printed}");
}

#[test]
fn a_taken_key_is_a_conflict_without_replace() {
    let files = ExportFiles::new();
    let one = |payload: &str| {
        let broker = Broker::start(&[]);
        let body =
            format!(r#"{{"in": "300d", "target": {{"queue": "q"}}, "payload": "{payload}"}}"#);
        assert_eq!(broker.put("k", body).0, 201);
        stop(broker)
    };
    let (ours, theirs) = (one("ours"), one("theirs"));
    files.export(&in_dir(theirs.path()), "theirs");
    let file = files.text("theirs");
    let (success, printed) = run("import", &in_dir(ours.path()), &["--in", &file]);
    assert!(
        !success && printed.contains("shop/k names another") && printed.contains("--replace"),
        "{printed}"
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
    succeed("import", &in_dir(ours.path()), &["--in", &file, "--replace"]);
    assert_eq!(payload(&ours), "theirs");
}

/// Fills a store with `count` tasks, dead letters and records, without a broker.
async fn fill_store(dir: &Path, count: u64) {
    let partitions = Partitions::new(4).unwrap();
    let (store, _) = EmbeddedStore::open(dir, EmbeddedOptions::new(partitions)).unwrap();
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
        for number in 0..count / 4 {
            let id = id(at(number % 1000), partition, epoch, number);
            match number % 50 {
                0 => changes.push(Change::Put(with_key(rich_task(id), number))),
                1 => {
                    let task = task(id).build();
                    changes.push(Change::Put(task.clone()));
                    let letter = letter(&task, at(number));
                    changes.push(Change::Dead { letter, next: None, was: Prior::of(&task) });
                }
                2 => changes.push(task(id).paused().put()),
                _ => changes.push(task(id).put()),
            }
        }
        for (part, batch_number) in changes.chunks(1000).zip(1..) {
            let batch = Batch::new(BatchNo::new(batch_number), part.to_vec());
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
async fn a_killed_import_is_repeated_and_nothing_is_imported_twice() {
    let (redis, files) = (TransferRedis::start(), ExportFiles::new());
    let dir = tempfile::tempdir().unwrap();
    fill_store(dir.path(), 8_000).await;
    let before = files.export(&in_dir(dir.path()), "before");
    let embedded = tempfile::tempdir().unwrap();
    // A store that is killed while its catalog is made for the first time may not open again.
    fill_store(embedded.path(), 0).await;
    for store in [in_redis(&redis), in_dir(embedded.path())] {
        let mut killed = 0;
        for millis in [30, 100, 250, 500] {
            let file = files.text("before");
            let mut child =
                command("import", &store, &["--in", &file]).stderr(Stdio::null()).spawn().unwrap();
            tokio::time::timeout(Duration::from_millis(millis), std::future::pending::<()>())
                .await
                .unwrap_err();
            killed += u32::from(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(killed > 0, "no import was killed before it ended");
        succeed("import", &store, &["--in", &files.text("before")]);
        assert!(files.export(&store, "after") == before, "{store:?} differs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_file_is_refused_and_the_output_says_what_was_imported() {
    let files = ExportFiles::new();
    let dir = tempfile::tempdir().unwrap();
    fill_store(dir.path(), 3_000).await;
    let before = files.export(&in_dir(dir.path()), "before");
    let whole = std::fs::read(files.path("before")).unwrap();
    std::fs::write(files.path("cut"), &whole[..whole.len() / 2]).unwrap();
    let after = tempfile::tempdir().unwrap();
    let (success, printed) = run("import", &in_dir(after.path()), &["--in", &files.text("cut")]);
    assert!(!success && printed.contains("the file was cut in line"), "{printed}");
    assert!(!printed.contains("imported 0 tasks") && printed.contains("imported "), "{printed}");
    succeed("import", &in_dir(after.path()), &["--in", &files.text("before")]);
    assert!(files.export(&in_dir(after.path()), "after") == before);
    std::fs::write(files.path("no"), "{}\n").unwrap();
    let nowhere = after.path().join("new");
    let (success, printed) = run("import", &in_dir(&nowhere), &["--in", &files.text("no")]);
    assert!(!success && !nowhere.exists(), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_a_broker_uses_is_refused() {
    let (redis, files) = (TransferRedis::start(), ExportFiles::new());
    let broker = Broker::start(&[]);
    let (success, printed) =
        run("export", &in_dir(broker.dir.path()), &["--out", &files.text("x")]);
    assert!(!success && printed.contains(&broker.pid().to_string()), "{printed}");
    let dir = stop(broker);
    files.export(&in_dir(dir.path()), "file");
    let (success, printed) = run("export", &in_redis(&redis), &[]);
    assert!(!success && printed.contains("there is no cluster shop"), "{printed}");

    let options =
        punctual_store_redis::RedisOptions::new(vec![redis.url.clone()], "shop", Partitions::ONE);
    let (store, _) = RedisStore::open(options).await.unwrap();
    let seat = Seat::Partition(PartitionId::FIRST);
    let ttl = Duration::from_secs(60);
    let lease = store.acquire(seat, &BrokerId::new("a:1"), ttl, NOW).await.unwrap();
    let (success, printed) = run("import", &in_redis(&redis), &["--in", &files.text("file")]);
    assert!(!success && printed.contains("p0 is held by a:1"), "{printed}");
    store.release(&lease).await.unwrap();
    succeed("import", &in_redis(&redis), &["--in", &files.text("file")]);
    let holder = store.holder(seat).await.unwrap().unwrap();
    assert!(holder.epoch > lease.epoch && !holder.holds_at(NOW), "{holder:?}");
}

#[test]
fn an_export_to_a_pipe_can_leave_history_out() {
    let receiver = Receiver::start();
    let dir = filled_store(&receiver);
    let output = command("export", &in_dir(dir.path()), &["--without-history"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["header"]["partitions"], 4);
    assert_eq!(lines.last().unwrap()["end"]["fires"], 0);
    assert!(lines.iter().all(|line| line["fire"].is_null()));
}

/// Takes the next delivery of the queue `q` and refuses it.
fn refuse_next(broker: &Broker) -> Value {
    settle_next(broker, "refuse", |token| json!({"token": token, "reason": "no"}))
}

/// Takes the next delivery of the queue `q` and settles it.
fn settle_next(broker: &Broker, verb: &str, body: impl Fn(&Value) -> Value) -> Value {
    let post = |path: &str, body: Value| {
        let path = format!("/v1/shop/queues/q/{path}");
        broker.call("POST", &path, &[], body.to_string()).1
    };
    let leased = post("lease", json!({"max": 1, "wait": "20s", "lease": "30s"}));
    let delivery = leased["deliveries"][0].clone();
    let settled = post(verb, body(&delivery["token"]));
    assert!(!settled.to_string().contains("stale"), "{leased} {settled}");
    delivery
}

#[test]
fn a_redriven_fire_of_a_series_is_the_same_fire_after_an_import_into_other_partitions() {
    let files = ExportFiles::new();
    let broker = Broker::start(&["--partitions", "4"]);
    let redrive = |broker: &Broker| {
        let all = json!({"all": true}).to_string();
        let redrive = || broker.call("POST", "/v1/shop/dead/redrive", &[], &all).1;
        eventually(|| (redrive()["redriven"] == 1).then_some(()));
    };
    let series = |key: &str| {
        let body = json!({"every": "1h", "target": {"queue": "q"}}).to_string();
        assert_eq!(broker.put(key, body).0, 201);
        let fire = format!("/v1/shop/tasks/{key}/fire");
        assert_eq!(broker.call("POST", &fire, &[], "").0, 200);
        refuse_next(&broker)
    };
    // One redriven fire waits, and another is a dead letter again.
    let waiting = series("waits");
    redrive(&broker);
    let living = |broker: &Broker| {
        let (_, page) = broker.call("GET", "/v1/shop/tasks", &[], "");
        let tasks = page["tasks"].as_array().unwrap().clone();
        tasks.into_iter().find(|task| task["redriven"].is_object())
    };
    let redriven = eventually(|| living(&broker));
    assert_eq!(redriven["redriven"]["fire_id"], waiting["fire_id"]);
    let id = redriven["id"].as_str().unwrap();
    assert_eq!(broker.call("POST", &format!("/v1/shop/tasks/{id}/pause"), &[], "").0, 200);
    let dead = series("dies");
    redrive(&broker);
    let again = refuse_next(&broker);
    assert_eq!((&again["fire_id"], &again["attempt"]), (&dead["fire_id"], &json!(2)));
    let dir = stop(broker);
    files.export(&in_dir(dir.path()), "before");

    let other = Arc::new(tempfile::tempdir().unwrap());
    for _ in 0..2 {
        let more = ["--in", &files.text("before"), "--partitions", "7"];
        let more = if other.path().join("FORMAT").exists() { &more[..2] } else { &more };
        succeed("import", &in_dir(other.path()), more);
    }
    let broker = Broker::start_on(Arc::clone(&other), &["--partitions", "7"]);
    let fire_of = |key: &str, before: &Value| {
        let task = broker.get(key).1["id"].as_str().unwrap().to_owned();
        let nominal = before["fire_id"].as_str().unwrap().split_once('-').unwrap().1;
        format!("{task}-{nominal}")
    };
    let redriven = living(&broker).expect("the redriven fire was imported");
    assert_eq!(redriven["redriven"]["fire_id"], fire_of("waits", &waiting));
    let (_, page) = broker.call("GET", "/v1/shop/dead", &[], "");
    let letters = page["dead"].as_array().unwrap();
    assert_eq!(letters.len(), 1, "{page}");
    assert_eq!(letters[0]["fire_id"], fire_of("dies", &dead));
    assert_eq!(letters[0]["attempts"].as_array().unwrap().len(), 2, "{page}");
    redrive(&broker);
    let third = refuse_next(&broker);
    assert_eq!((&third["fire_id"], &third["attempt"]), (&json!(fire_of("dies", &dead)), &json!(3)));
    assert_eq!(third["key"], "dies");
    // A fire that has succeeded since the export is not a dead letter again after another import.
    redrive(&broker);
    settle_next(&broker, "ack", |token| json!({"tokens": [token]}));
    let other = stop(broker);
    succeed("import", &in_dir(other.path()), &["--in", &files.text("before")]);
    let broker = Broker::start_on(other, &["--partitions", "7"]);
    assert_eq!(broker.call("GET", "/v1/shop/dead", &[], "").1["dead"], json!([]));
}

#[test]
fn alarms_keep_their_states_in_a_store_with_other_partitions() {
    let (files, receiver) = (ExportFiles::new(), Receiver::start());
    let broker = Broker::start(&["--partitions", "3"]);
    let rule = |url: &str| {
        json!({"when": {"dead_letters": {"over": 0}}, "to": {"http": {"url": url}}}).to_string()
    };
    let alarm = |broker: &Broker| broker.call("GET", "/v1/shop/alarms/dead", &[], "").1;
    // The notice stays a task, because nothing listens there.
    broker.call("PUT", "/v1/shop/alarms/dead", &[], rule("http://127.0.0.1:9/"));
    let dead = field::task(r#""in": "0s", "retry": {"attempts_max": 1}"#, "http://127.0.0.1:9/");
    broker.put("order-1", dead);
    let raised = eventually(|| Some(alarm(&broker)).filter(|alarm| alarm["notices"] == 1));
    let from = stop(broker);
    let lines = files.export(&in_dir(from.path()), "alarms");
    for namespace in [r#""namespace":"!alarms""#, r#""namespace":"shop!""#] {
        assert!(lines.iter().any(|line| line.contains(namespace)), "{namespace}: {lines:?}");
    }
    let to = Arc::new(tempfile::tempdir().unwrap());
    let import = ["--in", &files.text("alarms"), "--partitions", "16"];
    succeed("import", &in_dir(to.path()), &import);
    let again = succeed("import", &in_dir(to.path()), &import);
    assert!(again.contains("imported 0 tasks"), "{again}");
    let broker = Broker::start_on(to, &["--partitions", "16"]);
    let imported = alarm(&broker);
    for field in ["when", "to", "state", "since", "notices"] {
        assert_eq!(imported[field], raised[field], "{field}: {imported}");
    }
    assert_eq!(imported["last_notice"]["kind"], "raised", "{imported}");
    // It is still evaluated, and the change is reported once.
    broker.call("PUT", "/v1/shop/alarms/dead", &[], rule(&receiver.url));
    let letters = broker.call("GET", "/v1/shop/dead", &[], "").1;
    let id = letters["dead"][0]["fire_id"].as_str().unwrap();
    broker.call("DELETE", &format!("/v1/shop/dead/{id}"), &[], "");
    let over = eventually(|| Some(alarm(&broker)).filter(|alarm| alarm["notices"] == 2));
    assert_eq!(over["state"], "ok");
    receiver.next();
}
