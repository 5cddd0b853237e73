//! Bounded waiting, and the real time.
//!
//! A test waits for an event, and fails if the event does not come within [`WAIT_MAX`].

use std::cell::Cell;
use std::fmt::Display;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A test that waits longer than this for an event fails.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// The time between two checks of a condition that sends no signal.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Milliseconds since 1970 by the machine's clock.
#[expect(clippy::disallowed_methods, reason = "receivers measure with the real clock")]
pub fn now_millis() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

/// Milliseconds since 1970 of an instant in an answer of the API.
pub fn millis(rfc3339: &str) -> u64 {
    punctual_core::Timestamp::parse_rfc3339(rfc3339).unwrap().as_millis()
}

/// Calls `check` until it returns a value.
pub fn eventually<T>(check: impl Fn() -> Option<T>) -> T {
    poll(|| "the condition", check)
}

/// Calls `check` until it succeeds. A timeout shows its last error.
pub fn until_ok<T>(check: impl Fn() -> Result<T, String>) -> T {
    let last = Cell::new(String::new());
    let what = || last.take();
    poll(what, || check().map_err(|error| last.set(error)).ok())
}

/// Calls `check` until it returns true, for four times as long: starting a server that needs
/// seconds of both cores takes long while other tests run.
pub fn wait_long_for(what: &str, mut check: impl FnMut() -> bool) {
    poll_for(WAIT_MAX * 4, || what, || check().then_some(()));
}

/// Calls `check` until it returns true. `what` completes "timed out waiting for …".
pub fn wait_for(what: &str, mut check: impl FnMut() -> bool) {
    poll(|| what, || check().then_some(()));
}

fn poll<T, W: Display>(what: impl Fn() -> W, check: impl FnMut() -> Option<T>) -> T {
    poll_for(WAIT_MAX, what, check)
}

#[expect(clippy::disallowed_methods, reason = "another process gives no signal to wait for")]
fn poll_for<T, W: Display>(
    patience: Duration,
    what: impl Fn() -> W,
    mut check: impl FnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + patience;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < end, "timed out waiting for {}", what());
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Lets real time pass: the length of a fault, or the answer time of a slow receiver.
pub fn pause(time: Duration) {
    let (_open, never) = channel::<()>();
    let _ = never.recv_timeout(time);
}
