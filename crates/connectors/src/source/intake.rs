//! What a source gives to the broker: commands, in order, through an [`Intake`].

use std::fmt;

use punctual_core::Namespace;

use crate::sink::DynFuture;

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
