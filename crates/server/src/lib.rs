//! The broker: it connects the engine, the store and the cluster with the outside world.
//!
//! [`run`] serves a [`Config`] and a [`MeteredStore`] on a listener until it is asked to stop.
//! HTTP, JSON, the machine's clock and logging are only in this crate.
//!
//! Read in this order: `startup` builds and runs everything; `broker` is the state that requests
//! share; `listen` and `tls` accept connections; `auth` and `browser` check callers; `api` turns
//! requests into commands and replies into responses, with `task_form` and `fire_form` (tasks and
//! fires as JSON), `problem` (errors) and `schema` (limits in the OpenAPI document); `explain` says
//! what a task waits for, from what `view_namespace` learns of brokers; `measures` counts what
//! ended, `gather_measures` sums it over brokers for `alarms` and `live`; `routing` finds the owner
//! of a partition, `peer` talks to other brokers; `owner_runner` starts owners, for `membership`,
//! which makes this broker a member of a cluster, or for `sole`, if it is the only one; `courier`
//! carries deliveries; `telemetry` has metrics and logs; `clock` is the machine's time, or
//! virtual time, which `virtual_clock` moves.

mod actions;
mod alarms;
mod api;
mod auth;
mod broker;
mod browser;
mod clock;
pub mod config;
mod courier;
mod error;
mod explain;
mod fire_form;
mod gather_measures;
mod intake;
mod listen;
mod measures;
mod membership;
mod namespace_view;
mod owner_runner;
mod peer;
mod problem;
mod routing;
mod schema;
mod shares;
mod sole;
mod sources;
mod startup;
mod store;
mod task_form;
mod telemetry;
mod tls;
mod touch_rules;
mod view_namespace;
mod virtual_clock;

pub use api::http::preview;
pub use auth::{ApiToken, Grant, Right, Rights, TokenError};
pub use config::{Config, ConfigError, Sharing};
pub use courier::{MailServer, Reach, SecretError, SigningSecret, Signs};
pub use error::BrokerError;
pub use listen::raise_file_limit;
pub use startup::{run, run_virtual};
pub use store::MeteredStore;
pub use telemetry::{LogFormat, start_log};
pub use tls::{Authorities, Tls, TlsError};
