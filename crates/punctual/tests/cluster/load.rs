//! The load: callers that schedule, touch and cancel at random brokers, and write down what they asked and what they were told.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use punctual_core::{Namespace, Partitions, TaskKey, partition_of};
use serde_json::{Value, json};

use crate::field::now_millis;
use crate::member::Desk;
use crate::stage::{Servers, Stage};
use crate::witness::{Ledger, millis, pause, receive_at};
use crate::workers::{POLLED, STREAMED, Workers};

/// Callers at the same time.
const CALLERS: u64 = 12;
/// Between two calls of one of them.
const PACE: Duration = Duration::from_millis(12);
/// How long a caller waits for an answer: a broker that is held gives none.
pub(crate) const PATIENT: Duration = Duration::from_millis(2_500);
/// Tasks are due within this time: some before a fault, some during it, some after.
const AHEAD_MAX: u64 = 4_000;
/// What is touched or cancelled is due no sooner than this.
const SPARE: u64 = 300;

/// What is known of something that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Yes,
    /// It was not done, certainly.
    No,
    /// There was no answer, or one that says so.
    Unknown,
}

/// A task, and what was asked of it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) key: String,
    pub(crate) guarantee: &'static str,
    pub(crate) partition: u64,
    pub(crate) due: u64,
    pub(crate) put: Told,
    /// Until when it was put off, what was answered, and when.
    pub(crate) touch: Option<(u64, Told, u128)>,
    pub(crate) cancel: Option<(Told, u128)>,
    /// Whether it calls a receiver that answers at once, so that how late it comes says something.
    pub(crate) prompt: bool,
}

/// Who receives, for as long as the stage stands.
pub(crate) struct House {
    pub(crate) ledger: Ledger,
    pub(crate) workers: Workers,
    pub(crate) url: String,
    partitions: Partitions,
}

impl House {
    pub(crate) fn open(stage: &Stage<impl Servers>, middle: IpAddr, partitions: u16) -> Self {
        let (ledger, _) = Ledger::new();
        let workers = Workers::start_at(&stage.addresses(), &ledger);
        let url = receive_at(middle, ledger.clone());
        Self { ledger, workers, url, partitions: Partitions::new(partitions).unwrap() }
    }
}

/// Callers at work.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<Asked>>>,
}

impl Load {
    pub(crate) fn start(stage: &Stage<impl Servers>, house: &House, round: u64, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let callers = (0..CALLERS).map(|number| {
            let mut caller = Caller {
                desks: stage.desks().iter().map(|desk| desk.within(PATIENT)).collect(),
                url: house.url.clone(),
                partitions: house.partitions,
                dice: Dice::new(seed ^ (round << 8) ^ number),
                name: format!("r{round}-{number}"),
                asked: Vec::new(),
            };
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    caller.call();
                    pause(PACE);
                }
                caller.asked
            })
        });
        Self { callers: callers.collect(), stop }
    }

    /// Lets callers come to their end; all that they asked.
    pub(crate) fn end(self) -> Vec<Asked> {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    }
}

/// Numbers that follow from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

struct Caller {
    desks: Vec<Desk>,
    url: String,
    partitions: Partitions,
    dice: Dice,
    name: String,
    asked: Vec<Asked>,
}

impl Caller {
    fn call(&mut self) {
        let done = match self.dice.roll(10) {
            0 => self.cancel(),
            1 => self.touch(),
            _ => None,
        };
        if done.is_none() {
            self.put();
        }
    }

    fn desk(&mut self) -> Desk {
        let index = self.dice.roll(self.desks.len() as u64);
        self.desks[usize::try_from(index).unwrap()].clone()
    }

    fn put(&mut self) {
        let (n, desk) = (self.asked.len() as u64, self.desk());
        let guarantee = ["at_least_once", "at_most_once", "exactly_once"][(n % 3) as usize];
        let manner = match n % 20 {
            7 => "lost",
            n if n % 8 == 1 => "slow",
            _ => "now",
        };
        let key = format!("{}-{n}-{manner}", self.name);
        let due = u64::try_from(now_millis()).unwrap() + self.dice.roll(AHEAD_MAX);
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
        let answer = desk.ask("PUT", &format!("/v1/shop/tasks/{key}"), &body.to_string());
        let put = told(answer.as_ref());
        let prompt = webhook && manner == "now";
        let asked =
            Asked { key, guarantee, partition, due, put, touch: None, cancel: None, prompt };
        self.asked.push(asked);
    }

    /// One of the last tasks that is due in a while, and of which nothing was asked yet.
    fn candidate(&mut self) -> Option<usize> {
        let soon = u64::try_from(now_millis()).unwrap() + SPARE;
        let open = |asked: &Asked| {
            let untouched = asked.touch.is_none() && asked.cancel.is_none();
            asked.put == Told::Yes && asked.due > soon && untouched
        };
        let recent = self.asked.len().saturating_sub(40)..self.asked.len();
        let open: Vec<usize> = recent.filter(|index| open(&self.asked[*index])).collect();
        let chosen = usize::try_from(self.dice.roll(open.len().max(1) as u64)).unwrap();
        open.get(chosen).copied()
    }

    fn cancel(&mut self) -> Option<()> {
        let (index, desk) = (self.candidate()?, self.desk());
        let path = format!("/v1/shop/tasks/{}", self.asked[index].key);
        let answer = desk.ask("DELETE", &path, "");
        let cancelled = match &answer {
            Some((200, answer)) if answer["result"] == "cancelled" => Told::Yes,
            Some((200, _)) => Told::No,
            other => told(other.as_ref()),
        };
        self.asked[index].cancel = Some((cancelled, now_millis()));
        Some(())
    }

    fn touch(&mut self) -> Option<()> {
        let (index, desk) = (self.candidate()?, self.desk());
        let until = self.asked[index].due + 200 + self.dice.roll(2_000);
        let path = format!("/v1/shop/tasks/{}/touch", self.asked[index].key);
        let answer = desk.ask("POST", &path, &json!({"at": until}).to_string());
        let touched = told(answer.as_ref());
        if let (Told::Yes, Some((_, answer))) = (touched, &answer) {
            assert_eq!(millis(answer["fire_at"].as_str().unwrap()), until, "{answer}");
        }
        self.asked[index].touch = Some((until, touched, now_millis()));
        Some(())
    }
}

/// What an answer says of what was asked for.
pub(crate) fn told(answer: Option<&(u16, Value)>) -> Told {
    match answer {
        Some((200 | 201, _)) => Told::Yes,
        Some((400..=499, _)) => Told::No,
        // All others say that nothing was done; what comes after this one is held against them.
        Some((503, problem)) if problem["type"] != "urn:punctual:lost" => Told::No,
        _ => Told::Unknown,
    }
}
