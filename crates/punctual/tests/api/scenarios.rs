//! Runs the scenarios of `clients/scenarios` through the Rust client and through the command line,
//! and through the Rust client on every store.
//! `clients/scenarios/README.md` describes the files.
//!
//! One runner executes the steps; a [`Driver`] makes the calls of the API. A scenario that a driver
//! cannot run is listed with the reason in its file of exceptions, and must then fail.

mod command_line;
mod matching;
mod rust_client;
mod task_json;
mod virtual_broker;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use punctual_core::Partitions;
use punctual_sql::SqlOptions;
use punctual_store_any::StoreLocation;
use punctual_store_redis::RedisOptions;
use punctual_store_sql::SqlStoreOptions;
use punctual_test_support::ports::free_address;
use punctual_test_support::redis::RedisServer;
use punctual_test_support::{BrokerProcess, DevBroker, ScriptedReceiver, TestCluster, WAIT_MAX};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use self::matching::{check, expand, pick};
use self::virtual_broker::VirtualBroker;

const CLOCK_DEFAULT: &str = "2027-01-04T08:00:00Z";
/// Scenarios that run at the same time: they mostly wait for processes to start.
const THREADS: usize = 3;

/// Why a step did not succeed.
#[derive(Debug)]
enum StepFailure {
    /// The broker refused it, with this problem document.
    Problem(Value),
    /// The driver cannot make the call, or the answer is not as expected.
    Other(String),
}

impl From<String> for StepFailure {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

impl From<&str> for StepFailure {
    fn from(why: &str) -> Self {
        Self::Other(why.to_owned())
    }
}

type StepResult = Result<Value, StepFailure>;

/// Makes the calls of the API, and returns their answers in the form of the HTTP API.
trait Driver {
    fn call(&mut self, verb: &str, args: &mut Arguments, token: Option<&str>) -> StepResult;
}

/// The arguments of a step. Those that no one takes fail the scenario.
#[derive(Debug)]
struct Arguments(Map<String, Value>);

impl Arguments {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.take(name).map(|value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        })
    }

    fn required(&mut self, name: &str) -> Result<String, StepFailure> {
        self.text(name).ok_or_else(|| StepFailure::Other(format!("{name} is missing")))
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        self.take(name).and_then(|value| u32::try_from(value.as_u64()?).ok())
    }

    fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        let values = self.take(name)?.as_array()?.clone();
        Some(values.iter().filter_map(|value| Some(value.as_str()?.to_owned())).collect())
    }

    fn namespace(&mut self) -> String {
        self.text("namespace").unwrap_or_else(|| "shop".to_owned())
    }
}

/// The broker of one scenario.
enum ScenarioBroker {
    Dev(DevBroker),
    /// With the directory of its store, if it has one, which ends after it.
    Virtual {
        broker: VirtualBroker,
        _dir: Option<TempDir>,
    },
    Serve {
        process: Option<BrokerProcess>,
        dir: TempDir,
        address: SocketAddr,
        flags: Vec<String>,
    },
    /// Three brokers on one Redis, with the index of the leader.
    Cluster {
        brokers: TestCluster<RedisServer>,
        leader: usize,
    },
}

/// Where the tasks of scenarios are kept.
#[derive(Clone)]
enum ScenarioStore {
    /// As the scenario says: in memory, or on disk with `serve`.
    OfBinary,
    Embedded,
    /// By its URL.
    Redis(String),
    /// By the URL of a database.
    Postgres(String),
}

impl ScenarioStore {
    /// Starts a broker with a virtual clock on a new store.
    fn start_virtual(&self, clock: &str, args: &[String]) -> Option<ScenarioBroker> {
        static CLUSTERS: AtomicUsize = AtomicUsize::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let cluster = format!("scenario-{number}");
        let (store, dir) = match self {
            Self::OfBinary => return None,
            Self::Embedded => {
                let dir = tempfile::tempdir().unwrap();
                (StoreLocation::Embedded(dir.path().to_owned()), Some(dir))
            }
            Self::Postgres(url) => {
                let sql = SqlOptions::from_url(url).unwrap();
                let options = SqlStoreOptions::new(sql, &cluster, Partitions::ONE);
                (StoreLocation::Postgres(options), None)
            }
            Self::Redis(url) => {
                let urls = vec![url.clone()];
                (StoreLocation::Redis(RedisOptions::new(urls, &cluster, Partitions::ONE)), None)
            }
        };
        let broker = VirtualBroker::start(store, clock, args);
        Some(ScenarioBroker::Virtual { broker, _dir: dir })
    }
}

