//! Series: what is agreed about a task that is due again and again, whatever says when.
//!
//! In: the caller's wishes, each with a default. Out: values that `course` decides by.
//! Not here: the times themselves (`cron`, `schedule`), what follows from a policy (`course`).

use std::time::Duration;

use crate::limits::JITTER_MAX;
use crate::{Invalid, Timestamp, format_duration};

/// What is agreed about a task that is due again and again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Series {
    /// No fire before; for an interval it is the first of them, and the others are counted from it.
    pub starts_at: Option<Timestamp>,
    /// No fire after.
    pub ends_at: Option<Timestamp>,
    /// So many fires, and no more. What a policy skips does not count.
    pub count: Option<u32>,
    /// What to do about fires that were missed.
    pub misfire: Misfire,
    /// What to do about a fire while the one before is not over.
    pub overlap: Overlap,
    /// Each fire is up to so much after its time, by chance, but always the same for the same fire.
    pub jitter: Duration,
}

/// What to do about fires that were missed: nobody was there to fire them, or to receive them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Misfire {
    /// The latest of them is fired, late; the others are skipped.
    #[default]
    FireOnce,
    /// All are fired, late, one after the other, up to a limit.
    FireAll,
    /// All are skipped.
    Skip,
}

/// What to do about a fire while the one before is under way or waits for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// It is fired beside it.
    #[default]
    Allow,
    /// It is skipped.
    Skip,
    /// One waits until the one before is over; further ones are skipped.
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

    /// Whether a fire at this time is still one of them.
    pub(crate) fn reaches(&self, nominal_at: Timestamp) -> bool {
        self.ends_at.is_none_or(|ends_at| nominal_at <= ends_at)
    }
}
