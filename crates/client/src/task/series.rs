//! Options of `every`, `cron` and `within`, one method each.
//!
//! The broker refuses options that do not belong to the schedule of a task.

use std::time::Duration;

use punctual_proto::v1;

use crate::time::millis_up;
use crate::{NewTask, Timestamp};

/// What to do with missed fires: no broker ran to fire them, or no receiver took them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Misfire {
    /// Fire the latest one late, and skip the others. The default.
    #[default]
    FireOnce,
    /// Fire all of them late, no more than the latest hundred.
    FireAll,
    /// Skip all of them.
    Skip,
}

/// What to do with a fire while the previous one is in flight or waits for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Fire it at the same time. The default.
    #[default]
    Allow,
    /// Skip it.
    Skip,
    /// Fire it when the previous one has ended, and skip those that come due before that.
    QueueOne,
}

/// When a local time fires that the clocks skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// Right after the gap. The default for a fixed time of day.
    After,
    /// Not at all. The default for all others.
    Skip,
}

/// When a local time fires that the clocks show twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twice {
    /// The first time only. The default for a fixed time of day.
    Once,
    /// Both times. The default for all others.
    Both,
}

impl From<Gap> for v1::Gap {
    fn from(gap: Gap) -> Self {
        match gap {
            Gap::After => Self::After,
            Gap::Skip => Self::Skip,
        }
    }
}

impl From<Twice> for v1::Twice {
    fn from(twice: Twice) -> Self {
        match twice {
            Twice::Once => Self::Once,
            Twice::Both => Self::Both,
        }
    }
}

impl<To> NewTask<To> {
    /// With `cron`: the time zone of its times, an IANA name. The default is UTC.
    pub fn timezone(mut self, timezone: impl Into<String>) -> Self {
        self.cron.timezone = timezone.into();
        self
    }

    /// With `cron`: when a local time fires that the clocks skip.
    pub fn dst_gap(mut self, gap: Gap) -> Self {
        self.cron.dst_gap = v1::Gap::from(gap).into();
        self
    }

    /// With `cron`: when a local time fires that the clocks show twice.
    pub fn dst_overlap(mut self, twice: Twice) -> Self {
        self.cron.dst_overlap = v1::Twice::from(twice).into();
        self
    }

    /// With `cron` and `every`: no fire is before this time. `every` has its first fire at it.
    pub fn starts_at(mut self, starts_at: impl Into<Timestamp>) -> Self {
        self.series().starts_at_ms = Some(starts_at.into().as_millis());
        self
    }

    /// With `cron` and `every`: no fire is after this time.
    pub fn ends_at(mut self, ends_at: impl Into<Timestamp>) -> Self {
        self.series().ends_at_ms = Some(ends_at.into().as_millis());
        self
    }

    /// With `cron` and `every`: the number of fires. Skipped ones do not count.
    pub fn count(mut self, count: u32) -> Self {
        self.series().count = Some(count);
        self
    }

    /// With `cron` and `every`: what to do with missed fires.
    pub fn misfire(mut self, misfire: Misfire) -> Self {
        let misfire = match misfire {
            Misfire::FireOnce => v1::Misfire::FireOnce,
            Misfire::FireAll => v1::Misfire::FireAll,
            Misfire::Skip => v1::Misfire::Skip,
        };
        self.series().misfire = misfire.into();
        self
    }

    /// With `cron` and `every`: what to do with a fire while the previous one has not ended.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        let overlap = match overlap {
            Overlap::Allow => v1::Overlap::Allow,
            Overlap::Skip => v1::Overlap::Skip,
            Overlap::QueueOne => v1::Overlap::QueueOne,
        };
        self.series().overlap = overlap.into();
        self
    }

    /// With `cron` and `every`: each fire is randomly delayed by up to this much.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.series().jitter_ms = millis_up(jitter);
        self
    }

    /// With `within`: how long all touches together can postpone a fire.
    pub fn postpone_max(mut self, postpone_max: Duration) -> Self {
        self.message.postpone_max_ms = millis_up(postpone_max);
        self
    }

    /// With `within`: fire again when the watch is touched after it has fired. That fire has the
    /// [`Occasion`](crate::Occasion) `Return`.
    pub fn on_return(mut self) -> Self {
        self.message.on_return = true;
        self
    }

    fn series(&mut self) -> &mut v1::Series {
        self.message.series.get_or_insert_default()
    }
}
