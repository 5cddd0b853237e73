//! The workload that every contender runs, its check, and its figures.
//!
//! Insert all timers at time 0, due at random within the hour; cancel half of them in random order,
//! if the contender can; advance through the hour by one millisecond at a time and collect what
//! expires. A contender that cannot cancel expires all of them. The check runs after the clock has
//! stopped, so it costs no contender anything.

use std::fmt;
use std::time::Instant;

use crate::memory;

pub const HOUR_MS: u64 = 3_600_000;

/// Steps after the hour. The clock of tokio rounds up, so timers of the last tick expire after it.
const GRACE_MS: u64 = 1_000;

pub struct TimerWorkload {
    /// Due time of each timer; a timer's value is its index here.
    due: Vec<u32>,
    /// Indices of the timers to cancel, in this order.
    cancel: Vec<u32>,
}

/// A timer queue. Each value is unique.
pub trait Contender {
    /// Identifies a timer that may be cancelled.
    type Handle: Clone;
    const CANCELS: bool;

    fn new() -> Self;
    fn insert(&mut self, due: u64, value: u32) -> Self::Handle;
    /// Returns whether the timer was pending.
    fn cancel(&mut self, handle: &Self::Handle) -> bool;
    /// Is called for every millisecond of the hour. Passes the values that are due to `expired`.
    fn step(&mut self, now: u64, expired: impl FnMut(u32));
    /// The memory that it reports itself, if it does.
    fn memory_bytes(&self) -> Option<usize> {
        None
    }
}

impl TimerWorkload {
    pub fn new(timers: usize) -> TimerWorkload {
        let mut random = WheelRandom(0x5eed);
        let due = (0..timers).map(|_| random.below(HOUR_MS) + 1).map(to_u32).collect();
        let mut cancel: Vec<u32> = (0..timers as u64).map(to_u32).collect();
        for last in (1..cancel.len()).rev() {
            cancel.swap(last, random.below(last as u64 + 1) as usize);
        }
        cancel.truncate(timers / 2);
        TimerWorkload { due, cancel }
    }
}

pub fn measure<C: Contender>(work: &TimerWorkload) -> WheelFigures {
    let timers = work.due.len();
    let mut handles = Vec::with_capacity(timers);
    let mut expired: Vec<(u32, u32)> = Vec::with_capacity(timers);
    let held_before = memory::held();
    memory::reset_peak();

    let mut contender = C::new();
    let clock = start();
    for (value, due) in work.due.iter().enumerate() {
        handles.push(contender.insert(u64::from(*due), to_u32(value as u64)));
    }
    let insert_ns = per(clock, timers);
    let bytes = memory::held() - held_before;
    if let Some(reported) = contender.memory_bytes() {
        assert!(reported.abs_diff(bytes) < 4096, "{reported} bytes reported, {bytes} allocated");
    }

    let bytes_peak = memory::peak() - held_before;

    let cancel_ns = C::CANCELS.then(|| {
        // Collected beforehand, so that finding a handle is not measured.
        let in_order = work.cancel.iter().map(|value| handles[*value as usize].clone());
        let in_order: Vec<C::Handle> = in_order.collect();
        let clock = start();
        let mut cancelled = 0;
        for handle in &in_order {
            cancelled += usize::from(contender.cancel(handle));
        }
        assert_eq!(cancelled, work.cancel.len());
        per(clock, cancelled)
    });

    let clock = start();
    for now in 0..=HOUR_MS + GRACE_MS {
        contender.step(now, |value| expired.push((to_u32(now), value)));
    }
    let expire_ns = per(clock, expired.len());

    check(work, &expired, C::CANCELS);
    let each = |bytes: usize| bytes as f64 / timers as f64;
    WheelFigures {
        insert_ns,
        cancel_ns,
        expire_ns,
        bytes_full: each(bytes),
        bytes_peak: each(bytes_peak),
    }
}

/// Checks that every timer that was not cancelled expired once, in order, and not early.
fn check(work: &TimerWorkload, expired: &[(u32, u32)], cancels: bool) {
    let mut pending = vec![true; work.due.len()];
    if cancels {
        work.cancel.iter().for_each(|value| pending[*value as usize] = false);
    }
    let mut last_due = 0;
    for (now, value) in expired {
        let due = work.due[*value as usize];
        assert!(pending[*value as usize], "timer {value} expired twice or after its cancel");
        assert!(due <= *now, "timer {value} due at {due} expired at {now}");
        assert!(due >= last_due, "timer {value} due at {due} expired after one due at {last_due}");
        pending[*value as usize] = false;
        last_due = due;
    }
    assert!(!pending.contains(&true), "a timer did not expire");
}

#[derive(Debug, Clone, Copy)]
pub struct WheelFigures {
    pub insert_ns: f64,
    pub cancel_ns: Option<f64>,
    pub expire_ns: f64,
    /// Bytes per timer when all are inserted.
    pub bytes_full: f64,
    /// The peak while inserting, for example while a hash table is copied to grow.
    pub bytes_peak: f64,
}

impl WheelFigures {
    /// The cost of all three operations, if the contender has them.
    pub fn sum(&self) -> Option<f64> {
        Some(self.insert_ns + self.cancel_ns? + self.expire_ns)
    }

    /// The median of several runs, column by column.
    pub fn median(runs: &[WheelFigures]) -> WheelFigures {
        let middle = |column: &dyn Fn(&WheelFigures) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(column).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let cancels = runs.iter().all(|run| run.cancel_ns.is_some());
        WheelFigures {
            insert_ns: middle(&|run| run.insert_ns),
            cancel_ns: cancels.then(|| middle(&|run| run.cancel_ns.unwrap_or_default())),
            expire_ns: middle(&|run| run.expire_ns),
            bytes_full: middle(&|run| run.bytes_full),
            bytes_peak: middle(&|run| run.bytes_peak),
        }
    }

    /// One line, for the pipe from the process that measures.
    pub fn to_line(self) -> String {
        let cancel_ns = self.cancel_ns.unwrap_or(-1.0);
        let WheelFigures { insert_ns, expire_ns, bytes_full, bytes_peak, .. } = self;
        format!("{insert_ns} {cancel_ns} {expire_ns} {bytes_full} {bytes_peak}")
    }

    pub fn from_line(line: &str) -> Option<WheelFigures> {
        let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        let [insert_ns, cancel_ns, expire_ns, bytes_full, bytes_peak] = numbers.ok()?[..] else {
            return None;
        };
        let cancel_ns = (cancel_ns >= 0.0).then_some(cancel_ns);
        Some(WheelFigures { insert_ns, cancel_ns, expire_ns, bytes_full, bytes_peak })
    }
}

impl fmt::Display for WheelFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dash =
            |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.0}"));
        write!(
            f,
            "| {:.0} | {} | {:.0} | {} | {:.1} | {:.1} |",
            self.insert_ns,
            dash(self.cancel_ns),
            self.expire_ns,
            dash(self.sum()),
            self.bytes_full,
            self.bytes_peak,
        )
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
fn start() -> Instant {
    Instant::now()
}

fn per(clock: Instant, count: usize) -> f64 {
    clock.elapsed().as_nanos() as f64 / count as f64
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).expect("a bench has fewer than 2^32 timers and milliseconds")
}

/// SplitMix64: the same times in every run and for every contender.
struct WheelRandom(u64);

impl WheelRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
