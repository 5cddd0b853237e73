//! The API of a running broker, over HTTP and gRPC: what it accepts, answers and refuses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod actions;
mod alarms;
mod batches;
mod bodies;
mod causes;
mod console;
mod dead_letters;
mod dev;
mod explain;
mod fast_path;
mod fires;
mod grpc;
mod grpc_reads;
mod idempotency;
mod input;
mod lists;
mod live;
mod namespace_list;
mod namespaces;
mod openapi;
mod operations;
mod queues;
mod requests;
mod rights;
mod rules;
mod scenarios;
mod schedules;
mod stats;
mod tasks;
