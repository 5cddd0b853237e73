//! What is stored in Redis: the names of keys, and the bytes under them.
//!
//! `golden` compares both with the files in `golden/` of this crate.

pub(crate) mod codec;
pub(crate) mod due;
pub(crate) mod ends;
#[cfg(test)]
mod golden;
pub(crate) mod groups;
pub mod keys;
