//! Deliveries to webhooks.

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
