//! Commands are decided one at a time per task, against what the store holds.

pub(crate) mod cancel;
pub(crate) mod idempotency;
pub(crate) mod lookup;
pub(crate) mod pause;
pub(crate) mod read_tracker;
pub(crate) mod redrive;
pub(crate) mod schedule;
pub(crate) mod touch;