impl ScenarioBroker {
    fn start(scenario: &Value, store: &ScenarioStore) -> Self {
        let args = scenario["args"].as_array().into_iter().flatten();
        let args = args.map(|arg| arg.as_str().unwrap().to_owned());
        if scenario["broker"] == "serve" {
            let flags = std::iter::once("--allow-private-targets".to_owned()).chain(args).collect();
            let dir = tempfile::tempdir().unwrap();
            let mut broker = Self::Serve { process: None, dir, address: free_address(), flags };
            broker.restart();
            return broker;
        }
        if scenario["broker"] == "cluster" {
            let brokers = TestCluster::over(RedisServer::start(&[]), 3, &[], None);
            let (leader, _) = brokers.leader_and_follower();
            return Self::Cluster { brokers, leader };
        }
        let clock = scenario["clock"].as_str().unwrap_or(CLOCK_DEFAULT);
        let args: Vec<String> = args.collect();
        if let Some(broker) = store.start_virtual(clock, &args) {
            return broker;
        }
        let mut flags = vec!["--listen", "127.0.0.1:0", "--clock", clock];
        flags.extend(args.iter().map(String::as_str));
        Self::Dev(DevBroker::run(&flags))
    }

    /// The addresses of all brokers, that of the leader first.
    fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Dev(broker) => vec![broker.client.address],
            Self::Virtual { broker, .. } => vec![broker.address],
            Self::Serve { address, .. } => vec![*address],
            Self::Cluster { brokers, leader } => {
                let mut addresses = brokers.addresses();
                addresses.swap(0, *leader);
                addresses
            }
        }
    }

    fn kill_leader(&mut self) {
        let Self::Cluster { brokers, leader } = self else {
            panic!("only a cluster has a leader to kill");
        };
        brokers.brokers[*leader].kill();
    }

    fn restart(&mut self) {
        let Self::Serve { process, dir, address, flags } = self else {
            panic!("only a broker with a store on disk can restart");
        };
        if let Some(process) = process.take() {
            process.kill();
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        *process = Some(BrokerProcess::start_at(*address, dir.path(), &flags).0);
    }

    fn clock(&self, method: &str, path: &str, body: &Value, token: Option<&str>) -> StepResult {
        if matches!(self, Self::Serve { .. } | Self::Cluster { .. }) {
            return Err("a broker in real time has no clock to move".into());
        }
        let url = format!("http://{}/v1/clock{path}", self.addresses()[0]);
        let request = http::Request::builder().method(method).uri(url);
        let request = request.header("content-type", "application/json");
        let request = match token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        let agent = ureq::Agent::from(config.timeout_global(Some(WAIT_MAX)).build());
        let mut answer =
            agent.run(request.body(body).unwrap()).map_err(|error| error.to_string())?;
        let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
        let json: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if answer.status().is_success() { Ok(json) } else { Err(StepFailure::Problem(json)) }
    }
}

/// Runs one scenario. Returns why it failed.
fn run(
    scenario: &Value,
    store: &ScenarioStore,
    make: fn(&[SocketAddr]) -> Box<dyn Driver>,
) -> Result<(), String> {
    for key in scenario.as_object().unwrap().keys() {
        let known = ["name", "broker", "clock", "args", "token", "steps"].contains(&key.as_str());
        assert!(known, "unknown key {key} of a file");
    }
    let mut broker = ScenarioBroker::start(scenario, store);
    let mut driver = make(&broker.addresses());
    let (mut names, mut receivers) = (HashMap::new(), Vec::new());
    for (index, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
        let result =
            one_step(scenario, step, &mut names, &mut receivers, |verb, args, token| match verb {
                "restart" => {
                    broker.restart();
                    Ok(Value::Null)
                }
                "kill_leader" => {
                    broker.kill_leader();
                    Ok(Value::Null)
                }
                "advance" => {
                    let body = Value::Object(std::mem::take(&mut args.0));
                    broker.clock("POST", "/advance", &body, token)
                }
                "clock" => broker.clock("GET", "", &Value::Null, token),
                _ => driver.call(verb, args, token),
            });
        result.map_err(|why| {
            let step: String = step.to_string().chars().take(400).collect();
            format!("step {}: {step}\n      {why}", index + 1)
        })?;
    }
    Ok(())
}

