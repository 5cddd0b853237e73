//! Until when an owner acts, and how a partition passes to the next one.

pub(crate) mod hand_over;
pub(crate) mod lease;
pub(crate) mod recover;
pub(crate) mod sweep;
