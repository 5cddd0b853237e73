//! Real Redis servers for tests, on free ports and in folders of their own.
//!
//! In: settings. Out: a server, or a Cluster of three with a replica each. All of them end with the test (`server`).
//! A test that only needs some Redis shares one with all others of the run: see `shared`.
//! Tests of the binary use `server` and `cluster` too (`punctual/tests/cluster/servers.rs`).

#![allow(dead_code, reason = "not every test needs every kind of server")]

pub(crate) mod cluster;
pub(crate) mod server;
pub(crate) mod shared;
pub(crate) mod subject;
pub(crate) mod writer;

#[allow(unused_imports, reason = "not every test needs all of it")]
pub(crate) use server::{Server, cli, command, free_port, pause, say, wait_for};
