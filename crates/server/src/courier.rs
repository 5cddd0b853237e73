//! Couriers: how deliveries travel. `http` calls webhooks, `hub` has workers come and take.
//!
//! A webhook's way: `http` makes the request and reads the answer, `sign` signs it, `connections` has a connection for it, or room for one
//! that `dial` makes, and `guard` says whereto it may; `retry_after` reads when to come back.

pub(crate) mod queue;
mod webhook;

use std::sync::Arc;

use punctual_core::{Guarantee, Occasion, Outcome, Target};
use punctual_engine::{Courier, Delivery, Reports};

pub(crate) use queue::Hub;
pub(crate) use webhook::{Dialler, Guard, HttpCourier, Signer};
pub use webhook::{Reach, SecretError, SigningSecret, Signs};

/// Why there is a fire, as every wire spells it.
pub(crate) const fn occasion_name(occasion: Occasion) -> &'static str {
    match occasion {
        Occasion::Due => "due",
        Occasion::Manual => "manual",
        Occasion::Return => "return",
    }
}

/// All couriers of a broker.
#[derive(Debug)]
pub(crate) struct Couriers {
    pub(crate) http: Arc<HttpCourier>,
    pub(crate) hub: Arc<Hub>,
}

impl Couriers {
    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.http.is_idle() && self.hub.is_idle()
    }
}

impl Courier for Couriers {
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports) {
        let by_queue = |delivery: &Delivery| matches!(delivery.definition.target, Target::Queue(_));
        // Usually all are of one kind, and then nothing moves.
        let (queued, webhooks): (Vec<_>, Vec<_>) = if deliveries.iter().all(by_queue) {
            (deliveries, Vec::new())
        } else {
            deliveries.into_iter().partition(by_queue)
        };
        if !queued.is_empty() {
            self.hub.carry(queued, reports);
        }
        for delivery in webhooks {
            let (http, reports) = (Arc::clone(&self.http), reports.clone());
            tokio::spawn(async move {
                let outcome = http.deliver(&delivery).await;
                reports.send(vec![delivery.report(outcome)]);
            });
        }
    }
}

/// What is reported of a delivery that is under way when the broker stops, and may have been received. What may be received again is
/// as if it had not been sent: it stays in the store as it is, and the next start sends it. What may not is never sent again, and nobody
/// knows what came of it.
fn given_up(delivery: &Delivery) -> Option<Outcome> {
    match delivery.definition.guarantee {
        Guarantee::AtMostOnce => Some(Outcome::Expired),
        Guarantee::AtLeastOnce | Guarantee::ExactlyOnce => None,
    }
}
