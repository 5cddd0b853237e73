//! Clocks that jump, on the real binary: somebody sets the machine's clock while a broker runs. The receivers' clock is the true one.
//!
//! Longer, and back to the right time after each jump: `tools/clock`. Needs libfaketime, and says so if it is missing.
//! What was seen stands in `docs/faults.md`; why it is so in `docs/adr/0010`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that is surprised should stop")]
#![allow(clippy::print_stdout, reason = "a long run says what it did")]

mod field;
#[path = "clock/machine.rs"]
mod machine;
#[path = "faults/server.rs"]
mod server;
#[path = "clock/stage.rs"]
mod stage;
#[path = "faults/witness.rs"]
mod witness;
#[path = "faults/workers.rs"]
mod workers;

use std::time::Duration;

use field::{eventually, now_millis};
use machine::Machine;
use serde_json::json;
use stage::{Desk, Expected, JUMPS, Pace, Stage};
use witness::pause;

/// How a run is paced: short in `./test`, longer by command.
fn pace() -> Pace {
    let seconds = std::env::var("PUNCTUAL_CLOCK_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.map_or(Pace::Through(Duration::from_millis(1500)), |seconds| {
        Pace::AndBack(Duration::from_secs(seconds))
    })
}

/// Tasks that are due once, at a time or after a delay, some filed before a jump and due after it, some filed while the clock is
/// wrong; and tasks that are due in half a minute to five years, which a jump would bring.
fn once(desk: &Desk, end: u128) -> Expected {
    let mut expected = Expected::default();
    for (n, later) in ["1h", "20h", "300d", "1800d"].into_iter().enumerate() {
        let key = format!("later-{later}");
        desk.put(&key, &json!({"in": later, "target": desk.target(n, &key)}));
        expected.never.push(key);
    }
    let guarantees = ["at_least_once", "at_most_once", "exactly_once"];
    for n in 0.. {
        let now = u64::try_from(now_millis()).unwrap();
        let delay = 50 + (n as u64 * 613) % 2400;
        if u128::from(now + delay) >= end {
            return expected;
        }
        let key = format!("once-{n}");
        let mut body = json!({"target": desk.target(n, &key), "guarantee": guarantees[n / 3 % 3]});
        if n % 2 == 0 {
            body["at"] = json!(now + delay);
        } else {
            body["in"] = json!(format!("{delay}ms"));
        }
        let due = desk.put(&key, &body);
        let answered = u64::try_from(now_millis()).unwrap();
        // A delay counts from the true time, whatever the machine's clock says.
        assert!(
            (now + delay..=answered + delay + 1).contains(&due),
            "{key}: due {due}, not {delay} ms after {now}"
        );
        expected.dues.insert(key, vec![due]);
        pause(Duration::from_millis(40));
    }
    unreachable!("the end comes");
}

#[test]
fn a_clock_that_is_set_one_second_to_ten_years_off_makes_nothing_early_late_or_double() {
    Stage::start().play(&JUMPS, pace(), once);
}

#[test]
fn a_small_difference_is_followed_and_not_suspect() {
    let machine = Machine::start();
    let offset = || machine.caller.metric("punctual_clock_offset_seconds");
    machine.set("-0.2");
    let first = eventually(|| offset().filter(|offset| *offset < -0.1));
    assert!(first >= -0.25, "{first}");
    // At most 70 ms a second: time goes slower until it is no longer ahead.
    eventually(|| offset().filter(|offset| offset.abs() < 0.005));
    machine.set("+0");
    let ahead = eventually(|| offset().filter(|offset| *offset > 0.19));
    pause(Duration::from_millis(2500));
    let later = offset().unwrap();
    // Half a millisecond a second, and not more.
    assert!((0.0005..=0.0025).contains(&(ahead - later)), "from {ahead} to {later}");
    assert_eq!(machine.caller.metric("punctual_clock_suspect"), Some(0.0));
    assert_eq!(machine.server().count_logged("clock suspect"), 0);
    machine.stop();
}

#[test]
fn a_broker_that_starts_before_the_time_of_its_last_start_says_so() {
    let dir = Machine::start().stop();
    let machine = Machine::start_on(dir, "-86400");
    eventually(|| machine.caller.metric("punctual_clock_suspect").filter(|suspect| *suspect > 0.5));
    let (status, ready) = machine.caller.ask("GET", "/readyz", "").unwrap();
    assert_eq!(status, 200, "{ready}");
    let warning = ready["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("before the time at which this store was last opened"), "{ready}");
    assert_eq!(machine.server().count_logged("clock suspect"), 1);
    let machine = Machine::start_on(machine.stop(), "+0");
    eventually(|| machine.caller.metric("punctual_clock_offset_seconds"));
    assert_eq!(machine.caller.metric("punctual_clock_suspect"), Some(0.0));
    machine.stop();
}
