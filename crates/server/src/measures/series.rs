//! The series of a namespace: one row a minute, for a day.
//!
//! A row has the fires that were done and those that became dead letters, the attempts that failed,
//! and the lags of first attempts by bucket. Rows are kept in memory for a bounded number of
//! namespaces, the busiest ones: a namespace that has more ends within an hour than the quietest
//! one had in a day takes its place. What is kept is lost when the broker ends.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use punctual_core::{Namespace, Outcome, Timestamp};
use punctual_engine::Delivery;

use super::lag::{LagPercentiles, has_lag};
use super::sliding_counts::{SlidingCounts, StepCounts};

/// Namespaces whose rows a broker keeps, with 130 kB each.
pub(crate) const SERIES_MAX: usize = 64;
/// Namespaces without rows whose ends are counted, some tens of bytes each.
const CANDIDATES_MAX: usize = 1024;
/// How long the ends of namespaces without rows are counted.
const CANDIDATES_FOR: Duration = Duration::from_secs(3600);
/// The length of a row, and how many rows are kept.
pub(crate) const ROW: Duration = Duration::from_secs(60);
pub(crate) const ROWS: u16 = 24 * 60;

/// The largest lag of each bucket in milliseconds; one more bucket has all larger ones.
pub(crate) const LAG_BOUNDS_MS: [u32; 17] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000,
    3_600_000,
];
/// Buckets of lags.
pub(crate) const LAG_BUCKETS: usize = LAG_BOUNDS_MS.len() + 1;

/// Cells of a row.
const DONE: usize = 0;
const FAILED: usize = 1;
const DEAD: usize = 2;
const LAGS: usize = 3;

/// The rows of all namespaces of a broker.
#[derive(Debug)]
pub(crate) struct SeriesTable {
    rows: RwLock<HashMap<Namespace, Mutex<NamespaceRows>>>,
    candidates: Mutex<Candidates>,
}

#[derive(Debug)]
struct NamespaceRows {
    since: Timestamp,
    counts: SlidingCounts,
}

/// Namespaces without rows, and how many ends each had lately.
#[derive(Debug)]
struct Candidates {
    since: Timestamp,
    ends: HashMap<Namespace, u64>,
    /// The ends of the quietest namespace with rows, when they were counted last.
    quietest: u64,
    quietest_at: Timestamp,
}

/// What is known of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndSeries {
    /// Rows are kept since this time; `None` if this broker keeps none of the namespace.
    pub(crate) since: Option<Timestamp>,
    /// The rows in which something ended, by their starts.
    pub(crate) rows: Vec<(Timestamp, SeriesMinute)>,
}

/// What ended within a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeriesMinute {
    /// Fires that succeeded.
    pub(crate) done: u64,
    /// Attempts that failed.
    pub(crate) failed: u64,
    /// Fires that became dead letters.
    pub(crate) dead: u64,
    /// First attempts by bucket of lag: [`LAG_BUCKETS`].
    pub(crate) lags: Vec<u64>,
    pub(crate) lag_max: Duration,
}

impl SeriesTable {
    pub(crate) fn new() -> Self {
        let (since, ends) = (Timestamp::EPOCH, HashMap::new());
        let candidates = Candidates { since, ends, quietest: 0, quietest_at: since };
        Self { rows: RwLock::default(), candidates: Mutex::new(candidates) }
    }

    /// Counts an attempt that has ended.
    pub(crate) fn record(&self, delivery: &Delivery, outcome: &Outcome, now: Timestamp) {
        let end = if matches!(outcome, Outcome::Acked) { DONE } else { FAILED };
        let lag = has_lag(delivery).then(|| delivery.fired_at.since(delivery.fire_at));
        self.count(&delivery.definition.namespace, now, |counts| match lag {
            Some(lag) => {
                let lag_ms = u64::try_from(lag.as_millis()).unwrap_or(u64::MAX);
                counts.add_and_raise(now, [end, LAGS + bucket_of(lag_ms)], lag_ms);
            }
            None => counts.add(now, end),
        });
    }

    /// Counts a fire that has become a dead letter.
    pub(crate) fn record_dead(&self, namespace: &Namespace, now: Timestamp) {
        self.count(namespace, now, |counts| counts.add(now, DEAD));
    }

