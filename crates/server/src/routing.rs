//! Routing: which broker owns a partition, and how its owner is called.
//!
//! A broker with a store of its own runs all owners and calls them directly. A broker of a cluster
//! forwards a call to the broker that the topology names. While a partition moves between two
//! owners, its calls wait for the next owner, no longer than `forward::WAIT_FOR_OWNER_MAX`.
//! A command is sent again only if the first try certainly changed nothing.
//!
//! `registry` knows the owners, `forward` calls them, and `partition_handle` is what the API uses.
//! Calls to other brokers are made by `peer`; `membership` starts and stops the owners of this
//! broker.

mod forward;
mod partition_handle;
mod registry;

pub(crate) use partition_handle::PartitionHandle;
pub(crate) use registry::Owners;
