//! Ends the deliveries in flight of a courier: by their results, by a panic, or because the broker
//! stops waiting for answers.

use punctual_core::{AttemptResult, FireId, Guarantee};
use punctual_engine::SendPermit;
use tokio::sync::watch;

use super::given_up;
use super::panic::{Panicked, catch_panic, outcome_of_panic};

/// The deliveries in flight of a courier, and the signal that ends them.
#[derive(Debug)]
pub(super) struct StopSignal {
    /// Becomes true when the broker stops waiting for answers. Each delivery in flight subscribes.
    stopped: watch::Sender<bool>,
}

impl StopSignal {
    pub(super) fn new() -> Self {
        Self { stopped: watch::Sender::new(false) }
    }

    /// Waits for `send`, unless the owner recalls the delivery or the broker stops. Returns `None`
    /// if the delivery counts as not sent.
    pub(super) async fn unless_stopped(
        &self,
        fire_id: FireId,
        permit: SendPermit,
        guarantee: Guarantee,
        send: impl Future<Output = Option<AttemptResult>>,
    ) -> Option<AttemptResult> {
        let mut stopped = self.stopped.subscribe();
        tokio::select! {
            sent = catch_panic(send) => match sent {
                Ok(result) => result,
                Err(Panicked) => {
                    tracing::error!(%fire_id, "delivery panicked");
                    outcome_of_panic(&permit, guarantee).map(Into::into)
                }
            },
            // Nothing was sent, and nothing will be.
            () = permit.recalled() => None,
            _ = stopped.wait_for(|stopped| *stopped) => {
                if permit.give_up() {
                    return None;
                }
                given_up(guarantee).map(Into::into)
            }
        }
    }

    /// Returns whether no delivery is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.stopped.receiver_count() == 0
    }

    /// Stops waiting for answers. Returns how many deliveries were in flight.
    pub(super) fn give_up(&self) -> usize {
        self.stopped.send_replace(true);
        self.stopped.receiver_count()
    }
}
