//! A broker whose clock jumps under a load, and receivers of every kind whose clock is right.
//!
//! A load is a function: it schedules tasks until the end of the run, and returns what must have
//! been received by then. The jumps and the checks are the same for all loads.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use punctual_test_support::receiver::receive;
use punctual_test_support::workers::{POLLED, STREAMED};
use punctual_test_support::{
    BrokerClient, ClockedBroker, DeliveryLog, ReceivedDelivery, Workers, eventually, millis,
    now_millis, pause,
};
use serde_json::{Value, json};

/// How late a delivery may be, in milliseconds. Most of this is for a busy machine.
const LATE_MAX: u128 = 1000;
/// How soon a jump must be reported: the broker compares its clocks every second.
const NOTICED_MAX: Duration = Duration::from_millis(2500);

/// The jumps, in seconds off the right time.
pub(crate) const JUMPS: [&str; 10] = [
    "+1",
    "-1",
    "+3600",
    "-3600",
    "+86400",
    "-86400",
    "+31536000",
    "-31536000",
    "+315360000",
    "-315360000",
];

/// How the clock jumps.
#[derive(Debug, Clone, Copy)]
pub(crate) enum JumpPace {
    /// From one jump to the next, each for this time.
    Through(Duration),
    /// Back to the right time after each jump, both for this time.
    AndBack(Duration),
}

/// What must have been received by the end.
#[derive(Debug, Default)]
pub(crate) struct ExpectedFires {
    /// The due times of tasks, by key. Those after the end do not count.
    pub(crate) dues: HashMap<String, Vec<u64>>,
    /// Tasks that are due long after the end, but before a clock that has jumped ahead.
    pub(crate) not_yet: Vec<String>,
}

/// Schedules the tasks of a load.
pub(crate) struct LoadClient {
    pub(crate) client: BrokerClient,
    /// The URL of the receiver of webhooks.
    url: String,
}

/// A broker, its receivers, and the record of deliveries.
pub(crate) struct ClockTest {
    // Dropped first: workers stop while their broker still runs.
    _workers: Workers,
    broker: ClockedBroker,
    load_client: LoadClient,
    log: DeliveryLog,
}

impl LoadClient {
    /// Returns a target for the n-th task: every kind in turn.
    pub(crate) fn target(&self, n: usize, key: &str) -> Value {
        match n % 3 {
            0 => json!({"http": {"url": format!("{}/now/{key}", self.url)}}),
            1 => json!({"queue": STREAMED}),
            _ => json!({"queue": POLLED}),
        }
    }

    /// Schedules a task. Returns its due time in the answer.
    pub(crate) fn put(&self, key: &str, body: &Value) -> u64 {
        let answer = self.client.request_task("PUT", key, &body.to_string());
        let (status, task) = answer.expect("the broker answers");
        assert_eq!(status, 201, "{task}");
        millis(task["fire_at"].as_str().unwrap())
    }

    /// Touches a watch. Returns its due time in the answer.
    pub(crate) fn touch(&self, key: &str) -> u64 {
        let path = format!("{key}/touch");
        let (status, task) =
            self.client.request_task("POST", &path, "").expect("the broker answers");
        assert_eq!(status, 200, "{task}");
        millis(task["fire_at"].as_str().unwrap())
    }
}

impl ClockTest {
    pub(crate) fn start() -> Self {
        let broker = ClockedBroker::start();
        let (log, _) = DeliveryLog::new();
        let workers = Workers::start(broker.client.address, &log);
        let load_client = LoadClient { client: broker.client.clone(), url: receive(log.clone()) };
        Self { broker, load_client, log, _workers: workers }
    }