    fn count(&self, namespace: &Namespace, now: Timestamp, count: impl Fn(&mut SlidingCounts)) {
        if namespace.is_internal() {
            return;
        }
        let counted = |rows: &HashMap<Namespace, Mutex<NamespaceRows>>| {
            rows.get(namespace).map(|rows| count(&mut lock(rows).counts))
        };
        if counted(&self.rows.read().unwrap_or_else(PoisonError::into_inner)).is_some() {
            return;
        }
        if !self.takes_place(namespace, now) {
            return;
        }
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        if rows.len() >= SERIES_MAX
            && let Some(quietest) = quietest(&rows, now).map(|(name, _)| name.clone())
        {
            rows.remove(&quietest);
        }
        let counts = SlidingCounts::new(ROW, ROWS, LAGS + LAG_BUCKETS);
        let new = || Mutex::new(NamespaceRows { since: now, counts });
        rows.entry(namespace.clone()).or_insert_with(new);
        counted(&rows);
    }

    /// Counts an end of a namespace without rows. Returns whether it gets some now.
    fn takes_place(&self, namespace: &Namespace, now: Timestamp) -> bool {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        if rows.len() < SERIES_MAX {
            return true;
        }
        let mut candidates = lock(&self.candidates);
        if now.since(candidates.since) > CANDIDATES_FOR {
            candidates.since = now;
            candidates.ends.clear();
        }
        if now.since(candidates.quietest_at) > ROW {
            candidates.quietest_at = now;
            candidates.quietest = quietest(&rows, now).map_or(0, |(_, ends)| ends);
        }
        let is_full = candidates.ends.len() >= CANDIDATES_MAX;
        let quietest = candidates.quietest;
        match candidates.ends.get_mut(namespace) {
            Some(ends) if *ends >= quietest => {
                candidates.ends.remove(namespace);
                // The next one is compared with those that are left.
                candidates.quietest_at = Timestamp::EPOCH;
                return true;
            }
            Some(ends) => *ends += 1,
            None if is_full => {}
            None => {
                candidates.ends.insert(namespace.clone(), 1);
            }
        }
        false
    }

    /// Returns the rows of a namespace.
    pub(crate) fn read(&self, namespace: &Namespace, now: Timestamp) -> EndSeries {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let Some(rows) = rows.get(namespace) else {
            return EndSeries { since: None, rows: Vec::new() };
        };
        let mut rows = lock(rows);
        let steps = rows.counts.steps(now).into_iter();
        let read = steps.map(|(start, counts)| (start, SeriesMinute::of(&counts)));
        EndSeries { since: Some(rows.since), rows: read.collect() }
    }
}

/// The namespace that had the fewest ends in a day, and how many.
fn quietest(
    rows: &HashMap<Namespace, Mutex<NamespaceRows>>,
    now: Timestamp,
) -> Option<(&Namespace, u64)> {
    let ends = |rows: &Mutex<NamespaceRows>| {
        let cells = lock(rows).counts.sum(now).cells;
        cells[DONE] + cells[FAILED] + cells[DEAD]
    };
    rows.iter().map(|(name, rows)| (name, ends(rows))).min_by_key(|(_, ends)| *ends)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A count is a single step, so the counts are consistent even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bucket of a lag.
fn bucket_of(lag_ms: u64) -> usize {
    LAG_BOUNDS_MS
        .iter()
        .position(|bound| lag_ms <= u64::from(*bound))
        .unwrap_or(LAG_BOUNDS_MS.len())
}

impl EndSeries {
    /// Adds what another broker has.
    pub(crate) fn add(&mut self, other: Self) {
        self.since = match (self.since, other.since) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        };
        for (start, row) in other.rows {
            match self.rows.binary_search_by_key(&start, |(start, _)| *start) {
                Ok(index) => self.rows[index].1.add(&row),
                Err(index) => self.rows.insert(index, (start, row)),
            }
        }
    }

    /// Sums the rows by steps: `count` of them, the first of which starts at `from`.
    pub(crate) fn by_step(
        &self,
        from: Timestamp,
        step: Duration,
        count: usize,
    ) -> Vec<SeriesMinute> {
        let mut steps = vec![SeriesMinute::empty(); count];
        for (start, row) in self.rows.iter().filter(|(start, _)| *start >= from) {
            let number = start.since(from).as_millis() / step.as_millis().max(1);
            let sum = usize::try_from(number).ok().and_then(|number| steps.get_mut(number));
            sum.into_iter().for_each(|sum| sum.add(row));
        }
        steps
    }
}

impl SeriesMinute {
    /// Nothing has ended.
    pub(crate) fn empty() -> Self {
        let (lags, lag_max) = (vec![0; LAG_BUCKETS], Duration::ZERO);
        Self { done: 0, failed: 0, dead: 0, lags, lag_max }
    }