fn one_step(
    scenario: &Value,
    step: &Value,
    names: &mut HashMap<String, Value>,
    receivers: &mut Vec<ScriptedReceiver>,
    mut call: impl FnMut(&str, &mut Arguments, Option<&str>) -> StepResult,
) -> Result<(), String> {
    let fields = step.as_object().ok_or("a step is an object")?;
    let is_verb = |key: &&String| !["gives", "fails", "bind", "token"].contains(&key.as_str());
    let verbs: Vec<&String> = fields.keys().filter(is_verb).collect();
    let [verb] = verbs.as_slice() else { return Err(format!("not one verb: {verbs:?}")) };
    let args = expand(&step[verb.as_str()], names).as_object().cloned().unwrap_or_default();
    let mut args = Arguments(args);
    let token = step["token"].as_str().or(scenario["token"].as_str());
    let result = match verb.as_str() {
        "receiver" => {
            let answers = args.take("answers").and_then(|it| it.as_array().cloned());
            receivers.push(ScriptedReceiver::start(answers.ok_or("answers are missing")?));
            Ok(json!({"url": receivers.last().map(|it| it.url.clone())}))
        }
        "received" => {
            let requests: Vec<Value> = receivers.iter().flat_map(|it| it.requests()).collect();
            Ok(json!({"requests": requests}))
        }
        verb => call(verb, &mut args, token),
    };
    let answer = match (result, fields.get("fails")) {
        (Err(StepFailure::Other(why)), _) => return Err(why),
        (Ok(answer), Some(_)) => return Err(format!("expected a failure, got {answer}")),
        (Err(StepFailure::Problem(problem)), None) => return Err(format!("failed: {problem}")),
        (Err(StepFailure::Problem(problem)), Some(want)) => {
            check(&expand(want, names), &problem, "problem")?;
            problem
        }
        (Ok(answer), None) => answer,
    };
    if !args.0.is_empty() {
        return Err(format!("{verb} does not know the arguments {:?}", args.0));
    }
    if let Some(want) = fields.get("gives") {
        check(&expand(want, names), &answer, "answer")?;
    }
    for (name, path) in fields.get("bind").and_then(Value::as_object).into_iter().flatten() {
        names.insert(name.clone(), pick(&answer, path.as_str().unwrap_or_default())?);
    }
    Ok(())
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/scenarios")
}

/// Scenarios by the name of their file.
fn scenarios() -> BTreeMap<String, Value> {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|it| it == "json"));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        (name, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}")))
    };
    files.map(read).collect()
}

/// Lines of `FILE: reason`, by file.
fn exceptions(list: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder().join(list)).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (file, reason) = line.split_once(": ").unwrap_or_else(|| panic!("{line}: no reason"));
        (file.to_owned(), reason.to_owned())
    };
    lines.map(entry).collect()
}

/// Runs all scenarios that fit the store. Exactly those in the list of exceptions must fail.
fn run_all(list: &str, store: &ScenarioStore, make: fn(&[SocketAddr]) -> Box<dyn Driver>) {
    let (mut scenarios, exceptions) = (scenarios(), exceptions(list));
    for file in exceptions.keys() {
        assert!(scenarios.contains_key(file), "{list} names {file}, which does not exist");
    }
    if !matches!(store, ScenarioStore::OfBinary) {
        scenarios.retain(|_, scenario| scenario["broker"].is_null());
    }
    let waiting: Arc<Mutex<VecDeque<(String, Value)>>> =
        Arc::new(Mutex::new(scenarios.into_iter().collect()));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (waiting, store) = (Arc::clone(&waiting), store.clone());
            thread::spawn(move || {
                let mut done = Vec::new();
                loop {
                    let next = waiting.lock().unwrap().pop_front();
                    let Some((file, scenario)) = next else { return done };
                    done.push((file, run(&scenario, &store, make)));
                }
            })
        })
        .collect();
    let done: Vec<(String, Result<(), String>)> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let mut faults: Vec<String> = Vec::new();
    for (file, result) in &done {
        match (result, exceptions.get(file)) {
            (Ok(()), Some(_)) => faults.push(format!("{file} passes: remove it from {list}")),
            (Err(why), None) => faults.push(format!("{file}: {why}")),
            _ => {}
        }
    }
    let passed = done.iter().filter(|(_, result)| result.is_ok()).count();
    assert!(faults.is_empty(), "{passed} passed; faults:\n{}", faults.join("\n"));
}

#[test]
fn the_rust_client_passes_all_scenarios_but_its_exceptions() {
    run_all("rust-exceptions", &ScenarioStore::OfBinary, rust_client::driver);
}

#[test]
fn the_command_line_passes_all_scenarios_but_its_exceptions() {
    run_all("cli-exceptions", &ScenarioStore::OfBinary, command_line::driver);
}

#[test]
fn the_scenarios_have_the_same_answers_on_the_embedded_store() {
    run_all("rust-exceptions", &ScenarioStore::Embedded, rust_client::driver);
}

#[test]
fn the_scenarios_have_the_same_answers_on_redis() {
    let redis = RedisServer::start(&[]);
    run_all("rust-exceptions", &ScenarioStore::Redis(redis.url()), rust_client::driver);
}

#[test]
fn the_scenarios_have_the_same_answers_in_postgres() {
    let database = punctual_test_support::postgres::shared_database();
    run_all("rust-exceptions", &ScenarioStore::Postgres(database), rust_client::driver);
}

/// The longest time that a driver waits for deliveries of a worker.
const WORK_MAX: Duration = Duration::from_secs(30);
