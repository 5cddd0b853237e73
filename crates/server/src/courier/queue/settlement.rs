//! What a worker receives and what it reports back.

use std::time::Duration;

use punctual_core::{Namespace, Queue, Reason, Target};
use punctual_engine::Delivery;

use super::lease::Token;

/// A delivery in the hands of a worker.
#[derive(Debug)]
pub(crate) struct Leased {
    /// Settles it.
    pub(crate) token: Token,
    /// What travels.
    pub(crate) delivery: Delivery,
    /// For how long.
    pub(crate) lease: Duration,
}

/// What a worker says of a delivery.
#[derive(Debug)]
pub(crate) enum Word {
    Ack,
    Fail {
        reason: Reason,
        retry_in: Option<Duration>,
    },
    Refuse {
        reason: Reason,
    },
    Extend {
        lease: Duration,
    },
    /// It was given to nobody: of a broker that polled for a worker who had gone.
    Unseen,
}

/// What came of a worker's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It counts.
    Taken,
    /// The attempt is over, or there is none: nothing was changed.
    Stale,
}

/// Where a worker says that its deliveries are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    pub(crate) namespace: &'a Namespace,
    /// Only of this one. A worker on a stream may have several, and names none.
    pub(crate) queue: Option<&'a Queue>,
}

impl<'a> Place<'a> {
    /// Of any queue.
    pub(crate) const fn anywhere_in(namespace: &'a Namespace) -> Self {
        Self { namespace, queue: None }
    }

    pub(super) fn has(self, delivery: &Delivery) -> bool {
        let definition = &delivery.definition;
        let is_of = |name| matches!(&definition.target, Target::Queue(queue) if queue == name);
        definition.namespace == *self.namespace && self.queue.is_none_or(is_of)
    }
}
