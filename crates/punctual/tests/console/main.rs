//! The console in a real browser, against the real binary: what an operator does in it, from start
//! to end.
//!
//! Every test fails if the browser reports an error or a breach of the content security policy.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod accessibility;
mod browser;
mod bulk;
mod clusters;
mod connections;
mod input;
mod keyboard;
mod letters;
mod links;
mod operator;
mod restarts;
mod size;
mod tokens;
mod words;
mod workers;
