//! Watches the machine during a measurement: the lag of a broker means little if the machine did
//! not run the broker.
//!
//! A thread sleeps a millisecond at a time and records how late it wakes: the scheduling delay. CPU
//! steal is the share of time that the host gave to others (`steal` in `/proc/stat`; zero without a
//! host, or if the host does not report it).

#![expect(clippy::disallowed_methods, reason = "how late a thread wakes is what is measured")]

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::BenchTimer;
use crate::report::LagHistogram;

const SLEEP: Duration = Duration::from_millis(1);
/// With fewer sleeps than this, a sample is not shown.
const SLEEPS_MIN: u64 = 20;

#[derive(Debug)]
pub(crate) struct MachineMonitor {
    delays: Arc<Mutex<LagHistogram>>,
    before: CpuTicks,
}

/// What the machine did between two samples.
#[derive(Debug)]
pub(crate) struct MachineSample {
    delays: LagHistogram,
    steal_percent: f64,
}

/// Time of all CPUs, in ticks of the kernel.
#[derive(Debug, Clone, Copy, Default)]
struct CpuTicks {
    all: u64,
    stolen: u64,
}

impl MachineMonitor {
    /// Starts the thread. It ends when the monitor is dropped.
    pub(crate) fn start() -> Self {
        let delays = Arc::new(Mutex::new(LagHistogram::new()));
        let weak = Arc::downgrade(&delays);
        // If the thread cannot start, samples are empty and not shown.
        let _started = std::thread::Builder::new()
            .name("bench-sleep".into())
            .spawn(move || record_delays(&weak));
        Self { delays, before: CpuTicks::now() }
    }

    /// Returns what happened since the previous sample.
    pub(crate) fn sample(&mut self) -> MachineSample {
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        let delays = std::mem::replace(&mut *delays, LagHistogram::new());
        let now = CpuTicks::now();
        let steal_percent = now.steal_percent(self.before);
        self.before = now;
        MachineSample { delays, steal_percent }
    }
}

fn record_delays(delays: &Weak<Mutex<LagHistogram>>) {
    while let Some(delays) = delays.upgrade() {
        let timer = BenchTimer::start();
        std::thread::sleep(SLEEP);
        let slept = u64::try_from(timer.elapsed().as_micros()).unwrap_or(u64::MAX);
        let wanted = u64::try_from(SLEEP.as_micros()).unwrap_or(0);
        delays.lock().unwrap_or_else(PoisonError::into_inner).note(wanted, slept);
    }
}

impl MachineSample {
    /// "scheduler delay p99 0.2 ms, max 3.1 ms; CPU steal 0.4 %" (words: allow)
    pub(crate) fn words(&self) -> String {
        if self.delays.count() < SLEEPS_MIN {
            return "–".to_owned();
        }
        format!(
            "scheduler delay p99 {:.1} ms, max {:.1} ms; CPU steal {:.1} %", // words: allow
            self.delays.millis(0.99),
            self.delays.millis(1.0),
            self.steal_percent
        )
    }

    pub(crate) fn figures(&self) -> Value {
        json!({
            "scheduler_delay": self.delays.figures(), // words: allow
            "cpu_steal_percent": self.steal_percent,
        })
    }
}

impl CpuTicks {
    fn now() -> Self {
        std::fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| Self::read(&text))
            .unwrap_or_default()
    }

    /// Reads the first line: `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
    /// Guest time is part of user time already.
    fn read(text: &str) -> Option<Self> {
        let mut words = text.lines().next()?.split_whitespace();
        (words.next()? == "cpu").then_some(())?;
        let ticks = words.take(8).map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
        Some(Self { all: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }

    #[expect(clippy::cast_precision_loss, reason = "a share")]
    fn steal_percent(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        if all == 0 { 0.0 } else { stolen as f64 * 100.0 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_steal_is_a_share_of_the_time_of_all_processors() {
        let before = CpuTicks::read("cpu  100 0 50 800 10 0 0 40 7 0\ncpu0 1 2").unwrap();
        let after = CpuTicks::read("cpu  150 0 60 820 10 5 5 50 9 0\n").unwrap();
        assert!((after.steal_percent(before) - 10.0).abs() < 1e-9);
        assert!(before.steal_percent(before).abs() < 1e-9);
        for other in ["", "intr 1 2 3", "cpu 1 2 3", "cpu a b c d e f g h"] {
            assert!(CpuTicks::read(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_sample_starts_where_the_previous_one_ended() {
        let mut machine = MachineMonitor::start();
        (0..SLEEPS_MIN).for_each(|_| machine.delays.lock().unwrap().note(0, 9_000_000));
        let first = machine.sample();
        assert!(first.delays.millis(1.0) >= 9_000.0);
        assert!(first.words().contains("scheduler delay")); // words: allow
        let second = machine.sample();
        assert!(second.delays.millis(1.0) < 9_000.0);
    }
}
