//! The Redis store on real servers: the conformance suite on a single server and on a Cluster, its
//! own additions to the contract, and faults.

#![allow(clippy::print_stdout, reason = "a run prints what it did")]

mod access;
mod brokers;
mod cluster_faults;
mod conformance;
mod contents;
mod counting;
mod fires;
mod long_walks;
mod membership;
mod memory;
mod namespaces;
mod opening;
mod outages;
mod replicas;
mod subject;
mod writer;
