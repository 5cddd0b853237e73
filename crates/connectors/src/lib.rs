//! Connections of the configuration: sinks that take deliveries, and sources that bring tasks.
//!
//! [`settings`] reads connections and sources; [`Connections`] decides which namespace may use
//! which. A [`SinkCourier`] carries deliveries over the sessions of each connection; a [`Sink`]
//! opens them, one kind of system per file or folder (`sql`, `amqp`, `mqtt`, `nats`,
//! `redis_stream`, `kafka`); `message` is what those that take messages have in common. A source
//! takes commands from another system and gives them to an [`Intake`] (`outbox`: the rows of a
//! table; `source`: messages). The server composes all of it.

#[cfg(feature = "amqp")]
mod amqp;
#[cfg_attr(not(all(feature = "amqp", feature = "mqtt")), allow(dead_code))]
mod connection;
mod connection_settings;
mod courier;
#[cfg_attr(not(all(feature = "amqp", feature = "mqtt")), allow(dead_code))]
mod endpoint;
#[cfg(feature = "kafka")]
mod kafka;
mod line;
#[cfg_attr(not(all(feature = "amqp", feature = "mqtt")), allow(dead_code))]
mod message;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
mod not_built;
pub mod outbox;
mod place;
#[cfg(feature = "redis-stream")]
mod redis_stream;
pub mod settings;
mod settings_error;
mod sink;
#[cfg(test)]
mod sink_fixtures;
mod source;
mod source_settings;
pub mod sql;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis-stream"))]
mod window;

pub use connection::{Connection, ConnectionKind, Connections, MessageFormat};
pub use connection_settings::ConnectionSettings;
pub use courier::{ConnectionView, ConnectorEvent, Observer, SinkCourier};
pub use outbox::OutboxSource;
pub use settings::ConnectorConfig;
pub use settings_error::SettingsError;
pub use sink::{DynFuture, SendResult, SessionLost, Sink, SinkSession};
pub use source::{
    Applied, Intake, MessageEnd, MessageReader, MessageSession, MessageSource, SourceCommand,
    SourceMessage, SourceState, SourceStatus, TakeBound, Verb,
};
pub use source_settings::{MessageSourceSettings, OutboxSettings, SourceSettings};