    fn of(counts: &StepCounts) -> Self {
        let cells = &counts.cells;
        Self {
            done: cells[DONE],
            failed: cells[FAILED],
            dead: cells[DEAD],
            lags: cells[LAGS..].to_vec(),
            lag_max: Duration::from_millis(counts.max),
        }
    }

    fn add(&mut self, other: &Self) {
        self.done = self.done.saturating_add(other.done);
        self.failed = self.failed.saturating_add(other.failed);
        self.dead = self.dead.saturating_add(other.dead);
        for (sum, count) in self.lags.iter_mut().zip(&other.lags) {
            *sum = sum.saturating_add(*count);
        }
        self.lag_max = self.lag_max.max(other.lag_max);
    }

    /// The percentiles of lags, by the bounds of buckets; `None` if no first attempt ended.
    pub(crate) fn lag_percentiles(&self) -> Option<LagPercentiles> {
        let bound = |bucket: usize| {
            let bound =
                LAG_BOUNDS_MS.get(bucket).map(|bound| Duration::from_millis((*bound).into()));
            bound.unwrap_or(self.lag_max)
        };
        LagPercentiles::of(&self.lags, bound, self.lag_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn minute(number: u64) -> Timestamp {
        Timestamp::from_millis((28_333_334 + number) * 60_000)
    }

    fn name(text: &str) -> Namespace {
        Namespace::new(text).unwrap()
    }

    #[test]
    fn rows_are_read_by_minute_and_summed_by_step() {
        let (table, shop) = (SeriesTable::new(), name("shop"));
        for (number, ends) in [(0, 1), (4, 2), (5, 3), (11, 4)] {
            (0..ends).for_each(|_| table.record_dead(&shop, minute(number)));
        }
        let series = table.read(&shop, minute(12));
        assert_eq!(series.since, Some(minute(0)));
        let starts: Vec<_> = series.rows.iter().map(|(start, row)| (*start, row.dead)).collect();
        assert_eq!(starts, [(minute(0), 1), (minute(4), 2), (minute(5), 3), (minute(11), 4)]);
        let dead = |from, step, count| {
            let steps = series.by_step(minute(from), step, count);
            steps.iter().map(|row| row.dead).collect::<Vec<_>>()
        };
        assert_eq!(dead(0, 5 * MINUTE, 3), [3, 3, 4]);
        assert_eq!(dead(1, 5 * MINUTE, 3), [5, 0, 4]);
        assert_eq!(dead(5, MINUTE, 2), [3, 0]);
        assert_eq!(table.read(&name("bank"), minute(12)).since, None);
    }

    #[test]
    fn the_series_of_two_brokers_are_added_minute_by_minute() {
        let row = |dead| SeriesMinute { dead, ..SeriesMinute::empty() };
        let mut one = EndSeries { since: Some(minute(0)), rows: vec![(minute(1), row(1))] };
        let since = Some(minute(1));
        one.add(EndSeries { since, rows: vec![(minute(0), row(5)), (minute(1), row(2))] });
        one.add(EndSeries { since: None, rows: vec![] });
        let rows = vec![(minute(0), row(5)), (minute(1), row(3))];
        assert_eq!(one, EndSeries { since: Some(minute(1)), rows });
    }

    #[test]
    fn a_busier_namespace_takes_the_place_of_the_quietest() {
        let table = SeriesTable::new();
        for number in 0..SERIES_MAX {
            let ends = if number == 7 { 5 } else { 50 };
            let namespace = name(&format!("n{number}"));
            (0..ends).for_each(|_| table.record_dead(&namespace, minute(0)));
        }
        let (late, quiet) = (name("late"), name("n7"));
        for _ in 0..5 {
            table.record_dead(&late, minute(1));
            assert_eq!(table.read(&late, minute(1)).since, None, "not busier yet");
        }
        table.record_dead(&late, minute(1));
        assert_eq!(table.read(&late, minute(1)).since, Some(minute(1)));
        assert_eq!(table.read(&quiet, minute(1)).since, None);
        assert_eq!(table.rows.read().unwrap().len(), SERIES_MAX);
    }

    #[test]
    fn a_lag_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        for (lag_ms, bucket) in [(0, 0), (1, 0), (2, 1), (3, 2), (3_600_000, 16), (3_600_001, 17)] {
            assert_eq!(bucket_of(lag_ms), bucket, "{lag_ms}");
        }
    }
}
