//! The seam between an owner and the code that sends deliveries (`server/courier`).

use crate::delivery::attempt::Delivery;
use crate::shell::message::Reports;

/// Sends deliveries.
///
/// Contract: every delivery is reported exactly once, soon after its timeout at the latest,
/// whatever the receiver does. An answer that does not arrive in time is
/// [`Outcome::Expired`](punctual_core::Outcome::Expired). A delivery is sent at most once, and its
/// first byte is written before [`Delivery::lease_end`], which is checked at that moment, after
/// every wait. One that was certainly not sent may be reported without an outcome.
pub trait Courier: Send + Sync + 'static {
    /// Accepts deliveries without waiting for anything.
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports);
}
