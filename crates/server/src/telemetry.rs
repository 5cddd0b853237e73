//! Logs: where they go and how they look. Payloads and header values are never among them.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// For machines, one object a line.
    Json,
}

/// Sends logs to standard error from here on. `RUST_LOG` chooses how much; `info` unless it says.
pub fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match format {
        LogFormat::Pretty => log.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}
