//! The names of lines and workers, and which line a delivery belongs to.

use punctual_core::{Namespace, Queue, Target};
use punctual_engine::Delivery;

/// Names the line of a queue.
pub(super) type LineId = (Namespace, Queue);
/// Names a worker on a stream. Never reused: a lease may outlast the stream of its worker.
pub(super) type WorkerNo = u64;

/// Returns the line of a delivery; `None` if its target is not a queue.
pub(super) fn line_of(delivery: &Delivery) -> Option<LineId> {
    match &delivery.definition.target {
        Target::Queue(queue) => Some((delivery.definition.namespace.clone(), queue.clone())),
        Target::Http(_) | Target::Mail(_) | Target::Sink(_) | Target::Grpc(_) => None,
    }
}

/// Returns whether a delivery belongs to a line. Clones nothing, unlike [`line_of`].
pub(super) fn is_of(delivery: &Delivery, (namespace, line): &LineId) -> bool {
    let definition = &delivery.definition;
    matches!(&definition.target, Target::Queue(queue) if queue == line)
        && definition.namespace == *namespace
}
