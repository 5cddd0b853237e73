//! Values in Redis that are damaged under a running broker, one kind after the other and at random.
//!
//! A damaged value affects its task only: a call about it is answered with its own problem type,
//! which names the place, and all other tasks are served and fire. Longer:
//! `PUNCTUAL_DAMAGE_SEEDS=50 cargo test -p punctual --test faults -- --nocapture damage::`.

use std::collections::BTreeSet;
use std::process::Command;

use punctual_core::{PartitionId, TaskId};
use punctual_store_redis::keys::{self, PartitionKeys};
use punctual_test_support::redis::RedisServer;
use punctual_test_support::{
    BrokerClient, RandomNumbers, RecordingReceiver, TestCluster, eventually, punctual_binary,
    wait_for,
};
use serde_json::{Value, json};

use crate::cluster::number_of;

/// The default of `--cluster`.
const NAME: &str = "punctual";
const METRIC: &str = "punctual_store_damaged_values_total";
const DAMAGED: &str = "urn:punctual:damaged";
/// Values that are damaged at random in one run.
const RANDOM_VALUES: usize = 50;

/// Decodes hexadecimal arguments: redis-cli cannot pass every byte.
const DECODE: &str = "local function bytes(hex) return (string.gsub(hex, '..', function(digits) \
                      return string.char(tonumber(digits, 16)) end)) end ";

/// A broker on a Redis with one partition, and a receiver.
struct DamageTest {
    cluster: TestCluster<RedisServer>,
    receiver: RecordingReceiver,
    keys: PartitionKeys,
    neighbours: u32,
}

impl DamageTest {
    fn start() -> Self {
        let flags = ["--partitions", "1"];
        let cluster = TestCluster::over(RedisServer::start(&[]), 1, &flags, None);
        let keys = PartitionKeys::new(NAME, PartitionId::FIRST);
        Self { cluster, receiver: RecordingReceiver::start(), keys, neighbours: 0 }
    }

    fn client(&self) -> &BrokerClient {
        self.cluster.client(0)
    }

    /// Runs a script on Redis with hexadecimal arguments.
    fn eval(&self, script: &str, key: &str, arguments: &[Vec<u8>]) -> String {
        let script = format!("{DECODE}{script}");
        let hex: Vec<String> = arguments.iter().map(|bytes| hex(bytes)).collect();
        let mut words = vec!["EVAL", &script, "1", key];
        words.extend(hex.iter().map(String::as_str));
        self.cluster.redis.cli(&words)
    }

    fn set(&self, key: &str, field: &[u8], value: &[u8]) {
        let script = "return redis.call('HSET', KEYS[1], bytes(ARGV[1]), bytes(ARGV[2]))";
        let added = self.eval(script, key, &[field.to_vec(), value.to_vec()]);
        assert_eq!(added.trim(), "0", "{key} has no such field");
    }

    fn remove(&self, command: &str, key: &str, field: &[u8]) {
        let script = format!("return redis.call('{command}', KEYS[1], bytes(ARGV[1]))");
        assert_eq!(self.eval(&script, key, &[field.to_vec()]).trim(), "1", "{key}");
    }

    fn body(&self, when: &Value, path: &str) -> Value {
        let mut body = json!({"target": {"http": {"url": format!("{}{path}", self.receiver.url)}}});
        body.as_object_mut().unwrap().extend(when.as_object().unwrap().clone());
        body
    }

    /// Schedules a task that is due in an hour. Returns its id.
    fn put(&self, key: &str) -> TaskId {
        let (status, task) = self.client().put(key, &self.body(&json!({"in": "1h"}), "/now/never"));
        assert_eq!(status, 201, "{task}");
        task["id"].as_str().unwrap().parse().unwrap()
    }

    /// Asserts that another task of the partition is scheduled, shown, listed, and fires.
    fn assert_neighbours_fire(&mut self) {
        self.neighbours += 1;
        let key = format!("neighbour-{}", self.neighbours);
        let body = self.body(&json!({"in": "0s"}), &format!("/now/{key}"));
        // While the partition has no owner, for a moment, calls are answered with 503.
        let status = eventually(|| Some(self.client().put(&key, &body).0).filter(|it| *it != 503));
        assert_eq!(status, 201);
        wait_for("the neighbour to fire", || self.receiver.deliveries().contains_key(&key));
    }

    /// Asserts that a call is answered with a problem that names a key of Redis.
    fn assert_damaged(&self, method: &str, path: &str, body: &Value, named: &str) {
        let (status, problem) = self.client().shop(method, path, body);
        assert_eq!((status, &problem["type"]), (500, &json!(DAMAGED)), "{path}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(named), "{path}: {detail}");
    }

    fn damaged_values(&self) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let count = eventually(|| self.client().metric(METRIC)) as u64;
        count
    }

