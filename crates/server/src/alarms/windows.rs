//! Sliding windows: what attempts of a namespace came to within the last minutes.
//!
//! A broker counts only for the windows that were asked for lately ([`AttemptWindows::read`]), and
//! forgets the others. A window slides in steps of a sixtieth of its length. What is counted is
//! lost when the broker ends; [`WindowSum::since`] says how far back a window reaches.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use punctual_core::{AttemptNo, Namespace, Occasion, Outcome, Timestamp};
use punctual_engine::Delivery;

/// Steps in which a window slides.
const STEPS: u64 = 60;
/// One more step is kept: the one that has just begun.
const STEPS_KEPT: usize = 61;
/// Windows of a broker: some hundred bytes each, or some kilobytes if lags are measured.
pub(crate) const WINDOWS_MAX: usize = 16_384;
/// How long a window is kept that is not asked for.
const UNUSED_MAX: Duration = Duration::from_secs(60);
/// Cells of a window: all attempts, those that count, and then those of each range of lags.
const TOTAL: usize = 0;
const COUNTED: usize = 1;
const RANGES: usize = 2;
/// Ranges of lags: four per power of two, up to 2^22 ms, which is more than an hour.
pub(crate) const LAG_RANGES: usize = 4 * 22 + 1;

/// What is counted, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WindowSpec {
    pub(crate) namespace: Namespace,
    pub(crate) window: Duration,
    pub(crate) counts: WindowCounts,
}

/// What a window counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum WindowCounts {
    /// Attempts, and those that failed.
    Failures,
    /// First attempts of fires, and those that were sent later than this.
    LaterThan(Duration),
}

/// What a window has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowSum {
    /// The window was counted since this time.
    pub(crate) since: Timestamp,
    pub(crate) total: u64,
    /// Attempts that failed, or fires that were too late.
    pub(crate) counted: u64,
    /// How many fires were in each range of lags. Empty if lags are not counted.
    pub(crate) lags: Vec<u64>,
}

/// The windows of a broker.
#[derive(Default)]
pub(crate) struct AttemptWindows {
    /// How many windows there are. Most brokers have none, and then nothing is locked.
    count: AtomicUsize,
    by_namespace: RwLock<HashMap<Namespace, Vec<Window>>>,
}

struct Window {
    window: Duration,
    counts: WindowCounts,
    since: Timestamp,
    used: Mutex<UsedCounts>,
}

struct UsedCounts {
    asked_at: Timestamp,
    sliding: SlidingCounts,
}

impl AttemptWindows {
    /// Counts an attempt that has ended.
    pub(crate) fn record(
        &self,
        delivery: &Delivery,
        outcome: &Outcome,
        now: impl FnOnce() -> Timestamp,
    ) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let windows = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        let Some(windows) = windows.get(&delivery.definition.namespace) else { return };
        let now = now();
        for window in windows {
            window.record(delivery, outcome, now);
        }
    }

    /// Returns what each window has counted. A window that is not known yet starts now.
    pub(crate) fn read(&self, specs: &[WindowSpec], now: Timestamp) -> Vec<WindowSum> {
        self.start_missing(specs, now);
        let by_namespace = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        let sum = |spec: &WindowSpec| {
            let windows = by_namespace.get(&spec.namespace).map_or(&[][..], Vec::as_slice);
            let window = windows.iter().find(|window| window.is(spec));
            window.map_or_else(|| WindowSum::empty(now), |window| window.sum(now))
        };
        specs.iter().map(sum).collect()
    }

    fn start_missing(&self, specs: &[WindowSpec], now: Timestamp) {
        let known = |windows: &HashMap<Namespace, Vec<Window>>, spec: &WindowSpec| {
            windows.get(&spec.namespace).is_some_and(|all| all.iter().any(|it| it.is(spec)))
        };
        {
            let windows = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
            let count = self.count.load(Ordering::Relaxed);
            if count == specs.len() && specs.iter().all(|spec| known(&windows, spec)) {
                return;
            }
        }
        let mut windows = self.by_namespace.write().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|_, all| {
            all.retain_mut(|window| !window.is_unused(now));
            !all.is_empty()
        });
        let mut count: usize = windows.values().map(Vec::len).sum();
        for spec in specs {
            if count < WINDOWS_MAX && !known(&windows, spec) {
                windows.entry(spec.namespace.clone()).or_default().push(Window::new(spec, now));
                count += 1;
            }
        }
        self.count.store(count, Ordering::Relaxed);
    }
}

