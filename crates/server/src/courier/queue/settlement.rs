//! What a worker receives for a delivery, and what it reports back.

use std::time::Duration;

use punctual_core::{Namespace, Queue, Reason, Target};
use punctual_engine::Delivery;

use super::token::LeaseToken;

/// A delivery that is leased to a worker.
#[derive(Debug)]
pub(crate) struct Leased {
    pub(crate) token: LeaseToken,
    pub(crate) delivery: Delivery,
    /// How long the worker may take.
    pub(crate) lease: Duration,
}

/// What a worker reports of a delivery.
#[derive(Debug)]
pub(crate) enum Settlement {
    Ack,
    Fail {
        reason: Reason,
        retry_in: Option<Duration>,
    },
    Refuse {
        reason: Reason,
    },
    /// The worker needs more time: the lease lasts this long from now on.
    Extend {
        lease: Duration,
    },
    /// No worker has seen the delivery: a broker polled for a worker that had gone away.
    Returned,
}

/// The result of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleResult {
    Accepted,
    /// The lease has ended or never existed; nothing was changed.
    Stale,
}

/// Which deliveries a worker may settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SettleScope<'a> {
    pub(crate) namespace: &'a Namespace,
    /// Only deliveries of this queue. A worker on a stream may serve several queues and names none.
    pub(crate) queue: Option<&'a Queue>,
}

impl<'a> SettleScope<'a> {
    /// All deliveries of a namespace.
    pub(crate) const fn of_namespace(namespace: &'a Namespace) -> Self {
        Self { namespace, queue: None }
    }

    pub(super) fn contains(self, delivery: &Delivery) -> bool {
        let definition = &delivery.definition;
        let is_of = |name| matches!(&definition.target, Target::Queue(queue) if queue == name);
        definition.namespace == *self.namespace && self.queue.is_none_or(is_of)
    }
}
