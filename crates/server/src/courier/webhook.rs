//! Deliveries to webhooks.
//!
//! `send` builds the request and sends it; `sign` signs it. `answer` reads the response and judges
//! whether it is a success. `connections` lends it a connection, or a permit to open one with
//! `dial`; `guard` decides which addresses may be called. `gate` refuses to send after the owner's
//! lease, and `retry_after` reads when to retry.
//!
//! The courier of gRPC methods uses the same guard, pool and signatures; `calls` has its connections
//! and `call_gate` their gate.

mod answer;
mod call_gate;
mod calls;
mod connections;
mod dial;
mod gate;
mod guard;
mod retry_after;
mod send;
mod sign;

pub(super) use calls::{CallError, CallSender};
pub(super) use connections::{Checkout, InUseGuard, OpenConnection};
pub(crate) use dial::Dialler;
pub(super) use dial::{BoxError, LookupPermit};
pub(super) use gate::SendGate;
pub(crate) use guard::Guard;
pub use guard::Reach;
pub(crate) use send::HttpCourier;
pub(super) use send::{AGENT, HttpParts, PUNCTUAL_KEY, host_of, outcome_of_failure, put_headers};
pub(crate) use sign::Signer;
pub use sign::{SecretError, SigningSecret, Signs};
