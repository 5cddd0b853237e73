//! Connections of the configuration: sinks that take deliveries, and sources that bring tasks.
//!
//! [`settings`] reads connections and sources, and decides which namespace may use which. A
//! [`SinkCourier`] carries deliveries over the sessions of each connection; a [`Sink`] opens them,
//! one kind of system per folder (`sql`). A source takes commands from another system and gives
//! them to an [`Intake`] (`outbox`: the rows of a table). The server composes all of it.

mod courier;
mod line;
pub mod outbox;
mod place;
pub mod settings;
mod sink;
mod source;
pub mod sql;

pub use courier::{ConnectionView, ConnectorEvent, Observer, SinkCourier};
pub use outbox::OutboxSource;
pub use settings::{
    ConnectionSettings, Connections, ConnectorConfig, SettingsError, SourceSettings,
};
pub use sink::{DynFuture, SendResult, SessionLost, Sink, SinkSession};
pub use source::{
    Applied, Intake, MessageEnd, MessageReader, MessageSession, MessageSource, SourceCommand,
    SourceMessage, SourceState, SourceStatus, TakeBound, Verb,
};
