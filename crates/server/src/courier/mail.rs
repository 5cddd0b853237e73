//! Sends the notices of alarms as mails through the mail server of the broker's configuration.

use std::sync::Arc;

use punctual_core::{AttemptResult, Clock as _, Outcome, Reason};
use punctual_engine::Delivery;
use tokio::sync::watch;

use crate::clock::SystemClock;
use crate::telemetry::Telemetry;

/// Carries deliveries to a mail server.
#[derive(Debug)]
pub(crate) struct MailCourier {
    clock: Arc<SystemClock>,
    telemetry: Telemetry,
    /// Becomes true when the broker stops waiting for answers. Each delivery in flight subscribes.
    stopped: watch::Sender<bool>,
}

impl MailCourier {
    pub(crate) fn new(clock: Arc<SystemClock>, telemetry: Telemetry) -> Self {
        Self { clock, telemetry, stopped: watch::Sender::new(false) }
    }

    /// Sends one delivery and sets its `fired_at`. Returns its result; `None` if it counts as not
    /// sent.
    pub(crate) async fn deliver(&self, delivery: &mut Delivery) -> Option<AttemptResult> {
        delivery.fired_at = self.clock.now();
        delivery.permit.check(delivery.fired_at).ok()?;
        let outcome = Outcome::Refused { reason: Reason::new("the broker has no mail server") };
        self.telemetry.attempt(delivery, &outcome, || self.clock.now());
        Some(outcome.into())
    }

    /// Returns whether no delivery is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.stopped.receiver_count() == 0
    }

    /// Stops waiting for answers.
    pub(crate) fn give_up(&self) {
        self.stopped.send_replace(true);
    }
}
