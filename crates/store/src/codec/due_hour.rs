//! The counts of due tasks of one hour, and their bytes: the sum, which minutes have tasks, and how
//! many. So a week of a namespace is 168 values, and each of its minutes is there.
//! [`DueStepCounts`] adds them up for a reader.

use crate::codec::{CodecError, Decoded, Reader, put_signed};
use crate::due::{DueHour, DueMinute, DueSteps};

/// The counts of one hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HourCounts {
    minutes: [i64; DueHour::MINUTES],
}

impl Default for HourCounts {
    fn default() -> Self {
        Self { minutes: [0; DueHour::MINUTES] }
    }
}

impl HourCounts {
    /// Adds to the count of a minute of the hour.
    pub fn add(&mut self, minute: DueMinute, by: i64) {
        let count = &mut self.minutes[minute.get() as usize % DueHour::MINUTES];
        *count = count.saturating_add(by);
    }

    /// Returns the minutes that have a count, in order.
    pub fn iter(&self, hour: DueHour) -> impl Iterator<Item = (DueMinute, i64)> {
        hour.minutes().zip(self.minutes).filter(|(_, count)| *count != 0)
    }

    /// Returns the bytes of the hour; `None` if every count is zero.
    #[must_use]
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let counted = (0..).zip(&self.minutes).filter(|(_, count)| **count != 0);
        let bits = counted.map(|(index, _): (u32, _)| 1u64 << index).sum::<u64>();
        if bits == 0 {
            return None;
        }
        let mut out = Vec::with_capacity(2 * DueHour::MINUTES);
        put_signed(&mut out, self.minutes.iter().fold(0, |sum: i64, by| sum.saturating_add(*by)));
        out.extend_from_slice(&bits.to_be_bytes());
        for count in self.minutes.iter().filter(|count| **count != 0) {
            put_signed(&mut out, *count);
        }
        Some(out)
    }

    /// Reads the counts of an hour.
    pub fn read(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        reader.signed()?;
        let bits = reader.take(8)?.try_into().map_err(|_| CodecError::Short("due counts"))?;
        let bits = u64::from_be_bytes(bits);
        let mut counts = Self::default();
        for (index, count) in counts.minutes.iter_mut().enumerate() {
            if bits & (1 << index) != 0 {
                *count = reader.signed()?;
            }
        }
        reader.end()?;
        Ok(counts)
    }

    /// Reads the sum of an hour, without its minutes.
    pub fn read_sum(bytes: &[u8]) -> Decoded<i64> {
        Reader::new(bytes).signed()
    }
}

/// The number of tasks of each step, while hours and differences are added up.
#[derive(Debug)]
pub struct DueStepCounts<'a> {
    steps: &'a DueSteps,
    tasks: Vec<i64>,
}

impl<'a> DueStepCounts<'a> {
    /// Starts with no tasks.
    #[must_use]
    pub fn new(steps: &'a DueSteps) -> Self {
        Self { steps, tasks: vec![0; steps.count()] }
    }

    /// Adds to a minute, if a step has it.
    pub fn add(&mut self, minute: DueMinute, by: i64) {
        self.add_to(self.steps.step_of(minute), by);
    }

    /// Adds the bytes of an hour: its sum if one step has all of it, else its minutes.
    pub fn add_hour(&mut self, hour: DueHour, counts: &[u8]) -> Decoded<()> {
        match self.steps.step_of_hour(hour) {
            Some(step) => self.add_to(Some(step), HourCounts::read_sum(counts)?),
            None => HourCounts::read(counts)?.iter(hour).for_each(|(at, by)| self.add(at, by)),
        }
        Ok(())
    }

    /// Returns the number of tasks of each step.
    #[must_use]
    pub fn into_tasks(self) -> Vec<i64> {
        self.tasks
    }

    fn add_to(&mut self, step: Option<usize>, by: i64) {
        if let Some(tasks) = step.and_then(|step| self.tasks.get_mut(step)) {
            *tasks = tasks.saturating_add(by);
        }
    }
}
