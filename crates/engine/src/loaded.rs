//! Copies of the tasks that are due soon, and their timers.

pub(crate) mod fire;
pub(crate) mod loader;
pub(crate) mod tasks;
