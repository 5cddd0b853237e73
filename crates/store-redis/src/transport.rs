//! Calls to Redis: connections that reconnect, script calls, and the parsing of replies.
//!
//! `store`, `read` and `membership` build a [`script::ScriptCall`], send it over a
//! [`connection::RedisConnection`] and take the result apart with [`reply`].

pub(crate) mod connection;
pub(crate) mod reply;
pub(crate) mod script;
