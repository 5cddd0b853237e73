//! Deliveries to unary gRPC methods.
//!
//! `call` builds the request, `answer` reads the answer and judges it. Everything else is shared
//! with webhooks: the guard of addresses, lookups of names, the pool of connections with its
//! shares, the gate in front of the first byte, and signatures (`webhook`).
//!
//! The status of the answer decides. No status within the task's timeout is expired. A connection
//! that breaks after the first byte of the call leaves its outcome unknown: a failed attempt, or at
//! most once an expired one.

mod answer;
mod call;

use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use http::{Response, Uri};
use punctual_core::{AttemptResult, Clock as _, GrpcTarget, Guarantee, Outcome, Reason, Target};
use punctual_engine::{Delivery, NotSendable};
use tokio::time::timeout;

use super::webhook::{
    BoxError, CallError, CallSender, Checkout, HttpCourier, HttpParts, InUseGuard, LookupPermit,
    OpenConnection, SendGate, outcome_of_failure,
};
use crate::shares::ShareKey;
use answer::CallAnswer;

/// Carries deliveries to gRPC methods.
#[derive(Debug)]
pub(crate) struct GrpcCourier {
    /// Shared with webhooks: also what is in flight, and the signal that ends it.
    parts: Arc<HttpParts>,
}

/// What a call is made on.
enum CallRoute {
    Open(CallSender),
    New(LookupPermit),
}

/// Why an attempt has no answer.
enum AttemptFailure {
    /// Nothing was sent.
    NotSendable(NotSendable),
    /// No connection could be opened.
    Dial(BoxError),
    /// The task has something that cannot be sent.
    Request(BoxError),
    Call(CallError),
}

impl GrpcCourier {
    /// Uses the connections of the courier of webhooks.
    pub(crate) fn beside(webhooks: &HttpCourier) -> Self {
        Self { parts: webhooks.parts() }
    }

    /// Calls the method of one delivery and sets its `fired_at`. Returns its result; `None` if it
    /// counts as not sent.
    pub(crate) async fn deliver(&self, delivery: &mut Delivery) -> Option<AttemptResult> {
        let (permit, guarantee) = (delivery.permit.clone(), delivery.definition.guarantee);
        let (fire_id, stop) = (delivery.fire_id, self.parts.stop());
        let sending = self.send(delivery);
        let result = stop.unless_stopped(fire_id, permit, guarantee, sending).await?;
        self.parts.note(delivery, &result);
        Some(result)
    }

    /// Returns `None` if the owner does not allow it to be sent any more.
    async fn send(&self, delivery: &mut Delivery) -> Option<AttemptResult> {
        let definition = Arc::clone(&delivery.definition);
        let Target::Grpc(target) = &definition.target else {
            return Some(refused("not a gRPC method").into());
        };
        let uri: Uri = match target.url().parse() {
            Ok(uri) => uri,
            Err(error) => return Some(refused(&format!("the URL cannot be used: {error}")).into()),
        };
        // Connections to webhooks of the same origin cannot be used, so they are apart.
        let part = format!("grpc {}", target.origin());
        let key = ShareKey::part(definition.namespace.clone(), &part);
        loop {
            let Checkout { in_use, idle } = self.parts.pool.checkout(&key).await;
            let route = match idle {
                Some(OpenConnection::Grpc(sender)) => CallRoute::Open(sender),
                Some(OpenConnection::Webhook(_)) | None => {
                    let _waits = self.parts.telemetry.webhook_lookup_waits();
                    let dialler = &self.parts.dialler;
                    CallRoute::New(dialler.lookup_permit(&definition.namespace, &uri).await)
                }
            };
            let was_open = matches!(route, CallRoute::Open(_));
            let began = self.parts.clock.machine_now();
            let left = || {
                let spent = self.parts.clock.machine_now().since(began);
                definition.timeout.saturating_sub(spent)
            };
            let mut answered = None;
            let attempt = async {
                let attempt = self.attempt(delivery, target, &uri, route, left);
                let (sender, response) = attempt.await?;
                let answer = CallAnswer::new(response, self.parts.answer_bytes);
                let (sender, answer) = answered.insert((sender, answer));
                sender.drive(answer.read()).await;
                Ok(())
            };
            let ended: Result<Result<(), AttemptFailure>, _> =
                timeout(definition.timeout, attempt).await;
            if let Some((sender, answer)) = answered {
                return Some(keep(in_use, sender, answer, definition.guarantee).await);
            }
            let failure = match ended {
                Ok(Err(failure)) => failure,
                Ok(Ok(())) | Err(_) => return Some(Outcome::Expired.into()),
            };
            let outcome = match failure {
                // The server had closed the idle connection, and nothing was sent.
                AttemptFailure::Call(CallError::Closed(_)) if was_open => continue,
                AttemptFailure::Call(CallError::NotBegun(_))
                    if was_open && definition.guarantee != Guarantee::AtMostOnce =>
                {
                    delivery.permit.unsend();
                    continue;
                }
                AttemptFailure::Call(CallError::NotSendable(why))
                | AttemptFailure::NotSendable(why) => {
                    tracing::debug!(fire_id = %delivery.fire_id, %why, "delivery not sent");
                    return None;
                }
                AttemptFailure::Call(CallError::Closed(error) | CallError::NotBegun(error)) => {
                    outcome_of_failure(&error)
                }
                AttemptFailure::Call(CallError::Broken(error)) => {
                    unknown(definition.guarantee, &format!("no answer: {error}"))
                }
                AttemptFailure::Dial(error) => outcome_of_failure(error.as_ref()),
                AttemptFailure::Request(error) => refused(&error.to_string()),
            };
            return Some(outcome.into());
        }
    }

