//! `punctual serve` as a process: settings, access, connections, webhooks, TLS and its end.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

mod access;
mod alarms;
mod answers;
mod config;
mod connections;
mod file_modes;
mod grpc_targets;
mod metrics;
mod process;
mod store_check;
mod targets;
mod tls;
mod unauthenticated;
mod waiting_deliveries;
mod webhook_connections;
mod webhooks;
