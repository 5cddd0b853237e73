//! Callers that schedule tasks until the broker answers no more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use punctual_test_support::{BrokerClient, WAIT_MAX, now_millis};
use serde_json::{Value, json};

/// How many callers there are at the same time.
pub(crate) const CALLERS: u64 = 6;

/// Nothing listens there. For tasks that are not due during the test.
pub(crate) const NOWHERE: &str = "http://127.0.0.1:9/";

pub(crate) fn far(url: &str) -> Value {
    json!({"in": "1h", "target": {"http": {"url": url}}, "payload": {"order": 1}})
}

/// A call that was acknowledged.
pub(crate) struct AcknowledgedCall {
    pub(crate) key: String,
    /// When the call began.
    pub(crate) from_millis: u128,
}

/// Schedules tasks from several threads until the broker answers no more. Calls `on_enough` after
/// `enough` calls.
pub(crate) fn load(
    client: &BrokerClient,
    prefix: &str,
    enough: u64,
    on_enough: impl FnOnce(),
) -> Vec<AcknowledgedCall> {
    let count = AtomicU64::new(0);
    let (signal, reached) = channel();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|number| {
                let (signal, count) = (signal.clone(), &count);
                scope.spawn(move || {
                    let mut acknowledged = Vec::new();
                    for n in 0.. {
                        let (key, from_millis) = (format!("{prefix}-{number}-{n}"), now_millis());
                        match client.try_put(&key, &far(NOWHERE)) {
                            Some(true) => acknowledged.push(AcknowledgedCall { key, from_millis }),
                            // Refused: the broker is stopping, and will be gone in a moment.
                            Some(false) => {}
                            None => break,
                        }
                        if count.fetch_add(1, Ordering::Relaxed) + 1 == enough {
                            let _ = signal.send(());
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        reached.recv_timeout(WAIT_MAX).expect("the broker acknowledges tasks");
        on_enough();
        callers.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}
