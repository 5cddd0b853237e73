//! `punctual listen`: a worker on the terminal. It prints deliveries, and acks, fails or refuses
//! them.
//!
//! One thread polls each broker of the cluster; threads start and end with the topology. Together
//! they never take more deliveries than `--count`.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};

use super::broker::{BrokerArgs, part};
use super::deliveries::payload_text;
use super::output;

/// How often the topology is read.
const TOPOLOGY_EVERY: Duration = Duration::from_secs(2);
/// How long one call waits if there are several brokers. It is short, because the deliveries that
/// one call may take are not available to the others.
const WAIT_OF_SEVERAL: &str = "1s";

#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:
  punctual listen shop mail
  punctual listen shop mail --count 1 --json
  punctual listen shop mail --result '[42]'
  punctual listen shop mail --fail 'out of paper' --retry-in 1h
  punctual listen shop mail --refuse 'no such address'")]
pub(crate) struct ListenArgs {
    /// The namespace
    namespace: String,
    /// The queue
    queue: String,
    /// Fail deliveries with this reason instead of acking them
    #[arg(long, value_name = "REASON")]
    fail: Option<String>,
    /// With --fail: pause before the next attempt, instead of the backoff of the task
    #[arg(long, value_name = "DURATION", requires = "fail")]
    retry_in: Option<String>,
    /// Refuse deliveries with this reason: no further attempt is made
    #[arg(long, value_name = "REASON", conflicts_with = "fail")]
    refuse: Option<String>,
    /// Ack deliveries with this result, which the history of each task keeps
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    #[arg(conflicts_with_all = ["fail", "refuse"])]
    result: Option<Value>,
    /// Stop after this many deliveries
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    /// How many deliveries to take at once
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    max: u64,
    /// How long one call waits for deliveries
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    wait: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// What the threads share.
#[derive(Debug)]
struct ListenShared {
    state: Mutex<ListenState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ListenState {
    /// Deliveries that may still be requested.
    left: u64,
    /// Deliveries that were requested and are not settled.
    in_flight: u64,
    /// Addresses of brokers that a thread polls.
    brokers: HashSet<String>,
    /// The error of the thread that failed last.
    error: Option<anyhow::Error>,
}

impl ListenState {
    fn is_over(&self) -> bool {
        self.left == 0 && self.in_flight == 0
    }
}

impl ListenArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let left = self.count.unwrap_or(u64::MAX);
        let state = ListenState { left, in_flight: 0, brokers: HashSet::new(), error: None };
        let shared = Arc::new(ListenShared { state: Mutex::new(state), changed: Condvar::new() });
        loop {
            let all = self.broker.all();
            let wait = if all.len() > 1 { WAIT_OF_SEVERAL } else { &self.wait };
            for broker in all {
                self.start(broker, wait.to_owned(), &shared);
            }
            let state = shared.lock();
            let over = |state: &mut ListenState| !state.is_over() && !state.brokers.is_empty();
            let waited = shared.changed.wait_timeout_while(state, TOPOLOGY_EVERY, over);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            // A broker that cannot be reached does not matter while there are others.
            if state.brokers.is_empty()
                && let Some(error) = state.error.take()
            {
                return Err(error);
            }
            if state.is_over() {
                return Ok(());
            }
        }
    }

    fn start(&self, broker: BrokerArgs, wait: String, shared: &Arc<ListenShared>) {
        if !shared.lock().brokers.insert(broker.address().to_owned()) {
            return;
        }
        let (args, shared) = (self.clone(), Arc::clone(shared));
        std::thread::spawn(move || {
            let error = loop {
                match args.turn(&broker, &shared, &wait) {
                    Ok(true) => {}
                    Ok(false) => break None,
                    Err(error) => break Some(error),
                }
            };
            let mut state = shared.lock();
            state.brokers.remove(broker.address());
            state.error = error.or(state.error.take());
            shared.changed.notify_all();
        });
    }

    /// Takes deliveries, prints and settles them. Returns false when none is left to take.
    fn turn(&self, broker: &BrokerArgs, shared: &ListenShared, wait: &str) -> anyhow::Result<bool> {
        let wanted = shared.claim(self.max);
        if wanted == 0 {
            return Ok(false);
        }
        let queue = format!("/v1/{}/queues/{}", part(&self.namespace), part(&self.queue));
        // No more than will be settled: other workers take the rest.
        let request = json!({ "max": wanted, "wait": wait });
        let answer = broker.post(&format!("{queue}/lease"), &request);
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
            return output::print_line(&output::json_text(delivery));
        }
        let text = |name: &str| match &delivery[name] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let payload = payload_text(delivery);
        let (fired_at, key, task) = (text("fired_at"), text("key"), text("task"));
        let (attempt, lag) = (text("attempt"), text("lag_ms"));
        output::print_line(&output::clean(&format!(
            "{fired_at}  {key}  {task}  attempt {attempt}  lag {lag}ms  {payload}"
        )))
    }

    /// Settles deliveries with the broker that sent them.
    fn settle(&self, broker: &BrokerArgs, queue: &str, deliveries: &[Value]) -> anyhow::Result<()> {
        let (verb, reason) = match (&self.fail, &self.refuse) {
            (Some(reason), _) => ("fail", reason),
            (None, Some(reason)) => ("refuse", reason),
            (None, None) => return self.ack(broker, queue, deliveries),
        };
        for delivery in deliveries {
            let mut body = json!({ "token": delivery["token"], "reason": reason });
            if let Some(pause) = &self.retry_in {
                body["retry_in"] = json!(pause);
            }
            broker.post(&format!("{queue}/{verb}"), &body)?;
        }
        Ok(())
    }
}

impl ListenArgs {
    fn ack(&self, broker: &BrokerArgs, queue: &str, deliveries: &[Value]) -> anyhow::Result<()> {
        if deliveries.is_empty() {
            return Ok(());
        }
        let tokens = deliveries.iter().map(|delivery| &delivery["token"]);
        let body = match &self.result {
            None => json!({ "tokens": tokens.collect::<Vec<_>>() }),
            Some(result) => {
                let acks = tokens.map(|token| json!({ "token": token, "result": result }));
                json!({ "acks": acks.collect::<Vec<_>>() })
            }
        };
        let answer = broker.post(&format!("{queue}/ack"), &body)?;
        match answer["results"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|it| it["problem"].is_object())
        {
            Some(rejected) => {
                bail!("{}", output::clean(&rejected["problem"]["detail"].to_string()))
            }
            None => Ok(()),
        }
    }
}

impl ListenShared {
    /// Claims up to `max` deliveries. Waits while all are in flight; returns 0 when all are
    /// settled.
    fn claim(&self, max: u64) -> u64 {
        let waits = |state: &mut ListenState| state.left == 0 && state.in_flight > 0;
        let state = self.changed.wait_while(self.lock(), waits);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let claimed = max.max(1).min(state.left);
        state.left -= claimed;
        state.in_flight += claimed;
        claimed
    }

    /// Returns claimed deliveries: `count` are no longer in flight, `unused` may be claimed again.
    fn give_back(&self, count: u64, unused: u64) {
        let mut state = self.lock();
        state.in_flight -= count;
        state.left += unused;
        self.changed.notify_all();
    }

    /// No panic can leave the state inconsistent, so a poisoned lock is used.
    fn lock(&self) -> MutexGuard<'_, ListenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("must be JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_deliveries_that_are_left() {
        let state = ListenState { left: 3, in_flight: 0, brokers: HashSet::new(), error: None };
        let shared = ListenShared { state: Mutex::new(state), changed: Condvar::new() };
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