    /// Lets the clock jump under a load, and checks what was received.
    pub(crate) fn run(
        &self,
        jumps: &[&str],
        pace: JumpPace,
        load: impl Fn(&LoadClient, u128) -> ExpectedFires + Send,
    ) {
        let (hold, times) = match pace {
            JumpPace::Through(hold) => (hold, jumps.len() + 1),
            JumpPace::AndBack(hold) => (hold, 2 * jumps.len()),
        };
        let begun = now_millis();
        // One second before the first jump and one after the last.
        let end = begun + hold.as_millis() * times as u128 + 2000;
        let expected = thread::scope(|scope| {
            let loader = {
                let load_client = &self.load_client;
                scope.spawn(move || load(load_client, end))
            };
            pause(Duration::from_secs(1));
            for jump in jumps {
                self.jump(jump, hold);
                if matches!(pace, JumpPace::AndBack(_)) {
                    self.set_right(hold);
                }
            }
            if matches!(pace, JumpPace::Through(_)) {
                self.set_right(hold);
            }
            loader.join().unwrap()
        });
        let left = end.saturating_sub(now_millis());
        pause(Duration::from_millis(u64::try_from(left + LATE_MAX).unwrap()));
        self.check(&expected, end);
        let corrections = if matches!(pace, JumpPace::AndBack(_)) { jumps.len() } else { 1 };
        let process = self.broker.process();
        assert_eq!(process.count_logged("clock suspect"), jumps.len(), "one line for each jump");
        assert_eq!(process.count_logged("the machine's clock is believed again"), corrections);
    }

    /// Sets the clock wrong for a while, and checks that the broker reports it.
    fn jump(&self, jump: &str, hold: Duration) {
        let set_at = now_millis();
        self.broker.set(jump);
        let seconds: f64 = jump.parse().unwrap();
        let client = &self.load_client.client;
        eventually(|| {
            let offset = client.metric("punctual_clock_offset_seconds")?;
            ((offset - seconds).abs() < 0.25).then_some(())
        });
        let noticed = now_millis() - set_at;
        assert!(noticed < NOTICED_MAX.as_millis(), "{jump}: noticed after {noticed} ms");
        assert_eq!(client.metric("punctual_clock_suspect"), Some(1.0), "{jump}");
        let (status, ready) = client.request("GET", "/readyz", "").unwrap();
        assert_eq!((status, &ready["ready"]), (200, &json!(true)), "{ready}");
        let warning = ready["warnings"][0].as_str().unwrap_or_default();
        assert!(warning.starts_with("clock_suspect: "), "{jump}: {ready}");
        self.wait_until(set_at, hold);
    }

    /// Sets the clock right, and checks that the broker trusts it again.
    fn set_right(&self, hold: Duration) {
        let set_at = now_millis();
        self.broker.set("+0");
        let client = &self.load_client.client;
        eventually(|| (client.metric("punctual_clock_suspect")? < 0.5).then_some(()));
        let (_, ready) = client.request("GET", "/readyz", "").unwrap();
        assert_eq!(ready["warnings"], json!([]), "{ready}");
        self.wait_until(set_at, hold);
    }

    /// Waits until `hold` after `from`.
    fn wait_until(&self, from: u128, hold: Duration) {
        let left = (from + hold.as_millis()).saturating_sub(now_millis());
        pause(Duration::from_millis(u64::try_from(left).unwrap()));
    }

    /// Checks that each fire was received once, neither early nor late, and nothing else.
    fn check(&self, expected: &ExpectedFires, end: u128) {
        let deliveries = self.log.deliveries();
        let (mut latest, mut count) = (0, 0);
        for (key, dues) in &expected.dues {
            let mut got: Vec<ReceivedDelivery> = deliveries.get(key).cloned().unwrap_or_default();
            got.retain(|delivery| u128::from(delivery.fire_at_millis) < end);
            got.sort_by_key(|delivery| delivery.fire_at_millis);
            let mut wanted: Vec<u64> = dues.clone();
            wanted.retain(|due| u128::from(*due) < end);
            wanted.sort_unstable();
            let fired: Vec<u64> = got.iter().map(|delivery| delivery.fire_at_millis).collect();
            assert_eq!(fired, wanted, "{key}: each of its fires once, and no others");
            for delivery in got {
                let due = u128::from(delivery.fire_at_millis);
                assert!(delivery.at_millis >= due, "{key} is early: {delivery:?}");
                let late = delivery.at_millis - due;
                assert!(late <= LATE_MAX, "{key} is {late} ms late: {delivery:?}");
                latest = late.max(latest);
                count += 1;
            }
        }
        for key in deliveries.keys() {
            assert!(expected.dues.contains_key(key), "{key} is not due yet");
        }
        let client = &self.load_client.client;
        for key in &expected.not_yet {
            let (status, task) = client.request_task("GET", key, "").unwrap();
            assert_eq!((status, &task["state"]), (200, &json!("scheduled")), "{task}");
        }
        assert_eq!(client.metric("punctual_early_total"), Some(0.0));
        println!("{count} fires while the clock jumped, the latest {latest} ms late");
    }
}
