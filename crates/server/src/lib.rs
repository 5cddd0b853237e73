//! The broker: how the parts are put together, and everything that touches the outside.
//!
//! In: a listener, a [`Config`] and a store. Out: a running broker, until it is told to stop. Here and only here are HTTP,
//! JSON, the machine's clock and the log.
//!
//! Read in this order: `broker` puts everything together; `listen` and `tls` let requests in, `auth` and `browser` say whose they
//! are; `api` turns requests into commands and answers into JSON, `owners` finds who decides them, `peer` asks and answers other
//! brokers, `cluster` makes this broker one of many; `courier` carries deliveries; `telemetry` tells about
//! all of it; `clock` is the machine's time.

mod api;
mod auth;
mod broker;
mod browser;
mod clock;
pub mod config;
mod courier;
mod listen;
mod membership;
mod peer;
mod routing;
mod store;
mod telemetry;
mod tls;

pub use api::preview;
pub use auth::{Grant, Token, TokenError};
pub use broker::{BrokerError, run};
pub use config::{Config, ConfigError, Sharing};
pub use courier::{Reach, SecretError, SigningSecret, Signs};
pub use listen::raise_file_limit;
pub use store::MeteredStore;
pub use telemetry::{LogFormat, start_log};
pub use tls::{Authorities, Tls, TlsError};
