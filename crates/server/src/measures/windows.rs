//! Sliding windows: what attempts of a namespace came to within the last minutes.
//!
//! A broker counts only for the windows that were asked for lately ([`AttemptWindows::read`]), and
//! forgets the others. A window slides in steps of a sixtieth of its length. What is counted is
//! lost when the broker ends; [`WindowSum::since`] says how far back a window reaches.
//! `gather_measures` sums the windows of all brokers.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use punctual_core::{Namespace, Outcome, Timestamp};
use punctual_engine::Delivery;

use super::lag::{LAG_RANGES, LagPercentiles, end_of, has_lag, range_of};
use super::sliding_counts::{SlidingCounts, StepCounts};

/// Steps in which a window slides. One more is kept: the one that has just begun.
const STEPS: u16 = 60;
/// Windows of a broker: some hundred bytes each, or some kilobytes if lags are measured.
pub(crate) const WINDOWS_MAX: usize = 16_384;
/// How long a window is kept that is not asked for, and how often such windows are looked for.
const UNUSED_MAX: Duration = Duration::from_secs(60);
const CLEAN_EVERY: Duration = Duration::from_secs(1);
/// Cells of a window: all attempts, those that count, fires that became dead letters, and then
/// those of each range of lags.
const TOTAL: usize = 0;
const COUNTED: usize = 1;
const DEAD: usize = 2;
const RANGES: usize = 3;

/// What is counted, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct WindowSpec {
    /// Only of this namespace; of all if `None`.
    pub(crate) namespace: Option<Namespace>,
    pub(crate) window: Duration,
    pub(crate) counts: WindowCounts,
}

/// What a window counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WindowCounts {
    /// Attempts, and those that failed.
    Failures,
    /// First attempts of fires, and those that were sent later than this.
    LaterThan(Duration),
    /// Attempts, those that failed, fires that became dead letters, and the lags of first attempts.
    Ends,
}

/// What a window has counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowSum {
    /// The window was counted since this time.
    pub(crate) since: Timestamp,
    pub(crate) total: u64,
    /// Attempts that failed, or fires that were too late.
    pub(crate) counted: u64,
    /// Fires that became dead letters, if the window counts them.
    pub(crate) dead: u64,
    /// How many fires were in each range of lags. Empty if lags are not counted.
    pub(crate) lags: Vec<u64>,
    /// The largest lag.
    pub(crate) lag_max: Duration,
}

/// The windows of a broker.
#[derive(Default)]
pub(crate) struct AttemptWindows {
    /// How many windows there are. Most brokers have none, and then nothing is locked.
    count: AtomicUsize,
    /// When windows that are not asked for were looked for, in milliseconds.
    cleaned_at_ms: AtomicU64,
    by_namespace: RwLock<HashMap<Option<Namespace>, Vec<Window>>>,
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
    pub(crate) fn record(&self, delivery: &Delivery, outcome: &Outcome, now: Timestamp) {
        let namespace = &delivery.definition.namespace;
        self.for_each(namespace, |window| window.record(delivery, outcome, now));
    }

    /// Counts a fire that has become a dead letter.
    pub(crate) fn record_dead(&self, namespace: &Namespace, now: Timestamp) {
        self.for_each(namespace, |window| {
            if window.counts == WindowCounts::Ends {
                window.add(now, [Some(DEAD), None, None]);
            }
        });
    }

