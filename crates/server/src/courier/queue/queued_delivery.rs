//! A delivery in a line, before it is leased to a worker.

use std::sync::Arc;

use punctual_core::Timestamp;
use punctual_engine::{Delivery, Reports};

/// A delivery that waits for a worker.
#[derive(Debug)]
pub(super) struct QueuedDelivery {
    pub(super) delivery: Delivery,
    /// Shared by the deliveries that came together.
    pub(super) reports: Arc<Reports>,
    pub(super) since: Timestamp,
}