impl fmt::Debug for AttemptWindows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptWindows").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Window {
    fn new(spec: &WindowSpec, now: Timestamp) -> Self {
        let cells = match spec.counts {
            WindowCounts::Failures => RANGES,
            WindowCounts::LaterThan(_) => RANGES + LAG_RANGES,
        };
        let sliding = SlidingCounts::new(spec.window, cells);
        let used = Mutex::new(UsedCounts { asked_at: now, sliding });
        Self { window: spec.window, counts: spec.counts, since: now, used }
    }

    fn is(&self, spec: &WindowSpec) -> bool {
        self.window == spec.window && self.counts == spec.counts
    }

    fn is_unused(&mut self, now: Timestamp) -> bool {
        let used = self.used.get_mut().unwrap_or_else(PoisonError::into_inner);
        now.since(used.asked_at) > UNUSED_MAX
    }

    fn record(&self, delivery: &Delivery, outcome: &Outcome, now: Timestamp) {
        match self.counts {
            WindowCounts::Failures => {
                let failed = !matches!(outcome, Outcome::Acked);
                self.add(now, [Some(TOTAL), failed.then_some(COUNTED), None]);
            }
            WindowCounts::LaterThan(limit) if has_lag(delivery) => {
                let lag = delivery.fired_at.since(delivery.fire_at);
                let range = Some(RANGES + range_of(lag));
                self.add(now, [Some(TOTAL), (lag > limit).then_some(COUNTED), range]);
            }
            WindowCounts::LaterThan(_) => {}
        }
    }

    fn add(&self, now: Timestamp, cells: [Option<usize>; 3]) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        cells.into_iter().flatten().for_each(|cell| used.sliding.add(now, cell));
    }

    fn sum(&self, now: Timestamp) -> WindowSum {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.asked_at = now;
        let mut cells = used.sliding.sum(now);
        let lags = cells.split_off(RANGES);
        WindowSum { since: self.since, total: cells[TOTAL], counted: cells[COUNTED], lags }
    }
}

impl WindowSum {
    /// Nothing was counted until `now`.
    pub(crate) const fn empty(now: Timestamp) -> Self {
        Self { since: now, total: 0, counted: 0, lags: Vec::new() }
    }

    /// Adds what another broker has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.since = self.since.max(other.since);
        self.total = self.total.saturating_add(other.total);
        self.counted = self.counted.saturating_add(other.counted);
        if self.lags.len() < other.lags.len() {
            self.lags.resize(other.lags.len(), 0);
        }
        for (sum, count) in self.lags.iter_mut().zip(&other.lags) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// The lag that 99 of 100 fires did not exceed. `limit` is the lag beyond which fires were
    /// counted: on which side of it the answer is, is exact; otherwise the answer is up to a fifth
    /// too large.
    pub(crate) fn lag_p99(&self, limit: Duration) -> Duration {
        let allowed = self.total / 100;
        let mut later = self.total;
        let mut estimate = Duration::ZERO;
        for (range, count) in self.lags.iter().enumerate() {
            later = later.saturating_sub(*count);
            if later <= allowed {
                estimate = end_of(range);
                break;
            }
        }
        match self.counted > allowed {
            true => estimate.max(limit + Duration::from_millis(1)),
            false => estimate.min(limit),
        }
    }
}

/// A retry or a redrive is late on purpose, and a manual fire has no due time of its own.
pub(crate) fn has_lag(delivery: &Delivery) -> bool {
    let is_scheduled = matches!(delivery.occasion, Occasion::Due | Occasion::Return);
    delivery.attempt == AttemptNo::FIRST && is_scheduled && !delivery.redriven
}

/// The range of a lag.
fn range_of(lag: Duration) -> usize {
    let end = |range: &usize| lag <= end_of(*range);
    (0..LAG_RANGES).find(end).unwrap_or(LAG_RANGES - 1)
}

/// The largest lag of a range: 2^(range / 4) milliseconds.
fn end_of(range: usize) -> Duration {
    let power = u32::try_from(range / 4).unwrap_or(u32::MAX);
    let quarter = [1000, 1189, 1414, 1682][range % 4];
    Duration::from_micros((1_u64 << power.min(32)).saturating_mul(quarter))
}

/// Counts in steps of a sixtieth of a window. The steps that have left the window are cleared when
/// the time has passed them.
struct SlidingCounts {
    step_ms: u64,
    cells: usize,
    /// The number of the newest step since the epoch.
    newest: u64,
    counts: Box<[u32]>,
}

