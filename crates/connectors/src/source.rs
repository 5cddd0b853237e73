//! The seam between a source and the broker that applies its commands.
//!
//! A source takes commands from another system, gives them to an [`Intake`] in order, and confirms
//! to its system only those that are durable or rejected. The rest it gives again later, under the
//! same ids, so a command that was applied without the confirmation makes no second task.

#[cfg(feature = "amqp")]
mod amqp;
mod identity;
mod in_order;
mod key_template;
mod mapping;
mod message;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
mod pattern;
mod reader;
#[cfg(feature = "redis-stream")]
mod redis;
mod session;
mod state;

use std::fmt;

use crate::not_built::NotBuilt;
use crate::sink::DynFuture;
use crate::source_settings::MessageSourceSettings;
use punctual_core::{MessageSystem, Namespace};

pub(crate) use identity::digest;
pub(crate) use in_order::apply_in_order;
pub(crate) use key_template::KeyTemplate;
pub(crate) use mapping::SourceMapping;
pub use message::SourceMessage;
pub(crate) use pattern::{PlacePattern, WildcardStyle};
pub use reader::MessageReader;
pub use session::{MessageEnd, MessageSession, MessageSource, TakeBound};
pub use state::{SourceState, SourceStatus};

/// What opens sessions with the system of a source.
fn open_by(settings: &MessageSourceSettings, reader: &str) -> Box<dyn MessageSource> {
    match settings.system {
        #[cfg(feature = "amqp")]
        MessageSystem::Amqp => Box::new(amqp::AmqpQueueSource::new(settings)),
        #[cfg(feature = "mqtt")]
        MessageSystem::Mqtt => Box::new(mqtt::MqttTopicSource::new(settings, reader)),
        #[cfg(feature = "nats")]
        MessageSystem::Nats => Box::new(nats::NatsSubjectSource::new(settings)),
        #[cfg(feature = "redis-stream")]
        MessageSystem::RedisStream => Box::new(redis::RedisStreamSource::new(settings, reader)),
        _ => Box::new(NotBuilt(settings.system.field())),
    }
}

/// A command of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceCommand {
    /// Unique among all commands of all sources, and the same whenever the command is given again.
    pub id: String,
    /// A digest of what was given. A schedule that was applied under the same id and another digest
    /// is a conflict.
    pub digest: String,
    /// The namespace, which the configuration of the source sets.
    pub namespace: Namespace,
    /// What to do.
    pub verb: Verb,
    /// The key of the task.
    pub key: Option<String>,
    /// The task in JSON, as in the API, without its key; for touch, the body of a touch.
    pub task: Option<String>,
    /// For touch, the task in JSON that is created if there is none with the key.
    pub create: Option<String>,
}

/// What a command of a source does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Creates or replaces a task.
    Schedule,
    /// Touches a task.
    Touch,
    /// Cancels a task.
    Cancel,
    /// Pauses a task.
    Pause,
    /// Resumes a task.
    Resume,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 5] =
        [Self::Schedule, Self::Touch, Self::Cancel, Self::Pause, Self::Resume];

    /// The verb as sources write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Touch => "touch",
            Self::Cancel => "cancel",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }

    /// Reads a verb.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == text)
    }
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Applied {
    /// It is durable. A cancel, touch, pause or resume of a task that is not there is done too.
    Done,
    /// It will never be applied; the text is a problem document.
    Rejected(String),
    /// It was not applied, or the outcome is unknown: give it again later.
    Later(String),
}

/// Applies the commands of sources.
pub trait Intake: fmt::Debug + Send + Sync {
    /// Applies commands. Commands of one task are applied in the order given. Contract: returns
    /// one result per command in order, within a bounded time, and a command with an id that was
    /// applied before creates no second task.
    fn apply(&self, commands: Vec<SourceCommand>) -> DynFuture<'_, Vec<Applied>>;
}
