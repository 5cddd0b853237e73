//! Couriers carry deliveries to their targets: `webhook` sends HTTP requests, `grpc` calls methods,
//! `queue` leases deliveries to workers, `mail` sends the notices of alarms; `connectors` has the
//! courier of sinks. Each delivery is reported to its owner with an outcome, or as not sent.

mod grpc;
mod mail;
mod panic;
pub(crate) mod queue;
mod stop;
mod webhook;

use std::error::Error;
use std::io;
use std::sync::Arc;

use punctual_connectors::SinkCourier;
use punctual_core::{Guarantee, Occasion, Outcome, Target};
use punctual_engine::{Courier, Delivery, Reports};

pub(crate) use grpc::GrpcCourier;
pub use mail::MailServer;
pub(crate) use mail::{MailCourier, MailServerUrl, SmtpCredentials};
pub(crate) use queue::Hub;
pub(crate) use webhook::{Dialler, Guard, HttpCourier, Signer};
pub use webhook::{Reach, SecretError, SigningSecret, Signs};

/// Returns the name of an occasion in headers, JSON and gRPC.
pub(crate) const fn occasion_name(occasion: Occasion) -> &'static str {
    match occasion {
        Occasion::Due => "due",
        Occasion::Manual => "manual",
        Occasion::Return => "return",
    }
}

/// The couriers of a broker.
#[derive(Debug)]
pub(crate) struct Couriers {
    pub(crate) http: Arc<HttpCourier>,
    /// What it has in flight is counted and ended with that of `http`.
    pub(crate) grpc: Arc<GrpcCourier>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) mail: Arc<MailCourier>,
    pub(crate) sinks: Arc<SinkCourier>,
}

impl Couriers {
    /// Returns whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.http.is_idle() && self.hub.is_idle() && self.mail.is_idle() && self.sinks.is_idle()
    }
}

impl Courier for Couriers {
    fn carry(&self, deliveries: Vec<Delivery>, reports: &Reports) {
        let by_queue = |delivery: &Delivery| matches!(delivery.definition.target, Target::Queue(_));
        // Usually all are of one kind, and nothing needs to be moved.
        let (queued, webhooks): (Vec<_>, Vec<_>) = if deliveries.iter().all(by_queue) {
            (deliveries, Vec::new())
        } else {
            deliveries.into_iter().partition(by_queue)
        };
        if !queued.is_empty() {
            self.hub.carry(queued, reports);
        }
        let by_sink = |delivery: &Delivery| matches!(delivery.definition.target, Target::Sink(_));
        let (sinks, webhooks): (Vec<_>, Vec<_>) = if webhooks.iter().any(by_sink) {
            webhooks.into_iter().partition(by_sink)
        } else {
            (Vec::new(), webhooks)
        };
        if !sinks.is_empty() {
            self.sinks.carry(sinks, reports);
        }
        for mut delivery in webhooks {
            let (http, mail) = (Arc::clone(&self.http), Arc::clone(&self.mail));
            let grpc = Arc::clone(&self.grpc);
            let reports = reports.clone();
            tokio::spawn(async move {
                let result = match delivery.definition.target {
                    // Boxed, because it is large, rare, and would be part of every webhook's task.
                    Target::Mail(_) => Box::pin(mail.deliver(&mut delivery)).await,
                    Target::Grpc(_) => Box::pin(grpc.deliver(&mut delivery)).await,
                    Target::Http(_) | Target::Queue(_) | Target::Sink(_) => {
                        http.deliver(&mut delivery).await
                    }
                };
                let (outcome, answer) = match result {
                    Some(result) => (Some(result.outcome), result.answer),
                    None => (None, None),
                };
                reports.send_gathered(delivery.report(outcome).with_answer(answer)).await;
            });
        }
    }
}

/// Returns the outcome of a delivery that is in flight when the broker stops, and that may have
/// been received.
///
/// With at-most-once it is expired and never sent again. Otherwise it has no outcome: it counts as
/// not sent, stays in the store, and is sent again after the next start.
fn given_up(guarantee: Guarantee) -> Option<Outcome> {
    match guarantee {
        Guarantee::AtMostOnce => Some(Outcome::Expired),
        Guarantee::AtLeastOnce | Guarantee::ExactlyOnce => None,
    }
}

/// Returns the cause of an error. An [`io::Error`] does not give the error it wraps as its source.
fn inner_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.map_or_else(|| error.source(), |inner| Some(inner))
}
