//! The seam between an owner and the code that sends deliveries (`server/courier`).

use crate::delivery::attempt::Delivery;
use crate::shell::message::Reports;

/// Sends deliveries.
///
/// Contract: every delivery is reported exactly once, whatever the receiver does: soon after its
/// timeout at the latest, counted from when it is sent. An answer that does not arrive in time is
/// [`Outcome::Expired`](punctual_core::Outcome::Expired). A delivery is sent at most once, after
/// [`SendPermit::send`](crate::SendPermit::send) has allowed it, which is called at the first byte,
/// after every wait; `fired_at` is that moment. One that was certainly not sent is reported without
/// an outcome, and soon if it is recalled. To wait for something that deliveries share is neither
/// an attempt nor a failure.
pub trait Courier: Send + Sync + 'static {
    /// Accepts deliveries without waiting for anything.
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports);
}
