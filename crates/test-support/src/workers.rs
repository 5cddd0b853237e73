//! Workers that record every delivery: on a gRPC stream and by long poll.
//!
//! A worker records a delivery before it settles it. The key decides what it does then: `…slow` is
//! acked after a while; `…lost` is not acked in time at first, as if the worker had died with it.
//! Effects that must happen exactly once are done behind a table of fire ids.

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

use crate::receiver::{DeliveryLog, SLOW};
use crate::wait::{millis, pause};

/// The queue of workers on a stream.
pub const STREAMED: &str = "streamed";
/// The queue of workers that poll.
pub const POLLED: &str = "polled";

/// How long a worker on a stream holds a `…lost` delivery: well beyond the lease, so that its ack
/// is stale.
const LOST: Duration = Duration::from_secs(3);

/// How often the effect of each fire was made.
#[derive(Clone, Default)]
pub struct Effects(Arc<Mutex<HashMap<String, u64>>>);

impl Effects {
    fn add(&self, fire_id: &str) {
        *self.0.lock().unwrap().entry(fire_id.to_owned()).or_default() += 1;
    }

    pub fn of(&self, fire_id: &str) -> u64 {
        self.0.lock().unwrap().get(fire_id).copied().unwrap_or_default()
    }
}

/// What all workers share.
#[derive(Clone)]
struct WorkerRecords {
    log: DeliveryLog,
    effects: Effects,
    /// Keys of `…lost` that have been lost.
    lost: Arc<Mutex<HashSet<String>>>,
    /// Fire ids whose effect a polling worker has made, as a database would keep them.
    polled: Arc<Mutex<HashSet<String>>>,
}

impl WorkerRecords {
    /// Returns whether this delivery is to be lost: once for each key.
    fn loses(&self, key: &str) -> bool {
        key.ends_with("lost") && self.lost.lock().unwrap().insert(key.to_owned())
    }
}

/// Workers of both kinds. They stop when dropped.
pub struct Workers {
    pub effects: Effects,
    stop: Arc<AtomicBool>,
    stop_streams: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts workers of one broker. They connect again whenever the broker is back.
    pub fn start(address: SocketAddr, log: &DeliveryLog) -> Self {
        Self::start_at(&[address], log)
    }

    /// Starts workers of several brokers: streams to each of them, and polls in turn, which ack at
    /// another broker than the one that leased.
    pub fn start_at(addresses: &[SocketAddr], log: &DeliveryLog) -> Self {
        let effects = Effects::default();
        let records = WorkerRecords {
            log: log.clone(),
            effects: effects.clone(),
            lost: Arc::default(),
            polled: Arc::default(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_streams, stopped) = oneshot::channel();
        let polling = (0..4).map(|turn| {
            let (records, stop) = (records.clone(), Arc::clone(&stop));
            let addresses = addresses.to_vec();
            thread::spawn(move || poll(&addresses, turn, &records, &stop))
        });
        let mut threads: Vec<_> = polling.collect();
        let addresses = addresses.to_vec();
        threads.push(thread::spawn(move || stream(&addresses, &records, stopped)));
        Self { effects, stop, stop_streams: Some(stop_streams), threads }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.stop_streams.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Runs two workers of the Rust client for each broker. The client reconnects by itself.
fn stream(addresses: &[SocketAddr], records: &WorkerRecords, stopped: oneshot::Receiver<()>) {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let dedup = Dedup::in_memory(1_000_000);
        let workers: Vec<_> = addresses
            .iter()
            .flat_map(|address| [address, address])
            .map(|address| {
                let client = Client::connect(format!("http://{address}")).unwrap();
                let (records, dedup) = (records.clone(), dedup.clone());
                let worker = client.namespace("shop").worker(STREAMED);
                let worker = worker.extend_for(Duration::ZERO);
                worker
                    .handler(move |delivery| work(delivery, records.clone(), dedup.clone()))
                    .spawn()
            })
            .collect();
        let _ = stopped.await;
        for worker in workers {
            let _ = worker.stop().await;
        }
    });
}

async fn work(delivery: Delivery, records: WorkerRecords, dedup: Dedup) -> Result<(), Failure> {
    let (key, fire_id) = (delivery.key.clone().unwrap_or_default(), delivery.fire_id.clone());
    let (fire_at, fired_at) = (delivery.fire_at.as_millis(), delivery.fired_at.as_millis());
    records.log.record(&key, fire_id.as_str(), fire_at, fired_at);
    let effects = records.effects.clone();
    let effect = || async move {
        effects.add(fire_id.as_str());
        Ok(())
    };
    dedup.once(&delivery.fire_id, effect).await?;
    let held_for = match key {
        key if records.loses(&key) => LOST,
        key if key.ends_with("slow") => SLOW,
        _ => Duration::ZERO,
    };
    if !held_for.is_zero() {
        let _ = tokio::time::timeout(held_for, std::future::pending::<()>()).await;
    }
    Ok(())
}

/// Runs a worker without a library: long polls, and an ack for each delivery.
fn poll(addresses: &[SocketAddr], mut turn: usize, records: &WorkerRecords, stop: &AtomicBool) {
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
            let (fire_at, fired_at) = (millis(&text("fire_at")), millis(&text("fired_at")));
            records.log.record(&key, &fire_id, fire_at, fired_at);
            if records.polled.lock().unwrap().insert(fire_id.clone()) {
                records.effects.add(&fire_id);
            }
            if records.loses(&key) {
                continue;
            }
            if key.ends_with("slow") {
                pause(SLOW);
            }
            // If one broker is down, the next one takes the ack.
            let ack = json!({"tokens": [delivery["token"]]});
            let _ = addresses.iter().any(|_| post("ack", &ack).is_some());
        }
    }
}
