//! Couriers: how deliveries travel. One file per way.
//!
//! A webhook's way: `http` makes the request and reads the answer, `sign` signs it, `dial` connects, and `guard` says
//! whereto it may; `retry_after` reads when to come back.

mod dial;
mod guard;
mod http;
mod retry_after;
mod sign;

pub(crate) use guard::Guard;
pub use guard::Reach;
pub(crate) use http::HttpCourier;
pub(crate) use sign::Signer;
pub use sign::{SecretError, SigningSecret, Signs};
