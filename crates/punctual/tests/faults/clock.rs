//! Machine clocks that jump while a broker runs. The clock of the receivers is right.
//!
//! Longer, and back to the right time after each jump: `tools/clock`. Needs libfaketime. The
//! results are in `docs/lab/faults.md`, the reasons in `docs/adr/0010`.

mod jumps;

use std::time::Duration;

use punctual_test_support::{ClockedBroker, eventually, now_millis, pause};
use serde_json::json;

use jumps::{ClockTest, ExpectedFires, JUMPS, JumpPace, LoadClient};

/// Returns the pace: fast in `./test`, slower by `PUNCTUAL_CLOCK_SECONDS`.
fn pace() -> JumpPace {
    let seconds = std::env::var("PUNCTUAL_CLOCK_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.map_or(JumpPace::Through(Duration::from_millis(1500)), |seconds| {
        JumpPace::AndBack(Duration::from_secs(seconds))
    })
}

/// Schedules tasks that are due once, at a time or after a delay: some before a jump and due after
/// it, some while the clock is wrong. And tasks due in an hour to five years, which a jump must not
/// fire.
fn once(load: &LoadClient, end: u128) -> ExpectedFires {
    let mut expected = ExpectedFires::default();
    for (n, later) in ["1h", "20h", "300d", "1800d"].into_iter().enumerate() {
        let key = format!("later-{later}");
        load.put(&key, &json!({"in": later, "target": load.target(n, &key)}));
        expected.not_yet.push(key);
    }
    let guarantees = ["at_least_once", "at_most_once", "exactly_once"];
    for n in 0.. {
        let now = u64::try_from(now_millis()).unwrap();
        let delay = 50 + (n as u64 * 613) % 2400;
        if u128::from(now + delay) >= end {
            return expected;
        }
        let key = format!("once-{n}");
        let mut body = json!({"target": load.target(n, &key), "guarantee": guarantees[n / 3 % 3]});
        if n % 2 == 0 {
            body["at"] = json!(now + delay);
        } else {
            body["in"] = json!(format!("{delay}ms"));
        }
        let due = load.put(&key, &body);
        let answered = u64::try_from(now_millis()).unwrap();
        // A delay counts from the true time, whatever the machine's clock shows.
        assert!(
            (now + delay..=answered + delay + 1).contains(&due),
            "{key}: due {due}, not {delay} ms after {now}"
        );
        expected.dues.insert(key, vec![due]);
        pause(Duration::from_millis(40));
    }
    unreachable!("the loop ends at the end of the run");
}

/// Schedules recurring tasks: at intervals, and by cron expressions of each second and each odd
/// second in several time zones. A jump must neither skip fires nor fire a whole day at once.
fn recurring(load: &LoadClient, end: u128) -> ExpectedFires {
    let mut expected = ExpectedFires::default();
    for n in 0..12 {
        let interval = [250, 700, 1000, 1300][n % 4];
        let key = format!("every-{n}");
        let body = json!({"every": format!("{interval}ms"), "target": load.target(n, &key)});
        let first = load.put(&key, &body);
        expected.dues.insert(key, due_times(first, interval, end));
    }
    for n in 0..6 {
        let (expression, interval) = [("* * * * * *", 1000), ("1/2 * * * * *", 2000)][n % 2];
        let zone = ["UTC", "Europe/Berlin", "Asia/Kathmandu"][n % 3];
        let key = format!("cron-{n}");
        let body = json!({"cron": expression, "timezone": zone, "target": load.target(n, &key)});
        let first = load.put(&key, &body);
        assert_eq!(first % interval, if interval == 2000 { 1000 } else { 0 }, "{key}");
        expected.dues.insert(key, due_times(first, interval, end));
    }
    for (n, cron) in ["0 * 1 1 *", "@yearly"].into_iter().enumerate() {
        // At some time of the year, but not in the minutes of this run.
        let key = format!("later-cron-{n}");
        load.put(&key, &json!({"cron": cron, "target": load.target(n, &key)}));
        expected.not_yet.push(key);
    }
    expected
}

