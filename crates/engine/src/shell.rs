//! The thread that runs an owner.

pub(crate) mod next_batch;
pub(crate) mod thread;
