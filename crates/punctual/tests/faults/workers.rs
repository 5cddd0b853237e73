//! Workers as witnesses: on a gRPC stream and by long poll. Every delivery is written down before anything is said of it.
//!
//! What becomes of a delivery follows from its key: `…slow` is acked after a while, `…lost` is not acked in time at first, as if the worker
//! had died with it. What must happen exactly once in effect is done behind a table of fire ids.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use punctual_client::{Client, Dedup, Delivery, Failure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::witness::{Ledger, SLOW, millis, pause};

/// The queue of workers on a stream.
pub(crate) const STREAMED: &str = "streamed";
/// The queue of workers who poll.
pub(crate) const POLLED: &str = "polled";

/// How long a worker on a stream keeps what it loses: well beyond the lease, so that the ack is stale.
const LOST: Duration = Duration::from_secs(3);

/// Effects by fire id: what a worker that dedups has done.
#[derive(Clone, Default)]
pub(crate) struct Effects(Arc<Mutex<HashMap<String, u64>>>);

impl Effects {
    fn add(&self, fire_id: &str) {
        *self.0.lock().unwrap().entry(fire_id.to_owned()).or_default() += 1;
    }

    pub(crate) fn of(&self, fire_id: &str) -> u64 {
        self.0.lock().unwrap().get(fire_id).copied().unwrap_or_default()
    }
}

/// What workers have in common.
#[derive(Clone)]
struct Book {
    ledger: Ledger,
    effects: Effects,
    /// Keys of `…lost` that have been lost.
    lost: Arc<Mutex<HashSet<String>>>,
    /// The table of those who poll, as a database would be: fire ids whose effect was made.
    seen: Arc<Mutex<HashSet<String>>>,
}

impl Book {
    /// Whether this delivery is to be lost: once each.
    fn loses(&self, key: &str) -> bool {
        key.ends_with("lost") && self.lost.lock().unwrap().insert(key.to_owned())
    }
}

/// Workers of both kinds, until dropped.
pub(crate) struct Workers {
    pub(crate) effects: Effects,
    stop: Arc<AtomicBool>,
    leave: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// They come back to this address whenever the broker does.
    pub(crate) fn start(address: SocketAddr, ledger: &Ledger) -> Self {
        Self::start_at(&[address], ledger)
    }

    /// The same with several brokers: on streams at each of them, and polls that go round, acked at another than they were leased at.
    pub(crate) fn start_at(addresses: &[SocketAddr], ledger: &Ledger) -> Self {
        let effects = Effects::default();
        let book = Book {
            ledger: ledger.clone(),
            effects: effects.clone(),
            lost: Arc::default(),
            seen: Arc::default(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (leave, left) = oneshot::channel();
        let polling = (0..4).map(|turn| {
            let (book, stop) = (book.clone(), Arc::clone(&stop));
            let addresses = addresses.to_vec();
            thread::spawn(move || poll(&addresses, turn, &book, &stop))
        });
        let mut threads: Vec<_> = polling.collect();
        let addresses = addresses.to_vec();
        threads.push(thread::spawn(move || stream(&addresses, &book, left)));
        Self { effects, stop, leave: Some(leave), threads }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.leave.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Two workers of the Rust client at each broker, which find it again by themselves.
fn stream(addresses: &[SocketAddr], book: &Book, left: oneshot::Receiver<()>) {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let dedup = Dedup::in_memory(1_000_000);
        let workers: Vec<_> = addresses
            .iter()
            .flat_map(|address| [address, address])
            .map(|address| {
                let client = Client::connect(format!("http://{address}")).unwrap();
                let (book, dedup) = (book.clone(), dedup.clone());
                let worker = client.namespace("shop").worker(STREAMED);
                let worker = worker.extend_for(Duration::ZERO);
                worker.handler(move |delivery| work(delivery, book.clone(), dedup.clone())).spawn()
            })
            .collect();
        let _ = left.await;
        for worker in workers {
            let _ = worker.stop().await;
        }
    });
}

async fn work(delivery: Delivery, book: Book, dedup: Dedup) -> Result<(), Failure> {
    let (key, fire_id) = (delivery.key.clone().unwrap_or_default(), delivery.fire_id.clone());
    book.ledger.write(&key, fire_id.as_str(), delivery.fire_at.as_millis());
    let effects = book.effects.clone();
    let effect = || async move {
        effects.add(fire_id.as_str());
        Ok(())
    };
    dedup.once(&delivery.fire_id, effect).await?;
    let held = match key {
        key if book.loses(&key) => LOST,
        key if key.ends_with("slow") => SLOW,
        _ => Duration::ZERO,
    };
    if !held.is_zero() {
        let _ = tokio::time::timeout(held, std::future::pending::<()>()).await;
    }
    Ok(())
}

/// A worker without a library: long poll, and an ack for each.
fn poll(addresses: &[SocketAddr], mut turn: usize, book: &Book, stop: &AtomicBool) {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    let agent: ureq::Agent = config.timeout_global(Some(Duration::from_secs(5))).build().into();
    let mut post = |verb: &str, body: &Value| -> Option<Value> {
        turn += 1;
        let address = addresses[turn % addresses.len()];
        let url = format!("http://{address}/v1/shop/queues/{POLLED}/{verb}");
        let mut answer = agent.post(url).send(body.to_string()).ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        (answer.status() == 200).then(|| serde_json::from_str(&text).ok())?
    };
    while !stop.load(Ordering::Relaxed) {
        let Some(answer) = post("lease", &json!({"max": 10, "wait": "500ms", "lease": "1s"}))
        else {
            pause(Duration::from_millis(20));
            continue;
        };
        for delivery in answer["deliveries"].as_array().unwrap() {
            let text = |field: &str| delivery[field].as_str().unwrap_or_default().to_owned();
            let (key, fire_id) = (text("key"), text("fire_id"));
            book.ledger.write(&key, &fire_id, millis(&text("fire_at")));
            if book.seen.lock().unwrap().insert(fire_id.clone()) {
                book.effects.add(&fire_id);
            }
            if book.loses(&key) {
                continue;
            }
            if key.ends_with("slow") {
                pause(SLOW);
            }
            // A broker that is away is not the only one.
            let ack = json!({"tokens": [delivery["token"]]});
            let _ = addresses.iter().any(|_| post("ack", &ack).is_some());
        }
    }
}