/// Returns the due times from the first on, before the end.
fn due_times(first: u64, interval: u64, end: u128) -> Vec<u64> {
    let times = (0..).map(|n| first + n * interval);
    times.take_while(|at| u128::from(*at) < end).collect()
}

/// Schedules watches that are touched four times as often as necessary. Half of them are touched no
/// more, one after the other.
fn watches(load: &LoadClient, end: u128) -> ExpectedFires {
    let mut expected = ExpectedFires::default();
    let within: u64 = 2000;
    let names: Vec<_> = (0..24).map(|n| format!("watch-{n}")).collect();
    let mut dues = Vec::new();
    for (n, key) in names.iter().enumerate() {
        let within = format!("{within}ms");
        dues.push(load.put(key, &json!({"within": within, "target": load.target(n, key)})));
    }
    let begun = now_millis();
    let last = end - u128::from(within) - 1500;
    while now_millis() < last {
        let share = (now_millis() - begun) * 12 / (last - begun);
        for (n, key) in names.iter().enumerate() {
            // Half of them stop being touched during the run, the others at its end.
            if n % 2 == 0 && u128::try_from(n / 2).unwrap() < share {
                continue;
            }
            dues[n] = load.touch(key);
        }
        pause(Duration::from_millis(500));
    }
    for (key, due) in names.into_iter().zip(dues) {
        expected.dues.insert(key, vec![due]);
    }
    expected
}

#[test]
fn recurring_tasks_keep_their_times_whatever_the_clock_does() {
    ClockTest::start().run(&JUMPS, pace(), recurring);
}

#[test]
fn a_watch_measures_the_true_time_since_its_last_touch_whatever_the_clock_does() {
    ClockTest::start().run(&JUMPS, pace(), watches);
}

#[test]
fn a_clock_set_one_second_to_ten_years_off_makes_nothing_early_late_or_doubled() {
    ClockTest::start().run(&JUMPS, pace(), once);
}

#[test]
fn a_small_clock_difference_is_followed_and_not_suspect() {
    let broker = ClockedBroker::start();
    let offset = || broker.client.metric("punctual_clock_offset_seconds");
    broker.set("-0.2");
    let first = eventually(|| offset().filter(|offset| *offset < -0.1));
    assert!(first >= -0.25, "{first}");
    // The broker slows its time down, by at most 70 ms a second, until it is no longer ahead.
    eventually(|| offset().filter(|offset| offset.abs() < 0.005));
    broker.set("+0");
    let ahead = eventually(|| offset().filter(|offset| *offset > 0.19));
    pause(Duration::from_millis(2500));
    let later = offset().unwrap();
    // Half a millisecond a second, not more.
    assert!((0.0005..=0.0025).contains(&(ahead - later)), "from {ahead} to {later}");
    assert_eq!(broker.client.metric("punctual_clock_suspect"), Some(0.0));
    assert_eq!(broker.process().count_logged("clock suspect"), 0);
    broker.stop();
}

#[test]
fn a_broker_started_before_the_time_of_its_last_start_reports_a_suspect_clock() {
    let dir = ClockedBroker::start().stop();
    let broker = ClockedBroker::start_on(dir, "-86400");
    eventually(|| broker.client.metric("punctual_clock_suspect").filter(|suspect| *suspect > 0.5));
    let (status, ready) = broker.client.request("GET", "/readyz", "").unwrap();
    assert_eq!(status, 200, "{ready}");
    let warning = ready["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.contains("before the time at which this store was last opened"), "{ready}");
    assert_eq!(broker.process().count_logged("clock suspect"), 1);
    let broker = ClockedBroker::start_on(broker.stop(), "+0");
    eventually(|| broker.client.metric("punctual_clock_offset_seconds"));
    assert_eq!(broker.client.metric("punctual_clock_suspect"), Some(0.0));
    broker.stop();
}
