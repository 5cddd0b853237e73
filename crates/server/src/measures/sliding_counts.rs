//! A ring of counters: one row of cells for each step of time.
//!
//! The newest row is that of the present step. Rows that are older than the ring is long are
//! cleared when the time has passed them. Each row has one number more, the largest value that was
//! seen in its step.

use std::time::Duration;

use punctual_core::Timestamp;

/// Counts in steps of time.
#[derive(Debug)]
pub(super) struct SlidingCounts {
    step_ms: u64,
    /// Steps of the ring, the newest among them.
    steps: u64,
    cells: usize,
    /// The number of the newest step since the epoch.
    newest: u64,
    /// A row has its cells, then its largest value.
    counts: Box<[u32]>,
}

/// The counts of one step, or of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepCounts {
    pub(super) cells: Vec<u64>,
    pub(super) max: u64,
}

impl SlidingCounts {
    pub(super) fn new(step: Duration, steps: u16, cells: usize) -> Self {
        let step_ms = u64::try_from(step.as_millis()).unwrap_or(u64::MAX).max(1);
        let counts = vec![0; (cells + 1) * usize::from(steps)].into();
        Self { step_ms, steps: u64::from(steps), cells, newest: 0, counts }
    }

    /// Adds one to a cell of the present step.
    pub(super) fn add(&mut self, now: Timestamp, cell: usize) {
        let count = &mut self.newest_row(now)[cell];
        *count = count.saturating_add(1);
    }

    /// Adds one to each of two cells of the present step, and notes a value like
    /// [`raise`](Self::raise).
    pub(super) fn add_and_raise(&mut self, now: Timestamp, cells: [usize; 2], value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        let row = self.newest_row(now);
        for cell in cells {
            row[cell] = row[cell].saturating_add(1);
        }
        if let Some(max) = row.last_mut() {
            *max = value.max(*max);
        }
    }

    /// Notes a value, of which the largest of a step is kept.
    pub(super) fn raise(&mut self, now: Timestamp, value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        if let Some(max) = self.newest_row(now).last_mut() {
            *max = value.max(*max);
        }
    }

    /// Returns the sums of all steps.
    pub(super) fn sum(&mut self, now: Timestamp) -> StepCounts {
        self.slide(now);
        let mut sum = StepCounts { cells: vec![0; self.cells], max: 0 };
        self.counts.chunks_exact(self.cells + 1).for_each(|row| sum.add(row));
        sum
    }

    /// Returns the steps that have counted something, each with its start, in order.
    pub(super) fn steps(&mut self, now: Timestamp) -> Vec<(Timestamp, StepCounts)> {
        self.slide(now);
        let oldest = (self.newest + 1).saturating_sub(self.steps);
        let step = |number: u64| {
            let row = &self.counts[self.row(number)];
            let mut counts = StepCounts { cells: vec![0; self.cells], max: 0 };
            counts.add(row);
            (Timestamp::from_millis(number.saturating_mul(self.step_ms)), counts)
        };
        let counted = |number: &u64| self.counts[self.row(*number)].iter().any(|it| *it > 0);
        (oldest..=self.newest).filter(counted).map(step).collect()
    }

    fn newest_row(&mut self, now: Timestamp) -> &mut [u32] {
        self.slide(now);
        let row = self.row(self.newest);
        &mut self.counts[row]
    }

    fn slide(&mut self, now: Timestamp) {
        let step = now.as_millis() / self.step_ms;
        let first = (self.newest + 1).max((step + 1).saturating_sub(self.steps));
        for passed in first..=step {
            let row = self.row(passed);
            self.counts[row].fill(0);
        }
        self.newest = self.newest.max(step);
    }

    fn row(&self, step: u64) -> std::ops::Range<usize> {
        let start = usize::try_from(step % self.steps).unwrap_or(0) * (self.cells + 1);
        start..start + self.cells + 1
    }
}

impl StepCounts {
    fn add(&mut self, row: &[u32]) {
        for (sum, count) in self.cells.iter_mut().zip(row) {
            *sum += u64::from(*count);
        }
        self.max = self.max.max(row.last().copied().map_or(0, u64::from));
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
    fn a_count_stays_for_the_steps_of_the_ring() {
        let mut counts = SlidingCounts::new(SECOND, 61, 1);
        counts.add(at(0), 0);
        counts.raise(at(0), 9);
        counts.add(at(59_999), 0);
        counts.raise(at(59_999), 7);
        for (millis, sum, max) in [
            (59_999, 2, 9),
            (60_000, 2, 9),
            (60_999, 2, 9),
            (61_000, 1, 7),
            (119_999, 1, 7),
            (120_999, 0, 0),
            (900_000_000, 0, 0),
        ] {
            let want = StepCounts { cells: vec![sum], max };
            assert_eq!(counts.sum(at(millis)), want, "{millis}");
        }
        counts.add(at(900_000_000), 0);
        assert_eq!(counts.sum(at(900_000_001)).cells, [1]);
    }

    #[test]
    fn steps_that_counted_something_are_listed_with_their_starts() {
        let mut counts = SlidingCounts::new(SECOND * 60, 3, 2);
        let minute = |number: u64| Timestamp::from_millis((28_333_334 + number) * 60_000);
        counts.add(minute(0), 0);
        counts.add(minute(1).after(SECOND), 1);
        counts.add(minute(1).after(SECOND * 59), 1);
        counts.raise(minute(1), 4);
        let first = (minute(0), StepCounts { cells: vec![1, 0], max: 0 });
        let second = (minute(1), StepCounts { cells: vec![0, 2], max: 4 });
        assert_eq!(counts.steps(minute(2)), [first, second.clone()]);
        assert_eq!(counts.steps(minute(3)), [second], "the first one has left the ring");
        assert_eq!(counts.steps(minute(9)), []);
    }

    #[test]
    fn a_time_before_the_newest_step_counts_in_the_newest_step() {
        let mut counts = SlidingCounts::new(SECOND, 61, 1);
        counts.add(at(60_000), 0);
        counts.add(at(0), 0);
        assert_eq!(counts.sum(at(60_000)).cells, [2]);
    }
}
