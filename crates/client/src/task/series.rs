//! Wishes about a task that is due again and again, and about a watch: each beside `every`, `cron` or `within`.
//!
//! In: the caller's wishes, one method each. Out: what travels. What does not belong together is refused by the broker.

use std::time::Duration;

use punctual_proto::v1;

use crate::time::millis_up;
use crate::{NewTask, Timestamp};

/// What is done about fires that were missed: nobody was there to fire them, or to receive them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Misfire {
    /// The latest of them is fired, late; the others are skipped. The default.
    #[default]
    FireOnce,
    /// All are fired, late, up to the latest hundred.
    FireAll,
    /// All are skipped.
    Skip,
}

/// What is done about a fire while the one before is under way or waits for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// It is fired beside it. The default.
    #[default]
    Allow,
    /// It is skipped.
    Skip,
    /// One waits until the one before is over; further ones are skipped.
    QueueOne,
}

/// When a local time counts that the clocks leap over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// Right after the gap. The default of a fixed time of day.
    After,
    /// Not at all. The default of everything else.
    Skip,
}

/// When a local time counts that the clocks show twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twice {
    /// The first time. The default of a fixed time of day.
    Once,
    /// Both times. The default of everything else.
    Both,
}

impl<To> NewTask<To> {
    /// With `cron`: the time zone that its times are read in, by its IANA name; UTC unless said.
    pub fn timezone(mut self, timezone: impl Into<String>) -> Self {
        self.cron.timezone = timezone.into();
        self
    }

    /// With `cron`: when a local time counts that the clocks leap over.
    pub fn dst_gap(mut self, gap: Gap) -> Self {
        let gap = match gap {
            Gap::After => v1::Gap::After,
            Gap::Skip => v1::Gap::Skip,
        };
        self.cron.dst_gap = gap.into();
        self
    }

    /// With `cron`: when a local time counts that the clocks show twice.
    pub fn dst_overlap(mut self, twice: Twice) -> Self {
        let twice = match twice {
            Twice::Once => v1::Twice::Once,
            Twice::Both => v1::Twice::Both,
        };
        self.cron.dst_overlap = twice.into();
        self
    }

    /// With `cron` and `every`: no fire before. The intervals of `every` are counted from it.
    pub fn starts_at(mut self, starts_at: impl Into<Timestamp>) -> Self {
        self.series().starts_at_ms = Some(starts_at.into().as_millis());
        self
    }

    /// With `cron` and `every`: no fire after.
    pub fn ends_at(mut self, ends_at: impl Into<Timestamp>) -> Self {
        self.series().ends_at_ms = Some(ends_at.into().as_millis());
        self
    }

    /// With `cron` and `every`: so many fires, and no more. What is skipped does not count.
    pub fn count(mut self, count: u32) -> Self {
        self.series().count = Some(count);
        self
    }

    /// With `cron` and `every`: what is done about fires that were missed.
    pub fn misfire(mut self, misfire: Misfire) -> Self {
        let misfire = match misfire {
            Misfire::FireOnce => v1::Misfire::FireOnce,
            Misfire::FireAll => v1::Misfire::FireAll,
            Misfire::Skip => v1::Misfire::Skip,
        };
        self.series().misfire = misfire.into();
        self
    }

    /// With `cron` and `every`: what is done about a fire while the one before is not over.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        let overlap = match overlap {
            Overlap::Allow => v1::Overlap::Allow,
            Overlap::Skip => v1::Overlap::Skip,
            Overlap::QueueOne => v1::Overlap::QueueOne,
        };
        self.series().overlap = overlap.into();
        self
    }

    /// With `cron` and `every`: each fire is up to so much later, by chance.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.series().jitter_ms = millis_up(jitter);
        self
    }

    /// With `within`: how long touches can put off a fire, all together.
    pub fn postpone_max(mut self, postpone_max: Duration) -> Self {
        self.message.postpone_max_ms = millis_up(postpone_max);
        self
    }

    /// With `within`: there is another fire when a watch that has fired is touched; its
    /// [`Occasion`](crate::Occasion) is `Return`.
    pub fn on_return(mut self) -> Self {
        self.message.on_return = true;
        self
    }

    fn series(&mut self) -> &mut v1::Series {
        self.message.series.get_or_insert_default()
    }
}
