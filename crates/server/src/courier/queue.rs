//! Deliveries to queues.

mod hub;
mod lease;
mod line;
pub(crate) mod poll;
mod settlement;
mod worker;

pub(crate) use hub::Hub;
pub(crate) use lease::Token;
pub(crate) use settlement::{Heard, Leased, Place, Word};
pub(crate) use worker::Worker;
