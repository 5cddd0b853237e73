//! What the machine itself did meanwhile: a lag says nothing of a broker on a machine that was away.
//!
//! A thread does nothing but sleep a millisecond at a time, and writes down how late it woke. Beside it stands how much of the time the host took
//! for others (`steal` in `/proc/stat`; zero where there is no host, or none that tells). In: nothing. Out: a reading, from the one before it on.

#![expect(clippy::disallowed_methods, reason = "how late a thread wakes is what is measured")]

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use super::clock::Stopwatch;
use super::report::Lags;

const NAP: Duration = Duration::from_millis(1);
/// Fewer of them say nothing: the row belongs to the one before it.
const NAPS_MIN: u64 = 20;

#[derive(Debug)]
pub(super) struct Machine {
    naps: Arc<Mutex<Lags>>,
    before: Ticks,
}

/// What the machine did between two readings.
#[derive(Debug)]
pub(super) struct Reading {
    naps: Lags,
    stolen_percent: f64,
}

/// Time of all CPUs in ticks of the kernel.
#[derive(Debug, Clone, Copy, Default)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Machine {
    /// Starts to watch; ends when it is dropped.
    pub(super) fn watch() -> Self {
        let naps = Arc::new(Mutex::new(Lags::new()));
        let weak = Arc::downgrade(&naps);
        // Without the thread there are no naps, which is what the reading says then.
        let _started = std::thread::Builder::new().name("naps".into()).spawn(move || nap(&weak));
        Self { naps, before: Ticks::now() }
    }

    /// What was since the reading before.
    pub(super) fn read(&mut self) -> Reading {
        let mut naps = self.naps.lock().unwrap_or_else(PoisonError::into_inner);
        let naps = std::mem::replace(&mut *naps, Lags::new());
        let now = Ticks::now();
        let stolen_percent = now.stolen_percent(self.before);
        self.before = now;
        Reading { naps, stolen_percent }
    }
}

fn nap(naps: &Weak<Mutex<Lags>>) {
    while let Some(naps) = naps.upgrade() {
        let stopwatch = Stopwatch::start();
        std::thread::sleep(NAP);
        let slept = u64::try_from(stopwatch.elapsed().as_micros()).unwrap_or(u64::MAX);
        let wanted = u64::try_from(NAP.as_micros()).unwrap_or(0);
        naps.lock().unwrap_or_else(PoisonError::into_inner).note(wanted, slept);
    }
}

impl Reading {
    /// "a sleeper p99 0.2, max 3.1 ms late; 0.4 % stolen"
    pub(super) fn words(&self) -> String {
        if self.naps.count() < NAPS_MIN {
            return "–".to_owned();
        }
        format!(
            "a sleeper p99 {:.1}, max {:.1} ms late; {:.1} % stolen",
            self.naps.millis(0.99),
            self.naps.millis(1.0),
            self.stolen_percent
        )
    }

    pub(super) fn figures(&self) -> Value {
        json!({"sleeper": self.naps.figures(), "stolen_percent": self.stolen_percent})
    }
}

impl Ticks {
    fn now() -> Self {
        std::fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| Self::read(&text))
            .unwrap_or_default()
    }

    /// The first line: `cpu user nice system idle iowait irq softirq steal guest guest_nice`; guests count as user already.
    fn read(text: &str) -> Option<Self> {
        let mut words = text.lines().next()?.split_whitespace();
        (words.next()? == "cpu").then_some(())?;
        let ticks = words.take(8).map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
        Some(Self { all: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }

    #[expect(clippy::cast_precision_loss, reason = "a share")]
    fn stolen_percent(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        if all == 0 { 0.0 } else { stolen as f64 * 100.0 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_time_of_all_processors() {
        let before = Ticks::read("cpu  100 0 50 800 10 0 0 40 7 0\ncpu0 1 2").unwrap();
        let after = Ticks::read("cpu  150 0 60 820 10 5 5 50 9 0\n").unwrap();
        assert!((after.stolen_percent(before) - 10.0).abs() < 1e-9);
        assert!(before.stolen_percent(before).abs() < 1e-9);
        for other in ["", "intr 1 2 3", "cpu 1 2 3", "cpu a b c d e f g h"] {
            assert!(Ticks::read(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_reading_begins_where_the_one_before_ended() {
        let mut machine = Machine::watch();
        (0..NAPS_MIN).for_each(|_| machine.naps.lock().unwrap().note(0, 9_000_000));
        let first = machine.read();
        assert!(first.naps.millis(1.0) >= 9_000.0);
        assert!(first.words().contains("a sleeper"));
        let second = machine.read();
        assert!(second.naps.millis(1.0) < 9_000.0);
    }
}
