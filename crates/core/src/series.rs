//! Series: the rules that `cron` and `every` share, each with a default.
//!
//! The due times come from `cron` and `schedule`; `task/next` and `task/overlap` apply the
//! policies.

use std::time::Duration;

use crate::limits::JITTER_MAX;
use crate::{Invalid, Timestamp, format_duration};

/// The rules that all schedules with many fires share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Series {
    /// No fire is before this time. An interval has its first fire at it, and counts from it.
    pub starts_at: Option<Timestamp>,
    /// No fire is after this time.
    pub ends_at: Option<Timestamp>,
    /// The number of fires. Fires that a policy skips do not count.
    pub count: Option<u32>,
    /// What to do with missed fires.
    pub misfire: Misfire,
    /// What to do with a fire while the previous one has not ended.
    pub overlap: Overlap,
    /// Each fire is delayed by up to this much: randomly, but always the same for the same fire.
    pub jitter: Duration,
}

/// What to do with missed fires: no broker ran to fire them, or no receiver took them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Misfire {
    /// Fire the latest one late, and skip the others.
    #[default]
    FireOnce,
    /// Fire all of them late, one after the other; no more than the last
    /// [`MISFIRES_MAX`](crate::MISFIRES_MAX).
    FireAll,
    /// Skip all of them.
    Skip,
}

/// What to do with a fire while the previous one is in flight or waits for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Fire it at the same time.
    #[default]
    Allow,
    /// Skip it.
    Skip,
    /// Fire it when the previous one has ended, and skip those that come due before that.
    QueueOne,
}

impl Series {
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.jitter > JITTER_MAX {
            let (max, given) = (format_duration(JITTER_MAX), format_duration(self.jitter));
            return Err(Invalid::new("jitter", format!("must be at most {max}, is {given}")));
        }
        if self.count == Some(0) {
            return Err(Invalid::new("count", "must be at least 1, is 0"));
        }
        match (self.starts_at, self.ends_at) {
            (Some(starts_at), Some(ends_at)) if ends_at < starts_at => {
                Err(Invalid::new("ends_at", "must not be before starts_at"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a nominal time is not after the end.
    pub(crate) fn reaches(&self, nominal_at: Timestamp) -> bool {
        self.ends_at.is_none_or(|ends_at| nominal_at <= ends_at)
    }
}
