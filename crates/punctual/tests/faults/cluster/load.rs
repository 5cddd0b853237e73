//! The load of a round: callers that schedule, touch and cancel tasks at random brokers, and record
//! their calls and the answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use punctual_test_support::cluster::SharedServer;
use punctual_test_support::receiver::receive_at;
use punctual_test_support::workers::{POLLED, STREAMED};
use punctual_test_support::{
    BrokerClient, DeliveryLog, RandomNumbers, TestCluster, Workers, millis, now_millis, pause,
};
use serde_json::{Value, json};

/// How many callers there are at the same time.
const CALLERS: u64 = 12;
/// The time between two calls of a caller.
const CALL_INTERVAL: Duration = Duration::from_millis(12);
/// How long a caller waits for an answer: a suspended broker gives none.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Tasks are due within this time, in milliseconds: some before a fault, some during it, some
/// after.
const DELAY_MAX_MS: u64 = 4_000;
/// A task that is touched or cancelled is due no sooner than this, in milliseconds.
const CHANGE_AHEAD_MS: u64 = 300;

/// What the caller knows about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Done,
    NotDone,
    /// There was no answer, or one that leaves it open.
    Unknown,
}

/// A task and the calls about it.
#[derive(Debug, Clone)]
pub(crate) struct LoadTask {
    pub(crate) key: String,
    pub(crate) guarantee: &'static str,
    pub(crate) partition: u64,
    pub(crate) due: u64,
    pub(crate) put: CallOutcome,
    /// The new due time, the outcome, and when the answer came.
    pub(crate) touch: Option<(u64, CallOutcome, u128)>,
    /// The outcome, and when the answer came.
    pub(crate) cancel: Option<(CallOutcome, u128)>,
    /// The task calls a receiver that answers at once, so its lag is meaningful.
    pub(crate) prompt: bool,
}

/// The receivers of all rounds.
pub(crate) struct LoadReceivers {
    pub(crate) log: DeliveryLog,
    pub(crate) workers: Workers,
    pub(crate) url: String,
    partitions: Partitions,
}

impl LoadReceivers {
    pub(crate) fn start(
        cluster: &TestCluster<impl SharedServer>,
        middle: IpAddr,
        partitions: u16,
    ) -> Self {
        let (log, _) = DeliveryLog::new();
        let workers = Workers::start_at(&cluster.addresses(), &log);
        let url = receive_at(middle, log.clone());
        Self { log, workers, url, partitions: Partitions::new(partitions).unwrap() }
    }
}

/// Running callers.
pub(crate) struct ClusterLoad {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<LoadTask>>>,
}

impl ClusterLoad {
    pub(crate) fn start(
        cluster: &TestCluster<impl SharedServer>,
        receivers: &LoadReceivers,
        round: u64,
        seed: u64,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let callers = (0..CALLERS).map(|number| {
            let mut caller = LoadCaller {
                clients: cluster
                    .clients()
                    .iter()
                    .map(|client| client.with_timeout(CALL_TIMEOUT))
                    .collect(),
                url: receivers.url.clone(),
                partitions: receivers.partitions,
                random: RandomNumbers::new(seed ^ (round << 8) ^ number),
                name: format!("r{round}-{number}"),
                tasks: Vec::new(),
            };
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    caller.call();
                    pause(CALL_INTERVAL);
                }
                caller.tasks
            })
        });
        Self { callers: callers.collect(), stop }
    }

    /// Stops the callers. Returns all tasks they scheduled.
    pub(crate) fn end(self) -> Vec<LoadTask> {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    }
}

struct LoadCaller {
    clients: Vec<BrokerClient>,
    url: String,
    partitions: Partitions,
    random: RandomNumbers,
    name: String,
    tasks: Vec<LoadTask>,
}

impl LoadCaller {
    fn call(&mut self) {
        let done = match self.random.below(10) {
            0 => self.cancel(),
            1 => self.touch(),
            _ => None,
        };
        if done.is_none() {
            self.put();
        }
    }

    fn client(&mut self) -> BrokerClient {
        self.clients[self.random.index(self.clients.len())].clone()
    }

