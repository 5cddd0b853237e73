//! Owners: where the owner of each partition is, and how it is asked, here or at another broker.
//!
//! In: commands for a partition. Out: the answers of its owner. A broker on a store of its own has all owners here and asks them
//! directly. One of many forwards what is not its own to the broker that the topology names; while a partition is between two owners
//! its calls wait, a little, for the one who comes.
//! Invariant: a command is asked again only if it is certain that nothing was done. A call waits no longer than [`ASK_MAX`] for somebody to ask.
//! Next door: `peer` (how other brokers are asked), `cluster` (who says which owners are here).

mod forward;
mod partition_handle;
mod registry;

pub(crate) use partition_handle::Door;
pub(crate) use registry::Owners;
