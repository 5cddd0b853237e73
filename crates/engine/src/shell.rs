//! The shell runs an owner: a thread that decides and waits for time, and the tasks on the runtime
//! that read, write and deliver for it. The owner itself (`owner`) does no I/O.

pub(crate) mod executor;
pub(crate) mod failure;
pub(crate) mod message;
pub(crate) mod next_batch;
pub(crate) mod thread;