    /// Opens a connection if need be, makes the call and waits for the head of its answer. `left`
    /// is how much of the time of the attempt is left.
    async fn attempt(
        &self,
        delivery: &mut Delivery,
        target: &GrpcTarget,
        uri: &Uri,
        route: CallRoute,
        left: impl Fn() -> Duration,
    ) -> Result<(CallSender, Response<RecvStream>), AttemptFailure> {
        let HttpParts { clock, signer, .. } = &*self.parts;
        delivery.fired_at = clock.now();
        delivery.permit.check(delivery.fired_at).map_err(AttemptFailure::NotSendable)?;
        let mut sender = match route {
            CallRoute::Open(sender) => sender,
            CallRoute::New(lookup) => {
                self.connect(uri, lookup).await.map_err(AttemptFailure::Dial)?
            }
        };
        delivery.fired_at = clock.now();
        let (request, message) = call::request(delivery, target, uri, signer, left())
            .map_err(AttemptFailure::Request)?;
        let answer = sender.call(request, message, &delivery.permit).await;
        Ok((sender, answer.map_err(AttemptFailure::Call)?))
    }

    async fn connect(&self, uri: &Uri, lookup: LookupPermit) -> Result<CallSender, BoxError> {
        let stream = self.parts.dialler.dial_for_calls(uri, lookup).await?;
        let gate = SendGate::new(Arc::clone(&self.parts.clock));
        Ok(CallSender::open(stream, gate).await?)
    }
}

/// Returns the connection of a call to the pool, if its answer was read to the end, and judges the
/// answer.
async fn keep(
    in_use: InUseGuard,
    sender: CallSender,
    answer: CallAnswer,
    guarantee: Guarantee,
) -> AttemptResult {
    let is_complete = answer.is_complete();
    let result = answer.judge(guarantee);
    if is_complete {
        in_use.keep(OpenConnection::Grpc(sender)).await;
    }
    result
}

/// Returns the outcome of a call that the server may have carried out. At most once it is not
/// called again.
fn unknown(guarantee: Guarantee, reason: &str) -> Outcome {
    match guarantee {
        Guarantee::AtMostOnce => Outcome::Expired,
        Guarantee::AtLeastOnce | Guarantee::ExactlyOnce => failed(reason, None),
    }
}

fn failed(reason: &str, retry_in: Option<Duration>) -> Outcome {
    Outcome::Failed { reason: Reason::new(reason), retry_in }
}

fn refused(reason: &str) -> Outcome {
    Outcome::Refused { reason: Reason::new(reason) }
}
