//! Writing: from a batch to the bytes of one commit.
//!
//! `encode` looks up what a batch leaves open and writes its changes as steps; `commit` spells the
//! bytes and reads them back. The journal makes the bytes durable, and `state` applies them.

pub(crate) mod commit;
pub(crate) mod encode;
