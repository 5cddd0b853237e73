//! Decisions are written in batches and take effect once they are durable.

pub(crate) mod failover;
pub(crate) mod retained_batches;
pub(crate) mod writer;
