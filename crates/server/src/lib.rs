//! The broker: how the parts are put together, and everything that touches the outside.
//!
//! In: a listener, a [`Config`] and a store. Out: a running broker, until it is told to stop. Here and only here are HTTP,
//! JSON, the machine's clock and the log.
//!
//! Read in this order: `broker` puts everything together; `api` turns requests into commands and answers into
//! JSON; `courier` carries deliveries; `clock` is the machine's time.

mod api;
mod broker;
mod clock;
mod config;
mod courier;
mod store;
mod telemetry;

pub use broker::{BrokerError, run};
pub use config::{Config, ConfigError};
pub use store::Store;
pub use telemetry::{LogFormat, start_log};
