//! The seam between a source and the broker that applies its commands.
//!
//! A source takes commands from another system, gives them to an [`Intake`] in order, and confirms
//! to its system only those that are durable or rejected. The rest it gives again later, under the
//! same ids, so a command that was applied without the confirmation makes no second task.

#[cfg(feature = "amqp")]
mod amqp;
mod identity;
mod in_order;
mod intake;
#[cfg(feature = "kafka")]
mod kafka;
mod key_template;
mod mapping;
mod message;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
mod open;
mod pattern;
mod reader;
#[cfg(feature = "redis-stream")]
mod redis;
mod session;
mod state;

pub(crate) use identity::digest;
pub(crate) use in_order::apply_in_order;
pub use intake::{Applied, Intake, SourceCommand, Verb};
pub(crate) use key_template::KeyTemplate;
pub(crate) use mapping::SourceMapping;
pub use message::SourceMessage;
pub(crate) use pattern::{PlacePattern, WildcardStyle};
pub use reader::MessageReader;
pub use session::{MessageEnd, MessageSession, MessageSource, TakeBound};
pub use state::{SourceState, SourceStatus};
