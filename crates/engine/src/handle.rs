//! What callers ask of an owner, and its replies.

pub(crate) mod call;
pub(crate) mod command;
