//! Keeps a transaction from being committed after the leases of its deliveries.
//!
//! A broker can be suspended at any moment, and a `COMMIT` that it sends when it resumes may come
//! after the next owner has answered that a task is cancelled. So the database decides: after the
//! last statement the session reads the clock of the database, adds the rest of the lease by the
//! broker's own clock, and sends the comparison with that deadline together with `COMMIT`. The
//! deadline is never late, however long the broker is suspended and wherever, because the clock of
//! the database was read before that of the broker. A clock of the database that is set back
//! between the two moves the deadline.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::{Clock, Timestamp};
use punctual_engine::Delivery;
use punctual_sql::SqlError;

/// How long the database waits for a broker that has run its statements and does not commit. Then
/// it ends the session, so that no other client waits for the locks of a suspended broker. Longer
/// than a broker needs under load, shorter than the default timeout of a delivery.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(5);

/// The database did not say what time it is.
pub(super) fn no_clock() -> SqlError {
    SqlError::Unexpected("the clock of the database has no value".to_owned())
}

/// The leases of a batch, as they are now.
pub(super) struct CommitGuard<'a> {
    batch: &'a [Delivery],
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for CommitGuard<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CommitGuard").field("batch", &self.batch.len()).finish()
    }
}

/// How long a batch may still be committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitTime {
    /// No other broker can own the partitions.
    Unbounded,
    /// The first of the leases ends after this time.
    Left(Duration),
    /// A lease is over.
    Over,
}

impl<'a> CommitGuard<'a> {
    pub(super) const fn new(batch: &'a [Delivery], clock: Arc<dyn Clock>) -> Self {
        Self { batch, clock }
    }

    /// Whether the batch has leases that end.
    pub(super) fn is_bounded(&self) -> bool {
        self.lease_end() != Timestamp::MAX
    }

    /// How long the batch may still be committed. The leases may have been extended since it began.
    pub(super) fn time(&self) -> CommitTime {
        match (self.lease_end(), self.clock.now()) {
            (Timestamp::MAX, _) => CommitTime::Unbounded,
            (end, now) if now >= end => CommitTime::Over,
            (end, now) => CommitTime::Left(end.since(now)),
        }
    }

    fn lease_end(&self) -> Timestamp {
        let ends = self.batch.iter().map(|delivery| delivery.permit.lease_end());
        ends.min().unwrap_or(Timestamp::MAX)
    }
}
