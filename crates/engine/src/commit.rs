//! Decisions become durable, in batches, and only then take effect.
//!
//! `decision` is what the steps of the owner produce, `writer` the queue of decisions and the batch
//! in flight, `apply` the steps that send batches and carry out effects. `failover` handles a store
//! that has lost batches, with the help of `retained_batches`.

pub(crate) mod apply;
pub(crate) mod decision;
pub(crate) mod failover;
pub(crate) mod retained_batches;
pub(crate) mod writer;
