//! `punctual listen`: a worker on the terminal. It prints deliveries and acks them, or fails them to see what happens then.
//!
//! In: deliveries of all brokers of the cluster, each polled by a thread of its own, which come and go with the topology. Out: lines.
//! Invariant: never more deliveries than `--count` says are taken, from whichever broker they come.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::broker::{Broker, part};
use super::show;

/// How often it is looked whether there are other brokers.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long one call waits where there are several brokers: what one of them may take, the others may not.
const WAIT_OF_SEVERAL: &str = "1s";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Listen {
    namespace: String,
    queue: String,
    /// Fail deliveries for this reason instead of acking them.
    #[arg(long, value_name = "REASON")]
    fail: Option<String>,
    /// Stop after so many deliveries.
    #[arg(long)]
    count: Option<u64>,
    /// So many at once.
    #[arg(long, default_value_t = 10)]
    max: u64,
    /// How long one call waits.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    wait: String,
    #[command(flatten)]
    broker: Broker,
}

/// What the threads share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Deliveries that may still be asked for.
    left: u64,
    /// Deliveries that were asked for and are not settled.
    held: u64,
    /// Addresses that have a thread.
    brokers: HashSet<String>,
    /// Why the last thread that ended did.
    fault: Option<anyhow::Error>,
}

impl State {
    fn is_over(&self) -> bool {
        self.left == 0 && self.held == 0
    }
}

impl Listen {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let left = self.count.unwrap_or(u64::MAX);
        let state = State { left, held: 0, brokers: HashSet::new(), fault: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        loop {
            let all = self.broker.all();
            let wait = if all.len() > 1 { WAIT_OF_SEVERAL } else { &self.wait };
            for broker in all {
                self.start(broker, wait.to_owned(), &shared);
            }
            let state = shared.lock();
            let over = |state: &mut State| !state.is_over() && !state.brokers.is_empty();
            let waited = shared.changed.wait_timeout_while(state, LOOK_EVERY, over);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            // One that cannot reach its broker is no reason to stop while there are others.
            if state.brokers.is_empty()
                && let Some(fault) = state.fault.take()
            {
                return Err(fault);
            }
            if state.is_over() {
                return Ok(());
            }
        }
    }

    fn start(&self, broker: Broker, wait: String, shared: &Arc<Shared>) {
        if !shared.lock().brokers.insert(broker.address().to_owned()) {
            return;
        }
        let (listen, shared) = (self.clone(), Arc::clone(shared));
        std::thread::spawn(move || {
            let fault = loop {
                match listen.turn(&broker, &shared, &wait) {
                    Ok(true) => {}
                    Ok(false) => break None,
                    Err(fault) => break Some(fault),
                }
            };
            let mut state = shared.lock();
            state.brokers.remove(broker.address());
            state.fault = fault.or(state.fault.take());
            shared.changed.notify_all();
        });
    }

    /// Takes some, prints and settles them. False when there is nothing left to take.
    fn turn(&self, broker: &Broker, shared: &Shared, wait: &str) -> anyhow::Result<bool> {
        let wanted = shared.claim(self.max);
        if wanted == 0 {
            return Ok(false);
        }
        let queue = format!("/v1/{}/queues/{}", part(&self.namespace), part(&self.queue));
        // No more than will be settled: the others are for other workers.
        let asked = json!({ "max": wanted, "wait": wait });
        let answer = broker.post(&format!("{queue}/lease"), &asked);
        let deliveries = answer.as_ref().map(|answer| answer["deliveries"].as_array().cloned());
        let deliveries = deliveries.unwrap_or_default().unwrap_or_default();
        let taken = (deliveries.len() as u64).min(wanted);
        shared.give_back(wanted - taken, wanted - taken);
        answer?;
        let printed = deliveries.iter().try_for_each(|delivery| self.print(delivery));
        let settled = printed.and_then(|()| self.settle(broker, &queue, &deliveries));
        shared.give_back(taken, 0);
        settled.map(|()| true)
    }

    fn print(&self, delivery: &Value) -> anyhow::Result<()> {
        if self.broker.json {
            return show::line(&delivery.to_string());
        }
        let text = |name: &str| match &delivery[name] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let payload = match &delivery["payload_base64"] {
            Value::String(base64) => format!("{} {base64}", text("content_type")),
            _ => delivery["payload"].to_string(),
        };
        let (fired_at, key, task) = (text("fired_at"), text("key"), text("task"));
        let (attempt, lag) = (text("attempt"), text("lag_ms"));
        show::line(&format!("{fired_at}  {key}  {task}  attempt {attempt}  lag {lag}ms  {payload}"))
    }

    /// With the broker that sent them.
    fn settle(&self, broker: &Broker, queue: &str, deliveries: &[Value]) -> anyhow::Result<()> {
        let Some(reason) = &self.fail else {
            let tokens: Vec<&Value> =
                deliveries.iter().map(|delivery| &delivery["token"]).collect();
            if !tokens.is_empty() {
                broker.post(&format!("{queue}/ack"), &json!({ "tokens": tokens }))?;
            }
            return Ok(());
        };
        for delivery in deliveries {
            let body = json!({ "token": delivery["token"], "reason": reason });
            broker.post(&format!("{queue}/fail"), &body)?;
        }
        Ok(())
    }
}

impl Shared {
    /// Some of what may be taken, as soon as there is some; none when all is settled.
    fn claim(&self, max: u64) -> u64 {
        let waits = |state: &mut State| state.left == 0 && state.held > 0;
        let state = self.changed.wait_while(self.lock(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let claimed = max.max(1).min(state.left);
        state.left -= claimed;
        state.held += claimed;
        claimed
    }

    /// Of what was claimed, `count` is no longer held, and `unused` may be claimed again.
    fn give_back(&self, count: u64, unused: u64) {
        let mut state = self.lock();
        state.held -= count;
        state.left += unused;
        self.changed.notify_all();
    }

    /// Nothing is left half-way here by a panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_thread_does_not_use_another_may_and_no_more_than_all_is_taken() {
        let state = State { left: 3, held: 0, brokers: HashSet::new(), fault: None };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new() };
        assert_eq!(shared.claim(10), 3);
        shared.give_back(2, 2);
        assert_eq!(shared.claim(1), 1);
        shared.give_back(1, 0);
        assert_eq!(shared.claim(10), 1);
        assert!(!shared.lock().is_over());
        shared.give_back(2, 0);
        assert!(shared.lock().is_over());
        assert_eq!(shared.claim(10), 0);
    }
}