    /// Counts the lines of the log that report a damaged value in a place.
    fn count_logged(&self, place: &str) -> usize {
        let log = self.cluster.brokers[0].logged();
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_it = |entry: &Value| {
            entry["fields"]["message"] == "damaged value in Redis"
                && entry["fields"]["place"].as_str().is_some_and(|it| it.contains(place))
        };
        entries.filter(is_it).count()
    }

    fn restart(&mut self) {
        self.cluster.brokers[0].kill();
        self.cluster.start_again(0);
        self.cluster.wait_until_whole();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns bytes as redis-cli reads them in quotes.
fn shown(bytes: &[u8]) -> String {
    let show = |byte: &u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    bytes.iter().map(show).collect()
}

fn id_bytes(id: TaskId) -> Vec<u8> {
    id.as_u128().to_be_bytes().to_vec()
}

fn name(key: &str) -> Vec<u8> {
    [b"shop\0", key.as_bytes()].concat()
}

#[test]
fn a_damaged_task_affects_no_other_task() {
    let mut test = DamageTest::start();
    let id = test.put("victim");
    let touched = test.put("touched");
    let bodiless = test.put("bodiless");
    let moved = test.put("moved");
    let renamed = test.put("renamed");
    let (status, _) = test.client().post("/tasks/touched/touch", &json!({"in": "2h"}));
    assert_eq!(status, 200);
    let PartitionKeys { tasks, late, names, due, .. } = test.keys.clone();
    test.set(&tasks, &id_bytes(id), b"x");
    test.set(&late, &id_bytes(touched), b"\xff");
    test.remove("HDEL", &tasks, &id_bytes(bodiless));
    // The order has it at another time than the task.
    test.eval("return redis.call('ZADD', KEYS[1], '5', bytes(ARGV[1]))", &due, &[id_bytes(moved)]);
    test.set(&names, &name("renamed"), &[0; 40]);
    // Members of the order that are no ids.
    for member in [&b"short"[..], &[0xff; 16], &[0xff; 17]] {
        let add = "return redis.call('ZADD', KEYS[1], '1', bytes(ARGV[1]))";
        assert_eq!(test.eval(add, &due, &[member.to_vec()]).trim(), "1");
    }

    let put = test.body(&json!({"in": "1h"}), "/now/never");
    for (key, place) in [("victim", &tasks), ("touched", &late), ("renamed", &names)] {
        let path = format!("/tasks/{key}");
        test.assert_damaged("GET", &path, &Value::Null, place);
        test.assert_damaged("PUT", &path, &put, place);
        test.assert_damaged("DELETE", &path, &Value::Null, place);
        test.assert_damaged("POST", &format!("{path}/pause"), &Value::Null, place);
        test.assert_damaged("POST", &format!("{path}/fire"), &Value::Null, place);
        test.assert_damaged("GET", &format!("{path}/fires"), &Value::Null, place);
    }
    for key in ["touched", "renamed"] {
        let path = format!("/tasks/{key}/touch");
        let place = if key == "touched" { &late } else { &names };
        test.assert_damaged("POST", &path, &json!({"in": "3h"}), place);
    }
    // The detail names the field as redis-cli shows it.
    test.assert_damaged("GET", &format!("/tasks/{id}"), &Value::Null, &shown(&id_bytes(id)));
    // By its id the task is whole: only the entry of its key is damaged.
    assert_eq!(test.client().get(&format!("/tasks/{renamed}")).0, 200);
    assert_eq!(test.client().get("/tasks/bodiless").0, 404, "its key leads to nothing");
    // Of many tasks in one call, only that one is refused.
    let batch: Vec<Value> = ["b0", "b1", "victim", "b2", "touched", "b3"]
        .map(|key| {
            let mut task = put.clone();
            task["key"] = json!(key);
            task
        })
        .to_vec();
    let (status, answer) = test.client().post("/tasks", &json!(batch));
    assert_eq!(status, 200, "{answer}");
    let problems: Vec<_> =
        answer["results"].as_array().unwrap().iter().map(|result| result["type"].clone()).collect();
    let (fine, damaged) = (Value::Null, json!(DAMAGED));
    let want = [&fine, &fine, &damaged, &fine, &damaged, &fine].map(Value::clone);
    assert_eq!(problems, want, "{answer}");

    test.assert_neighbours_fire();
    let (status, page) = test.client().get("/tasks?limit=100");
    assert_eq!(status, 200, "{page}");
    let listed: BTreeSet<&str> = page["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|task| task["key"].as_str())
        .filter(|key| !key.starts_with("neighbour") && !key.starts_with('b'))
        .collect();
    // An entry at another time than its task is damaged, whatever is before and after it.
    assert_eq!(listed, BTreeSet::from(["renamed"]), "{page}");
    assert_eq!(test.client().get("/stats").0, 200);
    assert_eq!(test.client().get("/forecast").0, 200);

    // A broker that starts loads past the damage, and logs each place once.
    let body = test.body(&json!({"in": "2s"}), "/now/later");
    assert_eq!(test.client().put("later", &body).0, 201);
    let before = test.count_logged(&shown(&id_bytes(id)));
    assert_eq!(before, 1, "once although it was read many times");
    test.restart();
    wait_for("a task of before to fire", || test.receiver.deliveries().contains_key("later"));
    test.assert_neighbours_fire();
    // What is not due soon is not read yet.
    assert_eq!(test.damaged_values(), 4, "three members that are no ids, and one moved");
    test.assert_damaged("GET", "/tasks/victim", &Value::Null, &tasks);
    assert_eq!(test.damaged_values(), 5);

    // An export is whole or refused.
    let export = Command::new(punctual_binary())
        .args(["export", "--redis", &test.cluster.redis.url()])
        .output()
        .unwrap();
    let problem = String::from_utf8_lossy(&export.stderr);
    assert!(!export.status.success() && problem.contains(&test.keys.due), "{problem}");

    // Removed, it is no longer in the way.
    test.remove("HDEL", &tasks, &id_bytes(id));
    test.remove("ZREM", &due, &id_bytes(id));
    test.remove("HDEL", &names, &name("victim"));
    assert_eq!(test.client().get("/tasks/victim").0, 404);
    test.put("victim");
}

#[test]
fn a_damaged_record_or_dead_letter_affects_no_other() {
    let mut test = DamageTest::start();
    let dead = |key: &str| {
        let mut body = test.body(&json!({"in": "0s"}), "/now/x");
        // No webhook may call this address, so the attempt is refused.
        body["target"] =
            json!({"http": {"url": format!("http://localhost:{}/", test.cluster.redis.port)}});
        assert_eq!(test.client().put(key, &body).0, 201);
        eventually(|| {
            let (_, page) = test.client().get("/dead?limit=100");
            let letters = page["dead"].as_array()?.clone();
            letters.into_iter().find(|letter| letter["task"]["key"] == key)
        })
    };
    let (letter, whole) = (dead("victim"), dead("whole"));
    let fire = |letter: &Value| letter["fire_id"].as_str().unwrap().to_owned();
    let id: TaskId = letter["task"]["id"].as_str().unwrap().parse().unwrap();
    let PartitionKeys { letters, tasks, dead, .. } = test.keys.clone();
    let field = [id_bytes(id), id.due().as_millis().to_be_bytes().to_vec()];
    let field = field.concat();
    test.set(&letters, &field, b"\x01\x02\x03");
    let path = format!("/dead/{}", fire(&letter));
    let redrive = |letter: &Value| {
        let (status, answer) = test.client().post("/dead/redrive", &json!({"ids": [fire(letter)]}));
        assert_eq!(status, 200, "{answer}");
        (answer["redriven"].clone(), answer["problems"][0]["problem"]["type"].clone())
    };
    assert_eq!(redrive(&letter), (json!(0), json!(DAMAGED)));
    test.assert_damaged("DELETE", &path, &Value::Null, &letters);
    // Its member in the order is whole, and one that is not is passed over.
    let add = "return redis.call('ZADD', KEYS[1], '0', bytes(ARGV[1]))";
    test.eval(add, &dead, &[b"shop\0short".to_vec()]);
    let (status, page) = test.client().get("/dead?limit=1");
    assert_eq!(status, 200, "{page}");
    let mut fires = Vec::new();
    let mut path = "/dead?limit=1".to_owned();
    for _ in 0..10 {
        let (status, page) = test.client().get(&path);
        assert_eq!(status, 200, "{page}");
        fires.extend(page["dead"].as_array().unwrap().iter().map(&fire));
        match page["next"].as_str() {
            Some(next) => path = format!("/dead?limit=1&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(fires, [fire(&whole)]);
    // The record of its fire replaced the task.
    test.assert_damaged("GET", &format!("/tasks/{id}"), &Value::Null, &letters);
    test.set(&tasks, &id_bytes(id), b"\0\0");
    test.assert_damaged("GET", &format!("/tasks/{id}/fires"), &Value::Null, &tasks);
    test.assert_damaged("GET", &format!("/tasks/{id}"), &Value::Null, &tasks);
    assert_eq!(redrive(&whole), (json!(1), Value::Null));
    test.assert_neighbours_fire();
    assert!(test.damaged_values() >= 3);
}

#[test]
fn damaged_counts_stop_no_batch() {
    let mut test = DamageTest::start();
    test.put("a");
    let counts = test.keys.counts.clone();
    test.set(&counts, b"shop\0s", b"many");
    test.assert_damaged("GET", "/stats", &Value::Null, &counts);
    let field = "shop\\x00s";
    test.assert_damaged("GET", "/stats", &Value::Null, field);
    test.assert_neighbours_fire();
    test.put("b");
    assert_eq!(test.client().get("/tasks/b").0, 200);
    assert_eq!(test.client().request("GET", "/v1/other/stats", "").unwrap().0, 200);
    test.set(&counts, b"\0history", b"9223372036854775807");
    test.assert_neighbours_fire();
    test.restart();
    test.assert_neighbours_fire();
    assert_eq!(test.count_logged(field), 2, "once by each process");
    // Repaired, it counts again.
    test.set(&counts, b"shop\0s", b"2");
    assert_eq!(test.client().get("/stats").1["scheduled"], 2);
    test.put("c");
    assert_eq!(test.client().get("/stats").1["scheduled"], 3);
}

#[test]
fn a_damaged_lease_is_taken_again() {
    let mut test = DamageTest::start();
    test.assert_neighbours_fire();
    let own = test.keys.own.clone();
    for (field, value) in [
        ("epoch", "x"),
        ("epoch", ""),
        ("epoch", "99999999999999999999"),
        ("batch", "x"),
        ("batch", "999999"),
        ("token", "\u{1}"),
        ("broker", "x"),
        ("until", "x"),
        ("expires", "x"),
    ] {
        test.set(&own, field.as_bytes(), value.as_bytes());
        test.assert_neighbours_fire();
        test.assert_neighbours_fire();
    }
    let leader = keys::own(NAME, punctual_core::Seat::Leader);
    for (field, value) in [("epoch", "x"), ("broker", "\u{0}"), ("until", "x"), ("expires", "x")] {
        test.set(&leader, field.as_bytes(), value.as_bytes());
        test.assert_neighbours_fire();
    }
    assert!(test.damaged_values() >= 2);
    // A broker that starts knows no epoch. The leader's may begin anew.
    test.cluster.brokers[0].kill();
    test.set(&leader, b"epoch", b"x");
    test.cluster.start_again(0);
    test.cluster.wait_until_whole();
    test.assert_neighbours_fire();
    // That of a partition is part of task ids: an operator has to say which ones were used.
    test.cluster.brokers[0].kill();
    test.set(&own, b"epoch", b"x");
    test.cluster.start_again(0);
    wait_for("the damage to be found", || test.damaged_values() == 1);
    assert_eq!(test.client().get("/tasks/any").0, 503);
    let place = format!("{own}, field \"epoch\"");
    assert_eq!(test.count_logged(&place), 2, "once by each process that found it");
    test.set(&own, b"epoch", b"5000");
    test.assert_neighbours_fire();
}

/// Lists all hash fields and members of sorted sets, as `KIND KEY FIELD` with a hexadecimal field.
const LIST: &str = "
local function hex(bytes)
  return (string.gsub(bytes, '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end))
end
local commands = {hash = {'HKEYS'}, zset = {'ZRANGE', 0, -1}}
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key)['ok']
  local command = commands[kind]
  if command then
    for _, field in ipairs(redis.call(command[1], key, unpack(command, 2))) do
      found[#found + 1] = kind .. ' ' .. key .. ' ' .. hex(field)
    end
  end
end
return found";

/// Damages one value at random: other bytes, fewer bytes, none, or one byte changed. The time of a
/// member of a sorted set is moved.
const DAMAGE: &str = "
local kind, field = bytes(ARGV[1]), bytes(ARGV[2])
local how = tonumber(bytes(ARGV[3]))
if kind == 'zset' then
  return redis.call('ZADD', KEYS[1], tostring(how * 7919), field)
end
local value = redis.call('HGET', KEYS[1], field)
if not value then return 0 end
local at = how % math.max(#value, 1)
local way = how % 4
if way == 0 then
  value = bytes(ARGV[4])
elseif way == 1 then
  value = string.sub(value, 1, at)
elseif way == 2 then
  value = ''
else
  value = string.sub(value, 1, at) .. string.char(how % 256) .. string.sub(value, at + 2)
end
return redis.call('HSET', KEYS[1], field, value)";

#[test]
fn random_damage_ends_no_broker_and_stops_no_neighbour() {
    let seeds = number_of("PUNCTUAL_DAMAGE_SEEDS").unwrap_or(1);
    let first = number_of("PUNCTUAL_DAMAGE_SEED").unwrap_or(1);
    for seed in first..first + seeds {
        damage_at_random(seed);
    }
}

fn damage_at_random(seed: u64) {
    println!("seed {seed}");
    let mut random = RandomNumbers::new(seed);
    let mut test = DamageTest::start();
    let mut ids = Vec::new();
    for n in 0..60 {
        // Half of them fire during the test.
        let soon = if n % 2 == 0 { "1h" } else { "3s" };
        let when = match n % 8 / 2 {
            0 => json!({"in": soon}),
            1 => json!({"every": soon}),
            2 => json!({"within": soon}),
            _ => json!({"in": soon, "guarantee": "at_most_once"}),
        };
        let (status, task) = test.client().put(&format!("k{n}"), &test.body(&when, "/now/any"));
        assert_eq!(status, 201, "{task}");
        ids.push(task["id"].as_str().unwrap().to_owned());
        match n % 5 {
            1 => test.client().post(&format!("/tasks/k{n}/pause"), &Value::Null),
            2 => test.client().post(&format!("/tasks/k{n}/touch"), &json!({"in": "2h"})),
            3 => test.client().shop("DELETE", &format!("/tasks/k{n}"), &Value::Null),
            _ => continue,
        };
    }
    test.assert_neighbours_fire();
    // What a broker reads only when it starts is not damaged.
    let list = test.cluster.redis.cli(&["EVAL", LIST, "0"]);
    let values: Vec<Vec<&str>> = list.lines().map(|line| line.split(' ').collect()).collect();
    let values: Vec<_> = values.into_iter().filter(|value| !value[1].ends_with(":meta")).collect();
    assert!(values.len() > RANDOM_VALUES, "{list}");
    for _ in 0..RANDOM_VALUES {
        let value = &values[random.index(values.len())];
        let field = (0..value[2].len() / 2)
            .map(|at| u8::from_str_radix(&value[2][2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let how = random.below(1 << 20).to_string().into_bytes();
        let noise = (0..random.below(60)).map(|_| random.below(256).try_into().unwrap()).collect();
        let arguments = [value[0].as_bytes().to_vec(), field, how, noise];
        test.eval(DAMAGE, value[1], &arguments);
    }
    for round in 0..2 {
        call_everything(&test, &ids);
        test.assert_neighbours_fire();
        assert!(test.cluster.brokers[0].is_running());
        let log = test.cluster.brokers[0].logged();
        assert!(!log.contains("panicked"), "seed {seed}: {log}");
        if round == 0 {
            test.restart();
        }
    }
}

/// Makes all kinds of calls. Each is answered, and a 500 only with the type of damage.
fn call_everything(test: &DamageTest, ids: &[String]) {
    let target = json!({"queue": "none"});
    let check = |method: &str, path: &str, body: &Value| {
        let (status, answer) = eventually(|| {
            let answer = test.client().shop(method, path, body);
            Some(answer).filter(|(status, _)| *status != 503)
        });
        let fine = status < 500 || answer["type"] == DAMAGED;
        assert!(fine, "{method} {path}: {status} {answer}");
        answer
    };
    for (n, id) in ids.iter().enumerate() {
        for name in [format!("k{n}"), id.clone()] {
            check("GET", &format!("/tasks/{name}"), &Value::Null);
            check("GET", &format!("/tasks/{name}/fires"), &Value::Null);
        }
        let path = format!("/tasks/k{n}");
        match n % 6 {
            0 => check("POST", &format!("{path}/touch"), &json!({"in": "3h"})),
            1 => check("POST", &format!("{path}/resume"), &Value::Null),
            2 => check("POST", &format!("{path}/pause"), &Value::Null),
            3 => check("PUT", &path, &json!({"in": "1h", "target": target})),
            4 => check("POST", &format!("{path}/fire"), &Value::Null),
            _ => check("DELETE", &path, &Value::Null),
        };
    }
    for path in ["/tasks?limit=100", "/tasks?limit=7", "/dead?limit=100", "/dead?limit=3"] {
        let mut cursor = String::new();
        let mut pages = 0;
        while let Some(next) =
            check("GET", &format!("{path}{cursor}"), &Value::Null)["next"].as_str()
        {
            cursor = format!("&cursor={next}");
            pages += 1;
            assert!(pages < 200, "{path} does not end");
        }
    }
    check("GET", "/stats", &Value::Null);
    check("GET", "/forecast", &Value::Null);
}
