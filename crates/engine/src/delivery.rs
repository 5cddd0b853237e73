//! Due tasks are sent to couriers, and their outcomes are settled.

pub(crate) mod claim;
pub(crate) mod deliver;
pub(crate) mod lane;
pub(crate) mod settle;