    fn put(&mut self) {
        let (n, client) = (self.tasks.len() as u64, self.client());
        let guarantee = ["at_least_once", "at_most_once", "exactly_once"][(n % 3) as usize];
        let manner = match n % 20 {
            7 => "lost",
            n if n % 8 == 1 => "slow",
            _ => "now",
        };
        let key = format!("{}-{n}-{manner}", self.name);
        let due = u64::try_from(now_millis()).unwrap() + self.random.below(DELAY_MAX_MS);
        let webhook = n / 3 % 3 == 0;
        let target = match n / 3 % 3 {
            0 => json!({"http": {"url": format!("{}/{manner}/{key}", self.url)}}),
            1 => json!({"queue": STREAMED}),
            _ => json!({"queue": POLLED}),
        };
        let body = json!({
            "at": due,
            "guarantee": guarantee,
            "target": target,
            "timeout": "1s",
            "retry": {"attempts_max": 50, "backoff": {"fixed": "100ms"}, "jitter": 0},
        });
        let (namespace, name) =
            (Namespace::new("shop").unwrap(), TaskKey::new(key.as_str()).unwrap());
        let partition = partition_of(&namespace, &name, self.partitions).get().into();
        let answer = client.request("PUT", &format!("/v1/shop/tasks/{key}"), &body.to_string());
        let put = outcome_of(answer.as_ref());
        let prompt = webhook && manner == "now";
        let task =
            LoadTask { key, guarantee, partition, due, put, touch: None, cancel: None, prompt };
        self.tasks.push(task);
    }

    /// Returns a recent task that is not due soon and was neither touched nor cancelled yet.
    fn candidate(&mut self) -> Option<usize> {
        let soon = u64::try_from(now_millis()).unwrap() + CHANGE_AHEAD_MS;
        let open = |task: &LoadTask| {
            let untouched = task.touch.is_none() && task.cancel.is_none();
            task.put == CallOutcome::Done && task.due > soon && untouched
        };
        let recent = self.tasks.len().saturating_sub(40)..self.tasks.len();
        let open: Vec<usize> = recent.filter(|index| open(&self.tasks[*index])).collect();
        let chosen = self.random.index(open.len().max(1));
        open.get(chosen).copied()
    }

    fn cancel(&mut self) -> Option<()> {
        let (index, client) = (self.candidate()?, self.client());
        let path = format!("/v1/shop/tasks/{}", self.tasks[index].key);
        let answer = client.request("DELETE", &path, "");
        let cancelled = match &answer {
            Some((200, answer)) if answer["result"] == "cancelled" => CallOutcome::Done,
            Some((200, _)) => CallOutcome::NotDone,
            other => outcome_of(other.as_ref()),
        };
        self.tasks[index].cancel = Some((cancelled, now_millis()));
        Some(())
    }

    fn touch(&mut self) -> Option<()> {
        let (index, client) = (self.candidate()?, self.client());
        let until = self.tasks[index].due + 200 + self.random.below(2_000);
        let path = format!("/v1/shop/tasks/{}/touch", self.tasks[index].key);
        let answer = client.request("POST", &path, &json!({"at": until}).to_string());
        let touched = outcome_of(answer.as_ref());
        if let (CallOutcome::Done, Some((_, answer))) = (touched, &answer) {
            assert_eq!(millis(answer["fire_at"].as_str().unwrap()), until, "{answer}");
        }
        self.tasks[index].touch = Some((until, touched, now_millis()));
        Some(())
    }
}

/// Returns what an answer tells about the call.
pub(crate) fn outcome_of(answer: Option<&(u16, Value)>) -> CallOutcome {
    match answer {
        Some((200 | 201, _)) => CallOutcome::Done,
        Some((400..=499, _)) => CallOutcome::NotDone,
        // All other 503 answers promise that nothing was done, and the checks rely on it.
        Some((503, problem)) if problem["type"] != "urn:punctual:lost" => CallOutcome::NotDone,
        _ => CallOutcome::Unknown,
    }
}