    /// Calls for each window that counts this namespace.
    fn for_each(&self, namespace: &Namespace, count: impl Fn(&Window)) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let windows = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
        let of_namespace = windows.get(&Some(namespace.clone()));
        let of_all = windows.get(&None).filter(|_| !namespace.is_internal());
        of_namespace.into_iter().chain(of_all).flatten().for_each(count);
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
        let known = |windows: &HashMap<Option<Namespace>, Vec<Window>>, spec: &WindowSpec| {
            windows.get(&spec.namespace).is_some_and(|all| all.iter().any(|it| it.is(spec)))
        };
        {
            let windows = self.by_namespace.read().unwrap_or_else(PoisonError::into_inner);
            let cleaned_at = Timestamp::from_millis(self.cleaned_at_ms.load(Ordering::Relaxed));
            let is_clean = now.since(cleaned_at) < CLEAN_EVERY;
            if is_clean && specs.iter().all(|spec| known(&windows, spec)) {
                return;
            }
        }
        self.cleaned_at_ms.store(now.as_millis(), Ordering::Relaxed);
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
            WindowCounts::LaterThan(_) | WindowCounts::Ends => RANGES + LAG_RANGES,
        };
        let millis = u64::try_from(spec.window.as_millis()).unwrap_or(u64::MAX);
        let step = Duration::from_millis(millis.div_ceil(u64::from(STEPS)));
        let sliding = SlidingCounts::new(step, STEPS + 1, cells);
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
        let failed = || (!matches!(outcome, Outcome::Acked)).then_some(COUNTED);
        let lag = has_lag(delivery).then(|| delivery.fired_at.since(delivery.fire_at));
        let range = |lag| Some(RANGES + range_of(lag));
        match (self.counts, lag) {
            (WindowCounts::Failures, _) => self.add(now, [Some(TOTAL), failed(), None]),
            (WindowCounts::Ends, None) => self.add(now, [Some(TOTAL), failed(), None]),
            (WindowCounts::Ends, Some(lag)) => {
                self.add(now, [Some(TOTAL), failed(), range(lag)]);
                let lag_ms = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
                self.lock().sliding.raise(now, lag_ms);
            }
            (WindowCounts::LaterThan(limit), Some(lag)) => {
                self.add(now, [Some(TOTAL), (lag > limit).then_some(COUNTED), range(lag)]);
            }
            (WindowCounts::LaterThan(_), None) => {}
        }
    }

    fn add(&self, now: Timestamp, cells: [Option<usize>; 3]) {
        let mut used = self.lock();
        cells.into_iter().flatten().for_each(|cell| used.sliding.add(now, cell));
    }

    fn sum(&self, now: Timestamp) -> WindowSum {
        let mut used = self.lock();
        used.asked_at = now;
        let StepCounts { mut cells, max } = used.sliding.sum(now);
        let lags = cells.split_off(RANGES);
        WindowSum {
            since: self.since,
            total: cells[TOTAL],
            counted: cells[COUNTED],
            dead: cells[DEAD],
            lags,
            lag_max: Duration::from_millis(max),
        }
    }

    fn lock(&self) -> MutexGuard<'_, UsedCounts> {
        // A count is a single step, so the counts are consistent even after a panic.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WindowSum {
    /// Nothing was counted until `now`.
    pub(crate) fn empty(now: Timestamp) -> Self {
        let (lags, lag_max) = (Vec::new(), Duration::ZERO);
        Self { since: now, total: 0, counted: 0, dead: 0, lags, lag_max }
    }

    /// Adds what another broker has counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.since = self.since.max(other.since);
        self.total = self.total.saturating_add(other.total);
        self.counted = self.counted.saturating_add(other.counted);
        self.dead = self.dead.saturating_add(other.dead);
        self.lag_max = self.lag_max.max(other.lag_max);
        if self.lags.len() < other.lags.len() {
            self.lags.resize(other.lags.len(), 0);
        }
        for (sum, count) in self.lags.iter_mut().zip(&other.lags) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// The percentiles of lags; `None` if no fire was counted. Each but the maximum is up to a
    /// fifth too large.
    pub(crate) fn lag_percentiles(&self) -> Option<LagPercentiles> {
        LagPercentiles::of(&self.lags, end_of, self.lag_max)
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + millis)
    }

    #[test]
    fn whether_the_p99_is_over_the_limit_is_exact() {
        let sum = |on_time: u64, late: u64| {
            let mut lags = vec![0; LAG_RANGES];
            lags[range_of(SECOND)] += on_time;
            lags[range_of(SECOND + Duration::from_millis(1))] += late;
            let (total, counted) = (on_time + late, late);
            WindowSum { total, counted, lags, ..WindowSum::empty(at(0)) }
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
            namespace: Some(Namespace::new("shop").unwrap()),
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