impl SlidingCounts {
    fn new(window: Duration, cells: usize) -> Self {
        let millis = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let counts = vec![0; cells * STEPS_KEPT].into();
        Self { step_ms: millis.div_ceil(STEPS).max(1), cells, newest: 0, counts }
    }

    fn add(&mut self, now: Timestamp, cell: usize) {
        self.slide(now);
        let start = self.start_of(self.newest);
        let count = &mut self.counts[start + cell];
        *count = count.saturating_add(1);
    }

    fn sum(&mut self, now: Timestamp) -> Vec<u64> {
        self.slide(now);
        let mut sums = vec![0; self.cells];
        for step in self.counts.chunks_exact(self.cells) {
            for (sum, count) in sums.iter_mut().zip(step) {
                *sum += u64::from(*count);
            }
        }
        sums
    }

    fn slide(&mut self, now: Timestamp) {
        let step = now.as_millis() / self.step_ms;
        let first = (self.newest + 1).max(step.saturating_sub(STEPS));
        for passed in first..=step {
            let start = self.start_of(passed);
            self.counts[start..start + self.cells].fill(0);
        }
        self.newest = self.newest.max(step);
    }

    fn start_of(&self, step: u64) -> usize {
        usize::try_from(step % (STEPS + 1)).unwrap_or(0) * self.cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + millis)
    }

    #[test]
    fn a_count_stays_for_its_window_and_at_most_a_step_longer() {
        let mut counts = SlidingCounts::new(SECOND * 60, 1);
        counts.add(at(0), 0);
        counts.add(at(59_999), 0);
        for (millis, sum) in [
            (59_999, 2),
            (60_000, 2),
            (60_999, 2),
            (61_000, 1),
            (119_999, 1),
            (120_999, 0),
            (900_000_000, 0),
        ] {
            assert_eq!(counts.sum(at(millis)), [sum], "{millis}");
        }
        counts.add(at(900_000_000), 0);
        assert_eq!(counts.sum(at(900_000_001)), [1]);
    }

    #[test]
    fn ranges_of_lags_grow_by_a_fifth_and_reach_an_hour() {
        assert_eq!(end_of(0), Duration::from_millis(1));
        assert_eq!(end_of(LAG_RANGES - 1), Duration::from_millis(1 << 22));
        for range in 1..LAG_RANGES {
            assert_eq!(range_of(end_of(range)), range);
            assert_eq!(range_of(end_of(range - 1) + Duration::from_nanos(1)), range);
            assert!(end_of(range) <= end_of(range - 1) * 6 / 5, "{range}");
        }
        assert_eq!(range_of(Duration::ZERO), 0);
        assert_eq!(range_of(SECOND * 86_400), LAG_RANGES - 1);
    }

    #[test]
    fn whether_the_p99_is_over_the_limit_is_exact() {
        let sum = |on_time: u64, late: u64| {
            let mut lags = vec![0; LAG_RANGES];
            lags[range_of(SECOND)] += on_time;
            lags[range_of(SECOND + Duration::from_millis(1))] += late;
            WindowSum { since: at(0), total: on_time + late, counted: late, lags }
        };
        for (on_time, late, over) in
            [(0, 0, false), (100, 0, false), (99, 1, false), (98, 2, true), (0, 1, true)]
        {
            let p99 = sum(on_time, late).lag_p99(SECOND);
            assert_eq!(p99 > SECOND, over, "{on_time} {late}: {p99:?}");
        }
    }

    #[test]
    fn a_window_starts_when_it_is_first_asked_for_and_ends_when_it_is_not() {
        let spec = |window| WindowSpec {
            namespace: Namespace::new("shop").unwrap(),
            window,
            counts: WindowCounts::Failures,
        };
        let windows = AttemptWindows::default();
        let specs = [spec(SECOND), spec(SECOND * 60)];
        assert_eq!(windows.read(&specs, at(0))[1].since, at(0));
        assert_eq!(windows.read(&specs, at(5000))[1].since, at(0));
        for second in 6..=66 {
            windows.read(&specs[..1], at(second * 1000));
        }
        assert_eq!(windows.count.load(Ordering::Relaxed), 1, "the other was forgotten");
        let since: Vec<_> = windows.read(&specs, at(67_000)).iter().map(|it| it.since).collect();
        assert_eq!(since, [at(0), at(67_000)]);
    }
}
