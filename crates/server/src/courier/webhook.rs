//! Deliveries to webhooks.
//!
//! `send` builds the request and sends it; `sign` signs it. `answer` reads the response and judges
//! whether it is a success. `connections` lends it a connection, or a permit to open one with
//! `dial`; `guard` decides which addresses may be called. `gate` refuses to send after the owner's
//! lease, and `retry_after` reads when to retry.

mod answer;
mod connections;
mod dial;
mod gate;
mod guard;
mod retry_after;
mod send;
mod sign;

pub(crate) use dial::Dialler;
pub(crate) use guard::Guard;
pub use guard::Reach;
pub(crate) use send::HttpCourier;
pub(crate) use sign::Signer;
pub use sign::{SecretError, SigningSecret, Signs};
