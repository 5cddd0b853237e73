//! Cron through the public interface: the text of expressions, and clock changes of known zones.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed assumption should fail the test")]

mod text;
mod zones;
